"""A block of samples as one GPU kernel: each seed's state stays on chip from round to round.

Left to itself, XLA launches several kernels per round and sends all state through memory between them. Here one program
per seed loops over the samples of a block; what it runs is `take_sample` with the method's own `step`. Only the pass
over a state's rows is written for the purpose. The point is held as d scalars, since registers come in powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ergodrift._core import tree
from ergodrift.data.stream import Transposed
from ergodrift.engine.carry import Carry, RunSpec
from ergodrift.geometry import Ball
from ergodrift.methods.estimator import MultiLevel, SingleSample
from ergodrift.methods.method import DriftPlusPenalty, PrimalDual
from ergodrift.methods.schedule import AdaGrad, Constant, Damped, Decaying, Ergodic
from ergodrift.problem import LINKS, Dense, LinearModel, Rows, half_spaces
from ergodrift.types import Feedback, PyTree

T = TypeVar("T")
Point: TypeAlias = tuple[jax.Array, ...]  # of d scalars
Sums: TypeAlias = tuple[tuple[jax.Array, ...], jax.Array, jax.Array]  # over rows: gradient, product, sizes of margins

MAX_CHUNKS = 100  # each puts a factor of at least 1/2 into a product, and float32 ends at 2^-126
LOG2_E = 1 / math.log(2)
# What a kernel can be made of; others, a user's own among them, may do what Triton cannot.
KNOWN = {DriftPlusPenalty, PrimalDual, Ball, SingleSample, MultiLevel, AdaGrad, Constant, Damped, Decaying, Ergodic}
INTERPRET = False  # for tests on a CPU


def suits(spec: RunSpec, x: PyTree) -> bool:
    """Whether the kernel knows this problem: a dense logistic model with few features, on a ball."""
    problem, method, data = spec.problem, spec.method, _data(spec)
    return (
        isinstance(problem, LinearModel)
        and isinstance(data, Rows)
        and isinstance(data.features, Dense)
        and not isinstance(data.normals, Transposed)
        and problem.constraints is half_spaces
        and problem.link is LINKS["logistic"]
        and data.offsets is None
        and getattr(method, "aggregate", "vector") == "vector"
        and KNOWN.issuperset(map(type, (method, method.geometry, method.estimator, method.schedule)))
        and x.shape[-1] <= 8
        and data.limits.shape[-1] in (1, 2, 4, 8)
        and data.features.columns.shape[-1] <= MAX_CHUNKS * Layout(1, 1).chunk
    )


def _data(spec: RunSpec) -> PyTree:
    """The table that samples are rows of; None where there is none."""
    return getattr(spec.stream, "data", None)


class Layout(NamedTuple):
    """How a program is laid out: it takes `share` seeds and has `warps` warps of 32 lanes."""

    share: int
    warps: int

    @property
    def chunk(self) -> int:
        """Rows of each seed taken at once: four per lane."""
        return 128 * self.warps // self.share

    @property
    def unroll(self) -> int:
        """Chunks in one turn of the loop over rows."""
        return max(256 // self.chunk, 1)

    @staticmethod
    def of(seeds: int, rows: int) -> Layout:
        """Many seeds: a few share a warp, and with it the work beside the rows. Few seeds: several warps share one."""
        layout = Layout(4, 1) if seeds >= 16384 else Layout(2, 1) if seeds >= 4096 else Layout(1, 1)
        if rows > MAX_CHUNKS * layout.chunk:
            layout = Layout(1, 1)
        return layout if seeds >= 64 else Layout(1, 8)


class _Table(NamedTuple):
    """The `Rows` of all states as flat arrays, or references to them; `sums` are those of each column."""

    columns: jax.Array
    sums: jax.Array
    count: jax.Array  # type: ignore[assignment]
    padding: jax.Array
    normals: jax.Array
    limits: jax.Array


@tree.module("layout")
class _Model:
    """The linear model inside the kernel: the table stays in memory, a sample is the number of its state."""

    table: _Table  # of references
    layout: Layout

    def feedback(self, x: Point, state: jax.Array) -> Feedback:
        """Loss and gradient with two operations per row on the special-function units.

        With e = exp(m) and r = 1 / (1 + e), the slope of log(1 + exp(-m)) is -r, and its value is
        max(-m, 0) - log(max(r, 1 - r)): logarithms are taken of products of many factors between 1/2 and 1, and
        the sum of max(-m, 0) is half that of |m| - m, where the sum of m needs no pass over the rows.
        """
        table, dim = self.table, len(x)
        states = table.count.shape[0]
        rows, limits = table.columns.shape[0] // (states * dim), table.limits.shape[0] // states
        size, unroll = self.layout.chunk, self.layout.unroll
        blank = jnp.zeros(size, x[0].dtype)
        scaled = [xj * LOG2_E for xj in x]  # margins come out as exponents of 2

        def chunk(first: jax.Array, sums: Sums) -> Sums:
            grads, factors, sizes = sums
            here = first + jnp.arange(size, dtype=jnp.int32)
            columns = [table.columns[(state * dim + j) * rows + here] for j in range(dim)]
            margins: jax.Array = sum(xj * column for xj, column in zip(scaled, columns, strict=True))  # type: ignore[assignment]
            wrong = _reciprocal(1 + _exp2(margins))
            grads = tuple(g + wrong * column for g, column in zip(grads, columns, strict=True))
            return grads, factors * jnp.maximum(wrong, 1 - wrong), sizes + jnp.abs(margins)

        def chunks(number: jax.Array, sums: Sums) -> Sums:
            for ahead in range(unroll):
                sums = chunk((number * unroll + ahead) * size, sums)
            return sums

        start = ((blank,) * dim, blank + 1, blank)
        grads, factors, sizes = jax.lax.fori_loop(jnp.int32(0), jnp.int32(rows // (size * unroll)), chunks, start)
        margin_sum = sum(xj * table.sums[state * dim + j] for j, xj in enumerate(x))
        loss = (jnp.sum(sizes) / LOG2_E - margin_sum) / 2 - jnp.sum(jnp.log(factors)) - table.padding[state] / LOG2_E
        each, count = state * limits + jnp.arange(limits, dtype=jnp.int32), table.count[state]
        normals = tuple(table.normals[each * dim + j] for j in range(dim))
        constraints = sum(c * xj for c, xj in zip(normals, x, strict=True)) - table.limits[each]
        return Feedback(loss / count, tuple(-jnp.sum(g) / count for g in grads), constraints, normals)


def _special(instruction: str, plain: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """A float32 instruction of the special-function units, without the steps that extend its range."""

    def raw(x: jax.Array) -> jax.Array:
        if x.dtype != jnp.float32 or INTERPRET:
            return plain(x)
        assembly, result = f"{instruction}.approx.ftz.f32 $0, $1;", jax.ShapeDtypeStruct(x.shape, x.dtype)
        return triton.elementwise_inline_asm(
            assembly, args=[x], constraints="=f,f", pack=1, result_shape_dtypes=[result]
        )[0]

    function = jax.custom_batching.custom_vmap(raw)
    function.def_vmap(lambda size, batched, x: (raw(x), batched[0]))
    return function


_exp2 = _special("ex2", jnp.exp2)
_reciprocal = _special("rcp", lambda x: 1 / x)


@tree.module()
class _Row:
    """One seed's row of a table in memory, looked up one entry at a time."""

    table: jax.Array  # a reference, (seeds, entries)
    seed: jax.Array

    def __getitem__(self, at: jax.Array) -> jax.Array:
        return self.table[self.seed, at]


class _Indices(_Row):
    """The same as a leaf of a pytree, which the loop looks indices up in."""


class _Numbers(NamedTuple):
    """The stream inside the kernel: a sample is the number of its state."""

    def xi(self, index: jax.Array) -> jax.Array:
        return index


def _split(x: jax.Array) -> Point:
    return tuple(x[..., j] for j in range(x.shape[-1]))


def _joined(x: Point) -> jax.Array:
    return jnp.stack(x, axis=-1)


def _points(change: Callable[[PyTree], PyTree], carry: Carry) -> Carry:
    """The carry with every point and gradient in it changed, from vectors to scalars or back."""
    state, recent = carry.state, carry.recent
    window = state.window
    if window != ():
        total = window.total
        total = total._replace(loss_grad=change(total.loss_grad), constraint_jac=change(total.constraint_jac))
        window = window._replace(total=total)
    return carry._replace(
        state=state._replace(x=change(state.x), window=window), recent=recent._replace(x=change(recent.x))
    )


def _bare(carry: Carry) -> Carry:
    """The carry without what a block only reads, or does not touch."""
    return _with_levels(carry, None)._replace(sampler=None, indices=None, settled=None, marks=None)


def _with_levels(carry: Carry, levels: PyTree) -> Carry:
    window = carry.state.window
    return carry if window == () else carry._replace(state=carry.state._replace(window=window._replace(levels=levels)))


def take_block(
    take_sample: Callable[[RunSpec, Carry, jax.Array], Carry],
    spec: RunSpec,
    carry: Carry,
    position: jax.Array,
    stop: jax.Array,
) -> Carry:
    """All samples from `position` to `stop`, which lie in one block; all seeds, along the leading axis of the carry."""
    seeds, kind = carry.state.x.shape[0], tree.dtype(carry.state.x)
    levels = getattr(carry.state.window, "levels", None)
    ahead = None if levels is None else levels._replace(origin=None)  # a key cannot go into a kernel, nor need it
    layout = Layout.of(seeds, _data(spec).features.columns.shape[-1])

    def kernel(fixed: PyTree, own: PyTree, moving: PyTree, out: PyTree) -> None:  # of references
        (method, table, position, stop), (indices, ahead) = fixed, own
        inside = spec._replace(problem=_Model(table, layout), method=_read(method), stream=_Numbers())
        first = None if ahead is None else ahead.first[...]

        def one(at: jax.Array, bare: Carry) -> Carry:
            def seed(number: jax.Array, bare: Carry, first: jax.Array | None) -> Carry:
                levels = None if ahead is None else ahead._replace(first=first, drawn=_Row(ahead.drawn, number))
                carry = _with_levels(bare, levels)._replace(indices=_Indices(indices, number))
                return _bare(take_sample(inside, carry, at))

            return jax.vmap(seed)(jnp.arange(layout.share, dtype=jnp.int32), bare, first)

        last = jax.lax.fori_loop(position[...], stop[...], one, _read(moving))
        jax.tree.map(_write, out, last)

    def share(leaf: jax.Array) -> pl.BlockSpec:
        return pl.BlockSpec((layout.share, *leaf.shape[1:]), lambda program: (program, *[0] * (leaf.ndim - 1)))

    method = jax.tree.map(lambda leaf: jnp.asarray(leaf, kind if isinstance(leaf, float) else None), spec.method)
    fixed = (method, _whole_chunks(_data(spec), layout), position, stop)
    own, moving = (carry.indices, ahead), _bare(_points(_split, carry))
    own, moving = jax.tree.map(lambda leaf: _filled(leaf, layout.share), (own, moving))
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), moving)
    (after,) = pl.pallas_call(
        kernel,
        grid=(-(-seeds // layout.share),),
        in_specs=[jax.tree.map(lambda leaf: pl.BlockSpec(), fixed), *jax.tree.map(share, (own, moving))],
        out_specs=(jax.tree.map(share, moving),),
        out_shape=(shapes,),
        compiler_params=triton.CompilerParams(num_warps=layout.warps, num_stages=2),
        interpret=INTERPRET,
    )(fixed, own, moving)
    after = _with_levels(_points(_joined, jax.tree.map(lambda leaf: leaf[:seeds], after)), levels)
    return carry._replace(state=after.state, recent=after.recent, weights=after.weights)


def _filled(leaf: jax.Array, share: int) -> jax.Array:
    """The seeds up to a whole number of shares, the last ones twice."""
    return jnp.pad(leaf, [(0, -leaf.shape[0] % share), *[(0, 0)] * (leaf.ndim - 1)], mode="edge")


def _whole_chunks(rows: PyTree, layout: Layout) -> _Table:
    """The rows with more of zeros, up to a whole number of chunks."""
    columns = rows.features.columns
    more = -columns.shape[-1] % (layout.chunk * layout.unroll)
    filled, sums = jnp.pad(columns, [(0, 0), (0, 0), (0, more)]), jnp.sum(columns, axis=-1)
    table = _Table(filled, sums, rows.count, rows.padding + more, rows.normals, rows.limits)
    return jax.tree.map(jnp.ravel, table)


def _read(refs: T) -> T:
    return jax.tree.map(lambda ref: ref[...], refs)


def _write(ref: jax.Ref, value: jax.Array) -> None:
    ref[...] = value
