"""The update rules: two rounds by hand, and the lemmas of appendix A on every path."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import sqrt
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import cases
import ergodrift as ed
from digits import KIND, rounded
from ergodrift.methods.estimator import MultiLevel, SingleSample
from ergodrift.methods.method import DriftPlusPenalty, Method
from ergodrift.methods.schedule import AdaGrad, Constant, Ergodic

# ---------------------------------------------------------------------------------------------------------------------
# Two rounds by hand. The loss of a feedback is never used by a method, so it is 0 throughout.


def bind(algorithm: ed.Algorithm, radius: float) -> Method:
    unused = ed.Problem(cases.loss, cases.constraints, ed.Ball(radius))
    return algorithm.bind(unused)


def feedback(loss_grad: Any, constraints: Any, jac: Any) -> ed.Feedback:
    return ed.Feedback(jnp.zeros(()), *(jnp.array(part, KIND) for part in (loss_grad, constraints, jac)))


def assert_close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=rounded(1e-14), atol=rounded(1e-14))


def test_two_rounds_of_edpp():
    method = bind(ed.edpp(tau_mix=4), radius=2.5)
    state = method.init(jnp.zeros(2), num_constraints=2)

    # V = sqrt 4 = 2, alpha = 4, Q = 0: x = (0, 0) - 2 (4, -8) / (2 * 4) = (-1, 2), inside the ball.
    # Q = [(1, -2) + ((2, 1).(-1, 2), (1, 1).(-1, 2))]_+ = [(1 + 0, -2 + 1)]_+ = (1, 0).
    state, info = method.step(state, feedback([4, -8], [1, -2], [[2, 1], [1, 1]]))
    assert_close(info.weights, (2, 4))
    assert_close(state.x, [-1, 2])
    assert_close(state.queue, [1, 0])

    # V = sqrt 8, alpha = 8: V df = (32, 0), and Q.J = 1 (0, -32) + 0 (3, 3).
    # (-1, 2) - (32, -32) / 16 = (-3, 4), of norm 5, is projected to (-1.5, 2): a step of (-0.5, 0).
    # Q = [(1, 0) + (0.25, 2) + (0, -1.5)]_+ = (1.25, 0.5).
    state, info = method.step(state, feedback([8 * sqrt(2), 0], [0.25, 2], [[0, -32], [3, 3]]))
    assert_close(info.weights, (sqrt(8), 8))
    assert_close(state.x, [-1.5, 2])
    assert_close(state.queue, [1.25, 0.5])
    assert int(state.t) == 2


def test_two_rounds_of_mdpp_on_given_levels():
    # On the unit ball R = 2. Level 2 takes four samples A, B, C, D; level 5 exceeds the cap of 16 and takes one.
    method = bind(ed.mdpp(delta=4, cap=16), radius=1)
    state = method.init(jnp.array([0.0, -1.0]), num_constraints=1, levels=jnp.array([2, 5]))

    # A + 4 ((A + B + C + D) / 4 - (A + B) / 2) = C + D - B, so df = (0, -4), g = -2 and dg = (1, 2).
    samples = [
        feedback([9, 9], [5], [[7, 7]]),
        feedback([1, 0], [1], [[0, 1]]),
        feedback([2, 1], [2], [[1, 0]]),
        feedback([-1, -5], [-3], [[0, 3]]),
    ]
    for sample in samples[:3]:
        state, info = method.step(state, sample)
        assert not info.updated
        assert_close(state.x, [0, -1])
    # S_0 = 4: V = sqrt 4 / 2 = 1, alpha = 4 / 4 = 1; x = (0, -1) - (0, -4) / 2 = (0, 1), on the sphere.
    # Q = [0 - 2 + (1, 2).(0, 2)]_+ = 2.
    state, info = method.step(state, samples[3])
    assert info.updated
    assert_close(info.feedback.loss_grad, [0, -4])
    assert_close(info.sizes.loss_grad, 4)
    assert_close(info.sizes.constraint_jac, [sqrt(5)])
    assert_close(info.sizes.constraints, [2])
    assert_close(info.weights, (1, 1))
    assert_close(state.x, [0, 1])
    assert_close(state.queue, [2])

    # S_1 = 4 + (4^2 / 4 + 4 * 5 + 2^2 + 4) = 36: V = 6 / 2 = 3, alpha = 36 / 4 = 9.
    # x = (0, 1) - (3 (4, 2) + 2 (-3, 6)) / 18 = (0, 1) - (6, 18) / 18 = (-1/3, 0).
    # Q = [2 + 4 + (-3, 6).(-1/3, -1)]_+ = [6 + 1 - 6]_+ = 1.
    state, info = method.step(state, feedback([4, 2], [4], [[-3, 6]]))
    assert info.updated
    assert_close(info.weights, (3, 9))
    assert_close(state.x, [-1 / 3, 0])
    assert_close(state.queue, [1])
    # S_2 = 36 + (20 / 4 + 4 * 45 + 4^2 + 4) = 241.
    assert_close(sum(state.schedule.total), 241)


def test_two_rounds_of_adpp():
    # On the unit ball R = 2.
    method = bind(ed.adpp(), radius=1)
    state = method.init(jnp.array([0.0, 0.5]), num_constraints=2)

    # S_1 = 4^2 / 4 + 4 (1 + 0) + (4 + 4) = 16: V = 4 / 2 = 2, alpha = 16 / 4 = 4.
    # x = (0, 0.5) - 2 (0, 4) / 8 = (0, -0.5); Q = [(2 + (0, 1).(0, -1), -2)]_+ = (1, 0).
    state, info = method.step(state, feedback([0, 4], [2, -2], [[0, 1], [0, 0]]))
    assert_close(info.weights, (2, 4))
    assert_close(state.x, [0, -0.5])
    assert_close(state.queue, [1, 0])

    # S_2 = 16 + 4^2 / 4 + 4 (1 + 9) + (0 + 4) = 64: V = 8 / 2 = 4, alpha = 64 / 4 = 16.
    # x = (0, -0.5) - (4 (4, 0) + 1 (0, 1)) / 32 = (-1/2, -17/32); Q = [(1 + 0 - 1/32, 0 + 2 - 3/2)]_+.
    state, info = method.step(state, feedback([4, 0], [0, 2], [[0, 1], [3, 0]]))
    assert_close(info.weights, (4, 16))
    assert_close(state.x, [-1 / 2, -17 / 32])
    assert_close(state.queue, [31 / 32, 1 / 2])


def test_two_rounds_of_pd():
    # m = 1, r = 1, G = 2, D = 1: a = sqrt(2 * 4 + 2 * 1) = sqrt 10 and eta = 1 / (sqrt 10 sqrt 10) = 0.1.
    # delta = 8 + 0.02 delta^2 has the roots 10 and 40; the smaller gives a damping of 10 * 0.1 = 1.
    method = bind(ed.pd(horizon=10, gradient_bound=2, constraint_bound=1), radius=1)
    state = method.init(jnp.zeros(2), num_constraints=1)

    # x = (0, 0) - 0.1 (-6, 0); lambda = [0 + 0.1 * 5]_+.
    state, info = method.step(state, feedback([-6, 0], [5], [[0, -20]]))
    assert_close(info.weights, (0.1, 0.1, 1))
    assert_close(state.x, [0.6, 0])
    assert_close(state.queue, [0.5])

    # (0.6, 0) - 0.1 ((-6, -6) + 0.5 (0, -20)) = (1.2, 1.6), of norm 2, is projected to (0.6, 0.8).
    # lambda = [0.5 + 0.1 (-2 - 1 * 0.5)]_+ = 0.25.
    state, info = method.step(state, feedback([-6, -6], [-2], [[0, -20]]))
    assert_close(info.weights, (0.1, 0.1, 1))
    assert_close(state.x, [0.6, 0.8])
    assert_close(state.queue, [0.25])


# r = 1, G = 2: eta_1 = 1/2, theta_1 = 12, mu_1 = 1 / (12 * 2); eta_2 = 1 / (2 sqrt 2), theta_2 = 12 / sqrt 2 and
# mu_2 = 1 / (3 theta_2) = sqrt 2 / 36, so that mu_2 theta_2 = 1/3.
PD2_WEIGHTS = [(1 / 2, 1 / 24, 12), (1 / (2 * sqrt(2)), sqrt(2) / 36, 12 / sqrt(2))]


def test_two_rounds_of_pd2_with_a_multiplier_for_each_constraint():
    method = bind(ed.pd2(gradient_bound=2), radius=1)
    state = method.init(jnp.zeros(2), num_constraints=2)

    # x = (0, 0) - (-1, 0.5) / 2; lambda = [(12, -24) / 24]_+.
    state, info = method.step(state, feedback([-1, 0.5], [12, -24], [[1, 2], [3, 4]]))
    assert_close(info.weights, PD2_WEIGHTS[0])
    assert_close(state.x, [0.5, -0.25])
    assert_close(state.queue, [0.5, 0])

    # df + 0.5 (2, 0) = (sqrt 2, -sqrt 2), times eta_2 = (0.5, -0.5): x = (0, 0.25).
    # lambda = [(0.5 - 0.5 / 3, 0 + 18 sqrt 2 * sqrt 2 / 36)]_+ = (1/3, 1).
    state, info = method.step(state, feedback([sqrt(2) - 1, -sqrt(2)], [0, 18 * sqrt(2)], [[2, 0], [5, 5]]))
    assert_close(info.weights, PD2_WEIGHTS[1])
    assert_close(state.x, [0, 0.25])
    assert_close(state.queue, [1 / 3, 1])


def test_two_rounds_of_pd2_with_one_multiplier_on_the_worst_constraint():
    method = bind(ed.pd2(gradient_bound=2, aggregate="max"), radius=1)
    state = method.init(jnp.zeros(2), num_constraints=2)

    # max(12, -24) = 12: lambda = 12 / 24.
    state, info = method.step(state, feedback([-1, 0.5], [12, -24], [[1, 2], [3, 4]]))
    assert_close(info.weights, PD2_WEIGHTS[0])
    assert_close(state.x, [0.5, -0.25])
    assert_close(state.queue, [0.5])

    # The second constraint is the worse one: df + 0.5 (5, 5) = (sqrt 2, -sqrt 2), and x = (0, 0.25) as above.
    # lambda = 0.5 + 18 sqrt 2 * sqrt 2 / 36 - 0.5 / 3 = 4/3.
    grad = [sqrt(2) - 2.5, -sqrt(2) - 2.5]
    state, info = method.step(state, feedback(grad, [0, 18 * sqrt(2)], [[2, 0], [5, 5]]))
    assert_close(info.weights, PD2_WEIGHTS[1])
    assert_close(state.x, [0, 0.25])
    assert_close(state.queue, [4 / 3])


# ---------------------------------------------------------------------------------------------------------------------
# Appendix A. Its lemmas use nothing of the feedback but its values at x_t, so they hold on every path. With several
# constraints the terms of the queue are summed over them.


class Path(NamedTuple):
    """What appendix A speaks of, one row a round, points as vectors; `others` are comparators, x in the lemmas."""

    x: Any
    x_next: Any
    queue: Any
    queue_next: Any
    penalty: Any
    proximity: Any
    F: Any
    G: Any
    H: Any
    loss_grad: Any
    constraints: Any
    jac: Any
    step_norm: Any  # ||x_{t+1} - x_t||
    step_bregman: Any  # D(x_{t+1}, x_t)
    others: Any  # (others, d)
    bregman: Any  # (rounds, others) D(x, x_t)
    bregman_next: Any  # (rounds, others) D(x, x_{t+1})
    inside: Any  # whether x_{t+1} lies in the domain


@jax.jit
def play(problem: ed.Problem, method: Method, x0: Any, levels: Any, samples: Any) -> Any:
    """One row a sample: the states before and after it, and what was observed."""

    def sample(state: ed.State, xi: Any) -> tuple[ed.State, Any]:
        after, info = method.step(state, problem.feedback(state.x, xi))
        return after, ((state.x, state.queue), (after.x, after.queue), info)

    count = problem.check(x0, jax.tree.map(lambda leaf: leaf[0], samples))
    return jax.lax.scan(sample, method.init(x0, count, levels), samples)[1]


@jax.jit
def measure(geometry: ed.Geometry, before: Any, after: Any, info: ed.Info, others: Any) -> Path:
    """The geometry of a path; apart from `play` because it compiles once for all methods."""
    (x, queue), (x_next, queue_next), feedback = before, after, info.feedback
    pairs = jax.vmap(jax.vmap(geometry.bregman, (0, None)), (None, 0))
    return Path(
        x=rows(x),
        x_next=rows(x_next),
        queue=queue,
        queue_next=queue_next,
        penalty=info.weights.penalty,
        proximity=info.weights.proximity,
        F=info.sizes.loss_grad,
        G=info.sizes.constraint_jac,
        H=info.sizes.constraints,
        loss_grad=rows(feedback.loss_grad),
        constraints=feedback.constraints,
        jac=jax.vmap(rows)(feedback.constraint_jac),
        step_norm=jax.vmap(geometry.norm)(jax.tree.map(jnp.subtract, x_next, x)),
        step_bregman=jax.vmap(geometry.bregman)(x_next, x),
        others=rows(others),
        bregman=pairs(others, x),
        bregman_next=pairs(others, x_next),
        inside=jax.vmap(geometry.contains)(x_next),
    )


def rows(points: Any) -> Any:
    return jax.vmap(vector)(points)


def vector(x: Any) -> Any:
    return ravel_pytree(x)[0]


def drift(path: Path) -> Any:
    return np.sum(path.queue_next**2 - path.queue**2, axis=1) / 2


def linearised(path: Path) -> Any:
    """(rounds, constraints): g_t(x_t) + dg_t(x_t).(x_{t+1} - x_t)."""
    return path.constraints + np.einsum("tnd,td->tn", path.jac, path.x_next - path.x)


def towards(path: Path) -> Any:
    """(rounds, others, d): x - x_t."""
    return path.others - path.x[:, None]


def linearised_at(path: Path) -> Any:
    """(rounds, others, constraints): g_t(x_t) + dg_t(x_t).(x - x_t)."""
    return path.constraints[:, None] + np.einsum("tnd,tkd->tkn", path.jac, towards(path))


def direction(path: Path) -> Any:
    return path.penalty[:, None] * path.loss_grad + np.einsum("tn,tnd->td", path.queue, path.jac)


def pull(path: Path) -> Any:
    """V_t F_t + sum_i Q_ti G_ti."""
    return path.penalty * path.F + np.sum(path.queue * path.G, axis=1)


# Each lemma as (terms of the smaller side, terms of the larger side); terms are arrays that add up by broadcasting.
Sides = tuple[list[Any], list[Any]]
ROUNDING = rounded(1e-14)  # two points of size up to R may differ by this much of R without being different


def rounding(path: Path, R: float) -> Any:
    """What inexact points, and D as a difference of numbers of size up to R^2, cost in the two lemmas with D."""
    return ROUNDING * (R * pull(path) + R**2 * path.proximity)[:, None]


def drift_bound(path: Path, R: float) -> Sides:
    return [drift(path)], [
        np.sum(path.queue * linearised(path), axis=1),
        np.sum((path.H + path.G * R) ** 2, axis=1) / 2,
    ]


def bregman_inequality(path: Path, R: float) -> Sides:
    y, alpha = direction(path), path.proximity[:, None]
    smaller = [np.sum(y * (path.x_next - path.x), axis=1)[:, None], alpha * path.step_bregman[:, None]]
    larger = [np.einsum("td,tkd->tk", y, towards(path)), alpha * path.bregman, -alpha * path.bregman_next]
    return smaller, [*larger, rounding(path, R)]


def step_length(path: Path, R: float) -> Sides:
    return [2 * path.proximity * path.step_norm], [pull(path), 2 * path.proximity * ROUNDING * R]


def cumulative_violation(path: Path, R: float) -> Sides:
    # A round with alpha_t = 0 keeps x, which costs nothing.
    length = np.divide(pull(path), 2 * path.proximity, out=np.zeros_like(path.F), where=path.proximity > 0)
    return [np.cumsum(path.constraints, axis=0)], [path.queue_next, np.cumsum(path.G * length[:, None], axis=0)]


def drift_towards_any_point(path: Path, R: float) -> Sides:
    sizes = np.sum(path.H**2 + (R * path.G) ** 2, axis=1) + path.penalty * R * path.F
    queue = np.einsum("tn,tkn->tk", path.queue, linearised_at(path))
    alpha = path.proximity[:, None]
    larger = [sizes[:, None], queue, alpha * path.bregman, -alpha * path.bregman_next]
    return [drift(path)[:, None]], [*larger, rounding(path, R)]


def queue_bound(path: Path, R: float) -> Sides:
    sizes = np.sum(path.H**2 + (R * path.G) ** 2, axis=1) + path.penalty * R * path.F
    queue = np.einsum("tn,tkn->tk", path.queue, linearised_at(path))
    larger = [np.cumsum(sizes)[:, None], np.cumsum(queue, axis=0), R**2 * path.proximity[:, None]]
    return [np.sum(path.queue_next**2, axis=1)[:, None] / 2], larger


def linearised_regret(path: Path, R: float) -> Sides:
    """The inequality inside the proof of the regret lemma, before expectations are taken."""
    V, alpha = path.penalty, path.proximity
    losses = np.einsum("td,tkd->tk", path.loss_grad, towards(path))
    queue = np.einsum("tn,tkn->tk", path.queue / V[:, None], linearised_at(path))
    sizes = V * path.F**2 / (4 * alpha) + np.sum((path.H + path.G * R) ** 2, axis=1) / (2 * V)
    larger = [np.cumsum(queue, axis=0), (alpha / V * R**2)[:, None], np.cumsum(sizes)[:, None]]
    return [-np.cumsum(losses, axis=0)], larger


LEMMAS: list[Callable[[Path, float], Sides]] = [
    drift_bound,
    bregman_inequality,
    step_length,
    cumulative_violation,
    drift_towards_any_point,
    queue_bound,
    linearised_regret,
]

SCHEDULES: dict[str, Callable[..., Any]] = {
    "constant": lambda tau, delta, beta: Constant((50 * tau) ** beta, 50 * tau),
    "ergodic": lambda tau, delta, beta: Ergodic(tau, beta),
    "adagrad-lagged": lambda tau, delta, beta: AdaGrad(delta, delta / 2, beta, None, lagged=True),
    "adagrad": lambda tau, delta, beta: AdaGrad(0.0, 0.0, beta, None, lagged=False),
}
ESTIMATORS = {"single": SingleSample(), "multilevel": MultiLevel.with_cap(8)}
# An estimator and a geometry meet in the feedback alone, and rounds of one sample come up in MLMC too: for single
# samples one domain will do.
CASES = [
    *itertools.product(cases.GEOMETRIES, SCHEDULES, ["multilevel"]),
    *itertools.product(["entropy"], SCHEDULES, ["single"]),
]

magnitudes = st.floats(-3, 3).map(lambda exponent: 10.0**exponent)
hyperparameters = st.tuples(st.floats(1, 1000), magnitudes, st.floats(0.01, 0.5))


def random_path(geometry: str, method: Method, seed: int, scale: float) -> Path:
    """A random problem with four constraints, played for 40 samples from a random point."""
    domain, like = cases.GEOMETRIES[geometry]
    rng = np.random.default_rng(seed)
    problem = ed.Problem(cases.loss, cases.constraints, domain)
    data = cases.random_data(rng, 40, vector(like).size, pairs=2, scale=scale)
    points = [cases.random_point(rng, domain, like) for _ in range(4)]
    others = jax.tree.map(lambda *leaves: jnp.stack(leaves), *points[1:])
    before, after, info = play(problem, method, points[0], rng.geometric(0.5, size=40), data)
    path = jax.tree.map(np.asarray, measure(domain, before, after, info, others))
    finished = jax.tree.map(lambda leaf: leaf[np.asarray(info.updated)], path._replace(others=()))
    return finished._replace(others=path.others)


@pytest.mark.parametrize(("geometry", "schedule", "estimator"), CASES)
def test_appendix_a_holds_on_every_path(geometry, schedule, estimator):
    domain, like = cases.GEOMETRIES[geometry]
    R = float(domain.diameter(like))

    @settings(cases.deterministic, max_examples=25)
    @given(st.integers(0, 2**32 - 1), magnitudes, hyperparameters)
    def check(seed, scale, values):
        method = DriftPlusPenalty(domain, SCHEDULES[schedule](*values), ESTIMATORS[estimator])
        path = random_path(geometry, method, seed, scale)

        assert path.inside.all()
        assert (path.queue_next >= 0).all()
        assert (path.queue[0] == 0).all()
        # x^beta is rounded, so what is constant in exact arithmetic may fall by a unit in the last place.
        for weights in (path.penalty, path.proximity, path.proximity / path.penalty):
            assert (weights > 0).all()
            assert (np.diff(weights) >= -ROUNDING * weights[1:]).all()

        for lemma in LEMMAS:
            smaller, larger = lemma(path, R)
            # The terms cancel, so what rounding may cost is measured by their sizes, not by that of their sum.
            slack = rounded(1e-12) * sum(np.abs(term) for term in [*smaller, *larger])
            assert np.all(sum(smaller) <= sum(larger) + slack), lemma.__name__

    check()


@pytest.mark.parametrize(
    ("domain", "F", "G"),
    [
        (ed.Box(-9.0, 9.0), sqrt(9 + 16 + 144), [sqrt(5), 7]),
        (ed.EntropySimplex(), 12, [2, 7]),
        # The first two entries in the Euclidean norm, the others in the largest entry.
        (ed.Product(ed.Ball(1.0), ed.EntropySimplex()), sqrt(25 + 144), [sqrt(5), 7]),
    ],
    ids=["euclidean", "entropy", "product"],
)
def test_sizes_are_taken_in_the_dual_norm_of_the_domain(domain, F, G):
    def point(entries: list[float]) -> Any:
        array = jnp.array(entries, KIND)
        return (array[..., :2], array[..., 2:]) if isinstance(domain, ed.Product) else array

    method = ed.dpp().bind(ed.Problem(cases.loss, cases.constraints, domain))
    grad, jac = (
        point([3, -4, 0, -12]),
        jax.tree.map(lambda *rows: jnp.stack(rows), point([1, 2, 0, 0]), point([0, 0, -7, 0])),
    )
    sizes = method.sizes(ed.Feedback(jnp.zeros(()), grad, jnp.array([-5.0, 6.0]), jac))
    assert_close(sizes.loss_grad, F)
    assert_close(sizes.constraint_jac, G)
    assert_close(sizes.constraints, [5, 6])


@pytest.mark.parametrize("geometry", cases.GEOMETRIES)
def test_adpp_holds_its_point_until_the_first_feedback_that_is_not_zero(geometry):
    domain, like = cases.GEOMETRIES[geometry]
    rng = np.random.default_rng(0)
    x0 = cases.random_point(rng, domain, like)
    problem = ed.Problem(cases.loss, cases.constraints, domain)
    method = ed.adpp().bind(problem)
    sample = jax.tree.map(lambda leaf: leaf[0], cases.random_data(rng, 1, vector(like).size, pairs=1))
    something = problem.feedback(x0, sample)
    nothing = jax.tree.map(jnp.zeros_like, something)

    start = state = method.init(x0, num_constraints=2)
    for _ in range(3):
        state, info = method.step(state, nothing)
        assert_close(info.weights, (0, 0))
        assert_close(vector(state.x), vector(x0))
        assert_close(state.queue, [0, 0])
    later, _ = method.step(state, something)
    at_once, _ = method.step(start, something)
    assert np.isfinite(vector(later.x)).all()
    assert (vector(later.x) != vector(x0)).any()
    jax.tree.map(np.testing.assert_array_equal, later._replace(t=1), at_once._replace(t=1))


@pytest.mark.parametrize("geometry", cases.GEOMETRIES)
def test_a_huge_float32_gradient_leaves_the_point_in_the_domain(geometry):
    domain, like = cases.GEOMETRIES[geometry]
    x0 = cases.random_point(np.random.default_rng(2), domain, like)
    x0 = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), x0)
    method = ed.dpp().bind(ed.Problem(cases.loss, cases.constraints, domain))
    # So large that float32 cannot resolve a point of the domain next to it.
    grad = jax.tree.map(lambda leaf: 1e9 * jnp.arange(1, leaf.size + 1, dtype=leaf.dtype), x0)
    jac = jax.tree.map(lambda leaf: leaf[None], grad)
    state = method.init(x0, num_constraints=1)
    for _ in range(2):
        state, _ = method.step(state, ed.Feedback(jnp.float32(0), grad, jnp.ones(1, jnp.float32), jac))
        assert domain.contains(state.x)
    assert np.isfinite(state.queue).all()


def test_a_round_that_is_not_finished_changes_nothing_but_the_window():
    method = bind(ed.mdpp(cap=16), radius=1)
    state = method.init(jnp.zeros(2), num_constraints=1, levels=jnp.array([3]))
    for _ in range(7):
        after, info = method.step(state, feedback([1, 2], [3], [[4, 5]]))
        assert not info.updated
        jax.tree.map(np.testing.assert_array_equal, after._replace(window=()), state._replace(window=()))
        state = after
    after, info = method.step(state, feedback([1, 2], [3], [[4, 5]]))
    assert info.updated
    assert int(after.t) == 1


def test_the_point_lives_in_a_mapping_as_in_a_vector():
    # A Box treats the leaves of x as one vector, so cutting x in two must change nothing.
    rng = np.random.default_rng(1)
    domain = ed.Box(-1.0, 1.0)
    problem = ed.Problem(cases.loss, cases.constraints, domain)
    whole = parts = ed.adpp().bind(problem)
    whole_state = whole.init(jnp.array([0.1, 0.2, 0.3]), num_constraints=4)
    parts_state = parts.init({"a": jnp.array(0.1), "b": jnp.array([0.2, 0.3])}, num_constraints=4)
    data = cases.random_data(rng, 5, 3, pairs=2)
    for t in range(5):
        xi = jax.tree.map(lambda leaf, t=t: leaf[t], data)
        whole_state, _ = whole.step(whole_state, problem.feedback(whole_state.x, xi))
        parts_state, _ = parts.step(parts_state, problem.feedback(parts_state.x, xi))
    assert_close(vector(parts_state.x), whole_state.x)
    assert_close(parts_state.queue, whole_state.queue)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("constraints", jnp.zeros(3)),
        ("constraints", jnp.zeros(())),
        ("loss_grad", jnp.zeros(2)),
        ("constraint_jac", jnp.zeros((1, 3))),
        ("loss", jnp.zeros(1)),
    ],
)
def test_feedback_that_does_not_fit_the_state_is_refused(change, value):
    problem = ed.Problem(lambda x, xi: jnp.sum(x), lambda x, xi: x[:2], ed.Ball(1.0))
    method = ed.edpp(2.0).bind(problem)
    state = method.init(jnp.zeros(3), num_constraints=2)
    with pytest.raises(ValueError, match="feedback does not fit the state"):
        method.step(state, problem.feedback(state.x, 0.0)._replace(**{change: value}))


@pytest.mark.parametrize(
    ("x0", "count", "message"),
    [
        (jnp.full(3, 9.0), 2, "x0 lies outside Ball"),
        (jnp.full(3, jnp.nan), 2, "x0 holds nan"),
        (jnp.zeros(3, int), 2, "x0 must hold floating-point arrays"),
        (jnp.zeros(3), 0, "num_constraints must be between 1 and"),
    ],
)
def test_a_method_refuses_what_a_run_would_refuse(x0, count, message):
    problem = ed.Problem(lambda x, xi: jnp.sum(x), lambda x, xi: x[:2], ed.Ball(1.0))
    with pytest.raises((TypeError, ValueError), match=message):
        ed.adpp().bind(problem).init(x0, count)
