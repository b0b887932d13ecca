"""Pytrees: the dataclass every hyperparameter lives in, and the little linear algebra a round needs."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable
from typing import ClassVar, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike

from ergodrift._core.compiled import Held, Value, held
from ergodrift.types import PyTree, Scalar

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def module(*static: str, beside: tuple[str, ...] = ()) -> Callable[[type[T]], type[T]]:
    """A frozen dataclass that is a pytree: numbers are leaves, the fields named in `static` are not.

    Those named in `beside` are no part of it, but go with it: whatever they are, structures are equal. Of several
    pytrees mapped together, those of the first remain; where leaves are traced, None does.

    Unlike `jax.tree_util.register_dataclass`, rebuilding one from its leaves does not run `__post_init__`:
    the checks there are for what a user wrote, not for tracers or batched values.
    """

    def register(cls: type[T]) -> type[T]:
        cls = dataclasses.dataclass(frozen=True, eq=False)(cls)
        names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        leaves = tuple(name for name in names if name not in (*static, *beside))
        _register(cls, lambda: (leaves, static, beside))
        return cls

    return register


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Module:
    """A class whose subclasses are such dataclasses, `class Mine(Base, static=("label",))`: nothing to remember.

    What is static in a base is so in what is made of it.
    """

    _static: ClassVar[tuple[str, ...]] = ()
    _leaves: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, *, static: tuple[str, ...] = (), **options: object) -> None:
        super().__init_subclass__(**options)
        dataclasses.dataclass(frozen=True, eq=False)(cls)
        names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        if unknown := [name for name in static if name not in names]:
            raise TypeError(f"{cls.__name__}: static names {unknown[0]!r}, which is no field of it")
        cls._static = (*cls._static, *static)
        cls._leaves = tuple(name for name in names if name not in cls._static)
        # Looked up when they are needed: a class that was sent to another process gets its contents after it is made.
        _register(cls, lambda: (cls._leaves, cls._static, ()))


def _register(cls: type, fields: Callable[[], tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]]) -> None:
    """A pytree of the fields that are leaves, with those that are static and those that go beside."""

    def flatten(self: object) -> tuple[list[tuple[object, PyTree]], tuple[object, ...]]:
        leaves, static, beside = fields()
        children = [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in leaves]
        kept = [_kept(getattr(self, name)) for name in static]
        return children, (*kept, *(Beside(getattr(self, name)) for name in beside))

    def unflatten(aux: tuple[object, ...], children: Iterable[PyTree]) -> object:
        leaves, static, beside = fields()
        self, children = object.__new__(cls), tuple(children)
        given = [_given(value) for value in aux[: len(static)]]
        if beside:
            traced = is_traced(children)
            given += [None if traced else value() for value in aux[len(static) :] if isinstance(value, Beside)]
        for name, value in zip((*leaves, *static, *beside), (*children, *given), strict=True):
            object.__setattr__(self, name, value)
        return self

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)


class Beside:
    """What goes with a pytree and is no part of it: equal to all others of its kind, and held weakly.

    Structures end up in caches: they must neither tell two pytrees apart by it nor keep it alive.
    """

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = None if value is None else weakref.ref(value)

    def __call__(self) -> object:
        return self.value and self.value()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Beside)

    def __hash__(self) -> int:
        return hash(Beside)

    def __repr__(self) -> str:
        return "..."


def _kept(value: object) -> object:
    # A structure ends up in caches that are never emptied: it must not keep the user's functions alive.
    return held(value) if callable(value) else value


def _given(value: object) -> object:
    return value() if isinstance(value, Held | Value) else value


def is_traced(*trees: PyTree) -> bool:
    """Whether any leaf is being traced, so that its value cannot be looked at."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))


def dtype(x: PyTree) -> np.dtype:
    """The floating dtype that all leaves of `x` promote to, whether or not JAX may promote anything by itself."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*jax.tree.leaves(x))


def cast(a: T, kind: DTypeLike) -> T:
    """Floating arrays among the leaves in another precision; Python numbers take any."""

    def leaf(value: PyTree) -> PyTree:
        floating = hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating)
        return value.astype(kind) if floating else value

    return jax.tree.map(leaf, a)


def select(ready: jax.Array | bool, new: T, old: T) -> T:
    """`new` where `ready`, else `old`, leaf by leaf."""
    return jax.tree.map(lambda a, b: jnp.where(ready, a, b), new, old)


def add(a: T, b: T) -> T:
    """a + b, leaf by leaf."""
    return jax.tree.map(jnp.add, a, b)


def subtract(a: T, b: T) -> T:
    """a - b, leaf by leaf."""
    return jax.tree.map(jnp.subtract, a, b)


def scale(a: T, factor: Scalar) -> T:
    """A multiple of a."""
    return jax.tree.map(lambda leaf: leaf * factor, a)


def total(a: PyTree) -> jax.Array:
    """The sum of all entries of all leaves."""
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(a))


def squared_norm(a: PyTree) -> jax.Array:
    """||a||_2^2 over all leaves together."""
    return total(jax.tree.map(jnp.square, a))


# On small problems the two products with the Jacobian are written as sums, not as `dot`: XLA's CPU backend then fuses
# the whole round into one loop, which is several times faster than a call into its matrix library. Long sums it adds up
# one by one, and there the library wins.
LONG = 4096


def pullback(queue: jax.Array, jac: T) -> T:
    """sum_i Q_i dg_i: the Jacobian (leading axis i) weighed by the queue."""

    def leaf(j: jax.Array) -> jax.Array:
        if j.size >= LONG:
            return jnp.tensordot(queue, j, axes=1)
        return jnp.sum(queue.reshape(-1, *[1] * (j.ndim - 1)) * j, axis=0)

    return jax.tree.map(leaf, jac)


def pushforward(jac: PyTree, step: PyTree) -> jax.Array:
    """(dg_i . step)_i: what the linearised constraints change by along `step`."""

    def leaf(j: jax.Array, s: jax.Array) -> jax.Array:
        if j.size >= LONG:
            return jnp.tensordot(j, s, axes=s.ndim)
        return jnp.sum(j * s[None], axis=tuple(range(1, j.ndim)))

    return sum(jax.tree.leaves(jax.tree.map(leaf, jac, step)))


# Compensated summation (Neumaier's variant of Kahan's): a float32 sum of 10^8 terms keeps its digits.


def compensated(zero: T) -> tuple[T, T]:
    """An empty compensated sum: the sum so far and what rounding has lost from it."""
    return zero, jax.tree.map(jnp.zeros_like, zero)


def compensated_add(acc: tuple[T, T], term: T) -> tuple[T, T]:
    """The compensated sum with one more term."""
    total, lost = acc
    new = add(total, term)

    def error(a: jax.Array, b: jax.Array, s: jax.Array) -> jax.Array:
        return jnp.where(jnp.abs(a) >= jnp.abs(b), (a - s) + b, (b - s) + a)

    return new, add(lost, jax.tree.map(error, total, term, new))


def running_add(acc: tuple[T, T], term: T) -> tuple[T, T]:
    """The same for a sum that is used after every term: what rounding has lost goes in with the next one.

    So the sum alone is right to a rounding or two, and its error is found aside (Knuth's two-sum, without a branch).
    """
    total, lost = acc
    term = add(term, lost)
    new = add(total, term)

    def error(a: jax.Array, b: jax.Array, s: jax.Array) -> jax.Array:
        part = s - a
        return (a - (s - part)) + (b - part)

    return new, jax.tree.map(error, total, term, new)
