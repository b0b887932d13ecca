"""Degrees of functions in x, told from what JAX traces: never too small, whatever the spelling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ergodrift._core.degree import MORE, degrees
from ergodrift._core.jaxprs import opened, restricted, shared, work

ROWS = jnp.ones((5, 3))


@jax.custom_vjp
def scaled(m):
    return 2 * m


scaled.defvjp(lambda m: (2 * m, None), lambda _, tangent: (3 * tangent,))  # a derivative that is not the value's


@jax.custom_jvp
def doubled(m):
    return 2 * m


doubled.defjvps(lambda tangent, value, m: 2 * tangent)


def turns(x, xi):
    return jax.lax.fori_loop(0, 5, lambda i, total: total + xi[1][i] * (xi[0][i] @ x), jnp.zeros((), x.dtype))


def growing(x, xi):
    return jax.lax.fori_loop(0, 5, lambda i, total: total * x[0] + 1, jnp.ones((), x.dtype))


AFFINE = {
    "mean": lambda x, xi: jnp.mean(xi[1] * (xi[0] @ x)) - 0.5,
    "normal first": lambda x, xi: jnp.mean(xi[1][:, None] * xi[0], axis=0) @ x,
    "einsum": lambda x, xi: jnp.einsum("n,nd,d->", xi[1], xi[0], x),
    "vmap": lambda x, xi: jnp.mean(jax.vmap(lambda a, s: s * (a @ x))(xi[0], xi[1])),
    "python loop": lambda x, xi: sum(xi[1][i] * (xi[0][i] @ x) for i in range(5)),
    "compiled loop": turns,
    "lax.map": lambda x, xi: jnp.sum(jax.lax.map(lambda row: row @ x, xi[0])),
    "standardised": lambda x, xi: jnp.mean(((xi[0] - xi[0].mean(0)[None]) / (1 + xi[0].std(0)[None])) @ x),
    "where on xi": lambda x, xi: jnp.sum(jnp.where(xi[1] > 0, xi[0] @ x, 0.0)),
    "cond on xi": lambda x, xi: jax.lax.cond(xi[1][0] > 0, lambda: xi[0][0] @ x, lambda: -x[0]),
    "integers": lambda x, xi: jnp.sum(xi[2].astype(x.dtype) * (xi[0] @ x)),
    "gather": lambda x, xi: jnp.sum(x[xi[2] % 3]),
    "checkpoint": lambda x, xi: jax.checkpoint(lambda y: jnp.sum(xi[0] @ y))(x),
    "custom rule, of xi": lambda x, xi: scaled(xi[1][0]) * x[0],
    "jit": lambda x, xi: jax.jit(lambda y: jnp.sum(xi[0] @ y))(x),
    "put": lambda x, xi: jnp.sum(jnp.zeros_like(x).at[1:].set(x[:-1])),
    "cumsum, diff, flip": lambda x, xi: jnp.sum(jnp.diff(jnp.cumsum(x)[::-1])),
    "nothing": lambda x, xi: jnp.mean(jnp.log(1 + xi[1] ** 2)),
}
QUADRATIC = {
    "least squares": lambda x, xi: jnp.mean((xi[0] @ x - xi[1]) ** 2),
    "nearly affine": lambda x, xi: jnp.mean(xi[0] @ x) + 1e-12 * x @ x,
    "variance": lambda x, xi: jnp.var(xi[0] @ x),
    "form": lambda x, xi: x @ (xi[0].T @ xi[0]) @ x,
    "product": lambda x, xi: x[0] * x[1],
}
NEITHER = {
    "where on x": lambda x, xi: jnp.where(x[0] > 0, x[0], 2 * x[0]),
    "cond on x": lambda x, xi: jax.lax.cond(x[0] > 0, lambda: x[0], lambda: 2 * x[0]),
    "for some samples": lambda x, xi: jnp.sum(jnp.where(xi[1] > 0, xi[0] @ x, jnp.abs(xi[0] @ x))),
    "floor, whose slope is 0": lambda x, xi: jnp.floor(x[0]) + x[1],
    "stopped gradient": lambda x, xi: jax.lax.stop_gradient(x[0]) + x[1],
    "rounded": lambda x, xi: x[0].astype(jnp.bfloat16).astype(x.dtype),
    "whole numbers": lambda x, xi: x[0].astype(jnp.int32).astype(x.dtype),
    "custom_vjp": lambda x, xi: scaled(x[0]),
    "custom_jvp": lambda x, xi: doubled(x[0]),
    "cubic": lambda x, xi: x[0] * x[1] * x[2],
    "quotient": lambda x, xi: xi[1][0] / (1 + x[0]),
    "place depends on x": lambda x, xi: xi[1][jnp.argmax(x)],
    "while": lambda x, xi: jax.lax.while_loop(lambda y: y < 1, lambda y: y + 1, x[0]),
    "growing": growing,
    "abs": lambda x, xi: jnp.abs(x).sum(),
    "sorted": lambda x, xi: jnp.sort(x)[0],
}
SAMPLE = ROWS, jnp.linspace(-2.0, 2.0, 5), jnp.arange(5)


@pytest.mark.parametrize(("functions", "wanted"), [(AFFINE, 1), (QUADRATIC, 2), (NEITHER, MORE)])
def test_degrees(functions, wanted):
    found = {
        name: int(degrees(opened(function, jnp.ones(3), SAMPLE), [1, 0, 0, 0])[0])
        for name, function in functions.items()
    }
    assert found == dict.fromkeys(functions, wanted) | ({"nothing": 0} if wanted == 1 else {})


def test_entries_have_degrees_of_their_own_and_only_what_is_wanted_of_them_is_computed():
    def parts(x, xi):
        m = xi[0] @ x
        both = jnp.stack([jnp.mean(m), jnp.mean(jnp.exp(m)), jnp.mean(m**2)])
        return jnp.concatenate([both - jnp.array([1.0, 2.0, 3.0]), -2 * x, jnp.abs(x[:1])])[:6]

    closed = opened(parts, jnp.ones(3), SAMPLE)
    (found,) = degrees(closed, [1, 0, 0, 0])
    np.testing.assert_array_equal(found, [1, MORE, 2, 1, 1, 1])
    values = [jnp.array([0.1, -0.2, 0.3]), *SAMPLE]

    def stacked(x, xi):
        m = xi[0] @ x
        return jnp.stack([jnp.mean(m), jnp.mean(jnp.exp(m)), jnp.mean(m**2)]) - 1

    closed = opened(stacked, jnp.ones(3), SAMPLE)
    some = restricted(closed, [np.array([True, False, False])])
    assert float(some(*values)[0][0]) == float(stacked(values[0], SAMPLE)[0])
    assert work(closed.jaxpr, [np.array([True, False, False])]) < work(closed.jaxpr)
    assert "exp" in str(closed)
    assert "exp" not in str(jax.make_jaxpr(some)(*values))


def test_work_counts_terms_of_products_and_turns_of_loops():
    assert work(jax.make_jaxpr(lambda x: ROWS @ x)(jnp.ones(3)).jaxpr) == 15
    looped = jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, row: (c + row @ x, None), 0.0, ROWS)[0])(jnp.ones(3))
    assert 5 * (3 + 1) <= work(looped.jaxpr) <= 5 * (3 + 3)


def test_what_is_written_twice_is_computed_once():
    def twice(x):
        def mean(factor):
            return jnp.mean(jax.nn.sigmoid(ROWS @ x) * factor)

        return jnp.stack([mean(2.0), -mean(2.0), mean(0.0), mean(-0.0)])

    x = jnp.array([0.1, -0.2, 0.3])
    plain, once = (jax.make_jaxpr(function)(x) for function in (twice, shared(twice)))
    assert str(plain).count("dot_general[") == 4
    assert str(once).count("dot_general[") == 1
    np.testing.assert_array_equal(np.signbit(twice(x)), np.signbit(shared(twice)(x)))
    np.testing.assert_array_equal(jax.jacobian(shared(twice))(x), jax.jacobian(twice)(x))


def test_effects_stay_as_often_as_they_are_written():
    seen = []

    def told(x):
        for _ in range(2):
            jax.debug.callback(lambda value: seen.append(float(value)), x)
        return x + 1

    jax.block_until_ready(jax.jit(shared(told))(1.0))
    jax.effects_barrier()
    assert seen == [1.0, 1.0]
