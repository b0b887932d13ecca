"""What people bring, as arrays: tables, series, lists and tensors, told by what they can do.

No library is imported for it: a table has columns, a tensor can be detached, a series knows what is missing in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from ergodrift.types import Array, PyTree


def as_arrays(name: str, data: PyTree) -> PyTree:
    """`data` as a pytree of arrays of numbers; what cannot be one is refused by name.

    - A table (pandas, polars, pyarrow), or an array with named fields, becomes a dict of its columns, each of shape
      (rows,): a loss reads `xi["price"]`. For one matrix, pass `table.to_numpy()`. A pandas index is left out.
    - A list of numbers, or of rows of them, becomes one array. Tuples and dicts are structure, as everywhere in JAX,
      and so is a list of arrays.
    - Series, tensors and whatever else NumPy understands become arrays. Half precision is widened to float32, which
      changes no number; arrays of JAX stay where they are.
    - Text, categories, dates, objects, missing and masked entries, sparse matrices and rows of unequal lengths are
      refused.

    >>> as_arrays("data", {"price": [1.5, 2.0], "sold": [True, False]})
    {'price': array([1.5, 2. ]), 'sold': array([ True, False])}
    """
    data = jax.tree.map(columns_of, data, is_leaf=_is_whole)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: _array(f"{name}{jax.tree_util.keystr(path)}", leaf), data, is_leaf=_is_whole
    )


def listed(name: str, value: PyTree) -> PyTree:
    """A pytree in which lists of numbers, or of rows of them, are arrays; all else stays what it is."""

    def is_list(part: PyTree) -> bool:
        return type(part) is list and _is_whole(part)

    return jax.tree.map(lambda part: as_arrays(name, part) if is_list(part) else part, value, is_leaf=is_list)


def columns_of(value: PyTree) -> PyTree:
    """A table as a dict of its columns; anything else as it is."""
    if isinstance(value, np.ndarray) and value.dtype.names:
        return {field: value[field] for field in value.dtype.names}
    if isinstance(getattr(value, "dtype", None), np.dtype):
        return value  # an array or a column; to ask one of pandas for what it has not takes long
    names = getattr(value, "column_names", None)  # pyarrow's; others call them columns
    if names is None and hasattr(value, "__getitem__") and hasattr(value, "shape"):
        names = getattr(value, "columns", None)
    if names is None:
        return value
    names = list(names)
    if len(set(names)) < len(names):
        twice = next(column for column in names if names.count(column) > 1)
        raise ValueError(f"data: two columns of the table have the name {twice!r}; rename one")
    try:
        sorted(names)
    except TypeError:
        raise ValueError(f"data: the columns {names} cannot be sorted; give them names of one type") from None
    return {column: value[column] for column in names}


def _is_whole(value: PyTree) -> bool:
    """Whether this is one array, though it has parts: a list of numbers, or of rows of numbers; a tuple only where it
    holds numbers itself. (An iterator is none, and refused.)"""
    if isinstance(value, Iterator):
        return True
    if not isinstance(value, list) and not (type(value) is tuple and value and _is_single(value[0])):
        return False
    first = value
    while isinstance(first, list | tuple) and first:
        first = first[0]
    return bool(value) and (isinstance(first, list | tuple) or _is_single(first))


def _is_single(value: object) -> bool:
    """Whether this would be one entry of an array: a number, or what is refused in the place of one."""
    if value is None or isinstance(value, str | bytes):
        return True
    if isinstance(value, Sized) and not hasattr(value, "ndim"):
        return False
    return getattr(value, "ndim", 0) == 0 and jax.tree_util.all_leaves([value])


def _array(name: str, value: PyTree) -> Array:
    if isinstance(value, jax.Array):
        array: Array = value
    elif isinstance(value, np.ma.MaskedArray):
        refuse_missing(name, np.ma.getmaskarray(value))
        array = np.ma.getdata(value)
    elif scipy.sparse.issparse(value):
        raise ValueError(f"{name} is a sparse matrix: pass {name}.toarray(), or make a table of it by LinearModel.data")
    elif isinstance(kind := getattr(value, "dtype", None), np.dtype) and kind.kind in "biuf":
        array = _kept_in_numpy(name, value)
    elif hasattr(value, "detach"):
        array = _tensor(value)
    elif hasattr(value, "to_numpy"):
        array = _series(name, value)
    else:
        array = _plain(name, value)
    if not (jnp.issubdtype(array.dtype, np.number) or array.dtype == bool):
        _refuse_kind(name, np.asarray(array))
    kind = _wide_enough(array.dtype)
    return array if array.dtype == kind else array.astype(kind)


def _kept_in_numpy(name: str, value: PyTree) -> np.ndarray:
    """An array of NumPy, or a column of pandas that is one, in which a NaN stands for what is missing."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    array = np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value)
    if array.dtype.kind == "f" and hasattr(value, "isna"):
        refuse_missing(name, np.isnan(array))
    return array


def _tensor(value: PyTree) -> np.ndarray:
    """A tensor of torch, from wherever it is and whether or not it has a gradient."""
    value = value.detach().cpu()
    if hasattr(value, "resolve_conj"):
        value = value.resolve_conj().resolve_neg()
    if not str(getattr(value, "layout", "strided")).endswith("strided"):
        value = value.to_dense()
    try:
        return np.asarray(value.numpy())
    except TypeError:  # bfloat16 and narrower, of which NumPy has none
        return np.asarray(value.float().numpy())


def _series(name: str, value: PyTree) -> np.ndarray:
    """A column of pandas, polars or pyarrow, none of whose entries may be missing."""
    kind = getattr(value, "dtype", getattr(value, "type", None))
    if str(kind).startswith(("category", "dictionary")):
        raise ValueError(
            f"{name} holds categories, not numbers; pass their codes (.cat.codes), or a column of 0 and 1 for each"
        )
    if getattr(value, "null_count", None) != 0:  # pyarrow has counted them
        missing = next((getattr(value, test) for test in ("isna", "is_null") if hasattr(value, test)), None)
        if missing is not None:
            refuse_missing(name, np.asarray(missing()))
    if getattr(kind, "kind", None) in ("M", "m"):
        _refuse_times(name, kind)  # with a time zone they would be objects
    plain = getattr(kind, "numpy_dtype", None)  # of pandas' own kinds, which else may come as objects
    if isinstance(plain, np.dtype) and plain.kind in "iufb":
        return value.to_numpy(dtype=plain)
    return np.asarray(value.to_numpy(zero_copy_only=False) if hasattr(value, "type") else value.to_numpy())


def _plain(name: str, value: PyTree) -> np.ndarray:
    try:
        array = np.asarray(value)
        if isinstance(value, list | tuple) and array.dtype.kind == "f":  # NumPy's choice for whole numbers from 2^63 on
            exact = np.array(value, dtype=object)
            if exact.size and all(type(entry) is int for entry in exact.flat):
                return exact.astype(np.uint64) if exact.min() >= 0 and exact.max() < 2**64 else exact
        return array
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(value, list) and isinstance(error, ValueError):
            raise ValueError(
                f"{name}: the rows of this list differ in length; fill them up to one length ({error})"
            ) from error
        raise ValueError(f"{name} cannot be made an array of numbers: {error}") from error


def refuse_missing(name: str, missing: np.ndarray) -> None:
    """Raise where an entry is missing, with its place."""
    if missing.any():
        where = tuple(int(i) for i in np.argwhere(missing)[0])
        place = f"row {where[0]}" if len(where) == 1 else f"index {where}"
        raise ValueError(f"{name} has no value at {place}; fill such entries in, or drop their rows")


def _refuse_times(name: str, kind: object) -> NoReturn:
    raise ValueError(
        f"{name} holds {kind}, not numbers; pass seconds since the start, such as (t - t[0]) / np.timedelta64(1, 's')"
    )


def _refuse_kind(name: str, array: np.ndarray) -> NoReturn:
    if array.dtype.kind in "Mm":
        _refuse_times(name, array.dtype)
    if array.ndim == 0:
        found = f"{type(array.item()).__name__}, not an array of numbers"
    elif array.size and array.dtype.kind == "O":
        numbers = [isinstance(entry, bool | int | float) for entry in array.flat]
        if all(numbers) and all(abs(entry) < 2**63 for entry in array.flat):
            raise ValueError(f"{name} holds numbers as Python objects; write .astype(float)")
        odd = array.flat[0] if all(numbers) else array.flat[numbers.index(False)]
        found = f"objects, not numbers, such as {odd!r}"
    else:
        found = f"{array.dtype}, not numbers" + (f", such as {array.flat[0]!r}" if array.size else "")
    raise ValueError(f"{name} holds {found}; leave it out, or turn it into numbers")


def _wide_enough(kind: np.dtype) -> np.dtype:
    """float32 for half precision and narrower, float64 for what is wider, bytes for parts of them; machine order."""
    if jnp.issubdtype(kind, jnp.floating) and kind.itemsize < 4:
        return np.dtype(np.float32)
    if jnp.issubdtype(kind, jnp.floating) and kind.itemsize > 8:
        return np.dtype(np.float64)
    if jnp.issubdtype(kind, jnp.complexfloating) and kind.itemsize > 16:
        return np.dtype(np.complex128)
    if kind.kind == "V":  # whole numbers of a few bits
        return np.dtype(np.int8 if jnp.issubdtype(kind, jnp.signedinteger) else np.uint8)
    return kind.newbyteorder("=")


def aligned(shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
    """An array to be filled, which JAX takes over on a CPU without copying it: it begins at a multiple of 64 bytes."""
    room = np.empty(math.prod(shape) * kind.itemsize + 64, np.uint8)
    start = -room.__array_interface__["data"][0] % 64
    return room[start : start + room.size - 64].view(kind).reshape(shape)
