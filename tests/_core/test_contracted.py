"""Sums of products as products of matrices: the same numbers and derivatives, and only where they are meant."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from digits import KIND, rounded
from ergodrift._core.contracted import Contracted
from ergodrift._core.jaxprs import shared

RNG = np.random.default_rng(3)
A, B, Y, X = (jnp.asarray(RNG.normal(size=size), KIND) for size in [(200, 3), (5, 200, 3), 200, 3])


@pytest.fixture(autouse=True)
def as_users_write():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def twice(function):
    """Of vectors that are long enough."""
    return lambda a, y, x: function(jnp.concatenate([a, a]), jnp.concatenate([y, y]), x)


SUMS = {  # and whether products are made of them
    "rows": (lambda a, y, x: jnp.sum(a * x, axis=1), True),
    "rows, y outside": (lambda a, y, x: jnp.sum(y[:, None] * a * x, axis=1), True),
    "columns": (lambda a, y, x: jnp.mean(y[:, None] * a, axis=0), True),
    "columns, x outside": (lambda a, y, x: jnp.mean(x * y[:, None] * a, axis=0), True),
    "all": (lambda a, y, x: jnp.sum(2.0 * (y[:, None] * a) * x), True),
    "squares": (lambda a, y, x: jnp.sum(a * a * (x * x), axis=1), True),
    "masked": (lambda a, y, x: jnp.sum(a * (y > 0)[:, None], axis=0), True),
    "transposed": (lambda a, y, x: jnp.sum(a.T * y, axis=1), True),
    "by rows": (lambda a, y, x: jnp.mean(jax.vmap(lambda row, z: z * jnp.sum(row * x))(a, y)), True),
    "twice": (lambda a, y, x: jnp.sum(a * x, axis=1) + jnp.sum(a * x, axis=1) ** 2, True),
    "a product kept": (lambda a, y, x: jnp.sum(a * x, axis=1) * (a * x)[:, 0], True),
    "two sums": (lambda a, y, x: jnp.sum(a[:, :, None] * a[:, None] * x, axis=(1, 2)), True),
    "columns one by one": (twice(lambda a, y, x: a[:, 0] * x[0] + a[:, 1] * x[1] - a[:, 2] * x[2]), True),
    "columns in another order": (twice(lambda a, y, x: y + a[:, 2] * x[0] - (y - x[2] * a[:, 1]) + x[0]), True),
    "columns and others": (twice(lambda a, y, x: y * x[0] + a[:, 2] * x[1] + jnp.sin(y) + a[:, 1] * x[2]), True),
    "columns of two": (twice(lambda a, y, x: a[:, 0] * x[0] + (a**2)[:, 0] * x[1] - a[:, 1] * x[2]), True),
    "columns apart": (twice(lambda a, y, x: a[:, 0] * x[0] + a[:, 2] * x[1] + y * x[2]), False),
    "a column twice": (twice(lambda a, y, x: a[:, 0] * x[0] + a[:, 0] * x[1]), False),
    "under jax.checkpoint": (jax.checkpoint(lambda a, y, x: jnp.sum(a * x, axis=1)), True),
    "one column": (twice(lambda a, y, x: a[:, 0] * x[0] + y), False),
    "constant factors": (twice(lambda a, y, x: 2.0 * a[:, 0] + 3.0 * a[:, 1] + y * x[0]), False),
    "no axis in common": (lambda a, y, x: jnp.sum(y[:, None] * x, axis=0), False),
    "two alike": (lambda a, y, x: jnp.sum(a * a, axis=1), False),
    "a sum within": (lambda a, y, x: jnp.sum((a + x) * a, axis=1), False),
    "elementwise": (lambda a, y, x: y * jnp.max(a * x, axis=1), False),
    "small": (lambda a, y, x: jnp.sum(a[:9] * x, axis=1), False),
    "half precision": (lambda a, y, x: jnp.sum(a.astype(jnp.float16) * x.astype(jnp.float16), axis=1) * 0 + y, False),
    "whole numbers": (lambda a, y, x: jnp.sum(jnp.round(a).astype(int) * jnp.arange(3), axis=1) + y, False),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_products_are_products(name):
    plain, found = SUMS[name]
    ours = shared(plain, Contracted)
    assert ("dot_general" in str(jax.make_jaxpr(ours)(A, Y, X))) == found

    def both(function):
        whole = lambda *told: jnp.sum(jnp.sin(function(*told)))  # noqa: E731
        return jax.jit(lambda *told: (function(*told), jax.grad(whole, (0, 1, 2))(*told), jax.jvp(whole, told, told)))

    for one, other in zip(*(jax.tree.leaves(both(f)(A, Y, X)) for f in (ours, plain)), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(one, other, rtol=0, atol=rounded(2e-12))


def test_batches_are_left_alone():
    def function(b, x):
        return jnp.sum(b * x[:, None], axis=2)  # a product for each of five

    assert "dot_general" not in str(jax.make_jaxpr(shared(function, Contracted))(B, B[:, 0]))


@pytest.mark.parametrize("vector", [X, X[:, None]], ids=["vector", "column"])
def test_a_product_with_a_vector_is_subtracted_and_the_same_to_the_last_bit(vector):
    def function(a, x):
        return a @ x

    ours = shared(function, Contracted)
    assert "neg" in str(jax.make_jaxpr(ours)(A, vector))
    for way in (lambda f: f, lambda f: jax.grad(lambda a, x: jnp.sum(jnp.sin(f(a, x))), 1)):
        np.testing.assert_array_equal(way(ours)(A, vector), way(function)(A, vector))
    for other in (lambda a, x: a[:9] @ x, lambda a, x: a @ jnp.outer(x, x)):
        assert "neg" not in str(jax.make_jaxpr(shared(other, Contracted))(A, X))


def copies(loss):
    """How many passes the compiled gradient spends on copying the matrix."""
    rows, labels = RNG.normal(size=(4, 2000, 3)).astype(KIND), jnp.ones((4, 2000), KIND)  # zeros would be folded
    problem = ed.Problem(loss, lambda x, xi: x[:1], ed.Ball(1.0), tabulate=False)
    stacked = jnp.swapaxes(jnp.asarray(rows), 1, 2)  # as a run keeps them

    def round_(x, state):
        heard = problem.feedback(x, (stacked[state].T, labels[state]))
        return x - heard.loss_grad, heard.loss

    loop = jax.jit(lambda x, states: jax.lax.scan(round_, x, states)).lower(np.zeros(3, KIND), np.arange(4)).compile()
    return sum("[2000,3]{1,0} fusion" in line for line in (loop.as_text() or "").splitlines())


LOSSES = {
    "an intercept": lambda x, xi: jnp.mean(jax.nn.softplus(-xi[1] * (xi[0] @ x + x[0]))),
    "a penalty": lambda x, xi: jnp.mean(jax.nn.softplus(-xi[1] * (xi[0] @ x))) + 0.1 * x @ x,
    "sums": lambda x, xi: jnp.mean(jax.nn.softplus(-xi[1] * jnp.sum(xi[0] * x, axis=1))),
    "neither": lambda x, xi: jnp.mean(jax.nn.softplus(-xi[1] * (xi[0] @ x))),
}


@pytest.mark.parametrize("name", LOSSES)
def test_no_round_copies_the_matrix(name, monkeypatch):
    assert copies(LOSSES[name]) == 0
    if name.startswith("a"):  # so that it would be seen
        monkeypatch.setattr("ergodrift._core.contracted.LEAST", 10**9)
        assert copies(lambda x, xi: LOSSES[name](x, xi)) > 0


@pytest.mark.parametrize("name", LOSSES)
def test_feedback_is_that_of_the_functions_as_they_are(name):
    """Also of constraints, of which the slopes are taken one by one."""
    xi = A, jnp.sign(Y)

    def both_ways(x, xi):
        score = jnp.mean(xi[1][:, None] * xi[0], axis=0) @ x
        return jnp.stack([score - 0.1, -score - 0.1, jnp.mean(jnp.sum(xi[0] * x, axis=1) ** 4)])

    ours, plain = (
        ed.Problem(LOSSES[name], both_ways, ed.Ball(1.0), fast_logarithms=fast).feedback(X, xi)
        for fast in (True, False)
    )
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=rounded(1e-12))
