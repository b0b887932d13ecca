"""What is remembered, how old it is, and what follows: the lemma of docs/laboratory/memory.md on every path."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

import cases
import ergodrift as ed
from digits import rounded
from ergodrift.methods.memory import UNSEEN
from ergodrift.problem.linear import BySlopes
from ergodrift.types import Feedback

DIGITS = max(1e-12, rounded(1e-14))  # of numbers of size one
RUNS = max(1e-9, rounded(1e-13))  # of two runs that add the same numbers in another order

STATES, DIMENSION = 5, 3


def feasible(seed: int, states: int) -> dict[str, np.ndarray]:
    """Random data with which x = 0 meets all constraints."""
    data = cases.random_data(np.random.default_rng(seed), states, DIMENSION, pairs=1)
    return {**data, "e": 0.1 + np.abs(data["e"]) / 4, "rho": np.sum(data["o"] ** 2, axis=2) + 0.3}


DATA = feasible(1, STATES)
CHAIN = ed.MarkovChain(0.8 * np.eye(STATES) + 0.2 * np.random.default_rng(2).dirichlet(np.ones(STATES), size=STATES))
SOURCE = ed.MarkovSource(CHAIN, DATA)
PROBLEM = ed.Problem(cases.loss, cases.constraints, ed.Ball(1.5))
X0 = jnp.array([0.5, -0.5, 0.2])
SAMPLES = 400


def row(index: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], DATA)


@jax.jit
def trace(method: Any, path: jax.Array) -> tuple[Any, Any]:
    """x_t and the round's feedback for every sample of a path, from the public step."""

    def one(state: Any, index: jax.Array) -> Any:
        after, info = method.step(state, PROBLEM.feedback(state.x, row(index))._replace(state=index))
        return after, (state.x, info.feedback)

    return jax.lax.scan(one, method.init(X0, num_constraints=2), path)[1]


def walk(seed: int, samples: int = SAMPLES) -> np.ndarray:
    return np.asarray(SOURCE.paths([seed], samples))[0]


LAWS = {
    "stationary": (ed.rdpp(CHAIN.stationary), lambda path: CHAIN.stationary),
    "uniform": (ed.rdpp(np.ones(STATES)), lambda path: np.full(STATES, 1 / STATES)),
    "visits": (
        ed.rdpp("visits", num_states=STATES),
        lambda path: np.bincount(path, minlength=STATES) / len(path),
    ),
}


def planes(xs: np.ndarray) -> Any:
    """Feedback of every state at every point: leading axes (points, states)."""
    each = jax.vmap(jax.vmap(PROBLEM.feedback, (None, 0)), (0, None))
    return each(jnp.asarray(xs), jax.tree.map(jnp.asarray, DATA))


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_round_is_the_average_of_the_last_tangent_planes_and_knows_their_age(name, seed):
    algorithm, law = LAWS[name]
    path = walk(seed)
    xs, found = trace(algorithm.bind(PROBLEM), path)
    xs = np.asarray(xs)
    every = planes(xs)
    for t in [0, 1, 2, 7, 40, 200, SAMPLES - 1]:
        seen = sorted(set(path[: t + 1].tolist()))
        last = {s: int(np.flatnonzero(path[: t + 1] == s)[-1]) for s in seen}
        weights = law(path[: t + 1])
        share = sum(weights[s] for s in seen)
        grad = sum(weights[s] * np.asarray(every.loss_grad)[last[s], s] for s in seen) / share
        jac = sum(weights[s] * np.asarray(every.constraint_jac)[last[s], s] for s in seen) / share
        values, losses = np.zeros(2), 0.0
        for s in seen:
            move = xs[t] - xs[last[s]]
            g, f = (np.asarray(part)[last[s], s] for part in (every.constraints, every.loss))
            values = values + weights[s] * (g + np.asarray(every.constraint_jac)[last[s], s] @ move) / share
            losses += weights[s] * (f + np.asarray(every.loss_grad)[last[s], s] @ move) / share
        np.testing.assert_allclose(found.loss_grad[t], grad, atol=DIGITS)
        np.testing.assert_allclose(found.constraint_jac[t], jac, atol=DIGITS)
        np.testing.assert_allclose(found.constraints[t], values, atol=DIGITS)
        np.testing.assert_allclose(found.loss[t], losses, atol=DIGITS)
        unseen = 1 - (len(seen) / STATES if name == "visits" else share)
        age = sum(weights[s] * (t - last[s]) for s in seen) + UNSEEN * unseen * (t + 1)
        np.testing.assert_allclose(found.age[t], age, rtol=max(1e-10, rounded(1e-13)), atol=max(1e-10, DIGITS))


@pytest.mark.parametrize("seed", range(8))
def test_the_error_of_the_feedback_is_bounded_by_how_far_x_has_moved(seed):
    """The lemma, without chance: gradients err by sum_s w_s L_s ||x_t - y_s||, constraints by half the squares."""
    path = walk(seed, 2000)
    xs, found = trace(LAWS["stationary"][0].bind(PROBLEM), path)
    xs, every, law = np.asarray(xs), planes(np.asarray(xs)), CHAIN.stationary
    first = max(int(np.argmax(path == s)) for s in range(STATES))
    smooth = np.array([np.linalg.norm(A.T @ A, 2) for A in DATA["A"]])
    last = np.zeros(STATES, dtype=int)
    steps = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(xs, axis=0), axis=1))])
    for t, state in enumerate(path):
        last[state] = t
        if t < first:
            continue
        moved = np.linalg.norm(xs[t] - xs[last], axis=1)
        assert (moved <= steps[t] - steps[last] + DIGITS).all()
        error = np.linalg.norm(found.loss_grad[t] - law @ np.asarray(every.loss_grad)[t])
        assert error <= law @ (smooth * moved) + DIGITS
        below = law @ np.asarray(every.constraints)[t] - np.asarray(found.constraints)[t]
        assert abs(below[0]) <= DIGITS  # the linear constraint is known exactly
        assert -DIGITS <= below[1] <= law @ moved**2 + DIGITS  # the quadratic one has L = 2


def test_steps_are_as_short_as_the_template_says():
    """||x_{t+1} - x_t|| <= ||V_t grad + Q jac|| / (2 alpha_t), with V_t = sqrt t and alpha_t from the age."""
    method = ed.rdpp(CHAIN.stationary).bind(PROBLEM)
    state = method.init(X0, num_constraints=2)
    step = jax.jit(method.step)
    for t, index in enumerate(walk(3, 60), start=1):
        before = state
        state, info = step(state, PROBLEM.feedback(state.x, row(index))._replace(state=index))
        V, alpha = float(info.weights.penalty), float(info.weights.proximity)
        np.testing.assert_allclose(V, t**0.5, rtol=DIGITS)
        np.testing.assert_allclose(alpha, (t * (t + (1.5 * float(info.feedback.age)) ** 2)) ** 0.5, rtol=DIGITS)
        direction = V * info.feedback.loss_grad + before.queue @ info.feedback.constraint_jac
        assert np.linalg.norm(state.x - before.x) <= np.linalg.norm(direction) / (2 * alpha) + DIGITS


@pytest.mark.slow
def test_float32_sums_do_not_drift():
    data = jax.tree.map(np.float32, DATA)
    source = ed.MarkovSource(CHAIN, data)
    x0 = np.asarray(X0, np.float32)
    results = [
        ed.run(ed.rdpp(), PROBLEM, ed.MarkovSource(CHAIN, rows), x0=start, num_samples=300_000, record=2)
        for rows, start in [(data, x0), (jax.tree.map(np.float64, data), np.float64(x0))]
    ]
    reference = ed.solve_reference(PROBLEM, source, np.zeros(3))
    narrow, wide = (ed.metrics.evaluate(result, PROBLEM, source, reference) for result in results)
    # An average that drifted by one rounding a round would be off by 300,000 x 6e-8 = 0.02.
    np.testing.assert_allclose(narrow.infeasibility[:, -1], wide.infeasibility[:, -1], atol=2e-5)
    assert narrow.lagrangian_gap[0, -1] < 1e-6


@pytest.mark.slow
def test_it_leaves_edpp_far_behind_and_needs_no_mixing_time():
    chain = ed.MarkovChain(0.985 * np.eye(3) + 0.005)
    data = feasible(5, 3)
    source = ed.MarkovSource(chain, data)
    reference = ed.solve_reference(PROBLEM, source, np.zeros(3))
    gaps = {}
    for algorithm in (ed.edpp(chain.mixing_time()), ed.rdpp(), ed.wdpp()):
        result = ed.run(algorithm, PROBLEM, source, x0=X0, num_samples=20_000, seeds=8, record=1)
        gaps[algorithm.name] = ed.metrics.lagrangian_gap(result, PROBLEM, source, reference).mean()
    assert gaps["RDPP"] < gaps["EDPP-t"] / 300
    assert gaps["WDPP"] < 3 * gaps["EDPP-t"]  # it was not told the mixing time


def test_a_walk_with_another_law_than_the_target():
    star = np.zeros((STATES, STATES))
    star[0, 1:] = star[1:, 0] = star[1, 2] = star[2, 1] = 1  # a triangle in it: the simple walk is not periodic
    walk_of = ed.MarkovSource(ed.MarkovChain.from_graph(star, kind="simple"), DATA)
    target = ed.IIDSource(DATA)
    reference = ed.solve_reference(PROBLEM, target, np.zeros(3))
    gaps = []
    for law in (np.ones(STATES), "stationary"):
        result = ed.run(ed.rdpp(law), PROBLEM, walk_of, x0=X0, num_samples=30_000, record=1)
        gaps.append(float(ed.metrics.lagrangian_gap(result, PROBLEM, target, reference)[0, 0]))
    assert gaps[0] < 1e-6 < 1e-3 < gaps[1]


def test_other_methods_take_no_notice_of_the_state():
    method = ed.edpp(3.0).bind(PROBLEM)
    state = method.init(X0, num_constraints=2)
    feedback = PROBLEM.feedback(X0, row(0))
    jax.tree.map(
        np.testing.assert_array_equal, method.step(state, feedback), method.step(state, feedback._replace(state=3))
    )


def test_the_window_of_wdpp_by_hand():
    path = walk(0, 60)
    xs, found = trace(ed.wdpp().bind(PROBLEM), path)
    xs, every = np.asarray(xs), planes(np.asarray(xs))
    offsets, jacs, mean = [], [], None
    for t, state in enumerate(path):
        jac = np.asarray(every.constraint_jac)[t, state]
        jacs.append(jac)
        offsets.append(np.asarray(every.constraints)[t, state] - jac @ xs[t])
        weights = np.array([np.prod(np.arange(s + 1, s + 50, dtype=float) / 50) for s in range(t + 1)])
        weights /= weights.sum()
        mean = np.tensordot(weights, offsets, 1) + np.tensordot(weights, jacs, 1) @ xs[t]
        np.testing.assert_allclose(found.constraints[t], mean, rtol=RUNS, atol=RUNS)
        np.testing.assert_array_equal(found.loss_grad[t], np.asarray(every.loss_grad)[t, state])


LINEAR_LAWS = {"stationary": ed.rdpp(), "visits": ed.rdpp("visits")}


def linear(link: str, sparse: bool, states: int = 6, rows: int = 2, dimension: int = 9) -> tuple[Any, Any]:
    """A linear model, and a slow chain over its states."""
    rng = np.random.default_rng(7)
    features = rng.normal(size=(states, rows, dimension)) * (rng.random((states, rows, dimension)) < 0.5)
    features[:, :, 0] = 1.0
    model = ed.LinearModel(link, ed.Ball(2.0))
    data = model.data(
        [scipy.sparse.csr_array(part) for part in features] if sparse else list(features),
        rng.choice([-1.0, 1.0], size=(states, rows)) if link == "logistic" else None,
        offsets=rng.normal(size=(states, rows)) if link == "squared" else None,
        normals=rng.normal(size=(states, 2, dimension)),
        limits=[0.1, 0.2],
    )
    return model, ed.MarkovSource(ed.MarkovChain(0.9 * np.eye(states) + 0.1 / states), data)


@pytest.mark.parametrize(
    ("link", "sparse", "law"),
    [
        ("logistic", False, "visits"),
        *[pytest.param("squared", True, law, marks=pytest.mark.slow) for law in LINEAR_LAWS],
    ],
)
def test_a_number_per_row_remembers_as_much_as_whole_planes(link, sparse, law):
    """The same functions as a plain `Problem`, of which nothing is known, keep planes: equal to rounding."""
    model, source = linear(link, sparse)
    plain = ed.Problem(model.loss, model.constraints, model.geometry)
    assert model.compact(source.example).size == 2 + 1
    assert plain.compact(source.example) is None
    x0 = np.full(9, 0.1)
    lean, full = (
        ed.run(LINEAR_LAWS[law], problem, source, x0=x0, num_samples=3000, seeds=2, record=10)
        for problem in (model, plain)
    )
    np.testing.assert_allclose(lean.x, full.x, rtol=max(1e-8, RUNS), atol=max(1e-10, rounded(1e-14)))
    np.testing.assert_allclose(lean.queue, full.queue, rtol=max(1e-8, RUNS), atol=max(1e-10, rounded(1e-14)))


def test_a_number_per_row_from_the_public_step():
    model, source = linear("logistic", sparse=False)
    path = np.asarray(source.paths([0], 200))[0]
    found = ed.run(ed.rdpp(), model, source, x0=np.zeros(9), num_samples=200, record=[200])
    form = model.compact(source.example)
    method = ed.rdpp(source.chain.stationary, compact=form).bind(model)
    state = method.init(np.zeros(9), num_constraints=2)
    samples = [jax.tree.map(lambda leaf, index=index: leaf[index], source.data) for index in range(6)]
    for index in path:
        state, _ = method.step(state, form.feedback(model, state.x, samples[index])._replace(state=index))
    np.testing.assert_allclose(state.x, found.x[0, -1], rtol=RUNS, atol=DIGITS)
    with pytest.raises(ValueError, match=r"feedback.compact is missing.*form.feedback"):
        method.step(state, model.feedback(state.x, samples[0])._replace(state=0))


def test_a_number_per_row_is_all_that_a_state_costs():
    """d = 10,000 and 1,000 states of one row: three numbers per state, where planes are 20,003."""
    states, dimension = 1000, 10_000
    zero = Feedback(jnp.zeros(()), jnp.zeros(dimension), jnp.zeros(1), jnp.zeros((1, dimension)))

    def numbers(algorithm: Any) -> int:
        memory = jax.eval_shape(lambda: algorithm.estimator.init(zero, None))
        return sum(leaf.size for leaf in jax.tree.leaves(memory.entries))

    assert numbers(ed.rdpp(np.ones(states), compact=BySlopes(2))) == 3 * states
    assert numbers(ed.rdpp(np.ones(states))) == 20_003 * states


def test_rows_are_kept_only_where_they_are_fewer_than_the_numbers_of_a_plane():
    for rows, wanted in [(1, BySlopes(2)), (28, BySlopes(29)), (29, None), (33, None)]:  # (1 + 2) (1 + 9) = 30 numbers
        model, source = linear("logistic", sparse=False, states=2, rows=rows)
        assert model.compact(source.example) == wanted
    curved = ed.LinearModel("logistic", ed.Ball(2.0), constraints=lambda x, xi: jnp.sum(x**2)[None] - 1)
    assert curved.compact(linear("logistic", sparse=False)[1].example) is None


@dataclasses.dataclass(frozen=True)
class Shared(ed.CompactForm):
    """Of the loss |x|^2 / 2 - c.x and the constraint |x|^2 - a.x: x alone makes the gradients x - c and 2x - a."""

    size: int

    def feedback(self, problem, x, xi):
        numbers = jnp.append(x, jnp.sum(x**2))
        return problem.feedback(x, xi)._replace(compact=ed.Compact(numbers, xi))

    def planes(self, basis, numbers, share):
        x, square = numbers[:-1], numbers[-1]
        return Feedback(-square / 2, x - share * basis["c"], -square[None], (2 * x - share * basis["a"])[None])


class Spheres(ed.Problem):
    """Somebody's own problem, which knows how little of it has to be remembered."""

    def compact(self, xi):
        return Shared(len(xi["c"]) + 1)


@pytest.mark.slow
@pytest.mark.parametrize("law", ["stationary", "visits"])
def test_anybody_may_offer_compact_feedback(law):
    functions = (
        lambda x, xi: jnp.sum(x**2) / 2 - xi["c"] @ x,
        lambda x, xi: (jnp.sum(x**2) - xi["a"] @ x)[None],
        ed.Ball(2.0),
    )
    rng = np.random.default_rng(4)
    source = ed.MarkovSource(CHAIN, {name: rng.normal(size=(STATES, 4)) for name in ("c", "a")})
    lean, full = (
        ed.run(LINEAR_LAWS[law], kind(*functions), source, x0=np.full(4, 0.1), num_samples=2000, seeds=2, record=10)
        for kind in (Spheres, ed.Problem)
    )
    assert lean.queue.max() > 0.1
    np.testing.assert_allclose(lean.x, full.x, rtol=max(1e-8, RUNS), atol=max(1e-10, rounded(1e-14)))
    np.testing.assert_allclose(lean.queue, full.queue, rtol=max(1e-8, RUNS), atol=max(1e-10, rounded(1e-14)))
    assert lean.within_theory().checked


@pytest.mark.slow
def test_a_round_costs_the_same_however_many_states_there_are():
    """A table that is copied every round would take 200 times as long here; a factor of 20 leaves room for noise."""
    spent = []
    for states in (1000, 200_000):
        source = ed.IIDSource(np.random.default_rng(0).normal(size=(states, 3)).astype(np.float32))
        problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2) / 2, lambda x, xi: x[:1] - 0.5, ed.Ball(1.0))

        def job(samples: int, source: Any = source, problem: Any = problem) -> float:
            began = time.process_time()
            result = ed.run(ed.rdpp(), problem, source, x0=np.zeros(3, np.float32), num_samples=samples, record=1)
            jax.block_until_ready(result.x)
            return time.process_time() - began

        job(1000)  # compile
        spent.append(min(job(21_000) for _ in range(3)) - min(job(1000) for _ in range(3)))
    assert spent[1] < 20 * spent[0]


def test_what_is_refused():
    series, x0 = ed.SeriesSource(DATA), np.zeros(3)
    method = ed.rdpp(np.ones(STATES)).bind(PROBLEM)
    refused = [
        (lambda: ed.run(ed.rdpp(), PROBLEM, series, x0=x0), "none that come back"),
        (lambda: ed.run(ed.rdpp(), PROBLEM, SOURCE, x0=x0, num_samples=9, levels=[1]), "only MLMC"),
        (lambda: ed.run(ed.wdpp(), PROBLEM, SOURCE, x0=x0, num_samples=9, levels=[1]), "only MLMC"),
        (lambda: ed.run(ed.rdpp([1, 1]), PROBLEM, SOURCE, x0=x0, num_samples=9), "over 2 states, but the source has 5"),
        (lambda: ed.rdpp("best"), "law must be one of"),
        (lambda: ed.rdpp("stationary", num_states=3), "num_states goes with law='visits'"),
        (lambda: ed.rdpp([1.0, -1.0]), "law must be finite, not negative"),
        (lambda: ed.rdpp(np.ones((2, 2))), r"law must have shape \(S,\)"),
        (lambda: ed.rdpp([1.0, 1.0], num_states=3), r"law must have shape \(3,\)"),
        (lambda: ed.rdpp().bind(PROBLEM).init(x0, 2), "the number of states is not known"),
        (lambda: method.step(method.init(x0, 2), PROBLEM.feedback(x0, row(0))), "feedback.state is missing"),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("state", [-1, 3, 99])
def test_a_state_that_does_not_exist_shows(state):
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 0.5, ed.Ball(2.0))
    method = ed.rdpp(np.full(3, 1 / 3)).bind(problem)
    start = method.init(jnp.zeros(2), 1)
    feedback = problem.feedback(start.x, jnp.ones(2))
    after, _ = method.step(start, feedback._replace(state=jnp.int32(state)))
    assert np.isnan(np.asarray(after.x)).any()
    fine, _ = method.step(start, feedback._replace(state=jnp.int32(2)))
    assert np.isfinite(np.asarray(fine.x)).all()
