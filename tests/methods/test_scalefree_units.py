"""No unit of the loss, of a constraint or of x changes a run of SDPP, SRDPP or auto, to 1e-9."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ergodrift as ed
from ergodrift.methods.scalefree import CoordinateDrift, Scales

pytestmark = pytest.mark.x64("1e-9 is below the rounding of float32")
PROPERTY = settings(derandomize=True, database=None, deadline=None, max_examples=20)
ROUNDS, D, STATES = 300, 4, 6
CHAIN = ed.MarkovChain(0.8 * np.eye(STATES) + 0.2 / STATES)
ONES = (1.0, np.ones(2), np.ones(D))

# Which entries of x have a unit in common; entries of a simplex have none.
DOMAINS: dict[str, list[int]] = {"ball": [0] * 4, "l1": [0] * 4, "box": [0, 1, 2, 0], "product": [0, 0, 1, 2]}
FIXED = ["simplex", "entropy", "entropy-floor"]


def domain(kind: str, unit: np.ndarray) -> tuple[ed.Geometry, Any]:
    """A domain in these units, and a start inside of it."""
    x0 = 0.1 * unit * np.array([1.0, -1.0, 2.0, 0.0])
    made: dict[str, Callable[[], ed.Geometry]] = {
        "ball": lambda: ed.Ball(1.5 * unit[0]),
        "l1": lambda: ed.L1Ball(2 * unit[0]),
        "box": lambda: ed.Box(-unit * np.array([1, 0.5, 2, 1]), unit * np.array([1, 3, 1, 0.7])),
        "product": lambda: ed.Product({"w": ed.Ball(1.5 * unit[0]), "b": ed.Box(-unit[2:], 2 * unit[2:])}),
        "simplex": ed.Simplex,
        "entropy": ed.EntropySimplex,
        "entropy-floor": lambda: ed.EntropySimplex(floor=0.02),
    }
    if kind == "product":
        return made[kind](), {"w": x0[:2], "b": x0[2:]}
    return made[kind](), x0 if kind in DOMAINS else np.full(D, 0.25)


def by_name(kind: str, x: Any) -> Any:
    """The entries of a point in the order of the data, whatever the order of its keys."""
    return jnp.concatenate([x["w"], x["b"]]) if kind == "product" else x


LOSSES = ["softplus", "squared", "shortfall", "late", "nothing"]


@functools.cache
def functions(kind: str) -> tuple[Any, Any]:
    """The same functions for all losses and units, which are in the data: each domain is compiled once."""

    def loss(x: Any, xi: Any) -> Any:
        score, threshold = xi["a"] @ by_name(kind, x), xi["first"] @ by_name(kind, x)
        squared = (score - xi["b"]) ** 2
        shortfall = threshold + jnp.maximum(-score - threshold, 0) / 0.2  # as for a CVaR: what falls short
        return xi["which"] @ jnp.stack([jnp.logaddexp(0, -score), squared, shortfall])

    def constraints(x: Any, xi: Any) -> Any:
        one, two = xi["w"] @ by_name(kind, x)
        return xi["each"] * jnp.stack([one - xi["v"], jnp.maximum(two, 0) - 0.1])

    return loss, constraints


def samples(count: int, loss: str, c: float, each: np.ndarray, unit: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    which = np.tile(c * np.eye(3)[{"softplus": 0, "shortfall": 2}.get(loss, 1)], (count, 1))
    which[: {"late": 60, "nothing": count}.get(loss, 0)] = 0  # no gradient so far
    return {
        "a": (rng.normal(size=(count, D)) + 0.5) / unit,
        "b": rng.normal(size=count) + 1,
        "w": (rng.normal(size=(count, 2, D)) + 0.3) / unit,
        "v": rng.normal(size=count) * 0.3 - 0.05,
        "first": np.tile(np.eye(D)[0] / unit, (count, 1)),
        "which": which,
        "each": np.tile(each, (count, 1)),
    }


def known(geometry: ed.Geometry, x0: Any, c: float, each: np.ndarray) -> Scales:
    across = jax.tree.map(np.asarray, geometry.factor_diameters(jax.tree.map(jnp.asarray, x0)))
    return Scales(
        jax.tree.map(lambda r: 0.2 * r, across),
        jax.tree.map(lambda r: 0.1 * (c / r) ** 2, across),
        30 * each**2,
        0.5 * c / each,
    )


def run(kind: str, loss: str, name: str, c: float, each: np.ndarray, unit: np.ndarray) -> tuple[Any, Any, Any]:
    """x and x̄ at the end, in the order of the data, and the multipliers."""
    geometry, x0 = domain(kind, unit)
    problem = ed.Problem(*functions(kind), geometry)
    source: Any = ed.SeriesSource(samples(ROUNDS, loss, c, each, unit))
    if name in ("srdpp", "srdpp-visits", "auto-states"):
        source = ed.MarkovSource(CHAIN, samples(STATES, loss, c, each, unit))
    if name.startswith("auto"):
        algorithm = ed.auto(problem, source, x0, ROUNDS)
    elif name.startswith("srdpp"):
        algorithm = ed.srdpp("visits" if name == "srdpp-visits" else "stationary")
    elif name == "apart":
        algorithm = dataclasses.replace(ed.sdpp(), rule=CoordinateDrift)
    else:
        algorithm = ed.sdpp(known(geometry, x0, c, each) if name == "sdpp-scales" else None)
    result = ed.run(algorithm, problem, source, x0=x0, num_samples=ROUNDS, record=[20, ROUNDS])
    x, mean = (
        np.asarray(by_name(kind, jax.tree.map(lambda leaf: leaf[0, -1], at))) for at in (result.x, result.x_mean)
    )
    return x, mean, np.asarray(result.queue[0])


@functools.cache
def plain(kind: str, loss: str, name: str) -> tuple[Any, Any, Any]:
    return run(kind, loss, name, *ONES)


def hold(kind: str, loss: str, name: str, powers: tuple[float, list[float], list[float]]) -> None:
    """A run in other units is the same run."""
    c, each = 10 ** powers[0], 10 ** np.array(powers[1])
    unit = 10 ** np.array(powers[2])[DOMAINS[kind]] if kind in DOMAINS else np.ones(D)
    x, mean, queue = run(kind, loss, name, c, each, unit)
    usual = plain(kind, loss, name)
    np.testing.assert_allclose(x / unit, usual[0], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(mean / unit, usual[1], rtol=1e-9, atol=1e-9)
    rate = (1.0 if loss == "nothing" else c) / each
    size = np.max(usual[2])
    if loss == "late":  # the first record is before the loss has a scale
        queue, usual = queue[1:], (*usual[:2], usual[2][1:])
    np.testing.assert_allclose(queue / rate, usual[2], rtol=1e-9, atol=1e-9 * size)


POWERS = st.tuples(
    st.floats(-6, 6), st.tuples(*[st.floats(-6, 6)] * 2).map(list), st.tuples(*[st.floats(-3, 3)] * 3).map(list)
)
UNITS = st.tuples(st.sampled_from(LOSSES[:3]), POWERS)


@pytest.mark.parametrize("kind", [*DOMAINS, *FIXED])
def test_units_do_not_matter(kind):
    @PROPERTY
    @given(UNITS)
    def check(case):
        hold(kind, case[0], "sdpp", case[1])

    check()
    x, _, queue = plain(kind, "squared", "sdpp")
    assert np.ptp(x) > 0.01  # it moves
    assert (np.max(queue, axis=0) > 0).all()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("ball", "srdpp"),
        ("ball", "apart"),
        ("box", "srdpp-visits"),
        ("box", "sdpp-scales"),
        ("product", "sdpp-scales"),
        ("product", "srdpp"),
    ],
)
def test_units_do_not_matter_where_more_is_known(kind, name):
    @PROPERTY
    @given(UNITS)
    def check(case):
        hold(kind, case[0], name, case[1])

    check()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["auto", "auto-states"])
@pytest.mark.parametrize("kind", ["ball", "box"])
def test_units_do_not_matter_to_auto(kind, name):
    """Neither to what it recommends, nor to the run."""

    @settings(PROPERTY, max_examples=4)
    @given(UNITS)
    def check(case):
        hold(kind, case[0], name, case[1])

    check()


@pytest.mark.parametrize("kind", ["ball", "box"])
@pytest.mark.parametrize("loss", ["late", "nothing"])
def test_units_do_not_matter_where_a_loss_has_no_gradient_yet(kind, loss):
    @PROPERTY
    @given(POWERS)
    def check(powers):
        hold(kind, loss, "sdpp", powers)

    check()
    assert np.max(plain(kind, loss, "sdpp")[2][0]) > 0  # multipliers grew before
