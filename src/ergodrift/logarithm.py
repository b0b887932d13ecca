"""Logarithms in a user's functions, as arithmetic that XLA's CPU compiler turns into vector instructions.

XLA calls the C library's double-precision logarithm one number at a time, and JAX differentiates log(e^a + e^b), which
`softplus`, `log_sigmoid` and cross-entropies are made of, with exponentials of its own. A loss that averages over a few
thousand rows spends most of its time there. `rewritten` puts the functions below in their place, equal to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Of log(m) = 2 artanh(s), s = (m - 1) / (m + 1), for m between sqrt(1/2) and sqrt(2); the next term is below rounding.
TERMS = {np.dtype(np.float32): 4, np.dtype(np.float64): 10}


def rewritten(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of pytrees of arrays, its logarithms replaced; where it has none, the very same.

    >>> loss = rewritten(lambda x: jnp.mean(jax.nn.softplus(-x)))
    >>> print(f"{jax.grad(loss)(jnp.zeros(2))[0]:.4f}")
    -0.2500
    """

    def same(*arguments: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        if not _has_logarithms(closed.jaxpr):
            return function(*arguments)
        values = _evaluate(closed, jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shape), values)

    return same


def _evaluate(closed: Any, values: Any) -> list[Any]:
    """The outputs of a jaxpr, equation by equation."""
    from jax.extend import core  # imported here: it takes its time, and many functions have no logarithms

    known = dict(zip(closed.jaxpr.constvars + closed.jaxpr.invars, [*closed.consts, *values], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in closed.jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        if _is_call(equation):
            outputs = _evaluate(equation.params["jaxpr"], inputs)
        elif ours := _replacement(equation):
            outputs = [ours(*inputs)]
        else:
            outputs = _alone(equation, closed.jaxpr)(*inputs)
        known |= zip(equation.outvars, outputs, strict=True)
    return [read(atom) for atom in closed.jaxpr.outvars]


def _alone(equation: Any, jaxpr: Any) -> Callable[..., Any]:
    """One equation of a jaxpr as a function: JAX itself knows how to evaluate each kind."""
    from jax.extend import core

    places = [core.Var(atom.aval) for atom in equation.invars]
    only = {"invars": places, "outvars": equation.outvars, "eqns": [equation.replace(invars=places)]}
    return core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr.replace(constvars=[], **only), []))


def _has_logarithms(jaxpr: Any) -> bool:
    return any(
        _has_logarithms(equation.params["jaxpr"].jaxpr) if _is_call(equation) else _replacement(equation)
        for equation in jaxpr.eqns
    )


def _is_call(equation: Any) -> bool:
    return equation.primitive.name in ("jit", "pjit")


def _replacement(equation: Any) -> Callable[..., Any] | None:
    """The function below that gives this equation's output; None where there is none."""
    name = equation.primitive.name
    if name == "custom_jvp_call" and _steps(equation) == _steps(jax.make_jaxpr(jnp.logaddexp)(0.0, 0.0).eqns[-1]):
        name = "logaddexp"
    ours = {"log": log, "log1p": log1p, "logaddexp": logaddexp}.get(name)
    return ours if ours and equation.outvars[0].aval.dtype in TERMS else None


def _steps(equation: Any) -> list[str]:
    """A function with a derivative of its own, told by its name and by what it does."""
    return [equation.params.get("name", ""), *(str(step.primitive) for step in equation.params["call_jaxpr"].eqns)]


@jax.custom_jvp
def log1p(x: Any) -> Any:
    """log(1 + x), to a unit or two in the last place."""
    x = jnp.asarray(x)
    u = 1 + x
    lost = (x - (u - 1)) / u  # what rounding took from 1 + x
    inside = (x > -1) & (x < math.inf)
    return jnp.where(inside, _log_of_positive(u) + lost, _log_outside(u))


@jax.custom_jvp
def log(x: Any) -> Any:
    """log(x), to a unit or two in the last place; subnormal numbers count as 0, as everywhere in XLA on a CPU."""
    x = jnp.asarray(x)
    inside = (x >= jnp.finfo(x.dtype).tiny) & (x < math.inf)
    return jnp.where(inside, _log_of_positive(x), _log_outside(x))


@jax.custom_jvp
def logaddexp(a: Any, b: Any) -> Any:
    """log(e^a + e^b)."""
    return _logaddexp_and_weights(a, b)[0]


log1p.defjvps(lambda tangent, value, x: tangent / (1 + x))
log.defjvps(lambda tangent, value, x: tangent / x)


@logaddexp.defjvp
def _(primals: Any, tangents: Any) -> Any:
    value, of_a, of_b = _logaddexp_and_weights(*primals)
    return value, of_a * tangents[0] + of_b * tangents[1]


def _logaddexp_and_weights(a: Any, b: Any) -> Any:
    """The value and its derivatives, e^a and e^b over their sum, from a single exponential."""
    gap = a - b
    decay = jnp.exp(-jnp.abs(gap))
    value = jnp.where(jnp.isnan(gap), a + b, jnp.maximum(a, b) + log1p(decay))
    return value, jnp.where(gap > 0, 1, decay) / (1 + decay), jnp.where(gap > 0, decay, 1) / (1 + decay)


def _log_of_positive(u: Any) -> Any:
    """The logarithm of normal numbers, u = 2^k m: k log 2 + 2 artanh((m - 1) / (m + 1))."""
    whole = np.dtype(f"int{8 * u.dtype.itemsize}")
    digits = jnp.finfo(u.dtype).nmant
    bits = jax.lax.bitcast_convert_type(u, whole)
    k = (bits - np.sqrt(0.5).astype(u.dtype).view(whole)) >> digits
    m = jax.lax.bitcast_convert_type(bits - (k << digits), u.dtype)
    s = (m - 1) / (m + 1)
    square, series = s * s, jnp.zeros((), u.dtype)
    for n in reversed(range(1, TERMS[u.dtype] + 1)):
        series = square * (1 / (2 * n + 1) + series)
    return k.astype(u.dtype) * math.log(2) + 2 * (s + s * series)


def _log_outside(u: Any) -> Any:
    """The logarithm of 0 (or nearly), infinity and what has none."""
    return jnp.where(jnp.abs(u) < 1, -math.inf, jnp.where(u == math.inf, math.inf, math.nan))
