"""Drift-plus-penalty around optax: by hand, beside `ed.run`, and under all that optax and JAX do with optimisers."""

# To optax's types a state is any tree: they know no field of ours.
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportCallIssue=false, reportIndexIssue=false

import dataclasses
import itertools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ergodrift as ed
from digits import KIND, WIDE, rounded
from ergodrift.methods.scalefree import Distances, SharedDrift
from ergodrift.optax import DUAL_STRIDE, drift_plus_penalty, equality, sgd, value_and_constraints

T = 1000
SAMPLES = np.random.default_rng(0).normal(size=(T, 4)).astype(KIND)
X0 = jnp.zeros(4, KIND)


def loss(x, xi):
    return jnp.sum((x - xi - 1) ** 2)


def constraints(x, xi):
    return jnp.stack([jnp.sum(x) - 1 + xi[0], x[0] ** 2 + xi[1] * x[1] - 0.5])


def both(x, xi):
    return loss(x, xi), constraints(x, xi)


PROBLEM = ed.Problem(loss, constraints, ed.Ball(1e3))  # so large that no step meets its end
EVALUATE = value_and_constraints(both)


def exactly(optimizer):
    def step(x, state, xi):
        value, grads = jax.value_and_grad(loss)(x, xi)
        given = {"constraints": constraints(x, xi), "jacobian": jax.jacobian(constraints)(x, xi), "value": value}
        updates, state = optimizer.update(grads, state, x, **given)
        return optax.apply_updates(x, updates), state

    return step


def by_products(optimizer, evaluate=EVALUATE):
    def step(x, state, xi):
        _, grads, extra = evaluate(x, state, xi)
        updates, state = optimizer.update(grads, state, x, **extra)
        return optax.apply_updates(x, updates), state

    return step


@pytest.fixture
def promoting():
    """Adam itself promotes types, which these tests refuse elsewhere."""
    with jax.numpy_dtype_promotion("standard"):
        yield


FORMS = {"exact": exactly, "products": by_products}


def after(step, optimizer, samples=SAMPLES, x0=X0):
    """x and state after these samples."""
    start = (x0, optimizer.init(x0))
    return jax.lax.scan(lambda now, xi: (step(*now, xi), None), start, jnp.asarray(samples))[0]


def close(found, wanted, tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), found, wanted)


# By hand


def line(x, _=None):
    return (x - 3) ** 2, x - 1


@pytest.mark.parametrize("form", FORMS)
def test_two_steps_of_dpp_by_hand(form):
    """V = 1, alpha = 1: x = 0 + 6 / 2 = 3, Q = [0 - 1 + 3] = 2. V = sqrt 2, alpha = 2: x = 3 - 2/4, Q = 2 + 2 - 1/2."""
    optimizer, x = drift_plus_penalty(sgd(), 1, ed.dpp()), jnp.zeros((), KIND)
    state, evaluate = optimizer.init(x), value_and_constraints(line)
    for wanted_x, wanted_queue, multiplier in [(3.0, 2.0, 2 / 2**0.5), (2.5, 3.5, 3.5 / 3**0.5)]:
        _, grads, extra = evaluate(x, state)
        if form == "exact":
            grads, extra = 2 * (x - 3), {"constraints": x - 1, "jacobian": jnp.ones(1, KIND)}
        updates, state = optimizer.update(grads, state, x, **extra)
        x = optax.apply_updates(x, updates)
        close((x, state.queue, state.multipliers), (wanted_x, [wanted_queue], [multiplier]), rounded(1e-15))


@pytest.mark.parametrize("form", FORMS)
def test_two_steps_of_the_default_by_hand(form):
    """g = x + 1, steps of 1/2. |df| = 6, |dg| = 1, g = 1: Lambda = 6, s = 0.1 x 6 / sqrt(1 x 1), lambda = 0.6. Then at
    x = 3, df = 0 and g = 4: E = 1 + 2/3 (16 - 1) = 11, |df|^2 on average 12, so s = 0.1 sqrt(12) / sqrt(2 x 11)."""
    assert DUAL_STRIDE == 0.1
    optimizer, x = drift_plus_penalty(optax.sgd(0.5), 1), jnp.zeros((), KIND)
    state, evaluate = optimizer.init(x), value_and_constraints(lambda x: ((x - 3) ** 2, x + 1))
    for wanted_x, wanted in [(3.0, 0.6), (2.7, 0.6 + 4 * 0.1 * (12 / 22) ** 0.5)]:
        _, grads, extra = evaluate(x, state)
        if form == "exact":
            grads, extra = 2 * (x - 3), {"constraints": x + 1, "jacobian": jnp.ones(1, KIND)}
        updates, state = optimizer.update(grads, state, x, **extra)
        x = optax.apply_updates(x, updates)
        close((x, state.queue, state.multipliers), (wanted_x, [wanted], [wanted]), rounded(1e-15))


@pytest.mark.parametrize("form", FORMS)
def test_constraints_that_are_violated_together_share_one_stride(form):
    """f = 6 x, and g = (1 - x, 1 - x, x - 5): two are violated, so that each moves by 0.1 x 6 / 2."""
    optimizer, x = drift_plus_penalty(optax.sgd(0.5), 3), jnp.zeros((), KIND)
    state = optimizer.init(x)
    evaluate = value_and_constraints(lambda x: (6 * x, jnp.stack([1 - x, 1 - x, x - 5])))
    _, grads, extra = evaluate(x, state)
    if form == "exact":
        jac = jnp.asarray([-1, -1, 1], KIND)
        grads, extra = jnp.asarray(6, KIND), {"constraints": jnp.asarray([1, 1, -5], KIND), "jacobian": jac}
    state = optimizer.update(grads, state, x, **extra)[1]
    close(state.multipliers, jnp.asarray([0.3, 0.3, 0], KIND), rounded(1e-15))


# Beside ed.run

NAMED = {
    "dpp": (ed.dpp(), "both"),
    "dpp horizon": (ed.dpp(T), "both"),
    "edpp": (ed.edpp(10.0), "both"),
    "adpp": (ed.adpp(diameter=4.0), "exact"),
    "sdpp": (ed.sdpp(distance=1.0), "exact"),
    "edpp auto": (ed.edpp("auto"), "exact"),
}


@pytest.mark.parametrize(
    ("name", "form"), [(n, f) for n, (_, known) in NAMED.items() for f in FORMS if known in ("both", f)]
)
def test_same_numbers_as_run(name, form):
    algorithm = NAMED[name][0]
    result = ed.run(algorithm, PROBLEM, ed.SeriesSource(SAMPLES), x0=X0, record=1)
    optimizer = drift_plus_penalty(sgd(), 2, algorithm)
    x, state = after(FORMS[form](optimizer), optimizer)
    tolerance = 1e-12 if WIDE else 1e-6
    close((x, state.queue), (result.x[0, -1], result.queue[0, -1]), tolerance)


def test_the_default_has_the_multipliers_of_the_scale_free_method():
    """Shown the points of a run of SDPP with its own k, whatever `inner` would do."""
    schedule = Distances(first=1.0, dual_stride=DUAL_STRIDE)
    algorithm = dataclasses.replace(ed.sdpp(), rule=SharedDrift, schedule=schedule)
    result = ed.run(algorithm, PROBLEM, ed.SeriesSource(SAMPLES), x0=X0, record=np.arange(1, T + 1))
    optimizer = drift_plus_penalty(optax.sgd(0.0), 2)
    points = jnp.concatenate([X0[None], result.x[0, :-1]])
    step = exactly(optimizer)

    def one(state, shown):
        state = step(*shown[:1], state, shown[1])[1]
        return state, state.multipliers

    seen = jax.lax.scan(one, optimizer.init(X0), (points, jnp.asarray(SAMPLES)))[1]
    close(seen, result.queue[0], 1e-12 if WIDE else 1e-6)


# The default: units, norms, what it finds


@pytest.mark.parametrize("inner", [optax.adam(0.02), optax.sgd(0.02)], ids=["adam", "sgd"])
def test_it_finds_the_optimum_and_its_multiplier(inner, promoting):
    """min E (x - xi - 1)^2, x and xi in R^4, with sum x <= 1: x = 1/4 and the multiplier is 2 x 3/4. The second
    constraint does not bind there: 1/16 - 1/2."""
    optimizer = drift_plus_penalty(optax.chain(inner, optax.scale_by_schedule(lambda t: 1 / jnp.sqrt(1 + t / 50))), 2)
    samples = np.random.default_rng(1).normal(scale=0.3, size=(6000, 4)).astype(KIND)
    x, state = after(by_products(optimizer), optimizer, samples)
    np.testing.assert_allclose(x, 0.25, atol=0.05)
    # The last multiplier, not an average, after 6,000 noisy steps: 0.03 and 0.06 below here.
    np.testing.assert_allclose(state.multipliers, [1.5, 0], atol=0.1)


@pytest.mark.parametrize("form", FORMS)
def test_units_of_loss_and_constraints_change_nothing(form):
    """Powers of two: not a bit. The multiplier has the units of the loss over those of the constraint."""
    scale = np.array([2.0**-7, 2.0**9]).astype(KIND)
    optimizer = drift_plus_penalty(optax.sgd(0.01), 2)
    other = drift_plus_penalty(optax.sgd(0.01 / 32), 2)

    def scaled(x, xi):
        value, rows = both(x, xi)
        return 32 * value, scale * rows

    def step(x, state, xi):
        _, grads, extra = value_and_constraints(scaled)(x, state, xi)
        if form == "exact":
            grads = jax.grad(lambda x: scaled(x, xi)[0])(x)
            extra = {"constraints": scaled(x, xi)[1], "jacobian": jax.jacobian(lambda x: scaled(x, xi)[1])(x)}
        updates, state = other.update(grads, state, x, **extra)
        return optax.apply_updates(x, updates), state

    x, state = after(FORMS[form](optimizer), optimizer, SAMPLES[:200])
    y, state_of_other = after(step, other, SAMPLES[:200])
    np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(state.multipliers, state_of_other.multipliers * scale / 32)


def test_norms_are_those_of_the_gradients_on_average():
    """Of 8 directions a look, over 200 looks at the same point: the mean square within four standard errors."""
    optimizer, x = drift_plus_penalty(optax.sgd(0.0), 2), jnp.arange(1.0, 5.0, dtype=KIND)
    state = optimizer.init(x)
    _, grads, extra = EVALUATE(x, state, SAMPLES[0])

    @jax.jit
    def looked(t):
        return optimizer.update(grads, state._replace(t=t), x, **extra)[1].sizes

    squares = np.square([looked(jnp.int32(64 * k - 1)) for k in range(1, 201)])
    rows = np.vstack([jax.grad(loss)(x, SAMPLES[0]), jax.jacobian(constraints)(x, SAMPLES[0])])
    error = squares.std(axis=0) / np.sqrt(len(squares))
    assert (np.abs(squares.mean(axis=0) - np.square(rows).sum(axis=1)) < 4 * error).all()
    np.testing.assert_array_equal(looked(jnp.int32(64)), 0)  # the 65th step does not look


def test_no_jacobian_is_formed(promoting):
    """Nothing in the step is as large as one; in the exact form something is."""
    wide, number = 300, 50
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(number, 7)), KIND)

    def many(x, xi):
        hidden = jnp.tanh(xi @ x["w"])
        return jnp.sum(hidden), rows @ hidden[:7]

    x, xi = {"w": jnp.ones((4, wide), KIND)}, jnp.ones(4, KIND)
    optimizer = drift_plus_penalty(optax.adam(0.1), number, ed.edpp(2.0))
    default = drift_plus_penalty(optax.adam(0.1), number)

    def largest(function, *args):
        parts = _all(jax.make_jaxpr(function)(*args).jaxpr)
        return max(made.aval.size for part in parts for equation in part.eqns for made in equation.outvars)

    for each in (optimizer, default):
        step = by_products(each, value_and_constraints(many))
        assert largest(step, x, each.init(x), xi) < number * wide
    assert largest(lambda x: jax.jacobian(lambda x: many(x, xi)[1])(x), x) >= number * 4 * wide


def _all(jaxpr):
    """A jaxpr and all that it calls."""
    yield jaxpr
    for value in jax.tree.leaves([e.params for e in jaxpr.eqns], is_leaf=lambda leaf: hasattr(leaf, "eqns")):
        inner = getattr(value, "jaxpr", value)
        if hasattr(inner, "eqns"):
            yield from _all(inner)


# What optax and JAX do with optimisers


def test_jit_scan_and_a_loop_agree_and_a_second_step_is_not_traced_again(promoting):
    optimizer, traced = drift_plus_penalty(optax.adam(0.01), 2), []

    def counted(x, xi):
        traced.append(1)
        return both(x, xi)

    step = jax.jit(by_products(optimizer, value_and_constraints(counted)))
    now = X0, optimizer.init(X0)
    for xi in SAMPLES[:70]:
        now = step(*now, xi)
    assert len(traced) == 1
    close(now, after(by_products(optimizer), optimizer, SAMPLES[:70]), rounded(1e-13))


@pytest.mark.parametrize("algorithm", [None, ed.sdpp(distance=1.0)], ids=["default", "sdpp"])
def test_point_and_state_may_be_donated(algorithm):
    optimizer = drift_plus_penalty(optax.sgd(0.01), 2, algorithm)
    plain = jax.jit(exactly(optimizer))
    donating = jax.jit(exactly(optimizer), donate_argnums=(0, 1))
    kept, given = (X0 + 1, optimizer.init(X0 + 1)), (X0 + 1, optimizer.init(X0 + 1))
    for xi in SAMPLES[:3]:
        kept, given = plain(*kept, xi), donating(*given, xi)
    jax.tree.map(np.testing.assert_array_equal, kept, given)


def test_an_ensemble_by_vmap_is_its_members(promoting):
    optimizer = drift_plus_penalty(optax.adam(0.01), 2)
    starts = jnp.asarray([np.zeros(4), np.ones(4)], KIND)
    found = jax.vmap(lambda x0: after(by_products(optimizer), optimizer, SAMPLES[:70], x0))(starts)
    for i, x0 in enumerate(starts):
        one = after(by_products(optimizer), optimizer, SAMPLES[:70], x0)
        close(jax.tree.map(lambda leaf, i=i: leaf[i], found), one, rounded(1e-12))


def test_in_a_chain_its_state_is_found():
    """A chain around it, and one within: the same as their parts by hand."""
    around = optax.chain(drift_plus_penalty(optax.sgd(0.01), 2), optax.scale(0.5))
    within = drift_plus_penalty(optax.chain(optax.sgd(0.01), optax.scale(0.5)), 2)
    x, state = after(by_products(around), around, SAMPLES[:50])
    y, plain = after(by_products(within), within, SAMPLES[:50])
    close((x, state[0].queue), (y, plain.queue), rounded(1e-13))


def test_frozen_parameters_stay_and_the_queue_knows():
    """Of dpp the queue moves by what x really did: as with a step whose frozen part is 0, by hand."""
    frozen = {"a": False, "b": True}
    inner = optax.chain(sgd(), optax.masked(optax.set_to_zero(), frozen))
    optimizer = drift_plus_penalty(inner, 1, ed.dpp())
    x = {"a": jnp.zeros((), KIND), "b": jnp.ones((), KIND)}
    evaluate = value_and_constraints(lambda x: ((x["a"] - 3) ** 2 + x["b"] ** 2, x["a"] + x["b"] - 1))
    state = optimizer.init(x)
    _, grads, extra = evaluate(x, state)
    updates, state = optimizer.update(grads, state, x, **extra)
    close((updates, state.queue), ({"a": 3.0, "b": 0.0}, [3.0]), rounded(1e-15))


def test_within_a_mask_it_sees_its_part_alone():
    mask = {"a": True, "b": False}
    inside = drift_plus_penalty(sgd(), 1, ed.dpp())
    x = {"a": jnp.zeros((), KIND), "b": jnp.ones((), KIND)}

    def function(x):
        return (x["a"] - 3) ** 2 + x["b"] ** 2, x["a"] + x["b"] - 1

    optimizer = optax.masked(inside, mask, mask_compatible_extra_args=True)
    state = optimizer.init(x)
    _, grads, extra = value_and_constraints(function)(x, state)
    exact = {"constraints": function(x)[1], "jacobian": {"a": jnp.ones(1, KIND), "b": jnp.ones(1, KIND)}}
    for given in (extra, exact):
        updates, new = optimizer.update(grads, state, x, **given)
        close((updates["a"], new.inner_state.queue), (3.0, [3.0]), rounded(1e-15))
    with pytest.raises(ValueError, match="jacobian must have the structure of the gradients"):
        optax.masked(inside, mask).update(grads, state, x, **exact)


def test_accumulated_gradients(promoting):
    """Within: the point moves every second step, the queue at every one. Around: both every second step."""
    every = 2
    inside = drift_plus_penalty(optax.MultiSteps(optax.sgd(0.01), every), 2)
    step, now, points, queues = jax.jit(by_products(inside)), (X0 + 1, inside.init(X0)), [], []
    for xi in SAMPLES[:6]:
        now = step(*now, xi)
        points.append(np.asarray(now[0]))
        queues.append(np.asarray(now[1].queue))
    moved = [bool((a != b).any()) for a, b in zip([X0 + 1, *points[:-1]], points, strict=True)]
    assert moved == [False, True] * 3
    assert all((a != b).any() for a, b in itertools.pairwise(queues))
    around = optax.MultiSteps(drift_plus_penalty(optax.sgd(0.01), 2), every)
    step, now = jax.jit(by_products(around)), (X0, around.init(X0))
    for count, xi in enumerate(SAMPLES[:6], start=1):
        now = step(*now, xi)
        assert now[1].inner_opt_state.t == count // every


@pytest.mark.parametrize("algorithm", [None, ed.edpp(2.0)], ids=["default", "edpp"])
def test_half_precision_keeps_its_queue_in_float32(algorithm):
    optimizer = drift_plus_penalty(optax.sgd(0.01), 2, algorithm)

    def function(x, xi):
        z = jnp.concatenate([x["w"], x["b"][None]])
        return both(z, xi.astype(z.dtype))

    def run(kind):
        x0 = {"w": jnp.zeros(3, kind), "b": jnp.zeros((), kind)}
        return after(by_products(optimizer, value_and_constraints(function)), optimizer, samples, x0)

    samples = SAMPLES[:100].astype(np.float32)
    (x, state), (_, wide) = run(jnp.bfloat16), run(jnp.float32)
    assert x["w"].dtype == jnp.bfloat16
    assert state.queue.dtype == state.multipliers.dtype == jnp.float32
    # Points and constraints have 8 bits: after 100 steps the default is 0.07 % apart, EDPP-t 0.3 %. The parameters have
    # the same structure in both, since the random directions that gradients are measured along go by that.
    assert wide.multipliers[0] > 0.5
    np.testing.assert_allclose(state.multipliers, wide.multipliers, rtol=0.01, atol=1e-3)


def test_a_nan_is_seen_and_apply_if_finite_leaves_the_step_out(promoting):
    optimizer = optax.apply_if_finite(drift_plus_penalty(optax.adam(0.01), 2), 3)
    plain = drift_plus_penalty(optax.adam(0.01), 2)

    def broken(x, xi):
        value, rows = both(x, xi)
        return value, rows + jnp.asarray([np.nan, 0], KIND)  # its gradient alone would not show it

    state = plain.init(X0)
    _, grads, extra = value_and_constraints(broken)(X0, state, SAMPLES[0])
    assert np.isnan(grads).all()
    assert np.isnan(plain.update(grads, state, X0, **extra)[0]).all()
    state = optimizer.init(X0)
    updates, new = optimizer.update(grads, state, X0, **extra)
    assert not updates.any()
    jax.tree.map(np.testing.assert_array_equal, new.inner_state, state.inner_state)
    loss_grads, given = jax.grad(loss)(X0, SAMPLES[0]), {"jacobian": jax.jacobian(constraints)(X0, SAMPLES[0])}
    found = plain.update(loss_grads, plain.init(X0), X0, constraints=jnp.asarray([np.nan, 0], KIND), **given)
    assert np.isnan(found[0]).all()


@pytest.mark.parametrize("algorithm", [None, ed.edpp(2.0)], ids=["default", "edpp"])
def test_the_optimisers_of_flax_step_as_a_loop_does(algorithm, promoting):
    """nnx hands an optimiser bare arrays where the model has a state of variables: the same tree by its leaves."""
    nnx = pytest.importorskip("flax.nnx", reason="pip install flax")
    optimizer = drift_plus_penalty(optax.adam(0.02), 1, algorithm)
    model = nnx.Linear(4, 1, rngs=nnx.Rngs(0), param_dtype=KIND)
    graph, params = nnx.split(model)

    def function(params, xi):
        z = nnx.merge(graph, params)(xi)
        return jnp.mean((z - 1) ** 2), jnp.mean(z) - 0.5

    evaluate, wrapped = value_and_constraints(function), nnx.Optimizer(model, optimizer, wrt=nnx.Param)
    step, now = jax.jit(by_products(optimizer, evaluate)), (params, optimizer.init(params))

    @nnx.jit
    def by_flax(model, wrapped, xi):
        _, grads, extra = evaluate(nnx.state(model), wrapped.opt_state, xi)
        wrapped.update(model, grads, **extra)

    for xi in SAMPLES[:3]:
        now = step(*now, xi)
        by_flax(model, wrapped, xi)
    close(jax.tree.leaves(nnx.state(model)), jax.tree.leaves(now[0]), rounded(1e-14))
    close(wrapped.opt_state.queue[...], now[1].queue, rounded(1e-14))


def test_orbax_saves_the_state(tmp_path, promoting):
    checkpoint = pytest.importorskip("orbax.checkpoint", reason="pip install orbax-checkpoint")
    optimizer = drift_plus_penalty(optax.adam(0.01), 2)
    x, state = after(by_products(optimizer), optimizer, SAMPLES[:70])
    with checkpoint.StandardCheckpointer() as saver:
        saver.save(tmp_path / "state", (x, state))
        saver.wait_until_finished()
        again = saver.restore(tmp_path / "state", (x, state))
    jax.tree.map(np.testing.assert_array_equal, again, (x, state))
    step = jax.jit(by_products(optimizer))
    jax.tree.map(np.testing.assert_array_equal, step(*again, SAMPLES[70]), step(x, state, SAMPLES[70]))


SHARDED = """
import jax
jax.config.update("jax_num_cpu_devices", 2)
import jax.numpy as jnp, numpy as np, optax, ergodrift as ed
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from ergodrift.optax import drift_plus_penalty, value_and_constraints
mesh, explicit = (jax.make_mesh((2,), ("d",), axis_types=(kind,)) for kind in (AxisType.Auto, AxisType.Explicit))
w = jnp.asarray(np.random.default_rng(0).normal(size=(8, 12)), jnp.float32)
xi = jnp.asarray(np.random.default_rng(1).normal(size=(16, 8)), jnp.float32)
def function(w, xi):
    z = jnp.tanh(xi @ w)
    return jnp.mean((z - 1) ** 2), jnp.mean(z, axis=0)[:3] - 0.1
for algorithm in (None, ed.edpp(2.0)):
    optimizer, evaluate = drift_plus_penalty(optax.adam(0.05), 3, algorithm), value_and_constraints(function)
    @jax.jit
    def step(w, state, xi):
        _, grads, extra = evaluate(w, state, xi)
        updates, state = optimizer.update(grads, state, w, **extra)
        return optax.apply_updates(w, updates), state
    ends = []
    for over, spec in ((mesh, P()), (mesh, P(None, "d")), (explicit, P("d", None))):
        with jax.set_mesh(over):
            now = jax.device_put(w, NamedSharding(over, spec))
            now = now, jax.jit(optimizer.init)(now)
            for _ in range(20):
                now = jax.block_until_ready(step(*now, xi))  # steps in flight may wait for each other's threads
        ends.append(jax.tree.map(np.asarray, now))
        assert now[0].sharding.is_fully_replicated == (spec == P())
    for other in ends[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), ends[0], other)
    assert ends[0][1].multipliers.max() > 0
def shared(w, xi):
    return jax.lax.pmean(function(w, xi), "d")
for algorithm in (None, ed.edpp(2.0)):
    optimizer, ends = drift_plus_penalty(optax.adam(0.05), 3, algorithm), []
    for both in (function, shared):
        evaluate = value_and_constraints(both)
        def step(w, state, xi):
            _, grads, extra = evaluate(w, state, xi)
            updates, state = optimizer.update(grads, state, w, **extra)
            return optax.apply_updates(w, updates), state
        if both is shared:
            step = jax.shard_map(step, mesh=mesh, in_specs=(P(), P(), P("d")), out_specs=P())
        step, now = jax.jit(step), (w, optimizer.init(w))
        for _ in range(6):
            now = jax.block_until_ready(step(*now, xi))
        ends.append(now)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *ends)
print("same")
"""


@pytest.mark.slow
def test_sharded_parameters():
    """Two devices of a CPU: the same run, and the parameters stay where they were put. With `shard_map` it is batches
    that are shared, and the function averages what it returns."""
    full = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    done = subprocess.run([sys.executable, "-c", SHARDED], capture_output=True, text=True, env=full)
    assert done.stdout.strip() == "same", done.stderr


# Constraints in other forms, and what is refused


def test_constraints_in_a_nest_and_aux():
    optimizer = drift_plus_penalty(optax.sgd(0.1), 3)
    evaluate = value_and_constraints(
        lambda x: (jnp.sum(x**2), {"rows": (x[:1], x[1]), "all": jnp.sum(x)}, {"seen": x}), has_aux=True
    )
    x = jnp.arange(4.0, dtype=KIND)
    (value, aux), grads, extra = evaluate(x, optimizer.init(x))
    assert (value, aux["seen"][2]) == (14, 2)
    _, state = optimizer.update(grads, optimizer.init(x), x, **extra)
    np.testing.assert_array_equal(state.queue > 0, [True, False, True])  # "all" comes before "rows"; x[0] is 0


def test_an_equation_is_a_pair_of_constraints():
    """min |x - 3|^2 with x_0 = 1: the difference of its multipliers is 4."""
    optimizer = drift_plus_penalty(optax.sgd(0.05), 2)
    evaluate = value_and_constraints(lambda x, _: (jnp.sum((x - 3) ** 2), equality(x[:1] - 1)))
    x, state = after(by_products(optimizer, evaluate), optimizer, np.zeros((3000, 1), KIND))
    np.testing.assert_allclose(x, [1, 3, 3, 3], atol=1e-2)
    np.testing.assert_allclose(state.multipliers[0] - state.multipliers[1], 4, atol=2e-2)
    np.testing.assert_array_equal(equality(jnp.asarray([0.5], KIND), 0.25), np.asarray([0.25, -0.75], KIND))


@pytest.mark.parametrize("algorithm", [None, ed.dpp()], ids=["default", "dpp"])
def test_a_constraint_that_no_parameter_moves_moves_none(algorithm):
    """Its gradient is 0: the run is that without it. The default says so by a multiplier that stays 0."""
    inner = optax.sgd(0.01)
    optimizer, other = drift_plus_penalty(inner, 2, algorithm), drift_plus_penalty(inner, 1, algorithm)
    evaluate = value_and_constraints(lambda x, xi: (loss(x, xi), jnp.stack([jnp.sum(x) - 1, 1 + xi[0]])))
    alone = value_and_constraints(lambda x, xi: (loss(x, xi), jnp.sum(x) - 1))
    x, state = after(by_products(optimizer, evaluate), optimizer, SAMPLES[:100])
    y, _ = after(by_products(other, alone), other, SAMPLES[:100])
    close(x, y, rounded(1e-13))
    if algorithm is None:
        assert state.multipliers[1] == 0
        assert state.sizes[2] == 0


def test_what_is_refused():
    optimizer = drift_plus_penalty(optax.sgd(0.1), 2)
    state, grads = optimizer.init(X0), X0
    rows, jac = jnp.zeros(2, KIND), jnp.zeros((2, 4), KIND)
    with pytest.raises(ValueError, match="num_constraints must be between 1"):
        drift_plus_penalty(optax.sgd(0.1), 0)
    with pytest.raises(TypeError, match=r"inner must be an optax optimiser such as optax\.adam"):
        drift_plus_penalty(0.1, 2)
    with pytest.raises(TypeError, match=r"algorithm must be one such as ed\.edpp"):
        drift_plus_penalty(optax.sgd(0.1), 2, "edpp")
    for algorithm in (ed.mdpp(), ed.pd2(1.0), ed.rdpp("visits", 3), ed.wdpp()):
        with pytest.raises(ValueError, match=f"{algorithm.name} has no queue that another optimiser could step with"):
            drift_plus_penalty(sgd(), 2, algorithm)
    with pytest.raises(ValueError, match="WholeSpace has no finite diameter"):
        drift_plus_penalty(sgd(), 2, ed.adpp()).init(X0)
    for given in ({}, {"constraints": rows}, {"jacobian": jac}):
        with pytest.raises(TypeError, match="needs the constraints of every step"):
            optimizer.update(grads, state, X0, **given)
    with pytest.raises(TypeError, match="needs the parameters"):
        optimizer.update(grads, state, constraints=rows, jacobian=jac)
    with pytest.raises(ValueError, match="constraints have 3 entries, but num_constraints=2"):
        optimizer.update(grads, state, X0, constraints=jnp.zeros(3, KIND), jacobian=jac)
    with pytest.raises(ValueError, match=r"jacobian must have the structure .* \(2, 4\), got \(4, 2\)"):
        optimizer.update(grads, state, X0, constraints=rows, jacobian=jac.T)
    adaptive, learned, bare = (
        drift_plus_penalty(sgd(), 2, each) for each in (ed.adpp(diameter=4.0), ed.edpp("auto"), None)
    )
    with pytest.raises(TypeError, match=r"AdaGrad weighs a step by the norms .* take ed\.dpp"):
        after(by_products(adaptive), adaptive, SAMPLES[:1])
    with pytest.raises(TypeError, match=r"Learned looks at the loss: pass update\(\.\.\., value=loss\)"):
        learned.update(grads, learned.init(X0), X0, constraints=rows, jacobian=jac)
    with pytest.raises(TypeError, match=r"sgd\(\) takes the steps of a named algorithm"):
        bare.update(grads, bare.init(X0), X0, constraints=rows, jacobian=jac)
    with pytest.raises(ValueError, match="returns 1 constraints, but num_constraints=2"):
        value_and_constraints(line)(jnp.zeros((), KIND), state)
    with pytest.raises(TypeError, match=r"must return \(loss, constraints\)"):
        value_and_constraints(loss)(X0, state, SAMPLES[0])
    with pytest.raises(ValueError, match="the loss must be one number"):
        value_and_constraints(lambda x: (x, x))(X0, state)
    with pytest.raises(ValueError, match="state must hold one state of drift_plus_penalty, found 0"):
        EVALUATE(X0, optax.adam(0.1).init(X0), SAMPLES[0])
    with pytest.raises(TypeError, match="params must hold floating-point arrays"):
        optimizer.init({"w": jnp.zeros(3, jnp.int32)})
    for search in (optax.lbfgs(), optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(5))):
        with pytest.raises(ValueError, match=r"looks along a line .* optax\.lbfgs\(learning_rate, linesearch=None\)"):
            drift_plus_penalty(search, 2).init(X0)
    drift_plus_penalty(optax.lbfgs(0.1, linesearch=None), 2).init(X0)


@pytest.mark.parametrize("algorithm", [None, ed.dpp()], ids=["default", "dpp"])
def test_a_backward_pass_of_one_s_own_must_be_linear(algorithm):
    """Straight-through gradients are; those that clip, and kernels, are refused by name: the Jacobian will do."""

    def run(rule):
        through = jax.custom_vjp(jnp.sign)
        through.defvjp(lambda x: (jnp.sign(x), x), rule)
        optimizer = drift_plus_penalty(sgd() if algorithm else optax.sgd(0.1), 2, algorithm)
        evaluate = value_and_constraints(lambda x, xi: (loss(x, xi), constraints(x, xi) + jnp.sum(through(x))))
        return after(by_products(optimizer, evaluate), optimizer, SAMPLES[:3])[1]

    assert np.isfinite(run(lambda x, grad: (grad * jnp.exp(-(x**2)),)).queue).all()

    def called(x, grad):
        return (jax.pure_callback(lambda grad: np.asarray(grad), jax.ShapeDtypeStruct(x.shape, x.dtype), grad),)

    for rule in (lambda x, grad: (jnp.clip(grad, -1, 1),), called):
        with pytest.raises(NotImplementedError, match=r"has no transpose.* Pass constraints= and jacobian="):
            run(rule)
