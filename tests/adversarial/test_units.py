"""Verdicts, estimates and optima do not depend on units: of each constraint, of the loss, of x, of the samples."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal
from hypothesis import given, settings
from hypothesis import strategies as st

import cases
import ergodrift as ed

few = settings(cases.deterministic, max_examples=6)
UNITS = st.floats(-6, 6).map(lambda power: 10.0**power)
RNG = np.random.default_rng(11)
SERIES = np.asarray(scipy.signal.lfilter([1.0], [1.0, -0.8], RNG.normal(size=(6000, 2)), axis=0))
ZERO = np.zeros(2)


def watched(units, limits):
    """Constraints xi_i - l_i in units of their own, which are data: one function serves all draws."""
    problem = ed.Problem(lambda x, xi: jnp.sum(x**2), lambda x, xi: (xi["y"] + 0 * x - xi["l"]) * xi["u"], ed.Ball(1.0))
    rows = len(SERIES)
    return problem, {"y": SERIES, "u": np.broadcast_to(units, (rows, 2)), "l": np.broadcast_to(limits, (rows, 2))}


@pytest.mark.parametrize("method", ["batch", "overlapping", "bootstrap", "anytime", None])
@few
@given(UNITS, UNITS, st.sampled_from([-0.6, 0.02, 0.6]), st.sampled_from([-0.6, 0.02, 0.6]))
def test_verdicts_do_not_depend_on_the_units_of_a_constraint(method, first, second, one, other):
    units = np.array([first, second])
    found, plain = (
        ed.certify(problem, ZERO, ed.SeriesSource(data), method=method)
        for problem, data in (watched(u, [one, other]) for u in (units, np.ones(2)))
    )
    assert found.verdict == plain.verdict
    assert found.more_samples == pytest.approx(plain.more_samples, rel=1e-3)
    for name in ("estimate", "lower", "upper"):
        ends = getattr(plain, name)
        np.testing.assert_allclose(getattr(found, name), units * ends, rtol=1e-6, atol=0)


@few
@given(UNITS, st.floats(-1e3, 1e3), st.lists(st.integers(1, 2500), min_size=1, max_size=6))
def test_a_monitor_says_the_same_in_any_units_and_however_samples_come(unit, limit, cuts):
    problem, data = watched(np.array([unit, 1.0]), [0.5, limit])
    plain = ed.Monitor(*watched(np.ones(2), [0.5, limit])[:1], ZERO).update(watched(np.ones(2), [0.5, limit])[1])
    monitor, ends = ed.Monitor(problem, ZERO), np.union1d(np.minimum(np.cumsum(cuts), 6000), [6000])
    pieces = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
    found = [monitor.update({name: leaf[piece] for name, leaf in data.items()}) for piece in pieces][-1]
    assert found.verdict == plain.verdict
    np.testing.assert_allclose(found.upper, np.array([unit, 1.0]) * plain.upper, rtol=1e-6)


@few
@given(UNITS, st.floats(-100, 100))
def test_the_mixing_time_does_not_depend_on_units_or_origin(unit, origin):
    plain, found = ed.diagnose(SERIES[:, 0]), ed.diagnose(unit * (SERIES[:, 0] + origin))
    assert found.tau_mix == pytest.approx(plain.tau_mix, rel=1e-5)
    assert found.tau_mix_interval == pytest.approx(plain.tau_mix_interval, rel=1e-4)
    assert len(found.warnings) == len(plain.warnings)


def squares(xi, x):
    return jnp.sum((x / xi["x"] - xi["c"]) ** 2) * xi["loss"]


def half_planes(x, xi):
    return jnp.stack([x[0] / xi["x"] - 0.3, xi["low"] - x[0] / xi["x"] - x[1] / xi["x"]]) * xi["u"]


@few
@given(UNITS, UNITS, UNITS, UNITS, st.sampled_from([0.5, 5.0]))
def test_optima_and_feasibility_do_not_depend_on_units(loss, first, second, size, low):
    """x_0 <= 0.3 and x_0 + x_1 >= low over a ball of radius 2: low = 5 cannot be met."""
    data = {
        "c": np.ones((2, 2)), "loss": np.full(2, loss), "u": np.broadcast_to([first, second], (2, 2)),
        "x": np.full(2, size), "low": np.full(2, low),
    }  # fmt: skip
    problem = ed.Problem(lambda x, xi: squares(xi, x), half_planes, ed.Ball(2.0 * size))
    source = ed.IIDSource(data)
    found = ed.feasibility(problem, source, ZERO)
    assert found.verdict == ("infeasible" if low > 2 else "slater")
    if low > 2:
        assert found.conflict == (1,)  # the ball alone does not reach it
        with pytest.raises(ValueError, match="no feasible point"):
            ed.solve_reference(problem, source, ZERO)
        return
    reference = ed.solve_reference(problem, source, ZERO)
    np.testing.assert_allclose(reference.x / size, [0.3, 1.0], rtol=1e-6)
    np.testing.assert_allclose(reference.multipliers * np.array([first, second]) / loss, [1.4, 0.0], atol=1e-5)
