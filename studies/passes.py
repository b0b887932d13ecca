"""What several passes over a dependent record buy: error against passes and orders, where the truth is known.

`python -m studies.passes` prints the table of docs/howto/series.md; with --write-docs it goes there.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import ergodrift as ed
from studies.series import ar1

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "series.md"
ROWS, TAU, SIZE, NOISE, LIMIT = 2000, 20.0, 5, 1.0, 1.0
WEIGHTS = np.array([1.0, -0.5, 0.8, 0.3, 0.6])
PASSES = (1, 2, 5, 20, 100)
ORDERS = ("given", "blocks", "shuffled")

PROBLEM = ed.Problem(
    lambda x, xi: (xi["a"] @ x - xi["b"]) ** 2 / 2,
    lambda x, xi: jnp.stack([xi["c"] @ x - LIMIT]),
    ed.Ball(5.0),
)


def record(seed: int) -> dict[str, np.ndarray]:
    """b = a.w + noise and c = 1 + noise, all of them AR(1) with the same relaxation time."""
    drawn = ar1(TAU)(np.random.default_rng(seed), ROWS, 2 * SIZE + 1)
    a, noise, c = drawn[:, :SIZE], drawn[:, SIZE], 1 + 0.5 * drawn[:, SIZE + 1 :]
    return {"a": a, "b": a @ WEIGHTS + NOISE * noise, "c": c}


def truth_gap(x: np.ndarray) -> float:
    """The Lagrangian gap under the true law, where E loss = (|x - w|^2 + noise^2) / 2 and E constraint = sum x - limit.

    Its optimum is the projection of w onto the half-space, w - lambda (1, ..., 1).
    """
    multiplier = max(WEIGHTS.sum() - LIMIT, 0) / SIZE
    best = WEIGHTS - multiplier
    loss = (np.sum((x - WEIGHTS) ** 2) - np.sum((best - WEIGHTS) ** 2)) / 2
    return float(loss + multiplier * (x.sum() - LIMIT))


class Gaps(NamedTuple):
    """Lagrangian gaps of one solution: under the true law, and on its own record."""

    truth: float
    record: float


def gaps(data: dict[str, np.ndarray], reference: ed.Reference, passes: int, order: str, seed: int) -> Gaps:
    """Of what `auto` makes of so many passes over a record."""
    block, x0 = 100 if order == "blocks" else None, np.zeros(SIZE)
    source = ed.SeriesSource(data, epochs=passes, order=order, block=block)
    result = ed.run(ed.auto(PROBLEM, source, x0), PROBLEM, source, x0=x0, seeds=[seed], record=1)
    own = ed.metrics.lagrangian_gap(result, PROBLEM, source, reference)[0, -1]
    return Gaps(truth_gap(np.asarray(result.solution[0], dtype=float)), float(own))


def table(records: int) -> str:
    """Markdown: a row for each number of passes, and the record's own optimum last."""
    found: dict[tuple[int, str], list[Gaps]] = {(passes, order): [] for passes in PASSES for order in ORDERS}
    floor = []
    for seed in range(records):
        data = record(seed)
        reference = ed.solve_reference(PROBLEM, ed.SeriesSource(data), np.zeros(SIZE))
        floor.append(truth_gap(reference.x))
        for passes, order in found:
            found[passes, order].append(gaps(data, reference, passes, order, seed))
    names = [f"{order}: {kind}" for order in ORDERS for kind in ("truth", "record")]
    lines = [f"| passes | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for passes in PASSES:
        cells = [f"{value:.2g}" for order in ORDERS for value in np.mean(found[passes, order], axis=0)]
        lines.append(f"| {passes} | {' | '.join(cells)} |")
    mean, error = np.mean(floor), np.std(floor, ddof=1) / np.sqrt(records)
    best = [f"{mean:.2g} ± {error:.1g}", "0"] * len(ORDERS)
    return "\n".join([*lines, f"| the record's own optimum | {' | '.join(best)} |"])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m studies.passes", description=__doc__)
    parser.add_argument("--records", type=int, default=20, help="of the same law")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/howto/series.md")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    found = table(options.records)
    print(found)
    if options.write_docs:
        page = PAGE.read_text()
        head, rest = page.split("<!-- passes: begin -->\n")
        tail = rest.split("<!-- passes: end -->")[1]
        text = f"`python -m studies.passes --write-docs`, means over {options.records} records:\n\n{found}\n"
        PAGE.write_text(f"{head}<!-- passes: begin -->\n{text}<!-- passes: end -->{tail}")


if __name__ == "__main__":
    main()
