"""Run an algorithm on a problem and a source: check, compile once, go on in calls, collect the result."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
import warnings
from collections.abc import Generator, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ergodrift._core import check, tree
from ergodrift._core.arrays import listed
from ergodrift._core.signature import computation
from ergodrift.data.chunks import StreamSource
from ergodrift.data.sampler import BLOCK
from ergodrift.data.series import SeriesSource
from ergodrift.data.source import Source, level_keys, path_keys, seed_keys
from ergodrift.data.stream import Replay, TableStream
from ergodrift.engine import loop
from ergodrift.engine.checkpoint import Checkpoint, functions
from ergodrift.engine.drive import NEVER, NonFiniteError, spaced, straight, traced
from ergodrift.engine.feed import streamed
from ergodrift.engine.hosts import share, together
from ergodrift.engine.lookup import with_tables
from ergodrift.engine.margin import Margin, Tightened, checked_margin, tightened
from ergodrift.engine.result import Result, Setting
from ergodrift.engine.settle import settle
from ergodrift.engine.start import warn_of_losers
from ergodrift.methods.algorithms import Algorithm
from ergodrift.methods.average import Average
from ergodrift.methods.given import check_kinds
from ergodrift.methods.method import checked_point
from ergodrift.methods.rates import Rates
from ergodrift.problem import Problem
from ergodrift.types import Array, PyTree

__all__ = ["NonFiniteError", "Result", "record_grid", "run"]

SMALL = 2**16  # entries of a point that is looked at on the host
LONG = 2.0  # seconds of a run that is worth a look at its end, whoever chose the algorithm


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
    margin: ArrayLike | str | Margin | None = None,
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
        num_samples: how many samples to take; all of a series (with all its passes), or of `paths`, unless given. A
            batch of a series counts as one.
        seeds: a count or a list of integers. A seed gives the same path whatever runs beside it.
        record: how many records to keep, evenly spaced, or the sample counts to record at (0 is the start).
        paths: (seeds, num_samples) indices to replay, as `source.paths` draws them; drawn on the fly unless given. Into
            a series they are row numbers, in any order and as often as you like; of batches with one more axis.
        levels: (seeds, rounds) MLMC levels to replay; drawn on the fly unless given. Once they are used up the point
            is held.
        checkpoint: a file to keep the state of the run in. Called again with the same arguments, the run goes on from
            there, to the same numbers; after Ctrl-C or a crash at most ten seconds are done again. Other arguments are
            refused by name, functions too: loss and constraints are compared by what they compute, with all that they
            capture, so that writing them again, elsewhere or with other names, changes nothing. One run at a time has
            the file. Where it cannot be written, the run warns and goes on.
        average: how the points are weighed in x̄: "uniform" (as in the paper), ("polynomial", k) with weights t^k, or
            "suffix" for the latter half (see `Average`). What the algorithm recommends unless given.
        margin: g_i + m_i <= 0 in the place of g_i <= 0: a number, or one per constraint, in the constraint's units. All
            that is told afterwards is about g. "auto" runs up to 7 times, each with another margin, until the solution
            is expected to be certified satisfied on as many held-out samples of the same law, in 95 % of runs; where
            no margin is enough, the solution is taken nearer to x0. A `Margin` says how many samples, and how often.
            `result.margin` is what was taken, `result.tightening` what it costs. A checkpoint is refused then: run
            again with the margin that was found.

    Returns:
        The records and the recommended solution. A warning tells when that is worse than x0 on the samples of the run
        (`auto` chose the algorithm, or the run took more than two seconds).

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
    check_kinds(algorithm=algorithm, problem=problem, source=source)
    if (asked := Margin.of(margin)) is not None:
        if checkpoint is not None:
            raise ValueError("checkpoint holds one run, and margin='auto' makes several: pass a margin in numbers")
        if source.arrives:
            raise ValueError(
                "margin='auto' makes several runs over the same samples, and a stream is not kept: find the margin on "
                "source.head(num_samples), and pass it in numbers (result.margin)"
            )
        common: dict[str, PyTree] = {"x0": x0, "num_samples": num_samples, "seeds": seeds, "record": record}
        common |= {"paths": paths, "levels": levels, "average": average}
        return settle(lambda given: run(algorithm, problem, source, margin=given, **common), problem, source, asked)
    if (part := None if source.arrives else share(seeds)) is not None:
        mine: dict[str, PyTree] = {"x0": x0, "num_samples": num_samples, "record": record, "average": average}
        mine |= {"seeds": part.seeds, "paths": part.paths(source, paths), "levels": part.rows(levels, 2)}
        mine |= {"margin": margin, "checkpoint": part.file(checkpoint)}
        return together(lambda: run(algorithm, problem, source, **mine), part, paths, levels)
    weighing = Average.of(algorithm.average if average is None else average)
    if source.arrives and paths is not None:
        raise ValueError("paths cannot be replayed on a stream, whose samples come as they come: leave paths out")
    num_samples = _num_samples(source, num_samples, paths)
    most = NEVER if num_samples is None else num_samples
    grid = thinning(record) if num_samples is None else record_grid(record, num_samples)
    keys = seed_keys(seeds)
    x0, here = _near(listed("x0", x0))
    with here:
        x0 = checked_point(problem.geometry, x0)
    num_constraints = problem.check(x0, source.example)
    stream, target = tree.cast(source.stream(), tree.dtype(x0)), source.asked(problem)
    added = None if margin is None else checked_margin(margin, num_constraints, tree.dtype(x0))
    if added is not None:
        target, stream = tightened(target, stream, added)
        if isinstance(algorithm.schedule, Rates):
            algorithm = dataclasses.replace(algorithm, schedule=algorithm.schedule.answering())

    given = None if levels is None else _levels(levels, len(keys))
    num_rounds = None if given is None else given.shape[1]
    estimator = algorithm.estimator.for_run(most, num_rounds, source.stationary, target.compact(source.example))
    if estimator.needs_state and source.stationary is None:
        raise ValueError(
            f"{type(estimator).__name__} asks which state a sample came from, but {type(source).__name__} has none "
            "that come back and are told apart; use a MarkovSource or an IIDSource"
        )
    method = dataclasses.replace(algorithm, estimator=estimator).bind(problem)
    stops = np.union1d(grid, [most])  # the solution is taken at the end, whether or not that is recorded
    starts = path_keys(keys)
    if paths is not None:
        stream, starts = Replay(stream), source.check_paths(paths, len(keys), most)
    spec = loop.RunSpec(target, method, stream, jax.device_put(stops.astype(np.int32)), weighing)
    with _near(x0)[1]:
        method.check(x0, num_constraints)
    if given is not None and (needed := estimator.samples_for(given)) > most:
        raise ValueError(
            f"num_samples={num_samples} is too short for the rounds asked for: levels need {needed} samples"
        )
    carry = loop.start(spec, x0, num_constraints, starts, level_keys(keys) if given is None else given)
    numbers = np.arange(len(keys)) if np.ndim(seeds) == 0 else np.asarray(seeds).astype(int)
    began = time.monotonic()
    if source.arrives and tree.is_traced(spec, carry):
        raise ValueError(
            "a stream is read by one run at a time, not by a sweep under vmap or jit: sweep over source.head(n)"
        )
    with _kept(checkpoint, algorithm.name, spec, carry, num_samples, added) as saved:
        if source.stationary is not None:
            spec = with_tables(spec, len(source.stationary), x0, most)
        if isinstance(source, StreamSource):
            shown = functools.partial(_shown, problem, added)
            course = streamed(algorithm.name, spec, carry, num_samples, numbers, saved, source, shown)
        elif tree.is_traced(spec, carry):
            course = traced(spec, carry, stops, most)
        else:
            course = straight(algorithm.name, spec, carry, most, numbers, saved)
    seconds, records = time.monotonic() - began, course.records
    if added is not None:  # what is told is about g
        whole = (
            np.broadcast_to(source.rows_taken(course.grid, paths), (len(keys), len(course.grid)))
            / source.rows_per_sample
        )
        total = jnp.asarray(whole, added.dtype)[..., None] * added[None, None]
        records = records._replace(constraint_sum=records.constraint_sum - total)
    solution = _last(records.x_mean)
    if course.done < most:  # a stream is over when it is over
        grid = course.grid
    if len(grid) < records.rounds.shape[1]:
        records = jax.tree.map(lambda leaf: leaf[:, : len(grid)], records)
    setting = None
    if not tree.is_traced(records):
        setting = Setting(algorithm, problem, source, x0, numbers, levels, weighing, course.done)
        # Elsewhere the look would take longer than the run; and a margin is there to be paid for in loss.
        if added is None and (algorithm.reason or seconds > LONG):
            looked_at = source if course.latest is None else SeriesSource(course.latest)
            held = course.done if course.latest is None else looked_at.length or course.done
            warn_of_losers(problem, looked_at, x0, solution, numbers, held, paths)
    told: dict[str, PyTree] = {"solution": solution, "paths": paths, "setting": setting, "margin": added}
    result = Result(algorithm.name, numbers, grid, **records._asdict(), **told)
    if course.fault is not None:
        course.fault.result = result
        raise course.fault
    if num_samples is not None and course.done < num_samples:
        warnings.warn(f"the stream ended after {course.done:,} of {num_samples:,} samples", stacklevel=2)
    return result


@jax.jit
def _last(records: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[:, -1], records)


def _near(x0: PyTree) -> tuple[PyTree, contextlib.AbstractContextManager[object]]:
    """A small point on the host, and a context to look at it there: to ask a GPU takes a hundred times as long."""
    small = sum(np.size(leaf) for leaf in jax.tree.leaves(x0)) <= SMALL
    if jax.default_backend() == "cpu" or tree.is_traced(x0) or not small:
        return x0, contextlib.nullcontext()
    return jax.device_get(x0), jax.default_device(jax.devices("cpu")[0])


def _shown(problem: Problem, margin: Array | None, window: TableStream) -> TableStream:
    """A window of a stream as the loop is to see it."""
    shown = window if margin is None else tightened(problem, window, margin)[1]
    return cast("TableStream", shown)


@contextlib.contextmanager
def _kept(
    path: str | os.PathLike[str] | None,
    name: str,
    spec: loop.RunSpec,
    carry: loop.Carry,
    num_samples: int | None,
    margin: Array | None,
) -> Generator[Checkpoint | None]:
    """The checkpoint of a run, for it alone; None where none is asked for."""
    if path is None:
        yield None
        return
    if tree.is_traced(spec, carry):
        raise ValueError("checkpoint cannot be kept while run is traced by vmap or jit; call run on its own")
    with Checkpoint(path, **_identity(name, spec, carry, num_samples, margin)) as saved:
        yield saved


def _identity(
    name: str, spec: loop.RunSpec, carry: loop.Carry, num_samples: int | None, margin: Array | None
) -> dict[str, PyTree]:
    """What a checkpoint must have been made with, by name. Functions are compared by what they compute."""
    first, indices, sampler = jax.tree.map(lambda leaf: leaf[0], (carry.state, carry.indices, carry.sampler))
    xi = jax.eval_shape(lambda: spec.stream.xi(jax.tree.map(lambda leaf: leaf[0], indices)))
    drawn = computation(lambda state: spec.stream.block(state, jnp.int32(0)), sampler)
    heard = jax.eval_shape(lambda: loop.feedback_at(spec, first.x, indices, 0))
    step = computation(lambda method, *told: method.step(*told), spec.method, first, heard)
    problem = spec.problem.original if isinstance(spec.problem, Tightened) else spec.problem
    return {
        **({} if margin is None else {"margin": margin}),
        **functions(problem, first.x, xi),
        "domain": problem.geometry,
        "algorithm": (name, type(problem).__name__, spec.method, spec.average, step),
        "data": getattr(spec.stream, "data", None),
        "seeds or x0": (drawn, carry),
        "records": (spec.grid, NEVER if num_samples is None else num_samples),
    }


def _num_samples(source: Source, num_samples: int | None, paths: PyTree) -> int | None:
    """How many samples to take; None for as many as arrive."""
    if paths is not None:
        held = source.samples_in(paths)
        count = held if num_samples is None else num_samples
        return check.integer("num_samples", count, at_least=1, at_most=2**31 - BLOCK)  # compared by `check_paths`
    if num_samples is None:
        if source.length is None and not source.arrives:
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
    return _sample_counts(record, num_samples)


def thinning(record: int | Sequence[int] | Array) -> np.ndarray:
    """Where to record while nobody knows how many samples there will be: twice as often as asked for, and every second
    record is dropped whenever there is no more room (`Drive`)."""
    if np.ndim(record) == 0:
        return spaced(2 * check.integer("record", record, at_least=1), 1)
    return _sample_counts(record, NEVER)


def _sample_counts(record: PyTree, num_samples: int) -> np.ndarray:
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
