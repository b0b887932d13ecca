"""Logistic regression with 100,000 sparse features: our sparse path against a hand-written scipy.sparse loop.

python benchmarks/sparse.py [--rounds N]
"""

from __future__ import annotations

import argparse

import numpy as np
import scipy.sparse as sp
from common import best_of, write

import ergodrift as ed

DIM, STATES, ROWS, WIDTH, TAU_MIX, RADIUS = 100_000, 10, 64, 40, 30.0, 10.0


def problem_data(rng):
    features = []
    for _ in range(STATES):
        columns = np.concatenate([rng.choice(DIM, WIDTH, replace=False) for _ in range(ROWS)])
        values = rng.normal(size=ROWS * WIDTH)
        rows = np.repeat(np.arange(ROWS), WIDTH)
        features.append(sp.csr_array((values, (rows, columns)), shape=(ROWS, DIM)))
    labels = rng.choice([-1.0, 1.0], size=(STATES, ROWS))
    normals = rng.normal(size=(STATES, 1, DIM)) / np.sqrt(DIM)
    return features, labels, normals


def scipy_loop(features, labels, normals, limit):
    """EDPP-t by hand: products with sparse matrices, everything else dense numpy in place."""
    rows = [sp.csr_array(part * sign[:, None]).astype(np.float32) for part, sign in zip(features, labels, strict=True)]
    columns = [sp.csr_array(part.T) for part in rows]
    normals = normals[:, 0].astype(np.float32)

    def go(path):
        x, total, queue = np.zeros(DIM, np.float32), np.zeros(DIM), 0.0
        for t, state in enumerate(path, start=1):
            margins = rows[state] @ x
            grad = columns[state] @ (-1 / (1 + np.exp(margins)) / ROWS)
            total += x
            normal, proximity = normals[state], TAU_MIX * t
            value = normal @ x - limit
            target = grad * np.float32(-np.sqrt(proximity) / (2 * proximity))
            target -= normal * np.float32(queue / (2 * proximity))
            target += x
            norm = np.sqrt(target @ target)
            if norm > RADIUS:
                target *= RADIUS / norm
            queue = max(queue + value + normal @ (target - x), 0.0)
            x = target
        return x

    return go


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10_000)
    rounds = parser.parse_args().rounds
    features, labels, normals = problem_data(np.random.default_rng(0))
    model = ed.LinearModel("logistic", ed.Ball(RADIUS))
    data = model.data(features, list(labels), normals=normals, limits=[0.1])
    chain = ed.MarkovChain(np.full((STATES, STATES), 0.01) + (1 - 0.01 * STATES) * np.eye(STATES))
    source = ed.MarkovSource(chain, data)
    path = np.asarray(source.paths(1, rounds))[0]
    by_hand = scipy_loop(features, labels, normals, 0.1)

    def ours():
        x0 = np.zeros(DIM, np.float32)
        return ed.run(ed.edpp(TAU_MIX), model, source, x0=x0, num_samples=rounds, record=1).x

    np.testing.assert_allclose(np.asarray(ours())[0, 0], by_hand(path), atol=1e-3)
    hand, own = (spent / rounds * 1e6 for spent in best_of(3, lambda: by_hand(path), ours))
    print(f"d = {DIM}, {ROWS} rows of {WIDTH} entries per round, float32, microseconds per round")
    print(f"scipy.sparse {hand:.0f}, ergodrift {own:.0f}")
    print(f"ergodrift / scipy: {own / hand:.2f}x")
    write("sparse", {"unit": "microseconds per round", "rounds": rounds, "rows": {"scipy": hand, "ergodrift": own}})


if __name__ == "__main__":
    main()
