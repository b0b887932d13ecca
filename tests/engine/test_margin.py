"""Tightened constraints: by numbers, and by as much as certificates on held-out samples ask for."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

import ergodrift as ed
from ergodrift.data.expectation import expectations
from ergodrift.engine import outlook, settle
from ergodrift.engine.margin import Margin, Tightened

CHAIN = ed.MarkovChain([[0.9, 0.1], [0.2, 0.8]])
SOURCE = ed.MarkovSource(CHAIN, np.array([[1.0, 0.0], [0.0, 1.0]]))


def squares(x, xi):
    return jnp.sum((x - xi) ** 2)


def half_space(x, xi):
    return x[:1] + 0.3 * xi[:1] - 0.4


def two_limits(x, xi):
    return jnp.stack([(1 + 0.5 * xi[0]) * x[0] + 0.5 * x[1] - 1.5, x[1] + 0.2 * xi[1] - 1.8])


PROBLEM = ed.Problem(squares, half_space, ed.Ball(2.0))
DRIVEN = ed.Problem(lambda x, xi: jnp.sum((x - 2.0) ** 2) + xi[1] * x[0], two_limits, ed.Ball(5.0))
X0 = np.zeros(2)


@pytest.fixture(autouse=True)
def few_paths(monkeypatch):
    """As few simulated certificates as there may be: they take most of the time."""
    monkeypatch.setattr(outlook, "PATHS", (40, 40))


def run(**changes):
    return ed.run(**{"algorithm": ed.edpp(8.0), "problem": PROBLEM, "source": SOURCE, "x0": X0, "num_samples": 500,
                     **changes})  # fmt: skip


def autoregressive(tau, n, rng):
    """Two series of standard deviation 1 with autocorrelation exp(-k / tau)."""
    rho = np.exp(-1 / tau)
    noise = rng.normal(size=(n, 2))
    noise[1:] *= np.sqrt(1 - rho**2)
    return scipy.signal.lfilter([1], [1, -rho], noise, axis=0)


# Margins in numbers


@pytest.mark.parametrize(
    "algorithm",
    [ed.sdpp(), ed.mdpp(delta=0.1), *(pytest.param(one, marks=pytest.mark.slow) for one in (ed.edpp(8.0), ed.rdpp()))],
)
def test_a_margin_is_the_same_as_constraints_with_it_written_in(algorithm):
    written = ed.Problem(squares, lambda x, xi: half_space(x, xi) + 0.125, PROBLEM.geometry)
    one, other = run(algorithm=algorithm, margin=0.125, seeds=2), run(algorithm=algorithm, problem=written, seeds=2)
    np.testing.assert_allclose(one.solution, other.solution, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(one.queue, other.queue, rtol=1e-4, atol=1e-6)
    assert one.margin.tolist() == [0.125]
    assert other.margin is None


def test_what_is_told_is_about_the_constraints_as_given():
    result = run(margin=0.125, record=5)
    written = run(problem=ed.Problem(squares, lambda x, xi: half_space(x, xi) + 0.125, PROBLEM.geometry), record=5)
    added = 0.125 * np.asarray(result.samples)[None, :, None]
    np.testing.assert_allclose(result.constraint_sum, written.constraint_sum - added, rtol=1e-5, atol=1e-5)
    mean = ed.metrics.infeasibility(result, PROBLEM, SOURCE)[0, -1]
    np.testing.assert_allclose(mean, result.solution[0, :1] + 0.3 * 2 / 3 - 0.4, atol=1e-6)
    assert result.setting is not None
    assert result.setting.problem is PROBLEM
    certificate = result.certify(num_samples=20_000)
    np.testing.assert_allclose(certificate.estimate, mean, atol=0.02)


def test_no_margin_at_all_changes_nothing():
    np.testing.assert_array_equal(run(margin=0.0).solution, run().solution)


@pytest.mark.parametrize("algorithm", [ed.edpp(8.0), ed.rdpp()])
def test_the_limits_of_a_linear_model_are_shifted_in_its_table(algorithm):
    rng = np.random.default_rng(0)
    model = ed.LinearModel("logistic", ed.Ball(5.0))
    X, y = rng.normal(size=(2, 6, 3)), rng.choice([-1.0, 1.0], size=(2, 6))
    tables = [model.data(X, y, normals=X.mean(axis=1, keepdims=True), limits=limits) for limits in ([0.25], [0.125])]
    one, other = (
        run(algorithm=algorithm, problem=model, source=ed.MarkovSource(CHAIN, table), x0=np.zeros(3), margin=margin)
        for table, margin in zip(tables, (0.125, None), strict=True)
    )
    np.testing.assert_array_equal(one.solution, other.solution)
    assert float(one.constraint_sum[0, -1, 0] - other.constraint_sum[0, -1, 0]) == pytest.approx(-62.5, rel=1e-4)


def test_another_margin_does_not_recompile():
    traces = []

    def counted(x, xi):
        traces.append(1)
        return half_space(x, xi)

    problem = ed.Problem(squares, counted, PROBLEM.geometry)
    run(problem=problem, margin=0.1)
    before = len(traces)
    run(problem=problem, margin=0.2)
    shapes = len(traces) - before  # the check of shapes calls it, the compiled loop does not
    run(problem=problem, margin=0.3)
    assert len(traces) - before == 2 * shapes <= 4


def test_margins_may_be_swept():
    found = jax.vmap(lambda m: run(margin=m).solution[0, 0])(jnp.array([0.0, 0.1, 0.2]))
    alone = [run(margin=m).solution[0, 0] for m in (0.0, 0.1, 0.2)]
    np.testing.assert_allclose(found, alone, rtol=1e-5)


@pytest.mark.parametrize(
    ("margin", "kind", "said"),
    [
        ("large", ValueError, "margin must be one of 'auto', got 'large'"),
        (np.nan, ValueError, "margin holds nan"),
        ([0.1, 0.2], ValueError, r"each of 1 constraints, got shape \(2,\)"),
        ([[0.1]], ValueError, r"got shape \(1, 1\)"),
        ({"a": 1}, TypeError, "margin must be a number"),
    ],
)
def test_margins_that_are_none_are_refused(margin, kind, said):
    with pytest.raises(kind, match=said):
        run(margin=margin)


@pytest.mark.parametrize("wrong", [{"held_out": 0}, {"share": 1.0}, {"confidence": 0.2}])
def test_what_is_asked_for_is_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ed.Margin(**wrong)


def test_theory_is_about_the_run_that_was_made():
    assert run(margin=0.1, num_samples=200, seeds=2).within_theory()


def test_a_checkpoint_knows_its_margin(tmp_path):
    file = tmp_path / "run.npz"
    first = run(margin=0.1, checkpoint=file)
    np.testing.assert_array_equal(run(margin=0.1, checkpoint=file).solution, first.solution)
    with pytest.raises(ValueError, match="changed margin"):
        run(margin=0.2, checkpoint=file)
    with pytest.raises(ValueError, match="changed margin"):
        run(checkpoint=file)
    with pytest.raises(ValueError, match="checkpoint holds one run"):
        run(margin="auto", checkpoint=tmp_path / "other.npz")


def test_tightened_problems_keep_their_functions():
    problem = Tightened(squares, half_space, PROBLEM.geometry, PROBLEM, jnp.array([0.5]))
    xi = np.array([1.0, 0.0])
    plain, tight = PROBLEM.feedback(jnp.zeros(2), xi), problem.feedback(jnp.zeros(2), xi)
    assert float(tight.constraints[0] - plain.constraints[0]) == pytest.approx(0.5)
    assert problem.constraints is half_space


# Margins that are found


def test_what_is_missing_by_hand():
    """Ten certificates ask for room 1, 2, ..., 10; one solution has 4.5, so that 6 of them fail it."""
    alone = outlook.Outlook(np.array([[4.5]]), np.arange(1.0, 11.0)[:, None], 0.0)
    assert alone.failing() == pytest.approx([0.6])
    assert alone.missing(0.2) == pytest.approx([4.5])  # room 9, which one of ten exceeds; 8 would be two
    pair = outlook.Outlook(np.array([[4.5], [8.5]]), np.arange(1.0, 11.0)[:, None], 0.0)
    assert pair.failing() == pytest.approx([0.4])
    assert pair.missing(0.2) == pytest.approx([3.5])  # rooms 8 and 12: two of twenty fail


def test_the_solution_of_a_chain_is_certified_at_a_cost_that_is_told():
    result = run(num_samples=1_000, seeds=20, record=1, margin="auto")
    found = result.tightening
    assert found.share >= 0.95
    assert result.margin.shape == found.room.shape == (1,)
    satisfied = [
        ed.certify(PROBLEM, x, SOURCE, num_samples=1_000, seed=10_000 + k).satisfied
        for k, x in enumerate(result.solution)
    ]
    assert np.mean(satisfied) >= 0.8  # 95 % less three standard errors
    with_, without = (expectations(PROBLEM, SOURCE, r.solution, axes=1)[0].mean() for r in (result, plain()))
    assert found.loss == pytest.approx(with_, rel=1e-5)
    assert found.cost == pytest.approx(with_ - without, rel=1e-3)
    assert found.cost > 0
    assert f"after {found.runs} runs: certified on 1,000 held-out samples" in repr(result)


def plain():
    return run(num_samples=1_000, seeds=20, record=1)


def test_a_result_is_saved_with_what_its_margin_costs(tmp_path):
    result = run(num_samples=2_000, margin="auto")
    result.save(tmp_path / "result.npz")
    again = ed.load_result(tmp_path / "result.npz")
    assert repr(again) == repr(result)
    np.testing.assert_array_equal(again.margin, result.margin)
    assert again.tightening.cost == pytest.approx(result.tightening.cost)


def test_more_held_out_samples_need_less_room():
    rng = np.random.default_rng(1)
    series = ed.SeriesSource(autoregressive(5, 2_000, rng))
    room = [
        ed.run(ed.sdpp(), DRIVEN, series, x0=X0, margin=ed.Margin(held_out=n)).tightening.needed[0]
        for n in (1_000, 2_000, 20_000)
    ]
    assert room[0] > room[1] > room[2] > 0


def test_a_constraint_without_chance_is_met_exactly():
    problem = ed.Problem(squares, lambda x, xi: x[:1] - 0.25, ed.Ball(2.0))
    result = run(problem=problem, num_samples=2_000, seeds=3, margin="auto")
    assert (result.solution[:, 0] <= 0.25).all()
    assert (result.solution[:, 0] > 0.2).all()


@pytest.mark.slow
def test_simulators_and_pairs_of_sources_have_margins_too():
    class Walk(ed.Source):
        def init(self, key):
            return jnp.zeros(2)

        def sample(self, key, state):
            state = 0.8 * state + 0.6 * jax.random.normal(key, (2,), state.dtype)
            return state, state

    result = ed.run(ed.sdpp(), DRIVEN, Walk(), x0=X0, num_samples=2_000, seeds=2, margin="auto")
    assert result.tightening.share >= 0.95
    pair = ed.Zip(ed.SeriesSource(np.eye(2)[np.arange(2_000) % 2]), SOURCE)
    apart = ed.Problem(lambda x, xi: squares(x, xi[0]), lambda x, xi: half_space(x, xi[1]), ed.Ball(2.0))
    assert ed.run(ed.adpp(), apart, pair, x0=X0, margin="auto").tightening.share >= 0.95


@pytest.mark.slow
def test_what_cannot_be_had_is_said_and_the_best_is_returned():
    tight = ed.Problem(squares, lambda x, xi: jnp.stack([x[0] + xi[0] - 0.7, -x[0] - xi[0] + 0.66]), ed.Ball(2.0))
    with pytest.warns(UserWarning, match="no margin was found with which 95% of runs are certified on 500 samples"):
        result = run(problem=tight, num_samples=2_000, margin=ed.Margin(held_out=500))
    assert result.tightening.share < 0.95
    slow = ed.SeriesSource(autoregressive(1_000, 1_000, np.random.default_rng(0)))
    with pytest.warns(UserWarning, match="too short to certify anything"):
        assert ed.run(ed.sdpp(), DRIVEN, slow, x0=X0, margin="auto").margin.tolist() == [0, 0]


def test_limits_narrower_than_a_certificate_are_kept_nearer_to_x0(tmp_path):
    """|E[xi . x]| <= 0.05 with E xi = 0: at the optimum, x = (2, 2), an interval of 2,000 samples is 0.12 each way."""
    train, later = np.random.default_rng(0).normal(size=(2, 2_000, 2))

    def both_ways(x, xi):
        return jnp.stack([xi @ x - 0.05, -xi @ x - 0.05])

    problem = ed.Problem(lambda x, xi: jnp.sum((x - 2.0) ** 2), both_ways, ed.Ball(5.0))
    result = ed.run(ed.sdpp(), problem, ed.SeriesSource(train), x0=X0, margin="auto")
    found = result.tightening
    assert 0 < found.way < 1
    assert found.share >= 0.95
    assert ed.certify(problem, result.solution[0], ed.SeriesSource(later)).satisfied
    assert found.loss == pytest.approx(float(np.sum((result.solution[0] - 2) ** 2)), rel=1e-5)
    assert found.loss < 7.5  # x0 has 8
    assert f"{found.way:.0%} of the way from x0" in str(found)
    result.save(tmp_path / "result.npz")
    assert repr(ed.load_result(tmp_path / "result.npz")) == repr(result)


def test_solutions_cannot_be_looked_at_under_a_transformation():
    with pytest.raises(ValueError, match="traced by vmap or jit"):
        jax.vmap(lambda tau: run(algorithm=ed.edpp(tau), margin="auto").solution)(jnp.array([1.0, 2.0]))


def certified(tau, algorithm, times, n=5_000, seed=0):
    """The share of runs on one series each whose solution is certified on another of the same law."""
    rng, satisfied, cost = np.random.default_rng(seed), [], []
    for _ in range(times):
        train, later = (ed.SeriesSource(autoregressive(tau, n, rng)) for _ in range(2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # now and then a series looks too slow for any margin
            result = ed.run(algorithm, DRIVEN, train, x0=X0, record=1, margin="auto")
        cost.append(result.tightening.cost)
        satisfied.append(ed.certify(DRIVEN, result.solution[0], later).satisfied)
    return np.mean(satisfied), np.mean(cost)


def test_series_are_certified_on_others_of_their_law():
    share, cost = certified(5, ed.sdpp(), 10, n=1_000)
    assert share >= 0.7  # 95 % of ten, less three standard errors
    assert cost > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tau", "algorithm"), [(1, ed.edpp(10.0)), (10, ed.sdpp()), (50, ed.edpp(10.0)), (50, ed.sdpp())]
)
def test_the_share_of_certified_runs_is_as_asked(tau, algorithm):
    share, _ = certified(tau, algorithm, 200)
    assert share >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 200)


def test_where_no_margin_suffices_the_nearest_is_taken_in_any_unit():
    """None is ever certified: that with the least loss violates most. Where one is enough, the loss decides."""

    def tried(room: list[float], loss: float, unit: float = 1.0) -> settle._Try:
        units = np.array([1.0, unit])
        seen = outlook.Outlook(np.array([room]) * units, np.array([[0.2, 0.5], [0.3, 0.6]]) * units, loss)
        return settle._Try(None, np.zeros(2), seen)  # type: ignore[arg-type]

    def best(*tries: settle._Try) -> float:
        return min(tries, key=lambda one: settle._place(one, Margin(), 0.025)).seen.loss

    for unit in (1e-3, 1.0, 1e3):
        assert best(tried([-0.5, 0.7], 1.0, unit), tried([0.1, 0.7], 2.0, unit), tried([0.1, -3.0], 1.5, unit)) == 2
    assert best(tried([0.4, 0.7], 3.0), tried([0.4, 0.8], 2.5), tried([0.1, 0.7], 1.0)) == 2.5


def test_a_margin_beyond_what_can_be_seen_is_halved(monkeypatch):
    """A shortfall budget of 1: with a margin of more than that nothing is short, and nothing can be certified.

    0.9 are needed where 0.05 are missing at first: 1.1 x 0.95 is too much, half of it too little, and 0.99 enough.
    """
    margins = []

    def seen(result, *_):
        room = margins[-1] - 0.05 if margins[-1] < 1 else 1.0
        return outlook.Outlook(np.full((1, 1), room), np.full((1, 1), 0.9 if room < 1 else np.inf), 5.0 + room)

    def once(margin):
        margins.append(float(np.max(margin)))
        return run()

    monkeypatch.setattr(settle, "outlook", seen)
    found = settle.settle(once, PROBLEM, SOURCE, Margin(held_out=100))
    np.testing.assert_allclose(margins[:4], [0, 1.045, 0.5225, 0.99275], rtol=1e-6)
    assert found.margin == pytest.approx(0.99275)
    assert found.tightening is not None
    assert found.tightening.share == 1
