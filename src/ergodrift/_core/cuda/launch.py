"""A function of one seed as one kernel for all seeds: written, compiled and launched from within a compiled loop."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core.cuda import nvrtc
from ergodrift._core.cuda.flow import Scope
from ergodrift._core.cuda.prelude import ON_GPU, PRELUDE
from ergodrift._core.cuda.values import Code, Unsupported, Value, View, kind
from ergodrift.types import PyTree

MULTIPROCESSORS = 132  # of a large GPU
MANY_THREADS, FEW_THREADS, MANY_SUMS = 1024, 256, 12  # threads that keep one busy; few where each keeps many sums
LANES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
READ_AT_ONCE = 8  # numbers of an input that go into registers before anything else
LARGEST = 2**31  # numbers of an array: indices are of 32 bits


@jax.jit
def sum_of_logs(factors: jax.Array) -> jax.Array:
    """sum_i log(factor_i) of factors between 1/2 and 1; in a kernel by a few logarithms of products."""
    return jnp.sum(jnp.log(factors))


@dataclasses.dataclass(frozen=True)
class Kernel:
    """The text of a kernel, and which of the function's inputs and outputs it takes and gives."""

    tables: str
    body: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    forwarded: dict[int, int]  # outputs that are inputs, as they are
    most_rows: int
    accumulators: int
    parameters: tuple[str, ...]

    def on_gpu(self, seeds: int, shape: Shape) -> str:
        """CUDA C++ for so many seeds."""
        lanes, threads, blocks = shape
        shared = f"__shared__ double shared[2 * {self.accumulators} * 32]; int phase = 0;" if lanes > 32 else ""
        group = (1 << min(lanes, 32)) - 1
        return f"""#define LANES {lanes}
#define ACCUMULATORS {self.accumulators}
{PRELUDE}{ON_GPU}{self.tables}
extern "C" __global__ void __launch_bounds__({threads}, {blocks}) kernel({", ".join(self.parameters)}) {{
  const int thread = blockIdx.x * {threads} + threadIdx.x, seed = thread / LANES, lane = thread % LANES;
  const unsigned members = {group}u << (threadIdx.x % 32 / (LANES < 32 ? LANES : 32) * (LANES < 32 ? LANES : 32));
  {shared}
  if (seed >= {seeds}) return;
{self.body}
}}
"""

    def on_cpu(self) -> str:
        """C++ with a loop over the seeds, for tests."""
        casts = [f"{one} = ({one.rsplit(' ', 1)[0].replace('__restrict__', '')})arguments[{at}];"
                 for at, one in enumerate(self.parameters)]  # fmt: skip
        return f"""#define LANES 1
{PRELUDE}{self.tables}
extern "C" void kernel(int seeds, void** arguments) {{
{chr(10).join(casts).replace("__restrict__ ", "")}
for (int seed = 0; seed < seeds; seed++) {{
  const int lane = 0;
{self.body}
}}}}
"""


def written(function: Callable[..., list], leaves: Sequence[Any], own: Sequence[bool], rows: frozenset[int]) -> Kernel:
    """The kernel of a function from a list of leaves to a list of arrays; of `own` leaves each seed has its own.

    `leaves` have shape and dtype, of one seed.
    """
    jaxpr = jax.make_jaxpr(function)(leaves)
    code = Code(rows)
    inputs: list[Value] = []
    for number, leaf in enumerate(leaves):
        size, place = math.prod(leaf.shape), f"(long long)seed * {math.prod(leaf.shape)}"
        if size >= LARGEST:
            raise Unsupported(f"an array of {size} numbers")
        strides = tuple(math.prod(leaf.shape[i + 1 :]) for i in range(len(leaf.shape)))
        view = View(f"in{number}", leaf.dtype, tuple(leaf.shape), strides)
        if own[number]:
            view = dataclasses.replace(view, pointer=f"(in{number} + {place})", aligned=size % 4 == 0)
        inputs.append(code.small(view) if size <= READ_AT_ONCE else view)
    found = Scope(code).write(jaxpr, inputs)
    places = {id(value): number for number, value in enumerate(inputs)}
    forwarded = {
        at: places[id(value)] for at, value in enumerate(found) if id(value) in places and own[places[id(value)]]
    }
    made = {at: code.small(value) for at, value in enumerate(found) if at not in forwarded}
    with code.block("if (lane == 0)"):
        for at, value in made.items():
            for index, name in enumerate(value.names.flat):
                code.line(f"out{at}[(long long)seed * {value.names.size} + {index}] = {name};")
    body = "\n".join(code.lines)
    used = [n for n in range(len(leaves)) if re.search(rf"\bin{n}\b", body)]
    parameters = [f"const {kind(leaves[n].dtype)}* __restrict__ in{n}" for n in used]
    parameters += [f"{kind(value.dtype)}* __restrict__ out{at}" for at, value in made.items()]
    tables = "\n".join(code.tables)
    return Kernel(
        tables, body, tuple(used), tuple(made), forwarded, code.most_rows, code.accumulators, tuple(parameters)
    )


class Shape(NamedTuple):
    """How a kernel is laid out: lanes a seed, threads a block, and blocks that must find room on a multiprocessor."""

    lanes: int
    threads: int
    blocks: int

    @staticmethod
    def of(seeds: int, kernel: Kernel) -> Shape:
        """As many threads as keep the device busy; fewer where each has many sums to keep in its registers."""
        busy = MULTIPROCESSORS * (FEW_THREADS if kernel.accumulators > MANY_SUMS else MANY_THREADS)
        wanted = max(min(busy // seeds, kernel.most_rows // 4), 1)
        lanes = max(count for count in LANES if count <= wanted)
        threads = max(lanes, 128 if seeds * lanes >= busy // 4 else 32)
        resident = min(-(-seeds * lanes // MULTIPROCESSORS), MANY_THREADS * 3 // 4)
        return Shape(lanes, threads, max(resident // threads, 1))


def launched(kernel: Kernel, arguments: Sequence[jax.Array], shapes: Sequence[Any], seeds: int) -> list[jax.Array]:
    """The kernel on a GPU, inside a computation of XLA."""
    shape = Shape.of(seeds, kernel)
    call = jax.ffi.ffi_call(TARGET, list(shapes))
    found = call(
        *arguments,
        name="kernel",
        kernel_type="ptx",
        kernel_data=nvrtc.ptx(kernel.on_gpu(seeds, shape), _capability()),
        grid_x=np.int32(-(-seeds * shape.lanes // shape.threads)),
        grid_y=np.int32(1),
        grid_z=np.int32(1),
        block_x=np.int32(shape.threads),
        block_y=np.int32(1),
        block_z=np.int32(1),
        shared_mem_bytes=np.int32(0),
        output_indices=tuple(np.int32(len(arguments) + at) for at in range(len(shapes))),
    )
    return list(found)


TARGET = "__gpu$xla.gpu.ptx"  # XLA's own call of a kernel that it is given in assembly
LAUNCH = launched  # on a CPU, tests put another way here


@functools.cache
def _capability() -> str:
    return str(jax.devices("gpu")[0].compute_capability)


def _seen(leaf: Any, mine: bool) -> jax.ShapeDtypeStruct:
    """What one seed sees of an array, which may have a leading axis of seeds."""
    weak = getattr(jax.typeof(leaf), "weak_type", False)
    return jax.ShapeDtypeStruct(leaf.shape[mine:], leaf.dtype, weak_type=weak)


def fused(function: Callable[..., PyTree], shared: PyTree, own: PyTree, rows: frozenset[int]) -> PyTree:
    """`jax.vmap(function, (None, 0))(shared, own)` as one kernel.

    Args:
        function: of what is shared and of one seed's own.
        shared: pytree of arrays.
        own: pytree of arrays with a leading axis of seeds.
        rows: sizes of axes to be looped over by the lanes of a seed; all else is held in registers.

    Raises:
        Unsupported: nothing has been computed.
    """
    leaves, structure = jax.tree.flatten((shared, own))
    flags = [False] * len(jax.tree.leaves(shared)) + [True] * len(jax.tree.leaves(own))
    kinds = [_key_kind(leaf) for leaf in leaves]
    result: list[Any] = []

    def of_leaves(leaves: list) -> list:
        found, shape = jax.tree.flatten(function(*structure.unflatten(map(_wrapped, leaves, kinds))))
        result[:] = shape, [_key_kind(leaf) for leaf in found]
        return [jax.random.key_data(leaf) if _key_kind(leaf) else leaf for leaf in found]

    plain = [jax.random.key_data(leaf) if kind else jnp.asarray(leaf) for leaf, kind in zip(leaves, kinds, strict=True)]
    found = _called(of_leaves, tuple(flags), rows)(*plain)
    return result[0].unflatten(map(_wrapped, found, result[1]))


def _key_kind(leaf: Any) -> Any:
    """How a key was made; None of what is no key."""
    is_key = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_impl(leaf) if is_key else None


def _wrapped(leaf: jax.Array, kind: Any) -> jax.Array:
    return leaf if kind is None else jax.random.wrap_key_data(leaf, impl=kind)


def _called(function: Callable[..., list], own: tuple[bool, ...], rows: frozenset[int]) -> Callable[..., list]:
    """The kernel of all seeds; under `vmap`, more of them."""

    @jax.custom_batching.custom_vmap
    def call(*leaves: jax.Array) -> list[jax.Array]:
        seeds = next(leaf.shape[0] for leaf, mine in zip(leaves, own, strict=True) if mine)
        each = [_seen(leaf, mine) for leaf, mine in zip(leaves, own, strict=True)]
        try:
            kernel = written(function, each, own, rows)
        except (AssertionError, KeyError, TypeError, ValueError) as error:  # XLA can do what was not thought of here
            raise Unsupported(f"{type(error).__name__}: {error}") from error
        results = jax.eval_shape(function, each)
        shapes = [jax.ShapeDtypeStruct((seeds, *results[at].shape), results[at].dtype) for at in kernel.outputs]
        made = dict(zip(kernel.outputs, LAUNCH(kernel, [leaves[n] for n in kernel.inputs], shapes, seeds), strict=True))
        return [made[at] if at in made else leaves[kernel.forwarded[at]] for at in range(len(results))]

    @call.def_vmap
    def _(size: int, batched: list[bool], *leaves: jax.Array) -> tuple[list[jax.Array], list[bool]]:
        seeds = next(leaf.shape[b] for leaf, mine, b in zip(leaves, own, batched, strict=True) if mine)

        def wide(leaf: jax.Array, mine: bool, many: bool) -> jax.Array:
            if not mine and not many:
                return leaf
            if not many:
                leaf = jnp.broadcast_to(leaf[None], (size, *leaf.shape))
            if not mine:
                leaf = jnp.broadcast_to(leaf[:, None], (size, seeds, *leaf.shape[1:]))
            return leaf.reshape(size * seeds, *leaf.shape[2:])

        now = tuple(mine or many for mine, many in zip(own, batched, strict=True))
        out = _called(function, now, rows)(*map(wide, leaves, own, batched))
        return [leaf.reshape(size, seeds, *leaf.shape[1:]) for leaf in out], [True] * len(out)

    return call
