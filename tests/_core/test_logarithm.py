"""Logarithms in users' functions: ours equal JAX's to rounding, and all else of a function is left alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ergodrift as ed
from digits import rounded
from ergodrift._core import logarithm
from ergodrift._core.logarithm import rewritten

RNG = np.random.default_rng(5)
POSITIVE = np.concatenate([np.exp(RNG.normal(scale=scale, size=20_000)) for scale in (1e-3, 1, 20)])
SPECIAL = np.array([0.0, -0.0, -1e-3, -0.5, -1.0, -1.5, -2.0, -3.0, np.inf, -np.inf, np.nan])
KINDS = [np.float32, pytest.param(np.float64, marks=pytest.mark.x64("it asks for float64 itself"))]


def units(found, exact, kind):
    """The largest error, in units of the last place of the exact value."""
    return np.max(np.abs(np.asarray(found, np.longdouble) - exact) / np.spacing(np.abs(exact).astype(kind)))


@pytest.mark.parametrize("kind", KINDS)
def test_log_and_log1p_are_right_to_the_last_places(kind):
    """Compiled, as they always are: a compiler may undo what makes up for rounding."""
    x = POSITIVE.astype(kind)
    tiny = np.geomspace(1e-30, 1e-3, 5_000).astype(kind)
    near = np.concatenate([x, -x[x < 1], tiny, -tiny, RNG.uniform(-0.999, 1, 20_000).astype(kind)])
    with np.errstate(all="ignore"):
        assert units(jax.jit(logarithm.log)(x), np.log(x.astype(np.longdouble)), kind) <= 2
        assert units(jax.jit(logarithm.log1p)(near), np.log1p(near.astype(np.longdouble)), kind) <= 3.1
        z = np.linspace(-80, 80, 3_001).astype(kind)
        exact = np.logaddexp(z.astype(np.longdouble), 0)
        # The exponential's own error comes on top: XLA's may be off by some units in float32.
        np.testing.assert_allclose(
            jax.jit(rewritten(jax.nn.softplus))(z), exact.astype(float), rtol=8 * np.finfo(kind).eps
        )


@pytest.mark.parametrize("kind", KINDS)
def test_where_there_is_no_logarithm_or_no_finite_one(kind):
    x = jnp.asarray(np.append(SPECIAL, -np.finfo(kind).tiny), kind)
    a, b = jnp.meshgrid(x[:-1], jnp.append(x[:-1], 0.5))
    eps = np.finfo(kind).eps
    same = functools.partial(np.testing.assert_allclose, rtol=100 * eps, atol=eps)  # finite ones are tested above
    same(jax.jit(logarithm.log)(x), jnp.log(x))
    same(jax.jit(logarithm.log1p)(x[:-1]), jnp.log1p(x[:-1]))
    same(jax.jit(logarithm.logaddexp)(a, b), jnp.logaddexp(a, b))


@pytest.mark.x64("the derivatives of JAX have lost most digits of float32 far from 0")
@settings(max_examples=200, deadline=None)
@given(st.floats(-800, 800), st.floats(-800, 800))
def test_logaddexp_and_its_derivatives(a, b):
    theirs, of_theirs = jax.value_and_grad(jnp.logaddexp, (0, 1))(a, b)
    ours, of_ours = jax.value_and_grad(logarithm.logaddexp, (0, 1))(a, b)
    np.testing.assert_allclose(ours, theirs, rtol=1e-15, atol=1e-15)
    # JAX takes its weights from e^(a - value): the digits that a and the value share are lost to it.
    np.testing.assert_allclose(of_ours, of_theirs, rtol=1e-15 * (10 + abs(a) + abs(b)), atol=1e-300)
    assert sum(of_ours) == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("z", [-3.0, 0.0, 2.0])
def test_higher_derivatives_are_right_at_the_kink_of_the_absolute_value_too(z):
    ours, p = rewritten(jax.nn.softplus), jax.nn.sigmoid(z)
    for exact in [p, p * (1 - p), p * (1 - p) * (1 - 2 * p)]:
        ours = jax.grad(ours)
        assert ours(z) == pytest.approx(float(exact), abs=rounded(1e-14))


SPELLINGS = {
    "softplus": lambda z: jax.nn.softplus(-z),
    "log1p of exp": lambda z: jnp.log1p(jnp.exp(-z)),
    "log of 1 + exp": lambda z: jnp.log(1 + jnp.exp(-z)),
    "log sigmoid": lambda z: -jax.nn.log_sigmoid(z),
    "log of sigmoid": lambda z: -jnp.log(jax.nn.sigmoid(z)),
    "logaddexp": lambda z: jnp.logaddexp(0.0, -z),
    "logsumexp": lambda z: jax.nn.logsumexp(jnp.stack([jnp.zeros_like(z), -z]), axis=0),
    "row by row": jax.vmap(lambda z: jax.nn.softplus(-z)),
    "jitted": jax.jit(lambda z: jax.jit(jax.nn.softplus)(-z)),
    "entropy": lambda z: -jax.scipy.special.entr(jax.nn.sigmoid(z)),
    "no logarithm": lambda z: jnp.maximum(1 - z, 0),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_feedback_equals_plain_automatic_differentiation(spelling):
    kind = jnp.zeros(()).dtype

    def loss(x, xi):
        return jnp.mean(SPELLINGS[spelling](xi["y"] * (xi["X"] @ x)))

    xi = {"X": RNG.normal(size=(50, 3)).astype(kind), "y": RNG.choice([-1, 1], size=50).astype(kind)}
    x = jnp.asarray(RNG.normal(size=3), kind)
    problem = ed.Problem(loss, lambda x, xi: loss(x, xi)[None] - 0.5, ed.Ball(5.0))
    found, (value, grad) = problem.feedback(x, xi), jax.value_and_grad(loss)(x, xi)
    near = functools.partial(np.testing.assert_allclose, rtol=20 * np.finfo(kind).eps, atol=5 * np.finfo(kind).eps)
    near(found.loss, value)
    near(found.loss_grad, grad)
    near(found.constraints[0], value - 0.5)
    near(found.constraint_jac[0], grad)
    assert found.loss.dtype == kind


def primitives(function, *arguments):
    return str(jax.make_jaxpr(function)(*arguments))


def test_a_users_own_derivative_is_kept():
    """Also of a function that has a famous name, and beside logarithms that are replaced."""

    @jax.custom_jvp
    def logaddexp(a, b):  # to the letter what JAX's own does
        top, gap = jnp.maximum(a, b), a - b
        unknown = gap != gap
        both = a + b
        return jnp.where(unknown, both, top + jnp.log1p(jnp.exp(-jnp.abs(gap))))

    logaddexp.defjvp(lambda primals, tangents: (logaddexp(*primals), 7.0 * tangents[0]))

    @jax.custom_vjp
    def odd(x):
        return jnp.log(x)

    odd.defvjp(lambda x: (odd(x), x), lambda x, out: (11.0 * out,))
    grad = jax.grad(rewritten(lambda x: logaddexp(x, 0.0) + odd(x) + jnp.log1p(x)))
    assert grad(1.0) == 7 + 11 + 0.5


def test_control_flow_and_integers_and_extra_outputs_go_through():
    def function(x, steps):
        total, each = jax.lax.scan(lambda carry, y: (carry + y, jnp.log1p(y)), 0.0, x)
        half = jax.lax.cond(steps > 2, jnp.sin, jnp.cos, jnp.log(total))
        bound = jax.lax.fori_loop(0, steps, lambda _, value: value * 0.5, half)
        jax.debug.callback(lambda value: None, bound)
        order = jnp.argsort(x)
        return {"a": jax.checkpoint(lambda y: jnp.log(y) ** 2)(total), "b": (bound, each[order]), "c": steps + 1}

    x = jnp.asarray(RNG.uniform(1, 2, 4))
    for steps in (1, 5):
        ours, theirs = rewritten(function)(x, steps), function(x, steps)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=rounded(1e-14)), ours, theirs)
    grads = [jax.jit(jax.grad(lambda x, f=f: f(x, 5)["a"]))(x) for f in (rewritten(function), function)]
    np.testing.assert_allclose(*grads, rtol=rounded(1e-14))


def test_a_function_without_logarithms_is_not_touched_and_small_types_are_left():
    def plain(x):
        return jnp.sum(jnp.exp(x) ** 2)

    def half(x):
        return jnp.sum(jnp.log(x))

    assert primitives(rewritten(plain), jnp.ones(3)) == primitives(plain, jnp.ones(3))
    assert primitives(rewritten(half), jnp.ones(3, jnp.float16)) == primitives(half, jnp.ones(3, jnp.float16))
    assert " log " not in primitives(rewritten(half), jnp.ones(3))
    assert " log1p " not in primitives(jax.grad(rewritten(jax.nn.softplus)), 1.0)


def test_a_function_is_traced_once():
    """Whether or not it has logarithms: a function may print, or count."""
    for body in (jnp.sin, jnp.log):
        traces = []

        def function(x, body=body, traces=traces):
            traces.append(1)
            return jnp.sum(body(x))

        rewritten(function)(jnp.ones(3))
        assert len(traces) == 1


def test_who_looks_for_nans_is_led_to_their_own_lines():
    def loss(x, xi):
        return jnp.sum(jnp.log(x) + jnp.sqrt(x - 1))

    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="sqrt"):
        ed.Problem(loss, lambda x, xi: x[:1], ed.Ball(5.0)).feedback(jnp.asarray([0.5, 0.7]), jnp.ones(()))


def test_the_gradient_of_softplus_takes_one_exponential():
    """What XLA can share it does: the loop over rows has one exponential, where JAX's own derivative has two."""
    z = jnp.ones(2000)

    def count(loss):
        compiled = jax.jit(jax.value_and_grad(lambda z: jnp.mean(loss(z)))).lower(z).compile()
        return str(compiled.as_text()).count(" exponential(")

    assert count(rewritten(jax.nn.softplus)) == 1 < count(jax.nn.softplus)


def renamed_logaddexp():
    """JAX's own function and rule under other names: told by what they do."""

    @jax.custom_jvp
    def both(a, b):
        top, gap = jax.lax.max(a, b), jax.lax.sub(a, b)
        unknown, total = jax.lax.ne(gap, gap), jax.lax.add(a, b)
        decay = jax.lax.exp(jax.lax.neg(jax.lax.abs(gap)))
        return jax.lax.select(unknown, total, jax.lax.add(top, jax.lax.log1p(decay)))

    return both


def steps(function, *arguments):
    """The primitives of a function, in functions inside as well."""

    def of(jaxpr):
        for equation in jaxpr.eqns:
            yield equation.primitive.name
            for value in equation.params.values():
                if hasattr(value, "jaxpr"):
                    yield from of(value.jaxpr)

    return set(of(jax.make_jaxpr(function)(*arguments).jaxpr))


@pytest.mark.parametrize("kind", KINDS)
def test_jaxs_logaddexp_is_told_by_what_it_computes(kind):
    x = jnp.ones(3, kind)
    for function in (
        lambda x: jnp.logaddexp(x, 0.0),
        lambda x: jnp.logaddexp(0.0, x),
        lambda x: jnp.logaddexp(x, x[0]),
        lambda x: jnp.logaddexp(x[None, :], x[:, None]),
        jax.vmap(lambda x: jnp.logaddexp(x, 1.0)),
        jax.nn.softplus,
        jax.nn.log_sigmoid,
    ):
        assert "log1p" in steps(function, x)
        assert "log1p" not in steps(rewritten(function), x)
    both = renamed_logaddexp()
    both.defjvp(lambda primals, tangents: (both(*primals), tangents[0] * 2))  # the same values, another derivative
    assert jax.grad(lambda x: rewritten(lambda x: both(x, x).sum())(x))(x).tolist() == [2, 2, 2]


def test_an_accuracy_that_is_asked_for_is_kept():
    import inspect

    if "accuracy" not in inspect.signature(jax.lax.log).parameters:
        pytest.skip("this JAX has no accuracies")
    wanted = rewritten(lambda x: jax.lax.log(x, accuracy=jax.lax.AccuracyMode.HIGHEST))
    assert "log" in steps(wanted, jnp.ones(3))


@pytest.mark.slow
def test_fast_logarithms_can_be_turned_off_after_they_were_used():
    """For a problem with the very same functions, which JAX has compiled already."""

    def loss(x, xi):
        return jnp.sum(jax.nn.softplus(x * xi) + jnp.log(2 + x))

    def constraints(x, xi):
        return jnp.log1p(x) - 0.5

    fast = ed.Problem(loss, constraints, ed.Box(0.0, 1.0))
    plain = ed.Problem(loss, constraints, ed.Box(0.0, 1.0), fast_logarithms=False)
    x, xi = jnp.full(2, 0.4), jnp.ones(2)
    for _ in range(2):
        for problem, kept in ((fast, False), (plain, True)):
            used = steps(problem.feedback, x, xi)
            assert ("log" in used, "log1p" in used, "bitcast_convert_type" in used) == (kept, kept, not kept)
            compiled = jax.jit(problem.feedback).lower(x, xi).as_text()
            assert ("bitcast_convert" in compiled) == (not kept)
    found = [problem.feedback(x, xi) for problem in (fast, plain)]
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=rounded(1e-14)), *found)
    source = ed.IIDSource(np.ones((1, 2)))
    runs = [ed.run(ed.dpp(), problem, source, x0=x, num_samples=50).solution for problem in (fast, plain)]
    np.testing.assert_allclose(*runs, rtol=rounded(1e-12))
