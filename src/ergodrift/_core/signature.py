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
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Names, and rules that a derivative has been taken by already: its equations stand where they are used.
UNSEEN = {"name", "debug_info", "name_and_src_info", "jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "out_trees"}
# Where arrays lie: the same computation is traced for one device and for several.
UNSEEN |= {"sharding", "ctx_mesh", "in_shardings", "out_shardings", "in_layouts", "out_layouts"}
PACKAGES = {"builtins", "jax", "jaxlib", "numpy", "scipy"}  # told by name: they have versions


def computation(function: Callable[..., Any], *arguments: Any) -> str:
    """Of a function of pytrees of arrays (or of their shapes) as JAX traces it. Take the derivatives you use inside it:
    a rule of a function's own (`custom_jvp`, `custom_vjp`) counts by what it is used for.

    >>> limit = 0.5
    >>> one = computation(lambda x: x - limit, 1.0)
    >>> limit = 0.1
    >>> computation(lambda other: other - 0.5, 1.0) == one != computation(lambda x: x - limit, 1.0)
    True
    """
    return _Writer().write(jax.make_jaxpr(function)(*arguments)).text


def code(function: Any) -> str:
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

    def say(self, *words: Any) -> _Writer:
        for word in words:
            part = word if isinstance(word, bytes) else str(word).encode()
            self.digest.update(len(part).to_bytes(8, "big") + part)
        return self

    def write(self, value: Any) -> _Writer:
        match value:
            case None | bool() | int() | float() | complex() | str() | bytes():
                return self.say(type(value).__name__, repr(value))
            case enum.Enum():
                return self.say(type(value).__name__, value.name)
            case np.dtype() | type() | types.ModuleType():
                return self.say("called", getattr(value, "__name__", value))
            case tuple() | list():
                return self.say(type(value).__name__, len(value)).each(value)
            case Mapping():
                return self.say("mapping", *sorted(_Writer(self.open).write(pair).text for pair in value.items()))
            case set() | frozenset():
                return self.say("set", *sorted(_Writer(self.open).write(part).text for part in value))
            case types.CodeType():
                return self.say("code", value.co_code, value.co_names).each(value.co_consts)
        if hasattr(value, "jaxpr") and hasattr(value, "consts"):
            return self.each(value.consts).jaxpr(value.jaxpr)
        if hasattr(value, "eqns"):
            return self.jaxpr(value)
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return self.array(value) if hasattr(value, "__array__") else self.aval(value)
        return self.callable(value) if callable(value) else self.thing(value)

    def each(self, values: Any) -> _Writer:
        for value in values:
            self.write(value)
        return self

    def array(self, value: Any) -> _Writer:
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        array = np.asarray(value)
        return self.say("array", array.dtype, array.shape, np.ascontiguousarray(array).tobytes())

    def jaxpr(self, jaxpr: Any) -> _Writer:
        """Equation by equation; variables are told by the order in which they appear."""
        numbers: dict[Any, int] = {}

        def new(variables: Any) -> None:
            for variable in variables:
                numbers[variable] = len(numbers)
                self.aval(variable.aval)

        def used(atoms: Any) -> None:
            for atom in atoms:
                if hasattr(atom, "val"):
                    self.write(atom.val).aval(atom.aval)
                else:
                    self.say("variable", numbers[atom])

        self.say("jaxpr", len(jaxpr.constvars), len(jaxpr.invars), len(jaxpr.eqns))
        new([*jaxpr.constvars, *jaxpr.invars])
        for equation in jaxpr.eqns:
            self.say(equation.primitive.name)
            used(equation.invars)
            self.write({name: value for name, value in equation.params.items() if name not in UNSEEN})
            new(equation.outvars)
        used(jaxpr.outvars)
        return self

    def aval(self, aval: Any) -> _Writer:
        described = getattr(aval, "dtype", None), getattr(aval, "shape", None), getattr(aval, "weak_type", None)
        return self.say(type(aval).__name__, *described)

    def callable(self, value: Any) -> _Writer:
        """A Python function, as in a callback: by what it is made of, or by name where a package has it."""
        package = str(getattr(value, "__module__", None)).split(".")[0]
        if isinstance(value, functools.partial):
            return self.say("partial").each([value.func, value.args, value.keywords])
        if package in PACKAGES and hasattr(value, "__qualname__"):
            return self.say("called", value.__module__, value.__qualname__)
        if isinstance(value, types.MethodType):
            return self.within(value, [value.__func__, value.__self__])
        if isinstance(value, types.FunctionType):
            cells = [_content(cell) for cell in value.__closure__ or ()]
            found = {name: value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__}
            return self.within(value, [value.__code__, value.__defaults__, value.__kwdefaults__, cells, found])
        if hasattr(value, "__wrapped__"):  # as by jax.jit, or by jax.custom_jvp with a rule
            rules = [getattr(value, name, None) for name in ("jvp", "fwd", "bwd")]
            return self.within(value, [value.__wrapped__, rules])
        return self.thing(value)

    def within(self, whole: Any, parts: Any) -> _Writer:
        """The parts of something that may be among its own parts, as a function that calls itself is."""
        if id(whole) in self.open:
            return self.say("again")
        self.open.add(id(whole))
        self.each(parts)
        self.open.remove(id(whole))
        return self

    def thing(self, value: Any) -> _Writer:
        """Anything else: by its class and its parts, or as it prints."""
        self.say(type(value).__module__, type(value).__qualname__)
        if dataclasses.is_dataclass(value):
            return self.within(value, [{f.name: getattr(value, f.name) for f in dataclasses.fields(value)}])
        if type(value).__module__.split(".")[0] not in PACKAGES and hasattr(value, "__dict__"):
            return self.within(value, [vars(value)])
        return self.say(re.sub(r" at 0x[0-9a-f]+", "", repr(value)))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet given
        return None


def _names(code: types.CodeType) -> set[str]:
    """The globals that instructions may look up, in functions inside as well."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)
