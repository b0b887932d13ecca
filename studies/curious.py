"""What a hub that is honest and curious learns: rows of agents from their ordinary answers, by least squares.

An answer is the loss and its gradient at x, and a walk asks at many x. Of a logistic loss on n rows these are smooth
functions of the n signed rows z_i = y_i x_i alone, so that a hub can look for the rows that explain all answers.

`python -m studies.curious` prints the tables and draws the figure of docs/howto/distributed.md; with --write-docs they
go there.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.special

import ergodrift as ed
from ergodrift._core.markdown import table
from ergodrift.distributed import Privacy
from ergodrift.types import Feedback

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "distributed.md"
BEGIN, END = "<!-- curious: begin -->", "<!-- curious: end -->"
DIM, AGENTS = 3, 4
STARTS, STEPS = 60, 3000  # of the search, which may end elsewhere, and stops where all is explained
NOISY_STARTS = 8  # where there is noise, which nothing explains
ROWS, VISITS, NOISE = (1, 2, 4, 8), (10, 30, 100, 500), (0.0, 1e-6, 1e-4, 1e-2, 1.0)
CLIP = 4.0


class Seen(NamedTuple):
    """What the hub has of one agent: where it asked, (visits, d), and the losses and gradients it got."""

    x: np.ndarray
    loss: np.ndarray
    grad: np.ndarray


def rows_of(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    """The data of an agent."""
    X = rng.normal(size=(rows, DIM))
    return {"X": X, "y": np.sign(X @ np.array([1.0, -1.0, 0.5]) + rng.normal(size=rows))}


def loss(x: jax.Array, xi: dict[str, jax.Array]) -> jax.Array:
    """Logistic, the mean over rows."""
    return jnp.mean(jnp.logaddexp(0.0, -xi["y"] * (xi["X"] @ x)))


def constraints(x: jax.Array, xi: dict[str, jax.Array]) -> jax.Array:
    """The mean score; its Jacobian, which is part of every answer, is the column means of X."""
    return jnp.stack([jnp.mean(xi["X"] @ x) - 0.1])


PROBLEM = ed.Problem(loss, constraints, ed.Ball(5.0))


@functools.cache
def asked(rows: int, seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Where the hub of an ordinary EDPP walk asks the first agent, (visits, d), and that agent's data."""
    data = [rows_of(np.random.default_rng([seed, agent]), rows) for agent in range(AGENTS)]
    pooled = jax.tree.map(lambda *leaves: np.stack(leaves), *data)
    graph = np.ones((AGENTS, AGENTS)) - np.eye(AGENTS)
    source = ed.MarkovSource(ed.MarkovChain.from_graph(graph), pooled)
    samples = 2 * AGENTS * max(VISITS)
    path = np.asarray(source.paths([seed], samples))
    run = ed.run(
        ed.edpp(4.0), PROBLEM, source, x0=np.zeros(DIM), num_samples=samples, seeds=[seed], record=range(samples)
    )
    return np.asarray(run.x)[0, np.flatnonzero(path[0] == 0)], data[0]


def walked(rows: int, visits: int, noise: float, seed: int = 0) -> tuple[Seen, np.ndarray]:
    """What that hub has of the agent after so many visits, and the agent's signed rows.

    With noise the agent has `Privacy`, whose clip of 4 is beyond all answers here: only the noise hides anything.
    """
    x, data = asked(rows, seed)
    told = _answers(x[:visits], data, jax.random.split(jax.random.key(seed), visits), noise)
    return Seen(x[:visits], np.asarray(told.loss), np.asarray(told.loss_grad)), data["y"][:, None] * data["X"]


def _answers(x: np.ndarray, data: dict[str, np.ndarray], keys: jax.Array, noise: float) -> Feedback:
    guard = Privacy(CLIP, noise=noise / CLIP).guard
    return jax.vmap(lambda x, key: guard(PROBLEM.feedback(x, data), key))(jnp.asarray(x), keys)


def recovered(seen: Seen, rows: int, seed: int = 0, starts: int = STARTS) -> np.ndarray:
    """The signed rows, (n, d), that explain what was seen best: nonlinear least squares from several starts."""
    x, y = seen.x, np.concatenate([seen.loss[:, None], seen.grad], axis=1)

    def errors(flat: np.ndarray) -> np.ndarray:
        z = flat.reshape(rows, DIM)
        margin = x @ z.T
        slope = -scipy.special.expit(-margin)
        return (np.concatenate([np.logaddexp(0, -margin).mean(1)[:, None], slope @ z / rows], axis=1) - y).ravel()

    def slopes(flat: np.ndarray) -> np.ndarray:
        z = flat.reshape(rows, DIM)
        margin = x @ z.T
        slope = -scipy.special.expit(-margin)
        bend = -slope * (1 + slope)  # the derivative of the slope by the margin
        out = np.zeros((len(x), 1 + DIM, rows, DIM))
        out[:, 0] = slope[:, :, None] * x[:, None] / rows
        out[:, 1:] = slope[:, None, :, None] * np.eye(DIM)[None, :, None] / rows
        out[:, 1:] += bend[:, None, :, None] * z.T[None, :, :, None] * x[:, None, None] / rows
        return out.reshape(-1, rows * DIM)

    jac: Any = slopes  # SciPy's stubs know its words alone
    method = "lm" if y.size >= rows * DIM else "dogbox"  # with fewer numbers than unknowns there are many solutions
    rng, best = np.random.default_rng(seed), None
    for _ in range(starts):
        begin = rng.normal(size=rows * DIM)
        found = scipy.optimize.least_squares(
            errors, begin, jac, method=method, xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=STEPS
        )
        best = found if best is None or found.cost < best.cost else best
        if best.cost < 1e-26:
            break
    assert best is not None
    return best.x.reshape(rows, DIM)


def distance(found: np.ndarray, truth: np.ndarray) -> float:
    """How far the rows found lie from the true ones, in the best order, as a share of the rows' size."""
    cost = np.linalg.norm(found[:, None] - truth[None], axis=-1)
    return float(cost[scipy.optimize.linear_sum_assignment(cost)].mean() / np.linalg.norm(truth, axis=-1).mean())


@functools.cache
def learned(rows: int, visits: int, noise: float, lives: int = 3) -> float:
    """The median over some walks of what is left unknown: 0 if the hub has all rows, near 1 if it has none."""
    found = []
    for seed in range(lives):
        seen, truth = walked(rows, visits, noise, seed)
        found.append(distance(recovered(seen, rows, seed, NOISY_STARTS if noise else STARTS), truth))
    print(f"{rows} rows, {visits} visits, noise {noise:g}: {np.median(found):.1e}", flush=True)
    return float(np.median(found))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lives", type=int, default=3, help="walks for each number")
    parser.add_argument("--write-docs", action="store_true", help="put the table and the figure into the docs")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    head = ["", *(f"{rows} row{'s' * (rows > 1)}" for rows in ROWS)]
    lines = [(f"{visits} visits, no noise", visits, 0.0) for visits in VISITS]
    lines += [(f"100 visits, noise {z:g}", 100, z) for z in NOISE[1:]]
    text = table(
        head, [[name, *(f"{learned(n, visits, z, options.lives):.0e}" for n in ROWS)] for name, visits, z in lines]
    )
    print(text)
    draw(PAGE.with_name("curious.svg") if options.write_docs else Path("curious.svg"), options.lives)
    if options.write_docs:
        page = PAGE.read_text()
        before, rest = page.split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")


def draw(path: Path, lives: int) -> None:
    """The figure: what stays unknown against visits, by rows; and against noise, by rows."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    for rows in ROWS:
        left.loglog(
            VISITS, [max(learned(rows, visits, 0.0, lives), 1e-16) for visits in VISITS], marker="o", label=rows
        )
        right.loglog(NOISE[1:], [learned(rows, 100, z, lives) for z in NOISE[1:]], marker="o", label=f"{rows} rows")
    left.set(xlabel="visits, no noise", ylabel="share of the rows unknown to the hub")
    right.set(xlabel="standard deviation of the noise, 100 visits")
    right.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
