"""A small problem, its samples and all algorithms, for the tests of learners."""

import itertools

import jax.numpy as jnp
import numpy as np

import ergodrift as ed

RNG = np.random.default_rng(0)
ROWS = 2500
DATA = {"a": RNG.normal(size=(ROWS, 3)), "b": RNG.normal(size=ROWS), "n": RNG.integers(0, 5, ROWS)}
X0 = np.zeros(3)


def loss(x, xi):
    return (xi["a"] @ x - xi["b"]) ** 2 + jnp.where(xi["n"] > 2, x[0], 0)


PROBLEM = ed.Problem(loss, lambda x, xi: x[:2] * xi["b"] - 0.1, ed.Ball(2.0))
ALGORITHMS = {
    "EDPP-t": ed.edpp(2.0),
    "MDPP": ed.mdpp(),
    "SDPP": ed.sdpp(),
    "SDPP told": ed.sdpp(distance=0.3),
    "EDPP-auto": ed.edpp("auto"),
    "ADPP": ed.adpp(),
    "WDPP": ed.wdpp(),
    "PD2": ed.pd2(3.0, aggregate="max"),
    "CSA": ed.switching(0.1, 0.1),
}
MORE = {
    "DPP-t": ed.dpp(),
    "EDPP-T": ed.edpp(2.0, horizon=ROWS),
    "MDPP uncapped": ed.mdpp(cap=None),
    "PD": ed.pd(ROWS, gradient_bound=7.0, constraint_bound=7.0),
    "SV": ed.sinha_vaze(ROWS, 7.0),
    "YLL": ed.yu_lee_lee(7.0, 7.0),
    "ALM": ed.augmented_lagrangian(ROWS),
}


def part(first, last):
    return {name: rows[first:last] for name, rows in DATA.items()}


def one(row):
    return {name: rows[row] for name, rows in DATA.items()}


def fed(learner, places, first=0, last=ROWS):
    for a, b in itertools.pairwise([first, *sorted(places), last]):
        learner.learn(part(a, b))
    return learner


def certificate(learner) -> ed.Certificate:
    found = learner.certificate
    assert found is not None
    return found
