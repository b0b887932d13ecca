"""What a sample costs when it comes in from Python: `problem.feedback` and `method.step` beside a bare `jax.jit`.

The bare functions are the same two with problem and method as constants of the compiled code, which is the least that a
call can cost. All take turns in the same process and the best of several turns counts. Prints a table and writes
bench-results/online_step.json.

    python benchmarks/online_step.py [--samples N]
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from common import best_of, write
from step_overhead import CONSTRAINTS, DIM, constraints, loss

import ergodrift as ed

ALGORITHMS = (ed.edpp(33.0), ed.adpp(), ed.mdpp(), ed.sdpp(), ed.pd2(9.0))


def repeated(function, samples):
    """A job of as many calls."""

    def job():
        out = None
        for _ in range(samples):
            out = function()
        return out

    return job


def measure(samples, *functions):
    """Microseconds a call."""
    jobs = [repeated(function, samples) for function in functions]
    best_of(1, *jobs)  # compile
    return [spent / samples * 1e6 for spent in best_of(7, *jobs)]


def rows(kind, samples):
    """(what, our call, the bare one) of one precision."""
    rng = np.random.default_rng(0)
    shapes = {"A": (DIM, DIM), "b": (DIM,), "G": (CONSTRAINTS, DIM)}
    host = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    x = jnp.zeros(DIM, kind)
    for name, geometry in [("ball", ed.Ball(1.0)), ("box of arrays", ed.Box(np.full(DIM, -1.0), np.full(DIM, 1.0)))]:
        problem = ed.Problem(loss, constraints, geometry)
        bare = jax.jit(lambda x, xi, problem=problem: problem.feedback(x, xi))
        given = {
            "arrays of JAX": jax.tree.map(lambda leaf: jnp.asarray(leaf, kind), host),
            "NumPy of this precision": jax.tree.map(lambda leaf: leaf.astype(kind), host),
            "NumPy float64": host,
        }
        for whence, xi in given.items():
            ours, least = measure(samples, lambda p=problem, xi=xi: p.feedback(x, xi), lambda xi=xi, f=bare: f(x, xi))
            yield f"feedback, {name}, {whence}", ours, least
        feedback = problem.feedback(x, host)
        for algorithm in ALGORITHMS:
            method = algorithm.bind(problem)
            state = method.init(x, CONSTRAINTS, jax.random.key(0))
            bare_step = jax.jit(lambda state, feedback, method=method: method.step(state, feedback))
            ours, least = measure(
                samples,
                lambda method=method, state=state, feedback=feedback: method.step(state, feedback),
                lambda step=bare_step, state=state, feedback=feedback: step(state, feedback),
            )
            yield f"step, {name}, {algorithm.name}", ours, least


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=2000)
    samples, found = parser.parse_args().samples, []
    print(f"{'microseconds a call':48}{'dtype':>9}{'ours':>8}{'bare':>8}{'ratio':>8}")
    for kind in (np.float32, np.float64):
        with jax.enable_x64(kind == np.float64):
            for name, ours, bare in rows(kind, samples):
                print(f"{name:48}{np.dtype(kind).name:>9}{ours:8.1f}{bare:8.1f}{ours / bare:8.2f}", flush=True)
                found.append({"name": name, "dtype": np.dtype(kind).name, "ours": ours, "bare": bare})
    write("online_step", {"unit": "microseconds a call", "samples": samples, "rows": found})


if __name__ == "__main__":
    main()
