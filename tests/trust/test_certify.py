"""Certificates: intervals against closed forms and simulation, verdicts, what is refused."""

import inspect
import itertools
import json
import multiprocessing
import time

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from studies.coverage import families, study_intervals, tables

import ergodrift as ed
from cases import ar1
from ergodrift.trust import intervals
from ergodrift.trust.certify import FRESH, held_out
from ergodrift.trust.sequence import boundary
from ergodrift.trust.training import refuse_training
from studies import coverage

CHAIN = ed.MarkovChain([[0.9, 0.1], [0.1, 0.9]])
SOURCE = ed.MarkovSource(CHAIN, np.array([1.0, -1.0]))
PROBLEM = ed.Problem(
    lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: jnp.concatenate([x + xi, x - 1 - xi]), ed.Ball(2.0)
)
METHODS = ["batch", "overlapping", "bootstrap", "hoeffding", "bernstein", "anytime"]


@pytest.mark.parametrize("number", intervals.FIXED_B)
def test_fixed_b_critical_values_are_those_of_brownian_motion(number):
    n, count = 560, 8_000
    noise = np.random.default_rng(number).normal(size=(count, n)).astype(np.float32)
    sums = np.concatenate([np.zeros((count, 1)), np.cumsum(noise, axis=1, dtype=float)], axis=1)
    size = n // number
    mean = sums[:, -1] / n
    batches = (sums[:, size:] - sums[:, :-size]) / size
    error = np.sqrt(np.mean((batches - mean[:, None]) ** 2, axis=1) * size / (n - size))
    scale, freedom = intervals.FIXED_B[number]
    for level in (0.9, 0.95, 0.99):
        inside = np.mean(np.abs(mean) / error <= scale * scipy.stats.t.ppf((1 + level) / 2, freedom))
        # 4 standard errors, and half a per cent for the grid that stands for Brownian motion.
        assert abs(inside - level) < 0.005 + 4 * np.sqrt(level * (1 - level) / count)


def test_batch_errors_of_ar1_are_right():
    lam, n = 0.9, 20_000
    errors, numbers = intervals.batch_errors(ar1(lam, n, columns=200), overlap=False)
    truth = np.sqrt((1 + lam) / (1 - lam) / n)
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(truth, rel=0.05)
    assert set(numbers) == {40}


def test_hoeffding_is_paulins_formula():
    values = np.array([0.0, 1.0] * 500)[:, None]
    low, high = intervals.hoeffding(values, 0.05, 3.0, np.zeros(1), np.ones(1))
    reach = np.sqrt(9 * 3 * np.log(40) / 2000)
    np.testing.assert_allclose([low[0], high[0]], [0.5 - reach, 0.5 + reach])


def test_bernstein_wins_where_the_variance_is_small():
    values = np.zeros((1_000_000, 1))
    values[::1000] = 1
    ends = np.zeros(1), np.ones(1)
    narrow, wide = (np.ptp(getattr(intervals, m)(values, 0.05, 2.0, *ends)) for m in ("bernstein", "hoeffding"))
    assert narrow < wide / 2


def test_the_boundary_is_not_crossed_more_often_than_it_may():
    walk = np.cumsum(np.random.default_rng(0).normal(size=(2000, 4000)), axis=1)
    crossed = (np.abs(walk) >= boundary(np.arange(1, 4001.0), 0.1, 500.0)).any(axis=1)
    assert 0.03 < crossed.mean() < 0.1


def test_the_anytime_interval_shrinks_and_holds_along_the_way():
    y = (ar1(0.0, 20_000)[:, 0] > 0).astype(float)[:, None]
    ends = np.zeros(1), np.ones(1)
    found = [
        np.array(intervals.anytime(y[:n], 0.05, 1.0, *ends, tuned_for=20_000))[:, 0] for n in range(100, 20_000, 500)
    ]
    assert all(low <= 0.5 <= high for low, high in found)
    assert all((b[0] >= a[0]) and (b[1] <= a[1]) for a, b in itertools.pairwise(found))


def test_intervals_cover_and_iid_ones_do_not():
    """A small version of `python -m studies.coverage`."""
    family = families(10)[0]
    rows = {row["method"]: row for row in study_intervals(family, 200 * 10, 200, seed=0)}
    for name in ("batch", "overlapping"):
        assert rows[name]["coverage"] >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 200)
        assert rows[name]["wrong"] <= 0.05
    for name in ("hoeffding", "bernstein", "anytime"):
        assert rows[name]["coverage"] >= 0.99
    assert rows["i.i.d. normal"]["coverage"] < 0.6
    assert "| two states | 10 |" in tables({"intervals": list(rows.values()), "mixing": []})


@pytest.mark.slow
def test_a_study_is_the_same_on_any_number_of_processes(tmp_path):
    wanted = coverage.cells((1,), 20, (50,), (100,), 3)
    assert len(wanted) == 10  # five kinds of data, one length of each study
    kept = []
    alone = coverage.study(wanted, keep=kept.append)
    assert alone == coverage.study(wanted, jobs=2)
    assert len(kept) == 10
    assert kept[-1] == alone
    assert [row["data"] for row in alone["mixing"]] == [family.name for family in families(1)]
    assert {row["repetitions"] for row in alone["intervals"]} == {20}
    sizes = ["--taus", "1", "--repetitions", "20", "--lengths", "50"]
    coverage.main([*sizes, "--only", "intervals", "--jobs", "1", "--out", str(tmp_path)])
    assert json.loads((tmp_path / "coverage.json").read_text()) == {**alone, "mixing": []}
    assert "| AR(1) | 1 |" in (tmp_path / "coverage.md").read_text()


@pytest.mark.parametrize("option", ["--jobs", "--repetitions", "--mixing-repetitions"])
def test_a_study_of_nothing_is_refused(option, capsys):
    with pytest.raises(SystemExit):
        coverage.main([option, "0"])
    assert f"{option} must be at least 1, got 0" in capsys.readouterr().err


@pytest.mark.slow
def test_an_interrupted_study_begins_nothing_more():
    def interrupt(line):
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        coverage.study([coverage.Cell("intervals", 1, 0, 50, 200 + n) for n in range(1_000)], jobs=2, log=interrupt)
    while multiprocessing.active_children():
        assert time.monotonic() - began < 60  # all thousand would take minutes
        time.sleep(0.1)


@pytest.mark.parametrize("tau", [1, 10, 100])
def test_the_families_of_the_study_have_the_mixing_time_they_name(tau):
    assert [family.tau_mix for family in families(tau)] == [tau] * 5
    rng = np.random.default_rng(0)
    for family in families(tau):
        values = family.value(family.simulate(rng, 200, 500))
        error = values.mean(axis=0).std() / np.sqrt(500)
        assert abs(values.mean() - family.mean) < 4 * error


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("x", "first", "second"), [(-0.5, "satisfied", "satisfied"), (0.5, "violated", "satisfied")])
def test_clear_cases_are_decided_by_every_method(method, x, first, second):
    found = ed.certify(PROBLEM, np.array([x]), SOURCE, method=method, num_samples=200_000)
    assert found.verdict == [first, second]
    assert found.more_samples == [0, 0]
    np.testing.assert_array_less(found.lower, [x, x - 1])
    np.testing.assert_array_less([x, x - 1], found.upper)
    assert found.loss_lower < x**2 + 1 < found.loss_upper
    assert found.satisfied == (first == "satisfied")
    with pytest.raises(TypeError, match=r"ask \.satisfied"):
        bool(found)
    assert "every n" in str(found) or method in ("batch", "overlapping", "bootstrap")


def test_a_close_case_is_undecided_and_says_how_many_samples_it_takes():
    found = ed.certify(PROBLEM, np.array([-0.01]), SOURCE, num_samples=5000)
    assert found.verdict[0] == "undecided"
    half = found.upper[0] - found.estimate[0] if found.estimate[0] < 0 else found.estimate[0] - found.lower[0]
    assert found.more_samples[0] == np.ceil(5000 * (half / found.estimate[0]) ** 2 - 5000)
    assert f"about {found.more_samples[0]:,} more samples would decide" in str(found)


def test_several_constraints_are_simultaneous():
    one = ed.Problem(PROBLEM.loss, lambda x, xi: x + xi, ed.Ball(2.0))
    wide = ed.certify(PROBLEM, np.array([0.1]), SOURCE, num_samples=5000)
    narrow = ed.certify(one, np.array([0.1]), SOURCE, num_samples=5000)
    assert wide.upper[0] - wide.lower[0] > narrow.upper[0] - narrow.lower[0]
    same = ed.certify(one, np.array([0.1]), SOURCE, 0.975, num_samples=5000)
    assert same.upper[0] == wide.upper[0]


def test_a_constraint_without_chance_is_known_exactly():
    fixed = ed.Problem(PROBLEM.loss, lambda x, xi: x - 1 + 0 * xi, ed.Ball(2.0))
    found = ed.certify(fixed, np.array([0.25]), SOURCE, num_samples=1000)
    assert found.lower[0] == found.upper[0] == -0.75


def test_a_constraint_that_never_moves_does_not_stop_the_others():
    limits = lambda x, xi: jnp.concatenate([x + xi, x - 2 + 0 * xi])  # noqa: E731
    budget = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), limits, ed.Ball(2.0))
    found = ed.certify(budget, np.array([-0.5]), ed.SeriesSource(ar1(0.5, 4000)))
    assert found.verdict == ["satisfied", "undecided"]
    assert found.estimate[1] == -2.5
    assert (found.lower[1], found.upper[1]) == (-np.inf, np.inf)
    assert "undecided: one value in all 4,000 samples" in str(found)
    # Nor does it widen them by more than its share of the confidence.
    alone = ed.certify(ONE, np.array([-0.5]), ed.SeriesSource(ar1(0.5, 4000)), 0.975)
    assert found.upper[0] == pytest.approx(alone.upper[0], rel=1e-12)


@pytest.mark.parametrize("method", ["batch", "anytime", "hoeffding"])
def test_a_constraint_without_the_sample_is_decided_exactly(method):
    """Also of recorded samples, of which nobody knows what else there can be."""
    limits = lambda x, xi: jnp.concatenate([x - 2, x + xi, x + 1])  # noqa: E731
    budget = ed.Problem(lambda x, xi: jnp.sum((x - 1) ** 2), limits, ed.Ball(2.0))
    x, source = np.array([-0.5]), ed.SeriesSource(np.clip(ar1(0.5, 4000), -4, 4))
    known = {"bounds": (-9, 9), "tau_mix": 3} if method == "hoeffding" else {}
    found = ed.certify(budget, x, source, method=method, **known)
    np.testing.assert_array_equal(found.lower[[0, 2]], [-2.5, 0.5])
    np.testing.assert_array_equal(found.upper[[0, 2]], [-2.5, 0.5])
    assert (found.verdict[0], found.verdict[2], found.more_samples[2]) == ("satisfied", "violated", 0)
    assert found.lower[1] < -0.5 < found.upper[1]
    assert (found.loss_lower, found.loss_upper) == (2.25, 2.25)
    with pytest.raises(ValueError, match="needs tau_mix and bounds"):  # of the one that does depend on it
        ed.certify(budget, x, source, method="hoeffding")
    only = ed.Problem(budget.loss, lambda x, xi: x - 2, ed.Ball(2.0))
    assert ed.certify(only, x, source, method=method, **known).upper[0] == -2.5


def test_a_monitor_decides_a_constraint_without_the_sample_at_once(tmp_path):
    limits = lambda x, xi: jnp.concatenate([x + xi, x - 2])  # noqa: E731
    budget = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), limits, ed.Ball(2.0))
    monitor, y = ed.Monitor(budget, np.array([-0.5])), ar1(0.5, 4000)
    first = monitor.update(y[:5])
    assert (first.verdict, first.upper[1]) == (["undecided", "satisfied"], -2.5)
    assert first.reason[0]
    assert not first.reason[1]
    monitor.save(tmp_path / "monitor.npz")
    again = ed.Monitor.load(tmp_path / "monitor.npz", budget).update(y[5:])
    straight = monitor.update(y[5:])
    assert again.verdict == straight.verdict == ["satisfied", "satisfied"]
    np.testing.assert_array_equal(again.upper, straight.upper)


def test_a_monitor_is_undecided_until_it_can_say_something():
    monitor, y = ed.Monitor(ONE, np.array([-0.5])), ar1(0.5, 4000)
    first = monitor.update(y[:5])
    assert (first.verdict, first.lower[0], first.upper[0]) == (["undecided"], -np.inf, np.inf)
    assert monitor.update(y[5:]).verdict == ["satisfied"]


def test_constraints_from_a_chain_of_their_own_have_its_mixing_time():
    both = ed.Zip(ed.IIDSource(np.array([0.0, 1.0])), SOURCE)
    apart = ed.Problem(lambda x, xi: jnp.sum((x - xi[0]) ** 2), lambda x, xi: x + xi[1], ed.Ball(2.0))
    found = ed.certify(apart, np.array([-0.5]), both, method="hoeffding", num_samples=4000)
    reach = 2 * np.sqrt(9 * CHAIN.mixing_time() * np.log(2 / 0.05) / 8000)
    assert found.upper[0] - found.estimate[0] == pytest.approx(reach)


def test_the_monitor_agrees_with_certify_and_never_takes_back():
    values = np.asarray(SOURCE.data)[np.asarray(SOURCE.paths([5], 20_000))[0]][:, None]
    one = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x + xi, ed.Ball(2.0))
    tau, bounds = CHAIN.mixing_time(), (-1.3, 0.7)
    monitor = ed.Monitor(one, np.array([-0.3]), tau_mix=tau, bounds=bounds, tuned_for=20_000)
    found = [monitor.update(part) for part in np.split(values, 10)]
    series = ed.SeriesSource(values)
    whole = ed.certify(one, np.array([-0.3]), series, method="anytime", tau_mix=tau, bounds=bounds, tuned_for=20_000)
    np.testing.assert_allclose([found[-1].lower, found[-1].upper], [whole.lower, whole.upper])
    assert all(b.upper[0] <= a.upper[0] and b.lower[0] >= a.lower[0] for a, b in itertools.pairwise(found))
    assert found[0].verdict == ["undecided"]
    assert found[-1].verdict == ["satisfied"]


ONE = ed.Problem(PROBLEM.loss, lambda x, xi: x + xi, ed.Ball(2.0))


@pytest.mark.parametrize("known", [{"tau_mix": 2, "bounds": (-2, 2)}, {}], ids=["bounds", "no bounds"])
def test_anytime_certificates_asked_for_again_are_nested(known):
    y = np.clip(ar1(0.0, 6000), -1, 1)
    found = [
        ed.certify(ONE, np.zeros(1), ed.SeriesSource(y[:n]), method="anytime", tuned_for=3000, **known)
        for n in (1200, 1500, 6000)
    ]
    monitor = ed.Monitor(ONE, np.zeros(1), tuned_for=3000, **known)
    assert monitor.update(y[:1200]).upper == found[0].upper
    # One boundary for all lengths: at 1,200 samples it is the same whatever comes after.
    again = ed.certify(
        ONE, np.zeros(1), ed.SeriesSource(y), method="anytime", num_samples=1200, tuned_for=3000, **known
    )
    assert again.upper == found[0].upper
    if known:
        assert all(b.upper[0] <= a.upper[0] and b.lower[0] >= a.lower[0] for a, b in itertools.pairwise(found))
        # An interval tuned to the length seen would differ from the one that is tuned beforehand.
        tuned = intervals.anytime(y, 0.05, 2, np.full(1, -2.0), np.full(1, 2.0), 6000)
        assert tuned[1][0] != found[-1].upper[0]


@pytest.mark.parametrize("method", ["batch", "hoeffding"])
def test_a_loss_that_the_path_says_nothing_about_has_no_ends(method):
    step = ed.Problem(lambda x, xi: jnp.sum(jnp.where(xi > 10, 1.0, 0.0 * x)), ONE.constraints, ed.Ball(2.0))
    y = np.clip(ar1(0.0, 500), -3, 3)
    found = ed.certify(step, np.array([-1.0]), ed.SeriesSource(y), method=method, tau_mix=1, bounds=(-4, 2))
    assert (found.loss_lower, found.loss_upper, found.loss_estimate) == (-np.inf, np.inf, 0.0)
    assert np.isfinite([found.lower, found.upper]).all()
    # Every state of the source has this loss: it is known.
    known = ed.certify(step, np.array([-1.0]), SOURCE, method=method, num_samples=500)
    assert (known.loss_lower, known.loss_upper) == (0.0, 0.0)


def test_a_short_path_has_a_hoeffding_interval_and_no_loss():
    found = ed.certify(ONE, np.array([0.1]), SOURCE, method="hoeffding", num_samples=10)
    assert found.verdict == ["undecided"]
    assert (found.loss_lower, found.loss_upper) == (-np.inf, np.inf)


def test_long_paths_that_stay_correlated_are_refused_too():
    walk = np.cumsum(np.random.default_rng(0).normal(size=(40_000, 1)), axis=0)
    with pytest.raises(ValueError, match="too short to certify anything: 40000 samples that stay correlated"):
        ed.certify(PROBLEM, np.array([0.1]), ed.SeriesSource(walk))
    with pytest.raises(ValueError, match="500 samples of mixing time 34"):
        ed.certify(ONE, np.array([0.1]), ed.SeriesSource(ar1(0.0, 500)), tau_mix=34)
    assert ed.certify(ONE, np.array([0.1]), ed.SeriesSource(ar1(0.0, 40_000))).num_samples == 40_000


def test_a_given_start_widens_hoeffding_and_stops_bernstein():
    tau, n, x = CHAIN.mixing_time(), 4000, np.array([0.1])
    started = ed.MarkovSource(CHAIN, np.asarray(SOURCE.data), start=0)
    found = ed.certify(ONE, x, started, method="hoeffding", num_samples=n)
    reach = 2 * np.sqrt(9 * tau * np.log(40) / (2 * n)) + 2 * tau * 2 / n
    np.testing.assert_allclose(found.upper - found.estimate, reach)
    plain = ed.certify(ONE, x, SOURCE, method="hoeffding", num_samples=n)
    np.testing.assert_allclose(plain.upper - plain.estimate, reach - 4 * tau / n)
    assert "every n, if tau_mix is right" in str(plain)
    with pytest.raises(ValueError, match="starts elsewhere: use method='anytime'"):
        ed.certify(ONE, x, started, method="bernstein", num_samples=n)
    assert ed.certify(ONE, x, started, method="anytime", num_samples=n).guarantee == "every n"


@pytest.mark.parametrize("method", ["hoeffding", "bernstein", "anytime"])
def test_samples_that_would_decide_do_not_depend_on_the_cut_to_bounds(method):
    short = ed.certify(ONE, np.array([0.5]), SOURCE, method=method, num_samples=200)
    assert short.verdict == ["undecided"]
    assert short.lower[0] == -0.5  # cut
    values = held_out(ONE, np.array([0.5]), SOURCE, 200, FRESH)[1]
    tuned = {"tuned_for": 10_000} if method == "anytime" else {}
    ends = np.full(1, -0.5), np.full(1, 1.5)
    low, _ = getattr(intervals, method)(values, 0.05, CHAIN.mixing_time(), *ends, **tuned, clip=False)
    middle = values.mean()
    assert low[0] < -0.5
    assert short.more_samples[0] == pytest.approx(200 * ((middle - low[0]) / middle) ** 2 - 200, abs=1)


def test_a_result_is_certified_on_fresh_samples_only():
    result = ed.run(ed.edpp(CHAIN.mixing_time()), PROBLEM, SOURCE, x0=np.zeros(1), num_samples=5000, seeds=[3, 4])
    found = result.certify(row=1)
    assert found.num_samples == 5000
    # The constraints are x + xi and x - 1 - xi: their means along the fresh path, to rounding.
    mean = np.array([1.0, -1.0])[np.asarray(SOURCE.paths([FRESH], 5000))[0]].mean()
    x = float(result.solution[1][0])
    np.testing.assert_allclose(found.estimate, [x + mean, x - 1 - mean], rtol=1e-12)
    with pytest.raises(ValueError, match="seed=4 is one of those the run was fitted on"):
        result.certify(PROBLEM, seed=4)
    paths = SOURCE.paths([7], 500)
    replayed = ed.run(ed.edpp(CHAIN.mixing_time()), PROBLEM, SOURCE, x0=np.zeros(1), num_samples=500, paths=paths)
    assert replayed.certify(PROBLEM, seed=0).num_samples == 500
    with pytest.raises(ValueError, match="seed=7 is one of those"):
        replayed.certify(PROBLEM, seed=7)


def test_a_result_takes_every_argument_of_certify():
    ours, theirs = (set(inspect.signature(function).parameters) for function in (ed.certify, ed.Result.certify))
    assert ours - theirs == {"x"}
    assert theirs - ours == {"self", "row"}
    result = ed.run(ed.edpp(CHAIN.mixing_time()), ONE, SOURCE, x0=np.zeros(1), num_samples=500, seeds=1)
    x, options = result.solution[0], {"num_samples": 3000, "seed": 11, "tau_mix": 7, "bounds": (-4.0, 4.0)}
    for tuned_for in (100, 3000):
        found = result.certify(ONE, SOURCE, 0.9, "anytime", tuned_for=tuned_for, **options)
        same = ed.certify(ONE, x, SOURCE, 0.9, "anytime", tuned_for=tuned_for, **options)
        np.testing.assert_array_equal([found.lower, found.upper], [same.lower, same.upper])
    wide = result.certify(ONE, SOURCE, 0.9, "anytime", tuned_for=100, **options)
    assert (wide.upper - wide.lower > found.upper - found.lower).all()  # tightest where it was tuned_for to be


def test_a_result_is_not_certified_on_the_series_it_was_fitted_on():
    y = ar1(0.8, 4000)
    result = ed.run(ed.edpp(5), PROBLEM, ed.SeriesSource(y[:2000]), x0=np.zeros(1))
    for given in (None, ed.SeriesSource(y[:2000].copy()), ed.SeriesSource(y), ed.SeriesSource(y[1500:])):
        with pytest.raises(ValueError, match="samples that the point was fitted on"):
            result.certify(PROBLEM, given)
    assert result.certify(PROBLEM, ed.SeriesSource(y[2000:])).num_samples == 2000


def test_a_correct_split_of_slow_discrete_data_is_not_an_overlap():
    y = np.repeat([0.0, 1.0, 0.0, 1.0], [700, 500, 650, 350])
    trained = ed.SeriesSource(y[:1000])  # 200 ones before the cut and 200 after it
    refuse_training(trained, ed.SeriesSource(y[1000:]))
    for given in (y, y[:1000].copy(), y[300:900]):
        with pytest.raises(ValueError, match="samples that the point was fitted on"):
            refuse_training(trained, ed.SeriesSource(given))
    # Long ones take no time: a search that compares at every place would take hours.
    long = (np.cumsum(np.random.default_rng(0).random(400_000) < 0.001) % 2).astype(float)
    refuse_training(ed.SeriesSource(long[:200_000]), ed.SeriesSource(long[200_000:]))
    varied = ar1(0.8, 100)
    with pytest.raises(ValueError, match="samples that the point was fitted on"):
        refuse_training(ed.SeriesSource(varied[:60]), ed.SeriesSource(varied[40:]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "normal"}, "method must be one of 'batch'"),
        ({"confidence": 1.0}, "confidence must be"),
        ({"tau_mix": 0.5}, "tau_mix must be >= 1"),
        ({"num_samples": None}, "num_samples must be given"),
        ({"num_samples": 10, "method": "batch"}, "10 samples, too few to say anything"),
        ({"bounds": (1.0, -1.0)}, "low < high"),
        (
            {"bounds": (0.0, 0.1), "method": "hoeffding"},
            r"bounds do not hold: got low = \[0. 0.\], high = \[0.1 0.1\], but .* or leave them out",
        ),
        (
            {"bounds": ([-3.0] * 3, 3.0)},
            r"bounds must be \(low, high\), each a number or 2 numbers.*low of shape \(3,\)",
        ),
        ({"tuned_for": 0}, "tuned_for must be"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ed.certify(PROBLEM, np.array([0.1]), SOURCE, **{"num_samples": 1000, **options})


def test_series_that_say_nothing_are_refused():
    x = np.array([0.1])
    with pytest.raises(ValueError, match="constant"):
        ed.certify(PROBLEM, x, ed.SeriesSource(np.ones((100, 1))))
    with pytest.raises(ValueError, match=r"needs tau_mix and bounds: .* which is an estimate"):
        ed.certify(PROBLEM, x, ed.SeriesSource(ar1(0.5, 100)), method="hoeffding")
    with pytest.raises(ValueError, match=r"too short to certify anything: 200 samples .* take at least"):
        ed.certify(PROBLEM, x, ed.SeriesSource(np.cumsum(ar1(0.99, 200), axis=0)))
    with pytest.raises(TypeError, match="source must be a Source"):
        ed.certify(PROBLEM, x, np.ones(100))  # type: ignore[arg-type]
