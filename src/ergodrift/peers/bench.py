"""The benchmark itself: every competitor on every task, each result kept as soon as it is there."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ergodrift
from ergodrift._core import check
from ergodrift._core.files import write_whole
from ergodrift._core.progress import Progress
from ergodrift.experiments.reproduce import versions
from ergodrift.peers.baselines import BASELINES
from ergodrift.peers.classifiers import CLASSIFIERS
from ergodrift.peers.libraries import LIBRARIES
from ergodrift.peers.networks import bench as nets
from ergodrift.peers.ours import OURS
from ergodrift.peers.research import RESEARCH
from ergodrift.peers.rival import Found, NotForThisError, Rival, Trial
from ergodrift.peers.tasks import TASKS

SCHEMA = "ergodrift peers v1"
RIVALS: tuple[Rival, ...] = (*OURS, *RESEARCH, *BASELINES, *LIBRARIES, *CLASSIFIERS)
PACKAGES = ("cooper-optim", "cvxpy", "fairlearn", "humancompatible-train", "scikit-learn", "torch")
QUICK = ("compas", "adult", "paper-default")  # tasks of --quick, where none are named
SHARED = ("_core", "data", "datasets", "geometry", "problem", "problems", "trust", *(f"peers/{name}" for name in (
    "baselines", "descent", "measure", "rival", "rules", "task", "tasks/scores", "tasks/solvers",
)))  # fmt: skip  # parts of the package that every result depends on

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Config:
    """What to run.

    Attributes:
        tasks: their names.
        seeds: orders or paths of each.
        quick: whether tasks are cut short.
        rivals: names of competitors; all where empty.
        networks: names of the tasks that are trained for.
        network_seeds: of each of them.
    """

    tasks: tuple[str, ...]
    seeds: int = 20
    quick: bool = False
    rivals: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    network_seeds: int = nets.SEEDS

    def __post_init__(self) -> None:
        known = {"tasks": list(TASKS), "rivals": [rival.name for rival in RIVALS], "networks": list(nets.TASKS)}
        for field, names in known.items():
            for name in getattr(self, field):
                if name not in names:
                    raise ValueError(f"{field}: there is no {name!r}; there are {', '.join(names)}")
        check.integer("seeds", self.seeds, at_least=1)
        check.integer("network_seeds", self.network_seeds, at_least=1)


def compare(config: Config, parts: Path, log: Callable[[str], None], jobs: int = 1) -> dict[str, Any]:
    """Run the benchmark.

    Args:
        config: what to run.
        parts: a folder in which each result is kept; those of the same code and configuration are not found again.
        log: called with a line about each result.
        jobs: networks that are trained at the same time.

    Returns:
        The content of `results.json`; docs/laboratory/peers.md describes it.
    """
    chosen = [rival for rival in RIVALS if not config.rivals or rival.name in config.rivals]
    bar = Progress("peers", len(config.tasks) * (len(chosen) + 1), "results")
    done, tasks, rows = 0, dict[str, Row](), list[Row]()
    for name in config.tasks:
        trial = functools.cache(lambda name=name: Trial.of(TASKS[name](quick=config.quick), config.seeds))
        tasks[name] = _kept(parts, config, name, "task", (), lambda trial=trial: describe(trial()))
        log(f"{name}: {tasks[name]['title']}")
        for rival in chosen:
            done += 1
            bar.update(done, f"  {name}: {rival.name}")
            find = functools.partial(judged, rival, trial)
            row = _kept(parts, config, name, rival.name, rival.rooms, find)
            rows.append({"task": name, **row})
            log(f"  {rival.name:32} {line(row, tasks[name])}")
    bar.close()

    found = {package: version for package in PACKAGES if (version := _version(package))}

    def keep(task: str, trainer: str, find: Callable[[], Row]) -> Row:
        rooms = nets.ROOMS + (nets.OUR_ROOMS if trainer in nets.OUR_NAMES else ())
        made_with = [SCHEMA, config.network_seeds, versions(), found, _digest(rooms), task, trainer]
        return _filed(parts, f"network-{task}", trainer, made_with, find)

    networks = nets.compare(config.networks, config.network_seeds, keep, log, jobs) if config.networks else None
    return {
        "schema": SCHEMA,
        "config": dataclasses.asdict(config),
        "versions": {**versions(), **found},
        "rivals": {rival.name: _described(rival) for rival in chosen},
        "tasks": tasks,
        "rows": rows,
        "networks": networks,
    }


def describe(trial: Trial) -> Row:
    """What a reader has to know of a task: its data, how dependent they are, where x0 and the optimum stand."""
    task, judge = trial.task, trial.judge
    start, best = judge(judge.x0[None]), judge(judge.flat(judge.optimum.x)[None])
    try:
        found = trial.dependence
        dependence: Row = {
            "tau_mix": found.tau_mix,
            "interval": list(found.tau_mix_interval),
            "integrated_time": found.integrated_time,
            "ess": found.ess,
        }
    except ValueError as error:
        dependence = {"note": str(error)}
    return {
        **{field: getattr(task, field) for field in ("title", "about", "data", "num_samples", "order")},
        "dimension": len(judge.x0),
        "constraints": len(judge.optimum.multipliers),
        "dependence": dependence,
        "x0": {name: float(values[0]) for name, values in start._asdict().items()},
        "optimum": {"solver": judge.optimum.solver, **{k: float(v[0]) for k, v in best._asdict().items()}},
    }


def judged(rival: Rival, trial: Callable[[], Trial]) -> Row:
    """The row of a competitor on a task, also where it is missing, has nothing to say or fails."""
    if absent := [package for package in rival.needs if importlib.util.find_spec(package) is None]:
        return {"rival": rival.name, "status": "missing", "why": f"not installed: {', '.join(absent)}"}
    try:
        found = rival.run(trial())
    except NotForThisError as reason:
        return {"rival": rival.name, "status": "not for this", "why": str(reason)}
    except Exception as error:  # a competitor that fails is a result, not the end
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return {"rival": rival.name, "status": "failed", "why": f"{type(error).__name__}: {error} ({where})"}
    row: Row = {"rival": rival.name, "status": "done", "why": ""}
    return {**row, **(found if isinstance(found, dict) else _measured(rival, found, trial()))}


def _measured(rival: Rival, found: Found, trial: Trial) -> Row:
    judge = trial.judge
    values = judge(found.points)
    if not np.isfinite(values.gap).all():
        return {"status": "failed", "why": "the point it ends at is not finite", "setting": found.setting}
    row: Row = {
        **{name: _short(each) for name, each in values._asdict().items()},
        "seconds": found.seconds,
        "setting": found.setting,
        "note": found.note,
        "later": judge.later(found.points[0]),
    }
    if rival.certified:
        row["kept"] = [row["later"]["verdict"], *(judge.later(point)["verdict"] for point in found.points[1:])]
    if found.way is not None:
        seeds, records, size = found.way.shape
        gaps = judge(found.way.reshape(-1, size)).gap.reshape(seeds, records)
        row["curve"] = {"samples": trial.stops.tolist(), "gap": _short(gaps.mean(axis=0))}
    return row


def line(row: Row, task: Row) -> str:
    """A row in a few words, for the terminal."""
    if row["status"] != "done":
        return f"{row['status']}: {row['why']}"
    if "gap" not in row:
        return f"no gap; loss {np.mean(row['loss']):.4f}, violation {np.mean(row['violation']):+.4f}"
    gap = np.mean(row["gap"]) / task["x0"]["gap"]
    return f"gap {gap:.2e} of x0's, violation {np.mean(row['violation']):+.3g}, {row['seconds']:.3g} s"


def _kept(parts: Path, config: Config, task: str, what: str, rooms: tuple[str, ...], find: Callable[[], Row]) -> Row:
    made_with = [SCHEMA, config.quick, config.seeds, versions(), _code(task, rooms), task, what]
    return _filed(parts, task, what, made_with, find)


def _filed(parts: Path, task: str, what: str, made_with: list[Any], find: Callable[[], Row]) -> Row:
    """A result from the folder, or found and put there. What is missing today may be there tomorrow: it is not kept."""
    identity = hashlib.sha256(json.dumps(made_with).encode()).hexdigest()[:16]
    path = parts / f"{task}-{''.join(c if c.isalnum() else '-' for c in what)}-{identity}.json"
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        found = _finite(find())
    if found.get("status") != "missing":
        write_whole(path, json.dumps(found))
    return found


def _code(task: str, rooms: tuple[str, ...]) -> str:
    """The code that a result depends on, as a number: a result of other code is found again."""
    make = TASKS[task]
    first = Path(inspect.getfile(getattr(make, "func", make))).read_bytes()  # a design is a partial function
    return _digest((*SHARED, *rooms), first)


def _digest(rooms: tuple[str, ...], first: bytes = b"") -> str:
    package, digest = Path(ergodrift.__file__).parent, hashlib.sha256(first)
    for room in rooms:
        for path in sorted([package / f"{room}.py", *(package / room).rglob("*.py")]):
            if path.exists():
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _described(rival: Rival) -> Row:
    return {name: getattr(rival, name) for name in ("family", "tuned", "settings", "about")}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _finite(value: Any) -> Any:
    """The same without what JSON has no word for: an end that is not finite is None, as where there is none."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.7g}") for value in values.tolist()]
