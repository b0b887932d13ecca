"""Primitives that put entries elsewhere: shapes, parts, and what is looked up by an index."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ergodrift._core.cuda.rules import apply, rule
from ergodrift._core.cuda.values import IN_TEXT, Code, Rows, Small, Unsupported, Value, View, constant

__all__ = ["apply"]  # of all rules: those of this module are among them by now


def _moved(code: Code, value: Value, shape: tuple[int, ...], change: Callable[[np.ndarray], np.ndarray]) -> Value:
    """An array whose entries are those of another, put elsewhere; `change` moves the entries of all, or of a row."""
    axis = code.long_axis(shape)
    if axis is None:
        return Small(change(code.small(value).names), value.dtype)
    rows = code.rows(value)
    return Rows(shape, axis, value.dtype, lambda: change(code.entries(rows)))


@rule("broadcast_in_dim")
def broadcast(
    code: Code, operands: Sequence[Value], results: Sequence[Any], shape: Any, broadcast_dimensions: Any, **_: Any
) -> list[Value]:
    value, shape = operands[0], tuple(shape)
    if isinstance(value, View):
        strides = [0] * len(shape)
        for own, to in enumerate(broadcast_dimensions):
            strides[to] = value.strides[own] if value.shape[own] == shape[to] else 0
        return [dataclasses.replace(value, shape=shape, strides=tuple(strides))]
    axis = code.long_axis(shape)
    held = isinstance(value, Rows)
    target = shape if axis is None else shape[:axis] + shape[axis + 1 :]
    places = [to - (axis is not None and to > axis) for to in broadcast_dimensions if not held or to != axis]
    if held and (axis is None or broadcast_dimensions[value.axis] != axis):
        raise Unsupported(f"rows of shape {value.shape} as {shape}")

    def spread(names: np.ndarray) -> np.ndarray:
        middle = [1] * len(target)
        for size, to in zip(names.shape, places, strict=True):
            middle[to] = size
        return np.broadcast_to(names.reshape(middle), target)

    if axis is None:
        return [Small(spread(code.small(value).names), value.dtype)]
    if held:
        return [Rows(shape, axis, value.dtype, lambda: spread(code.entries(value)))]
    names = code.small(value).names
    if axis in broadcast_dimensions:  # of one number along it
        names = names.squeeze(tuple(broadcast_dimensions).index(axis))
        places = [to - (to > axis) for to in broadcast_dimensions if to != axis]
    return [Rows(shape, axis, value.dtype, lambda: spread(names))]


@rule("reshape")
def reshape(code: Code, operands: Sequence[Value], results: Sequence[Any], new_sizes: Any, **_: Any) -> list[Value]:
    value, shape = operands[0], tuple(new_sizes)
    if isinstance(value, View):
        dense = [math.prod(value.shape[i + 1 :]) for i in range(len(value.shape))]
        if all(size == 1 or own == want for size, own, want in zip(value.shape, value.strides, dense, strict=True)):
            strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
            return [dataclasses.replace(value, shape=shape, strides=strides)]
        kept = [(size, stride) for size, stride in zip(value.shape, value.strides, strict=True) if size != 1]
        if [size for size, _ in kept] == [size for size in shape if size != 1]:
            rest = iter(kept)
            return [dataclasses.replace(value, shape=shape, strides=tuple(
                0 if size == 1 else next(rest)[1] for size in shape))]  # fmt: skip
    old, new = code.long_axis(value.shape), code.long_axis(shape)
    if (old is None) != (new is None) or (old is not None and math.prod(value.shape[:old]) != math.prod(shape[:new])):
        raise Unsupported(f"rows of shape {value.shape} as {shape}")
    rest = shape if new is None else shape[:new] + shape[new + 1 :]
    return [_moved(code, value, shape, lambda names: names.reshape(rest))]


@rule("squeeze")
def squeeze(code: Code, operands: Sequence[Value], results: Sequence[Any], **_: Any) -> list[Value]:
    return reshape(code, operands, results, new_sizes=results[0].shape)


@rule("expand_dims")
def expand_dims(code: Code, operands: Sequence[Value], results: Sequence[Any], **_: Any) -> list[Value]:
    return reshape(code, operands, results, new_sizes=results[0].shape)


@rule("transpose")
def transpose(code: Code, operands: Sequence[Value], results: Sequence[Any], permutation: Any) -> list[Value]:
    value, shape = operands[0], tuple(results[0].shape)
    if isinstance(value, View):
        return [dataclasses.replace(value, shape=shape, strides=tuple(value.strides[i] for i in permutation))]
    old = code.long_axis(value.shape)
    inner = [i if old is None else i - (i > old) for i in permutation if i != old or old is None]
    return [_moved(code, value, shape, lambda names: names.transpose(inner))]


@rule("rev")
def reverse(code: Code, operands: Sequence[Value], results: Sequence[Any], dimensions: Any) -> list[Value]:
    value = operands[0]
    axis = code.long_axis(value.shape)
    if axis in dimensions:
        raise Unsupported("rows from the last to the first")
    inner = [i if axis is None else i - (i > axis) for i in dimensions]
    return [_moved(code, value, value.shape, lambda names: np.flip(names, tuple(inner)))]


def _cut(code: Code, value: Value, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> Value:
    cuts = tuple(slice(*cut) for cut in zip(starts, stops, steps, strict=True))
    shape = tuple(len(range(*cut.indices(size))) for cut, size in zip(cuts, value.shape, strict=True))
    if isinstance(value, View):
        first = sum(start * stride for start, stride in zip(starts, value.strides, strict=True))
        strides = tuple(stride * step for stride, step in zip(value.strides, steps, strict=True))
        aligned = value.aligned and first % 4 == 0
        return dataclasses.replace(
            value, shape=shape, strides=strides, offset=f"({value.offset} + {first})", aligned=aligned
        )
    axis = code.long_axis(value.shape)
    if axis is not None and shape[axis] == 1:
        names = np.expand_dims(code.at_row(code.rows(value), str(starts[axis])), axis)
        return Small(names[tuple(slice(None) if i == axis else cut for i, cut in enumerate(cuts))], value.dtype)
    if axis is not None and shape[axis] != value.shape[axis]:
        raise Unsupported("a part of rows that were computed")
    inner = tuple(cut for i, cut in enumerate(cuts) if i != axis)
    return _moved(code, value, shape, lambda names: names[inner])


@rule("slice")
def cut(
    code: Code, operands: Sequence[Value], results: Sequence[Any], start_indices: Any, limit_indices: Any, strides: Any
) -> list[Value]:
    steps = strides or (1,) * len(start_indices)
    return [_cut(code, operands[0], start_indices, limit_indices, steps)]


@rule("split")
def split(code: Code, operands: Sequence[Value], results: Sequence[Any], sizes: Any, axis: int) -> list[Value]:
    value, ends = operands[0], np.cumsum(sizes)

    def piece(size: int, end: int) -> Value:
        starts, stops = [0] * len(value.shape), list(value.shape)
        starts[axis], stops[axis] = end - size, end
        return _cut(code, value, starts, stops, [1] * len(starts))

    return [piece(size, int(end)) for size, end in zip(sizes, ends, strict=True)]


@rule("unstack")
def unstack(code: Code, operands: Sequence[Value], results: Sequence[Any], axis: int = 0, **_: Any) -> list[Value]:
    pieces = split(code, operands, results, (1,) * operands[0].shape[axis], axis)
    return [reshape(code, [piece], [one], new_sizes=one.shape)[0] for piece, one in zip(pieces, results, strict=True)]


@rule("concatenate")
def concatenate(code: Code, operands: Sequence[Value], results: Sequence[Any], dimension: int) -> list[Value]:
    shape = tuple(results[0].shape)
    axis = code.long_axis(shape)
    if axis is None:
        return [Small(np.concatenate([code.small(one).names for one in operands], dimension), operands[0].dtype)]
    if axis == dimension:
        raise Unsupported("rows put one after the other")
    rows, inner = [code.rows(one) for one in operands], dimension - (dimension > axis)
    return [Rows(shape, axis, operands[0].dtype,
                 lambda: np.concatenate([code.entries(one) for one in rows], inner))]  # fmt: skip


@rule("stack")
def stack(code: Code, operands: Sequence[Value], results: Sequence[Any], axis: int = 0, **_: Any) -> list[Value]:
    long = code.long_axis(tuple(results[0].shape))
    if long is None:
        return [Small(np.stack([code.small(one).names for one in operands], axis), operands[0].dtype)]
    rows, inner = [code.rows(one) for one in operands], axis - (axis > long)
    return [Rows(tuple(results[0].shape), long, operands[0].dtype,
                 lambda: np.stack([code.entries(one) for one in rows], inner))]  # fmt: skip


@rule("pad")
def pad(code: Code, operands: Sequence[Value], results: Sequence[Any], padding_config: Any) -> list[Value]:
    value, filling = code.small(operands[0]).names, code.small(operands[1]).names.item()
    shape, dtype = tuple(results[0].shape), operands[0].dtype
    if (axis := code.long_axis(shape)) is not None:  # one row among others
        low = padding_config[axis][0]
        if value.shape[axis] != 1 or any(any(c) for i, c in enumerate(padding_config) if i != axis):
            raise Unsupported("rows put among others")
        row = value.squeeze(axis)

        def one_or_filling() -> np.ndarray:
            names = np.empty(row.shape, object)
            for index in np.ndindex(row.shape):
                names[index] = code.named(f"{code.row} == {low} ? {row[index]} : {filling}", dtype)
            return names

        return [Rows(shape, axis, dtype, one_or_filling)]
    out = np.full(results[0].shape, filling, object)
    if any(low < 0 or high < 0 for low, high, _ in padding_config):
        raise Unsupported("a negative padding")
    places = tuple(slice(low, low + (size - 1) * (gap + 1) + 1 if size else low, gap + 1)
                   for size, (low, _, gap) in zip(value.shape, padding_config, strict=True))  # fmt: skip
    out[places] = value
    return [Small(out, operands[0].dtype)]


def _clamped(code: Code, start: Value, most: int) -> str:
    name = code.small(start).names.item()
    return name if most < 0 else code.named(f"smaller(larger((int){name}, 0), {most})", np.dtype("int32"))


@rule("dynamic_slice")
def dynamic_slice(
    code: Code, operands: Sequence[Value], results: Sequence[Any], slice_sizes: Any, **_: Any
) -> list[Value]:
    value, starts = operands[0], operands[1:]
    if isinstance(value, View):
        offset, aligned = value.offset, value.aligned
        for start, size, whole, stride in zip(starts, slice_sizes, value.shape, value.strides, strict=True):
            if size != whole:
                offset += f" + {_clamped(code, start, whole - size)} * {stride}"
                aligned = aligned and stride % 4 == 0
        place = code.named(offset, np.dtype("int32"))
        return [dataclasses.replace(value, shape=tuple(slice_sizes), offset=place, aligned=aligned)]
    if (long := code.long_axis(value.shape)) is not None and slice_sizes[long] == 1:
        row = _clamped(code, starts[long], value.shape[long] - 1)
        value = Small(np.expand_dims(code.at_row(code.rows(value), row), long), value.dtype)
        starts = [*starts[:long], constant(np.zeros(()), np.dtype("int32")), *starts[long + 1 :]]
    names = code.small(value).names
    for axis, (start, size) in enumerate(zip(starts, slice_sizes, strict=True)):
        if (whole := names.shape[axis]) == size:
            continue
        at = _clamped(code, start, whole - size)
        if whole > IN_TEXT:
            names = _looked_up(code, Small(names, value.dtype), axis, at, size)
            continue
        choices = [np.take(names, range(first, first + size), axis) for first in range(whole - size + 1)]
        names = choices[0].copy()
        for index in np.ndindex(names.shape):
            for first, choice in enumerate(choices[1:], 1):
                names[index] = code.named(f"{at} == {first} ? {choice[index]} : {names[index]}", value.dtype)
    return [Small(names, value.dtype)]


def _looked_up(code: Code, value: Small, axis: int, at: str, size: int) -> np.ndarray:
    """A part of a long array, of which only the run knows where it begins."""
    base, shape = code.array(value), (*value.shape[:axis], size, *value.shape[axis + 1 :])
    strides = [math.prod(value.shape[i + 1 :]) for i in range(len(shape))]
    names = np.empty(shape, object)
    for index in np.ndindex(shape):
        place = sum(i * stride for i, stride in zip(index, strides, strict=True))
        names[index] = code.named(f"{base}[{at} * {strides[axis]} + {place}]", value.dtype)
    return names


@rule("dynamic_update_slice")
def dynamic_update_slice(code: Code, operands: Sequence[Value], results: Sequence[Any], **_: Any) -> list[Value]:
    value, update, starts = code.small(operands[0]), code.small(operands[1]), operands[2:]
    names, moving = value.names.copy(), [i for i, size in enumerate(update.shape) if size != value.shape[i]]
    if len(moving) > 1:
        raise Unsupported("an update at two indices")
    if not moving:
        return [update]
    axis = moving[0]
    size, whole = update.shape[axis], value.shape[axis]
    at = _clamped(code, starts[axis], whole - size)
    for first in range(whole - size + 1):
        for index in np.ndindex(update.shape):
            to = (*index[:axis], index[axis] + first, *index[axis + 1 :])
            names[to] = code.named(f"{at} == {first} ? {update.names[index]} : {names[to]}", value.dtype)
    return [Small(names, value.dtype)]


@rule("gather")
def gather(
    code: Code,
    operands: Sequence[Value],
    results: Sequence[Any],
    dimension_numbers: Any,
    slice_sizes: Any,
    **other: Any,
) -> list[Value]:
    """Of one place: as a slice. (A whole array of places is not known here.)"""
    value, indices = operands
    if math.prod(indices.shape[:-1]) != 1 or "fill" in str(other.get("mode", "")).lower():
        raise Unsupported(f"a gather at {indices.shape} places")
    at = code.small(indices).names.reshape(-1)
    starts: list[Value] = [constant(np.zeros(()), np.dtype("int32")) for _ in value.shape]
    for name, axis in zip(at, dimension_numbers.start_index_map, strict=True):
        starts[axis] = Small(np.array(name, object), indices.dtype)
    piece = dynamic_slice(code, [value, *starts], results, slice_sizes=slice_sizes)
    return reshape(code, piece, results, new_sizes=tuple(results[0].shape))
