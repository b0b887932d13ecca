"""What a hop costs beside a bare Ray call, and how many token-rounds per second agents make, on this machine.

The bare call sends as many bytes to an actor that sends as many back; another does so with NumPy arrays, as one would
by hand. They take turns in one process against the same cluster: all numbers are medians of turns, ratios with those
between which half of the turns lie. Prints a table and writes bench-results/walk.json.

    python benchmarks/walk.py [--hops N]
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import write
from table import shown

import ergodrift as ed
from ergodrift import distributed as dd

AGENTS, TURNS = 8, 40


class Echo:
    """A bare actor."""

    def __init__(self, size):
        self.reply = {bytes: bytes(size), np.ndarray: np.zeros(size // 8)}

    def answer(self, asked):
        return self.reply[type(asked)]


def ring(count):
    return np.roll(np.eye(count), 1, axis=1) + np.roll(np.eye(count), -1, axis=1)


def loss(x, xi):
    return jnp.sum((x - xi) ** 2)


def constraints(x, xi):
    return x[:1] - xi[:1]


def members(count):
    """A quadratic loss in three dimensions: what is measured is the way there and back."""
    data = np.random.default_rng(0).normal(size=(count, 3))
    return ed.Problem(loss, constraints, ed.Ball(1.0)), [dd.Agent(xi) for xi in data]


def quartiles(values):
    return np.percentile(values, [25, 50, 75]).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hops", type=int, default=300)
    hops = parser.parse_args().hops
    jax.config.update("jax_enable_x64", True)
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray

    with tempfile.TemporaryDirectory(prefix="rw", dir="/tmp", ignore_cleanup_errors=True) as short:
        ray.init(
            num_cpus=2, include_dashboard=False, _temp_dir=short, log_to_driver=False,
            logging_level=logging.ERROR,
        )  # fmt: skip
        problem, agents = members(AGENTS)
        x0, algorithm = np.zeros(3), ed.edpp(10.0)
        with dd.Network(agents) as network:

            def one_token():
                return 1e6 / dd.walk(algorithm, problem, ring(AGENTS), network, x0=x0, num_samples=hops, record=1).rate

            def many(tokens, local_rounds, count):
                walk = dd.walk(
                    algorithm, problem, ring(AGENTS), network, x0=x0, num_samples=count * local_rounds, record=1,
                    tokens=tokens, local_rounds=local_rounds,
                )  # fmt: skip
                return walk.rate * local_rounds

            walk = dd.walk(algorithm, problem, ring(AGENTS), network, x0=x0, num_samples=100, record=1)
            question, answer = bytes(16 + x0.nbytes), int(walk.bytes.sum()) // 100 - x0.nbytes

            echoes: Any = [ray.remote(num_cpus=0)(Echo).remote(answer) for _ in range(AGENTS)]  # type: ignore[attr-defined]
            path = np.asarray(ed.MarkovChain.from_graph(ring(AGENTS)).sample_path(jax.random.key(0), hops))

            def bare(places, question):
                began = time.perf_counter()
                for place in places:
                    ray.get(echoes[place].answer.remote(question))
                return (time.perf_counter() - began) / hops * 1e6

            def stay():
                options = {"x0": x0, "num_samples": hops, "record": 1, "paths": 0 * path}
                return 1e6 / dd.walk(algorithm, problem, ring(AGENTS), network, **options).rate

            jobs = {
                "bare call along a walk, µs": lambda: bare(path, question),
                "bare call with arrays along a walk, µs": lambda: bare(path, x0),
                "hop along a walk, µs": one_token,
                "bare call, one actor, µs": lambda: bare(0 * path, question),
                "hop, one agent, µs": stay,
            }
            for job in jobs.values():
                job()
            turns = np.array([[job() for job in jobs.values()] for _ in range(TURNS)])
            rows: dict[str, Any] = dict(zip(jobs, np.median(turns, axis=0).tolist(), strict=True))
            rows["hop / bare call along a walk"] = quartiles(turns[:, 2] / turns[:, 0])
            rows["hop / bare call with arrays along a walk"] = quartiles(turns[:, 2] / turns[:, 1])
            rows["hop / bare call, one agent"] = quartiles(turns[:, 4] / turns[:, 3])
            rows["hops per second, one token"] = 1e6 / rows["hop along a walk, µs"]
            many(1024, 10, 20)
            rows["token-rounds per second, 1,024 tokens, 10 local rounds"] = median(
                [many(1024, 10, 200) for _ in range(5)]
            )
            rows["token-rounds per second, 1,024 tokens, 1 local round"] = median(
                [many(1024, 1, 100) for _ in range(5)]
            )
        ray.shutdown()
    for name, value in rows.items():
        print(f"{name:55}{shown(value):>25}")
    write("walk", {"agents": AGENTS, "rows": rows})


if __name__ == "__main__":
    main()
