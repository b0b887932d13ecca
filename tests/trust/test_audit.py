"""Audits: values as fairlearn has them, intervals by hand and by simulation, bad input, logs as they grow."""

import functools
import json
from typing import ClassVar

import numpy as np
import pytest

import ergodrift as ed
from ergodrift.trust.audits import linear
from ergodrift.trust.audits.inputs import in_order
from ergodrift.trust.audits.measures import Function, by_blocks, measure, of_ratio
from ergodrift.trust.audits.metrics import RATIOS, named

pytestmark = pytest.mark.x64("an audit is NumPy's float64 in both precisions: once is enough")


def log(n=600, seed=0):
    """Labels, predictions, scores and three features of a made-up log."""
    rng = np.random.default_rng(seed)
    truth, scores = rng.integers(2, size=n), rng.random(n)
    features = {"sex": rng.choice(["f", "m"], n), "site": rng.choice([1, 2, 3], n), "year": rng.choice([2020, 2021], n)}
    return truth, (scores > 0.6).astype(int), scores, features


def slow_record(rng, n, tau, share=0.3, rates=(0.3, 0.2)):
    """(group, outcome): groups are mixed at random, and each has a slow level of its own."""
    phi = np.exp(-1 / tau)
    drawn = rng.normal(size=(2, n)) * np.sqrt(1 - phi**2)
    level = np.empty((2, n))
    level[:, 0] = rng.normal(size=2)
    for t in range(1, n):
        level[:, t] = phi * level[:, t - 1] + drawn[:, t]
    group = (rng.random(n) < share).astype(int)
    limit = np.array([-np.inf, np.inf])  # of the normal quantiles below
    limit = np.array([0.8416212, 0.5244005]) if rates == (0.3, 0.2) else limit
    return group, (level[group, np.arange(n)] > limit[group]).astype(int)


FUNCTIONS = [
    "accuracy_score", "zero_one_loss", "recall_score", "precision_score", "f1_score", "jaccard_score",
    "balanced_accuracy_score", "mean_squared_error", "mean_absolute_error", "root_mean_squared_error",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_values_are_fairlearns():
    fairlearn = pytest.importorskip("fairlearn.metrics")
    pd, sk = pytest.importorskip("pandas"), pytest.importorskip("sklearn.metrics")
    truth, said, _, features = log()
    metrics = {name: getattr(sk, name) for name in FUNCTIONS}
    metrics |= {
        "fbeta": functools.partial(sk.fbeta_score, beta=2.0),
        "macro": functools.partial(sk.f1_score, average="macro"),
    }
    metrics |= {
        name: getattr(fairlearn, name)
        for name in ("selection_rate", "false_positive_rate", "true_negative_rate", "count")
    }
    sensitive, control = (
        pd.DataFrame({k: features[k] for k in ("sex", "site")}),
        pd.Series(features["year"], name="year"),
    )
    ours = ed.audit(metrics, truth, said, sensitive_features=sensitive, control_features=control)
    theirs = fairlearn.MetricFrame(
        metrics=metrics, y_true=truth, y_pred=said, sensitive_features=sensitive, control_features=control
    )
    same = functools.partial(pd.testing.assert_frame_equal, check_dtype=False, check_names=False)
    same(ours.by_group.estimate, theirs.by_group)
    same(ours.overall.estimate, theirs.overall)
    same(ours.group_min().estimate, theirs.group_min())
    same(ours.group_max().estimate, theirs.group_max())
    for method in ("between_groups", "to_overall"):
        same(ours.difference(method).estimate, theirs.difference(method=method))
        same(ours.ratio(method).estimate, theirs.ratio(method=method))


@pytest.mark.filterwarnings("ignore")
def test_weights_and_scores_as_scikit_learn_has_them():
    sk = pytest.importorskip("sklearn.metrics")
    truth, said, scores, features = log()
    weight = np.random.default_rng(1).random(len(truth))
    metrics = {"accuracy": sk.accuracy_score, "recall": sk.recall_score, "balanced": sk.balanced_accuracy_score}
    found = ed.audit(metrics, truth, said, sensitive_features=features["sex"], sample_params={"sample_weight": weight})
    women = features["sex"] == "f"
    for name, metric in metrics.items():
        wanted = metric(truth[women], said[women], sample_weight=weight[women])
        assert found.by_group.estimate[name]["f"] == pytest.approx(wanted, rel=1e-12)
    of_scores = {name: getattr(sk, name) for name in ("roc_auc_score", "log_loss", "brier_score_loss")}
    found = ed.audit(of_scores, truth, scores, sensitive_features=features["sex"])
    by_name = ed.audit({name: name for name in of_scores}, truth, scores, sensitive_features=features["sex"])
    for name, metric in of_scores.items():
        assert found.by_group.estimate[name]["f"] == pytest.approx(metric(truth[women], scores[women]), rel=1e-12)
        assert by_name.by_group.upper[name]["f"] == pytest.approx(found.by_group.upper[name]["f"], rel=1e-9)


def test_a_ratio_is_linearised_as_worked_by_hand():
    """Rows 1 (group A, counts), 2 (B), 3 (A), 4 (A): r = 1/3, mean of b = 3/4, psi = (a - r b) / mean b."""
    group = np.array([[1.0, 0], [0, 1.0], [1.0, 0], [1.0, 0]])
    found = linear.ratio_of_means(np.array([[1.0, 0], [0, 1.0], [0, 0], [0, 0]]), group)
    assert found.value == pytest.approx([1 / 3, 1.0])
    assert found.influence[:, 0] == pytest.approx([(2 / 3) / 0.75, 0, (-1 / 3) / 0.75, (-1 / 3) / 0.75])
    assert (found.influence[:, 1] == 0).all()
    assert found.influence.mean(axis=0) == pytest.approx([0, 0])


def test_leaving_out_blocks_finds_the_influence_of_a_mean():
    """The two routes agree to rounding where a metric is a mean: block by block, whatever a group has in each."""
    truth, said, _, features = log(480)
    rows = in_order(truth, said, features["sex"], None, None)
    blocks = by_blocks(Function("accuracy", lambda y, p: float(np.mean(y == p)), rows, {}))
    exact = of_ratio("accuracy", named("accuracy", truth, said, None), rows, None)
    wanted = exact.linear.influence.reshape(120, 4, -1).mean(axis=1)
    assert blocks.linear.influence == pytest.approx(wanted, abs=1e-12)
    assert blocks.linear.value == pytest.approx(exact.linear.value, abs=1e-14)


def test_the_area_under_the_curve_has_delongs_variance():
    truth, _, scores, features = log(200)
    scores = np.round(scores, 1)  # with ties
    rows = in_order(truth, scores, features["sex"], None, None)
    found = measure("roc_auc", named("roc_auc", truth, scores, None), rows, {})
    women = features["sex"] == "f"
    high, low = scores[women & (truth == 1)], scores[women & (truth == 0)]
    wins = (high[:, None] > low).astype(float) + 0.5 * (high[:, None] == low)
    variance = wins.mean(axis=1).var() / len(high) + wins.mean(axis=0).var() / len(low)
    assert found.linear.value[0] == pytest.approx(wins.mean())
    assert found.independent[0] == pytest.approx(variance)


def test_rows_are_taken_in_the_order_of_time():
    rng = np.random.default_rng(3)
    group, outcome = slow_record(rng, 3000, 20)
    plain = ed.audit("selection_rate", outcome, outcome, sensitive_features=group)
    mixed = rng.permutation(3000)
    times = np.datetime64("2024-01-01") + np.arange(3000)
    for when in (times, times.astype(str), np.arange(3000.0)):
        again = ed.audit(
            "selection_rate", outcome[mixed], outcome[mixed], sensitive_features=group[mixed], time=when[mixed]
        )
        assert again.by_group.upper == plain.by_group.upper
        assert not [each for each in again.warnings if "share their time" in each]
    lost = ed.audit("selection_rate", outcome[mixed], outcome[mixed], sensitive_features=group[mixed])
    assert np.diff(lost.overall.ends[1:], axis=0).max() < np.diff(plain.overall.ends[1:], axis=0).min() / 2
    tied = ed.audit("selection_rate", outcome, outcome, sensitive_features=group, time=np.arange(3000) // 3)
    assert "3,000 of 3,000 rows share their time" in tied.warnings[0]


@pytest.mark.parametrize("method", ["batch", "overlapping"])
def test_intervals_cover_where_resampled_rows_do_not(method):
    """60 records of relaxation time 20: differences and ratios. Of 5 % misses, 3 standard errors more are allowed."""
    covered, naive = [], []
    for seed in range(60):
        group, outcome = slow_record(np.random.default_rng(seed), 4000, 20)
        found = ed.audit("selection_rate", outcome, outcome, sensitive_features=group, method=method)
        gap, ratio = found.difference(), found.ratio()
        covered.append([gap.lower <= 0.1 <= gap.upper, ratio.lower <= 2 / 3 <= ratio.upper])
        rates = [outcome[group == g].mean() for g in (0, 1)]
        error = np.sqrt(sum(r * (1 - r) / np.sum(group == g) for g, r in enumerate(rates)))
        naive.append(abs(rates[1] - rates[0] - 0.1) <= 1.96 * error)
    assert (np.mean(covered, axis=0) >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 60)).all()
    assert np.mean(naive) < 0.75


def test_gaps_follow_from_pairs_and_verdicts_from_gaps():
    truth, said, _, features = log(3000)
    said = np.where(features["site"] == 3, 1, said)
    said[::7] = 0
    found = ed.audit("selection_rate", truth, said, sensitive_features=features["site"])
    gap = found.difference()
    values = found.by_group.estimate
    assert gap.estimate == pytest.approx(max(values.values()) - min(values.values()))
    rows = in_order(truth, said, features["site"], None, None)
    measured = measure("s", named("selection_rate", truth, said, None), rows, {})
    pairs = np.array([[1, 1, 0], [-1, 0, 1], [0, -1, -1], [0, 0, 0]], dtype=float)
    each = linear.contrasts(measured.linear, pairs, 0.05 / 3)
    assert gap.lower == pytest.approx(np.maximum(each.lower, -each.upper).max())
    assert gap.upper == pytest.approx(np.maximum(each.upper, -each.lower).max())
    assert gap.at_most(gap.upper).verdict == "satisfied"
    assert gap.at_most(gap.lower - 1e-6).verdict == "violated"
    middle = gap.at_most(gap.estimate + (gap.upper - gap.estimate) / 2)
    assert middle.verdict == "undecided"
    assert middle.more_rows == pytest.approx(3 * 3000, abs=2)  # half the distance takes four times the rows
    assert gap.at_most(gap.upper).more_rows == 0
    assert found.ratio().at_least(0.01).satisfied
    assert found.ratio().at_least(0.99).verdict == "violated"
    assert "more rows would decide" in str(middle)


def test_groups_that_say_nothing_have_reasons_and_stop_no_others():
    rng = np.random.default_rng(5)
    n = 4000
    group = np.where(rng.random(n) < 0.5, "a", "b").astype(object)
    group[10], group[100:130], group[200:400:5] = "alone", "bunch", "negative"
    truth, said = rng.integers(2, size=n), rng.integers(2, size=n)
    truth[group == "negative"] = 0
    said[group == "bunch"] = 1
    found = ed.audit({"rate": "selection_rate", "recall": "recall"}, truth, said, sensitive_features=group)
    assert np.isnan(found.by_group.estimate["recall"]["negative"])
    assert "nothing in its denominator" in found.by_group.reason["recall"]["negative"]
    assert "one value" in found.by_group.reason["rate"]["bunch"]
    assert found.by_group.reason["rate"]["alone"]
    assert (found.by_group.lower["rate"]["alone"], found.by_group.upper["rate"]["alone"]) == (0, 1)
    assert found.by_group.upper["rate"]["a"] < 0.6
    assert found.difference().at_most(0.05).verdict["rate"] == "undecided"
    assert "alone" in found.difference().reason["rate"] or "bunch" in found.difference().reason["rate"]
    json.dumps(found.to_dict(), allow_nan=False)


def test_one_group_constant_predictions_and_short_logs():
    truth, said, _, _ = log(300)
    one = ed.audit("accuracy", truth, said, sensitive_features=np.zeros(300))
    assert (one.difference().estimate, one.ratio().estimate, one.difference().reason) == (0.0, 1.0, "one group only")
    flat = ed.audit("selection_rate", truth, np.ones(300, int), sensitive_features=truth)
    assert (flat.difference().estimate, flat.difference().lower, flat.difference().upper) == (0.0, 0.0, 1.0)
    short = ed.audit("accuracy", truth[:8], said[:8], sensitive_features=["a", "b"] * 4)
    assert "too few" in short.overall.reason
    assert str(short)


def test_labels_of_any_kind():
    truth, said, _, features = log()
    words = np.array(["no", "yes"])
    numbers = ed.audit({"rate": "selection_rate", "recall": "recall"}, truth, said, sensitive_features=features["sex"])
    text = ed.audit(
        {"rate": "selection_rate", "recall": "recall"}, words[truth], words[said], sensitive_features=features["sex"],
        pos_label="yes",
    )  # fmt: skip
    assert text.by_group.upper == numbers.by_group.upper
    with pytest.raises(ValueError, match=r"needs pos_label: y_true and y_pred hold 'no', 'yes'"):
        ed.audit("recall", words[truth], words[said], sensitive_features=features["sex"])
    with pytest.raises(ValueError, match="'maybe' is in neither"):
        ed.audit("recall", words[truth], words[said], sensitive_features=features["sex"], pos_label="maybe")


def test_a_ratio_of_your_own():
    truth, said, _, features = log()
    cost = ed.RatioOfMeans(lambda y, p: 5.0 * (y > p) + (p > y), lambda y, p: 1.0 + y)
    found = ed.audit({"cost": cost}, truth, said, sensitive_features=features["sex"])
    men = features["sex"] == "m"
    wanted = np.sum(5.0 * (truth > said)[men] + (said > truth)[men]) / np.sum(1.0 + truth[men])
    assert found.by_group.estimate["cost"]["m"] == pytest.approx(wanted)
    assert found.by_group.lower["cost"]["m"] < wanted < found.by_group.upper["cost"]["m"]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"y_pred": np.zeros(99)}, "y_pred has 99 rows, y_true has 600"),
        ({"sensitive_features": np.zeros(5)}, "5 rows, y_true has 600"),
        ({"sensitive_features": None}, "sensitive_features must be given"),
        ({"y_true": np.full(600, np.nan)}, "y_true has 600 missing values, the first in row 0"),
        ({"sensitive_features": np.array(["a", None] * 300, dtype=object)}, "300 missing values, the first in row 1"),
        ({"time": ["soon"] * 600}, "time must be numbers or dates, got text such as 'soon'"),
        ({"time": np.zeros(3)}, "time has 3 rows"),
        ({"metrics": "acuracy"}, "names among accuracy"),
        ({"metrics": {}}, "must not be empty"),
        ({"metrics": {"a": 3}}, "must be a function"),
        ({"method": "normal"}, "method must be one of"),
        ({"confidence": 95}, "confidence must be"),
        ({"sample_params": {"sample_weight": -np.ones(600)}}, "nowhere negative"),
        ({"metrics": lambda y, p: np.ones(3)}, "must give one number"),
        ({"metrics": lambda y, p: 1 / 0}, "has no value in any group: ZeroDivisionError"),
    ],
)
def test_bad_input_is_named(change, match):
    truth, said, _, features = log()
    given = {"metrics": "accuracy", "y_true": truth, "y_pred": said, "sensitive_features": features["sex"], **change}
    with pytest.raises((TypeError, ValueError), match=match):
        ed.audit(given.pop("metrics"), given.pop("y_true"), given.pop("y_pred"), **given)


def test_every_name_has_a_value():
    truth, said, scores, features = log()
    for name in [*RATIOS, "roc_auc", "mae"]:
        values = scores if name in ("log_loss", "brier_score_loss", "roc_auc") else said
        found = ed.audit(name, truth, values, sensitive_features=features["sex"])
        assert found.by_group.lower["f"] < found.by_group.estimate["f"] < found.by_group.upper["f"]


class TestMonitor:
    metrics: ClassVar = {"rate": "selection_rate", "accuracy": "accuracy"}

    def rows(self, n=6000):
        rng = np.random.default_rng(7)
        group = rng.choice(["a", "b", "c"], n, p=[0.6, 0.3, 0.1])
        group[: n // 2][group[: n // 2] == "c"] = "a"  # c turns up late
        return rng.integers(2, size=n), (rng.random(n) < np.where(group == "b", 0.6, 0.3)).astype(int), group

    def test_how_rows_are_cut_makes_no_difference(self):
        truth, said, group = self.rows()
        whole, cut = (ed.AuditMonitor(self.metrics, tuned_for=4000) for _ in range(2))
        once = whole.update(truth, said, group)
        for rows in np.split(np.arange(6000), [1, 7, 511, 513, 2000, 4097]):
            cut.update(truth[rows], said[rows], group[rows])
        found = cut.audit()
        assert str(found) == str(once)
        batch = ed.audit(self.metrics, truth, said, sensitive_features=group)
        for name in self.metrics:
            for key, value in batch.by_group.estimate[name].items():
                assert found.by_group.estimate[name][key] == pytest.approx(value, rel=1e-12)
        verdict = found.difference().at_most(0.1)
        assert verdict.verdict["rate"] == "violated"
        assert found.by_group.lower["rate"]["b"] > 0.5

    def test_it_goes_on_after_a_restart(self, tmp_path):
        truth, said, group = self.rows()
        before = ed.AuditMonitor(self.metrics, tuned_for=4000)
        before.update(truth[:2500], said[:2500], group[:2500])
        before.save(tmp_path / "audit.npz")
        after = ed.AuditMonitor.load(tmp_path / "audit.npz", self.metrics)
        both = [each.update(truth[2500:], said[2500:], group[2500:]) for each in (before, after)]
        assert str(both[0]) == str(both[1])
        size = (tmp_path / "audit.npz").stat().st_size
        before.save(tmp_path / "later.npz")
        assert (tmp_path / "later.npz").stat().st_size < 2 * size
        with pytest.raises(ValueError, match="had metrics"):
            ed.AuditMonitor.load(tmp_path / "audit.npz", {"rate": "selection_rate"})
        with pytest.raises(ValueError, match="other metrics"):
            ed.AuditMonitor.load(tmp_path / "audit.npz", {"rate": "selection_rate", "accuracy": "error_rate"})

    def test_no_look_misses_on_slow_records(self):
        """40 records; at most 5 % may miss at any look: 3 standard errors more are 6 of them."""
        missed, given = 0, 0
        for seed in range(40):
            group, outcome = slow_record(np.random.default_rng(100 + seed), 6000, 5)
            monitor = ed.AuditMonitor("selection_rate", tuned_for=4000)
            gap = monitor.update(outcome, outcome, group).difference()
            looks = monitor._looks
            low, high = looks.low[:, 0, 0, 0, 1], looks.high[:, 0, 0, 0, 1]
            truth = 0.1 if next(iter(monitor._keys)) == (1,) else -0.1
            missed += bool((low > truth).any() or (high < truth).any())
            given += gap.upper < 1
        assert missed <= 6
        assert given >= 30

    def test_bad_input_leaves_it_as_it_was(self):
        truth, said, group = self.rows(100)
        monitor = ed.AuditMonitor(self.metrics)
        with pytest.raises(ValueError, match="no audit yet"):
            monitor.audit()
        monitor.update(truth, said, group)
        before = str(monitor.audit())
        with pytest.raises(ValueError, match="y_pred has 3 rows"):
            monitor.update(truth, said[:3], group)
        with pytest.raises(ValueError, match="those before were"):
            monitor.update(truth, said, {"sex": group})
        assert str(monitor.audit()) == before
        with pytest.raises(ValueError, match="no ratio of means that is known"):
            ed.AuditMonitor(lambda y, p: 0.5)
        assert "nothing is said before" in monitor.audit().by_group.reason["rate"]["a"]
