"""What constraints cost a step of Adam: `ergodrift.optax` beside the same step without constraints.

A perceptron of a million parameters, batches of 256 rows, 1 to 100 constraints (mean scores of so many groups). The
naive way forms the Jacobian of the constraints and is `update(..., constraints=, jacobian=)`. All take turns in the
same process, 64 steps at a time, so that the step in which norms are looked at is among them; the best turn counts.
Prints a table and writes bench-results/optax_cost.json.

    python benchmarks/optax_cost.py [--turns N] [--most N] [--processor]
"""

from __future__ import annotations

import argparse
import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import best_of, write

import ergodrift as ed
from ergodrift.optax import EVERY, drift_plus_penalty, value_and_constraints

SIZES, BATCH = (128, 800, 800, 320, 1), 256
NUMBERS = (1, 10, 100)
NAIVE, FEW = 10, 8  # constraints up to which the Jacobian is formed, and steps of it a turn: the wait is long


def network():
    rng = np.random.default_rng(0)
    pairs = itertools.pairwise(SIZES)
    return [
        {"w": jnp.asarray(rng.normal(size=(a, b)) / np.sqrt(a), jnp.float32), "b": jnp.zeros(b, jnp.float32)}
        for a, b in pairs
    ]


def score(params, x):
    *hidden, last = params
    for layer in hidden:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return (x @ last["w"] + last["b"])[:, 0]


def loss(params, batch):
    return jnp.mean(optax.sigmoid_binary_cross_entropy(score(params, batch["x"]), batch["y"]))


def both(params, batch):
    z = score(params, batch["x"])
    fit = jnp.mean(optax.sigmoid_binary_cross_entropy(z, batch["y"]))
    return fit, batch["groups"] @ jax.nn.sigmoid(z) / BATCH - 0.1


def free(optimizer):
    def step(params, state, batch):
        grads = jax.grad(loss)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return step


def products(optimizer):
    evaluate = value_and_constraints(both)

    def step(params, state, batch):
        _, grads, extra = evaluate(params, state, batch)
        updates, state = optimizer.update(grads, state, params, **extra)
        return optax.apply_updates(params, updates), state

    return step


def naive(optimizer):
    def step(params, state, batch):
        grads, values = jax.grad(loss)(params, batch), both(params, batch)[1]
        jacobian = jax.jacrev(lambda params: both(params, batch)[1])(params)
        updates, state = optimizer.update(grads, state, params, constraints=values, jacobian=jacobian)
        return optax.apply_updates(params, updates), state

    return step


def job(step, optimizer, params, batch, steps=EVERY):
    compiled, start = jax.jit(step), (params, optimizer.init(params))
    for _ in range(steps):  # norms are looked at more often in the beginning
        start = compiled(*start, batch)

    def run():
        now = start
        for _ in range(steps):
            now = compiled(*now, batch)
        return now

    return run


def measure(number, turns, clock):
    """(what, milliseconds a step) of a step without constraints and of those with so many."""
    rng = np.random.default_rng(1)
    batch = {"x": rng.normal(size=(BATCH, SIZES[0])), "y": rng.integers(0, 2, BATCH)}
    batch["groups"] = rng.integers(0, 2, (number, BATCH))
    batch = {name: jnp.asarray(rows, jnp.float32) for name, rows in batch.items()}
    adam, params = optax.adam(1e-3), network()
    ours = {
        "default": (products, drift_plus_penalty(adam, number)),
        "EDPP-t": (products, drift_plus_penalty(adam, number, ed.edpp(10.0))),
    }
    if number <= NAIVE:
        ours["Jacobian formed"] = (naive, drift_plus_penalty(adam, number))
    counts = [EVERY if make is products else FEW for make, _ in ours.values()]
    jobs = [job(free(adam), adam, params, batch)]
    for (make, optimizer), steps in zip(ours.values(), counts, strict=True):
        jobs.append(job(make(optimizer), optimizer, params, batch, steps))
    times = zip(best_of(turns, *jobs, clock=clock), [EVERY, *counts], strict=True)
    spent = [1e3 * best / steps for best, steps in times]
    return list(zip(["no constraints", *ours], spent, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--most", type=int, default=max(NUMBERS), help="the largest number of constraints")
    parser.add_argument("--processor", action="store_true", help="count the processor's time, where others use it too")
    asked, found = parser.parse_args(), []
    clock = time.process_time if asked.processor else time.perf_counter
    print(f"{'constraints':>11}  {'step':18}{'ms':>8}{'ratio':>8}")
    for number in (n for n in NUMBERS if n <= asked.most):
        rows = measure(number, asked.turns, clock)
        for name, spent in rows:
            ratio = spent / rows[0][1]
            print(f"{number:11}  {name:18}{spent:8.2f}{ratio:8.2f}", flush=True)
            found.append({"constraints": number, "step": name, "milliseconds": spent, "ratio": ratio})
    write("optax_cost", {"parameters": sum(leaf.size for leaf in jax.tree.leaves(network())), "rows": found})


if __name__ == "__main__":
    main()
