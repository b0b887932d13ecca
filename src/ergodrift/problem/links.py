"""Links: the function of a margin that a linear model averages, and its sum and slopes in one pass over the rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core.logarithm import log, rewritten
from ergodrift.problem.rows import Dense, Rows

Link: TypeAlias = Callable[[jax.Array], jax.Array]  # of an array of margins, applied to each

ROWS_PER_LOG = 32  # whose factors share one logarithm; where there are as many rows, they are padded to a multiple
GROUP = 4  # rows that a thread of a GPU takes together
DEEPEST = {np.dtype(np.float32): -20, np.dtype(np.float64): -40}  # where a margin m has log(1 + exp(-m)) = -m
FEW = 8  # features up to which products with x are written out on a GPU


def logistic(margins: jax.Array) -> jax.Array:
    """log(1 + exp(-m))."""
    return jax.nn.softplus(-margins)


def hinge(margins: jax.Array) -> jax.Array:
    """max(0, 1 - m)."""
    return jnp.maximum(1 - margins, 0)


def squared(margins: jax.Array) -> jax.Array:
    """m^2 / 2."""
    return jnp.square(margins) / 2


LINKS: dict[str, Link] = {"logistic": logistic, "hinge": hinge, "squared": squared}


def total_loss(link: Link, xi: Rows, margins: jax.Array) -> jax.Array:
    """sum_i link(m_i) over a state's own rows, of which any derivative may be taken."""
    margins = jnp.asarray(margins)  # of NumPy's float64, where a user asks the loss itself, in JAX's precision
    if _is_ours(link):
        return jnp.sum(link(margins)) - surplus(link, xi, margins.dtype)
    return jnp.sum(_of_real_rows(link, xi)(margins))


def over_rows(link: Link, xi: Rows, margins: jax.Array, fast: bool) -> tuple[jax.Array, jax.Array]:
    """sum_i link(m_i) over a state's own rows, and link'(m_i) for each."""
    if not _is_ours(link):
        return total_and_slopes(_of_real_rows(rewritten(link) if fast else link, xi), margins)
    total, slopes = total_and_slopes(link, margins, log if fast else jnp.log)
    return total - surplus(link, xi, margins.dtype), slopes


def _is_ours(link: Link) -> bool:
    return any(link is ours for ours in LINKS.values())


def surplus(link: Link, xi: Rows, kind: np.dtype) -> jax.Array:
    """What the rows of zeros have added to the sum over all rows, of a link that is finite there."""
    return link(jnp.zeros((), kind)) * xi.padding


def _of_real_rows(link: Link, xi: Rows) -> Link:
    """The link of each margin, 0 for the rows of zeros. It never sees their margins: it may be infinite at 0."""

    def values(margins: jax.Array) -> jax.Array:
        inside = jnp.where(xi.real, margins, margins[0])
        return jnp.where(xi.real, link(inside), 0)

    return values


def total_and_slopes(link: Link, margins: jax.Array, log: Link = log) -> tuple[jax.Array, jax.Array]:
    """sum_i link(m_i), and link'(m_i) for each i."""
    if link is not logistic:
        try:
            values, vjp = jax.vjp(link, margins)
            (slopes,) = vjp(jnp.ones_like(values))
        except ValueError:  # a loop whose length is found out on the way has no reverse
            values, slopes = jax.jvp(link, (margins,), (jnp.ones_like(margins),))
        return jnp.sum(values), slopes
    decay, missed = jnp.exp(-jnp.abs(margins)), margins < 0
    slopes = -jnp.where(missed, 1, decay) / (1 + decay)
    # Sums of log(1 + decay) as logarithms of products of 32 factors between 1 and 2: far fewer logarithms.
    factors = min(ROWS_PER_LOG, margins.size)
    logs = log(jnp.prod((1 + decay).reshape(factors, -1), axis=0))
    deep = jnp.sum(jnp.where(missed, margins, 0).reshape(factors, -1), axis=0)
    return jnp.sum(logs - deep), slopes


def groupable(x: jax.Array, xi: Rows) -> bool:
    """Whether `logistic_in_groups` can go over these rows."""
    features = xi.features
    plain = isinstance(features, Dense) and features.num_rows % GROUP == 0 and xi.offsets is None
    return plain and x.dtype in DEEPEST and len(x) <= FEW


def logistic_in_groups(x: jax.Array, xi: Rows) -> tuple[jax.Array, jax.Array]:
    """sum_i log(1 + exp(-m_i)) and its gradient, as XLA's GPU compiler makes the best of it for few features.

    Products with x are written out and rows go in groups of four, a thread to a group: the compiler then reads the rows
    where they are, in place of copying those of every seed. Below the deepest margin the loss is linear to the last
    digit; above it, products of four factors stay finite.
    """
    groups = cast("Dense", xi.features).columns.reshape(len(x), GROUP, -1)
    margins = sum(x[k] * groups[k] for k in range(len(x)))
    kept = jnp.maximum(margins, DEEPEST[x.dtype])
    decay = jnp.exp(-kept)
    slopes = -(decay / (1 + decay))
    # `sum` and `math.prod` over the four rows write them out, where jnp's would start another kernel.
    total = jnp.sum(jnp.log(math.prod(1 + decay)) + sum(kept - margins))
    return total, jnp.stack([jnp.sum(sum(slopes * groups[k])) for k in range(len(x))])
