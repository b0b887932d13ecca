"""Drift-plus-penalty in pictures: a debt that grows while a constraint is violated, and presses on the decision."""

from __future__ import annotations

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from style import BLUE, GREEN, GREY, ORANGE, RED, SKY, save

import ergodrift as ed

ROUNDS = 400


def main() -> None:
    """Draw it."""
    rng = np.random.default_rng(2)
    need = 1 + 0.5 * np.sin(np.arange(ROUNDS) / 25) + 0.25 * rng.normal(size=ROUNDS)
    problem = ed.Problem(
        lambda x, xi: x[0], lambda x, xi: xi - x, ed.Box(np.zeros(1), np.full(1, 3.0))
    )  # spend little, and on average no less than is needed
    method = ed.dpp().bind(problem)
    state = method.init(np.zeros(1), num_constraints=1)
    x, queue = np.empty(ROUNDS), np.empty(ROUNDS)
    for t in range(ROUNDS):
        x[t], queue[t] = float(state.x[0]), float(state.queue[0])
        state, _ = method.step(state, problem.feedback(state.x, jnp.asarray(need[t])))
    over = need - x

    figure, (top, middle, bottom) = plt.subplots(3, 1, figsize=(9.5, 6.6), sharex=True, height_ratios=[1.2, 1, 0.8])
    top.set_ylim(-0.6, 2.8)
    top.plot(need, color=SKY, linewidth=0.8, label="what is needed in round t")
    top.plot(x, color=BLUE, linewidth=2, label="the decision x")
    top.set_title("1. The loss pulls x down; the debt pushes it up")
    top.legend(loc="lower right", ncols=2, fontsize=8)
    rounds = np.arange(ROUNDS)
    middle.fill_between(rounds, np.maximum(over, 0), step="mid", color=RED, label="too little: the debt grows")
    middle.fill_between(rounds, np.minimum(over, 0), step="mid", color=GREEN, label="enough: it is paid back")
    middle.plot(
        queue / queue.max() * over.max(), color="black", linewidth=1.5, label="the debt, or queue (other units)"
    )
    middle.set_title("2. Each round adds its violation to the debt, which never goes below 0")
    middle.set_ylim(-2.1, 2.6)
    middle.legend(loc="upper left", ncols=3, fontsize=8)
    bottom.plot(np.cumsum(over) / np.arange(1, ROUNDS + 1), color=ORANGE, linewidth=2)
    bottom.axhline(0, color=GREY, linewidth=1)
    bottom.set_title("3. A debt that stays bounded, over more and more rounds: the average violation goes to 0")
    bottom.set(xlabel="rounds", xlim=(0, ROUNDS))
    save(figure, "drift_plus_penalty")


if __name__ == "__main__":
    main()
