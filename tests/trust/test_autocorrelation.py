"""Autocorrelation, relaxation times and stationarity: closed forms of AR(1) series and direct sums."""

import numpy as np
import pytest
import scipy.signal
from hypothesis import given
from hypothesis import strategies as st

import ergodrift as ed
from cases import ar1, deterministic
from ergodrift.trust.autocorrelation import (
    autocovariance,
    block_length,
    checked_series,
    integrated_time,
)
from ergodrift.trust.rational import Band, angle, hidden, log_spectrum, size_of
from ergodrift.trust.relaxation import relaxation
from ergodrift.trust.spectrum import Spectrum, transformed
from ergodrift.trust.stationarity import CRITICAL, change_scores, cycle, detrend
from studies import sweep_diagnose


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
    assert 50_000 / integrated_time(ar1(-0.5, 50_000))[0] > 100_000


def test_block_length_grows_with_the_cube_root():
    # Politis and White for AR(1): G = 2 lam / (1 - lam)^2 / (1 - lam^2) x var, g = var / (1 - lam)^2 in innovations.
    lam, n = 0.5, 50_000
    gamma = lam ** np.arange(200)
    bend, level = 2 * np.sum(np.arange(200) * gamma), 2 * gamma.sum() - 1
    truth = np.cbrt(bend**2 * n / level**2)
    assert np.median(block_length(ar1(lam, n, columns=20))) == pytest.approx(truth, rel=0.15)


@pytest.mark.parametrize("tau", [1, 3, pytest.param(30, marks=pytest.mark.slow)])
def test_relaxation_time_of_ar1(tau):
    fits = [relaxation(column) for column in ar1(1 - 1 / tau, 200 * tau, columns=40).T]
    assert np.median([fit.tau for fit in fits]) == pytest.approx(tau, rel=0.15)
    covered = np.mean([fit.lower <= tau * (1 + 1e-9) and tau <= fit.upper for fit in fits])
    assert covered >= 0.95 - 2 * np.sqrt(0.05 * 0.95 / 40)


def test_noise_on_top_does_not_hide_the_slow_mode():
    slow = ar1(1 - 1 / 50, 20_000)[:, 0]
    noisy = slow + np.random.default_rng(1).normal(size=len(slow))
    fit = relaxation(noisy)
    assert fit.lower <= 50 <= fit.upper
    assert (integrated_time(noisy) + 1) / 2 < 40  # which is what the integrated time would make of it


@pytest.mark.parametrize("length", [1, 2, 3, 5, 20])
def test_a_moving_average_keeps_the_relaxation_time(length):
    """One Lorentzian makes 21, 43, 64, 112 and 430 of them."""
    x = np.asarray(scipy.signal.lfilter([1], [1, -0.95], np.random.default_rng(0).normal(size=20_000)))
    plain, fit = relaxation(x), relaxation(np.convolve(x, np.ones(length) / length, "valid"))
    assert plain.lower <= 20 <= plain.upper
    assert fit.lower <= plain.tau <= fit.upper
    assert fit.tau == pytest.approx(20, rel=0.25)
    assert fit.upper < 60
    assert fit.fits


@pytest.mark.parametrize(
    ("poles", "n"),
    [
        ([0.99, 0.9], 20_000),
        ([0.95, 0.5], 4000),
        ([0.98, 0.97], 20_000),
        ([0.95 * np.exp(1j), 0.95 * np.exp(-1j)], 4000),
        ([0.99 * np.exp(0.1j), 0.99 * np.exp(-0.1j)], 20_000),
        ([-0.9, 0.5], 4000),
    ],
    ids=["0.99, 0.9", "0.95, 0.5", "0.98, 0.97", "0.95 at 1", "0.99 at 0.1", "-0.9, 0.5"],
)
def test_the_slower_of_two_poles_is_found(poles, n):
    series = sweep_diagnose.arma("", poles, n)
    fit = relaxation(series.simulate(np.random.default_rng(1), n, 1)[:, 0])
    assert fit.lower <= series.truth <= fit.upper
    assert 1 / 1.5 <= fit.tau / series.truth <= 1.5
    assert fit.upper / fit.lower < 4
    assert fit.frequency == pytest.approx(np.abs(np.angle(poles[0])), abs=0.02)


@pytest.mark.slow
def test_relaxation_times_are_covered_on_series_of_many_kinds():
    """A short version of the study of docs/laboratory/coverage.md. One Lorentzian covers 0 % of most of these."""
    wanted = [
        "AR(2), 0.95 and 0.5",
        "AR(2), 0.95 at 1 rad",
        "ARMA(1,1), 0.95, 0.8",
        "two states",
        "AR(1), averages of 20",
    ]
    kinds = [series for series in sweep_diagnose.kinds() if series.name in wanted and series.n <= 8000]
    rows = sweep_diagnose.study_diagnose(12, which=kinds)
    assert [row["data"] for row in rows] == [series.name for series in kinds]
    covered = np.array([row["coverage"] for row in rows])
    assert covered.mean() >= 0.9 - 2 * np.sqrt(0.09 / (12 * len(rows)))
    assert covered.min() >= 0.9 - 3 * np.sqrt(0.09 / 12)
    assert all(1 / 1.4 <= row["median_ratio"] <= 1.4 for row in rows)
    assert sweep_diagnose.table(rows).count("\n") == len(rows) + 1


def test_what_no_such_spectrum_fits_is_said():
    """A spectrum with notches down to the lowest frequencies: the sum of a series and of itself 400 samples ago."""
    y = ar1(0.5, 60_000)[:, 0]
    comb = y[400:] - 0.98 * y[:-400]
    assert not relaxation(comb).fits
    assert any("not to be trusted" in said for said in ed.diagnose(comb).warnings)


@pytest.mark.parametrize("scale", [1e-150, 1e-6, 1e9, 1e150])
def test_units_and_level_do_not_matter(scale):
    y = ar1(0.9, 2000)[:, 0]
    np.testing.assert_allclose(relaxation(scale * (y + 3))[:3], relaxation(y)[:3], rtol=1e-3)


def test_the_spectrum_of_a_model_and_its_slopes_are_those_of_its_poles_and_zeros():
    rng = np.random.default_rng(0)
    n, pair = 3000, np.array([False, True, False, True])
    whole = Spectrum.of(transformed(rng.normal(size=n)), n)
    band = Band(whole.within(0, np.pi), 0.0, np.pi, n)
    v = rng.normal(size=(4, 4)) + np.array([1.5, 0, 0, 0])
    v[2, 0] *= -1
    w = band.spectrum.frequency
    log, slopes = log_spectrum(v, pair, band, w)
    lam, theta = size_of(v[:, 0]), angle(v, pair)
    for i in range(4):
        poles = [lam[i] * np.exp(1j * theta[i]), lam[i] * np.exp(-1j * theta[i])]
        poles = poles if pair[i] else [lam[i], lam[i] * np.tanh(v[i, 1])]
        bend, turn = np.tanh(v[i, 2:])
        response = np.polyval([turn, bend * (1 + turn), 1], np.exp(-1j * w))
        response = response / np.prod([1 - pole * np.exp(-1j * w) for pole in poles], axis=0)
        np.testing.assert_allclose(log[i], 2 * np.log(np.abs(response)), atol=1e-8)
    for k, step in enumerate(1e-6 * np.eye(4)):
        ahead, behind = (log_spectrum(v + sign * step, pair, band, w)[0] for sign in (1, -1))
        np.testing.assert_allclose(slopes[:, k], (ahead - behind) / 2e-6, atol=1e-5 * np.abs(slopes[:, k]).max())


def test_a_mode_counts_if_it_makes_up_half_of_the_power_at_its_frequency():
    """a / (1 - 2 lambda cos w + lambda^2) + c has the zero nu, and the mode's part at w = 0 is known."""
    n, lam = 10**7, 0.99
    band = Band(Spectrum.of(transformed(np.random.default_rng(0).normal(size=1000)), 1000), 0.0, np.pi, n)
    for part, expected in ((0.25, np.log(2)), (0.49, np.log(0.5 / 0.49)), (0.6, 0.0)):
        c = (1 - part) / part / (1 - lam) ** 2  # floor over the mode's numerator
        # c |1 - nu z|^2 / nu-normalised: (1 + c (1 + lambda^2)) / (c lambda) = (1 + nu^2) / nu.
        b = (1 + c * (1 + lam**2)) / (c * lam)
        nu = (b - np.sqrt(b**2 - 4)) / 2
        v = np.array([[-np.log1p(-lam), 0.0, np.arctanh(-nu), 0.0]])
        assert hidden(v, np.array([False]), band)[0] == pytest.approx(expected, abs=1e-3)


def test_integrated_time_of_a_slow_mode_under_noise_and_under_a_faster_one():
    """Sokal's window alone, 6 times what it sums, ends before the slow mode does: 0.2 and 0.6 of the truth."""
    slow = ar1(1 - 1 / 50, 20_000, columns=20)
    noisy = np.sqrt(0.1) * slow + np.sqrt(0.9) * np.random.default_rng(5).normal(size=slow.shape)
    mixed = np.sqrt(0.1) * ar1(0.99, 50_000, columns=10) + np.sqrt(0.9) * ar1(0.8, 50_000, columns=10, seed=3)
    for values, truth in ((noisy, 1 + 0.1 * 98), (mixed, 1 + 2 * (0.1 * 99 + 0.9 * 4))):
        assert np.median(integrated_time(values, "sokal")) == pytest.approx(truth, rel=0.2)


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
    (said,) = detrend(["y"], (noise[:, 0] + np.sin(2 * np.pi * time / 24))[:, None])[1]
    assert said.startswith("y has a cycle of about 24.04 samples")
    assert cycle(noise[:60, 0]) is None


def test_cycles_are_taken_off_and_leave_the_mixing_time():
    """Hourly data with a day, its overtones and a week, at frequencies that are none of Fourier's."""
    noise, time = ar1(0.9, 5000, seed=1)[:, 0], np.arange(5000)
    day = 2.0 * (time % 24 < 12) + np.sin(2 * np.pi * time / 168)
    rest, (said,) = detrend(["y"], (noise + 3 * day)[:, None])
    assert said.startswith("y has a cycle of about 24.04 samples (and ")
    assert np.std(rest[:, 0] - noise) < 0.15 * np.std(noise)
    fit = relaxation(rest[:, 0])
    assert fit.lower <= 10 <= fit.upper
    with pytest.raises(ValueError, match=r"y has a cycle .*nothing else moves"):
        detrend(["y"], np.sin(2 * np.pi * time / 25)[:, None])


@pytest.mark.parametrize("place", [3000, 1111, 4800])
def test_a_step_is_taken_off_where_it_is(place):
    """Some samples off, what is left of it would look like slow mixing."""
    y = ar1(0.0, 5000) + 2.0 * (np.arange(5000) >= place)[:, None]
    rest, (said,) = detrend(["y"], y)
    found = int(said.split("near sample ")[1].split(":")[0].replace(",", ""))
    assert abs(found - place) <= 5
    assert relaxation(rest[:, 0]).tau < 1.2


def test_trends_steps_and_spreads_are_said_and_levels_taken_off():
    y = ar1(0.9, 20_000, columns=4)
    y[:, 1] += np.linspace(0, 3, len(y))
    y[10_000:, 2] += 3
    y[5_000:, 3] *= 3
    rest, warnings = detrend(["steady", "sloped", "stepped", "spread"], y)
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
