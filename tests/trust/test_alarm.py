"""The drift alarm: false alarms over a life, what it finds and when, and that the cutting changes nothing."""

from __future__ import annotations

import io

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from studies.alarm import LAWS, autoregression, delay

import ergodrift as ed
from ergodrift.trust.epochs import GRAIN, Epochs

pytestmark = pytest.mark.x64("NumPy in float64 whatever JAX is set to: once is enough")


def shifted(seed=0, before=20_000, after=6_000, shift=1.0):
    values = np.random.default_rng(seed).normal(size=before + after)
    values[before:] += shift
    return values


def found(values) -> ed.Drift:
    drift = ed.DriftAlarm().update(values)
    assert drift is not None
    return drift


def test_a_shift_is_found_and_told():
    alarm = ed.DriftAlarm()
    values = 100 + 10 * shifted(shift=0.5)
    assert alarm.update(values[:20_000]) is None
    assert not alarm.raised
    drift = alarm.update(values[20_000:])
    assert alarm.raised
    assert alarm.update(values) is alarm.drift is drift  # what was found stays found
    assert alarm.count == 52_000
    assert isinstance(drift, ed.Drift)
    assert 20_000 < drift.sample <= 21_024
    assert (drift.column, drift.aspect) == (0, "level")
    window = values[drift.since : drift.sample]
    assert drift.after == pytest.approx(window.mean(), rel=1e-12)
    baseline = 1024 + 4096 * 4  # the last doubling of 4 warm-ups before
    assert drift.before == pytest.approx(values[1024 : min(baseline, 1024 + 16_384)].mean(), rel=1e-12)
    assert drift.excess > 1
    assert "the level of column 0 has changed: from" in str(drift)


def test_the_column_and_the_aspect_are_told():
    values = np.random.default_rng(1).standard_t(4, size=(24_000, 3))
    values[16_000:, 1] *= 2.0
    drift = found(values)
    assert (drift.column, drift.aspect) == (1, "spread")
    assert 16_000 < drift.sample < 18_000
    assert drift.after / drift.before == pytest.approx(2, rel=0.25)


def test_a_slow_drift_is_found():
    values = np.random.default_rng(2).normal(size=200_000)
    values[20_000:] += np.arange(180_000) / 90_000  # two standard deviations in all
    assert 20_000 < found(values).sample < 90_000


def test_what_never_moved_and_then_does_is_found_but_one_value_is_not_enough():
    values = np.zeros(40_000)
    values[30_000] = 1.0
    assert ed.DriftAlarm().update(values) is None
    values[32_000:] = np.arange(8_000) % 2
    assert 32_000 < found(values).sample < 33_000


@given(st.lists(st.integers(1, 9_000), min_size=1, max_size=12), st.integers(0, 3))
@settings(max_examples=15, deadline=None)
def test_the_cutting_changes_nothing(cuts, seed):
    rng = np.random.default_rng(seed)
    values = np.stack([shifted(seed, 9_000, 3_000, 0.6) * 1e3 + 1e6, rng.normal(size=12_000).cumsum() * 0], axis=1)
    whole = ed.DriftAlarm()
    whole.update(values)
    parts = ed.DriftAlarm()
    places = np.unique(np.clip(np.cumsum(cuts), 0, len(values)))
    for part in np.split(values, places):
        parts.update(part)
    assert parts.drift == whole.drift
    if whole.drift is None:
        for name, value in whole.state().items():
            np.testing.assert_array_equal(parts.state()[name], value, err_msg=name)


def test_sample_by_sample_is_the_same():
    values = shifted(before=6_000, after=700, shift=2.0)
    whole, single = ed.DriftAlarm(warm_up=128), ed.DriftAlarm(warm_up=128)
    drift = whole.update(values)
    assert drift is not None
    first = next(t for t, value in enumerate(values) if single.update([value]) is not None)
    assert single.drift == drift
    assert first + 1 == drift.sample


def test_units_do_not_matter():
    """Ranks are the same under any growing function: so are the sample, the column and the aspect."""
    values = shifted(seed=5, shift=0.5)
    drifts = [found(each) for each in (values, 1e-9 * values - 7, np.exp(values), np.float32(values))]
    assert len({(drift.sample, drift.since, drift.aspect) for drift in drifts}) == 1
    assert found(-values).sample == drifts[0].sample


@pytest.mark.parametrize("at", [0, 500, 5_000, 9_003, 12_000])
def test_a_saved_alarm_goes_on_bit_for_bit(at):
    values = shifted(seed=3, before=9_000, after=3_000, shift=0.7)[:, None] * [1.0, -2.0]
    whole, first = ed.DriftAlarm(0.9), ed.DriftAlarm(0.9)
    whole.update(values)
    first.update(values[:at])
    file = io.BytesIO()
    np.savez(file, **first.state())
    file.seek(0)
    later = ed.DriftAlarm(0.9)
    with np.load(file) as state:
        later.restore(dict(state))
    first.update(np.ones((40, 2)))  # the state was a copy
    later.update(values[at:])
    assert later.drift == whole.drift is not None
    assert later.count == whole.count
    with pytest.raises(ValueError, match=r"confidence=0.9 and warm_up=1024, not confidence=0.95"):
        ed.DriftAlarm().restore(whole.state())


def test_memory_does_not_grow():
    alarm = ed.DriftAlarm()
    sizes = []
    for _ in range(3):
        alarm.update(np.random.default_rng(0).normal(size=70_000))
        sizes.append(sum(value.nbytes for value in alarm.state().values()))
    assert len(set(sizes)) == 1
    assert sizes[0] < 100_000


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((2, 2, 2)), r"shape \(n,\) or \(n, m\), got \(2, 2, 2\)"),
        (3.0, r"shape \(n,\) or \(n, m\), got \(\)"),
        (["a"], "values must be numbers, got <U1"),
        ([1.0, np.nan], "values holds nan in column 0, sample 12: .*drop such samples"),
        (np.zeros((3, 2)), "values has 2 columns, but the first ones had 1"),
    ],
)
def test_what_is_wrong_is_named(values, message):
    alarm = ed.DriftAlarm()
    alarm.update(np.arange(10.0))
    with pytest.raises((TypeError, ValueError), match=message):
        alarm.update(values)
    assert alarm.count == 10


def test_settings_are_checked():
    with pytest.raises(ValueError, match="confidence must be > 0 and < 1, got 1"):
        ed.DriftAlarm(1.0)
    with pytest.raises(ValueError, match="warm_up must be a power of two such as 1024, got 1000"):
        ed.DriftAlarm(warm_up=1000)
    with pytest.raises(ValueError, match="warm_up must be between 128 and"):
        ed.DriftAlarm(warm_up=64)
    assert ed.DriftAlarm().update([]) is None


def test_a_larger_confidence_has_larger_thresholds():
    def limits(confidence):
        epochs = Epochs(1, 1 - confidence, 1024)
        epochs.add(np.random.default_rng(0).normal(size=(9_000, 1)))
        return epochs.limits[np.isfinite(epochs.limits)]

    assert (limits(0.99) > limits(0.9)).all()


def test_thresholds_of_independent_data_are_those_of_the_normal_law():
    """n samples before, w in a window: sigma z sqrt(1/w + 1/n) with sigma^2 = 1/12, and little more."""
    epochs = Epochs(1, 0.05, 1024)
    epochs.add(np.random.default_rng(1).normal(size=(1024 + 2**16, 1)))
    n, step = 2**16, 4
    window = 4 * 2**step * GRAIN
    windows = np.log2(n / GRAIN / 4) + 1
    share = 0.05 / 2 * 6 / np.pi**2 / 5**2 / windows / (n / GRAIN / 2**step) / 2
    least = np.sqrt((1 / window + 1 / n) / 12) * scipy.stats.norm.isf(share)
    assert 0.9 * least < epochs.limits[step, 0] < 1.6 * least


@pytest.mark.parametrize("law", ["independent", "relaxation time 10", "t, 4 degrees", "two regimes, 20"])
def test_false_alarms_are_rare(law):
    """30 lives of 40,000 samples: more than 5 alarms have probability 0.3 % at the 5 % that are allowed."""
    raised = [ed.DriftAlarm().update(LAWS[law](np.random.default_rng([7, seed]), 40_000)) for seed in range(30)]
    assert sum(drift is not None for drift in raised) <= 5


def test_half_a_standard_deviation_is_found_in_some_hundred_samples():
    delays = [delay(LAWS["independent"], seed, change=20_000, after=6_000) for seed in range(20)]
    assert np.median(delays) <= 512
    assert np.max(delays) < np.inf


def test_long_correlation_is_waited_for():
    """Nothing is tested before blocks of 10 integrated times are seen 48 times: 480 x 200 samples, here."""
    epochs = Epochs(1, 0.05, 1024)
    epochs.add(autoregression(np.random.default_rng(0), 40_000, 100)[:, None])
    assert np.isinf(epochs.limits).all()


@pytest.mark.slow
@pytest.mark.parametrize("law", list(LAWS))
def test_false_alarms_over_long_lives(law):
    """60 lives of 300,000 samples at 95 %: more than 8 alarms have probability 0.4 % at the 5 % that are allowed."""
    raised = [ed.DriftAlarm().update(LAWS[law](np.random.default_rng([8, seed]), 300_000)) for seed in range(60)]
    assert sum(drift is not None for drift in raised) <= 8
