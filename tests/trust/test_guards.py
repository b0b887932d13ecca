"""What `certify` warns of and refuses: drifting held-out samples, those of the fit, other problems."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import lfilter

import ergodrift as ed
from ergodrift.trust.guards import unsteady
from ergodrift.trust.training import refuse_training

PROBLEM = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x + xi, ed.Ball(2.0))
ANY = ed.SeriesSource(np.zeros(2))


def ar1(phi: float, shape: Any, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(shape[0] + 1000, *shape[1:]))
    return np.asarray(lfilter([1.0], [1.0, -phi], noise, axis=0))[1000:]


def said(column: np.ndarray) -> list[str]:
    return unsteady(ANY, np.zeros(len(column)), column[:, None])


# Drift


def test_certify_warns_of_held_out_samples_that_do_not_keep_one_law():
    n, y = 4000, 0.1 * ar1(0.5, (4000, 1))
    time = np.linspace(0, 1, n)[:, None]
    cases = {
        "drifts": y + 0.15 * time,
        "changes regime near sample 2,4": y + 0.1 * (time > 0.6),
        "changes its spread": y * np.where(time > 0.5, 3.0, 1.0),
        "has a cycle of about 50": y + 0.3 * np.sin(2 * np.pi * np.arange(n)[:, None] / 50),
    }
    for what, series in cases.items():
        found = ed.certify(PROBLEM, np.array([-1.0]), ed.SeriesSource(series))
        assert any(warning.startswith(f"constraint 0 {what}") for warning in found.warnings), (what, found.warnings)
        assert "warning: constraint 0" in str(found)
        diagnosed = ed.diagnose(ed.SeriesSource(series)).warnings
        assert any(what in warning for warning in diagnosed), (what, diagnosed)
    steady = ed.certify(PROBLEM, np.array([-1.0]), ed.SeriesSource(y))
    assert steady.warnings == []
    assert "warning" not in str(steady)


def test_a_path_that_is_refused_for_its_drift_says_that_it_drifts():
    y = 0.01 * ar1(0.5, (2000, 1)) + np.linspace(0, 1, 2000)[:, None]
    with pytest.raises(ValueError, match=r"path too short .*constraint 0 drifts"):
        ed.certify(PROBLEM, np.array([-1.0]), ed.SeriesSource(y), method="batch")


def test_a_zip_is_looked_at_where_it_is_recorded():
    chain = ed.MarkovSource(ed.MarkovChain([[0.9, 0.1], [0.1, 0.9]]), np.array([[1.0], [-1.0]]))
    drifting = ed.SeriesSource(ar1(0.5, (2000, 1)) + np.linspace(0, 8, 2000)[:, None])
    losses, constraints = np.asarray(drifting.data)[:, 0], np.asarray(drifting.data)
    assert [w.split(" drifts")[0] for w in unsteady(ed.Zip(drifting, chain), losses, constraints)] == ["the loss"]
    assert [w.split(" drifts")[0] for w in unsteady(ed.Zip(chain, drifting), losses, constraints)] == ["constraint 0"]
    assert unsteady(chain, losses, constraints) == []


@pytest.mark.parametrize("tau", [1, 5, 20])
@pytest.mark.parametrize("ratio", [50, 200])
def test_stationary_series_are_seldom_warned_of(tau, ratio):
    """400 series each; at 50 relaxation times about one in 200 is warned of, at 200 hardly any."""
    n, count = max(tau * ratio, 200), 400
    rng = np.random.default_rng(tau)
    switch = rng.uniform(size=(n, count)) < 0.5 / tau
    states = (np.cumsum(switch, axis=0) + rng.integers(2, size=count)) % 2.0
    bursts = np.repeat(rng.uniform(size=(-(-n // 20), count)) < 0.02, 20, axis=0)[:n].astype(float)
    for series in (ar1(1 - 1 / tau, (n, count), tau), states, bursts):
        alarms = sum(bool(said(column)) for column in series.T)
        assert alarms <= 0.01 * count + 3 * np.sqrt(0.01 * count)


# The samples of the fit


class Point(NamedTuple):
    a: np.ndarray
    b: np.ndarray


Y = ar1(0.8, (3000, 2))
TRAINED = ed.SeriesSource(Y[:2000])


def as_dict(y: np.ndarray) -> dict[str, np.ndarray]:
    return {"u": y[:, 0], "v": y[:, 1]}


SAME = {
    "a copy": lambda y: y.copy(),
    "float32": lambda y: y.astype(np.float32),
    "float16": lambda y: y.astype(np.float16),
    "bfloat16": lambda y: jnp.asarray(y, jnp.bfloat16),
    "float32 and back": lambda y: y.astype(np.float32).astype(np.float64),
    "jax": jnp.asarray,
    "a view": lambda y: np.asfortranarray(y)[:],
    "a dict": as_dict,
    "other keys": lambda y: {"z": y[:, 0], "a": y[:, 1]},
    "a NamedTuple": lambda y: Point(y[:, 0], y[:, 1]),
    "columns changed places": lambda y: y[:, ::-1],
    "one column": lambda y: y[:, :1],
    "a column more": lambda y: np.column_stack([y, np.random.default_rng(1).normal(size=len(y))]),
    "a stretch": lambda y: y[311:500],
    "a stretch in float32": lambda y: y[311:500].astype(np.float32),
    "backwards": lambda y: y[::-1],
    "shuffled": lambda y: np.random.default_rng(2).permutation(y),
    "every third": lambda y: y[::3],
    "a stretch among others": lambda y: np.concatenate([Y[2000:2400], y[100:200], Y[2400:]]),
    "end on beginning": lambda y: Y[1975:],
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME.keys())
def test_the_samples_of_the_fit_are_refused_however_they_are_wrapped(change):
    fresh = ed.SeriesSource(ar1(0.8, (2000, 2), seed=5))
    given = ed.SeriesSource(change(Y[:2000]))
    for source in (given, ed.Zip(given, fresh), ed.Zip(fresh, given)):
        with pytest.raises(ValueError, match="samples that the point was fitted on"):
            refuse_training(TRAINED, source)
    for trained in (ed.Zip(TRAINED, fresh), ed.Zip(fresh, TRAINED)):
        with pytest.raises(ValueError, match="samples that the point was fitted on"):
            refuse_training(trained, given)


FRESH = {
    "the rest": Y[2000:],
    "the rest in float32": Y[2000:].astype(np.float32),
    "the rest in float16": Y[2000:].astype(np.float16),
    "the rest as a dict": as_dict(Y[2000:]),
    "another series": ar1(0.8, (2000, 2), seed=9),
    "less than 20 in common": Y[1985:],
}


@pytest.mark.parametrize("given", FRESH.values(), ids=FRESH.keys())
def test_fresh_samples_are_taken(given):
    refuse_training(TRAINED, ed.SeriesSource(given))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("digits", [0, 1, 2], ids=["whole", "tenths", "hundredths"])
def test_fresh_samples_of_rounded_values_are_taken_and_the_same_refused(digits, seed):
    y = ar1(0.95, (4000, 1), seed).round(digits)
    trained = ed.SeriesSource(y[:2000])
    refuse_training(trained, ed.SeriesSource(y[2000:]))
    refuse_training(trained, ed.SeriesSource(y[2000:].astype(np.float32)))
    with pytest.raises(ValueError, match="fitted on"):
        refuse_training(trained, ed.SeriesSource(y[500:1500].astype(np.float32)))


def test_laws_are_fresh_and_rows_of_the_fit_are_not():
    rows = np.random.default_rng(0).normal(size=(500, 2))
    law, few = ed.IIDSource(rows), ed.IIDSource(np.array([1.0, -1.0]))
    refuse_training(law, ed.IIDSource(rows))
    refuse_training(few, ed.SeriesSource(np.random.default_rng(1).choice([1.0, -1.0], size=300)))
    refuse_training(ed.SeriesSource(np.random.default_rng(1).choice([1.0, -1.0], size=300)), few)
    refuse_training(law, ed.SeriesSource(rows[np.random.default_rng(3).integers(500, size=300)]))  # drawn anew
    for trained, given in [(law, ed.SeriesSource(rows)), (ed.SeriesSource(rows), law)]:
        with pytest.raises(ValueError, match="fitted on"):
            refuse_training(trained, given)


def test_what_the_run_did_not_reach_is_fresh():
    result = ed.run(ed.edpp(5), PROBLEM, ed.SeriesSource(Y[:, :1]), x0=np.zeros(1), num_samples=2000, record=[1000])
    assert result.certify(ed.SeriesSource(Y[2000:, :1])).num_samples == 1000
    with pytest.raises(ValueError, match="fitted on"):
        result.certify(ed.SeriesSource(Y[1500:, :1]))
    with pytest.raises(ValueError, match="fitted on"):
        result.certify()


def test_a_chain_beside_a_series_is_drawn_with_another_seed():
    chain = ed.MarkovSource(ed.MarkovChain([[0.9, 0.1], [0.1, 0.9]]), np.array([[1.0], [-1.0]]))
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi[0]) ** 2), lambda x, xi: x + xi[1], ed.Ball(2.0))
    result = ed.run(ed.edpp(5), problem, ed.Zip(ed.SeriesSource(Y[:1000, :1]), chain), x0=np.zeros(1), seeds=[3])
    fresh = ed.Zip(ed.SeriesSource(Y[1000:, :1]), chain)
    with pytest.raises(ValueError, match="seed=3 is one of those"):
        result.certify(fresh, seed=3)
    assert result.certify(fresh).num_samples == 2000


# The problem


def test_a_result_is_certified_for_its_own_problem_and_no_other():
    chain = ed.MarkovSource(ed.MarkovChain([[0.9, 0.1], [0.1, 0.9]]), np.array([[1.0], [-1.0]]))
    result = ed.run(ed.edpp(5), PROBLEM, chain, x0=np.zeros(1), num_samples=2000)
    own = result.certify()
    same = ed.Problem(PROBLEM.loss, PROBLEM.constraints, ed.Ball(2.0))
    for given in (result.certify(PROBLEM), result.certify(same, chain), result.certify(chain), result.certify(None)):
        np.testing.assert_array_equal(given.estimate, own.estimate)
    looser = ed.Problem(PROBLEM.loss, lambda x, xi: x + xi - 5, ed.Ball(2.0))
    for other in (
        looser,
        ed.Problem(lambda x, xi: jnp.sum(x**2), PROBLEM.constraints, ed.Ball(2.0)),
        ed.Problem(PROBLEM.loss, PROBLEM.constraints, ed.Ball(3.0)),
        ed.Problem(PROBLEM.loss, PROBLEM.constraints, ed.L1Ball(2.0)),
    ):
        with pytest.raises(ValueError, match=r"another one than was solved.*ed\.certify\(other, x, source\)"):
            result.certify(other)
    assert ed.certify(looser, result.solution[0], chain, num_samples=2000).satisfied  # asked for
    with pytest.raises(TypeError, match="problem must be of type Problem, got float"):
        result.certify(0.9)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="source must be a Source"):
        result.certify(PROBLEM, Y)  # type: ignore[arg-type]
