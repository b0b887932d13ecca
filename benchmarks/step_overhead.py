"""What a round costs beyond the user's own loss and constraints, one seed and many, on this machine.

The floor is a compiled loop that does nothing but evaluate loss, constraints and their derivatives at a moving point,
on the same data. Both are measured in turns in the same process and the best of several turns counts: machines are
noisy, differences and ratios measured side by side are not. Prints a table and writes bench-results/step_overhead.json.

    python benchmarks/step_overhead.py [--rounds N]
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from common import best_of, write

import ergodrift as ed

DIM, CONSTRAINTS, STATES = 3, 2, 3


def loss(x, xi):
    return jnp.sum((xi["A"] @ x - xi["b"]) ** 2) / 2


def constraints(x, xi):
    return xi["G"] @ x - 0.5


@jax.jit
def floor(problem, data, x, rounds):
    """Feedback alone. Every part of it is used, so that none is optimised away."""

    def one(t, carry):
        x, total, met = carry
        feedback = problem.feedback(x, jax.tree.map(lambda leaf: leaf[t % STATES], data))
        nudge = feedback.loss_grad + jnp.sum(feedback.constraint_jac, axis=0)
        return x + 1e-9 * nudge, total + feedback.loss, met + feedback.constraints

    return jax.lax.fori_loop(0, rounds, one, (x, x[0], x[:CONSTRAINTS]))


def measure(algorithm, chain, data, rounds):
    """Microseconds per sample and seed: the floor, one seed, twenty seeds."""
    problem, source = ed.Problem(loss, constraints, ed.Ball(1.0)), ed.MarkovSource(chain, data)
    x0, device = jnp.zeros(DIM, data["A"].dtype), jax.tree.map(jnp.asarray, data)

    def run(seeds):
        count = rounds // seeds
        return ed.run(algorithm, problem, source, x0=x0, num_samples=count, seeds=seeds, record=1).x

    jobs = [lambda: floor(problem, device, x0, rounds), lambda: run(1), lambda: run(20)]
    best_of(1, *jobs)  # compile
    return [spent / rounds * 1e6 for spent in best_of(7, *jobs)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500_000)
    options = parser.parse_args()
    rounds, rng, rows = options.rounds, np.random.default_rng(0), []
    chain = ed.MarkovChain(np.full((STATES, STATES), 0.01) + 0.97 * np.eye(STATES))
    algorithms = [ed.edpp(33.0), ed.dpp(horizon=rounds), ed.adpp(), ed.mdpp(), ed.pd(rounds, 9.0, 9.0), ed.pd2(9.0)]
    print("microseconds per sample and seed")
    print(f"{'':8}{'dtype':>9}{'floor':>9}{'1 seed':>9}{'beyond':>9}{'20 seeds':>10}")
    for kind in (np.float32, np.float64):
        with jax.enable_x64(kind == np.float64):
            data = {
                "A": rng.normal(size=(STATES, DIM, DIM)).astype(kind),
                "b": rng.normal(size=(STATES, DIM)).astype(kind),
                "G": rng.normal(size=(STATES, CONSTRAINTS, DIM)).astype(kind),
            }
            for algorithm in algorithms:
                bare, one, many = measure(algorithm, chain, data, rounds)
                name = np.dtype(kind).name
                print(f"{algorithm.name:8}{name:>9}{bare:9.3f}{one:9.3f}{one - bare:9.3f}{many:10.3f}")
                rows.append({"algorithm": algorithm.name, "dtype": name, "floor": bare, "one": one, "twenty": many})
    write("step_overhead", {"unit": "microseconds per sample and seed", "rounds": rounds, "rows": rows})


if __name__ == "__main__":
    main()
