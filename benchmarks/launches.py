"""What XLA launches on a GPU in a round, counted in the program that its compiler makes for an H200; without a device.

Needs JAX's CUDA plugin, `pip install "jax[cuda12]"`, and no GPU: JAX_PLATFORMS=cpu python benchmarks/launches.py
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Sequence
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from gpu import TAU, by_hand, linear, paper, plain, table
from jax.experimental import topologies

import ergodrift as ed
from ergodrift._core.cuda import launch
from ergodrift.engine import loop
from ergodrift.engine.carry import Place

SEEDS = 256
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 4800000000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 150000000000 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } device_description_str: "NVIDIA H200"
"""
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call", "conditional"}


class SeenError(Exception):
    """The loop's arguments are known; nothing has to run."""


def compiled(function: Callable, *shapes) -> str:
    """The program for the device, as text; traced as on a machine that has it."""
    device = topologies.get_topology_desc(platform="cuda", target_config=H200, topology="1x1x1").devices[0]
    there = jax.sharding.SingleDeviceSharding(device)
    with (
        mock.patch.object(jax, "default_backend", return_value="gpu"),
        mock.patch.object(launch, "_capability", return_value="9.0"),
    ):
        return jax.jit(function, in_shardings=there, out_shardings=there).lower(*shapes).compile().as_text() or ""


def shapes(arguments):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.asarray(leaf).dtype), arguments)


def ours(setting, algorithm, dim, each):
    """The loop of `run` from record to record."""

    arguments = []

    def seen(*given):
        arguments.extend(given)
        raise SeenError

    problem, source = setting
    with mock.patch.object(loop, "advance_on", return_value=seen), contextlib.suppress(SeenError):
        ed.run(algorithm, problem, source, x0=np.zeros(dim, np.float32), num_samples=20_000, seeds=SEEDS, record=1)

    def whole(spec, carry, records, position, slot, limits):
        return loop._advance(spec, Place(carry, records, position, slot), limits.max(), each)

    return compiled(whole, *shapes(arguments))


def hand(dim):
    """The scan by hand."""
    key = jax.ShapeDtypeStruct((2,), np.uint32)
    scan = inspect.unwrap(by_hand)
    return compiled(lambda key, data: scan(jax.random.wrap_key_data(key), data, SEEDS, 5000), key, shapes(table(dim)))


def counts(text: str) -> list[tuple[int, int]]:
    """For each loop, and for what is around all, outermost first: how deep it is, and what one turn launches."""
    bodies: dict[str, list[str]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if found := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$", line):
            current = bodies.setdefault(found[2], [])
            entry = found[2] if found[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and " = " in line:
            current.append(line)

    def within(name: str) -> tuple[int, list[str]]:
        total, loops = 0, []
        for line in bodies[name]:
            operation = re.search(r"[\})\]] ([a-z][\w\-]*)\(", line)
            kind = operation[1] if operation else ""
            total += kind not in FREE
            if kind == "while":
                loops += re.findall(r"body=%?([\w.\-]+)", line)
            elif kind in ("call", "conditional"):
                listed = re.findall(r"branch_computations=\{([^}]*)\}", line)
                called = re.findall(r"(?:to_apply|true_computation|false_computation)=%?([\w.\-]+)", line)
                for inner in called + [one.strip(" %") for group in listed for one in group.split(",")]:
                    more, others = within(inner)
                    total, loops = total + more, loops + others
        return total, loops

    def seen(name: str, depth: int) -> list[tuple[int, int]]:
        total, loops = within(name)
        return [(depth, total), *(one for inner in loops for one in seen(inner, depth + 1))]

    return seen(entry, 0)


def show(name: str, found: Sequence[tuple[int, int]]) -> None:
    print(f"{name:44}", ", ".join(f"{'  ' * depth}{count}" for depth, count in found), flush=True)


def main() -> None:
    print("launches around all loops, in a turn of the outermost, and so on")
    for dim, setting, name in [(3, plain(3), "plain functions"), (30, linear(30), "LinearModel")]:
        show(f"{name}, d = {dim}, by hand", counts(hand(dim)))
        show(f"{name}, d = {dim}, as one kernel", counts(ours(setting, ed.edpp(TAU), dim, loop.in_kernels())))
        show(f"{name}, d = {dim}, by XLA", counts(ours(setting, ed.edpp(TAU), dim, loop.ALL)))
    for algorithm in (ed.edpp("auto"), ed.mdpp()):
        for way, each in (("as one kernel", loop.in_kernels()), ("by XLA", loop.ALL)):
            show(f"{algorithm.name}, paper's model, {way}", counts(ours(paper(), algorithm, 3, each)))


if __name__ == "__main__":
    main()
