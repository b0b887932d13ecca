"""Autocorrelation, relaxation times and stationarity: closed forms of AR(1) series and direct sums."""

import numpy as np
import pytest
import scipy.signal
from hypothesis import given
from hypothesis import strategies as st

from ergodrift.trust.autocorrelation import (
    autocovariance,
    block_length,
    checked_series,
    effective_size,
    integrated_time,
)
from ergodrift.trust.relaxation import relaxation
from ergodrift.trust.stationarity import CRITICAL, change_scores, cycle, levelled
from problems import deterministic


def ar1(lam, n, columns=1, seed=0):
    """Stationary AR(1) series of variance 1, (n, columns)."""
    noise = np.random.default_rng(seed).normal(size=(n, columns)) * np.sqrt(1 - lam**2)
    noise[0] /= np.sqrt(1 - lam**2)
    return np.asarray(scipy.signal.lfilter([1], [1, -lam], noise, axis=0))


@deterministic
@given(st.integers(2, 40), st.integers(0, 2**31))
def test_autocovariance_is_the_plain_sum(n, seed):
    y = np.random.default_rng(seed).normal(size=n)
    centred = y - y.mean()
    plain = [np.sum(centred[: n - k] * centred[k:]) / n for k in range(n)]
    np.testing.assert_allclose(autocovariance(y), plain, atol=1e-12)
    np.testing.assert_allclose(autocovariance(y, 2), plain[:2], atol=1e-12)


@pytest.mark.parametrize("method", ["geyer", "sokal"])
@pytest.mark.parametrize("lam", [0.0, 0.5, 0.9])
def test_integrated_time_of_ar1_is_its_closed_form(method, lam):
    truth = (1 + lam) / (1 - lam)
    found = integrated_time(ar1(lam, 20_000, columns=40), method)
    # A window's bias is a few per cent; 4 standard errors over the columns on top of it.
    assert abs(found.mean() - truth) < 0.04 * truth + 4 * found.std() / np.sqrt(40)


def test_an_alternating_series_is_worth_more_than_its_length():
    assert integrated_time(ar1(-0.5, 50_000)[:, 0]) == pytest.approx(1 / 3, rel=0.1)
    assert effective_size(ar1(-0.5, 50_000))[0] > 100_000


def test_block_length_grows_with_the_cube_root():
    # Politis and White for AR(1): G = 2 lam / (1 - lam)^2 / (1 - lam^2) x var, g = var / (1 - lam)^2 in innovations.
    lam, n = 0.5, 50_000
    gamma = lam ** np.arange(200)
    bend, level = 2 * np.sum(np.arange(200) * gamma), 2 * gamma.sum() - 1
    truth = np.cbrt(bend**2 * n / level**2)
    assert np.median(block_length(ar1(lam, n, columns=20))) == pytest.approx(truth, rel=0.15)


@pytest.mark.parametrize("tau", [1, 3, 30])
def test_relaxation_time_of_ar1(tau):
    fits = [relaxation(column) for column in ar1(1 - 1 / tau, 200 * tau, columns=80).T]
    assert np.median([fit.tau for fit in fits]) == pytest.approx(tau, rel=0.15)
    covered = np.mean([fit.lower <= tau * (1 + 1e-9) and tau <= fit.upper for fit in fits])
    assert covered >= 0.95 - 2 * np.sqrt(0.05 * 0.95 / 80)


def test_noise_on_top_does_not_hide_the_slow_mode():
    slow = ar1(1 - 1 / 50, 20_000)[:, 0]
    noisy = slow + np.random.default_rng(1).normal(size=len(slow))
    fit = relaxation(noisy)
    assert fit.lower <= 50 <= fit.upper
    assert (integrated_time(noisy) + 1) / 2 < 40  # which is what the integrated time would make of it


def test_a_slower_mode_under_a_faster_one_is_found():
    both = ar1(1 - 1 / 300, 100_000)[:, 0] + ar1(1 - 1 / 5, 100_000, seed=1)[:, 0]
    assert relaxation(both).tau == pytest.approx(300, rel=0.5)


def test_a_negative_correlation_has_a_relaxation_time_too():
    fit = relaxation(ar1(-0.8, 5000)[:, 0])
    assert fit.lower <= 5 <= fit.upper


def test_stationary_series_are_seldom_called_unsteady():
    for values in (ar1(0.95, 1000, columns=400), ar1(0.95, 1000, columns=400) ** 2):
        assert np.mean(change_scores(values).max(axis=0) > CRITICAL) <= 0.01


def test_a_cycle_is_found_and_seldom_where_there_is_none():
    noise = ar1(0.9, 5000, columns=300, seed=1)
    found = [cycle(column) for column in noise.T]
    assert sum(period is not None for period in found) <= 2  # one in a thousand
    time = np.arange(5000)
    for period in (7.0, 24.0, 50.3):
        seen = cycle(noise[:, 0] + np.sin(2 * np.pi * time / period))
        assert seen == pytest.approx(period, rel=2 * period / 5000)
    (said,) = levelled(["y"], (noise[:, 0] + np.sin(2 * np.pi * time / 24))[:, None])[1]
    assert said.startswith("y has a cycle of about 24.04 samples")
    assert cycle(noise[:60, 0]) is None


@pytest.mark.parametrize("place", [3000, 1111, 4800])
def test_a_step_is_taken_off_where_it_is(place):
    """Some samples off, what is left of it would look like slow mixing."""
    y = ar1(0.0, 5000) + 2.0 * (np.arange(5000) >= place)[:, None]
    rest, (said,) = levelled(["y"], y)
    found = int(said.split("near sample ")[1].split(":")[0].replace(",", ""))
    assert abs(found - place) <= 5
    assert relaxation(rest[:, 0]).tau < 1.2


def test_trends_steps_and_spreads_are_said_and_levels_taken_off():
    y = ar1(0.9, 20_000, columns=4)
    y[:, 1] += np.linspace(0, 3, len(y))
    y[10_000:, 2] += 3
    y[5_000:, 3] *= 3
    rest, warnings = levelled(["steady", "sloped", "stepped", "spread"], y)
    assert [warning.split()[0] for warning in warnings] == ["sloped", "stepped", "spread"]
    assert "trend" in warnings[0]
    assert "near sample 10,000" in warnings[1]
    np.testing.assert_array_equal(rest[:, 0], y[:, 0])
    assert np.ptp(rest[:, 1].reshape(4, -1).mean(axis=1)) < 0.5


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (np.arange(10.0), "10 samples, too few to say anything; record at least 30"),
        (np.ones(100), "is constant: it is 1 in all 100 samples"),
        (np.column_stack([np.arange(50.0), np.ones(50)]), "constant in column 1"),
        (np.r_[np.arange(50.0), np.nan], "holds nan at index"),
        (np.zeros((3, 3, 3)), r"shape \(n,\) or \(n, k\)"),
    ],
)
def test_what_says_nothing_is_refused(series, message):
    with pytest.raises(ValueError, match=message):
        checked_series("y", series)


def test_series_must_hold_numbers():
    with pytest.raises(TypeError, match="must hold numbers"):
        checked_series("y", np.array(["a"] * 50))
