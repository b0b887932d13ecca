"""Compiled functions that live as long as the functions they are made of.

What `jax.jit` compiles for a function is kept until that function is gone. A function of ours that takes a problem is
never gone, and a problem's structure holds the user's loss and constraints: all that was ever compiled for any of them,
and all arrays they have captured, would be kept for ever. So structures hold functions by `Held`, which keeps nothing
alive, and for each structure there is a compiled function of its own, dropped once a function in its structure is gone.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift.types import PyTree

F = TypeVar("F", bound=Callable[..., PyTree])
Structure: TypeAlias = Any  # a jax.tree_util.PyTreeDef, which is no class to type checkers
Compiled: TypeAlias = Any  # what jax.jit makes of a function

KEPT = 64  # compiled functions of callables that are values and not objects: nothing tells when these are gone


_held: dict[object, Held] = {}


class Held:
    """A callable inside the structure of a pytree, by weak references; there is one for each callable."""

    __slots__ = ("again", "dropped", "parts")

    def __init__(self, again: Callable[..., PyTree], parts: tuple[object, ...], key: object) -> None:
        def gone(_: object, known: dict[object, Held] = _held) -> None:  # at the end of Python globals are gone first
            known.pop(key, None)
            for drop in self.dropped:
                drop()

        self.again, self.dropped = again, list[Callable[[], object]]()
        self.parts = tuple(weakref.ref(part, gone) for part in parts)

    def __call__(self) -> PyTree:
        parts = [part() for part in self.parts]
        if any(part is None for part in parts):
            raise ReferenceError("the functions of this problem are gone: keep the problem as long as its structure")
        return self.again(*parts)

    def __repr__(self) -> str:
        return repr(self())


class Value:
    """A callable inside the structure of a pytree that equals others of its kind, or allows no weak references."""

    __slots__ = ("value",)

    def __init__(self, value: PyTree) -> None:
        self.value = value

    def __call__(self) -> PyTree:
        return self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


def held(function: Callable[..., PyTree]) -> Held | Value:
    """What stands for a callable in the structure of a pytree.

    A bound method is a new object at each look at it, so it goes by its object and function. Another callable that is
    made anew each time says what it is made of: `made_of()` returns what makes it, and of what.
    """
    again, parts = _itself, (function,)
    if isinstance(function, types.MethodType):
        again, parts = types.MethodType, (function.__func__, function.__self__)
    elif hasattr(function, "made_of"):
        again, parts = function.made_of()  # type: ignore[attr-defined]
    elif type(function).__eq__ is not object.__eq__ and type(function).__hash__ is not None:
        return Value(function)
    key = (again, *map(id, parts))
    if (found := _held.get(key)) is None:
        try:
            found = _held[key] = Held(again, parts, key)
        except TypeError:  # of a class with slots
            return Value(function)
    return found


def _itself(function: PyTree) -> PyTree:
    return function


class Table:
    """What is compiled of one function of ours: for each structure of its first argument, a function of its own."""

    def __init__(self, function: Callable[..., PyTree], **options: PyTree) -> None:
        self.function, self.options = function, options
        self.objects: dict[Structure, Compiled] = {}
        self.values: OrderedDict[Structure, Compiled] = OrderedDict()

    def of(self, structure: Structure) -> Compiled:
        """The function, compiled, of the leaves of its first argument and of the others."""
        found = self.objects.get(structure)
        if found is None and structure in self.values:
            self.values.move_to_end(structure)
            found = self.values[structure]
        return self._made(structure) if found is None else found

    def _made(self, structure: Structure) -> Compiled:
        @functools.wraps(self.function)
        def whole(leaves: list[PyTree], *arguments: PyTree) -> PyTree:
            return self.function(structure.unflatten(leaves), *arguments)

        del whole.__wrapped__  # its arguments are not these
        made, found = jax.jit(whole, **self.options), _callables(structure)
        if any(isinstance(one, Value) for one in found):
            self.values[structure] = made
            while len(self.values) > KEPT:
                self.values.popitem(last=False)
        else:
            self.objects[structure] = made
        for one in found:
            if isinstance(one, Held):
                one.dropped.append(functools.partial(self._drop, structure))
        return made

    def _drop(self, structure: Structure) -> None:
        self.objects.pop(structure, None)
        self.values.pop(structure, None)

    def size(self) -> int:
        """How often it was compiled, over what is still there."""
        return sum(made._cache_size() for made in [*self.objects.values(), *self.values.values()])


def compiled(**options: PyTree) -> Callable[[F], F]:
    """`jax.jit` with these options for a function whose first argument is a pytree that may hold users' functions."""

    def decorate(function: F) -> F:
        table = Table(function, **options)
        # To look a problem up by itself, or to take it apart, costs as much as a small round: it goes by its address,
        # which is its own for as long as its weak reference lives.
        known: dict[tuple[int, bool], tuple[list[PyTree], Compiled]] = {}
        alive: dict[int, weakref.ref[object]] = {}

        @functools.wraps(function)
        def call(subject: PyTree, *arguments: PyTree) -> PyTree:
            key = id(subject), jax.config.jax_enable_x64  # type: ignore[attr-defined]  # JAX adds it
            parts = known.get(key)
            if parts is None:
                leaves, structure = jax.tree.flatten(subject)
                parts = leaves, table.of(structure)
                if _never_changes(type(subject)):
                    parts = known[key] = list(map(_on_device, leaves)), parts[1]
                    remember(subject)
            leaves, made = parts
            return made(leaves, *arguments)

        def remember(subject: object) -> None:
            address = id(subject)

            def forget(_: object) -> None:
                del alive[address]
                for wide in (False, True):
                    known.pop((address, wide), None)

            if address not in alive:
                alive[address] = weakref.ref(subject, forget)

        call._cache_size = table.size  # type: ignore[attr-defined]  # by the name that jax.jit gives it
        return call  # type: ignore[return-value]

    return decorate


def _on_device(leaf: PyTree) -> PyTree:
    """A number that never changes as an array, of the same type to JAX: to pass one costs a microsecond every time."""
    if isinstance(leaf, np.ndarray):
        lasting = not leaf.flags.writeable and leaf.base is None  # else it may be changed in place
    else:
        lasting = type(leaf) in (bool, int, float)
    if not lasting:
        return leaf
    with jax.ensure_compile_time_eval():  # the first call may be one that is being traced
        return jnp.asarray(leaf)


@functools.lru_cache
def _never_changes(kind: type) -> bool:
    """Whether an object of this kind is always the same pytree, and no other object equals it."""
    frozen = dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return frozen and kind.__hash__ is object.__hash__ and kind.__weakrefoffset__ != 0


def _callables(structure: Structure) -> list[Held | Value]:
    """All users' functions in a structure."""
    own = structure.node_data()
    here = [one for one in own[1] if isinstance(one, Held | Value)] if own and isinstance(own[1], tuple) else []
    return here + [one for child in structure.children() for one in _callables(child)]
