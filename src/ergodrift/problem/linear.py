"""Linear models: the loss sees x through margins a.x only. Said once, it gets a fast layout and fused derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from ergodrift._core import check, tree
from ergodrift._core.compiled import compiled
from ergodrift._core.logarithm import log, rewritten
from ergodrift.geometry import Geometry
from ergodrift.problem.problem import Problem
from ergodrift.types import Feedback

FACTORS = 32  # where there are as many rows, they are filled up to a multiple of this
GROUP = 4  # rows that a thread of a GPU takes together
DEEPEST = {np.dtype(np.float32): -20, np.dtype(np.float64): -40}  # where a margin m has log(1 + exp(-m)) = -m
FEW = 8  # features up to which products with x are written out on a GPU

LINKS: dict[str, Callable[[Any], Any]] = {
    "logistic": lambda margins: jax.nn.softplus(-margins),
    "hinge": lambda margins: jnp.maximum(1 - margins, 0),
    "squared": lambda margins: jnp.square(margins) / 2,
}


class Dense(NamedTuple):
    """The rows a_i of one state as columns, so that products with them run along the long axis."""

    columns: Any  # (d, n)

    @property
    def num_rows(self) -> int:
        return self.columns.shape[-1]

    def margins(self, x: Any) -> Any:
        return x @ self.columns

    def gather(self, slopes: Any, like: Any) -> Any:
        """sum_i slope_i a_i."""
        return self.columns @ slopes


class Sparse(NamedTuple):
    """The rows of one state, each with the same number of entries; shorter ones are filled up with zeros."""

    indices: Any  # (n, width)
    values: Any  # (n, width)

    @property
    def num_rows(self) -> int:
        return self.values.shape[-2]

    def margins(self, x: Any) -> Any:
        return jnp.sum(self.values * x[self.indices], axis=1)

    def gather(self, slopes: Any, like: Any) -> Any:
        return jnp.zeros_like(like).at[self.indices].add(self.values * slopes[:, None])


class Rows(NamedTuple):
    """What a linear model knows of one state; with a leading axis of states, the data of a `MarkovSource`.

    Attributes:
        features: a_i, `Dense` or `Sparse`, labels multiplied in.
        offsets: (n,) added to the margins, or None.
        count: how many rows there are.
        padding: how many rows of zeros have been added to them, at the end.
        normals: (k, d) of the constraints normals . x <= limits.
        limits: (k,)
    """

    features: Any
    offsets: Any
    count: Any
    padding: Any
    normals: Any
    limits: Any

    def margins(self, x: Any) -> Any:
        margins = self.features.margins(x)
        return margins if self.offsets is None else margins + self.offsets

    @property
    def real(self) -> Any:
        """(n,) whether a row is one of the state's own."""
        return jnp.arange(self.features.num_rows, dtype=self.count.dtype) < self.count


class Factors(NamedTuple):
    """What a state's loss is made of at x: its gradient is `features.gather(slopes)`.

    Attributes:
        features: a_i of the state.
        slopes: (n,) link'(a_i . x + b_i) / count; where rows were added, any finite number.
        loss: what the tangent of the loss at x is worth at 0.
    """

    features: Any
    slopes: Any
    loss: Any


@tree.module("loss", "constraints", "link", "fast_logarithms")
class LinearModel(Problem):
    """Minimise E[mean_i link(a_i . x + b_i)] subject to E[c_k . x] <= l_k, x a vector of X.

    Loss and gradient come from one pass over a state's rows, written for the two links that matter and derived for
    others; `Problem` gives the same numbers to rounding, in several times the time.

    Args:
        link: "logistic", log(1 + exp(-m)) of a margin m = y a.x; "squared", m^2 / 2 with offsets -target; "hinge",
            max(0, 1 - m); or a convex function of an array of margins, applied to each.
        geometry: the domain X.
        constraints: of (x, xi), with xi the `Rows` of a state; E[c_k . x] <= l_k unless given.
        fast_logarithms: as in `Problem`.

    >>> import ergodrift as ed
    >>> rng = np.random.default_rng(0)
    >>> model = LinearModel("logistic", ed.Ball(5.0))
    >>> features, labels = rng.normal(size=(2, 40, 3)), rng.choice([-1.0, 1.0], size=(2, 40))
    >>> data = model.data(features, labels, normals=np.ones((2, 1, 3)), limits=[0.5])
    >>> source = ed.MarkovSource(ed.MarkovChain([[0.9, 0.1], [0.1, 0.9]]), data)
    >>> ed.run(ed.edpp(4), model, source, x0=np.zeros(3), num_samples=100).solution.shape
    (1, 3)
    """

    link: Callable[[Any], Any]

    def __init__(
        self,
        link: str | Callable[[Any], Any],
        geometry: Geometry,
        constraints: Callable[[Any, Any], Any] | None = None,
        *,
        fast_logarithms: bool = True,
    ) -> None:
        if not callable(link):
            link = LINKS[check.choice("link", link, tuple(LINKS))]
        for name, value in {
            "loss": _MeanLink(link),
            "constraints": constraints or half_spaces,
            "geometry": geometry,
            "link": link,
            "fast_logarithms": fast_logarithms,
        }.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    def data(
        self, features: Sequence[Any], labels: Any = None, *, offsets: Any = None, normals: Any, limits: Any
    ) -> Rows:
        """The table of all states.

        Args:
            features: for each state an (n, d) array or scipy.sparse matrix; n may differ from state to state.
            labels: for each state its n labels, -1 or 1 for margins y a.x; none unless given.
            offsets: for each state n numbers to add to the margins; none unless given.
            normals: (states, k, d), c_k of each state.
            limits: (states, k), or (k,) for all states alike.
        """
        states = len(features)
        sparse = any(scipy.sparse.issparse(part) for part in features)
        parts: list[Any] = [
            scipy.sparse.csr_array(part) if sparse else np.asarray(part, dtype=float) for part in features
        ]
        if not states or any(part.ndim != 2 or 0 in part.shape for part in parts):
            raise ValueError(f"features must hold a matrix for each state, got shapes {[p.shape for p in parts]}")
        if len({part.shape[1] for part in parts}) > 1:
            raise ValueError(f"features must have as many columns in every state, got {[p.shape for p in parts]}")
        counts = np.array([part.shape[0] for part in parts])
        dim, most = parts[0].shape[1], int(counts.max())
        most += -most % FACTORS if most > FACTORS else 0

        def padded(name: str, columns: Any) -> np.ndarray:
            if len(columns) != states or any(np.shape(c) != (n,) for c, n in zip(columns, counts, strict=True)):
                raise ValueError(f"{name} must hold one number for each row of each state, {counts} of them")
            return np.stack([np.pad(np.asarray(c, dtype=float), (0, most - len(c))) for c in columns])

        signs = np.ones((states, most)) if labels is None else padded("labels", labels)
        if labels is not None and not all(np.isin(part, (-1, 1)).all() for part in labels):
            raise ValueError(f"labels must be -1 or 1, got {np.unique(np.concatenate(labels))[:5]}; map 0 to -1")
        normals = np.asarray(normals, dtype=float)
        if normals.ndim != 3 or normals.shape[::2] != (states, dim):
            raise ValueError(f"normals must have shape ({states}, k, {dim}), got {normals.shape}")
        limits = np.asarray(limits, dtype=float)
        if limits.shape not in (normals.shape[:2], normals.shape[1:2]):
            raise ValueError(f"limits must have shape {normals.shape[1:2]} or {normals.shape[:2]}, got {limits.shape}")
        table = (_sparse if sparse else _dense)(parts, signs, most)
        extra = None if offsets is None else padded("offsets", offsets)
        return Rows(
            table,
            extra,
            counts.astype(float),
            (most - counts).astype(float),
            normals,
            np.broadcast_to(limits, normals.shape[:2]),
        )

    @compiled()
    def _feedback(self, x: Any, xi: Rows) -> Feedback:
        """What `Problem.feedback` gives, in one pass over the rows."""
        xi = tree.cast(xi, tree.dtype(x))

        def in_lanes(x: Any, xi: Rows) -> Feedback:
            return self.factored(x, xi)._replace(factors=None)

        def in_groups(x: Any, xi: Rows) -> Feedback:
            total, gathered = logistic_in_groups(x, xi)
            return self._assembled(x, xi, total - _surplus(self.link, xi, x), gathered)

        if self.link is not LINKS["logistic"] or not groupable(x, xi):
            return in_lanes(x, xi)
        return jax.lax.platform_dependent(x, xi, cpu=in_lanes, default=in_groups)

    @compiled()
    def factored(self, x: Any, xi: Rows) -> Feedback:
        """The feedback with its `Factors`: for linear constraints, all that changes from visit to visit of a state."""
        xi = tree.cast(xi, tree.dtype(x))
        total, slopes = _over_rows(self.link, xi, xi.margins(x), self.fast_logarithms)
        feedback, each = self._assembled(x, xi, total, xi.features.gather(slopes, x)), slopes / xi.count
        tangent = jnp.sum(each * xi.features.margins(x))
        return feedback._replace(factors=Factors(xi.features, each, feedback.loss - tangent))

    def _assembled(self, x: Any, xi: Rows, total: Any, gathered: Any) -> Feedback:
        """Feedback from the sum of the losses over a state's rows, and from its gradient."""
        loss, loss_grad = total / xi.count, gathered / xi.count
        if self.constraints is half_spaces:
            return Feedback(loss, loss_grad, half_spaces(x, xi), xi.normals)
        plain = Problem._feedback(self, x, xi)  # what is not used of it is not computed
        return Feedback(loss, loss_grad, plain.constraints, plain.constraint_jac)

    def rows(self, xi: Rows) -> int | None:
        """Of a state, where one number each (and one more) are fewer than its tangent planes; else None."""
        if self.constraints is not half_spaces or not isinstance(xi, Rows):
            return None
        n, (k, d) = xi.features.num_rows, np.shape(xi.normals)
        return n if n + 1 < (1 + k) * (1 + d) else None


class _MeanLink:
    """loss(x, xi) of a linear model, as `Problem` wants it; equal links make equal functions, so nothing recompiles."""

    def __init__(self, link: Callable[[Any], Any]) -> None:
        self.link = link

    def __call__(self, x: Any, xi: Rows) -> Any:
        if _is_ours(self.link):
            return (jnp.sum(self.link(xi.margins(x))) - _surplus(self.link, xi, x)) / xi.count
        return jnp.sum(_of_real_rows(self.link, xi)(xi.margins(x))) / xi.count

    def made_of(self) -> tuple[Any, tuple[Any, ...]]:
        """What a structure keeps of it (see `compiled.held`)."""
        return _MeanLink, (self.link,)


def half_spaces(x: Any, xi: Rows) -> Any:
    """c_k . x - l_k, for each k."""
    return tree.pushforward(xi.normals, x) - xi.limits


def _is_ours(link: Callable[[Any], Any]) -> bool:
    return any(link is ours for ours in LINKS.values())


def _surplus(link: Callable[[Any], Any], xi: Rows, x: Any) -> Any:
    """What the rows of zeros have added to the sum over all rows, of a link that is finite there."""
    return xi.padding * link(jnp.zeros((), tree.dtype(x)))


def _of_real_rows(link: Callable[[Any], Any], xi: Rows) -> Callable[[Any], Any]:
    """The link of each margin, 0 for the rows of zeros. It never sees their margins: it may be infinite at 0."""

    def values(margins: Any) -> Any:
        inside = jnp.where(xi.real, margins, margins[0])
        return jnp.where(xi.real, link(inside), 0)

    return values


def _over_rows(link: Callable[[Any], Any], xi: Rows, margins: Any, fast: bool) -> tuple[Any, Any]:
    """sum_i link(m_i) over a state's own rows, and link'(m_i) for each."""
    if not _is_ours(link):
        return total_and_slopes(_of_real_rows(rewritten(link) if fast else link, xi), margins)
    total, slopes = total_and_slopes(link, margins, log if fast else jnp.log)
    return total - _surplus(link, xi, margins), slopes


def total_and_slopes(link: Callable[[Any], Any], margins: Any, log: Callable[[Any], Any] = log) -> tuple[Any, Any]:
    """sum_i link(m_i), and link'(m_i) for each i."""
    if link is not LINKS["logistic"]:
        try:
            values, vjp = jax.vjp(link, margins)
            (slopes,) = vjp(jnp.ones_like(values))
        except ValueError:  # a loop whose length is found out on the way has no reverse
            values, slopes = jax.jvp(link, (margins,), (jnp.ones_like(margins),))
        return jnp.sum(values), slopes
    decay, missed = jnp.exp(-jnp.abs(margins)), margins < 0
    slopes = -jnp.where(missed, 1, decay) / (1 + decay)
    # Sums of log(1 + decay) as logarithms of products of 32 factors between 1 and 2: far fewer logarithms.
    factors = min(FACTORS, margins.size)
    logs = log(jnp.prod((1 + decay).reshape(factors, -1), axis=0))
    deep = jnp.sum(jnp.where(missed, margins, 0).reshape(factors, -1), axis=0)
    return jnp.sum(logs - deep), slopes


def groupable(x: Any, xi: Rows) -> bool:
    """Whether `logistic_in_groups` can go over these rows."""
    dense = isinstance(xi.features, Dense) and xi.offsets is None and x.dtype in DEEPEST
    return dense and len(x) <= FEW and xi.features.columns.shape[1] % GROUP == 0


def logistic_in_groups(x: Any, xi: Rows) -> tuple[Any, Any]:
    """sum_i log(1 + exp(-m_i)) and its gradient, as XLA's GPU compiler makes the best of it for few features.

    Products with x are written out and rows go in groups of four, a thread to a group: the compiler then reads the rows
    where they are, in place of copying those of every seed. Below the deepest margin the loss is linear to the last
    digit; above it, products of four factors stay finite.
    """
    groups = xi.features.columns.reshape(len(x), GROUP, -1)
    margins = sum(x[k] * groups[k] for k in range(len(x)))
    kept = jnp.maximum(margins, DEEPEST[x.dtype])
    decay = jnp.exp(-kept)
    slopes = -(decay / (1 + decay))
    # `sum` and `math.prod` over the four rows write them out, where jnp's would start another kernel.
    total = jnp.sum(jnp.log(math.prod(1 + decay)) + sum(kept - margins))
    return total, jnp.stack([jnp.sum(sum(slopes * groups[k])) for k in range(len(x))])


def _dense(parts: list[Any], signs: np.ndarray, most: int) -> Dense:
    columns = np.zeros((len(parts), parts[0].shape[1], most))
    for table, part, sign in zip(columns, parts, signs, strict=True):
        table[:, : len(part)] = (part * sign[: len(part), None]).T
    return Dense(columns)


def _sparse(parts: list[Any], signs: np.ndarray, most: int) -> Sparse:
    width = max(1, max(int(np.diff(part.indptr).max()) for part in parts))
    indices = np.zeros((len(parts), most, width), dtype=np.int32)
    values = np.zeros((len(parts), most, width))
    for state, part in enumerate(parts):
        row = np.repeat(np.arange(part.shape[0]), np.diff(part.indptr))
        place = np.arange(part.nnz) - part.indptr[row]
        indices[state, row, place] = part.indices
        values[state, row, place] = part.data * signs[state, row]
    return Sparse(indices, values)
