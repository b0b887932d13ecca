"""What a hop costs beside a bare Ray call, and how many token-rounds a second agents make, on this machine.

The bare call sends an array of the same size to an actor that sends one back. Both take turns in one process against
the same cluster, and the best of several turns counts. Prints a table and writes bench-results/walk.json.

    python benchmarks/walk.py [--hops N]
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import write

import ergodrift as ed
from ergodrift import distributed as dd

AGENTS, TURNS = 8, 7


class Echo:
    """A bare actor."""

    def __init__(self, width):
        self.reply = bytes(width)

    def answer(self, asked):
        return self.reply


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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hops", type=int, default=1000)
    hops = parser.parse_args().hops
    jax.config.update("jax_enable_x64", True)
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray

    with tempfile.TemporaryDirectory(prefix="rw", dir="/tmp", ignore_cleanup_errors=True) as short:
        ray.init(
            num_cpus=2, include_dashboard=False, _temp_dir=short, _node_ip_address="127.0.0.1", log_to_driver=False,
            logging_level=logging.ERROR,
        )  # fmt: skip
        problem, agents = members(AGENTS)
        x0, algorithm, rows = np.zeros(3), ed.edpp(10.0), {}
        with dd.Network(agents) as network:

            def one_token():
                return 1e6 / dd.walk(problem, ring(AGENTS), network, algorithm, x0=x0, num_samples=hops, record=1).rate

            def many(tokens, local_rounds, count):
                walk = dd.walk(
                    problem, ring(AGENTS), network, algorithm, x0=x0, num_samples=count * local_rounds, record=1,
                    tokens=tokens, local_rounds=local_rounds,
                )  # fmt: skip
                return walk.rate * local_rounds

            walk = dd.walk(problem, ring(AGENTS), network, algorithm, x0=x0, num_samples=100, record=1)
            question = bytes(16 + x0.nbytes)
            echo: Any = ray.remote(num_cpus=0)(Echo).remote(  # type: ignore[attr-defined]
                int(walk.bytes.sum()) // 100 - x0.nbytes
            )

            def bare():
                began = time.perf_counter()
                for _ in range(hops):
                    ray.get(echo.answer.remote(question))
                return (time.perf_counter() - began) / hops * 1e6

            bare(), one_token()
            turns = [(bare(), one_token()) for _ in range(TURNS)]
            rows["bare call, µs"], rows["hop of one token, µs"] = (min(column) for column in zip(*turns, strict=True))
            rows["ratio, median of turns"] = float(np.median([hop / call for call, hop in turns]))
            rows["hops a second, one token"] = 1e6 / rows["hop of one token, µs"]
            many(1024, 10, 20)
            rows["token-rounds a second, 1,024 tokens, 10 local rounds"] = max(many(1024, 10, 200) for _ in range(3))
            rows["token-rounds a second, 1,024 tokens, 1 local round"] = max(many(1024, 1, 200) for _ in range(3))
        ray.shutdown()
    for name, value in rows.items():
        print(f"{name:55}{value:14,.2f}")
    write("walk", {"agents": AGENTS, "rows": rows})


if __name__ == "__main__":
    main()
