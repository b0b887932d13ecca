"""What `auto` chooses, from states, memory, mixing and the data of a series, and how it says why."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from cases import ar1
from ergodrift.advice.pilot import Samples, pilot
from ergodrift.advice.settings import MOST, NOTCHES, Setting, best_setting
from ergodrift.methods.scalefree import Distances

CHAIN = ed.MarkovChain(0.7 * np.eye(3) + 0.1)
PROBLEM = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 0.5 + xi[:1], ed.Ball(1.0))
MARKOV = ed.MarkovSource(CHAIN, np.arange(3.0)[:, None])
SHORT = ed.SeriesSource(np.arange(9.0)[:, None])


def series(lam: float, samples: int) -> ed.SeriesSource:
    return ed.SeriesSource(ar1(lam, samples))


X0 = np.zeros(1)


@pytest.mark.parametrize(
    ("source", "options", "name", "word"),
    [
        (MARKOV, {}, "SRDPP", "3 states come back"),
        (MARKOV, {"num_samples": 59}, "SDPP", "3 states come back 20 times in 59 samples, too rarely to remember"),
        (MARKOV, {"num_samples": 60}, "SRDPP", "3 states"),
        (ed.IIDSource(np.ones((4000, 1))), {}, "SDPP", "4,000 states come back 5 times in 20,000 samples"),
        (ed.IIDSource(np.ones((4000, 1))), {"num_samples": 80_000}, "SRDPP", "4,000 states come back"),
        (ed.IIDSource(np.ones((200_000, 1))), {"num_samples": 10**8}, "SDPP", "200,000 states are too many"),
        (ed.IIDSource(np.ones((900, 1))), {"x0": X0, "seeds": 100_000}, "SDPP", "GiB)"),
        (SHORT, {"x0": X0}, "SDPP", "9 of them are too few"),
        (series(0.0, 2000), {}, "SDPP", "with x0=... it would also be told"),
        (series(0.0, 2000), {"x0": X0}, "SDPP", "no dependence that counts; a rough solution from 2,000 of them"),
        (series(0.98, 4000), {"x0": X0}, "SDPP", "their long-run variance is up to"),
        (ed.SeriesSource(np.ones((600, 1))), {"x0": X0}, "SDPP", "no dependence that counts"),
        (ed.IIDSource(np.ones((900, 1))), {"x0": X0, "num_samples": 800}, "SDPP", "are independent"),
    ],
)
def test_the_choice_and_its_reason(source, options, name, word):
    options = {key: value.astype(np.result_type(float)) if key == "x0" else value for key, value in options.items()}
    chosen = ed.auto(PROBLEM, source, **options)
    assert chosen.name == name
    assert chosen.reason.startswith(f"{name}, because ")
    assert word in chosen.reason
    assert chosen.reason.endswith(".")


def test_losses_and_constraints_that_come_apart():
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi[0]) ** 2), lambda x, xi: x - 0.5 + xi[1], ed.Ball(1.0))
    source = ed.Zip(series(0.0, 2000), ed.MarkovSource(CHAIN, np.array([[0.1], [0.0], [-0.1]])))
    chosen = ed.auto(problem, source, X0)
    assert chosen.reason.startswith("SDPP, because losses and constraints come apart")
    assert np.all(np.abs(ed.run(chosen, problem, source, x0=X0).solution) < 0.3)


def long_run(lam: float, samples: int = 20_000, every: int = 1) -> float:
    """Of the squares' gradients 2 (x - xi) along an AR(1) series, in units of their variance, as the pilot sees it."""
    source = series(lam, samples)
    seen = Samples.of(source, source.path_of(source.paths([0], samples), 0), every)
    return float(pilot(PROBLEM, seen, X0, 1).scales.long_run) / 4


@pytest.mark.x64("its digits are those of float64")
def test_the_long_run_variance_of_an_autoregression():
    """(1 + lam) / (1 - lam) times the variance 1, rather below; 0 stands for samples that are independent."""
    assert long_run(0.0) == 0
    for lam in (0.5, 0.9, 0.98):
        truth = (1 + lam) / (1 - lam)
        assert 0.4 * truth < long_run(lam) < 1.2 * truth


def test_a_series_is_asked_through_the_functions():
    """The slow column is one that neither the loss nor the constraint reads."""
    data = {"read": ar1(0.0, 3000), "ignored": ar1(0.98, 3000)}
    problem = ed.Problem(
        lambda x, xi: jnp.sum((x - xi["read"]) ** 2), lambda x, xi: x[:1] - 0.5 + xi["read"][:1], ed.Ball(1.0)
    )
    assert "no dependence" in ed.auto(problem, ed.SeriesSource(data), X0).reason


def test_a_series_that_is_looked_at_in_part_shows_the_same_dependence():
    """Every fourth of 200,000 samples, each standing for four: 1 + 4 * 2 lam^4 / (1 - lam^4), which is 0.855 of all.

    Blocks are about 256 long, so that 800 of them tell a variance to 5 %.
    """
    share = (1 + 8 * 0.9**4 / (1 - 0.9**4)) / (1.9 / 0.1)
    assert long_run(0.9, 200_000, every=4) == pytest.approx(share * long_run(0.9, 200_000), rel=2 * 0.05)


@pytest.mark.slow
@pytest.mark.x64("a run of 3,000 rounds makes much of a last digit")
def test_units_change_neither_the_choice_nor_the_run():
    """Loss, constraint and point in other units: the same algorithm, and the same run in those units."""
    data = ar1(0.9, 3000)

    def solved(loss: float, constraint: float, unit: float) -> np.ndarray:
        problem = ed.Problem(
            lambda x, xi: loss * jnp.sum((x / unit - xi) ** 2),
            lambda x, xi: constraint * (x[:1] / unit + 0.2 + xi[:1]),
            ed.Ball(unit),
        )
        source = ed.SeriesSource(data)
        return np.asarray(ed.run(ed.auto(problem, source, X0), problem, source, x0=X0).solution) / unit

    plain = solved(1.0, 1.0, 1.0)
    for units in [(1e6, 1.0, 1.0), (1.0, 1e-5, 1.0), (1.0, 1.0, 1e3), (1e-4, 1e4, 1e-3)]:
        np.testing.assert_allclose(solved(*units), plain, rtol=1e-8)


def test_no_method_is_recommended_that_loses_to_the_start():
    """x0 is the optimum: whatever moves loses, so that steps are made shorter, and that is said."""
    data = np.random.default_rng(0).standard_t(3, size=(4000, 1))
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 1, ed.Ball(100.0))
    source, x0 = ed.SeriesSource(data), data.mean(axis=0)
    chosen = ed.auto(problem, source, x0)
    end = np.asarray(ed.run(chosen, problem, source, x0=x0).solution[0])
    assert np.mean((end - data) ** 2) <= np.mean((x0 - data) ** 2) * 1.002


@pytest.mark.parametrize(
    ("domain", "count"), [(ed.Ball(1e6), 5000), (ed.Box(-1e6, 1e6), 400)], ids=["ball", "box, few samples"]
)
def test_loose_bounds_do_no_harm(domain, count):
    """The way to go is a millionth of the domain: with few samples x0 is not lost, with more the optimum is near."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(count, 3))
    y = X @ [1.0, -1.0, 0.5] + 0.1 * rng.normal(size=count)
    problem = ed.Problem(lambda x, xi: (xi[0] @ x - xi[1]) ** 2, lambda x, xi: x[:1] - 9, domain)
    source, x0 = ed.SeriesSource((X, y)), np.zeros(3)
    x = np.asarray(ed.run(ed.auto(problem, source, x0), problem, source, x0=x0).solution[0])
    assert np.mean((X @ x - y) ** 2) < (0.02 if count == 5000 else np.mean(y**2))


def test_a_fixed_coordinate_is_no_obstacle():
    problem = ed.Problem(
        lambda x, xi: jnp.sum((x - xi) ** 2),
        lambda x, xi: x[:1] - 0.5,
        ed.Box(np.array([-1.0, 0.25]), np.array([1.0, 0.25])),
    )
    source, x0 = ed.SeriesSource(np.random.default_rng(0).normal(size=(1000, 2))), np.array([0.0, 0.25])
    assert ed.run(ed.auto(problem, source, x0), problem, source, x0=x0).solution[0, 1] == 0.25


def test_a_loss_that_is_not_finite_is_named_before_the_run():
    problem = ed.Problem(lambda x, xi: -jnp.sum(jnp.log(x)) * xi[0], lambda x, xi: x[:1] - 0.5, ed.Box(0.0, 1.0))
    with pytest.raises(ValueError, match="the loss, a constraint or a gradient is not finite"):
        ed.auto(problem, ed.SeriesSource(np.ones((1000, 1))), np.zeros(2))


@pytest.mark.slow
def test_a_linear_model_needs_less_memory_than_its_planes():
    """30 states with d = 300: planes of 100,000 seeds would take 14 GiB, a number a row and one more 50 MB."""
    rng = np.random.default_rng(0)
    model = ed.LinearModel("squared", ed.Ball(1.0))
    data = model.data(list(rng.normal(size=(30, 1, 300))), normals=rng.normal(size=(30, 1, 300)), limits=[1.0])
    source, x0 = ed.IIDSource(data), np.zeros(300)
    plain = ed.Problem(model.loss, model.constraints, model.geometry)
    assert ed.auto(model, source, x0, seeds=100_000).name == "SRDPP"
    assert "GiB" in ed.auto(plain, source, x0, seeds=100_000, num_samples=600).reason


def test_what_is_refused():
    with pytest.raises(TypeError, match="source must be of type Source, got list"):
        ed.auto(PROBLEM, [])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seeds"):
        ed.auto(PROBLEM, MARKOV, seeds=0)
    with pytest.raises(ValueError, match="x0 lies outside"):
        ed.auto(PROBLEM, MARKOV, x0=np.full(1, 3.0))
    with pytest.raises(TypeError, match="write num_samples=500"):
        ed.auto(PROBLEM, MARKOV, 500)


@pytest.mark.slow
def test_memory_is_tried_beside_what_forgets():
    """A state that stays for 100 samples has many samples and few visits; one that does not has as many as samples."""
    data = np.random.default_rng(0).normal(size=(30, 1)) + 0.5
    problem = ed.Problem(PROBLEM.loss, lambda x, xi: x[:1] - 0.9, PROBLEM.geometry)
    quick, slow = (ed.MarkovSource(ed.MarkovChain(stay * np.eye(30) + (1 - stay) / 30), data) for stay in (0.0, 0.99))
    names = []
    for source in (quick, slow):
        chosen = ed.auto(problem, source, X0, 1500)
        names.append(chosen.name)
        assert "on 16 paths of 1,500 samples" in chosen.reason
        result = ed.run(chosen, problem, source, x0=X0, num_samples=1500, seeds=8, record=1)
        excess = (np.concatenate([np.asarray(result.solution), X0[None]]) - data.mean()) ** 2
        assert excess[:-1].mean() < 0.5 * excess[-1]
    assert names[0] == "SRDPP"


@pytest.mark.slow
def test_storms_ask_for_no_caution():
    """Shares whose returns come in storms: a gradient's long-run variance is large, and yet nothing leads astray."""
    rng = np.random.default_rng(0)
    returns = np.exp(ar1(0.99, 6000)) * (rng.normal(size=(6000, 4)) * [1.0, 2.0, 3.0, 4.0])
    problem = ed.Problem(lambda x, xi: (x @ xi) ** 2, lambda x, xi: x[:1] - 0.9, ed.Simplex())
    source, x0 = ed.SeriesSource(returns), np.full(4, 0.25)
    chosen = ed.auto(problem, source, x0)
    assert "their long-run variance is up to" in chosen.reason
    end = ed.run(chosen, problem, source, x0=x0).solution[0]
    best = np.linalg.inv(np.cov(returns.T)).sum(axis=0)
    excess = [np.mean((returns @ x) ** 2) for x in (end, x0, best / best.sum())]
    assert excess[0] - excess[2] < 0.05 * (excess[1] - excess[2])


@pytest.mark.slow
def test_a_constraint_that_is_seldom_heard_is_kept_all_the_same():
    """One sample in 200 says anything of it, in numbers that are 200 times as large: x = 0.3 in each of 5 directions.

    By f + 2 l.[g]_+, with l = 0.7 from the gradients there; a fifth of x0's is what noise leaves.
    """
    rng = np.random.default_rng(2)
    data = {"d": rng.normal(size=(10_000, 5)) + 1, "hit": (rng.random(10_000) < 0.005) / 0.005}
    problem = ed.Problem(
        lambda x, xi: 0.5 * jnp.sum(x**2) - xi["d"] @ x,
        lambda x, xi: xi["hit"] * (jnp.sum(x, keepdims=True) - 1.5),
        ed.Box(-5.0, 5.0),
    )
    source, x0 = ed.SeriesSource(data), np.zeros(5)
    x = np.asarray(ed.run(ed.auto(problem, source, x0), problem, source, x0=x0).solution[0])

    def merit(x: np.ndarray) -> float:
        return 0.5 * x @ x - data["d"].mean(axis=0) @ x + 1.4 * max(data["hit"].mean() * (x.sum() - 1.5), 0)

    best = merit(np.full(5, 0.3))
    assert merit(x) - best < 0.2 * (merit(x0) - best)


@pytest.mark.slow
def test_a_large_level_beside_small_features_is_no_obstacle():
    """A band over a series around 350: intercept and lag are nearly the same feature, and one step for all is best."""
    level = 350 + np.cumsum(np.random.default_rng(0).normal(size=2300)) * 0.3
    data = {"a": np.column_stack([np.ones(2200), level[:-100]]), "y": level[100:]}
    problem = ed.Problem(
        lambda x, xi: xi["a"] @ x,
        lambda x, xi: jnp.maximum(xi["y"] - xi["a"] @ x, 0)[None] - 0.5,
        ed.Box(np.array([-50.0, -2.0]), np.array([50.0, 2.0])),
    )
    source, x0 = ed.SeriesSource(data), np.zeros(2)
    x = np.asarray(ed.run(ed.auto(problem, source, x0), problem, source, x0=x0).solution[0])
    over = data["a"] @ x - data["y"]
    assert np.maximum(-over, 0).mean() < 1.0
    assert over.mean() < 6  # the spread over 100 rows is 3


def regression(sizes: np.ndarray, rows: int = 2000) -> tuple[ed.Problem, ed.SeriesSource, np.ndarray]:
    """Least squares with features of these sizes on a large ball, a limit on one sum of x; and what x is best."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(rows, 4))
    y = z @ [1.0, -1.0, 0.5, 2.0] + 0.5 * rng.normal(size=rows)
    limit = np.array([1.0, 0.0, 0.0, 1.0])  # on the sum of the first and the last coefficient, where sizes are 1
    problem = ed.Problem(
        lambda x, xi: 0.5 * (xi["z"] @ x - xi["y"]) ** 2, lambda x, xi: (xi["c"] @ x - 1)[None], ed.Ball(1e4)
    )
    source = ed.SeriesSource({"z": z * sizes, "y": y, "c": np.tile(limit * sizes, (rows, 1))})
    h = np.linalg.inv(z.T @ z)
    free = h @ z.T @ y
    return problem, source, (free - h @ limit * (limit @ free - 1) / (limit @ h @ limit)) / sizes


def test_features_of_many_sizes_on_a_ball_get_steps_of_their_own():
    sizes = np.array([100.0, 1.0, 0.03, 0.001])
    problem, source, best = regression(sizes)
    chosen = ed.auto(problem, source, np.zeros(4))
    assert "each coordinate its own" in chosen.reason
    x = np.asarray(ed.run(chosen, problem, source, x0=np.zeros(4)).solution[0])
    # One pass of 2,000 noisy rows, coefficients of 0 to 1; with one step for all, the smallest feature's stays at 0.
    np.testing.assert_allclose(x * sizes, best * sizes, atol=0.05)


def test_features_of_one_size_on_a_ball_are_left_together():
    problem, source, _ = regression(np.ones(4))
    assert "each coordinate its own" not in ed.auto(problem, source, np.zeros(4)).reason


def test_settings_are_notches_around_the_defaults():
    source = series(0.9, 3000)
    seen = Samples.of(source, source.path_of(source.paths([0], 3000), 0))
    found = pilot(PROBLEM, seen, X0, 1)
    algorithms = [ed.sdpp(), Setting().of(found), Setting(1, 2, -1, 0, 1, 1).of(found, part=0.5)]
    assert [one.average for one in algorithms] == [("polynomial", 1), ("polynomial", 1), ("polynomial", 0)]
    plain, same, other = (one.schedule for one in algorithms)
    assert isinstance(plain, Distances)
    assert isinstance(same, Distances)
    assert isinstance(other, Distances)
    assert (same.stride, same.dual_stride) == (plain.stride, plain.dual_stride)
    np.testing.assert_allclose(other.stride, 9 * plain.stride)
    np.testing.assert_allclose(other.dual_stride, plain.dual_stride / 3)
    assert same.scales is not None
    assert other.scales is not None
    np.testing.assert_allclose(other.scales.long_run, 0.1 * same.scales.long_run)
    np.testing.assert_allclose(other.scales.distance, 0.5 * same.scales.distance)
    assert np.all(np.asarray(other.scales.multipliers) == 0)


@pytest.mark.parametrize("target", [Setting(2, -3, 4, 1, 0, 1), Setting(0, 3, -2, 0, 1, 0)])
def test_the_search_finds_what_is_best(target):
    tried: list[Setting] = []

    def worth(setting: Setting) -> float:
        tried.append(setting)
        return float(sum((a - b) ** 2 for a, b in zip(setting, target, strict=True)))

    assert best_setting(worth, dependent=True, factors=True) == target
    assert len(tried) == len(set(tried)) <= MOST
    assert all(low <= getattr(one, name) <= high for one in tried for name, (low, high) in NOTCHES.items())
    assert best_setting(worth, dependent=False, factors=False) == target._replace(caution=0, even=0)
