"""EDPP-t on the paper's problem against the same loop in C, numba, numpy and Cooper; 64 seeds on all cores; MDPP.

python benchmarks/one_seed.py [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from common import LIMIT, RADIUS, TAU_MIX, CLoop, best_of, columns, setting, write

import ergodrift as ed

SEEDS = 64
KINDS = ("float32", "float64")  # each in a process of its own: once PyTorch is there, the C loop takes longer


def naive(source, log1p):
    """The same problem as a user may write it: rows (n, 3), labels beside them, derivatives by JAX."""
    data = source.data
    rows = np.moveaxis(columns(data), 1, 2)
    labels = np.where(np.arange(2000) < 1000, 1.0, -1.0)  # as `synthetic` orders them
    covariance = data.normals[:, 0]
    table = {"X": rows * labels[:, None], "y": np.tile(labels, (3, 1)), "c": covariance}

    def constraints(x, xi):
        value = xi["c"] @ x
        return jnp.stack([value - LIMIT, -value - LIMIT])

    def log1p_exp(x, xi):
        return jnp.mean(jnp.log1p(jnp.exp(-xi["y"] * (xi["X"] @ x))))

    def softplus(x, xi):
        return jnp.mean(jax.nn.softplus(-xi["y"] * (xi["X"] @ x)))

    loss = log1p_exp if log1p else softplus
    return ed.Problem(loss, constraints, ed.Ball(RADIUS)), ed.MarkovSource(source.chain, table)


def spelled(source):
    """All of it plain: rows, labels and a sensitive column in each state, and both functions means over rows."""
    rows = np.moveaxis(columns(source.data), 1, 2)
    labels = np.where(np.arange(2000) < 1000, 1.0, -1.0)
    sensitive = np.random.default_rng(0).normal(size=(3, 2000))
    table = rows * labels[:, None], np.tile(labels, (3, 1)), sensitive

    def loss(x, xi):
        return jnp.mean(jax.nn.softplus(-xi[1] * (xi[0] @ x)))

    def two_sided(value):
        return lambda x, xi: jnp.stack([value(x, xi) - LIMIT, -value(x, xi) - LIMIT])

    def with_power(x, xi):
        margins = xi[0] @ x
        value = jnp.mean(xi[2] * margins)
        return jnp.stack([value - LIMIT, -value - LIMIT, jnp.mean(margins**4) - RADIUS**4])

    spellings = {
        "mean(z * (X @ x))": two_sided(lambda x, xi: jnp.mean(xi[2] * (xi[0] @ x))),
        "mean(z[:, None] * X, 0) @ x": two_sided(lambda x, xi: jnp.mean(xi[2][:, None] * xi[0], 0) @ x),
        "einsum": two_sided(lambda x, xi: jnp.einsum("n,nd,d->", xi[2], xi[0], x) / 2000),
        "vmap over rows": two_sided(lambda x, xi: jnp.mean(jax.vmap(lambda a, z: z * (a @ x))(xi[0], xi[2]))),
        "z centred": two_sided(lambda x, xi: jnp.mean((xi[2] - jnp.mean(xi[2])) * (xi[0] @ x))),
    }
    others = {  # of which not all is affine
        "affine, and mean((X @ x)**4)": with_power,
        "mean(z * sigmoid(X @ x))": two_sided(lambda x, xi: jnp.mean(xi[2] * jax.nn.sigmoid(xi[0] @ x))),
    }
    chain = ed.MarkovSource(source.chain, table)
    jobs = {name: (ed.Problem(loss, g, ed.Ball(RADIUS)), chain) for name, g in (spellings | others).items()}
    first = spellings["mean(z * (X @ x))"]
    for name in ("mean(z * (X @ x))", "mean(z[:, None] * X, 0) @ x"):
        jobs[f"{name}, no tables"] = ed.Problem(loss, spellings[name], ed.Ball(RADIUS), tabulate=False), chain
    losses = {
        "a loss by sum(X * x, 1)": lambda x, xi: jnp.mean(jax.nn.softplus(-xi[1] * jnp.sum(xi[0] * x, 1))),
        "a loss with an intercept": lambda x, xi: jnp.mean(jax.nn.softplus(-xi[1] * (xi[0] @ x + x[0]))),
        "a loss with a penalty on x": lambda x, xi: loss(x, xi) + 0.01 * x @ x,
    }
    losses |= of_the_sample(loss)
    jobs |= {name: (ed.Problem(f, first, ed.Ball(RADIUS)), chain) for name, f in losses.items()}
    by_columns = two_sided(lambda x, xi: jnp.mean(xi[2] * jax.nn.sigmoid(columns_one_by_one(x, xi[0]))))
    jobs["columns one by one in a sigmoid"] = ed.Problem(loss, by_columns, ed.Ball(RADIUS)), chain
    squares = ed.Problem(lambda x, xi: jnp.mean((xi[1] - xi[0] @ x) ** 2), first, ed.Ball(RADIUS))
    jobs["a loss of squares"] = squares, chain
    return jobs


def columns_one_by_one(x, rows):
    return rows[:, 0] * x[0] + rows[:, 1] * x[1] + rows[:, 2] * x[2]


def of_the_sample(loss):
    """Losses that compute from the sample, without looking at x, what each round needs."""

    def logistic(features):
        return lambda x, xi: jnp.mean(jax.nn.softplus(-xi[1] * (features(xi[0]) @ x)))

    def weighted(weights):
        return lambda x, xi: jnp.sum(weights(xi) * jax.nn.softplus(-xi[1] * (xi[0] @ x)))

    def both_powers(x, xi):
        return jnp.mean(jax.nn.softplus(-xi[1] * (jnp.concatenate([xi[0], xi[0] ** 2], 1) @ jnp.append(x, x))))

    def near_centres(rows):
        return jnp.exp(-jnp.sum((rows[:, None] - rows[None, :3]) ** 2, 2))

    def of_groups(x, xi):
        groups = jax.nn.one_hot((xi[2] > 0).astype(int), 3, dtype=x.dtype)
        return jnp.mean(jax.nn.softplus(-xi[1] * (xi[0] @ x + groups @ x)))

    def by_matrix(x, xi):
        shares = jnp.stack([jax.nn.sigmoid(xi[2]), jax.nn.sigmoid(-xi[2])], 1)
        margins = jnp.sum(shares[:, :, None] * xi[0][:, None] * x, (1, 2))
        return jnp.mean(jax.nn.softplus(-xi[1] * margins))

    return {
        "a loss of centred rows": logistic(lambda rows: rows - rows.mean(0)),
        "a loss of standardised rows": logistic(lambda rows: (rows - rows.mean(0)) / (rows.std(0) + 0.1)),
        "a loss of rows and their squares": both_powers,
        "a loss of a kernel's features": logistic(near_centres),
        "a loss with weights by label": weighted(lambda xi: jnp.where(xi[1] > 0, 0.3, 0.7) / 2000),
        "a loss with weights by softmax": weighted(lambda xi: jax.nn.softmax(xi[2])),
        "a loss with effects of groups": of_groups,
        "a loss with weights as a matrix": by_matrix,
        "a loss of columns one by one": lambda x, xi: jnp.mean(jax.nn.softplus(-xi[1] * columns_one_by_one(x, xi[0]))),
        "a loss under jax.checkpoint": jax.checkpoint(loss),
        "a loss by log_sigmoid": lambda x, xi: -jnp.mean(jax.nn.log_sigmoid(xi[1] * (xi[0] @ x))),
    }


def step(grad, covariance, value, x, queue, t):
    """One update of EDPP-t in numpy, the gradient and the covariance at hand."""
    proximity = TAU_MIX * t
    target = x - (np.sqrt(proximity) * grad + (queue[0] - queue[1]) * covariance) / (2 * proximity)
    norm = np.sqrt(np.sum(target * target))
    if norm > RADIUS:
        target = target * (RADIUS / norm)
    change = np.sum(covariance * (target - x))
    first = max(queue[0] + value - LIMIT + change, 0.0)
    return target, (first, max(queue[1] - value - LIMIT - change, 0.0))


def numpy_loop(data, kind):
    table, normals = columns(data).astype(kind), data.normals[:, 0].astype(kind)

    def go(path):
        x, queue, total = np.zeros(3, kind), (0.0, 0.0), np.zeros(3)
        for t, state in enumerate(path, start=1):
            rows, covariance = table[state], normals[state]
            total += x
            grad = -(rows @ (1 / (1 + np.exp(x @ rows)))) / rows.shape[1]
            x, queue = step(grad, covariance, covariance @ x, x, queue, t)
        return x

    return go


def numba_loop(data, kind, losses=False):
    """EDPP-t in numba; with `losses`, it also sums them, as every run of ours does."""
    import numba  # pyright: ignore[reportMissingImports]

    table, normals = columns(data).astype(kind), data.normals[:, 0].astype(kind)
    update = numba.njit(step)

    @numba.njit(fastmath=True)
    def loop(table, normals, path, x):
        queue, total, loss = (0.0, 0.0), np.zeros(3), 0.0
        for t in range(len(path)):
            rows, covariance = table[path[t]], normals[path[t]]
            grad = np.zeros_like(x)
            for i in range(rows.shape[1]):
                margin = x[0] * rows[0, i] + x[1] * rows[1, i] + x[2] * rows[2, i]
                grown = np.exp(margin)
                wrong = 1 / (1 + grown)
                if losses:  # a constant: without it, nothing of this is compiled
                    loss += np.log(1 + grown) - margin
                for k in range(3):
                    grad[k] -= wrong * rows[k, i]
            for k in range(3):
                total[k] += x[k]
            target, queue = update(grad / rows.shape[1], covariance, np.sum(covariance * x), x, queue, t + 1)
            x = target.astype(table.dtype)
        return x, loss

    return lambda path: loop(table, normals, path, np.zeros(3, kind))[0]


def cooper_loop(data, kind):
    """Cooper with its own primal-dual optimiser: the update differs, what a round evaluates is the same."""
    import cooper  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    real = torch.float32 if kind == np.float32 else torch.float64
    torch.set_default_dtype(real)
    table, normals = (torch.tensor(a, dtype=real) for a in (columns(data), data.normals[:, 0]))

    class Fair(cooper.ConstrainedMinimizationProblem):
        def __init__(self):
            super().__init__()
            multiplier = cooper.multipliers.DenseMultiplier(num_constraints=2).to(real)
            self.fair = cooper.Constraint(cooper.ConstraintType.INEQUALITY, cooper.formulations.Lagrangian, multiplier)

        def compute_cmp_state(self, x, state):
            loss = torch.nn.functional.softplus(-(x @ table[state])).mean()
            value = normals[state] @ x
            both = cooper.ConstraintState(violation=torch.stack([value - LIMIT, -value - LIMIT]))
            return cooper.CMPState(loss=loss, observed_constraints={self.fair: both})

    def go(path):
        x, problem = torch.zeros(3, dtype=real, requires_grad=True), Fair()
        primal = torch.optim.SGD([x], lr=0.05)
        dual = torch.optim.SGD(problem.dual_parameters(), lr=0.05, maximize=True)
        optimiser = cooper.optim.SimultaneousOptimizer(problem, primal, dual)
        for state in path:
            optimiser.roll(compute_cmp_state_kwargs={"x": x, "state": int(state)})
            with torch.no_grad():
                x *= torch.clamp(RADIUS / (x.norm() + 1e-12), max=1.0)
        return x.detach().numpy()

    return go


def optional(make, *arguments):
    try:
        return make(*arguments)
    except ImportError as error:
        print(f"left out: {error}")
        return None


def measure(kind, rounds):
    """Microseconds per round of every competitor, and of ours in several uses."""
    name = np.dtype(kind).name
    rows = {}
    with jax.enable_x64(kind == np.float64):
        problem, source, _ = setting()
        path = np.asarray(source.paths(1, rounds))[0]
        x0, one = np.zeros(3, kind), [jax.devices()[0]]

        def run(algorithm, problem: ed.Problem = problem, source=source):
            return lambda: ed.run(algorithm, problem, source, x0=x0, num_samples=rounds, record=1).x

        bare, loss = CLoop(source.data, kind, False), CLoop(source.data, kind, True)
        ours = run(ed.edpp(TAU_MIX))
        atol = 1e-3 if kind == np.float32 else 1e-9
        np.testing.assert_allclose(np.asarray(ours())[0, 0], bare(path)[0], atol=atol)  # the same path, the same end
        jobs = {
            "C": lambda: bare(path),
            "C, losses summed too": lambda: loss(path),
            "ergodrift, fairness problem": ours,
            "ergodrift, log1p(exp(-y * (X @ x)))": run(ed.edpp(TAU_MIX), *naive(source, True)),
            "ergodrift, softplus(-y * (X @ x))": run(ed.edpp(TAU_MIX), *naive(source, False)),
            **{f"plain, {name}": run(ed.edpp(TAU_MIX), *told) for name, told in spelled(source).items()},
            "ergodrift, MDPP": run(ed.mdpp()),
            "ergodrift, MDPP with cap T^2": run(ed.mdpp(cap=None)),
        }
        with jax.default_device(one[0]):
            best_of(1, *jobs.values())
            # One core: the processor time of the process, so that others on the machine do not count.
            for job, spent in zip(jobs, best_of(15, *jobs.values(), clock=time.process_time), strict=True):
                rows[job] = spent / rounds * 1e6
        each = max(rounds // 10, 1000)
        paths = np.asarray(source.paths(SEEDS, each))

        def c_on_all_cores():
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(bare, paths))

        def together():
            return ed.run(ed.edpp(TAU_MIX), problem, source, x0=x0, num_samples=each, seeds=SEEDS, record=1).x

        best_of(1, c_on_all_cores, together)
        spent = best_of(5, c_on_all_cores, together)
        rows["64 seeds, C"], rows["64 seeds, ergodrift"] = (s / each / SEEDS * 1e6 for s in spent)
        few = path[: max(rounds // 50, 500)]
        for job, make in {"numba": numba_loop, "numpy": numpy_loop, "Cooper": cooper_loop}.items():
            loop = optional(make, source.data, kind)
            if loop is not None:
                loop(few[:5])
                rows[job] = best_of(3, lambda loop=loop: loop(few), clock=time.process_time)[0] / len(few) * 1e6
    print(f"{name}: microseconds per round (and seed), and as a multiple of C")
    for job, value in rows.items():
        base = rows["64 seeds, C"] if job.startswith("64") else rows["C"]
        print(f"  {job:44}{value:10.3f}{value / base:10.2f}x")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50_000)
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
        print(json.dumps(measure(np.dtype(options.one).type, options.rounds)))
        return
    rows = {}
    for kind in KINDS:
        command = [sys.executable, __file__, "--one", kind, "--rounds", str(options.rounds)]
        *lines, last = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        print("\n".join(lines), flush=True)
        rows[kind] = json.loads(last)
    write("one_seed", {"unit": "microseconds per round and seed", "rounds": options.rounds, "rows": rows})


if __name__ == "__main__":
    main()
