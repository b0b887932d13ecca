"""What `auto` makes of the paper's designs, beside RDPP and EDPP-t that is told the mixing time.

`python -m studies.designs` prints the table of docs/laboratory/scalefree.md; with --write-docs it goes there.
"""

from __future__ import annotations

import argparse

import jax
import numpy as np

import ergodrift as ed
from ergodrift._core import markdown
from ergodrift.experiments.config import configure
from ergodrift.peers.task import Task
from ergodrift.peers.tasks.paper import TITLES, design
from studies.scalefree import gaps, write

SAMPLES = (1000, 3000, 10_000, 50_000)


def row(name: str, task: Task, samples: int, seeds: int) -> list[str]:
    """The gaps of `auto`, RDPP and EDPP-t on the same paths, and how far `auto` is below the better of these."""
    config = configure(name)
    chosen = ed.auto(task.problem, task.source, task.x0, samples)
    told = ed.edpp(config.tau_mix, config.beta)
    auto, rdpp, edpp = (gaps(task, algorithm, seeds, samples) for algorithm in (chosen, ed.rdpp(), told))
    best = rdpp if rdpp.mean() < edpp.mean() else edpp
    error = np.std(auto - best, ddof=1) / np.sqrt(seeds)
    means = [f"{found.mean():.2g}" for found in (auto, rdpp, edpp)]
    return [TITLES[name], f"{samples:,}", chosen.name, *means, f"{auto.mean() - best.mean():+.2g} ± {error:.2g}"]


def table(seeds: int) -> str:
    """Rows are designs and numbers of samples."""
    head = ["design", "samples", "`auto` is", "`auto`", "RDPP", "EDPP-t, told", "`auto` less the better one"]
    tasks = {name: design(name) for name in TITLES}
    return markdown.table(head, [row(name, task, count, seeds) for name, task in tasks.items() for count in SAMPLES])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m studies.designs", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="paths of each")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/laboratory/scalefree.md")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    found = table(options.seeds)
    print(found)
    if options.write_docs:
        write(
            "designs",
            f"`python -m studies.designs --write-docs`: the Lagrangian gap in units of x0's, mean of\n"
            f"{options.seeds} paths, with the standard error of the difference.\n\n{found}\n",
        )


if __name__ == "__main__":
    main()
