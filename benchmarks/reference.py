"""Logistic regression under eight fairness limits: `solve_reference` against SciPy's SLSQP on the same problem.

The data have the shape of the Adult census (32,561 rows; 8 columns of categories, one-hot, and 6 of numbers make 108
features) and are drawn at random, or read from a file of it. SLSQP gets what a careful user would give it: value and
gradient in one compiled matrix form, linear constraints as a matrix, and a tolerance that takes it to the optimum.

python benchmarks/reference.py [--data adult.data] [--rows N] [--turns N]
"""

from __future__ import annotations

import argparse
import csv
import time

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from common import write

import ergodrift as ed

CATEGORIES = (8, 16, 7, 14, 6, 5, 2, 42)  # of the eight columns, 100 in all, one of each left out for the intercept
NUMBERS, RADIUS, LIMIT, GROUPS = 15, 10.0, 0.01, 4


def drawn(rows, rng):
    """Features, labels and four group memberships of about Adult's shape: skewed categories, skewed numbers."""
    columns = [np.ones((rows, 1))]
    for count in CATEGORIES:
        shares = np.arange(1, count + 1) ** -1.5
        columns.append(np.eye(count)[rng.choice(count, size=rows, p=shares / shares.sum())][:, 1:])
    numbers = rng.gamma(1.0, size=(rows, NUMBERS)) ** 1.5
    features = np.hstack([*columns, (numbers - numbers.mean(axis=0)) / numbers.std(axis=0)])
    truth = rng.normal(size=features.shape[1]) * 0.7
    labels = np.where(rng.uniform(size=rows) < 1 / (1 + np.exp(1.5 - features @ truth)), 1.0, -1.0)
    return features, labels, features[:, [1, 10, 30, 60]]


def read(path):
    """Adult itself, from the file adult.data of the UCI repository."""
    with open(path) as file:
        table = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    columns = list(zip(*table, strict=True))
    numeric, parts = {0, 2, 4, 10, 11, 12}, [np.ones((len(table), 1))]
    for index, column in enumerate(columns[:-1]):
        if index in numeric:
            values = np.array(column, dtype=float)
            parts.append(((values - values.mean()) / values.std())[:, None])
        else:
            names, which = np.unique(column, return_inverse=True)
            parts.append(np.eye(len(names))[which])
    races = np.array([[row[8] == name for name in ("White", "Black", "Asian-Pac-Islander")] for row in table])
    women = np.array([row[9] == "Female" for row in table])[:, None]
    labels = np.where(np.array(columns[-1]) == ">50K", 1.0, -1.0)
    return np.hstack(parts), labels, np.hstack([women, races]).astype(float)


def slsqp(features, labels, normals, tolerance):
    """The same by SciPy: mean log(1 + exp(-y a.x)) subject to normals.x <= LIMIT, ||x|| <= RADIUS."""
    signed = jnp.asarray(features * labels[:, None])

    @jax.jit
    def loss(x):
        margins = signed @ x
        slopes = -jax.nn.sigmoid(-margins) / len(labels)
        return jnp.mean(jax.nn.softplus(-margins)), slopes @ signed

    def value_and_gradient(x):
        value, gradient = loss(x)
        return float(value), np.asarray(gradient)

    rules = [
        {"type": "ineq", "fun": lambda x: LIMIT - normals @ x, "jac": lambda x: -normals},
        {"type": "ineq", "fun": lambda x: RADIUS**2 - x @ x, "jac": lambda x: -2 * x},
    ]
    start = np.zeros(features.shape[1])
    return scipy.optimize.minimize(
        value_and_gradient, start, jac=True, method="SLSQP", constraints=rules,
        options={"ftol": tolerance, "maxiter": 2000},
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data")
    parser.add_argument("--rows", type=int, default=32_561)
    parser.add_argument("--turns", type=int, default=1)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    found = read(options.data) if options.data else drawn(options.rows, np.random.default_rng(0))
    features, labels, groups = found
    centred = (groups - groups.mean(axis=0)) / groups.std(axis=0)
    covariances = centred.T @ features / len(labels)
    normals = np.vstack([covariances, -covariances])

    def constraints(x, xi):
        covariance = xi["group"] * (xi["row"] @ x)
        return jnp.concatenate([covariance, -covariance]) - LIMIT

    plain = ed.Problem(lambda x, xi: jax.nn.softplus(-xi["label"] * (xi["row"] @ x)), constraints, ed.Ball(RADIUS))
    samples = ed.SeriesSource({"row": features, "label": labels, "group": centred})
    model = ed.LinearModel("logistic", ed.Ball(RADIUS))
    table = ed.IIDSource(model.data([features], [labels], normals=normals[None], limits=[LIMIT] * len(normals)))
    start = np.zeros(features.shape[1])
    jobs = {
        "SLSQP, ftol 1e-9": lambda: slsqp(features, labels, normals, 1e-9),
        "SLSQP, ftol 1e-15": lambda: slsqp(features, labels, normals, 1e-15),
        "solve_reference, a Problem": lambda: ed.solve_reference(plain, samples, start),
        "solve_reference, a LinearModel": lambda: ed.solve_reference(model, table, start),
    }
    rows = {name: {"seconds": np.inf} for name in jobs}
    for _ in range(options.turns):
        for name, job in jobs.items():
            began = time.perf_counter()
            answer = job()
            spent = time.perf_counter() - began
            value = answer.fun if name.startswith("SLSQP") else answer.value
            over = (normals @ answer.x - LIMIT).max()
            rows[name] = {"seconds": min(spent, rows[name]["seconds"]), "loss": float(value), "violation": float(over)}
            print(f"{name}: {spent:.1f} s, loss {value:.15g}, largest constraint {over:.1e}", flush=True)
    best = min(row["loss"] for name, row in rows.items() if name.startswith("solve"))
    print(f"{len(labels):,} rows, {features.shape[1]} features, {len(normals)} constraints, float64")
    for name, row in rows.items():
        row["above"] = row["loss"] - best
        ratio = row["seconds"] / rows["SLSQP, ftol 1e-15"]["seconds"]
        print(f"{name:32}{row['seconds']:8.1f} s  {ratio:5.2f}x  above the best loss by {row['above']:.1e}")
    write("reference", {"unit": "seconds", "shape": [len(labels), features.shape[1], len(normals)], "rows": rows})


if __name__ == "__main__":
    main()
