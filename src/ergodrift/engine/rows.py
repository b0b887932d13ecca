"""Rows on their way to a learner: checked against what a sample is, in the precision of the run, in windows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check
from ergodrift._core.arrays import aligned, as_arrays, columns_of
from ergodrift.data.stream import Transposed, is_narrow
from ergodrift.problem import Problem
from ergodrift.types import PyTree


class Row(NamedTuple):
    """One array of a sample: its name, its shape, and the type that it has on the device."""

    name: str
    shape: tuple[int, ...]
    kind: np.dtype

    @staticmethod
    def of(name: str, leaf: np.ndarray, precision: np.dtype) -> Row:
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return Row(name, leaf.shape, np.dtype(precision) if floating else jax.dtypes.canonicalize_dtype(leaf.dtype))

    def blank(self) -> np.ndarray:
        return np.zeros((1, *self.shape), self.kind)

    def converted(self, leaf: PyTree) -> np.ndarray:
        """An array of another kind as the device wants it; what is too large for it becomes infinite."""
        with np.errstate(over="ignore"):
            if self.kind.kind == "f" and isinstance(leaf, float | np.floating):
                return np.array(leaf, self.kind)
            array = np.asarray(as_arrays(f"samples{self.name}", leaf))
            if array.dtype.kind not in "biuf":
                raise TypeError(f"samples{self.name} must hold numbers, got {array.dtype}")
            if self.kind.kind in "iu" and array.dtype.kind == "f" and (array == np.rint(array)).all():
                array = array.astype(np.int64)  # whole numbers still: a row of pandas has one type for all its columns
            if self.kind.kind in "biu" and array.dtype.kind not in ("b" if self.kind.kind == "b" else "biu"):
                raise TypeError(f"samples{self.name} must hold {self.kind}, as the first sample did, got {array.dtype}")
            check.fits(f"samples{self.name}", array)
            return array.astype(self.kind)

    def refuse_shape(self, array: np.ndarray, lead: tuple[int, ...]) -> NoReturn:
        raise ValueError(f"samples{self.name} must have shape {(*lead, *self.shape)}, got {array.shape}")

    def refuse_if_not_finite(self, array: np.ndarray, lead: tuple[int, ...], at: int) -> None:
        """Large numbers, whose squares overflow, are fine."""
        if np.isfinite(array).all():
            return
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        row = f" (row {where[0]} of these)" if lead else ""
        sample = at + (where[0] if lead else 0)
        raise ValueError(
            f"samples{self.name} holds {array[where]} in sample {sample:,}{row}, as {self.kind}; clean or drop it: "
            "nothing was learned from this call"
        )


def checked(rows: list[Row], leaves: list[PyTree], lead: tuple[int, ...], at: int) -> list[np.ndarray]:
    """The arrays of samples as the device wants them; `lead` are their axes before those of a row, `at` the samples
    before them. It is one loop, without calls of our own: for a single sample it must be over in a few microseconds.
    A single sample is copied: the next one may be read into the same array, while this one is still waited for."""
    found = []
    for row, leaf in zip(rows, leaves, strict=True):
        kind = row.kind
        if leaf.__class__ is np.ndarray and leaf.dtype == kind:
            array = leaf if lead else leaf.copy()
        else:
            array = row.converted(leaf)
        if array.shape != (lead + row.shape if lead else row.shape):
            row.refuse_shape(array, lead)
        if kind.kind == "f":
            flat = array.ravel()
            # A NaN or an infinity shows in the sum of squares: the quickest look there is.
            if not math.isfinite(flat.dot(flat) if flat.size < check.MANY else check.norm(flat)):
                row.refuse_if_not_finite(array, lead, at)
        found.append(array)
    return found


def window(rows: list[np.ndarray], room: int) -> list[np.ndarray | Transposed]:
    """Rows, filled up to a fixed length, as `TableStream` keeps them."""
    return [_filled(leaf, room) for leaf in rows]


def _filled(leaf: np.ndarray, room: int) -> np.ndarray | Transposed:
    """A copy: who brings the rows may write to them again."""
    narrow = is_narrow(leaf.shape[1:])
    turned = leaf.swapaxes(1, 2) if narrow else leaf
    buffer = aligned((room, *turned.shape[1:]), leaf.dtype)
    buffer[: len(leaf)] = turned
    return Transposed(buffer) if narrow else buffer  # type: ignore[arg-type]  # JAX takes it from here


def unfilled(window: list[np.ndarray | Transposed], count: int) -> list[np.ndarray]:
    """The rows that a window was made of."""
    whole = [leaf.array.swapaxes(1, 2) if isinstance(leaf, Transposed) else leaf for leaf in window]
    return [leaf[:count] for leaf in whole]  # type: ignore[misc]  # arrays of NumPy, as they went in


def forms(samples: PyTree) -> Iterator[PyTree]:
    """What samples may mean, as arrays: they themselves; where they are a row of a table or a list of such rows, their
    entries by name; a list in the place of a tuple, and the other way round."""
    named = _named(samples)
    if isinstance(samples, np.void):
        likely = [named]
    elif named is not None:
        likely = [samples, named] if isinstance(samples, tuple) else [named, samples]
    elif type(samples) in (list, tuple) and all(hasattr(leaf, "ndim") for leaf in samples):
        likely = [samples, tuple(samples) if type(samples) is list else list(samples)]
    else:
        likely = [samples]
    return (as_arrays("samples", form) for form in likely)


def _named(samples: PyTree) -> dict[str, PyTree] | None:
    if isinstance(samples, list) and samples and all(isinstance(row, Mapping) for row in samples):
        names = samples[0].keys()
        if odd := next((at for at, row in enumerate(samples) if row.keys() != names), None):
            raise ValueError(f"samples: row {odd} has {check.some(samples[odd])}, row 0 has {check.some(names)}")
        return {name: [row[name] for row in samples] for name in names}
    if isinstance(samples, tuple) and hasattr(samples, "_asdict"):
        return samples._asdict()  # type: ignore[union-attr]  # of a NamedTuple, such as itertuples makes
    if isinstance(samples, np.void) and samples.dtype.names:
        return {name: samples[name] for name in samples.dtype.names}
    plain, labels = getattr(samples, "to_dict", None), getattr(samples, "index", (None,))
    if plain is not None and getattr(samples, "ndim", 0) == 1 and all(isinstance(label, str) for label in labels):
        return plain()  # a row of pandas
    return None


def is_table(samples: PyTree) -> bool:
    """Whether these are rows by their nature: a table, or a list of dicts."""
    if isinstance(samples, list):
        return bool(samples) and isinstance(samples[0], Mapping)
    return np.ndim(getattr(samples, "shape", ())) == 1 and columns_of(samples) is not samples


def one_sample(problem: Problem, x0: PyTree, given: list[PyTree], table: bool = False) -> PyTree:
    """The first sample of what a learner was given first, in one of these forms: one sample, or a chunk of them.

    A table is a chunk where it can be either.
    """
    errors: list[Exception] = []
    for found in given:
        lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(found)}
        several = len(lengths) == 1 and () not in lengths and (0,) not in lengths
        fitting: list[PyTree] = []
        for reading in [found, *([jax.tree.map(lambda leaf: np.asarray(leaf)[0], found)] if several else [])]:
            try:
                problem.check(x0, reading)
                fitting.append(reading)
            except (TypeError, ValueError) as error:
                errors.append(error)
        if len(fitting) > 1 and not table:
            raise ValueError(
                f"samples of shapes {jax.tree.map(np.shape, found)} may be one sample or several: the functions take "
                "both. Say what one sample is, by Learner(..., example=sample)"
            )
        if fitting:
            return jax.tree.map(np.asarray, fitting[-1])
    raise errors[-1]
