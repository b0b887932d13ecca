"""Many regret benchmarks at once: each one is what the independent solver finds by itself."""

import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift.problems import fairness, synthetic
from ergodrift.solve import hindsight
from ergodrift.solve.hindsight import best_in_hindsight, nearby
from ergodrift.solve.reference import solve_reference

RNG = np.random.default_rng(3)
CHAIN = ed.MarkovChain(np.full((3, 3), 0.1) + 0.7 * np.eye(3))


def fair(limit=0.2):
    problem, data, _ = fairness(*synthetic(points=50), limit=limit)
    return problem, ed.MarkovSource(CHAIN, data)


@pytest.mark.parametrize("limit", [0.2, 9.0], ids=["a constraint binds", "none binds"])
def test_newton_finds_what_the_solver_finds(limit):
    problem, source = fair(limit)
    weights = RNG.dirichlet([20.0, 20.0, 20.0], size=8)
    typical = solve_reference(problem, source, np.zeros(3), loss_weights=weights.mean(axis=0))
    assert (typical.multipliers > 0).any() == (limit < 1)
    for found, row in zip(nearby(problem, source, typical, weights), weights, strict=True):
        alone = solve_reference(problem, source, np.zeros(3), loss_weights=row)
        assert found is not None
        assert found.kkt_residual < 1e-9
        np.testing.assert_allclose(found.x, alone.x, atol=1e-6)  # SLSQP stops where the loss is flat to 1e-15
        np.testing.assert_allclose(found.value, alone.value, atol=1e-12)
        np.testing.assert_allclose(found.multipliers, alone.multipliers, atol=1e-6)
        np.testing.assert_allclose(found.constraints, alone.constraints, atol=1e-6)


def quadratic(centres, geometry=None):
    """min E|x - c|^2 subject to x_1 <= 0.5 and x_2 <= 0.5: the weighted mean of the centres, clipped."""
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x - 0.5, geometry or ed.Ball(9.0))
    return problem, ed.MarkovSource(CHAIN, np.asarray(centres))


def test_another_set_of_binding_constraints_is_left_to_the_solver():
    problem, source = quadratic([[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    weights = np.array([[0.6, 0.1, 0.3], [0.1, 0.6, 0.3], [0.1, 0.1, 0.8]])  # the first, the second, none binds
    typical = solve_reference(problem, source, np.zeros(2), loss_weights=weights[0])
    found = nearby(problem, source, typical, weights)
    assert [one is not None for one in found] == [True, False, False]
    every = best_in_hindsight(problem, source, weights, np.zeros(2))
    np.testing.assert_allclose([one.x for one in every], np.minimum(weights @ source.data, 0.5), atol=1e-7)


def test_an_optimum_outside_the_domain_is_not_taken():
    problem, source = quadratic([[-3.0, 0.0], [0.0, 0.0], [0.0, -3.0]], ed.Ball(1.0))
    typical = solve_reference(problem, source, np.zeros(2), loss_weights=[0.1, 0.8, 0.1])
    assert nearby(problem, source, typical, np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]]))[0] is None
    simplex, source = quadratic([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], ed.Simplex())
    assert nearby(simplex, source, solve_reference(simplex, source, np.full(2, 0.5)), np.ones((1, 3))) == [None]


def test_many_problems_are_solved_together_and_equal_ones_once(monkeypatch):
    problem, source = fair()
    weights = RNG.multinomial(1000, [0.3, 0.3, 0.4], size=120)
    weights[7] = weights[3]
    asked = []
    monkeypatch.setattr(hindsight, "solve_reference", lambda *a, **k: asked.append(1) or solve_reference(*a, **k))
    found = best_in_hindsight(problem, source, weights, np.zeros(3))
    assert len(asked) == 1
    assert found[7] is found[3]
    for row in (0, 50, 119):
        alone = solve_reference(problem, source, np.zeros(3), loss_weights=weights[row])
        np.testing.assert_allclose(found[row].x, alone.x, atol=1e-6)
