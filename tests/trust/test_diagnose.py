"""Diagnosis: chains from one path, series, streams, what is said and what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from cases import ar1
from ergodrift.trust.transitions import _largest, estimate_chain, mixing_times, stationary_laws

TWO = ed.MarkovChain([[0.95, 0.05], [0.1, 0.9]])
CYCLE = ed.MarkovChain([[0.9, 0.1, 0.0], [0.0, 0.9, 0.1], [0.1, 0.0, 0.9]])
SOURCE = ed.MarkovSource(TWO, np.array([1.0, -1.0]))
PROBLEM = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x + xi, ed.Ball(2.0))


def path(chain, length, seed=0):
    return np.asarray(chain.sample_path(jax.random.key(seed), length))


def test_mixing_times_of_a_stack_agree_with_those_of_chains():
    rng = np.random.default_rng(0)
    stack = np.stack([(1 - a) * np.eye(5) + a * rng.dirichlet(np.ones(5), size=5) for a in (1.0, 0.3, 0.02, 0.001)])
    exact = [ed.MarkovChain(P).mixing_time() for P in stack]
    found = mixing_times(stack)
    np.testing.assert_array_equal(np.ceil(found.max(axis=1) - 1e-9), exact)
    for P, law, starts in zip(stack, stationary_laws(stack), found, strict=True):
        for start, tau in enumerate(np.ceil(starts - 1e-9).astype(int)):
            before, after = (abs(np.linalg.matrix_power(P, t)[start] - law).sum() / 2 for t in (tau - 1, tau))
            assert after <= 0.25 < before
    np.testing.assert_allclose(stationary_laws(stack), [ed.MarkovChain(P).stationary for P in stack], rtol=1e-8)


@pytest.mark.parametrize("chain", [TWO, CYCLE], ids=["two", "cycle"])
def test_a_long_path_gives_the_chain_back(chain):
    found = estimate_chain(path(chain, 100_000))
    np.testing.assert_allclose(found.P, chain.P, atol=0.01)
    np.testing.assert_allclose(found.stationary, chain.stationary, atol=0.03)
    assert found.tau_mix == pytest.approx(chain.mixing_time(), rel=0.15)
    assert found.reversible == chain.is_reversible


def test_the_interval_of_the_mixing_time_covers():
    tau = TWO.mixing_time()
    found = [estimate_chain(path(TWO, 100 * tau, seed)) for seed in range(30)]
    covered = np.mean([low <= tau <= high for low, high in (chain.tau_mix_interval for chain in found)])
    assert covered >= 0.9 - 2 * np.sqrt(0.09 / 30)
    assert 1 / 1.5 <= np.median([chain.tau_mix for chain in found]) / tau <= 1.5


@pytest.mark.parametrize(
    ("means", "opposed"),
    [([0.0], False), ([0.0, 0.0], True), ([0.0] * 20, False), ([0.0, -0.1, -0.1], False), ([0.0, -5.0], True)],
    ids=["one", "two alike", "twenty alike", "nearly alike", "apart"],
)
def test_the_largest_of_several_means_is_covered_also_where_they_are_alike(means, opposed):
    """Errors of 0.1, all of them drawn, so that only the largest is in question. A bootstrap of the maximum covers
    twenty alike in 64 %."""
    rng = np.random.default_rng(0)
    repetitions, means = 1000, np.array(means)

    def errors(count):
        drawn = 0.1 * rng.standard_normal((count, len(means)))
        return np.column_stack([drawn[:, 0], -drawn[:, 0]]) if opposed else drawn

    found = np.array([_largest(means + errors(1)[0], errors(100), 0.0, 0.95, 1000) for _ in range(repetitions)])
    middle, low, high = found.T
    # 95 %, less 1 for a spread known from 100 draws, less two standard errors.
    assert np.mean((low <= 0) & (high >= 0)) >= 0.94 - 2 * np.sqrt(0.05 * 0.95 / repetitions)
    assert abs(np.median(middle)) <= 0.06


def test_few_visits_to_many_states_do_not_look_slow():
    independent = np.random.default_rng(0).integers(40, size=400)
    assert ed.diagnose(independent).tau_mix < 1.5


def test_a_markov_source_is_diagnosed_from_one_path():
    found = ed.diagnose(SOURCE, num_samples=20_000)
    assert found.chain is not None
    assert found.tau_mix_interval[0] <= TWO.mixing_time() <= found.tau_mix_interval[1]
    # The slowest function has the autocorrelation lambda^k: 20,000 samples are worth n (1 - lambda) / (1 + lambda).
    assert found.ess == pytest.approx(20_000 * 0.15 / 1.85, rel=0.2)
    assert str(found).startswith(f"these data behave like tau_mix ≈ {found.tau_mix:.1f}".removesuffix(".0"))
    assert f"use ed.edpp(tau_mix={found.tau_mix:.1f}".removesuffix(".0") in found.summary


def test_functions_along_the_path_are_listed_and_constant_ones_left_out():
    found = ed.diagnose(SOURCE, PROBLEM, np.array([0.5]), num_samples=5000)
    assert [q.name for q in found.quantities] == ["loss", "constraint 0", "loss gradient 0"]
    at_zero = ed.diagnose(SOURCE, PROBLEM, np.array([0.0]), num_samples=5000)  # the loss is 1 in both states there
    assert [q.name for q in at_zero.quantities] == ["constraint 0", "loss gradient 0"]


@pytest.mark.parametrize("kind", ["array", "columns", "source", "stream"])
def test_series_come_in_several_forms(kind):
    y = ar1(0.9, 5000)[:, 0]
    given = {
        "array": y,
        "columns": np.column_stack([y, y**2]),
        "source": ed.SeriesSource({"y": y}),
        "stream": iter(y),
    }[kind]
    found = ed.diagnose(given)
    assert found.chain is None
    assert found.num_samples == 5000
    assert found.tau_mix_interval[0] <= 10 <= found.tau_mix_interval[1]
    assert found.warnings == []


def test_samples_of_several_parts_are_read_part_by_part():
    a, b = ar1(0.9, 3000, columns=2).T
    whole = ed.diagnose(ed.SeriesSource({"a": a, "b": b}))
    assert [q.name for q in whole.quantities] == ["a", "b"]
    stream = ({"a": first, "b": second} for first, second in zip(a, b, strict=True))
    for given in ({"a": a, "b": b}, stream):
        found = ed.diagnose(given)
        assert (found.num_samples, found.tau_mix) == (3000, whole.tau_mix)
    assert ed.diagnose(list(a)).tau_mix == ed.diagnose(a).tau_mix
    assert ed.diagnose({"a": a}).tau_mix == ed.diagnose(a).tau_mix


@pytest.mark.parametrize("given", [None, 3.0, "data", {}, {"a": 1.0}, [{"a": 1.0}] * 50])
def test_what_is_no_series_is_refused_by_name(given):
    for problem, x in ((None, None), (PROBLEM, np.zeros(1))):
        with pytest.raises(TypeError, match=r"source_or_series must be a Source.*SeriesSource\(data\)"):
            ed.diagnose(given, problem, x)


def test_the_call_that_is_recommended_is_python():
    found = dataclasses.replace(ed.diagnose(SOURCE, num_samples=2000), tau_mix=4989.2)
    assert found.summary.endswith("use ed.edpp(tau_mix=4989)")
    assert "tau_mix ≈ 4,989 [" in found.summary


@pytest.mark.slow
def test_a_recorded_series_with_a_problem_and_independent_draws():
    y = ar1(0.9, 5000)[:, 0]
    assert ed.diagnose(y, PROBLEM, np.array([0.3])).tau_mix == pytest.approx(10, rel=0.4)
    independent = ed.diagnose(ed.IIDSource(np.array([1.0, -1.0, 3.0])), num_samples=5000)
    assert independent.tau_mix_interval[0] == 1
    assert independent.tau_mix < 1.3  # a second lag of 2.7 standard errors; `auto` calls up to 1.5 independent
    zipped = ed.Zip(SOURCE, SOURCE)
    both = ed.Problem(lambda x, xi: jnp.sum((x - xi[0]) ** 2), lambda x, xi: x + xi[1], ed.Ball(2.0))
    assert ed.diagnose(zipped, both, np.array([0.3]), num_samples=5000).tau_mix == pytest.approx(1 / 0.15, rel=0.4)
    with pytest.raises(ValueError, match="diagnosed through its functions"):
        ed.diagnose(zipped)


def test_a_smoothed_series_is_read_as_the_series_itself():
    x = ar1(0.95, 20_000)[:, 0]
    taus = [ed.diagnose(np.convolve(x, np.ones(length) / length, "valid")).tau_mix for length in (1, 2, 5)]
    # At 1,000 relaxation times the estimate's standard error is some 7 %; the fault this guards against is fivefold.
    np.testing.assert_allclose(taus, 20, rtol=0.25)
    found = ed.diagnose(x)
    assert found.integrated_time == pytest.approx(39, rel=0.3)
    assert found.integrated_time * found.ess == pytest.approx(found.num_samples)
    assert found.quantities[0].interval == found.tau_mix_interval


def test_drift_is_warned_of_and_the_rest_still_read():
    found = ed.diagnose(ar1(0.9, 20_000)[:, 0] + np.linspace(0, 5, 20_000))
    assert any("trend" in warning for warning in found.warnings)
    assert found.tau_mix == pytest.approx(10, rel=0.3)


def test_a_step_and_nothing_else_is_refused_and_a_walk_may_never_settle():
    with pytest.raises(ValueError, match=r"changes regime near sample 400: .* nothing else moves"):
        ed.diagnose(np.repeat([0.0, 1.0], [400, 600]))
    with pytest.raises(ValueError, match=r"drifts: .* nothing else moves"):
        ed.diagnose(np.linspace(0.0, 1.0, 500))
    walk = np.cumsum(np.random.default_rng(4).normal(size=5000))  # most others are refused as too short
    assert any(warning.endswith("it may never settle") for warning in ed.diagnose(walk).warnings)


def test_states_never_or_rarely_seen_are_said():
    lame = ed.MarkovChain([[0.5, 0.4999, 0.0001], [0.4999, 0.5, 0.0001], [0.5, 0.5, 0.0]])
    found = ed.diagnose(ed.MarkovSource(lame, np.arange(3.0)), num_samples=1000)
    assert any("1 of 3 states never seen: 2" in w or "seen fewer than 10 times: 2" in w for w in found.warnings)


def test_the_picture_has_autocorrelations_and_a_path():
    plt = pytest.importorskip("matplotlib.pyplot")
    figure = ed.diagnose(ar1(0.9, 3000)[:, 0]).plot()
    assert [axes.get_xlabel() for axes in figure.axes] == ["lag", "sample"]
    plt.close(figure)


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (np.arange(20.0), "too few to say anything; record at least 30"),
        (np.full(200, 3), "constant"),
        (np.full(200, 3.0), "constant"),
        (np.r_[np.zeros(100), np.inf], "holds inf"),
        (np.arange(100), "100 states in 100 samples are too many"),
        (iter([]), "the stream is empty"),
    ],
)
def test_what_says_nothing_is_refused(series, message):
    with pytest.raises(ValueError, match=message):
        ed.diagnose(series)


def test_too_short_is_refused_with_the_length_that_is_needed():
    slow = ar1(1 - 1 / 2000, 4000, seed=3)[:, 0]
    with pytest.raises(ValueError, match=r"too short to say anything: 4000 samples .* record at least \d"):
        ed.diagnose(slow - np.linspace(slow[0], slow[-1], 4000))


def test_problem_and_point_go_together():
    with pytest.raises(ValueError, match="go together"):
        ed.diagnose(SOURCE, PROBLEM)
