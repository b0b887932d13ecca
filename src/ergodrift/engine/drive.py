"""A run on the host's side: calls into the compiled loop, and in between progress, health and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core.progress import Progress
from ergodrift.data.reader import StreamError
from ergodrift.data.stream import Stream
from ergodrift.engine import loop
from ergodrift.engine.checkpoint import Checkpoint
from ergodrift.engine.split import ROWS, splits
from ergodrift.types import Device, PyTree

CALL_SECONDS = 0.3  # how long one call into the compiled loop should last: progress and Ctrl-C come in between
NEVER = 2**31 - 1  # a sample count that no run reaches


class NonFiniteError(ArithmeticError):
    """A NaN or an infinity arose during a run; the message names the seed, the sample and the quantity."""


class Drive:
    """Takes a run from where it is to where it should go.

    Args:
        name: the algorithm's.
        spec, place: what stays fixed, and where the run is.
        seeds: their numbers.
        total: how many samples there will be; None where nobody knows.
    Where the grid of records ends with `NEVER` it is thinned: whenever it is full, every second record is dropped.
    """

    def __init__(self, name: str, spec: loop.RunSpec, place: loop.Place, seeds: np.ndarray, total: int | None) -> None:
        self.name, self.seeds = name, seeds
        self.devices, self.axis = _devices(len(seeds)), ()  # seeds are spread
        if splits(spec, place, len(everyone := _devices(0))):
            self.devices, self.axis = everyone, (ROWS,)
        self.advance = loop.advance_on(self.devices, *self.axis)
        self.grid = np.array(spec.grid, np.int64)
        self.thinned = len(self.grid) > 1 and np.array_equal(self.grid, spaced(len(self.grid) - 1, int(self.grid[0])))
        self.spec, self.place = loop.spread(self.devices, spec, place, *self.axis)
        self.done, self.chunk = int(place.position), 1024
        self.bar = Progress(name, total)

    def feed(self, stream: Stream) -> None:
        """Go on with these samples, which are on the devices."""
        self.spec = self.spec._replace(stream=stream)

    def to(self, limit: int, each: Callable[[], None], meanwhile: Callable[[], None] | None = None) -> None:
        """Take samples up to `limit`; after each call into the loop `each` is called, beside the first `meanwhile`."""
        while self.done < limit:
            until = min(self.done + self.chunk, limit)
            if self.thinned:
                if self.done == self.grid[-2]:
                    self._thin()
                until = min(until, int(self.grid[-2]))
            self._call(until, meanwhile)
            meanwhile = None
            self.bar.update(self.done)
            each()

    def _call(self, until: int, meanwhile: Callable[[], None] | None = None) -> None:
        began, ahead = time.monotonic(), None
        try:
            ahead = self.advance(self.spec, *self.place, loop.waiting_for(until))
            if meanwhile is not None:
                meanwhile()
            if not np.asarray(loop.healthy(ahead.carry)).all():
                raise self._fault(ahead)
        finally:
            jax.block_until_ready(ahead)  # after Ctrl-C, nothing goes on computing behind the caller's back
        self.place, self.done = ahead, until
        if meanwhile is None:
            elapsed = time.monotonic() - began
            self.chunk = int(self.chunk * min(max(CALL_SECONDS / elapsed, 0.25), 8.0)) + 1

    def finish(self) -> int:
        """Record where the run is, unless that was done, and say how many records there are."""
        self.bar.close()
        slot = int(self.place.slot)
        if slot and self.grid[slot - 1] == self.done:
            return slot
        self.grid[slot] = self.done
        self._regrid()
        self._call(self.done)
        return slot + 1

    def _thin(self) -> None:
        """Drop every second record, and go on with twice the spacing."""
        count = len(self.grid) - 1
        kept = jax.tree.map(np.array, self.place.records)
        for leaf in jax.tree.leaves(kept):
            leaf[:, : count // 2] = leaf[:, 1:count:2]
        self.grid = spaced(count, 2 * int(self.grid[0]))
        self._regrid()
        place = self.place._replace(records=kept, slot=jnp.int32(count // 2))
        self.place = loop.spread(self.devices, self.spec, jax.tree.map(jnp.asarray, place), *self.axis)[1]

    def _regrid(self) -> None:
        self.spec = self.spec._replace(grid=loop.everywhere(self.devices, jnp.asarray(self.grid, jnp.int32)))

    def _fault(self, ahead: loop.Place) -> NonFiniteError:
        """Which seed failed between two places of the loop, at which sample and in which quantity."""
        row = int(np.argmin(np.asarray(loop.healthy(ahead.carry))))
        one = jax.tree.map(lambda leaf: leaf[row], self.place.carry)
        sample, rounds, fault = loop.locate(self.spec, one, self.place.position, ahead.position)
        return not_finite(f"{self.name}, seed {self.seeds[row]}", int(sample), int(rounds), fault)


def not_finite(who: str, sample: int, rounds: int, fault: loop.Fault) -> NonFiniteError:
    """What was found by `loop.locate`, in words."""
    broken = [quantity for quantity, bad in fault._asdict().items() if bad] or ["a sum of losses or constraints"]
    advice = (
        "the sample itself is not finite: look at where it comes from"
        if fault.xi
        else "look at the loss and constraints for that sample, or tighten the domain"
    )
    return NonFiniteError(
        f"{who}: {' and '.join(broken)} not finite at sample {sample} (after {rounds} rounds); {advice}"
    )


def spaced(count: int, spacing: int) -> np.ndarray:
    """A grid of `count` records, evenly spaced, and a last place that is never reached: so the loop goes on."""
    return np.append(np.minimum(np.arange(1, count + 1, dtype=np.int64) * spacing, NEVER), NEVER)


def _devices(num_seeds: int) -> tuple[Device, ...]:
    """As many devices as divide the number of seeds (0: all), or the one that the caller has chosen as default."""
    chosen: Device | str | None = jax.config.values["jax_default_device"]
    devices = jax.local_devices(backend=chosen) if chosen is None or isinstance(chosen, str) else [chosen]
    return tuple(devices[: max(number for number in range(1, len(devices) + 1) if num_seeds % number == 0)])


class Course(NamedTuple):
    """What a run leaves: records at the sample counts of `grid`, of which the last is where it ended.

    Of a stream, `fault` is what ended it before its time, and `latest` are some of its last samples.
    """

    records: loop.Record
    grid: np.ndarray
    done: int
    fault: StreamError | None = None
    latest: PyTree = None


def straight(
    name: str, spec: loop.RunSpec, carry: loop.Carry, num_samples: int, seeds: np.ndarray, saved: Checkpoint | None
) -> Course:
    """All samples of a source that draws them itself."""
    place = loop.beginning(spec, carry)
    drive = Drive(name, spec, place if saved is None else saved.restore(place), seeds, num_samples)
    finished = drive.done >= num_samples

    def keep() -> None:
        if saved is not None and saved.due:
            saved.save(drive.place)

    try:
        drive.to(num_samples, keep)
    finally:
        drive.bar.close()
    if saved is not None and not finished:
        saved.save(drive.place, last=True)
    return Course(drive.place.records, drive.grid, num_samples)


def traced(spec: loop.RunSpec, carry: loop.Carry, grid: np.ndarray, num_samples: int) -> Course:
    """The same inside `vmap` or `jit`, in a single call. `grid` is that of `spec`, where it can be read."""
    place = loop.beginning(spec, carry)
    ahead = loop.advance(spec, *place, jnp.int32(num_samples), jax.default_backend())
    return Course(ahead.records, grid, num_samples)
