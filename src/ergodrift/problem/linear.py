"""Linear models: the loss sees x through margins a.x only. Said once, it gets a fast layout and fused derivatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike

from ergodrift._core import check, tree
from ergodrift._core.compiled import compiled
from ergodrift.geometry import Geometry
from ergodrift.problem.links import (
    LINKS,
    ROWS_PER_LOG,
    Link,
    groupable,
    logistic,
    logistic_in_groups,
    over_rows,
    surplus,
    total_loss,
)
from ergodrift.problem.problem import CompactForm, Problem
from ergodrift.problem.rows import Rows, dense, sparse
from ergodrift.types import Compact, Feedback, PyTree


class LinearModel(Problem, static=("link",)):
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

    link: Link

    def __init__(
        self,
        link: str | Link,
        geometry: Geometry,
        constraints: Callable[[PyTree, PyTree], jax.Array] | None = None,
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
            "tabulate": True,
        }.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    def data(
        self,
        features: Sequence[ArrayLike | scipy.sparse.sparray | scipy.sparse.spmatrix],
        labels: Sequence[ArrayLike] | None = None,
        *,
        offsets: Sequence[ArrayLike] | None = None,
        normals: ArrayLike,
        limits: ArrayLike,
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
        is_sparse = any(scipy.sparse.issparse(part) for part in features)
        parts: list[PyTree] = [
            scipy.sparse.csr_array(part) if is_sparse else np.asarray(part, dtype=float) for part in features
        ]
        if not states or any(part.ndim != 2 or 0 in part.shape for part in parts):
            raise ValueError(f"features must hold a matrix for each state, got shapes {[p.shape for p in parts]}")
        if len({part.shape[1] for part in parts}) > 1:
            raise ValueError(f"features must have as many columns in every state, got {[p.shape for p in parts]}")
        counts = np.array([part.shape[0] for part in parts])
        dim, most = parts[0].shape[1], int(counts.max())
        most += -most % ROWS_PER_LOG if most > ROWS_PER_LOG else 0

        def padded(name: str, columns: Sequence[ArrayLike]) -> np.ndarray:
            if len(columns) != states or any(np.shape(c) != (n,) for c, n in zip(columns, counts, strict=True)):
                raise ValueError(f"{name} must hold one number for each row of each state, {counts} of them")
            return np.stack([np.pad(np.asarray(c, dtype=float), (0, most - np.size(c))) for c in columns])

        signs = np.ones((states, most)) if labels is None else padded("labels", labels)
        if labels is not None and not all(np.isin(part, (-1, 1)).all() for part in labels):
            raise ValueError(f"labels must be -1 or 1, got {np.unique(np.concatenate(labels))[:5]}; map 0 to -1")
        normals = np.asarray(normals, dtype=float)
        if normals.ndim != 3 or normals.shape[::2] != (states, dim):
            raise ValueError(f"normals must have shape ({states}, k, {dim}), got {normals.shape}")
        limits = np.asarray(limits, dtype=float)
        if limits.shape not in (normals.shape[:2], normals.shape[1:2]):
            raise ValueError(f"limits must have shape {normals.shape[1:2]} or {normals.shape[:2]}, got {limits.shape}")
        table = (sparse if is_sparse else dense)(parts, signs, most)
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
    def _feedback(self, x: jax.Array, xi: Rows) -> Feedback:
        """What `Problem.feedback` gives, in one pass over the rows."""
        xi = tree.cast(xi, tree.dtype(x))

        def in_lanes(x: jax.Array, xi: Rows) -> Feedback:
            return self.compact_feedback(x, xi)._replace(compact=None)

        def in_groups(x: jax.Array, xi: Rows) -> Feedback:
            total, gathered = logistic_in_groups(x, xi)
            return self.assembled(x, xi, total - surplus(self.link, xi, x.dtype), gathered)

        if self.link is not logistic or not groupable(x, xi):
            return in_lanes(x, xi)
        return jax.lax.platform_dependent(x, xi, cpu=in_lanes, default=in_groups)

    @compiled()
    def compact_feedback(self, x: jax.Array, xi: Rows) -> Feedback:
        """The feedback, with what changes in it from visit to visit of a state where constraints are linear."""
        xi = tree.cast(xi, tree.dtype(x))
        total, slopes = over_rows(self.link, xi, xi.margins(x), self.fast_logarithms)
        feedback, each = self.assembled(x, xi, total, xi.features.gather(slopes, x)), slopes / xi.count
        tangent = jnp.sum(each * xi.features.margins(x))
        return feedback._replace(compact=Compact(jnp.append(each, feedback.loss - tangent), xi))

    def assembled(self, x: jax.Array, xi: Rows, total: jax.Array, gathered: jax.Array) -> Feedback:
        """Feedback from the sum of the losses over a state's rows, and from its gradient."""
        loss, loss_grad = total / xi.count, gathered / xi.count
        if self.constraints is half_spaces:
            return Feedback(loss, loss_grad, half_spaces(x, xi), xi.normals)
        plain = Problem._feedback(self, x, xi)  # what is not used of it is not computed
        return Feedback(loss, loss_grad, plain.constraints, plain.constraint_jac)

    def compact(self, xi: PyTree) -> CompactForm | None:
        """One number per row, and one more, where those are fewer than tangent planes have."""
        if self.constraints is not half_spaces or not isinstance(xi, Rows):
            return None
        n, (k, d) = xi.features.num_rows, np.shape(xi.normals)
        return BySlopes(n + 1) if n + 1 < (1 + k) * (1 + d) else None


@dataclasses.dataclass(frozen=True)
class BySlopes(CompactForm):
    """The slope of each row, link'(a_i . x + b_i) / count, and what the tangent of the loss is worth at 0.

    Slopes of rows that were added may be any finite number: those rows are zeros.
    """

    size: int

    def feedback(self, problem: Problem, x: PyTree, xi: PyTree) -> Feedback:
        return cast("LinearModel", problem).compact_feedback(x, xi)

    def planes(self, basis: Rows, numbers: jax.Array, share: jax.Array) -> Feedback:
        grad = basis.features.gather(numbers[:-1], basis.normals[0])
        return Feedback(numbers[-1], grad, -share * basis.limits, share * basis.normals)


class _MeanLink:
    """loss(x, xi) of a linear model, as `Problem` wants it; equal links make equal functions, so nothing recompiles."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def __call__(self, x: jax.Array, xi: Rows) -> jax.Array:
        return total_loss(self.link, xi, xi.margins(x)) / xi.count

    def made_of(self) -> tuple[type[_MeanLink], tuple[Link]]:
        """What a structure keeps of it (see `compiled.held`)."""
        return _MeanLink, (self.link,)


def half_spaces(x: jax.Array, xi: Rows) -> jax.Array:
    """c_k . x - l_k, for each k."""
    return tree.pushforward(xi.normals, x) - xi.limits
