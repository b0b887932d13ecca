"""What a function computes, as a short text: the same for the same function written again, in any process.

Two ways to tell. `computation` looks at the function as JAX traces it: primitives, types, and all constants by their
contents, captured arrays too. Names, lines of source and places in memory do not count. `code` looks at the Python
function itself, where nobody may know what it will be traced with: its instructions, and by contents all that it
captures or finds among the globals of its module.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import re
import sysconfig
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift.types import Array, PyTree

if TYPE_CHECKING:
    from jax.extend.core import Jaxpr, Literal, Var

# Names, and rules that a derivative has been taken by already: its equations stand where they are used.
UNSEEN = {"name", "debug_info", "name_and_src_info", "jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "out_trees"}
# Where arrays lie: the same computation is traced for one device and for several.
UNSEEN |= {"sharding", "ctx_mesh", "in_shardings", "out_shardings", "in_layouts", "out_layouts"}
LIBRARY = sysconfig.get_path("stdlib")
PACKAGES = {"builtins", "jax", "jaxlib", "numpy", "scipy"}  # told by name: they have versions


def computation(function: Callable[..., PyTree], *arguments: PyTree) -> str:
    """Of a function of pytrees of arrays (or of their shapes) as JAX traces it. Take the derivatives you use inside it:
    a rule of a function's own (`custom_jvp`, `custom_vjp`) counts by what it is used for.

    >>> limit = 0.5
    >>> one = computation(lambda x: x - limit, 1.0)
    >>> limit = 0.1
    >>> computation(lambda other: other - 0.5, 1.0) == one != computation(lambda x: x - limit, 1.0)
    True
    """
    return _Writer().write(jax.make_jaxpr(function)(*arguments)).text


def code(function: Callable[..., PyTree]) -> str:
    """Of a Python function as it is written."""
    return _Writer().write(function).text


class _Writer:
    """Feeds a digest with a description of a value that says all that matters and nothing else."""

    def __init__(self, within: set[int] | None = None) -> None:
        self.digest = hashlib.sha256()
        self.open = set() if within is None else within  # what is being written

    @property
    def text(self) -> str:
        return self.digest.hexdigest()

    def feed(self, *words: object) -> _Writer:
        for word in words:
            part = word if isinstance(word, bytes) else str(word).encode()
            self.digest.update(len(part).to_bytes(8, "big") + part)
        return self

    def write(self, value: PyTree) -> _Writer:
        match value:
            case None | bool() | int() | float() | complex() | str() | bytes():
                return self.feed(type(value).__name__, repr(value))
            case enum.Enum():
                return self.feed(type(value).__name__, value.name)
            case np.dtype() | type() | types.ModuleType():
                return self.feed("called", getattr(value, "__name__", value))
            case tuple() | list():
                return self.feed(type(value).__name__, len(value)).each(value)
            case Mapping():
                return self.feed("mapping", *sorted(_Writer(self.open).write(pair).text for pair in value.items()))
            case set() | frozenset():
                return self.feed("set", *sorted(_Writer(self.open).write(part).text for part in value))
            case types.CodeType():
                return self.feed("code", value.co_code, value.co_names).each(value.co_consts)
            case _:
                pass
        if hasattr(value, "jaxpr") and hasattr(value, "consts"):
            return self.each(value.consts).jaxpr(value.jaxpr)
        if hasattr(value, "eqns"):
            return self.jaxpr(value)
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return self.array(value) if hasattr(value, "__array__") else self.aval(value)
        return self.callable(value) if callable(value) else self.thing(value)

    def each(self, values: Iterable[object]) -> _Writer:
        for value in values:
            self.write(value)
        return self

    def array(self, value: Array) -> _Writer:
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        array = np.asarray(value)
        return self.feed("array", array.dtype, array.shape, np.ascontiguousarray(array).tobytes())

    def jaxpr(self, jaxpr: Jaxpr) -> _Writer:
        """Equation by equation; variables are told by the order in which they appear."""
        numbers: dict[object, int] = {}

        def new(variables: Iterable[Var]) -> None:
            for variable in variables:
                numbers[variable] = len(numbers)
                self.aval(variable.aval)

        def used(atoms: Iterable[Var | Literal]) -> None:
            for atom in atoms:
                value = getattr(atom, "val", atom)  # of a literal
                if value is atom:
                    self.feed("variable", numbers[value])
                else:
                    self.write(value).aval(atom.aval)

        self.feed("jaxpr", len(jaxpr.constvars), len(jaxpr.invars), len(jaxpr.eqns))
        new([*jaxpr.constvars, *jaxpr.invars])
        for equation in jaxpr.eqns:
            self.feed(equation.primitive.name)
            used(equation.invars)
            self.write({name: value for name, value in equation.params.items() if name not in UNSEEN})
            new(equation.outvars)
        used(jaxpr.outvars)
        return self

    def aval(self, aval: object) -> _Writer:
        described = getattr(aval, "dtype", None), getattr(aval, "shape", None), getattr(aval, "weak_type", None)
        return self.feed(type(aval).__name__, *described)

    def callable(self, value: Callable[..., PyTree]) -> _Writer:
        """A Python function, as in a callback: by what it is made of, or by name where a package has it."""
        package = str(getattr(value, "__module__", None)).split(".")[0]
        if isinstance(value, functools.partial):
            return self.feed("partial").each([value.func, value.args, value.keywords])
        if package in PACKAGES and hasattr(value, "__qualname__"):
            return self.feed("called", value.__module__, value.__qualname__)
        if isinstance(value, types.MethodType):
            return self.within(value, [value.__func__, value.__self__])
        if isinstance(value, types.FunctionType):
            cells = [_content(cell) for cell in value.__closure__ or ()]
            names = _names(value.__code__)
            found = {name: _used(value.__globals__[name], names) for name in names if name in value.__globals__}
            return self.within(value, [value.__code__, value.__defaults__, value.__kwdefaults__, cells, found])
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is not None:  # as by jax.jit, or by jax.custom_jvp with a rule
            rules = [getattr(value, name, None) for name in ("jvp", "fwd", "bwd")]
            return self.within(value, [wrapped, rules])
        called = vars(type(value)).get("__call__")
        if isinstance(called, types.FunctionType):  # an object of the user's own that can be called
            return self.within(value, [called]).thing(value)
        return self.thing(value)

    def within(self, whole: object, parts: Iterable[object]) -> _Writer:
        """The parts of something that may be among its own parts, as a function that calls itself is."""
        if id(whole) in self.open:
            return self.feed("again")
        self.open.add(id(whole))
        self.each(parts)
        self.open.remove(id(whole))
        return self

    def thing(self, value: object) -> _Writer:
        """Anything else: by its class and its parts, or as it prints."""
        self.feed(type(value).__module__, type(value).__qualname__)
        if dataclasses.is_dataclass(value):
            return self.within(value, [{f.name: getattr(value, f.name) for f in dataclasses.fields(value)}])
        if type(value).__module__.split(".")[0] not in PACKAGES and hasattr(value, "__dict__"):
            return self.within(value, [vars(value)])
        return self.feed(re.sub(r" at 0x[0-9a-f]+", "", repr(value)))


def _used(value: object, names: set[str]) -> object:
    """Of a module of the user's own, which has no version, what a function may use of it."""
    file = getattr(value, "__file__", None)
    if not isinstance(value, types.ModuleType) or not file or value.__name__.split(".")[0] in {*PACKAGES, "ergodrift"}:
        return value
    if {"site-packages", "dist-packages"} & set(Path(file).parts) or Path(file).is_relative_to(LIBRARY):
        return value
    return {name: _used(getattr(value, name), names) for name in sorted(names) if hasattr(value, name)}


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not yet given
        return None


def _names(code: types.CodeType) -> set[str]:
    """The globals that instructions may look up, in functions inside as well."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)
