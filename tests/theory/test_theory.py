"""Theory: exponents as stated, bounds against closed forms and runs, the lemmas of appendix A along a run."""

import dataclasses
import functools
import json
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cases
import ergodrift as ed
from digits import WIDE, rounded
from ergodrift import metrics, theory
from ergodrift.cli import main
from ergodrift.experiments import theory as studies
from ergodrift.experiments.theory import (
    CASES,
    bounds_study,
    bounds_table,
    limits_table,
    slopes_study,
    slopes_table,
)
from ergodrift.problems import random_problem

REPLAYED = 1e-9 if WIDE else 1e-4  # a replay is in float64: it differs by what a run of 300 rounds has lost

CHAIN = ed.MarkovChain(np.full((3, 3), 0.1) + 0.7 * np.eye(3))
SOURCE = ed.MarkovSource(
    CHAIN, {"c": np.array([[2.0, 1.0], [0.0, 3.0], [1.0, -1.0]]), "e": np.array([0.5, -0.25, -0.25])}
)
PROBLEM = ed.Problem(
    lambda x, xi: jnp.sum((x - xi["c"]) ** 2) / 2,
    lambda x, xi: jnp.stack([x[0] + x[1] - 1 + xi["e"], x[0] - 3.0]),
    ed.Ball(4.0),
)
# ||x - c|| <= 4 + 3; |x + y| <= 4 sqrt 2
BOUNDS = SimpleNamespace(loss_grad=7.0, constraint_jac=[2**0.5, 1.0], constraints=[4 * 2**0.5 + 1.25, 7.0])
SIZE = theory.Constants(2.0, np.array([1.0, 0.5]), np.array([1.0, 2.0]), 3.0, True)


# ---- rates ----


@pytest.mark.parametrize(
    ("rate", "leading"),
    [
        (theory.theorem1(0.5)["regret"], (0.5, 0.5)),
        (theory.theorem1(1 / 3)["regret"], (2 / 3, 2 / 3)),
        (theory.theorem1(1 / 3)["violation"], (1 / 6, 2 / 3)),
        (theory.theorem2(1 / 3)["gap"], (2 / 3, -1 / 3)),
        (theory.theorem2(1 / 3)["infeasibility"], (1 / 6, -1 / 3)),
        (theory.theorem3()["violation"], (0.5, 0.5)),
        (theory.theorem3()["infeasibility"], (0.5, -0.5)),
        (theory.theorem5(0.5)["gap"], (0.5, -0.5)),
        (theory.theorem5(0.5)["infeasibility"], (0.5, -0.25)),
        (theory.appendix_c(0.5)["violation"], (0.0, 0.75)),
    ],
)
def test_leading_exponents_are_those_of_the_paper(rate, leading):
    """As in table 1 and after theorem 2, where beta = 1/3 is worked out."""
    assert rate.leading == pytest.approx(leading)
    # far out, the leading term is all that is left
    slopes = rate.slope(T=1e100, tau_mix=1e12)
    assert slopes == pytest.approx(leading, abs=1e-4)


def test_a_rate_passes_through_a_point_and_reads_as_a_formula():
    rate = theory.theorem3()["gap"]
    assert str(rate) == "τ^0.5 T^-0.5 + τ T^-1"
    curve = rate.through(100, 7.0, tau_mix=4.0)
    assert curve(100) == pytest.approx(7.0)
    assert curve(1e12) / curve(1e10) == pytest.approx(0.1, rel=1e-4)
    with pytest.raises(ValueError, match="beta"):
        theory.theorem1(0.7)


# ---- bounds with constants ----


def test_the_bounds_by_hand_for_two_rounds():
    """n = 1, F = 2, G = H = 1, R = 1, V_t = sqrt t, alpha_t = t, independent draws."""
    size = theory.Constants(2.0, np.ones(1), np.ones(1), 1.0, True)
    found = theory.expected(size, theory.ergodic(1.0), T=2)
    # b^2 = 4; c_1 = 4 + 2*2*1 + 2 = 10, c_2 = 8 + 4 (1 + sqrt 2) + 4; both queues are below sqrt c, at t H
    np.testing.assert_allclose(found.queue, [1.0, 2.0])
    # regret: alpha/V + (4/4) sum V/alpha + 2 sum 1/V, cut at t F R
    np.testing.assert_allclose(found.regret, [2.0, 4.0])
    loose = theory.expected(size._replace(loss_grad=1.0), theory.ergodic(1.0), T=10_000)
    V = np.sqrt(np.arange(1, 10_001))
    by_hand = 100 + 0.25 * (1 / V).sum() + 2 * (1 / V).sum()
    assert loose.regret[-1] == pytest.approx(by_hand)
    queue = np.sqrt(4 * 10_000 + 2 * V.sum() + 2 * 10_000)
    assert loose.queue[-1] == pytest.approx(queue)
    before = np.sqrt(6 * np.arange(1, 10_000) + 2 * np.cumsum(V)[:-1])
    before = np.concatenate([[0.0], np.minimum(before, np.arange(1, 10_000))])
    steps = np.minimum(1, (V + before) / (2 * V**2))
    assert loose.violation[-1, 0] == pytest.approx(queue + steps.sum())
    assert loose.gap[-1] == pytest.approx(by_hand / 10_000)  # with tau = 1 nothing is lost on the way from regret


@settings(cases.deterministic, max_examples=60)
@given(
    st.integers(1, 400), st.floats(1, 50), st.floats(0.05, 0.5), st.integers(1, 60), st.floats(0.05, 20),
    st.floats(0.05, 20), st.floats(0.05, 20),
)  # fmt: skip
def test_the_closed_form_of_theorem_1_is_never_below_the_sums(T, tau_mix, beta, tau, F, G, H):
    size = theory.Constants(F, np.array([G, 1.0]), np.array([H, 1.0]), 1.5, True)
    sums = theory.expected(size, theory.ergodic(tau_mix, beta), T, tau, distance=1 / T)
    regret, violation = theory.theorem1_bounds(size, T, tau_mix, beta, tau)
    assert sums.regret[-1] <= regret * (1 + 1e-12)
    assert (sums.violation[-1] <= violation * (1 + 1e-12)).all()


@pytest.mark.parametrize("tau", [1, 4])
def test_bounds_grow_at_the_rates_of_their_theorems(tau):
    """Doubling T far out multiplies a bound by 2^b: theorem 1 without Slater's condition, theorem 3 with it."""
    horizons = [2**19, 2**20]
    slopes = {}
    for margin in (None, 0.5):
        ends = []
        for T in horizons:
            found = theory.expected(SIZE, theory.ergodic(float(tau)), T, 4 * tau, 1 / T, margin)
            ends.append([found.queue[-1], found.regret[-1], found.violation[-1, 0]])
        slopes[margin] = np.diff(np.log(ends), axis=0)[0] / np.log(2)
    np.testing.assert_allclose(slopes[None][:2], [0.75, 0.5], atol=0.04)
    assert slopes[None][2] == pytest.approx(0.75, abs=0.04)
    # Slater's bound has constants so large that only the exponent of its own formula shows at such T
    far = 4.0 ** np.arange(20, 24)
    queue = theory.slater_queue(SIZE, theory.ergodic(float(tau)), far, 4 * tau, 0.0, 0.5)
    np.testing.assert_allclose(np.diff(np.log(queue)) / np.log(4), 0.5, atol=0.06)


def test_slaters_bound_asks_for_a_chain_that_has_mixed():
    assert np.isinf(theory.slater_queue(SIZE, theory.ergodic(1.0), [10.0], 1, 0.4, 0.5)).all()


def test_bounds_are_never_worse_than_trivial():
    found = theory.expected(SIZE, theory.ergodic(9.0), 50, 30, 0.02)
    t = np.arange(1, 51)
    assert (found.regret <= t * 2 * 3).all()
    assert (found.gap <= 2 * 3).all()
    assert (found.infeasibility <= SIZE.constraints).all()
    assert (found.violation <= t[:, None] * SIZE.constraints).all()


@settings(cases.deterministic, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.1, 0.3, 0.5]))
def test_the_sums_behind_appendix_c(seed, beta):
    """The three sums that its proof bounds by integrals, on random F_t, G_t and H_t."""
    rng = np.random.default_rng(seed)
    F, G, H = rng.exponential(size=(3, 50)) * 10.0 ** rng.uniform(-2, 2, size=(3, 1)) * (rng.random(50) < 0.7)
    R = 2.0
    a = F**2 / 4 + R**2 * G**2 + H**2
    a[0] += 1e-9
    S, T = np.cumsum(a), len(a)
    bound = theory.appendix_c_bounds(S[-1], T, R, beta)
    V, alpha = S**beta / R, S / R**2
    terms = alpha[-1] / V[-1] * R**2 + (V * F**2 / (4 * alpha)).sum() + ((H + G * R) ** 2 / (2 * V)).sum()
    assert terms <= bound.regret * (1 + 1e-9)
    queue = np.sqrt((2 * (H**2 + R**2 * G**2) + 2 * V * R * F).sum() + 2 * R**2 * alpha[-1])
    assert queue <= bound.queue * (1 + 1e-9)


# ---- constants ----


def test_constants_seen_are_below_the_proven_ones_and_say_so():
    proven = theory.constants(PROBLEM, SOURCE, np.zeros(2), BOUNDS)
    seen = theory.constants(PROBLEM, SOURCE, np.zeros(2))
    assert proven.certified
    assert not seen.certified
    assert (
        0.8 * proven.loss_grad < seen.loss_grad <= proven.loss_grad
    )  # 4 + sqrt 10 less than 7.2 is attained at a point
    np.testing.assert_allclose(seen.constraint_jac, proven.constraint_jac)
    assert (seen.constraints <= proven.constraints).all()
    assert proven.diameter == 8.0


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (SimpleNamespace(loss_grad=-1.0, constraint_jac=1.0, constraints=1.0), "bounds.loss_grad"),
        (SimpleNamespace(loss_grad=1.0, constraint_jac=[1.0] * 3, constraints=1.0), "bounds.constraint_jac"),
        (SimpleNamespace(loss_grad=1.0, constraint_jac=1.0, constraints=np.nan), "bounds.constraints"),
    ],
)
def test_wrong_bounds_are_named(bounds, message):
    with pytest.raises(ValueError, match=message):
        theory.constants(PROBLEM, SOURCE, np.zeros(2), bounds)


def test_no_bound_without_a_diameter():
    problem = ed.Problem(lambda x, xi: jnp.sum(x), lambda x, xi: x[:1] - 0.5, ed.EntropySimplex())
    with pytest.raises(ValueError, match="no finite diameter"):
        theory.constants(problem, ed.IIDSource(np.ones(2)), np.full(2, 0.5), BOUNDS)


@pytest.mark.parametrize("seed", range(10))
def test_constants_of_random_problems_hold(seed):
    case = random_problem(seed)
    seen = theory.constants(case.problem, case.source, case.x0)
    least = 1 - 1e-12  # the gradient of a linear constraint is its own bound, up to rounding
    assert seen.loss_grad * least <= case.bounds.loss_grad
    assert (seen.constraint_jac * least <= case.bounds.constraint_jac).all()
    assert (seen.constraints * least <= case.bounds.constraints).all()


# ---- along a run ----

# A problem on the ball, with runs of the shape of the study's below: one compilation an algorithm serves all tests.
CASE = random_problem(0)


def ran(algorithm: Any, **options: Any) -> ed.Result:
    return ed.run(
        algorithm, CASE.problem, CASE.source, x0=CASE.x0, num_samples=300, seeds=4, record=10, **options
    )  # fmt: skip


@pytest.mark.slow
def test_steps_below_the_rounding_of_the_point_cross_no_lemma():
    source = ed.MarkovSource(ed.MarkovChain([[0.9, 0.1], [0.3, 0.7]]), np.array([[0.8, 0.1], [0.2, 2.7]]))
    problem = ed.Problem(lambda x, xi: 1e-9 * jnp.sum((x - xi) ** 2), lambda x, xi: 1e-9 * (x[:1] - 0.9), ed.Ball(1.0))
    checked = ed.run(ed.edpp(3), problem, source, x0=np.array([0.6, 0.6]), num_samples=300, record=2).within_theory()
    assert checked.holds
    assert "< -999%" in str(checked)


@pytest.mark.slow
def test_along_a_run_is_the_run():
    """Queue and violation of the second pass are those of `run`."""
    result = ran(ed.edpp(3.0))
    again = theory.pathwise(
        ed.edpp(3.0), CASE.problem, CASE.source, x0=CASE.x0, num_samples=300, seeds=4, record=result.samples
    )
    np.testing.assert_allclose(again.queue, np.linalg.norm(result.queue, axis=2), rtol=REPLAYED, atol=rounded(1e-14))
    np.testing.assert_allclose(again.violation, metrics.violation(result), rtol=REPLAYED, atol=REPLAYED)
    assert (again.queue <= again.queue_bound).all()
    assert (again.violation <= again.violation_bound + 1e-12).all()
    for lemma in again.slack:
        assert (lemma >= -1e-12).all()


def test_a_wrong_step_crosses_the_lemmas():
    """The check can fail: a step twice as long as it should be breaks the Bregman and step lemmas."""

    class Overshooting(ed.Ball):
        def prox(self, x, direction, proximity):
            return super().prox(x, direction, proximity / 2)

    problem = ed.Problem(CASE.problem.loss, CASE.problem.constraints, Overshooting(1.5))
    found = theory.pathwise(ed.edpp(3.0), problem, CASE.source, x0=CASE.x0, num_samples=50)
    assert found.slack.step.min() < -0.1
    assert found.slack.bregman.min() < 0


@pytest.mark.parametrize(
    "algorithm", [pytest.param(ed.rdpp(), marks=pytest.mark.slow), ed.wdpp()], ids=["RDPP", "WDPP"]
)
def test_algorithms_beyond_the_paper_have_the_lemmas_and_no_theorem(algorithm):
    result = ran(algorithm)
    again = theory.pathwise(
        algorithm, CASE.problem, CASE.source, x0=CASE.x0, num_samples=300, seeds=4, record=result.samples
    )
    np.testing.assert_allclose(again.queue, np.linalg.norm(result.queue, axis=2), rtol=REPLAYED, atol=rounded(1e-14))
    check = result.within_theory(CASE.bounds)
    assert check, str(check)
    assert {entry.statement for entry in check.entries} == {"appendix A"}
    assert "no theorem for this algorithm" in check.left_out[0][1]
    assert "theorem 5" not in str(check)


def test_the_queue_lemma_counts_every_climb_of_a_proximity_that_falls():
    """alpha is 10^4 for 40 rounds, then 1: x stays near 1 and Q grows to 40, which 2 R^2 alpha_t = 8 does not allow.

    The loss is 0, g(x) = x on [-1, 1], R = 2, and the comparator is -1: the terms of the sum are 9 - 2 Q_s.
    """

    class Falling(ed.Schedule):
        def weights(self, state, t, sizes):
            return state, ed.Weights(jnp.ones(()), jnp.where(t <= 40, 1e4, 1.0))

    problem = ed.Problem(lambda x, xi: 0 * x[0] * xi, lambda x, xi: x[:1] * xi, ed.Ball(1.0))
    algorithm = dataclasses.replace(ed.dpp(), schedule=Falling())
    found = theory.pathwise(
        algorithm, problem, ed.IIDSource(np.ones(2)), x0=np.ones(1), num_samples=41, comparator=-np.ones(1)
    )
    queues = np.arange(41)  # up to 2%: x moves a little
    inside = np.sum(9 - 2 * queues)
    assert found.queue[0, 0] ** 2 > inside + 8  # so the lemma with alpha_t alone would be crossed
    assert found.queue_bound[0, 0] ** 2 == pytest.approx(inside + 8 * 1e4, rel=0.01)
    assert found.slack.queue.min() >= 0


def test_appendix_a_is_about_drift_plus_penalty():
    with pytest.raises(ValueError, match="not drift-plus-penalty"):
        theory.pathwise(ed.pd2(1.0), PROBLEM, SOURCE, x0=np.zeros(2), num_samples=10)


# ---- a result against the theory ----


def test_edpp_stays_within_the_theory():
    check = ran(ed.edpp(3.0)).within_theory(CASE.bounds)
    assert check, str(check)
    assert check.certified
    assert not check.left_out
    stated = {(entry.quantity, entry.kind) for entry in check.entries}
    assert ("regret against x#", "expectation") in stated
    assert ("gap of x̄", "expectation") in stated
    assert ("queue", "every path") in stated
    assert str(check).startswith("all 11 bounds hold")


def test_what_is_crossed_is_named_with_its_record():
    """Claimed constants a thousand times too small give bounds that a run must cross."""
    lies = ed.Sizes(*(value / 1000 for value in CASE.bounds[:3]))
    check = ran(ed.edpp(3.0)).within_theory(lies)
    assert not check
    crossed = {entry.quantity for entry in check.entries if not entry.holds}
    assert "queue" in crossed
    assert "bounds crossed" in str(check)
    assert any(line.startswith("  X ") and "samples" in line for line in str(check).splitlines())


def test_without_bounds_the_report_says_that_constants_are_only_seen():
    check = ran(ed.edpp(3.0)).within_theory(replay=False)
    assert check
    assert "not proven bounds" in str(check)


@pytest.mark.slow
def test_adpp_and_mdpp_have_their_own_bounds():
    adpp = ran(ed.adpp()).within_theory(CASE.bounds)
    assert adpp, str(adpp)
    assert {entry.statement for entry in adpp.entries} == {"appendix A", "appendix C"}
    mdpp = ran(ed.mdpp()).within_theory(CASE.bounds)
    assert mdpp, str(mdpp)
    assert {entry.statement for entry in mdpp.entries} == {"appendix A"}
    assert mdpp.left_out[0][0] == "theorem 5"


@pytest.mark.parametrize("average", ["suffix", ("polynomial", 2)], ids=str)
def test_theorem_2_is_about_the_uniform_average(average):
    check = ran(ed.edpp(3.0), average=average).within_theory(CASE.bounds, replay=False)
    assert check, str(check)
    quantities = {entry.quantity for entry in check.entries}
    assert "regret against x#" in quantities
    assert not {"gap of x̄", "infeasibility of x̄"} & quantities
    assert "uniform" in check.left_out[0][1]


WHOLE = {
    "EDPP": lambda: ed.edpp(3.0),
    "EDPP, horizon": lambda: ed.edpp(3.0, horizon=300),
    "EDPP, auto": lambda: ed.edpp("auto"),
    "DPP": ed.dpp,
    "DPP, horizon": lambda: ed.dpp(horizon=300),
    "ADPP": ed.adpp,
    "MDPP": ed.mdpp,
    "RDPP": ed.rdpp,
    "WDPP": ed.wdpp,
    "SDPP": ed.sdpp,
    "SRDPP": ed.srdpp,
    "PD": lambda: ed.pd(300, 7.0, 7.0),
    "PD2": lambda: ed.pd2(7.0),
    "PD2, max": lambda: ed.pd2(7.0, aggregate="max"),
}


@functools.cache
def from_state_0() -> tuple[Any, ed.Result]:
    """Not stationary, so without theorems; whose run it was does not matter where nothing of it is read."""
    source = ed.MarkovSource(CASE.source.chain, CASE.source.data, start=0)
    return source, ed.run(ed.adpp(), CASE.problem, source, x0=CASE.x0, num_samples=4, record=2)


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_to_check_is_an_answer_of_its_own(name):
    """For every algorithm, with as few bounds as its options leave: what is true was checked, what was not raises."""
    source, result = from_state_0()
    check = theory.within_theory(result, WHOLE[name](), CASE.problem, source, CASE.x0, bounds=CASE.bounds, replay=False)
    assert check.left_out
    if check.checked:
        assert name == "ADPP"
        assert check.holds
        assert check
        return
    assert check.holds is None
    assert str(check).startswith("nothing was checked")
    for ask in (bool, lambda check: not check):
        with pytest.raises(ValueError, match=r"nothing was checked(.|\n)*neither true nor false"):
            ask(check)


def test_what_does_not_apply_is_said():
    result, setting = ran(ed.adpp()), (CASE.problem, CASE.source, CASE.x0)
    pd2 = theory.within_theory(result, ed.pd2(7.0), *setting, bounds=CASE.bounds)
    assert "no bound applies" in str(pd2)
    assert "PD2 is not drift-plus-penalty" in str(pd2)
    small = theory.within_theory(result, ed.adpp(diameter=1.0), *setting, bounds=CASE.bounds, replay=False)
    assert "less than the domain's 3" in small.left_out[0][1]


def test_replayed_paths_are_followed():
    paths = np.asarray(CASE.source.paths(4, 300))
    drawn = ran(ed.edpp(3.0))
    replayed = dataclasses.replace(drawn, paths=paths)
    for one, other in zip(
        drawn.within_theory(CASE.bounds).entries, replayed.within_theory(CASE.bounds).entries, strict=True
    ):
        np.testing.assert_allclose(one.value, other.value, rtol=1e-9, atol=1e-9)
    one_path = ran(ed.edpp(3.0), paths=paths[0])  # the same for every seed
    assert one_path.within_theory(CASE.bounds).entries[0].statement == "appendix A"


def test_sources_without_a_mixing_time():
    assert theory.mixing_lag(ed.IIDSource(np.ones(3)), 100) == (1, 0.0)
    tau, distance = theory.mixing_lag(SOURCE, 1000)
    assert tau == CHAIN.mixing_time(1e-3)
    assert distance <= 1e-3
    with pytest.raises(ValueError, match="stationary law"):
        theory.mixing_lag(ed.MarkovSource(CHAIN, SOURCE.data, start=1), 100)
    with pytest.raises(ValueError, match="no known mixing time"):
        theory.mixing_lag(ed.SeriesSource(np.ones(3)), 3)
    pair = ed.Zip(ed.IIDSource(np.ones(3)), SOURCE)
    assert theory.mixing_lag(pair, 1000) == (tau, distance)


# ---- the studies, small ----


@pytest.mark.slow
def test_no_bound_is_crossed_on_random_problems():
    study = bounds_study([0, 5, 10, 15], num_samples=300, seeds=4)  # all on a ball: one compilation an algorithm
    assert {row["algorithm"] for row in study["rows"]} == {"EDPP-t", "EDPP-T", "DPP-t", "DPP-T", "ADPP", "MDPP"}
    assert not [row for row in study["rows"] if row["crossed"]]
    assert "| MDPP | queue | appendix A | every path | 4 | 0 |" in bounds_table(study)


def test_slopes_of_a_small_study():
    """Theorem 2 with beta = 1/3: the mean gap is positive and falls like T^(-1/3), up to two standard errors and 0.1
    for what is left of faster terms at such short runs."""
    study = slopes_study(64_000, seeds=16, stays=(0.7, 0.94), cases=CASES[1:2])
    (curve,) = study["curves"].values()
    fit = curve["gap"]["in_T"][0]
    assert fit["sign"] == 1
    assert fit["slope"] is not None
    assert fit["error"] is not None
    assert abs(fit["slope"] + 1 / 3) <= 2 * fit["error"] + 0.1
    assert fit["late"] is not None
    assert len(study["samples"]) == 6  # from 2,000 on, each twice the one before
    assert "theorem 2" in slopes_table(study)
    assert jax.tree.all(jax.tree.map(np.isfinite, curve["gap"]["mean"]))


def test_infeasibility_tends_to_what_the_fluid_says():
    """Independent draws: within 10 % at T = 64,000, and nearer than at T = 2,000; without Slater's condition the queue
    has no equilibrium, and infeasibility falls like T^(-1/3), not T^(-1/4)."""
    study = slopes_study(64_000, seeds=16, stays=(0.0,), cases=CASES[2:3])
    T, limit = np.array(study["samples"], dtype=float), CASES[2].limit
    assert limit is not None
    (entry,) = (curve["infeasibility"] for curve in study["curves"].values())
    share = np.array(entry["mean"][0]) / limit(T, 1.0)
    assert share[0] < share[-1]
    assert 0.9 < share[-1] < 1
    assert f"{share[-1]:.2f} ± " in limits_table(study)
    early, late = limit(np.array([1e6, 8e6]), 1.0)
    assert late == pytest.approx(early / 2)


def test_the_command_writes_numbers_tables_and_a_figure(tmp_path, monkeypatch):
    """Made small: one curve, one mixing time."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(studies, "slopes_study", functools.partial(slopes_study, stays=(0.0,), cases=CASES[:1]))
    options = ["--only", "slopes", "--samples", "2560", "--seeds", "4", "--out", str(tmp_path)]
    assert main(["theory", *options]) == 0
    found = json.loads((tmp_path / "theory.json").read_text())["slopes"]
    text = (tmp_path / "tables.md").read_text()
    assert all(table in text for table in (slopes_table(found), limits_table(found)))
    assert {path.name for path in tmp_path.iterdir()} >= {"slopes.svg", "slopes.png"}
