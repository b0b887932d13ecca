"""The section of networks: everybody on every task, the same seeds, batches and number of steps."""

from __future__ import annotations

import concurrent.futures
import functools
import importlib.util
import math
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor
from typing import Any

import numpy as np

from ergodrift.peers.networks.tasks import NEEDS, TASKS
from ergodrift.peers.networks.trainers import FEWER, OURS, TRAINERS, Setting, Trainer

SLACK = 0.005  # a violation that counts as none when settings are chosen, in units of the constraint
SEEDS, QUICK = 5, ("norm",)  # seeds, unless told; the tasks of --quick
ROOMS, OUR_ROOMS = ("datasets", "peers/networks"), ("torch",)  # what results depend on, and ours besides
OUR_NAMES = OURS, FEWER
MEASURES = ("loss", "violation", "test_loss", "test_violation", "oscillation", "seconds")
Row = dict[str, Any]
Keep = Callable[[str, str, Callable[[], Row]], Row]  # by task and trainer


def compare(
    names: tuple[str, ...], seeds: int, keep: Keep, log: Callable[[str], None], jobs: int = 1
) -> dict[str, Any]:
    """Train them all.

    Args:
        names: of tasks.
        seeds: of the first weights and the order of batches, the same for all.
        keep: (task, trainer, find) -> the row that was found before, or that `find` finds now.
        log: called with a line about each result.
        jobs: processes that train at the same time.

    Returns:
        `seeds`, `slack`, `tasks` by name, and `rows`, one for each trainer on each task: the numbers of all seeds with
        the setting that was chosen, and the means of all settings that were `tried`.
    """
    tasks, rows = dict[str, Row](), list[Row]()
    # Spawned: a fork of a process in which JAX has threads may hang.
    with concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for name in names:
            log(f"networks, {name}")
            for trainer in TRAINERS:
                row = keep(name, trainer.name, functools.partial(_row, pool, name, trainer, seeds))
                if "about" in row:
                    tasks[name] = {"about": row["about"]}
                rows.append({"task": name, **row})
                log(f"  {trainer.name:32} {line(row)}")
    about = {trainer.name: {"tried": len(trainer.settings), "about": trainer.about} for trainer in TRAINERS}
    return {"seeds": seeds, "slack": SLACK, "tasks": tasks, "trainers": about, "rows": rows}


def line(row: Row) -> str:
    """A row in a few words, for the terminal."""
    if row["status"] != "done":
        return f"{row['status']}: {row['why']}"
    means = {name: np.mean(row[name]) for name in ("loss", "violation", "seconds")}
    return f"loss {means['loss']:.4f}, violation {means['violation']:.4f}, {means['seconds']:.1f} s"


def _row(pool: Executor, name: str, trainer: Trainer, seeds: int) -> Row:
    head = {"rival": trainer.name, "status": "done", "why": ""}
    needs = *trainer.needs, *NEEDS.get(name, ())
    if absent := [package for package in needs if importlib.util.find_spec(package) is None]:
        return {**head, "status": "missing", "why": f"not installed: {', '.join(absent)}"}
    place = TRAINERS.index(trainer)
    every = [[pool.submit(_trained, name, place, k, s) for s in range(seeds)] for k in range(len(trainer.settings))]
    try:
        found = [[one.result() for one in runs] for runs in every]
    except BrokenExecutor:  # a process was killed, which says nothing of the trainer, and nobody can train any more
        raise
    except Exception as error:  # who fails is a result, not the end
        for one in (one for runs in every for one in runs):
            one.cancel()
        return {**head, "status": "failed", "why": f"{type(error).__name__}: {error}"}
    return {**head, "about": found[0][0]["about"], **chosen(trainer.settings, found)}


def chosen(settings: tuple[Setting, ...], found: list[list[Row]]) -> Row:
    """The numbers of the best setting: of those with a violation below SLACK the smallest loss, else the smallest
    violation; means over seeds, of the training part. A setting that ends in numbers that are not finite is last."""

    def means(runs: list[Row]) -> Row:
        return {name: float(np.mean([run[name] for run in runs])) for name in MEASURES}

    def place(k: int) -> tuple[float, float]:
        loss, violation = (tried[k][name] for name in ("loss", "violation"))
        if not math.isfinite(loss + violation):
            return math.inf, math.inf
        return max(violation - SLACK, 0.0), loss

    tried = [means(runs) for runs in found]
    best = min(range(len(settings)), key=place)
    if place(best)[0] == math.inf:
        return {"status": "failed", "why": "the weights it ends at are not finite"}
    numbers = {name: [run[name] for run in found[best]] for name in MEASURES}
    return {
        **numbers,
        "setting": settings[best],
        "tried": [{"setting": one, **mean} for one, mean in zip(settings, tried, strict=True)],
    }


@functools.cache
def _task(name: str) -> Any:
    """Made once in each process, which trains on one core."""
    import torch  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    return TASKS[name]()


def _trained(name: str, place: int, number: int, seed: int) -> Row:
    """One network, from its first weights to what it is worth on both parts."""
    import torch  # type: ignore[import-not-found]

    task, trainer = _task(name), TRAINERS[place]
    torch.manual_seed(seed)
    model = task.network()
    began = time.perf_counter()
    seen = trainer.train(task, model, task.batches(seed), trainer.settings[number])
    seconds = time.perf_counter() - began
    values = (*task.judge(model, task.train), *task.judge(model, task.test), oscillation(seen), seconds)
    return {"about": task.about, **dict(zip(MEASURES, values, strict=True))}


def oscillation(seen: list[Any]) -> float:
    """The standard deviation of multipliers over the last quarter of the rounds, averaged over constraints, as a part
    of the largest mean of one; NaN where there are none."""
    if not seen:
        return math.nan
    last = np.stack([np.asarray(one, float) for one in seen[-(len(seen) // 4 or 1) :]])
    largest = float(np.abs(last.mean(axis=0)).max())
    return float(last.std(axis=0).mean()) / largest if largest > 0 else 0.0
