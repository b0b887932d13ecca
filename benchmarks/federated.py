"""What it costs to come to a given gap: one token, 64 tokens, and federated averaging with a penalty.

Flights of 2013 by airport of destination, each airport an agent with 200 of its own flights: will a flight be late by
more than a quarter of an hour? The mean score of all is at most -1. All three are on the same network of processes; of
federated averaging the rounds are computed here, and a round is timed as one question to all agents on that network.
Prints a table and writes bench-results/federated.json.

    python benchmarks/federated.py [--gap 0.01]
"""

from __future__ import annotations

import argparse
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
from common import write

import ergodrift as ed
from ergodrift import datasets
from ergodrift import distributed as dd

ROWS, LIMIT = 200, -1.0


def airports():
    """(airports, ROWS, features), (airports, ROWS) of flights to each airport that has enough of them."""
    data = datasets.flights().columns
    known = ~np.isnan(data["arr_delay"])
    names = ["minutes", "distance", "temp", "humid", "wind_speed", "precip", "visib"]
    numbers = np.stack([data[name][known] for name in names], axis=1).astype(float)
    numbers = np.nan_to_num((numbers - np.nanmean(numbers, axis=0)) / np.nanstd(numbers, axis=0))
    X = np.concatenate([np.ones((len(numbers), 1)), np.clip(numbers, -5, 5)], axis=1)
    y, where = np.where(data["arr_delay"][known] > 15, 1.0, -1.0), data["dest"][known]
    rng, parts = np.random.default_rng(0), []
    for airport in np.unique(where):
        own = np.flatnonzero(where == airport)
        if len(own) >= ROWS:
            parts.append(np.sort(rng.choice(own, ROWS, replace=False)))
    return {"X": X[np.array(parts)], "y": y[np.array(parts)]}


def loss(x, xi):
    return jnp.mean(jnp.logaddexp(0.0, -xi["y"] * (xi["X"] @ x)))


def constraints(x, xi):
    return jnp.stack([jnp.mean(xi["X"] @ x) - LIMIT])


def federated(data, gap_of, goal, steps=5, most=4000):
    """Rounds of federated averaging to the goal, with the best of some penalties and steps; None where none gets there.

    In a round every agent makes gradient steps on its own loss plus (rho / 2) max(g, 0)^2, and the points are averaged.
    """
    best = None
    for rho in (1.0, 10.0, 100.0):
        for rate in (0.03, 0.1, 0.3):

            def local(x, xi, rho=rho, rate=rate):
                def penalised(x):
                    return loss(x, xi) + rho / 2 * jnp.sum(jnp.maximum(constraints(x, xi), 0) ** 2)

                return jax.lax.fori_loop(0, steps, lambda _, x: x - rate * jax.grad(penalised)(x), x)

            together = jax.jit(lambda x, local=local: jnp.mean(jax.vmap(lambda xi: local(x, xi))(data), axis=0))
            x = jnp.zeros(data["X"].shape[-1])
            for number in range(1, most + 1):
                x = together(x)
                if number % 10 == 0 and (best is None or number < best) and gap_of(np.asarray(x)) <= goal:
                    best = number
                    break
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gap", type=float, default=0.01)
    goal = parser.parse_args().gap
    jax.config.update("jax_enable_x64", True)
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    data = jax.tree.map(np.asarray, airports())
    count, d = data["X"].shape[0], data["X"].shape[-1]
    graph = sum(np.roll(np.eye(count), shift, axis=1) for shift in (-3, -2, -1, 1, 2, 3))
    chain = ed.MarkovChain.from_graph(graph)
    problem = ed.Problem(loss, constraints, ed.Ball(10.0))
    source = ed.MarkovSource(chain, data)
    wanted = ed.solve_reference(problem, source, np.zeros(d))
    each = jax.jit(lambda x: jax.vmap(lambda xi: (loss(x, xi), constraints(x, xi)))(data))

    def gap_of(x):
        """How far the loss is from the best, and the worst violation, whichever is more."""
        value, limits = (np.mean(values, axis=0) for values in each(x))
        return max(abs(float(value) - wanted.value), float(np.max(limits)))

    rows = {}
    members = [dd.Agent(jax.tree.map(lambda leaf, i=i: leaf[i], data)) for i in range(count)]
    with dd.Network(members, processes=2) as network:
        for name, tokens, combine in [("one token", 1, "mean"), ("64 tokens", 64, "mean")]:
            hops = 20_000 if tokens == 1 else 2000
            options = {"x0": np.zeros(d), "tokens": tokens, "num_samples": hops, "record": 200, "combine": combine}
            found = dd.walk(ed.rdpp(), problem, chain, network, **options)
            means = np.asarray(found.result.x_mean).mean(axis=0)
            reached = next((i for i, x in enumerate(means) if gap_of(x) <= goal), None)
            if reached is not None:
                samples = int(np.asarray(found.result.samples)[reached])
                share = samples / hops
                rows[name] = {
                    "hops": samples * tokens,
                    "bytes": float(found.bytes.sum()) * share,
                    "seconds": found.seconds * share,
                }
        network.evaluate({"one": lambda x, xi: 1.0}, np.zeros(d))
        began = time.perf_counter()
        for _ in range(5):
            network.evaluate({"one": lambda x, xi: 1.0}, np.zeros(d))
        one_round = (time.perf_counter() - began) / 5
    rounds = federated(jax.tree.map(jnp.asarray, data), gap_of, goal)
    if rounds is not None:
        rows["federated averaging, penalty"] = {
            "hops": rounds * count,
            "bytes": float(rounds * count * 2 * d * 8),
            "seconds": rounds * one_round,
        }
    print(f"{count} airports, d = {d}, gap {goal:g}\n{'':32}{'messages':>12}{'MB':>12}{'seconds':>12}")
    for name, row in rows.items():
        print(f"{name:32}{row['hops']:12,}{row['bytes'] / 1e6:12,.2f}{row['seconds']:12,.1f}")
    for name in {"one token", "64 tokens", "federated averaging, penalty"} - set(rows):
        print(f"{name:32}does not come to this gap")
    write("federated", {"gap": goal, "airports": count, "rows": rows})


if __name__ == "__main__":
    main()
