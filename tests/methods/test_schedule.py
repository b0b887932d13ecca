from __future__ import annotations

import re
from math import sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import cases
import ergodrift as ed
from digits import rounded
from ergodrift.methods.schedule import AdaGrad, Constant, Damped, Decaying, Ergodic, Schedule
from ergodrift.types import Sizes

X = jnp.zeros(2)
NOTHING = Sizes(jnp.zeros(()), jnp.zeros(2), jnp.zeros(2))


def sizes(F: float, G: Any, H: Any) -> Sizes:
    return Sizes(*(jnp.array(size, float) for size in (F, G, H)))


def weights_of_rounds(schedule: Schedule, rounds: list[Sizes], geometry: ed.Geometry) -> list[Any]:
    state, answers = schedule.init(geometry, X, 2), []
    for t, seen in enumerate(rounds, start=1):
        state, weights = schedule.weights(state, jnp.int32(t), seen)
        answers.append(tuple(map(float, weights)))
    return answers


# a_t = F^2/4 + R^2 (G_1^2 + G_2^2) + H_1^2 + H_2^2 with R = 2: 1 + 4 * 5 + 15 = 36, then 9 + 4 * 4 + 3 = 28.
ROUNDS = [sizes(2, [1, 2], [sqrt(14), 1]), sizes(6, [2, 0], [1, sqrt(2)])]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Constant(3.0, 7.0), [(3, 7), (3, 7)]),
        (Ergodic(8.0, 0.5), [(sqrt(8), 8), (4, 16)]),
        (Ergodic(4.0, 1 / 3), [(4 ** (1 / 3), 4), (2, 8)]),
        # S_0 = 64, S_1 = 100: V = S^(1/2) / 2, alpha = S / 4.
        (AdaGrad(64.0, 0.0, 0.5, None, lagged=True), [(4, 16), (5, 25)]),
        # The same with 44 added to every a_t: S_1 = 144.
        (AdaGrad(64.0, 44.0, 0.5, None, lagged=True), [(4, 16), (6, 36)]),
        # In units of the first a_t, 36: S_0 = 36, and S_1 = 72 or, with 36 added to every a_t, 108.
        (AdaGrad(1.0, 0.0, 0.5, None, lagged=True, relative=True), [(3, 9), (sqrt(18), 18)]),
        (AdaGrad(1.0, 1.0, 0.5, None, lagged=True, relative=True), [(3, 9), (sqrt(27), 27)]),
        # S_1 = 36, S_2 = 64.
        (AdaGrad(0.0, 0.0, 0.5, None, lagged=False), [(3, 9), (4, 16)]),
        # R = 1 from the caller: a_1 = 1 + 5 + 15 = 21, a_2 = 9 + 4 + 3 = 16.
        (AdaGrad(0.0, 0.0, 0.5, 1.0, lagged=False), [(sqrt(21), 21), (sqrt(37), 37)]),
        (AdaGrad(16.0, 0.0, 0.25, 1.0, lagged=True), [(2, 16), (37**0.25, 37)]),
        # m = 2, r = 1, G = 2, D = 1: (m+1) G^2 = 12, 12 + 2 m D^2 = 16, eta = 1 / (4 * 3) and 8 eta^2 12 = 2/3.
        # delta = 12 * 2 / (1 + sqrt(1/3)), the damping is delta eta.
        (Damped(9.0, 2.0, 1.0, None), [(1 / 12, 1 / 12, 2 / (1 + sqrt(1 / 3)))] * 2),
        # r = 1, G = 2: eta_t = 1 / (2 t^beta), theta_t = 12 / t^beta, mu_t = t^beta / (12 (t + 1)).
        (Decaying(2.0, 0.5, None), [(1 / 2, 1 / 24, 12), (1 / sqrt(8), sqrt(2) / 36, 12 / sqrt(2))]),
        (Decaying(2.0, 0.5, 3.0), [(3 / 2, 1 / 72, 36), (3 / sqrt(8), sqrt(2) / 108, 36 / sqrt(2))]),
    ],
)
def test_weights_of_two_rounds(schedule, expected):
    # On the unit ball R = 2 and r = 1.
    np.testing.assert_allclose(weights_of_rounds(schedule, ROUNDS, ed.Ball(1.0)), expected, rtol=rounded(1e-14))


@pytest.mark.parametrize(
    ("algorithm", "first", "ninth"),
    [
        (ed.edpp(4, beta=0.25), (sqrt(2), 4), (sqrt(6), 36)),
        (ed.edpp(4, horizon=100), (20, 400), (20, 400)),
        (ed.dpp(), (1, 1), (3, 9)),
        (ed.dpp(horizon=100), (10, 100), (10, 100)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_weights_that_depend_on_the_round_alone(algorithm, first, ninth):
    for t, expected in [(1, first), (9, ninth)]:
        _, weights = algorithm.schedule.weights((), jnp.int32(t), NOTHING)
        np.testing.assert_allclose(weights, expected, rtol=rounded(1e-14))


@pytest.mark.parametrize(("add_delta", "second"), [(True, 5.0), (False, 3.0)])
def test_mdpp_adds_delta_to_every_increment_unless_told_not_to(add_delta, second):
    schedule = ed.mdpp(delta=2, diameter=1, add_delta=add_delta).schedule
    # S_0 = 2, and F = 2 adds 1, with or without another 2.
    answers = weights_of_rounds(schedule, [sizes(2, [0, 0], [0, 0])] * 2, ed.Ball(1.0))
    np.testing.assert_allclose([alpha for _, alpha in answers], [2, second])


def test_mdpp_begins_with_the_first_feedback_that_there_is():
    schedule = ed.mdpp(diameter=1).schedule
    # Two rounds of nothing, then F = 2: S_0 = 1, and S_1 = 3.
    answers = weights_of_rounds(schedule, [NOTHING, NOTHING, *[sizes(2, [0, 0], [0, 0])] * 2], ed.Ball(1.0))
    np.testing.assert_allclose([alpha for _, alpha in answers], [0, 0, 1, 3])


@pytest.mark.x64("1e-9 is below the rounding of float32")
@pytest.mark.parametrize("c", [1e-4, 7.0, 1e5])
def test_mdpp_does_not_ask_for_the_unit_that_loss_and_constraints_share(c):
    """V_t and Q_t grow by c, alpha_t by c^2: x stays the same. With a delta that is a number it would not."""
    rows = np.random.default_rng(0).normal(size=(400, 2)) + 1

    def solution(c: float, algorithm: ed.Algorithm) -> Any:
        data = ed.SeriesSource({"row": rows, "c": np.full(400, c)})
        return ed.run(algorithm, SHARED, data, x0=np.zeros(2), record=1).solution

    np.testing.assert_allclose(solution(c, ed.mdpp()), solution(1.0, ed.mdpp()), rtol=1e-9)
    assert not np.allclose(solution(c, ed.mdpp(1.0)), solution(1.0, ed.mdpp(1.0)), rtol=1e-3)


SHARED = ed.Problem(
    lambda x, xi: xi["c"] * jnp.sum((x - xi["row"]) ** 2), lambda x, xi: xi["c"] * (x[:1] - 0.5), ed.Ball(3.0)
)


def test_a_float32_energy_keeps_small_increments():
    # Increments of 1 are below half a unit in the last place of 1e9, so a plain sum would never move.
    schedule = AdaGrad(1e9, 0.0, 0.5, 1.0, lagged=False)
    count, start = 1 << 20, schedule.init(ed.Ball(1.0), jnp.zeros(2, jnp.float32), 1)
    seen = Sizes(jnp.float32(2), jnp.zeros(1, jnp.float32), jnp.zeros(1, jnp.float32))
    assert np.float32(1e9) + np.float32(1) == np.float32(1e9)

    @jax.jit
    def go(schedule: AdaGrad, state: Any) -> Any:
        def one(t: Any, carry: Any) -> Any:
            return schedule.weights(carry[0], t + 1, seen)

        return jax.lax.fori_loop(1, count, one, schedule.weights(state, jnp.int32(1), seen))

    _, weights = go(schedule, start)
    assert weights.proximity.dtype == jnp.float32
    # Half a unit in the last place is 32 here; the plain sum would be off by a million.
    assert float(weights.proximity) == pytest.approx(1e9 + count, abs=64)
    assert float(weights.penalty) == pytest.approx(sqrt(1e9 + count), rel=1e-6)


@pytest.mark.x64("its digits are those of float64")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_weights_keep_growing_where_a_float32_counter_would_stall(dtype):
    method = ed.edpp(3.0).bind(ed.Problem(cases.loss, cases.constraints, ed.Ball(1.0)))
    start = method.init(jnp.zeros(2, dtype), num_constraints=1)
    silence = ed.Feedback(*(jnp.zeros(shape, dtype) for shape in [(), (2,), (1,), (1, 2)]))
    state, seen = start._replace(t=jnp.int32(2**24)), []
    for _ in range(6):
        state, info = method.step(state, silence)
        seen.append(float(info.weights.proximity))
    assert int(state.t) == 2**24 + 6
    # tau_mix t to within the rounding of a float: 3 (2^24 + 6) needs 26 bits, a float32 has 24.
    np.testing.assert_allclose(seen, 3.0 * (2**24 + np.arange(1, 7)), rtol=float(jnp.finfo(dtype).eps))
    assert seen[-1] > seen[0]


@pytest.mark.x64("its digits are those of float64")
@settings(cases.deterministic, max_examples=100)
@given(
    *(st.floats(0.1, 10) for _ in range(3)),
    st.integers(1, 5),
    st.floats(1, 1e6),
)
def test_pd_damps_with_the_smaller_root(r, G, D, m, T):
    c = (m + 1) * G**2
    eta = r**2 / (r * sqrt(c + 2 * m * D**2) * sqrt(T))
    assume(8 * eta**2 * c < 0.999)  # near a double root, the roots lose half their digits
    steps = Damped(T, G, D, r).init(ed.Ball(1.0), X, m)
    np.testing.assert_allclose([steps.primal, steps.dual], [eta, eta], rtol=1e-12)
    delta = float(steps.damping) / eta
    assert delta == pytest.approx(c + 2 * eta**2 * delta**2, rel=1e-10)
    # The smaller root lies on the rising side of delta - 2 eta^2 delta^2.
    assert 4 * eta**2 * delta < 1


def test_pd_refuses_a_horizon_that_is_too_short_and_says_what_would_do():
    # m = 1, r = 3.1, G = 1, D = 1: eta^2 = 9.61 / (4 T), and 8 eta^2 (m+1) G^2 = 38.44 / T must not exceed 1.
    problem = ed.Problem(cases.loss, cases.constraints, ed.Ball(3.1))
    with pytest.raises(ValueError, match=re.escape("horizon=38.0 is too short for PD: it needs at least 39")):
        ed.pd(38, 1, 1).bind(problem).init(X, num_constraints=1)
    ed.pd(39, 1, 1).bind(problem).init(X, num_constraints=1)


@settings(cases.deterministic, max_examples=50)
@given(*(st.floats(0.1, 10) for _ in range(3)))
def test_the_horizon_that_pd_asks_for_will_do(r, G, D):
    problem = ed.Problem(cases.loss, cases.constraints, ed.Ball(r))
    try:
        ed.pd(1, G, D).bind(problem).init(X, num_constraints=1)
    except ValueError as error:
        needed = float(str(error).split()[-1])
        state = ed.pd(needed, G, D).bind(problem).init(X, num_constraints=1)
        assert np.isfinite(state.schedule).all()


@pytest.mark.parametrize("algorithm", [ed.mdpp(), ed.adpp()], ids=lambda algorithm: algorithm.name)
def test_a_domain_without_a_diameter_is_refused(algorithm):
    problem = ed.Problem(cases.loss, cases.constraints, ed.EntropySimplex())
    message = r"EntropySimplex has no finite diameter R.*EntropySimplex\(floor=\.\.\.\)\) or pass diameter=\.\.\."
    with pytest.raises(ValueError, match=message):
        algorithm.bind(problem).init(jnp.array([0.5, 0.5]), num_constraints=1, levels=jax.random.key(0))


@pytest.mark.parametrize("make", [ed.mdpp, ed.adpp])
def test_a_diameter_from_the_caller_stands_in_for_the_missing_one(make):
    problem = ed.Problem(cases.loss, cases.constraints, ed.EntropySimplex())
    method = make(diameter=3.0).bind(problem)
    state = method.init(jnp.array([0.5, 0.5]), num_constraints=1, levels=jax.random.key(0))
    assert float(state.schedule.diameter) == 3
    method = make().bind(ed.Problem(cases.loss, cases.constraints, ed.EntropySimplex(floor=0.1)))
    state = method.init(jnp.array([0.5, 0.5]), num_constraints=1, levels=jax.random.key(0))
    # R^2 = 2 KL between (0.9, 0.1) and (0.1, 0.9) = 2 * 0.8 log 9.
    assert float(state.schedule.diameter) == pytest.approx(sqrt(1.6 * np.log(9)))
