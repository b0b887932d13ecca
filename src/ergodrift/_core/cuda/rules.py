"""The primitives of JAX that a kernel can be made of, each by what it does to numbers, views and rows."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ergodrift._core.cuda.values import (
    COMBINE,
    IN_TEXT,
    MOST,
    Code,
    Rows,
    Small,
    Unsupported,
    Value,
    constant,
    kind,
)

Rule: TypeAlias = Callable[..., list[Value]]  # of the code, the operands, the results' shapes, and the parameters
RULES: dict[str, Rule] = {}

# Entry by entry. Names in lower case are functions of the prelude, overloaded by type.
ENTRYWISE = {
    "add": "{} + {}", "add_any": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "divided({}, {})",
    "rem": "remainder_of({}, {})", "neg": "-{}", "max": "larger({}, {})", "min": "smaller({}, {})",
    "pow": "power({}, {})", "sqrt": "root({})", "rsqrt": "1 / root({})", "cbrt": "cbrt({})", "abs": "size_of({})",
    "sign": "sign_of({})", "exp": "exp_of({})", "exp2": "exp2_of({})", "expm1": "expm1({})", "log": "log_of({})",
    "log1p": "log1p_of({})", "logistic": "logistic_of({})", "tanh": "tanh({})", "sin": "sin({})", "cos": "cos({})",
    "tan": "tan({})", "asin": "asin({})", "acos": "acos({})", "atan": "atan({})", "atan2": "atan2({}, {})",
    "sinh": "sinh({})", "cosh": "cosh({})", "asinh": "asinh({})", "acosh": "acosh({})", "atanh": "atanh({})",
    "erf": "erf({})", "erfc": "erfc({})", "lgamma": "lgamma({})", "floor": "floor({})", "ceil": "ceil({})",
    "square": "{0} * {0}", "eq": "{} == {}", "ne": "{} != {}", "lt": "{} < {}", "le": "{} <= {}", "gt": "{} > {}",
    "ge": "{} >= {}", "is_finite": "finite({})", "shift_left": "shifted_left({}, {})",
    "shift_right_arithmetic": "shifted_right({}, {})", "shift_right_logical": "shifted_logical({}, {})",
    "copy": "{}", "copy_p": "{}", "stop_gradient": "{}", "real": "{}", "clz": "leading_zeros({})",
    "population_count": "bits_in({})",
}  # fmt: skip
QUICK = {  # inside loops over rows
    "divided({}, {})": "quick_divided({}, {})", "exp_of({})": "quick_exp({})", "logistic_of({})": "quick_logistic({})",
    "log_of({})": "quick_log({})", "log1p_of({})": "quick_log1p({})",
}  # fmt: skip
LOGICAL = {"and": ("&", "&&"), "or": ("|", "||"), "xor": ("^", "!=")}
REDUCTIONS = {
    "reduce_sum": "sum", "reduce_prod": "prod", "reduce_max": "max", "reduce_min": "min", "reduce_or": "or",
    "reduce_and": "and",
}  # fmt: skip
CUMULATIVE = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def apply(code: Code, name: str, operands: Sequence[Value], results: Sequence[Any], parameters: dict) -> list[Value]:
    """The results of a primitive; `results` have shape and dtype."""
    if name in ENTRYWISE:
        return [entrywise(code, ENTRYWISE[name], operands, results[0])]
    if name in LOGICAL:
        return [entrywise(code, f"{{}} {LOGICAL[name][results[0].dtype == bool]} {{}}", operands, results[0])]
    if name in REDUCTIONS:
        return [reduction(code, operands[0], REDUCTIONS[name], tuple(parameters["axes"]))]
    if name not in RULES:
        raise Unsupported(f"the primitive {name}")
    return RULES[name](code, operands, results, **parameters)


def entrywise(code: Code, template: str, operands: Sequence[Value], result: Any) -> Value:
    """An expression of one number of each operand; scalars go with every entry."""
    dtype = np.dtype(result.dtype)
    kind(dtype)

    def over(names: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        out = np.empty(shape, object)
        wide = [np.broadcast_to(one, shape) for one in names]
        text = template if code.row is None else QUICK.get(template, template)
        for index in np.ndindex(shape):
            out[index] = code.named(text.format(*(one[index] for one in wide)), dtype)
        return out

    axis = code.long_axis(result.shape)
    if axis is None:
        return Small(over([code.small(one).names for one in operands], result.shape), dtype)
    rest = result.shape[:axis] + result.shape[axis + 1 :]
    rows = [code.rows(one, result.shape if one.shape == () else None) for one in operands]
    return Rows(result.shape, axis, dtype, lambda: over([code.entries(one) for one in rows], rest))


def reduction(code: Code, value: Value, how: str, axes: tuple[int, ...]) -> Value:
    """The reduction of an array over some of its axes."""
    dtype = value.dtype

    def over(names: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        kept = [i for i in range(names.ndim) if i not in axes]
        turned = names.transpose([*kept, *axes]).reshape([names.shape[i] for i in kept] + [-1])
        out = np.empty(turned.shape[:-1], object)
        for index in np.ndindex(out.shape):
            out[index] = together(code, how, list(turned[index]), dtype)
        return out

    axis = code.long_axis(value.shape)
    if axis is None:
        return Small(over(code.small(value).names, axes), dtype)
    rows = code.rows(value)
    others = tuple(i - (i > axis) for i in axes if i != axis)
    shape = tuple(size for i, size in enumerate(value.shape) if i == axis or i not in axes)
    place = axis - sum(i < axis for i in axes)
    inner = rows if not others else Rows(shape, place, dtype, lambda: over(code.entries(rows), others))
    return code.reduced(inner, how) if axis in axes else inner


def together(code: Code, how: str, names: list[str], dtype: np.dtype) -> str:
    """One number out of several, from the first to the last."""
    if not names:
        raise Unsupported("a reduction over nothing")
    total = names[0]
    for name in names[1:]:
        total = code.named(COMBINE[how].format(total, name), dtype)
    return total


@rule("convert_element_type")
def convert(code: Code, operands: Sequence[Value], results: Sequence[Any], **_: Any) -> list[Value]:
    dtype = np.dtype(results[0].dtype)
    if operands[0].dtype == dtype:
        return [operands[0]]
    template = "{} != 0" if dtype.kind == "b" else f"({kind(dtype)}){{}}"
    return [entrywise(code, template, operands, results[0])]


@rule("reduce_precision")
def as_it_is(code: Code, operands: Sequence[Value], results: Sequence[Any], **_: Any) -> list[Value]:
    return [operands[0]]


@rule("optimization_barrier", "pvary")
def all_as_they_are(code: Code, operands: Sequence[Value], results: Sequence[Any], **_: Any) -> list[Value]:
    return list(operands)


@rule("bitcast_convert_type")
def bitcast(code: Code, operands: Sequence[Value], results: Sequence[Any], new_dtype: Any, **_: Any) -> list[Value]:
    pair = operands[0].dtype, np.dtype(new_dtype)
    if pair[0].itemsize != pair[1].itemsize or pair[0].itemsize < 4:
        raise Unsupported(f"the bits of {pair[0]} as {pair[1]}")
    return [entrywise(code, f"as_bits<{kind(pair[1])}>({{}})", operands, results[0])]


@rule("not")
def negated(code: Code, operands: Sequence[Value], results: Sequence[Any]) -> list[Value]:
    return [entrywise(code, "!{}" if results[0].dtype == bool else "~{}", operands, results[0])]


@rule("round")
def rounded(code: Code, operands: Sequence[Value], results: Sequence[Any], rounding_method: Any) -> list[Value]:
    even = int(rounding_method) == 1
    return [entrywise(code, "rint({})" if even else "round({})", operands, results[0])]


@rule("integer_pow")
def integer_power(code: Code, operands: Sequence[Value], results: Sequence[Any], y: int) -> list[Value]:
    if abs(y) > 16:
        raise Unsupported(f"the power {y}")
    product = " * ".join(["{0}"] * abs(y)) if y else "1"
    return [entrywise(code, product if y >= 0 else f"1 / ({product})", operands, results[0])]


@rule("select_n")
def select(code: Code, operands: Sequence[Value], results: Sequence[Any]) -> list[Value]:
    if len(operands) != 3:
        raise Unsupported(f"a selection among {len(operands) - 1}")
    return [entrywise(code, "{0} ? {2} : {1}", operands, results[0])]


@rule("clamp")
def clamp(code: Code, operands: Sequence[Value], results: Sequence[Any]) -> list[Value]:
    return [entrywise(code, "smaller(larger({1}, {0}), {2})", operands, results[0])]


@rule("iota")
def iota(
    code: Code, operands: Sequence[Value], results: Sequence[Any], dtype: Any, shape: Any, dimension: int, **_: Any
) -> list[Value]:
    kinds, axis = np.dtype(dtype), code.long_axis(shape)
    if axis is None:
        places = np.arange(shape[dimension]).reshape([-1 if i == dimension else 1 for i in range(len(shape))])
        return [constant(np.broadcast_to(places, shape), kinds)]
    if axis != dimension:
        raise Unsupported("numbers along the short axis of rows")
    rest = shape[:axis] + shape[axis + 1 :]
    number = f"(({kind(kinds)}){{}})"
    return [Rows(shape, axis, kinds, lambda: np.broadcast_to(np.array(number.format(code.row), object), rest))]


@rule("dot_general")
def dot(code: Code, operands: Sequence[Value], results: Sequence[Any], dimension_numbers: Any, **_: Any) -> list[Value]:
    """Sums of products; the long axis may be one that is summed over, or one that stays."""
    (left_sum, right_sum), (left_batch, right_batch) = dimension_numbers
    left, right = operands
    if left_batch or right_batch or not left_sum:
        raise Unsupported("a product of many matrices at once")
    dtype, shape = np.dtype(results[0].dtype), tuple(results[0].shape)
    long = code.long_axis(left.shape), code.long_axis(right.shape)
    summed = long[0] is not None and long[0] in left_sum

    def turned(names: np.ndarray, axes: Sequence[int], axis: int | None) -> np.ndarray:
        inner = [i - (axis is not None and i > axis) for i in axes if i != axis]
        free = [i for i in range(names.ndim) if i not in inner]
        many = math.prod(names.shape[i] for i in inner)
        return names.transpose([*free, *inner]).reshape(*(names.shape[i] for i in free), many)

    def products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        first, second = turned(a, left_sum, long[0]), turned(b, right_sum, long[1])
        out = np.empty(first.shape[:-1] + second.shape[:-1], object)
        for i in np.ndindex(first.shape[:-1]):
            for j in np.ndindex(second.shape[:-1]):
                terms = " + ".join(f"{x} * {y}" for x, y in zip(first[i], second[j], strict=True))
                out[i + j] = code.named(terms, dtype)
        return out

    if long == (None, None):
        return [Small(products(code.small(left).names, code.small(right).names), dtype)]
    if summed and (long[1] is None or tuple(left_sum).index(long[0]) != tuple(right_sum).index(long[1])):
        raise Unsupported("a product over rows and columns")
    if not summed and (None not in long or (long[1] is not None and long[1] in right_sum)):
        raise Unsupported("a product with two long axes")
    sides = [code.rows(one) if axis is not None else code.small(one) for one, axis in zip(operands, long, strict=True)]

    def entries() -> np.ndarray:
        return products(*(code.entries(one) if isinstance(one, Rows) else one.names for one in sides))

    if not summed:
        axis = code.long_axis(shape)
        assert axis is not None
        return [Rows(shape, axis, dtype, entries)]
    size = left.shape[long[0]]  # type: ignore[index]
    return [code.reduced(Rows((size, *shape), 0, dtype, entries), "sum")]


@rule(*CUMULATIVE)
def cumulative(
    code: Code, operands: Sequence[Value], results: Sequence[Any], axis: int, reverse: bool, how: str = "sum"
) -> list[Value]:
    names = np.moveaxis(code.small(operands[0]).names.copy(), axis, 0)
    order = range(len(names))[::-1] if reverse else range(len(names))
    for before, here in itertools.pairwise(order):
        for index in np.ndindex(names.shape[1:]):
            pair = names[(before, *index)], names[(here, *index)]
            names[(here, *index)] = code.named(COMBINE[how].format(*pair), operands[0].dtype)
    return [Small(np.moveaxis(names, 0, axis), operands[0].dtype)]


for _name, _how in CUMULATIVE.items():
    RULES[_name] = functools.partial(cumulative, how=_how)


@rule("sort")
def sort(
    code: Code, operands: Sequence[Value], results: Sequence[Any], dimension: int, num_keys: int, **_: Any
) -> list[Value]:
    """By exchanges of neighbours at a fixed set of places (Batcher 1968), the smallest first; keys may bring others."""
    if num_keys != 1:
        raise Unsupported("a sort by several keys")
    columns = [np.moveaxis(code.small(one).names.copy(), dimension, 0) for one in operands]
    for index in np.ndindex(columns[0].shape[1:]):
        for low, high in exchanges(len(columns[0])):
            pairs = [(column[(low, *index)], column[(high, *index)]) for column in columns]
            swap = code.named(f"{pairs[0][1]} < {pairs[0][0]}", np.dtype(bool))
            for column, (a, b), one in zip(columns, pairs, operands, strict=True):
                column[(low, *index)] = code.named(f"{swap} ? {b} : {a}", one.dtype)
                column[(high, *index)] = code.named(f"{swap} ? {a} : {b}", one.dtype)
    return [Small(np.moveaxis(column, 0, dimension), one.dtype) for column, one in zip(columns, operands, strict=True)]


def exchanges(count: int) -> list[tuple[int, int]]:
    """Pairs of places which, put in order one after the other, sort so many numbers: odd-even merges.

    >>> exchanges(3)
    [(0, 1), (0, 2), (1, 2)]
    """
    pairs, size = [], 1
    while size < count:
        step = size
        while step:
            for first in range(step % size, count - step, 2 * step):
                for i in range(first, min(first + step, count - step)):
                    if i // (2 * size) == (i + step) // (2 * size):
                        pairs.append((i, i + step))
            step //= 2
        size *= 2
    return pairs


@rule("argmax", "argmin")
def argbest(code: Code, operands: Sequence[Value], results: Sequence[Any], axes: Any, **_: Any) -> list[Value]:
    raise Unsupported("the place of an extreme number")


# Keys are pairs of numbers, whatever their shape is to JAX (Threefry, Salmon et al. 2011).


@rule("random_wrap", "random_unwrap")
def key_data(code: Code, operands: Sequence[Value], results: Sequence[Any], **other: Any) -> list[Value]:
    if "impl" in other and "fry" not in str(other["impl"]):
        raise Unsupported(f"keys of {other['impl']}")
    return [operands[0]]


def _key(code: Code, value: Value) -> list[str]:
    names = code.small(value).names
    if names.shape != (2,):
        raise Unsupported(f"keys of shape {names.shape[:-1]}")
    return list(names)


@rule("random_fold_in")
def fold_in(code: Code, operands: Sequence[Value], results: Sequence[Any]) -> list[Value]:
    if operands[1].shape != ():
        raise Unsupported("many keys at once")
    key, data = _key(code, operands[0]), code.small(operands[1]).names.item()
    pair = code.fresh()
    code.line(f"const uint2 {pair} = threefry({key[0]}, {key[1]}, 0u, (unsigned){data});")
    return [Small(np.array([f"{pair}.x", f"{pair}.y"], object), np.dtype("uint32"))]


@rule("random_bits")
def random_bits(
    code: Code, operands: Sequence[Value], results: Sequence[Any], bit_width: int, shape: Any, **_: Any
) -> list[Value]:
    if bit_width != 32 or math.prod(shape) > MOST or code.long_axis(tuple(shape)) is not None:
        raise Unsupported(f"random numbers of shape {shape}")
    key, out = _key(code, operands[0]), code.variables(tuple(shape), np.dtype("uint32"))
    if out.names.size > IN_TEXT:
        at, base = code.fresh("i"), code.array(out)
        with code.block(f"for (int {at} = 0; {at} < {out.names.size}; {at}++)"):
            code.line(f"const uint2 pair = threefry({key[0]}, {key[1]}, 0u, (unsigned){at});")
            code.line(f"{base}[{at}] = pair.x ^ pair.y;")
        return [out]
    for at, name in enumerate(out.names.flat):
        with code.block(""):
            code.line(f"const uint2 pair = threefry({key[0]}, {key[1]}, 0u, {at}u);")
            code.line(f"{name} = pair.x ^ pair.y;")
    return [out]


@rule("sum_of_logs")
def logs(code: Code, operands: Sequence[Value], results: Sequence[Any]) -> list[Value]:
    value = operands[0]
    if code.long_axis(value.shape) is None:
        logarithms = entrywise(code, "log_of({})", [value], value)
        return [reduction(code, logarithms, "sum", tuple(range(len(value.shape))))]
    return [code.reduced(code.rows(value), "log")]
