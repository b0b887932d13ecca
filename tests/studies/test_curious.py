"""Answers can be turned back into rows: what the docs say that a curious hub learns, it learns."""

import numpy as np
import pytest
from studies.curious import distance, learned, recovered, walked

pytestmark = pytest.mark.x64("rows are recovered to float64's digits")


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "visits"), [(1, 30), (2, 30), (4, 100), (8, 500)])
def test_a_curious_hub_has_all_rows_of_a_small_agent(rows, visits):
    """From the answers of an ordinary walk, without any question of its own."""
    seen, truth = walked(rows, visits, noise=0.0)
    assert distance(recovered(seen, rows), truth) < 1e-9


@pytest.mark.slow
def test_noise_takes_them_away():
    assert learned(4, 100, 0.1, lives=1) > 0.3


def test_the_jacobian_of_a_linear_constraint_is_the_column_means():
    import jax
    from studies.curious import constraints, rows_of

    data = rows_of(np.random.default_rng(0), 7)
    np.testing.assert_allclose(jax.jacobian(constraints)(np.zeros(3), data)[0], data["X"].mean(axis=0), rtol=1e-12)
