"""Run an algorithm on a problem and a source: check, compile once, go on in calls, collect the result."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ergodrift._core import check, tree
from ergodrift._core.progress import Progress
from ergodrift._core.signature import computation
from ergodrift.data.sampler import BLOCK
from ergodrift.data.source import Source, level_keys, path_keys, seed_keys
from ergodrift.data.stream import Replay
from ergodrift.engine import loop
from ergodrift.engine.checkpoint import Checkpoint, functions
from ergodrift.engine.result import Result, Setting
from ergodrift.methods.algorithms import Algorithm
from ergodrift.methods.average import Average
from ergodrift.methods.method import checked_point
from ergodrift.problem import Problem
from ergodrift.types import Array, Device, PyTree

CALL_SECONDS = 0.3  # how long one call into the compiled loop should last: progress and Ctrl-C come in between


class NonFiniteError(ArithmeticError):
    """A NaN or an infinity arose during a run; the message names the seed, the sample and the quantity."""


def run(
    algorithm: Algorithm,
    problem: Problem,
    source: Source,
    *,
    x0: PyTree,
    num_samples: int | None = None,
    seeds: int | Sequence[int] | Array = 1,
    record: int | Sequence[int] | Array = 200,
    paths: PyTree = None,
    levels: Sequence[int] | Sequence[Sequence[int]] | Array | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    average: str | tuple[str, int] | None = None,
) -> Result:
    """Run an algorithm over many seeds at once, in one compiled loop.

    Memory does not grow with the number of samples: states are drawn on the fly and only the records are kept. The
    compiled loop serves every value of the hyperparameters, the data and the number of samples. `run` may itself be
    transformed: `jax.vmap(lambda tau: run(edpp(tau), ...))` is a sweep.

    Args:
        algorithm: such as `edpp(tau_mix)`.
        problem: loss, constraints and domain.
        source: where samples come from.
        x0: x_1, a point of the domain; any pytree of floating-point arrays. Its precision is the run's, data
            included.
        num_samples: how many samples to take; all of a series, or of `paths`, unless given.
        seeds: a count or a list of integers. A seed gives the same path whatever runs beside it.
        record: how many records to keep, evenly spaced, or the sample counts to record at (0 is the start).
        paths: (seeds, num_samples) indices to replay, as `source.paths` draws them; drawn on the fly unless given. Into
            a series they are row numbers, in any order and as often as you like.
        levels: (seeds, rounds) MLMC levels to replay; drawn on the fly unless given. Once they are used up the point
            is held.
        checkpoint: a file to keep the state of the run in. Called again with the same arguments, the run goes on from
            there, to the same numbers; after Ctrl-C or a crash at most ten seconds are done again. Other arguments are
            refused by name, functions too: loss and constraints are compared by what they compute, with all that they
            capture, so that writing them again, elsewhere or with other names, changes nothing. One run at a time has
            the file. Where it cannot be written, the run warns and goes on.
        average: how the points are weighed in x̄: "uniform" (as in the paper), ("polynomial", k) with weights t^k, or
            "suffix" for the latter half (see `Average`). What the algorithm recommends unless given.

    Returns:
        The records and the recommended solution.

    Raises:
        ValueError, TypeError: an argument is wrong; nothing has run.
        NonFiniteError: a NaN or an infinity arose.

    >>> import ergodrift as ed
    >>> chain = ed.MarkovChain([[0.9, 0.1], [0.1, 0.9]])
    >>> source = ed.MarkovSource(chain, np.array([[1.0, 0.0], [0.0, 1.0]]))
    >>> problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 0.3, ed.Ball(2.0))
    >>> result = ed.run(ed.edpp(tau_mix=4), problem, source, x0=jnp.zeros(2), num_samples=20_000, seeds=3)
    >>> result.solution.mean(axis=0).round(1)
    Array([0.3, 0.5], dtype=float64)
    """
    for name, value, kind in [
        ("algorithm", algorithm, Algorithm),
        ("problem", problem, Problem),
        ("source", source, Source),
    ]:
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be of type {kind.__name__}, got {type(value).__name__}: {value!r}")
    weighing = Average.of(algorithm.average if average is None else average)
    num_samples = _num_samples(source, num_samples, paths)
    grid = record_grid(record, num_samples)
    keys = seed_keys(seeds)
    x0 = checked_point(problem.geometry, x0)
    num_constraints = problem.check(x0, source.example)

    given = None if levels is None else _levels(levels, len(keys))
    num_rounds = None if given is None else given.shape[1]
    estimator = algorithm.estimator.for_run(num_samples, num_rounds, source.stationary, problem.compact(source.example))
    if estimator.needs_state and source.stationary is None:
        raise ValueError(
            f"{type(estimator).__name__} asks which state a sample came from, but {type(source).__name__} has none "
            "that come back and are told apart; use a MarkovSource or an IIDSource"
        )
    method = dataclasses.replace(algorithm, estimator=estimator).bind(problem)
    stops = np.union1d(grid, [num_samples])  # the solution is taken at the end, whether or not that is recorded
    stream, starts = tree.cast(source.stream(), tree.dtype(x0)), path_keys(keys)
    if paths is not None:
        stream, starts = Replay(stream), source.check_paths(paths, len(keys), num_samples)
    spec = loop.RunSpec(problem, method, stream, jnp.asarray(stops, jnp.int32), weighing)
    method.init(x0, num_constraints, jax.random.key(0))  # a schedule that does not fit says so here, before any work
    if given is not None and (needed := estimator.samples_for(given)) > num_samples:
        raise ValueError(
            f"num_samples={num_samples} is too short for the rounds asked for: levels need {needed} samples"
        )
    carry = loop.start(spec, x0, num_constraints, starts, level_keys(keys) if given is None else given)
    numbers = np.arange(len(keys)) if np.ndim(seeds) == 0 else np.asarray(seeds).astype(int)
    records = _drive(algorithm.name, spec, carry, num_samples, numbers, checkpoint)
    solution = jax.tree.map(lambda leaf: leaf[:, -1], records.x_mean)
    records = jax.tree.map(lambda leaf: leaf[:, : len(grid)], records)
    setting = None
    if not tree.is_traced(records):
        setting = Setting(algorithm, problem, source, x0, numbers, levels, weighing, num_samples)
    return Result(algorithm.name, numbers, grid, **records._asdict(), solution=solution, paths=paths, setting=setting)


def _devices(num_seeds: int) -> tuple[Device, ...]:
    """As many devices as divide the number of seeds, or the one that the caller has chosen as default."""
    chosen: Device | str | None = jax.config.values["jax_default_device"]
    devices = jax.devices(chosen) if chosen is None or isinstance(chosen, str) else [chosen]
    return tuple(devices[: max(number for number in range(1, len(devices) + 1) if num_seeds % number == 0)])


def _drive(
    name: str,
    spec: loop.RunSpec,
    carry: loop.Carry,
    num_samples: int,
    seeds: np.ndarray,
    checkpoint: str | os.PathLike[str] | None,
) -> loop.Record:
    """Call the compiled loop until all samples are taken; in between, show progress, look for NaNs and save."""
    place = loop.Place(carry, loop.blank_records(spec, carry), jnp.int32(0), jnp.int32(0))
    if tree.is_traced(spec, carry):
        if checkpoint is not None:
            raise ValueError("checkpoint cannot be kept while run is traced by vmap or jit; call run on its own")
        return loop.advance(spec, *place, jnp.int32(num_samples), jax.default_backend()).records
    if checkpoint is None:
        return _go(name, spec, place, num_samples, seeds, None)
    with Checkpoint(checkpoint, **_identity(name, spec, carry, num_samples)) as saved:
        return _go(name, spec, saved.restore(place), num_samples, seeds, saved)


def _go(
    name: str, spec: loop.RunSpec, place: loop.Place, num_samples: int, seeds: np.ndarray, saved: Checkpoint | None
) -> loop.Record:
    devices = _devices(len(seeds))
    advance = loop.advance_on(devices)
    spec, place = loop.spread(devices, spec, place)
    bar = Progress(name, num_samples)
    done, chunk, ahead = int(place.position), 1024, None
    finished = done >= num_samples
    try:
        while done < num_samples:
            limit = min(done + chunk, num_samples)
            began = time.monotonic()
            ahead = advance(spec, *place, jnp.int32(limit))
            if not np.asarray(loop.healthy(ahead.carry)).all():
                raise _fault(name, spec, place, ahead, seeds)
            elapsed = time.monotonic() - began
            place, done = ahead, limit
            chunk = int(chunk * min(max(CALL_SECONDS / elapsed, 0.25), 8.0)) + 1
            bar.update(done)
            if saved is not None and saved.due:
                saved.save(place)
    finally:
        jax.block_until_ready(ahead)  # after Ctrl-C, nothing goes on computing behind the caller's back
        bar.close()
    if saved is not None and not finished:
        saved.save(place, last=True)
    return place.records


def _identity(name: str, spec: loop.RunSpec, carry: loop.Carry, num_samples: int) -> dict[str, PyTree]:
    """What a checkpoint must have been made with, by name. Functions are compared by what they compute."""
    first, indices, sampler = jax.tree.map(lambda leaf: leaf[0], (carry.state, carry.indices, carry.sampler))
    xi = jax.eval_shape(lambda: spec.stream.xi(jax.tree.map(lambda leaf: leaf[0], indices)))
    drawn = computation(lambda state: spec.stream.block(state, jnp.int32(0)), sampler)
    heard = jax.eval_shape(lambda: loop.feedback_at(spec, first.x, indices, 0))
    step = computation(lambda method, *told: method.step(*told), spec.method, first, heard)
    return {
        **functions(spec.problem, first.x, xi),
        "domain": spec.problem.geometry,
        "algorithm": (name, type(spec.problem).__name__, spec.method, spec.average, step),
        "data": getattr(spec.stream, "data", None),
        "seeds or x0": (drawn, carry),
        "records": (spec.grid, num_samples),
    }


def _fault(name: str, spec: loop.RunSpec, place: loop.Place, ahead: loop.Place, seeds: np.ndarray) -> NonFiniteError:
    """Which seed failed between two places of the loop, at which sample and in which quantity."""
    row = int(np.argmin(np.asarray(loop.healthy(ahead.carry))))
    one = jax.tree.map(lambda leaf: leaf[row], place.carry)
    sample, rounds, fault = loop.locate(spec, one, place.position, ahead.position)
    broken = [quantity for quantity, bad in fault._asdict().items() if bad] or ["a sum of losses or constraints"]
    return NonFiniteError(
        f"{name}, seed {seeds[row]}: {' and '.join(broken)} not finite at sample {int(sample)} "
        f"(after {int(rounds)} rounds); look at the loss and constraints for that sample, or tighten the domain"
    )


def _num_samples(source: Source, num_samples: int | None, paths: PyTree) -> int:
    if paths is not None:
        held = source.samples_in(paths)
        count = held if num_samples is None else num_samples
        return check.integer("num_samples", count, at_least=1, at_most=2**31 - BLOCK)  # compared by `check_paths`
    if num_samples is None:
        if source.length is None:
            raise ValueError("num_samples must be given: this source never ends")
        return source.length
    num_samples = check.integer("num_samples", num_samples, at_least=1, at_most=2**31 - BLOCK)
    if source.length is not None and num_samples > source.length:
        raise ValueError(f"num_samples={num_samples}, but the series has only {source.length} samples")
    return num_samples


def record_grid(record: int | Sequence[int] | Array, num_samples: int) -> np.ndarray:
    """The sample counts to record at."""
    if np.ndim(record) == 0:
        count = min(check.integer("record", record, at_least=1), num_samples)
        return np.unique(np.linspace(0, num_samples, count + 1)[1:].round().astype(np.int64))
    grid = np.asarray(record)
    if grid.ndim != 1 or grid.size == 0 or not np.issubdtype(grid.dtype, np.integer):
        raise TypeError(f"record must be a count or a list of sample counts, got {record!r}")
    if (np.diff(grid) <= 0).any() or grid[0] < 0 or grid[-1] > num_samples:
        raise ValueError(f"record must ascend between 0 and num_samples={num_samples}, got {grid[0]} to {grid[-1]}")
    return grid.astype(np.int64)


def _levels(given: ArrayLike, num_seeds: int) -> jax.Array:
    """Levels as integers, one row per seed."""
    levels = np.asarray(given)
    if levels.ndim == 1:
        levels = np.broadcast_to(levels, (num_seeds, len(levels)))
    if (
        levels.ndim != 2
        or levels.shape[0] != num_seeds
        or not levels.size
        or not np.issubdtype(levels.dtype, np.integer)
    ):
        raise ValueError(f"levels must be integers of shape (seeds, rounds) with {num_seeds} seeds, got {levels.shape}")
    if levels.min() < 1:
        raise ValueError(f"levels start at 1, got {levels.min()}")
    if levels.max() >= 2**31:
        raise ValueError(f"levels must be below 2^31, got {levels.max()}; a window has 2^level samples")
    return jnp.asarray(levels, jnp.int32)
