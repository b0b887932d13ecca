"""What a kernel computes with: numbers in registers, views of memory, and rows, which lanes share among themselves."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Generator
from typing import TypeAlias

import numpy as np

IN_TEXT, MOST_IN_TABLE = 16, 4096  # numbers of a known array that are written out, and that are kept in memory
MOST = 1024  # numbers of one array in registers; beyond that a kernel would be no gain

TYPES = {
    "float32": "float", "float64": "double", "int32": "int", "uint32": "unsigned", "bool": "bool",
    "int64": "long long", "uint64": "unsigned long long", "int8": "signed char", "uint8": "unsigned char",
}  # fmt: skip


class Unsupported(Exception):  # noqa: N818  # nothing went wrong
    """The function does something that no kernel is written for; XLA takes it as it is."""


@dataclasses.dataclass(frozen=True)
class Small:
    """An array in registers: each lane of a seed has all its numbers, as names or literals of C."""

    names: np.ndarray  # of strings
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.names.shape


@dataclasses.dataclass(frozen=True)
class View:
    """An array in memory, not read yet: `pointer[offset + sum_i index_i stride_i]`.

    `aligned` says that the offset is a multiple of four numbers, so that four can be read at once.
    """

    pointer: str
    dtype: np.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: str = "0"
    aligned: bool = True

    def at(self, index: tuple[int, ...], more: str = "") -> str:
        place = sum(i * s for i, s in zip(index, self.strides, strict=True))
        return f"{self.pointer}[{self.offset} + {place}{more}]"


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """An array with one long axis: computed row by row inside a loop over that axis, and never stored.

    `entries()` writes what one row takes and returns its numbers, an array of names without the long axis.
    """

    shape: tuple[int, ...]
    axis: int
    dtype: np.dtype
    entries: Callable[[], np.ndarray]

    @property
    def rest(self) -> tuple[int, ...]:
        return self.shape[: self.axis] + self.shape[self.axis + 1 :]


Value: TypeAlias = Small | View | Rows


@dataclasses.dataclass(frozen=True)
class Reduction:
    """Rows to be reduced over their long axis, into numbers that are named already."""

    rows: Rows
    kind: str
    into: Small


class Code:
    """The source of a kernel while it is written.

    Args:
        long: sizes of axes that are looped over.
    """

    def __init__(self, long: frozenset[int]) -> None:
        self.long, self.lines, self.depth, self.count = long, list[str](), 1, 0
        self.row: str | None = None  # the row being computed, inside a loop over rows
        self.memo: dict[int, tuple[Rows, np.ndarray]] = {}  # what has been computed of this row
        self.four: tuple[str, int, dict[str, str]] | None = None  # rows four at a time: the first, which, what was read
        self.pending: list[Reduction] = []
        self.tables: list[str] = []  # declarations of constant arrays
        self.most_rows = 0
        self.accumulators = 1

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def fresh(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def named(self, expression: str, dtype: np.dtype) -> str:
        """A name for what an expression is worth here."""
        name = self.fresh()
        self.line(f"const {kind(dtype)} {name} = {expression};")
        return name

    def variables(self, shape: tuple[int, ...], dtype: np.dtype) -> Small:
        """Numbers that are assigned to later; where they are many, an array of C."""
        names, size = np.empty(shape, object), math.prod(shape)
        base = self.fresh("m")
        for place, index in enumerate(np.ndindex(shape)):
            names[index] = f"{base}_{place}" if size <= IN_TEXT else f"{base}[{place}]"
        for name in names.flat if size <= IN_TEXT else [f"{base}[{size}]"]:
            self.line(f"{kind(dtype)} {name};")
        return Small(names, dtype)

    def array(self, value: Small) -> str:
        """The name of an array of C with these numbers, to look up where the index is not known beforehand."""
        names = list(value.names.flat)
        base = names[0].partition("[")[0]
        if names != [f"{base}[{place}]" for place in range(len(names))]:
            base = self.fresh("b")
            self.line(f"const {kind(value.dtype)} {base}[{len(names)}] = {{{', '.join(names)}}};")
        return base

    @contextlib.contextmanager
    def block(self, opening: str) -> Generator[None]:
        """Braces; names within are not known outside, and nothing that waits outside is computed within."""
        before, self.pending = self.pending, []
        self.line(opening + " {")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")
        self.pending = before

    def long_axis(self, shape: tuple[int, ...]) -> int | None:
        """The axis that is looped over, if any."""
        axes = [axis for axis, size in enumerate(shape) if size in self.long]
        if len(axes) > 1:
            raise Unsupported(f"an array of shape {shape} with two long axes")
        if not axes and math.prod(shape) > MOST:
            raise Unsupported(f"an array of shape {shape} in registers")
        return axes[0] if axes else None

    def small(self, value: Value) -> Small:
        """The numbers of an array, read now where they are in memory."""
        if isinstance(value, View):
            if self.long_axis(value.shape) is not None:
                raise Unsupported(f"an array of shape {value.shape} in registers")
            names = np.empty(value.shape, object)
            for index in np.ndindex(value.shape):
                names[index] = self.named(value.at(index), value.dtype)
            return Small(names, value.dtype)
        if isinstance(value, Rows):
            raise Unsupported(f"rows of shape {value.shape} outside their loop")
        return value

    def rows(self, value: Value, shape: tuple[int, ...] | None = None) -> Rows:
        """An array as rows along the long axis of `shape`, its own unless given; numbers are the same in every row."""
        shape = value.shape if shape is None else shape
        axis = self.long_axis(shape)
        assert axis is not None
        if isinstance(value, Rows):
            return value
        if isinstance(value, View):
            stride, rest = value.strides[axis], [i for i in range(len(shape)) if i != axis]
            inner = dataclasses.replace(
                value, shape=tuple(shape[i] for i in rest), strides=tuple(value.strides[i] for i in rest)
            )

            def read() -> np.ndarray:
                names = np.empty(inner.shape, object)
                for index in np.ndindex(inner.shape):
                    names[index] = self._entry(inner, index, stride)
                return names

            return Rows(shape, axis, value.dtype, read)
        names = value.names
        return Rows(shape, axis, value.dtype, lambda: np.broadcast_to(names, shape[:axis] + shape[axis + 1 :]))

    def _entry(self, view: View, index: tuple[int, ...], stride: int) -> str:
        """One number of the row that is being computed, read with its neighbours where they lie side by side."""
        place = sum(i * s for i, s in zip(index, view.strides, strict=True))
        if self.four is None or stride != 1 or place % 4 or not view.aligned or str(view.dtype) not in FOURS:
            return self.named(view.at(index, f" + {self.row} * {stride}"), view.dtype)
        first, which, read = self.four
        address = view.at(index, f" + {first}")
        if address not in read:
            read[address] = self.fresh("f")
            kinds = FOURS[str(view.dtype)]
            self.line(f"const {kinds} {read[address]} = four_at(&{address});")
        return f"{read[address]}.{'xyzw'[which]}"

    def constant(self, value: np.ndarray, dtype: np.dtype) -> Small | View:
        """An array that is known while the kernel is written: large ones are kept in memory."""
        array = np.asarray(value)
        if array.size <= IN_TEXT:
            return constant(array, dtype)
        if array.size > MOST_IN_TABLE:
            raise Unsupported(f"an array of shape {array.shape} that a function has captured")
        name = self.fresh("t")
        numbers = ", ".join(literal(number, dtype) for number in array.flat)
        self.tables.append(f"TABLE {kind(dtype)} {name}[{array.size}] = {{{numbers}}};")
        strides = tuple(math.prod(array.shape[i + 1 :]) for i in range(array.ndim))
        return View(name, dtype, array.shape, strides, aligned=False)

    def entries(self, rows: Rows) -> np.ndarray:
        """The numbers of the row that is being computed, each written once."""
        if id(rows) not in self.memo:
            self.memo[id(rows)] = rows, rows.entries()
        return self.memo[id(rows)][1]

    def at_row(self, rows: Rows, row: str) -> np.ndarray:
        """The numbers of one row, computed here."""
        outer, self.row, memo, self.memo, four, self.four = self.row, row, self.memo, {}, self.four, None
        names = self.entries(rows)
        self.row, self.memo, self.four = outer, memo, four
        return names

    def reduced(self, rows: Rows, reduction: str) -> Small:
        """The reduction of rows over their long axis, by name; all that are asked for together share one loop."""
        into = Small(np.empty(rows.rest, object), rows.dtype)
        for index in np.ndindex(rows.rest):
            into.names[index] = self.fresh("a")
        self.pending.append(Reduction(rows, reduction, into))
        return into

    def flush(self) -> bool:
        """Write the loops over rows for all reductions that wait; whether there were any."""
        waiting, self.pending = self.pending, []
        for size in sorted({r.rows.shape[r.rows.axis] for r in waiting}):
            self._loop(size, [r for r in waiting if r.rows.shape[r.rows.axis] == size])
        return bool(waiting)

    def _loop(self, size: int, reductions: list[Reduction]) -> None:
        self.most_rows = max(self.most_rows, size)
        found: list[tuple[str, str]] = []  # accumulators, and how they go together
        for one in reductions:
            for name in one.into.names.flat:
                self.line(f"{kind(one.into.dtype)} {name} = {IDENTITY[one.kind](one.into.dtype)};")
                found.append((name, one.kind))
        logs = [(name, self.fresh("p"), kind(r.into.dtype))
                for r in reductions if r.kind == "log" for name in r.into.names.flat]  # fmt: skip
        outer, before = self.row, self.memo
        per_turn = 4 if size % 4 == 0 else 1
        turn, first = self.fresh("r"), "lane"
        last, stretch = f"{size // per_turn}", f"{64 // per_turn} * LANES"
        with contextlib.ExitStack() as loops:
            if logs:  # products of up to 64 factors between 1/2 and 1 stay above the smallest float
                first, end = self.fresh("r"), self.fresh("r")
                loops.enter_context(self.block(f"for (int {first} = lane; {first} < {last}; {first} += {stretch})"))
                self.line(f"const int {end} = smaller({last}, {first} + {stretch});")
                last = end
                for _, product, c in logs:
                    self.line(f"{c} {product} = 1;")
            with self.block(f"for (int {turn} = {first}; {turn} < {last}; {turn} += LANES)"):
                read: dict[str, str] = {}
                products = {name: product for name, product, _ in logs}
                for which in range(per_turn):
                    self.row, self.memo = turn, {}
                    if per_turn > 1:
                        self.row, self.four = f"({turn} * 4 + {which})", (f"{turn} * 4", which, read)
                    for one in reductions:
                        for name, entry in zip(one.into.names.flat, self.entries(one.rows).flat, strict=True):
                            target, how = (products[name], "prod") if one.kind == "log" else (name, one.kind)
                            self.line(f"{target} = {COMBINE[how].format(target, entry)};")
                self.four = None
            for name, product, _ in logs:
                self.line(f"{name} += log_of({product});")
        self.row, self.memo = outer, before
        self.accumulators = max(self.accumulators, len(found))
        self.line("#if LANES > 1")
        for name, how in found:
            self.line(f"{name} = warp_all<{FUNCTOR[how]}>({name}, members);")
        self.line("#endif")
        self.line("#if LANES > 32")
        with self.block(""):
            for at, (name, _) in enumerate(found):
                self.line(f"if (lane % 32 == 0) shared[(phase * ACCUMULATORS + {at}) * 32 + lane / 32] = {name};")
            self.line("__syncthreads();")
            for at, (name, how) in enumerate(found):
                self.line(
                    f"{name} = across_warps<{FUNCTOR[how]}>({name}, shared + (phase * ACCUMULATORS + {at}) * 32);"
                )
            self.line("phase = 1 - phase;")
        self.line("#endif")


def kind(dtype: np.dtype) -> str:
    """A type of C."""
    if str(dtype) not in TYPES:
        raise Unsupported(f"numbers of type {dtype}")
    return TYPES[str(dtype)]


def literal(value: object, dtype: np.dtype) -> str:
    """A number as C writes it, to the last digit."""
    number = np.asarray(value, dtype).item()
    c = kind(dtype)
    if c == "bool":
        return "true" if number else "false"
    if not isinstance(number, float):
        return f"(({c}){number}{'ll' if '64' in str(dtype) else 'u' if c == 'unsigned' else ''})"
    suffix = "f" if c == "float" else ""
    if math.isnan(number):
        return f"(0.0{suffix} / 0.0{suffix})"
    if math.isinf(number):
        return f"({'-' if number < 0 else ''}1.0{suffix} / 0.0{suffix})"
    return f"{number!r}{suffix}" if number >= 0 and math.copysign(1, number) > 0 else f"({number!r}{suffix})"


def constant(value: np.ndarray, dtype: np.dtype) -> Small:
    """An array that is known while the kernel is written."""
    array = np.asarray(value)
    names = np.empty(array.shape, object)
    for index in np.ndindex(array.shape):
        names[index] = literal(array[index], dtype)
    return Small(names, dtype)


def _least(dtype: np.dtype) -> str:
    return literal(-np.inf if np.issubdtype(dtype, np.floating) else np.iinfo(dtype).min, dtype)


def _most(dtype: np.dtype) -> str:
    return literal(np.inf if np.issubdtype(dtype, np.floating) else np.iinfo(dtype).max, dtype)


IDENTITY: dict[str, Callable[[np.dtype], str]] = {
    "sum": lambda dtype: "0", "prod": lambda dtype: "1", "max": _least, "min": _most,
    "or": lambda dtype: "false", "and": lambda dtype: "true", "log": lambda dtype: "0",
}  # fmt: skip
COMBINE = {
    "sum": "{} + {}", "prod": "{} * {}", "max": "larger({}, {})", "min": "smaller({}, {})",
    "or": "{} || {}", "and": "{} && {}",
}  # fmt: skip
FOURS = {"float32": "float4", "int32": "int4"}
FUNCTOR = {"sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min", "or": "Or", "and": "And", "log": "Sum"}
