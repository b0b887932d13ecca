"""The monitor and the intervals behind it: valid at all looks together, whatever the cut, in constant memory."""

import pickle

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import ergodrift as ed
from cases import ar1
from ergodrift.trust import intervals
from ergodrift.trust.blocks import Blocks
from ergodrift.trust.sequence import FEW_EVENTS, ONE_VALUE, KnownSequence, LearnedSequence
from ergodrift.trust.skewness import stretch
from studies import series, sweeps


def loss(x, xi):
    return jnp.sum((x - xi) ** 2)


def limit(x, xi):
    return x + xi


ONE = ed.Problem(loss, limit, ed.Ball(2.0))
X = np.array([-0.5])


def cuts(values, seed):
    places = np.sort(np.random.default_rng(seed).integers(0, len(values), size=30))
    return [part for part in np.split(values, places) if len(part)]


def test_blocks_have_the_moments_of_their_means():
    y = np.random.default_rng(0).exponential(size=(1000, 2)) + 1e6
    blocks = Blocks(2)
    for part in cuts(y, 1):
        blocks.add(part)
    found = blocks.moments(4)
    assert found.numbers.tolist() == [1000, 500, 250, 125, 62, 31, 15, 7]
    for level, number in enumerate(found.numbers):
        length = 2**level
        means = y[: number * length].reshape(number, length, 2).mean(axis=1)
        np.testing.assert_allclose(found.long_run[level], length * means.var(axis=0, ddof=1), rtol=1e-7)
        skew = scipy.stats.moment(means, 3) / means.var(axis=0, ddof=1) ** 1.5 / np.sqrt(number)
        np.testing.assert_allclose(found.skewness[level], skew, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(blocks.mean, y.mean(axis=0))


@pytest.mark.parametrize(
    "make", [lambda: LearnedSequence(0.05, 3, 1000), lambda: KnownSequence(0.05, 3.2, np.zeros(3), np.ones(3), 1000)]
)
def test_the_cut_into_calls_changes_no_bit(make):
    y = (ar1(0.7, 5000, columns=3) > 0.3) * 0.7 + 0.1
    whole = make()
    whole.add(y)
    single = make()
    for row in y[:1500]:
        single.add(row[None])
    single.add(y[1500:])
    for seed in range(3):
        pieces = make()
        for part in cuts(y, seed):
            pieces.add(part)
        for name, value in whole.state().items():
            np.testing.assert_array_equal(pieces.state()[name], value, strict=True)
            np.testing.assert_array_equal(single.state()[name], value, strict=True)
    assert np.isfinite(whole.ends()).all()


def test_memory_does_not_grow():
    small, large = LearnedSequence(0.05, 2, 1000), LearnedSequence(0.05, 2, 1000)
    small.add(ar1(0.5, 10, columns=2))
    large.add(ar1(0.5, 100_000, columns=2))
    size = [sum(value.nbytes for value in part.state().values()) for part in (small, large)]
    assert size[0] == size[1]


def test_a_look_is_students_t_over_blocks():
    """Normal values: shares of delta sum to 1, and every look by itself misses as often as it may."""
    sequence = LearnedSequence(0.05, 1, 300)
    assert sequence.shares.sum() == pytest.approx(1)
    assert sequence.looks[:3].tolist() == [512, 768, 1024]
    y = np.random.default_rng(0).normal(size=(512, 4000))
    alone = LearnedSequence(0.5, 4000, 512)
    alone.add(y)
    low, high = alone.ends()
    given = np.isfinite(high)
    missed = np.mean(((low > 0) | (high < 0))[given])
    share = 0.5 * alone.shares[0]
    assert 0.3 * share < missed < share + 3 * np.sqrt(share / given.sum())
    assert given.mean() > 0.75


def test_the_ends_of_poissons_mean_are_garwoods():
    # Upper ends at 97.5 % for 1, 5, 10 and 50 events (Garwood 1936).
    events = np.array([1.0, 5.0, 10.0, 50.0])
    np.testing.assert_allclose(
        events + np.sqrt(events) * stretch(1 / np.sqrt(events), 0.025), [5.572, 11.668, 18.390, 65.92], rtol=1e-3
    )
    assert stretch(0.0, 0.025) == pytest.approx(1.96, abs=2e-3)


def test_a_violated_constraint_of_rare_events_is_never_certified():
    problem = ed.Problem(lambda x, xi: jnp.sum(x**2), lambda x, xi: jnp.stack([xi - 0.005]), ed.Ball(1.0))
    verdicts = []
    for seed in range(40):
        y = (np.random.default_rng(seed).uniform(size=5000) < 0.01).astype(float)
        monitor = ed.Monitor(problem, np.zeros(1))
        found = [monitor.update(part) for part in np.split(y, 10)]
        verdicts += [certificate.verdict[0] for certificate in found]
        assert all(certificate.lower[0] <= certificate.upper[0] for certificate in found)
    assert "satisfied" not in verdicts
    assert "violated" in verdicts


@pytest.mark.parametrize("quiet", [300, 3000])
def test_a_constant_beginning_gives_no_ends(quiet):
    y = np.concatenate([np.full(quiet, -1.0), np.random.default_rng(0).normal(size=200)])[:, None]
    monitor = ed.Monitor(ONE, X)
    found = monitor.update(y[:100])
    for n in range(100, quiet, 100):
        found = monitor.update(y[n : n + 100])
        assert (found.lower[0], found.upper[0], found.verdict) == (-np.inf, np.inf, ["undecided"])
    assert "one value" in found.reason[0] or "before 768 samples" in found.reason[0]
    assert monitor.update(y[quiet:]).verdict == ["undecided"]


def test_what_was_not_seen_enough_is_said_with_how_much_more_it_takes():
    still = LearnedSequence(0.05, 2, 10_000)
    y = np.random.default_rng(1).uniform(size=(1024, 2)) < [0.0, 0.006]
    still.add(y.astype(float))
    assert still.reason.tolist() == [ONE_VALUE, FEW_EVENTS]
    assert still.more(0) == np.inf
    assert 200 < still.more(1) < 20_000
    monitor = ed.Monitor(ONE, X)
    early = monitor.update(np.ones((5, 1)))
    assert early.more_samples == [763]
    assert "undecided: nothing is said before 768 samples, about 763 more samples would show enough" in str(early)


def test_ends_that_exclude_each_other_are_a_finding_of_their_own():
    rng = np.random.default_rng(0)
    monitor = ed.Monitor(ONE, X)
    assert monitor.update(rng.normal(size=(4096, 1))).verdict == ["satisfied"]
    found = monitor.update(rng.normal(3.0, 1.0, size=(12_288, 1)))
    assert found.verdict == ["inconsistent"]
    assert (found.lower[0], found.upper[0]) == (-np.inf, np.inf)
    assert (found.loss_lower, found.loss_upper) == (-np.inf, np.inf)
    assert found.more_samples == [2**62]
    assert not found.satisfied
    assert "inconsistent: intervals given at different times exclude each other" in str(found)
    # It stays so, and bounds make no difference.
    assert monitor.update(rng.normal(size=(100, 1))).verdict == ["inconsistent"]
    known = ed.Monitor(ONE, X, tau_mix=1, bounds=(-1.5, 0.5), tuned_for=3000)
    known.update(np.full((10_000, 1), -1.0))
    assert known.update(np.full((30_000, 1), 1.0)).verdict == ["inconsistent"]


@pytest.mark.parametrize("known", [{"tau_mix": 3, "bounds": (-5.5, 4.5)}, {"tau_mix": 3}, {}])
def test_a_monitor_says_the_same_however_samples_are_cut(known):
    y = np.clip(ar1(0.5, 3000), -4.9, 4.9)
    whole = ed.Monitor(ONE, X, tuned_for=2000, **known).update(y)
    series_ = ed.certify(ONE, X, ed.SeriesSource(y), method="anytime", tuned_for=2000, **known)
    pieces = ed.Monitor(ONE, X, tuned_for=2000, **known)
    found = [pieces.update(part) for part in [*np.split(y[:200], 200), *cuts(y[200:], 0)]]
    for other in (series_, found[-1]):
        for name in ("estimate", "lower", "upper", "loss_lower", "loss_upper", "verdict", "more_samples", "reason"):
            np.testing.assert_array_equal(getattr(whole, name), getattr(other, name))


def test_functions_are_compiled_for_few_lengths():
    traced = []

    def counted(x, xi):
        traced.append(1)
        return x + xi

    monitor = ed.Monitor(ed.Problem(loss, counted, ed.Ball(2.0)), X)
    rng = np.random.default_rng(0)
    for n in range(1, 65):
        monitor.update(rng.normal(size=(n, 1)))
    assert monitor.num_samples == 65 * 32
    assert len(traced) <= 40  # seven lengths, a few traces each; 64 lengths would be ten times as many


@pytest.mark.parametrize("known", [{"tau_mix": 3, "bounds": ([-4.5], 4.5)}, {}])
def test_a_saved_monitor_goes_on_bit_for_bit(tmp_path, known):
    y = np.clip(ar1(0.5, 3000), -4, 4)
    straight, first = ed.Monitor(ONE, X, 0.9, tuned_for=1500, **known), ed.Monitor(ONE, X, 0.9, tuned_for=1500, **known)
    straight.update(y[:1234])
    first.update(y[:1234])
    first.save(tmp_path / "watch.npz")
    resumed, copied = ed.Monitor.load(tmp_path / "watch.npz", ONE), pickle.loads(pickle.dumps(first))
    assert (resumed.confidence, resumed.tuned_for, resumed.num_samples) == (0.9, 1500, 1234)
    found = [monitor.update(y[1234:]) for monitor in (straight, resumed, copied)]
    for other in found[1:]:
        assert str(other) == str(found[0])
        for name in ("estimate", "lower", "upper"):
            np.testing.assert_array_equal(getattr(other, name), getattr(found[0], name))
    assert [path.name for path in tmp_path.iterdir()] == ["watch.npz"]


def test_a_file_for_another_problem_or_of_another_kind_is_refused(tmp_path):
    monitor, path = ed.Monitor(ONE, X), tmp_path / "watch.npz"
    with pytest.raises(ValueError, match="nothing to save"):
        monitor.save(path)
    monitor.update(ar1(0.5, 100))
    monitor.save(path)
    other = ed.Problem(loss, lambda x, xi: x + xi - 0.1, ed.Ball(2.0))
    with pytest.raises(ValueError, match="watched another problem"):
        ed.Monitor.load(path, other)
    shifted = ed.Problem(lambda x, xi: loss(x, xi), lambda x, xi: (x + xi) * (1 + 1e-12), ed.Ball(2.0))
    with pytest.raises(ValueError, match="watched another problem: changed constraints"):
        ed.Monitor.load(path, shifted)
    assert ed.Monitor.load(path, ONE).num_samples == 100
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match="can be used"):
        ed.Monitor.load(path, ONE)
    np.savez(path, a=np.zeros(3))
    with pytest.raises(ValueError, match="it has no header"):
        ed.Monitor.load(path, ONE)
    with pytest.raises(FileNotFoundError):
        ed.Monitor.load(tmp_path / "none.npz", ONE)


def test_points_and_samples_may_be_pytrees(tmp_path):
    problem = ed.Problem(
        lambda x, xi: jnp.sum((x["a"] - xi["u"][0]) ** 2) + x["b"][0] ** 2,
        lambda x, xi: jnp.stack([x["a"] + xi["u"][1], x["b"][0] - xi["v"]]),
        ed.Ball(3.0),
    )
    x = {"b": np.array([0.5]), "a": np.float64(0.25)}
    rng = np.random.default_rng(0)
    samples = {"u": rng.normal(size=(600, 2)), "v": rng.normal(size=600)}
    monitor = ed.Monitor(problem, x)
    monitor.update({name: value[:300] for name, value in samples.items()})
    monitor.save(tmp_path / "m.npz")
    rest = {name: value[300:] for name, value in samples.items()}
    assert str(ed.Monitor.load(tmp_path / "m.npz", problem).update(rest)) == str(monitor.update(rest))


def test_samples_of_another_shape_are_refused():
    monitor = ed.Monitor(ONE, X)
    monitor.update(np.zeros((3, 1)))
    with pytest.raises(ValueError, match=r"samples have shapes \(2,\), those before had \(1,\)"):
        monitor.update(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="data has no rows"):
        monitor.update(np.zeros((0, 1)))
    with pytest.raises(ValueError, match="bounds do not hold"):
        ed.Monitor(ONE, X, tau_mix=1, bounds=(-1, 1)).update(np.full((3, 1), 2.0))
    with pytest.raises(ValueError, match="bounds must be finite with low < high"):
        ed.Monitor(ONE, X, bounds=(1, 1))


def test_the_method_is_chosen_from_the_data_and_says_why():
    chain = ed.MarkovChain([[0.9, 0.1], [0.1, 0.9]])
    source = ed.MarkovSource(chain, np.array([1.0, -1.0]))
    long = ed.certify(ONE, X, source, num_samples=20_000)
    assert (long.method, long.guarantee) == ("batch", "as n grows")
    assert "Hoeffding's interval, which holds for every n, would be up to" in str(long)
    short = ed.certify(ONE, X, source, num_samples=25)
    assert (short.method, short.guarantee) == ("hoeffding", "every n")
    assert "too short" in short.why
    # Rare states: hoeffding where the chain is known, no ends where it is not.
    rare = ed.MarkovChain([[0.999, 0.001], [0.05, 0.95]])
    rare_source = ed.MarkovSource(rare, np.array([-1.0, 1.0]))
    found = ed.certify(ONE, X, rare_source, num_samples=4000)
    assert found.method == "hoeffding"
    assert "too few rare, large values" in found.why
    values = np.asarray(rare_source.data)[np.asarray(rare_source.paths([3], 4000))[0]][:, None]
    series_ = ed.certify(ONE, X, ed.SeriesSource(values))
    assert (series_.method, series_.verdict) == ("batch", ["undecided"])
    assert "too few rare, large values in 4,000 samples, about" in str(series_)
    assert 0 < series_.more_samples[0] < 2**62
    same = ed.certify(ONE, X, ed.SeriesSource(values), method="auto")
    assert str(same) == str(series_)
    assert ed.certify(ONE, X, source, method="batch", num_samples=20_000).why == ""


def test_a_skewed_constraint_does_not_stop_the_others():
    both = ed.Problem(lambda x, xi: jnp.sum(x**2), lambda x, xi: jnp.stack([xi[0] - 1.0, xi[1] - 0.5]), ed.Ball(2.0))
    rng = np.random.default_rng(0)
    y = np.stack([rng.normal(size=2000), np.arange(2000) == 700], axis=1).astype(float)
    found = ed.certify(both, X, ed.SeriesSource(y))
    assert found.verdict == ["satisfied", "undecided"]
    assert found.reason[0] == ""
    assert "rare" in found.reason[1]


def test_intervals_hold_on_rare_bursts_or_are_refused():
    for row in sweeps.skewed(series.BURSTS, 4000, 300, seed=1):
        assert row["missed"] <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)
        assert row["missed_satisfied"] <= 0.03
    # More of them are seen: nearly all are given, and hold.
    for row in sweeps.skewed(series.BURSTS, 40_000, 200, seed=1):
        assert row["refused"] < 0.1
        assert row["coverage"] >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 200)
    # Values that are not skewed lose little.
    y = np.random.default_rng(0).normal(size=(4000, 50))
    plain = scipy.stats.t.ppf(0.975, 39) * intervals.batch_errors(y, overlap=False)[0]
    low, high = intervals.batch(y, 0.05)
    assert np.mean((high - low) / (2 * plain)) < 1.05


@pytest.mark.parametrize(
    "name",
    ["AR(1), 20", "AR(1), 50", "two states 4:1, 10", "rare, 1 %", "-(rare, 1 %)", "bursts, 2 %, length 20",
     "average of 5, AR(1), 20", "exponential AR(1), 20"],
)  # fmt: skip
def test_all_looks_together_miss_in_five_of_a_hundred_at_most(name):
    """A small version of `python -m studies.sweeps`."""
    kind = next(kind for kind in series.WATCHED if kind.name == name)
    row = sweeps.watched(kind, 12_288, 4000, 40, 150, seed=2)
    assert row["missed"] <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 150)
    if "bursts" not in name:
        assert row["given"] > 0.8
        assert row["width"] < 3
        assert row["told"] > 0.4


def test_the_series_of_the_sweeps_have_the_means_they_name():
    rng = np.random.default_rng(0)
    for kind in (*series.WATCHED, *series.SKEWED):
        means = kind.simulate(rng, 1500, 60).mean(axis=0)
        assert abs(means.mean() - kind.mean) < 4.5 * max(means.std(), 1e-4) / np.sqrt(60), kind.name


def test_the_sweeps_write_their_tables_into_a_page(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{sweeps.BEGIN}\nold\n{sweeps.END}\nafter\n")
    command = ["--quick", "--out", str(tmp_path / "out"), "--docs", str(page)]
    sweeps.main([*command, "--write-docs"])
    text = page.read_text()
    assert text.startswith(f"before\n{sweeps.BEGIN}\n\n**Anytime intervals")
    assert text.endswith(f"\n{sweeps.END}\nafter\n")
    assert "\nold\n" not in text
    assert "| bursts, 2 %, length 20 | batch |" in text
    assert "**Relaxation times.**\n\n| data | relaxation time |" in text
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["sweeps.json", "sweeps.md"]
    page.write_text("no marks")
    with pytest.raises(ValueError, match="must hold the marks"):
        sweeps.main([*command, "--write-docs"])
    capsys.readouterr()
