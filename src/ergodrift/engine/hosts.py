"""A run on several hosts: each process of `jax.distributed` takes its share of the seeds, and all get all results.

Seeds have nothing to do with each other, so that processes talk only at the end. Within a process, seeds are spread
over its devices by JAX's own sharding (`loop.advance_on`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from ergodrift.data.source import Source, seed_keys
from ergodrift.engine.carry import Record
from ergodrift.engine.result import Result
from ergodrift.types import PyTree


class Own(list[int]):
    """Seeds that a process takes itself: they are not shared out again."""


class Share(NamedTuple):
    """What one process of several takes.

    Attributes:
        number: of the process.
        everyone: the seeds of all.
        begin, end: where its own stand among them.
    """

    number: int
    everyone: list[int]
    begin: int
    end: int

    @property
    def seeds(self) -> Own:
        return Own(self.everyone[self.begin : self.end])

    def rows(self, array: PyTree, ndim: int) -> PyTree:
        """Its rows of an array that may have one for each seed, and then has `ndim` axes."""
        return array if array is None or np.ndim(array) < ndim else np.asarray(array)[self.begin : self.end]

    def paths(self, source: Source, paths: PyTree) -> PyTree:
        """Its rows of given paths."""
        if paths is None:
            return None
        return jax.tree.map(lambda entry, given: self.rows(given, np.ndim(entry) + 2), source.entry, paths)

    def file(self, path: str | os.PathLike[str] | None) -> str | None:
        """A checkpoint of its own."""
        return None if path is None else f"{os.fspath(path)}.{self.number}"


def share(seeds: PyTree) -> Share | None:
    """What this process takes; None where it takes all: alone, with seeds that cannot be shared out evenly, or with a
    device that the caller has chosen as default."""
    count = 1 if isinstance(seeds, Own) else jax.process_count()
    if count == 1 or jax.config.values["jax_default_device"] is not None:
        return None
    everyone = list(range(len(seed_keys(seeds)))) if np.ndim(seeds) == 0 else [int(seed) for seed in seeds]
    number, each = jax.process_index(), len(everyone) // count
    return None if len(everyone) % count else Share(number, everyone, number * each, (number + 1) * each)


def together(once: Callable[[], Result], part: Share, paths: PyTree, levels: PyTree) -> Result:
    """The results of all processes as one. Where one of them has failed, none is left waiting: all raise.

    Args:
        once: the run of this process.
        part: its share.
        paths, levels: as given, for all processes.
    """
    from jax.experimental import multihost_utils  # here: few have several hosts, and it takes its time

    result = error = None
    try:
        result = once()
    except Exception as raised:
        error = raised
    failed = np.flatnonzero(multihost_utils.process_allgather(np.array(error is not None)))
    if error is not None:
        raise error
    if len(failed):
        raise RuntimeError(f"the run failed in process {failed[0]}, whose message says why")
    assert result is not None
    names = (*Record._fields, "solution")
    mine = {name: jax.tree.map(np.asarray, getattr(result, name)) for name in names}
    whole = multihost_utils.process_allgather(mine, tiled=True)
    seeds = np.array(part.everyone)
    setting = result.setting and dataclasses.replace(result.setting, seeds=seeds, levels=levels)
    return dataclasses.replace(result, seeds=seeds, paths=paths, setting=setting, **whole)
