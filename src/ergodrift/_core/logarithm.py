"""Logarithms in a user's functions, as arithmetic that XLA's CPU compiler turns into vector instructions.

XLA calls the C library's double-precision logarithm one number at a time, and JAX differentiates log(e^a + e^b), which
`softplus`, `log_sigmoid` and cross-entropies are made of, with exponentials of its own. A loss that averages over a few
thousand rows spends most of its time there. `rewritten` puts the functions below in their place, equal to rounding;
`Problem(..., fast_logarithms=False)` leaves a problem's functions as they are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core.jaxprs import alone, called, evaluated
from ergodrift._core.signature import computation
from ergodrift.types import PyTree

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

F = TypeVar("F", bound=Callable[..., PyTree])
Shapes: TypeAlias = tuple[jax.ShapeDtypeStruct, ...]

# Of log(m) = 2 artanh(s), s = (m - 1) / (m + 1), for m between sqrt(1/2) and sqrt(2); the next term is below rounding.
TERMS = {np.dtype(np.float32): 4, np.dtype(np.float64): 10}


def rewritten(function: F) -> F:
    """The same function of pytrees of arrays, its logarithms replaced; where it has none, the very same.

    >>> loss = rewritten(lambda x: jnp.mean(jax.nn.softplus(-x)))
    >>> print(f"{jax.grad(loss)(jnp.zeros(2))[0]:.4f}")
    -0.2500
    """

    def same(*arguments: PyTree) -> PyTree:
        if any(getattr(jax.config, name) for name in ("jax_debug_nans", "jax_debug_infs")):
            return function(*arguments)  # who looks for a NaN should be led to their own lines
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        return jax.tree.unflatten(jax.tree.structure(shape), _values(closed, jax.tree.leaves(arguments)))

    return cast("F", same)


def _values(closed: ClosedJaxpr, values: Sequence[jax.Array]) -> list[jax.Array]:
    """The outputs of a jaxpr; equation by equation, where there are logarithms among them."""
    from jax.extend import core  # imported here: it takes its time

    def ours(equation: JaxprEqn, jaxpr: Jaxpr) -> Callable[..., list[jax.Array]] | None:
        if (inside := called(equation)) is not None:
            return lambda *inputs: _values(inside, inputs)
        function = _replacement(equation, jaxpr)
        return None if function is None else lambda *inputs: [function(*inputs)]

    return evaluated(closed, values, ours) if _has_logarithms(closed.jaxpr) else core.jaxpr_as_fun(closed)(*values)


def _has_logarithms(jaxpr: Jaxpr) -> bool:
    return any(
        _replacement(equation, jaxpr) if (inside := called(equation)) is None else _has_logarithms(inside.jaxpr)
        for equation in jaxpr.eqns
    )


def _replacement(equation: JaxprEqn, jaxpr: Jaxpr) -> Callable[..., jax.Array] | None:
    """The function below that gives this equation's output; None where there is none."""
    if len(equation.outvars) != 1 or getattr(equation.outvars[0].aval, "dtype", None) not in TERMS:
        return None
    if equation.params.get("accuracy") is not None:
        return None  # who asks for an accuracy gets it from XLA
    if equation.primitive is jax.lax.log_p:
        return log
    if equation.primitive is jax.lax.log1p_p:
        return log1p
    return logaddexp if _is_logaddexp(equation, jaxpr) else None


def _is_logaddexp(equation: JaxprEqn, jaxpr: Jaxpr) -> bool:
    """Whether a function with a derivative of its own is JAX's: it computes the same by the same steps, and so does
    its derivative. Neither has to have a certain name."""
    inputs: list[PyTree] = [atom.aval for atom in equation.invars]  # abstract values
    if equation.primitive.name != "custom_jvp_call" or len(inputs) != 2:
        return False
    if any(getattr(aval, "dtype", None) not in TERMS for aval in inputs):
        return False
    if all(step.primitive is not jax.lax.log1p_p for step in equation.params["call_jaxpr"].eqns):
        return False  # most are something else, which can be had for less
    shapes = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in inputs)
    return _with_derivative(lambda *values: alone(equation, jaxpr)(*values)[0], shapes) == _of_logaddexp(shapes)


@functools.lru_cache(maxsize=128)
def _of_logaddexp(shapes: Shapes) -> str:
    return _with_derivative(jnp.logaddexp, shapes)


def _with_derivative(function: Callable[..., jax.Array], shapes: Shapes) -> str:
    """What a function and its derivative compute."""
    return computation(lambda *values: (function(*values), jax.jvp(function, values, values)), *shapes)


@jax.custom_jvp
def log1p(x: jax.Array) -> jax.Array:
    """log(1 + x), to three units in the last place."""
    x = jnp.asarray(x)
    inside = (x > -1) & (x < math.inf)
    return jnp.where(inside, _log_of_positive(1 + x, x), _log_outside(1 + x))


@jax.custom_jvp
def log(x: jax.Array) -> jax.Array:
    """log(x), to two units in the last place; subnormal numbers count as 0, as XLA counts them on a CPU."""
    x = jnp.asarray(x)
    inside = (x >= jnp.finfo(x.dtype).tiny) & (x < math.inf)
    return jnp.where(inside, _log_of_positive(x, x - 1), _log_outside(x))


@jax.custom_jvp
def logaddexp(a: jax.Array, b: jax.Array) -> jax.Array:
    """log(e^a + e^b); with its derivatives it takes a single exponential."""
    gap = a - b
    return jnp.where(jnp.isnan(gap), a + b, jnp.maximum(a, b) + log1p(jnp.exp(-jnp.abs(gap))))


@jax.custom_jvp
def _share(gap: jax.Array) -> jax.Array:
    """e^a / (e^a + e^b), of a - b."""
    decay = jnp.exp(-jnp.abs(gap))
    return jnp.where(gap > 0, 1, decay) / (1 + decay)


log1p.defjvps(lambda tangent, value, x: tangent / (1 + x))
log.defjvps(lambda tangent, value, x: tangent / x)
logaddexp.defjvps(
    lambda tangent, value, a, b: tangent * _share(a - b),
    lambda tangent, value, a, b: tangent * _share(b - a),
)
_share.defjvps(lambda tangent, value, gap: tangent * value * _share(-gap))


def _log_of_positive(u: jax.Array, above: jax.Array) -> jax.Array:
    """The logarithm of normal numbers u = 2^k m, with `above` = u - 1: k log 2 + 2 artanh((m - 1) / (m + 1)).

    Where k = 0, m - 1 is `above`: of 1 + x with a small x, the sum itself has lost most digits of x.
    """
    whole = np.dtype(f"int{8 * u.dtype.itemsize}")
    digits = jnp.finfo(u.dtype).nmant
    bits = jax.lax.bitcast_convert_type(u, whole)
    k = (bits - np.sqrt(0.5).astype(u.dtype).view(whole)) >> digits
    m = jax.lax.bitcast_convert_type(bits - (k << digits), u.dtype)
    beyond = jnp.where(k == 0, above, m - 1)
    s = beyond / (2 + beyond)
    square, series = s * s, jnp.zeros((), u.dtype)
    for n in reversed(range(1, TERMS[u.dtype] + 1)):
        series = square * (1 / (2 * n + 1) + series)
    return k.astype(u.dtype) * math.log(2) + 2 * (s + s * series)


def _log_outside(u: jax.Array) -> jax.Array:
    """The logarithm of 0, infinity and what has none."""
    nothing = jnp.abs(u) < jnp.finfo(u.dtype).tiny
    return jnp.where(nothing, -math.inf, jnp.where(u == math.inf, math.inf, math.nan))
