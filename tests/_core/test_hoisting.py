"""What is kept of a function because it does not depend on x: what pays, and nothing else."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from digits import KIND, rounded
from ergodrift._core.hoisting import computed, variables, worth_keeping
from ergodrift._core.jaxprs import opened, restricted

RNG = np.random.default_rng(8)
A, Y = jnp.asarray(RNG.normal(size=(200, 3)), KIND), jnp.asarray(RNG.normal(size=200), KIND)
X, N = jnp.asarray([0.4, -0.3, 0.2], KIND), jnp.asarray(RNG.integers(0, 3, 200))
FIXED = RNG.normal(size=(3, 5))


@pytest.fixture(autouse=True)
def as_users_write():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def near(x, y):
    return jnp.exp(-((y[:, None] - y[None]) ** 2)) @ (y * x[0])


CASES: dict[str, tuple[Callable[..., jax.Array], list[tuple[int, ...]]]] = {  # and the shapes of what is kept
    "centred rows": (lambda x, a, y, n: (a - a.mean(0)) @ x, [(200, 3)]),
    "rows and their squares": (lambda x, a, y, n: jnp.concatenate([a, a**2], 1) @ jnp.append(x, x), [(200, 6)]),
    "rows weighted in a product": (lambda x, a, y, n: (y[:, None] * a) @ x, [(200, 3)]),
    "features that chance made": (lambda x, a, y, n: jnp.cos(a @ FIXED) @ jnp.append(x, x[:2]), [(200, 5)]),
    "groups": (lambda x, a, y, n: jax.nn.one_hot(n, 3) @ x, [(200, 3)]),
    "computed weights": (lambda x, a, y, n: jnp.where(y > 0, 2.0, 1.0) * jnp.sin(a @ x), [(200,)]),
    "softmax": (lambda x, a, y, n: jnp.sum(jax.nn.softmax(y) * jnp.sin(a @ x)), [(200,)]),
    "a mean": (lambda x, a, y, n: jnp.mean(y**2) * x[0], [()]),
    "a mean put out": (lambda x, a, y, n: jnp.mean(y**2), [()]),
    "read once it is seen what x is": (lambda x, a, y, n: jnp.where(x[0] > 0, jax.nn.softmax(y), y), [(200,)]),
    "in a branch": (
        lambda x, a, y, n: jax.lax.cond(x[0] > 0, lambda w: w * x[0], lambda w: w, jax.nn.softmax(y)),
        [(200,)],
    ),
    "common to two": (lambda x, a, y, n: ((a - a.mean(0)) @ x) * ((a - a.mean(0)) @ x**2), [(200, 3)]),
    "one of two that are computed at once": (lambda x, a, y, n: jax.lax.top_k(y, 100)[1] * x[0], [(100,)]),
    "rows as they are": (lambda x, a, y, n: a @ x, []),
    "turned": (lambda x, a, y, n: x @ a.T, []),
    "a column": (lambda x, a, y, n: a[:, 0] * x[0], []),
    "spread": (lambda x, a, y, n: jnp.broadcast_to(y[:, None], (200, 3)) @ x, []),
    "a sign": (lambda x, a, y, n: -y * jnp.sin(a @ x), []),
    "a little": (lambda x, a, y, n: jnp.exp(y[:9]) * x[0], []),
    "constants": (lambda x, a, y, n: jax.random.normal(jax.random.key(0), (500,)) * x[0], []),
    "nearly": (lambda x, a, y, n: jnp.exp(y + 1e-9 * x[0]), []),
    "stopped": (lambda x, a, y, n: jnp.exp(jax.lax.stop_gradient(a @ x)) @ a, []),
}


def kept_of(function, room=2**20):
    closed = opened(function, X, A, Y, N)
    wanted = [np.array(True)] * len(closed.jaxpr.outvars)
    return closed, worth_keeping(closed.jaxpr, [True, False, False, False], wanted, room)


@pytest.mark.parametrize("name", CASES)
def test_what_pays_is_kept_and_the_rest_given_it_is_the_same(name):
    function, shapes = CASES[name]
    closed, kept = kept_of(function)
    values = computed(closed, kept, [jnp.full_like(X, jnp.nan), A, Y, N])  # without looking at x
    assert [np.shape(value) for value in values] == shapes
    given = dict(zip([variables(closed.jaxpr)[number] for number in kept], values, strict=True))
    rest = restricted(closed, [np.array(True)], given)
    (found,), plain = rest(X, A, Y, N), function(X, A, Y, N)
    np.testing.assert_allclose(found, plain, rtol=rounded(2e-15), atol=rounded(2e-15))


def test_what_has_no_room_is_computed_from_what_has():
    bytes_of_y = Y.nbytes
    assert [np.shape(value) for value in _values(near, 2**30)] == [(200, 200)]
    assert _values(near, bytes_of_y) == []

    def of_shares(x, a, y, n):
        return near(x, jax.nn.softmax(y))

    assert [np.shape(value) for value in _values(of_shares, bytes_of_y)] == [(200,)]
    assert [np.size(value) for value in _values(of_shares, bytes_of_y - 1)] == [1, 1]  # the largest, and the sum


def _values(function, room):
    closed, kept = kept_of(lambda x, a, y, n: function(x, y) if function is near else function(x, a, y, n), room)
    return computed(closed, kept, [X, A, Y, N])
