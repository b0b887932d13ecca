"""What the numbers in the scale-free method do: one changed at a time, on the tasks of the benchmark.

`python -m studies.scalefree` prints the table of docs/laboratory/scalefree.md; with --write-docs it goes there.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import jax
import numpy as np

import ergodrift as ed
from ergodrift.advice import choose
from ergodrift.advice.settings import Setting
from ergodrift.data.expectation import expectations
from ergodrift.methods import scalefree
from ergodrift.methods.algorithms import Algorithm
from ergodrift.peers.task import Task
from ergodrift.peers.tasks import TASKS

PAGE = Path(__file__).parents[1] / "docs" / "laboratory" / "scalefree.md"
NAMES = ("flights", "compas", "adult", "neyman", "cvar", "tracking", "hedge", "capacity", "prices")


def changed(**fields: object) -> Callable[[Algorithm], Algorithm]:
    """The algorithm with other fields in its schedule; `average` is the algorithm's own."""
    average = fields.pop("average", None)

    def make(algorithm: Algorithm) -> Algorithm:
        schedule = dataclasses.replace(algorithm.schedule, **fields)  # type: ignore[type-var]
        return dataclasses.replace(algorithm, schedule=schedule, average=average or algorithm.average)

    return make


VARIANTS: dict[str, Callable[[Algorithm], Algorithm]] = {
    "measured, no settings tried": lambda algorithm: algorithm,
    "nothing measured: `sdpp()`": lambda algorithm: ed.sdpp(),
    "c = 1": changed(stride=1.0),
    "c = 4": changed(stride=4.0),
    "k = 0.1": changed(dual_stride=0.1),
    "k = 1": changed(dual_stride=1.0),
    "energies forget nothing": changed(memory=0.0),
    "weights s² and t²": changed(memory=2.0, mean_memory=2.0, average=("polynomial", 2)),
    "uniform average": changed(average="uniform"),
}
DEPENDENCE = {"long-run variance counts 1": (1.0, 0.12), "100": (100.0, 0.12), "1 for the constraints": (25.0, 1.0)}


def gaps(task: Task, algorithm: Algorithm, seeds: int, num_samples: int | None = None) -> np.ndarray:
    """The Lagrangian gaps of the solutions, one for each seed, in units of x0's."""
    best, samples = task.optimum(), num_samples or task.num_samples
    paths = task.paths(seeds)
    result = ed.run(
        dataclasses.replace(algorithm, reason=""),
        task.problem,
        task.source,
        x0=task.x0,
        num_samples=samples,
        seeds=seeds,
        paths=None if paths is None else paths[:, :samples],
        record=1,
    )

    def lagrangian(points: object) -> np.ndarray:
        losses, constraints = expectations(task.problem, task.source, points, axes=1)
        return np.asarray(losses) + np.asarray(constraints) @ best.multipliers

    ends = jax.tree.map(lambda x: np.asarray(x)[None], (task.x0, best.x))
    start, least = (lagrangian(x) for x in ends)
    return (lagrangian(result.solution) - least) / (start - least)


def table(names: tuple[str, ...], seeds: int) -> str:
    """Rows are variants, columns tasks."""
    tasks = [TASKS[name]() for name in names]
    given = [(task.problem, task.source, task.x0, task.num_samples) for task in tasks]
    rows = {"auto": [gaps(task, ed.auto(*each), seeds).mean() for task, each in zip(tasks, given, strict=True)]}
    with mock.patch.object(choose, "best_setting", return_value=Setting()):
        chosen = [ed.auto(*each) for each in given]
    for name, make in VARIANTS.items():
        rows[name] = [gaps(task, make(algorithm), seeds).mean() for task, algorithm in zip(tasks, chosen, strict=True)]
    usual = scalefree.DEPENDENCE, scalefree.DUAL_DEPENDENCE
    for name, numbers in DEPENDENCE.items():
        scalefree.DEPENDENCE, scalefree.DUAL_DEPENDENCE = numbers
        jax.clear_caches()  # these are constants of the compiled loop
        rows[name] = [gaps(task, algorithm, seeds).mean() for task, algorithm in zip(tasks, chosen, strict=True)]
    scalefree.DEPENDENCE, scalefree.DUAL_DEPENDENCE = usual
    jax.clear_caches()
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(f'{value:.2g}' for value in values)} |" for name, values in rows.items()]
    return "\n".join(lines)


def write(mark: str, text: str) -> None:
    """Put text between the marks of that name in docs/laboratory/scalefree.md."""
    begin, end = f"<!-- {mark}: begin -->\n", f"<!-- {mark}: end -->"
    head, rest = PAGE.read_text().split(begin)
    PAGE.write_text(f"{head}{begin}{text}{end}{rest.split(end)[1]}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m studies.scalefree", description=__doc__)
    parser.add_argument("--tasks", default=",".join(NAMES), help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=4, help="orders of each")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/laboratory/scalefree.md")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    found = table(tuple(options.tasks.split(",")), options.seeds)
    print(found)
    if options.write_docs:
        write(
            "scalefree",
            f"`python -m studies.scalefree --write-docs`: the Lagrangian gap in units of x0's, mean of\n"
            f"{options.seeds} orders, with one thing changed at a time.\n\n{found}\n",
        )


if __name__ == "__main__":
    main()
