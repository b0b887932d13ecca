"""The three designs of the paper's section 5: fair classification while a chain of three states changes its mind."""

from __future__ import annotations

import numpy as np

from ergodrift.data.chain import MarkovChain
from ergodrift.data.tables import MarkovSource
from ergodrift.experiments.config import configure
from ergodrift.peers.task import Table, Task
from ergodrift.peers.tasks.scores import optimum
from ergodrift.problems import fairness, scores, synthetic

TITLES = {
    "default": "The paper's design",
    "wide": "The paper's design, states further apart",
    "infeasible-start": "The paper's design from an infeasible start",
}


def design(name: str, quick: bool = False) -> Task:
    """One of the designs; 50,000 samples, 150 mixing times."""
    config = configure(name, points=100 if quick else None)
    rows = synthetic(config.seed, angles=config.angles, scale=config.scale, phi=config.phi, points=config.points)
    problem, data, _ = fairness(*rows, limit=config.limit, radius=config.radius)
    states = len(config.angles)
    chain = MarkovChain(np.full((states, states), config.p) + (1 - states * config.p) * np.eye(states))
    table = scores.Scores(np.hstack([rows.X, np.ones((len(rows.y), 1))]), rows.y, (rows.z - rows.z.mean())[:, None])
    return Task(
        f"paper-{name}",
        TITLES[name],
        "The mean logistic loss over the rows of three states, while scores and a sensitive feature have a covariance "
        f"of at most {config.limit} in size. A chain stays in a state for about {1 / (2 * config.p):.0f} samples "
        "(Kim and Lee, section 5).",
        "simulated",
        problem,
        MarkovSource(chain, data),
        np.asarray(config.x0),
        3000 if quick else 50_000,
        None,
        lambda: optimum(table, config.limit, config.radius),
        "drawn",
        Table(table.X, table.y, rows.z > 0, "demographic_parity", config.limit),
    )
