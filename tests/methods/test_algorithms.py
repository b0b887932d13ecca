"""What every named algorithm promises, whatever its rule, schedule and estimator."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cases
import ergodrift as ed
from ergodrift.data.source import level_keys, seed_keys
from ergodrift.methods.average import Average
from ergodrift.methods.estimator import draw_level
from ergodrift.methods.scalefree import Scales

# Each takes a number near 1 by which its hyperparameters are scaled, where it has any.
ALGORITHMS: dict[str, Callable[[float], ed.Algorithm]] = {
    "edpp-t": lambda v: ed.edpp(3 * v),
    "edpp-T": lambda v: ed.edpp(3 * v, beta=0.3, horizon=150),
    "edpp-auto": lambda v: ed.edpp("auto", beta=v / 4),
    "dpp-t": lambda v: ed.dpp(),
    "dpp-T": lambda v: ed.dpp(horizon=150 * v),
    "mdpp": lambda v: ed.mdpp(delta=v, cap=16),
    "mdpp-first": lambda v: ed.mdpp(beta=v / 4),
    "mdpp-theory": lambda v: ed.mdpp(delta=v, beta=0.25, cap=None, add_delta=False),
    "adpp": lambda v: ed.adpp(beta=v / 4),
    "pd": lambda v: ed.pd(150 * v, gradient_bound=5, constraint_bound=3),
    "pd2": lambda v: ed.pd2(5 * v),
    "pd2-max": lambda v: ed.pd2(5 * v, aggregate="max"),
    "rdpp": lambda v: ed.rdpp([1, 2 * v, 3]),
    "rdpp-visits": lambda v: ed.rdpp("visits"),
    "wdpp": lambda v: ed.wdpp(),
    "sdpp": lambda v: ed.sdpp(),
    "sdpp-scales": lambda v: ed.sdpp(Scales(v / 4, 0.1 * v)),
    "srdpp": lambda v: ed.srdpp([1, 2 * v, 3]),
    "sinha-vaze": lambda v: ed.sinha_vaze(150, gradient_bound=5 * v),
    "yu-lee-lee": lambda v: ed.yu_lee_lee(5, 3 * v, gamma_scale=20, regularizer_scale=0.1),
    "csa": lambda v: ed.switching(v / 4, tolerance=25.0, batch=1, horizon=150),
    "alm": lambda v: ed.augmented_lagrangian(150, step=v / 4),
}
VARIANTS = {"edpp-T", "dpp-T", "mdpp-first", "mdpp-theory", "pd2-max", "rdpp-visits", "sdpp-scales"}  # of another above
every_algorithm = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in VARIANTS)) for name in ALGORITHMS]
)
WIDE = bool(jax.config.read("jax_enable_x64"))
both_dtypes = pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64][: 1 + WIDE])
EPSILON = 1e-14 if WIDE else 1e-6

NUM_SAMPLES = 150  # two blocks of random bits, and a part of a third
KINK = np.full((3, 3), 2.0)  # outside the domain, where the distance to it is smooth
DATA = {**cases.random_data(np.random.default_rng(0), num_states=3, dimension=3, pairs=1), "kink": KINK}
SOURCE = ed.IIDSource(DATA, weights=[1, 2, 3])
X0 = jnp.array([0.5, -0.5, 0.0])

CALLS: list[Any] = []


def counted_loss(x: Any, xi: Any) -> Any:
    CALLS.append(x)
    return cases.loss(x, xi) + jnp.linalg.norm(x - xi["kink"])


PROBLEM = ed.Problem(counted_loss, cases.constraints, ed.Ball(0.75))


def run(algorithm: ed.Algorithm, **changes: Any) -> ed.Result:
    """A run that records the start and every sample but the last, changed where asked."""
    settings = {"x0": X0, "num_samples": NUM_SAMPLES, "record": np.arange(NUM_SAMPLES)}
    return ed.run(algorithm, changes.pop("problem", PROBLEM), changes.pop("source", SOURCE), **{**settings, **changes})


SEEDS = [9, 4]  # side by side; what is compiled for them serves most tests here


@functools.cache
def full(name: str) -> ed.Result:
    return run(ALGORITHMS[name](1.0), seeds=SEEDS)


def of_seed(tree: Any, seed: int) -> Any:
    """What belongs to one of the seeds."""
    return jax.tree.map(lambda leaf: leaf[SEEDS.index(seed)][None], tree)


def records(result: ed.Result) -> Any:
    """The fields with leading axes (seeds, records)."""
    apart = {"name", "seeds", "samples", "solution", "paths", "setting", "margin", "tightening"}
    return {f.name: getattr(result, f.name) for f in dataclasses.fields(result) if f.name not in apart}  # type: ignore[arg-type]


def assert_same(actual: Any, expected: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def assert_close(actual: Any, expected: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=100 * EPSILON, atol=100 * EPSILON), actual, expected
    )


@pytest.mark.parametrize(
    ("name", "title"),
    [
        *[("edpp-t", "EDPP-t"), ("edpp-T", "EDPP-T"), ("dpp-t", "DPP-t"), ("dpp-T", "DPP-T"), ("mdpp", "MDPP")],
        *[("edpp-auto", "EDPP-auto"), ("mdpp-theory", "MDPP"), ("adpp", "ADPP"), ("pd", "PD"), ("pd2", "PD2")],
        *[("pd2-max", "PD2"), ("rdpp", "RDPP"), ("rdpp-visits", "RDPP"), ("wdpp", "WDPP")],
        *[("sdpp", "SDPP"), ("sdpp-scales", "SDPP"), ("srdpp", "SRDPP"), ("mdpp-first", "MDPP")],
        *[("sinha-vaze", "Sinha-Vaze"), ("yu-lee-lee", "Yu-Lee-Lee"), ("csa", "CSA"), ("alm", "ALM")],
    ],
)
def test_names(name, title):
    assert ALGORITHMS[name](1.0).name == title


# ---------------------------------------------------------------------------------------------------------------------
# One step


def bound(name: str) -> Any:
    """The method as a run of NUM_SAMPLES binds it."""
    algorithm = ALGORITHMS[name](1.0)
    estimator = algorithm.estimator.for_run(NUM_SAMPLES, None, SOURCE.stationary)
    return dataclasses.replace(algorithm, estimator=estimator).bind(PROBLEM)


@every_algorithm
@both_dtypes
def test_a_step_keeps_the_structure_shapes_and_dtypes_of_the_state(name, dtype):
    method = bound(name)
    state = method.init(X0.astype(dtype), num_constraints=2, levels=jax.random.key(0))
    feedback = PROBLEM.feedback(state.x, row(DATA, 0))._replace(state=0)
    after, info = jax.eval_shape(method.step, state, feedback)
    kinds = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree) for tree in (state, after)]
    assert kinds[0] == kinds[1]
    assert state.t.dtype == jnp.int32
    for part in (state.x, state.queue, info.weights, info.sizes):
        assert {leaf.dtype for leaf in jax.tree.leaves(part)} == {jnp.dtype(dtype)}


def row(data: Any, index: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], data)


def by_hand(name: str, seed: int) -> dict[str, Any]:
    """The records of every sample count, from `feedback` and `step` called in a Python loop."""
    method, path = bound(name), np.asarray(SOURCE.paths([seed], NUM_SAMPLES))[0]
    state = method.init(X0, num_constraints=2, levels=level_keys(seed_keys([seed]))[0])
    points, losses, values, used = [], [], [], 0
    feedback = PROBLEM.feedback(state.x, row(DATA, 0))._replace(state=0)
    weights = jax.tree.map(jnp.zeros_like, jax.eval_shape(method.step, state, feedback)[1].weights)
    rows = []

    def record() -> None:
        degree = Average.of(ALGORITHMS[name](1.0).average).degree
        shares = np.arange(1.0, len(points) + 1) ** degree
        mean = np.average(points, axis=0, weights=shares) if points else state.x
        sums = np.sum(losses), np.sum(values, axis=0) if values else np.zeros(2)
        rows.append((state.t, used, state.x, mean, state.queue, weights, *sums))

    record()
    for taken, index in enumerate(path[:-1], start=1):
        feedback = PROBLEM.feedback(state.x, row(DATA, index))._replace(state=index)
        before, (state, info) = state, method.step(state, feedback)
        losses.append(feedback.loss)
        values.append(feedback.constraints)
        if info.updated:
            points.append(before.x)
            weights = info.weights
        used = taken - method.estimator.pending(state.window)
        record()
    fields = ["rounds", "samples_used", "x", "x_mean", "queue", "weights", "loss_sum", "constraint_sum"]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves)[None], *rows)
    return dict(zip(fields, stacked, strict=True))


@pytest.mark.x64("in float32 the sums of the loop, which are compensated, are better")
@every_algorithm
def test_the_compiled_loop_equals_a_python_loop(name):
    expected, actual = by_hand(name, seed=4), of_seed(records(full(name)), 4)  # whoever runs beside it
    assert actual.keys() == expected.keys()
    assert_close(actual, expected)
    assert int(actual["rounds"][0, -1]) > 20


# ---------------------------------------------------------------------------------------------------------------------
# A run


@every_algorithm
def test_points_stay_in_the_domain_and_queues_stay_positive(name):
    result = full(name)
    for points in (result.x, result.x_mean):
        assert np.linalg.norm(points, axis=-1).max() <= 0.75 * (1 + EPSILON)
    assert np.min(result.queue) == 0
    assert np.max(result.queue) > 0


@pytest.mark.parametrize("name", ["edpp-auto", "mdpp", "pd2", "srdpp", "csa"])  # each estimator and each rule
def test_seeds_side_by_side_equal_separate_runs(name):
    # With and without the axis of seeds, XLA may fuse (and so round) differently.
    for seed in SEEDS:
        assert_close(of_seed(records(full(name)), seed), records(run(ALGORITHMS[name](1.0), seeds=[seed])))


@pytest.mark.parametrize("name", ["edpp-t", "mdpp"])
def test_records_do_not_depend_on_where_others_are_taken(name):
    thin = run(ALGORITHMS[name](1.0), seeds=SEEDS, record=[0, 1, 63, 64, 65, 100, 149])
    assert_same(records(thin), jax.tree.map(lambda leaf: leaf[:, thin.samples], records(full(name))))
    assert_same(thin.solution, full(name).solution)


def test_a_path_that_is_passed_in_gives_the_run_that_draws_it():
    source = ed.MarkovSource(ed.MarkovChain(0.7 * np.eye(3) + 0.1), DATA)
    paths = source.paths(SEEDS, NUM_SAMPLES)
    drawn, replayed = (run(ed.edpp(3.0), source=source, seeds=SEEDS, paths=given) for given in (None, paths))
    assert_same(records(replayed), records(drawn))
    assert not np.array_equal(drawn.x[0], drawn.x[1])


def test_a_path_and_levels_that_are_passed_in_give_the_run_that_draws_them():
    drawn = full("mdpp")
    rounds = jnp.arange(np.max(drawn.rounds))
    levels = np.stack([jax.vmap(functools.partial(draw_level, key))(rounds) for key in level_keys(seed_keys(SEEDS))])
    assert levels.max() > 4  # some rounds are above the cap
    replayed = run(ALGORITHMS["mdpp"](1.0), seeds=SEEDS, paths=SOURCE.paths(SEEDS, NUM_SAMPLES), levels=levels)
    assert_same(records(replayed), records(drawn))


@every_algorithm
def test_new_numbers_never_trace_the_problem_again(name):
    variants: list[tuple[float, dict[str, Any]]] = [
        (1.0, {}),
        (1.5, {}),
        (1.0, {"seeds": [8, 3]}),
        (1.0, {"x0": X0 / 2}),
        (1.0, {"num_samples": 1000}),
        (1.0, {"source": ed.IIDSource(jax.tree.map(lambda leaf: 2 * leaf, DATA))}),
        (1.0, {"source": ed.IIDSource(DATA, weights=[4, 1, 1])}),
        (1.0, {"problem": ed.Problem(counted_loss, cases.constraints, ed.Ball(0.9))}),
    ]
    solutions, calls = [], []
    for value, changes in variants:
        result = run(ALGORITHMS[name](value), **{"seeds": 2, **changes})
        solutions.append(np.asarray(result.solution))
        calls.append(len(CALLS))
    assert calls == calls[:1] * 8
    # Every change took effect, so nothing stale was used.
    different = [not np.array_equal(solutions[0], solution) for solution in solutions[1:]]
    # Some have no number to change; and a walk's law does not change what is remembered under a law that was given.
    assert different[0] == (name not in ("dpp-t", "rdpp-visits", "wdpp", "sdpp"))
    assert all(different[1:])


def test_a_run_traces_the_problem_once():
    calls = []

    def loss(x: Any, xi: Any) -> Any:
        calls.append(x)
        return cases.loss(x, xi)

    problem = ed.Problem(loss, cases.constraints, ed.Ball(0.75))
    for tau_mix in (2.0, 3.0):
        run(ed.edpp(tau_mix), problem=problem)
        assert len(calls) == 1  # its shape, value and gradient are all had from the same trace


def on_a_ball(radius: Any, **changes: Any) -> ed.Result:
    problem = ed.Problem(counted_loss, cases.constraints, ed.Ball(radius))
    return run(ed.adpp(), problem=problem, **{"x0": X0 / 4, **changes})


SWEEPS: dict[str, tuple[Callable[..., ed.Result], list[float]]] = {
    "tau_mix": (lambda value, **changes: run(ed.edpp(value), **changes), [1.0, 2.5, 40.0]),
    "beta": (lambda value, **changes: run(ed.edpp(3.0, value), **changes), [0.1, 0.3, 0.5]),
    "horizon": (lambda value, **changes: run(ed.dpp(value), **changes), [10.0, 150.0, 1e4]),
    "delta": (lambda value, **changes: run(ed.mdpp(value), **changes), [0.01, 1.0, 50.0]),
    "gradient_bound": (lambda value, **changes: run(ed.pd2(value), **changes), [1.0, 5.0, 20.0]),
    "radius": (on_a_ball, [0.25, 0.75, 3.0]),
}


@pytest.mark.parametrize("name", ["tau_mix", "beta", "delta", "radius"])
def test_a_sweep_is_a_vmap(name):
    one, values = SWEEPS[name]
    swept = jax.vmap(lambda value: records(one(value)))(jnp.array(values))
    for i, value in enumerate(values):
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], swept), records(one(value)))
    assert not np.array_equal(swept["x_mean"][0], swept["x_mean"][-1])


@pytest.mark.x64("it asks for float64 itself")
@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_over_float64_values_leaves_a_float32_run_in_float32(name):
    one, values = SWEEPS[name]
    x0 = (X0 / 4).astype(jnp.float32)
    swept = jax.eval_shape(jax.vmap(lambda value: one(value, x0=x0).x_mean), jnp.array(values))
    assert (swept.shape, swept.dtype) == ((3, 1, NUM_SAMPLES, 3), jnp.float32)


def test_a_run_may_be_compiled_as_a_part_of_something_larger():
    solution = jax.jit(lambda beta: run(ed.adpp(beta), seeds=SEEDS).solution + 1)(0.25)
    assert_close(solution, full("adpp").solution + 1)


def of_dtype(dtype: Any) -> dict[str, Any]:
    return {"x0": X0.astype(dtype), "source": ed.IIDSource(jax.tree.map(dtype, DATA), weights=[1, 2, 3])}


@every_algorithm
@both_dtypes
def test_nothing_is_promoted_behind_the_back_of_the_caller(name, dtype):
    with jax.numpy_dtype_promotion("strict"):
        changes = of_dtype(dtype)
        result = jax.eval_shape(lambda x0: records(run(ALGORITHMS[name](1.0), **{**changes, "x0": x0})), changes["x0"])
    counts = result.pop("rounds"), result.pop("samples_used")
    assert {leaf.dtype for leaf in counts} == {jnp.dtype("int32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(result)} == {jnp.dtype(dtype)}


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-4), (jnp.float64, 1e-12)][: 1 + WIDE])
def test_a_run_under_strict_promotion_gives_the_usual_numbers(dtype, tolerance):
    with jax.numpy_dtype_promotion("strict"):
        strict = run(ALGORITHMS["edpp-t"](1.0), seeds=SEEDS, **of_dtype(dtype))
    # In float32, rounding errors of 6e-8 add up over the rounds; the path is the same.
    np.testing.assert_allclose(strict.x_mean, full("edpp-t").x_mean, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["mdpp", pytest.param("pd2", marks=pytest.mark.slow)])
def test_a_point_may_be_a_mapping(name):
    domain, like = cases.GEOMETRIES["product"]
    rng = np.random.default_rng(3)
    source = ed.IIDSource(cases.random_data(rng, num_states=4, dimension=5, pairs=1))
    problem = ed.Problem(cases.loss, cases.constraints, domain)
    x0 = cases.random_point(rng, domain, like)
    result = run(ALGORITHMS[name](1.0), problem=problem, source=source, x0=x0, seeds=2, record=10)
    assert jax.tree.map(jnp.shape, result.x) == {"w": (2, 10, 2), "p": (2, 10, 3)}
    assert jax.tree.map(jnp.shape, result.solution) == {"w": (2, 2), "p": (2, 3)}
    for points in (result.x, result.x_mean):
        assert np.linalg.norm(points["w"], axis=-1).max() <= 1 + 100 * EPSILON
        np.testing.assert_allclose(np.sum(points["p"], axis=-1), 1, rtol=100 * EPSILON)
        assert np.min(points["p"]) >= 0.05 * (1 - 100 * EPSILON)
    assert np.min(result.queue) >= 0


@pytest.mark.x64("it asks for float64 itself")
def test_a_point_of_mixed_precision_is_refused():
    domain, like = cases.GEOMETRIES["product"]
    x0 = cases.random_point(np.random.default_rng(3), domain, like)
    source = ed.IIDSource(cases.random_data(np.random.default_rng(3), num_states=4, dimension=5, pairs=1))
    mixed = {"w": x0["w"].astype(jnp.float32), "p": x0["p"]}
    with pytest.raises(TypeError, match=r"x0 must.*(float32.*float64|float64.*float32)"):
        run(ed.edpp(3.0), problem=ed.Problem(cases.loss, cases.constraints, domain), source=source, x0=mixed)


# ---------------------------------------------------------------------------------------------------------------------
# Hyperparameters that are refused


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ed.edpp(0.9), ValueError, "tau_mix must be >= 1, got 0.9"),
        (lambda: ed.edpp(-3), ValueError, "tau_mix must be >= 1, got -3"),
        (lambda: ed.edpp(float("nan")), ValueError, "tau_mix must be >= 1, got nan"),
        (lambda: ed.edpp("fast"), TypeError, "tau_mix must be a number, got 'fast'"),
        (lambda: ed.edpp("3"), TypeError, "tau_mix must be a number, got '3'"),
        (lambda: ed.edpp(None), TypeError, "tau_mix must be a number, got None"),
        (lambda: ed.edpp([3, 4]), TypeError, "got an array of shape (2,); sweep it with jax.vmap"),
        (lambda: ed.edpp(3, beta=0), ValueError, "beta must be > 0 and <= 0.5, got 0"),
        (lambda: ed.edpp(3, beta=0.51), ValueError, "beta must be > 0 and <= 0.5, got 0.51"),
        (lambda: ed.edpp(3, beta="half"), TypeError, "beta must be a number, got 'half'"),
        (lambda: ed.edpp(3, horizon=0.5), ValueError, "horizon must be >= 1, got 0.5"),
        (lambda: ed.dpp(horizon=0), ValueError, "horizon must be >= 1, got 0"),
        (lambda: ed.dpp(horizon={}), TypeError, "horizon must be a number, got {}"),
        (lambda: ed.mdpp(delta=0), ValueError, "delta must be > 0, got 0"),
        (lambda: ed.mdpp(delta=-1.5), ValueError, "delta must be > 0, got -1.5"),
        (lambda: ed.mdpp(beta=0.6), ValueError, "beta must be > 0 and <= 0.5, got 0.6"),
        (lambda: ed.mdpp(cap=0), ValueError, "cap must be between 1 and"),
        (lambda: ed.mdpp(diameter=0), ValueError, "diameter must be > 0, got 0"),
        (lambda: ed.sdpp(distance=0), ValueError, "distance must be > 0, got 0"),
        (lambda: ed.sdpp(distance=[1, 2]), TypeError, "distance must be one number, got an array of shape (2,)"),
        (lambda: ed.adpp(beta=-0.1), ValueError, "beta must be > 0 and <= 0.5, got -0.1"),
        (lambda: ed.adpp(diameter=-2), ValueError, "diameter must be > 0, got -2"),
        (lambda: ed.pd(0.5, 1, 1), ValueError, "horizon must be >= 1, got 0.5"),
        (lambda: ed.pd(100, 0, 1), ValueError, "gradient_bound must be > 0, got 0"),
        (lambda: ed.pd(100, 1, -1), ValueError, "constraint_bound must be > 0, got -1"),
        (lambda: ed.pd(100, 1, 1, radius=0), ValueError, "radius must be > 0, got 0"),
        (lambda: ed.pd2(-1), ValueError, "gradient_bound must be > 0, got -1"),
        (lambda: ed.pd2(1, beta=1), ValueError, "beta must be > 0 and < 1, got 1"),
        (lambda: ed.pd2(1, radius="wide"), TypeError, "radius must be a number, got 'wide'"),
        (lambda: ed.pd2(1, aggregate="sum"), ValueError, "aggregate must be one of 'vector', 'max', got 'sum'"),
    ],
)  # fmt: skip
def test_a_hyperparameter_out_of_range_is_refused_by_name(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make()


@pytest.mark.parametrize("value", [float("inf"), np.inf])
def test_an_infinite_hyperparameter_is_refused_as_such(value):
    # "must be >= 1, got inf" would not say what is wrong.
    with pytest.raises(ValueError, match=r"tau_mix must be finite.*got inf"):
        ed.edpp(value)


@pytest.mark.parametrize("make", [lambda: ed.edpp(1), lambda: ed.edpp(1, beta=0.5, horizon=1), lambda: ed.mdpp(cap=1)])
def test_the_ends_of_the_ranges_are_allowed(make):
    assert isinstance(make(), ed.Algorithm)


@every_algorithm
def test_a_nan_gradient_behind_a_finite_loss_stops_every_algorithm(name):
    """||x - kink|| has the gradient 0 / 0 where x = kink; the loss there is finite."""
    source = ed.IIDSource({**DATA, "kink": np.tile(X0, (3, 1))}, weights=[1, 2, 3])
    with pytest.raises(ed.NonFiniteError, match="loss_grad"):
        run(ALGORITHMS[name](1.0), source=source, seeds=SEEDS)


def test_the_loop_is_compiled_once_for_all_numbers():
    """Counted in the cache of the loop itself: the problem's own functions are cached apart from it."""
    from ergodrift.engine import loop

    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x - 0.3, ed.Ball(2.0))

    def go(algorithm, num_samples=100, seeds=(0, 1), radius=2.0, data=1.0):
        changed = ed.Problem(problem.loss, problem.constraints, ed.Ball(radius))
        rows = ed.IIDSource(np.full((4, 2), data))
        ed.run(algorithm, changed, rows, x0=np.zeros(2), num_samples=num_samples, seeds=list(seeds), record=5)

    go(ed.edpp(2.0))
    go(ed.mdpp(1.0))
    compiled: Any = loop.advance_on(tuple(jax.devices()[:1]))
    before = compiled._cache_size()
    go(ed.edpp(7.0, beta=0.3), num_samples=5000, seeds=(5, 9), radius=3.0, data=0.5)
    go(ed.dpp())
    go(ed.mdpp(3.0, beta=0.2, cap=64, add_delta=False))
    assert compiled._cache_size() == before
