"""Networks under constraints: multipliers without a dual step beside dual ascent tuned in hindsight.

A perceptron (two hidden layers of 64) on the census table Adult, Adam at 1e-3, 2,000 batches of 128 rows, two seeds;
three kinds of constraint. All have the same networks, batches and optimiser and differ in the multipliers alone. Loss
and violation are those of the whole training part, on average over the last quarter of 20 looks; mean and standard
deviation are those of the largest multiplier over the last quarter of the steps.

    python -m studies.networks [--tasks parity misses norm] [--steps N] [--seeds N] [--write-docs]
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ergodrift._core import markdown
from ergodrift.datasets import adult
from ergodrift.methods.algorithms import Algorithm
from ergodrift.methods.rates import Rates
from ergodrift.methods.scalefree import SharedDrift
from ergodrift.optax import DUAL_STRIDE, drift_plus_penalty, value_and_constraints
from ergodrift.peers.tasks.people import _adult_rows
from ergodrift.types import PyTree

HIDDEN, BATCH, LOOKS = (64, 64), 128, 20
HEAD = ("multipliers", "loss", "violation", "multiplier", "its standard deviation")
BEGIN, END = "<!-- networks: begin -->", "<!-- networks: end -->"
PAGE = Path(__file__).parents[1] / "docs" / "howto" / "networks.md"


def scores(params: PyTree, x: jax.Array) -> jax.Array:
    """Of a perceptron."""
    *hidden, (w, b) = params
    for weights, bias in hidden:
        x = jax.nn.relu(x @ weights + bias)
    return (x @ w + b)[:, 0]


def network(seed: int, inputs: int) -> PyTree:
    """Random weights."""
    rng, sizes = np.random.default_rng(seed), (inputs, *HIDDEN, 1)
    pairs = itertools.pairwise(sizes)
    return [(jnp.asarray(rng.normal(size=p) * np.sqrt(2 / p[0]), "float32"), jnp.zeros(p[1], "float32")) for p in pairs]


def mean_over(values: jax.Array, chosen: jax.Array) -> jax.Array:
    """The mean over some rows."""
    return jnp.sum(values * chosen) / jnp.maximum(jnp.sum(chosen), 1)


def parity(params: PyTree, rows: PyTree) -> tuple[jax.Array, jax.Array]:
    """Log loss; mean probabilities of women and men differ by 0.02 at most."""
    z = scores(params, rows["x"])
    p, men = jax.nn.sigmoid(z), rows["men"]
    gap = mean_over(p, men) - mean_over(p, 1 - men)
    return jnp.mean(optax.sigmoid_binary_cross_entropy(z, rows["y"])), jnp.stack([gap, -gap]) - 0.02


def misses(params: PyTree, rows: PyTree) -> tuple[jax.Array, jax.Array]:
    """log(1 + exp(-score)) over those who earn more; log(1 + exp(score)) over the others is 0.15 at most."""
    z, y = scores(params, rows["x"]), rows["y"]
    return mean_over(jax.nn.softplus(-z), y), mean_over(jax.nn.softplus(z), 1 - y)[None] - 0.15


def norm(params: PyTree, rows: PyTree) -> tuple[jax.Array, jax.Array]:
    """Log loss; the squares of all weights sum to 15 at most."""
    fit = jnp.mean(optax.sigmoid_binary_cross_entropy(scores(params, rows["x"]), rows["y"]))
    return fit, jnp.sum(jnp.stack([jnp.sum(w**2) for w, _ in params]), keepdims=True) - 15.0


TASKS = {"parity": parity, "misses": misses, "norm": norm}


class Dual(NamedTuple):
    """How multipliers move: `ours` with k, or an optax optimiser that ascends."""

    name: str
    ours: float | None
    ascent: optax.GradientTransformation = optax.sgd(0.0)


DUALS = [
    *(Dual(f"no dual step (k = {k:.3g})", k) for k in (DUAL_STRIDE, DUAL_STRIDE / 3, 3 * DUAL_STRIDE)),
    *(Dual(f"ascent, step {eta:g}", None, optax.sgd(eta)) for eta in (0.001, 0.01, 0.1, 1.0)),
    *(Dual(f"Adam's ascent, step {eta:g}", None, optax.adam(eta)) for eta in (0.001, 0.01, 0.1)),
    Dual("no constraints", None),
]


def stepper(function: Callable[..., Any], dual: Dual, number: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """init(params) and step(params, state, rows) -> params, state, multipliers."""
    adam = optax.adam(1e-3)
    if dual.ours is not None:
        algorithm = Algorithm(dual.name, SharedDrift, Rates(dual_stride=dual.ours))
        optimizer, evaluate = drift_plus_penalty(adam, number, algorithm), value_and_constraints(function)

        def step(params: PyTree, state: PyTree, rows: PyTree) -> tuple[PyTree, PyTree, jax.Array]:
            _, grads, extra = evaluate(params, state, rows)
            updates, state = optimizer.update(grads, state, params, **extra)
            return optax.apply_updates(params, updates), state, state.multipliers

        return optimizer.init, step

    def init(params: PyTree) -> PyTree:
        multipliers = jnp.zeros(number, "float32")
        return adam.init(params), multipliers, dual.ascent.init(multipliers)

    def ascend(params: PyTree, state: PyTree, rows: PyTree) -> tuple[PyTree, PyTree, jax.Array]:
        inner, multipliers, ascent = state

        def lagrangian(params: PyTree) -> tuple[jax.Array, jax.Array]:
            value, constraints = function(params, rows)
            return value + multipliers @ constraints, constraints

        grads, constraints = jax.grad(lagrangian, has_aux=True)(params)
        updates, inner = adam.update(grads, inner, params)
        rise, ascent = dual.ascent.update(-constraints, ascent, multipliers)
        multipliers = jnp.maximum(multipliers + rise, 0)
        return optax.apply_updates(params, updates), (inner, multipliers, ascent), multipliers

    return init, ascend


def study(function: Callable[..., Any], dual: Dual, data: PyTree, steps: int, seeds: int) -> tuple[float, ...]:
    """Loss, violation, and the mean and standard deviation of the largest multiplier, over the last quarter."""
    count = len(data["y"])
    number = jax.eval_shape(function, network(0, data["x"].shape[1]), data)[1].size
    init, step = stepper(function, dual, number)

    @jax.jit
    def train(params: PyTree, key: jax.Array, data: PyTree) -> tuple[jax.Array, jax.Array, jax.Array]:
        def one(now: PyTree, t: jax.Array) -> tuple[PyTree, jax.Array]:
            chosen = jax.random.randint(jax.random.fold_in(key, t), (BATCH,), 0, count)
            params, state, multipliers = step(*now, jax.tree.map(lambda leaf: leaf[chosen], data))
            return (params, state), multipliers

        def look(now: PyTree, rounds: jax.Array) -> tuple[PyTree, PyTree]:
            now, multipliers = jax.lax.scan(one, now, rounds)
            return now, (*function(now[0], data), multipliers)

        rounds = jnp.arange(steps - steps % LOOKS).reshape(LOOKS, -1)
        return jax.lax.scan(look, (params, init(params)), rounds)[1]

    rows = []
    for seed in range(seeds):
        found = train(network(seed, data["x"].shape[1]), jax.random.key(seed), data)
        losses, constraints, multipliers = (np.asarray(leaf)[-(LOOKS // 4) :] for leaf in found)
        multipliers = multipliers.reshape(-1, number)
        top = np.argmax(multipliers.mean(axis=0))
        violation = np.maximum(constraints.max(axis=1), 0).mean()
        rows.append([losses.mean(), violation, multipliers[:, top].mean(), multipliers[:, top].std()])
    return tuple(np.mean(rows, axis=0))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--write-docs", action="store_true", help="put the tables into docs/howto/networks.md")
    asked = parser.parse_args()
    train = adult("train")
    part = _adult_rows(train, train)
    columns = {"x": part.X, "y": part.y > 0, "men": train["sex"] == "Male"}
    data = {name: jnp.asarray(column, "float32") for name, column in columns.items()}
    text = ""
    for task in asked.tasks:
        rows = []
        for dual in DUALS:
            found = study(TASKS[task], dual, data, asked.steps, asked.seeds)
            rows.append([dual.name, *(f"{value:.3g}" for value in found)])
            print(task, *rows[-1], sep="  ", flush=True)
        text += f"**{task}**: {(TASKS[task].__doc__ or '')}\n\n{markdown.table(HEAD, rows)}\n\n"
    print(f"\n{text}")
    if asked.write_docs:
        head, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{text}{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
