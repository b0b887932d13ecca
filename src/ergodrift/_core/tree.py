"""Pytrees: the dataclass every hyperparameter lives in, and the little linear algebra a round needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ergodrift._core.compiled import Held, Value, held

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def module(*static: str) -> Callable[[type[T]], type[T]]:
    """A frozen dataclass that is a pytree: numbers are leaves, the fields named in `static` are not.

    Unlike `jax.tree_util.register_dataclass`, rebuilding one from its leaves does not run `__post_init__`:
    the checks there are for what a user wrote, not for tracers or batched values.
    """

    def register(cls: type[T]) -> type[T]:
        cls = dataclasses.dataclass(frozen=True, eq=False)(cls)
        names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        leaves = [name for name in names if name not in static]

        def flatten(self: T) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
            children = [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in leaves]
            return children, tuple(_kept(getattr(self, name)) for name in static)

        def unflatten(aux: tuple[Any, ...], children: Any) -> T:
            self = object.__new__(cls)
            for name, value in [*zip(leaves, children, strict=True), *zip(static, map(_given, aux), strict=True)]:
                object.__setattr__(self, name, value)
            return self

        jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
        return cls

    return register


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Module:
    """A class whose subclasses are such dataclasses, `class Mine(Base, static=("label",))`: nothing to remember.

    What is static in a base is so in what is made of it.
    """

    _static: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, *, static: tuple[str, ...] = (), **options: object) -> None:
        super().__init_subclass__(**options)
        cls._static = (*cls._static, *static)
        module(*cls._static)(cls)


def _kept(value: Any) -> Any:
    # A structure ends up in caches that are never emptied: it must not keep the user's functions alive.
    return held(value) if callable(value) else value


def _given(value: Any) -> Any:
    return value() if isinstance(value, Held | Value) else value


def is_traced(*trees: Any) -> bool:
    """Whether any leaf is being traced, so that its value cannot be looked at."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))


def dtype(x: Any) -> Any:
    """The floating dtype that all leaves of `x` promote to, whether or not JAX may promote anything by itself."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*jax.tree.leaves(x))


def cast(a: T, kind: Any) -> T:
    """Floating arrays among the leaves in another precision; Python numbers take any."""

    def leaf(value: Any) -> Any:
        floating = hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating)
        return value.astype(kind) if floating else value

    return jax.tree.map(leaf, a)


def select(ready: Any, new: T, old: T) -> T:
    """`new` where `ready`, else `old`, leaf by leaf."""
    return jax.tree.map(lambda a, b: jnp.where(ready, a, b), new, old)


def add(a: T, b: T) -> T:
    """a + b, leaf by leaf."""
    return jax.tree.map(jnp.add, a, b)


def subtract(a: T, b: T) -> T:
    """a - b, leaf by leaf."""
    return jax.tree.map(jnp.subtract, a, b)


def scale(a: T, factor: Any) -> T:
    """A multiple of a."""
    return jax.tree.map(lambda leaf: leaf * factor, a)


def total(a: Any) -> Any:
    """The sum of all entries of all leaves."""
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(a))


def squared_norm(a: Any) -> Any:
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


def pushforward(jac: Any, step: Any) -> Any:
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
