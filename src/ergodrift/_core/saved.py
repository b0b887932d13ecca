"""Pytrees of arrays in one file: a plain `.npz` with a header in JSON and no pickles, so that reading runs no code."""

from __future__ import annotations

import collections
import functools
import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core.files import npz, replacing
from ergodrift.types import PyTree

HEADER = "header"


def write(path: str | os.PathLike[str], kind: str, content: dict[str, PyTree], known: dict[str, type]) -> None:
    """Write `content`, whole or not at all.

    Dicts, lists, tuples, NamedTuples, None, strings, numbers and whatever NumPy takes for them are kept; anything else
    is refused by name. `known` are the NamedTuples that `read` is to make of their own class.
    """
    arrays: list[np.ndarray] = []
    header = {"format": kind, "content": _plan(content, kind.split()[1], arrays, known)}
    whole = io.BytesIO()
    named: dict[str, PyTree] = {f"array {number}": array for number, array in enumerate(arrays)}
    np.savez(whole, allow_pickle=False, **{HEADER: np.array(json.dumps(header)), **named})
    with replacing(path) as file:
        file.write(whole.getbuffer())


def read(path: str | os.PathLike[str], kind: str, known: dict[str, type]) -> dict[str, PyTree]:
    """What `write` wrote, with NumPy arrays; an unknown NamedTuple becomes one of the same name and fields."""
    path = Path(path)
    try:
        with npz(path) as file:
            if HEADER not in file:
                raise ValueError("it has no header")
            header = json.loads(str(file[HEADER]))
            if header["format"] != kind:
                raise ValueError(f"it has format {header['format']!r}, this version reads {kind!r}")
            return _made(header["content"], file, known)
    except FileNotFoundError:
        raise
    except Exception as error:  # there is no end to what a damaged file makes its readers raise
        raise ValueError(f"{path} is not a file of {kind!r} that can be used: {error}") from error


def _plan(value: PyTree, where: str, arrays: list[np.ndarray], known: dict[str, type]) -> dict[str, PyTree]:
    """How to make `value` again of JSON and arrays, which are added to the list."""
    if value is None or type(value) in (str, bool, int, float):
        return {"plain": value}
    names = getattr(value, "_fields", None)
    if isinstance(value, tuple) and names is not None:
        name = type(value).__name__
        fields = {field: _plan(getattr(value, field), f"{where}.{field}", arrays, known) for field in names}
        return {"known" if known.get(name) is type(value) else "named": name, "fields": fields}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_plan(part, f"{where}[{i}]", arrays, known) for i, part in enumerate(value)]}
    if isinstance(value, dict):
        if strange := [key for key in value if type(key) not in (str, int)]:
            raise TypeError(f"{where} has the key {strange[0]!r}; only strings and whole numbers can be saved as keys")
        pairs = [[key, _plan(part, f"{where}[{key!r}]", arrays, known)] for key, part in value.items()]
        return {"ordered" if isinstance(value, collections.OrderedDict) else "dict": pairs}
    if not jax.tree_util.all_leaves([value]):
        raise TypeError(
            f"{where} is of type {type(value).__name__}, which cannot be saved: only dicts, lists, tuples, NamedTuples "
            "and arrays can; save jax.tree.leaves of it, or use such a structure for x0"
        )
    array = np.asarray(value)
    if array.dtype.kind in "OSUM":
        raise TypeError(f"{where} holds {array.dtype}; only numbers can be saved")
    arrays.append(array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array)  # such as bfloat16
    return {"array": len(arrays) - 1, "dtype": array.dtype.name, "shape": list(array.shape)}


def _made(plan: dict[str, PyTree], file: Mapping[str, np.ndarray], known: dict[str, type]) -> PyTree:
    make = functools.partial(_made, file=file, known=known)
    if "plain" in plan:
        return plan["plain"]
    if "array" in plan:
        array = file[f"array {plan['array']}"]
        dtype = np.dtype(jnp.dtype(plan["dtype"]))
        array = array.view(dtype) if array.dtype != dtype and dtype.kind == "V" else array
        if (array.dtype, list(array.shape)) != (dtype, plan["shape"]):
            found = f"{array.dtype} of shape {array.shape}"
            raise ValueError(f"array {plan['array']} is {found}, not {dtype} of shape {tuple(plan['shape'])}")
        return array
    if "fields" in plan:
        fields = {field: make(part) for field, part in plan["fields"].items()}
        cls: Callable[..., PyTree] = known[plan["known"]] if "known" in plan else _named(plan["named"], tuple(fields))
        return cls(**fields)
    for name, pack in [("dict", dict), ("ordered", collections.OrderedDict)]:
        if name in plan:
            return pack((key, make(part)) for key, part in plan[name])
    name, pack = ("list", list) if "list" in plan else ("tuple", tuple)
    return pack(make(part) for part in plan[name])


@functools.cache
def _named(name: str, fields: tuple[str, ...]) -> type:
    """One class for a name and its fields, so that two files of one structure have one structure."""
    return collections.namedtuple(name, fields)  # type: ignore[misc]  # its fields are known at run time
