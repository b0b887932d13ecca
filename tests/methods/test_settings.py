"""The three settings of the paper, each on a problem made to break a naive method."""

import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift import metrics

HORIZONS = [4_000, 16_000, 64_000]
LINE = ed.Box(-1.0, 1.0)


def growth(values):
    """The exponent p of |value| ~ T^p over the horizons; below 1 is sublinear."""
    return np.polyfit(np.log(HORIZONS), np.log(np.maximum(np.abs(values), 1e-12)), 1)[0]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [ed.edpp(16.0), ed.adpp(), ed.dpp()], ids=lambda a: a.name)
def test_switching_losses_with_markovian_constraints(algorithm):
    """Online convex optimisation with ergodic constraints (section 2.2).

    The losses c_t x have c = 1/2, -1, 1, -1, 1, ...: whoever follows the leader plays the wrong end of the interval in
    every round and has linear regret. The constraint x <= 0.2 + noise is driven by a slow chain.
    """
    total = HORIZONS[-1]
    slopes = np.where(np.arange(total) % 2, -1.0, 1.0)
    slopes[0] = 0.5
    chain = ed.MarkovChain([[0.98, 0.02], [0.02, 0.98]])
    source = ed.Zip(ed.SeriesSource(slopes), ed.MarkovSource(chain, np.array([0.5, -0.5])))
    problem = ed.Problem(lambda x, xi: xi[0] * x[0], lambda x, xi: x - 0.2 + xi[1], LINE)

    leader = np.where(np.cumsum(slopes)[:-1] > 0, -1.0, 1.0)  # best for the past, worst for what comes next
    best = -np.abs(slopes.sum())
    assert (slopes[1:] * leader).sum() - best > 0.9 * total

    result = ed.run(algorithm, problem, source, x0=np.zeros(1), num_samples=total, seeds=8, record=HORIZONS)
    regrets = np.array([metrics.regret(at(result, k), problem, source)[:, -1].mean() for k in range(3)])
    violations = metrics.violation(result)[..., 0].mean(axis=0)
    assert regrets[-1] < 0.02 * total
    assert violations[-1] < 0.02 * total
    assert growth(np.maximum(regrets, 1.0)) < 0.9
    assert growth(np.maximum(violations, 1.0)) < 0.9


def at(result, record):
    """The result as if the run had ended at that record."""
    cut = {name: getattr(result, name)[:, : record + 1] for name in ("loss_sum", "constraint_sum", "x_mean")}
    values = {name: getattr(result, name) for name in result.__dataclass_fields__}
    return type(result)(**{**values, **cut, "samples": result.samples[: record + 1]})


def test_alternating_adversarial_constraints():
    """Everything adversarial (appendix C): the benchmark x° must be feasible for every g_t.

    The loss is -x. In odd rounds the constraint is 4 (x - 0.1), in even rounds x - 1: whoever plays the best point for
    the constraint seen last plays 1 when 4 (x - 0.1) comes, and violates it linearly.
    """
    total = HORIZONS[-1]
    odd = np.arange(total) % 2
    series = ed.SeriesSource({"slope": np.where(odd, 4.0, 1.0), "limit": np.where(odd, 0.1, 1.0)})
    problem = ed.Problem(lambda x, xi: -x[0], lambda x, xi: xi["slope"] * (x - xi["limit"]), LINE)

    last = np.concatenate([[1.0], np.where(odd, 0.1, 1.0)[:-1]])
    naive = np.where(odd, 4.0, 1.0) * (last - np.where(odd, 0.1, 1.0))
    assert naive.sum() > 1.0 * total

    benchmark = ed.solve_reference(problem, series, np.zeros(1), per_sample=True)
    np.testing.assert_allclose(benchmark.x, [0.1], atol=1e-7)
    result = ed.run(ed.adpp(), problem, series, x0=np.zeros(1), record=HORIZONS)
    regrets = metrics.regret(result, problem, series, [benchmark])[0]
    violations = metrics.violation(result)[0, :, 0]
    assert (regrets <= 0.02 * np.array(HORIZONS)).all()
    assert growth(np.maximum(regrets, 1.0)) < 0.9
    assert growth(np.maximum(violations, 1.0)) < 0.9


def test_adpp_benchmark_of_a_run_is_feasible_for_every_sample():
    data = {"slope": np.tile([4.0, 1.0], 500), "limit": np.tile([0.1, 1.0], 500)}
    problem = ed.Problem(lambda x, xi: -x[0], lambda x, xi: xi["slope"] * (x - xi["limit"]), LINE)
    series = ed.SeriesSource(data)
    result = ed.run(ed.adpp(), problem, series, x0=np.zeros(1), seeds=2)
    every, mean = (
        metrics.benchmarks(result, problem, series, per_sample=True),
        metrics.benchmarks(result, problem, series),
    )
    for seed in range(2):
        np.testing.assert_allclose(every[seed].x, [0.1], atol=1e-7)
        np.testing.assert_allclose(mean[seed].x, [0.28], atol=1e-7)  # 4 (x - 0.1) + x - 1 <= 0


@pytest.mark.slow
def test_slow_data_break_plain_descent_on_the_loss_alone():
    """Stochastic optimisation on one slow chain (section 2.3): the unconstrained optimum is far outside.

    Projected gradient descent without a queue ends at the infeasible mean; EDPP ends at the constrained optimum.
    """
    chain = ed.MarkovChain([[0.99, 0.01], [0.01, 0.99]])
    source = ed.MarkovSource(chain, {"c": np.array([2.0, 0.0]), "e": np.array([0.4, -0.4])})
    problem = ed.Problem(lambda x, xi: (x[0] - xi["c"]) ** 2, lambda x, xi: x - 0.3 + xi["e"], ed.Box(-2.0, 2.0))
    reference = ed.solve_reference(problem, source, np.zeros(1))
    np.testing.assert_allclose(reference.x, [0.3], atol=1e-7)
    result = ed.run(ed.edpp(chain.mixing_time()), problem, source, x0=np.zeros(1), num_samples=200_000, seeds=16)
    final = metrics.infeasibility(result, problem, source)[:, -1, 0]
    assert abs(final.mean()) < 4 * metrics.summarise(final).standard_error + 0.01
    unconstrained = ed.Problem(problem.loss, lambda x, xi: x * 0 - 1, problem.geometry)
    naive = ed.run(ed.edpp(chain.mixing_time()), unconstrained, source, x0=np.zeros(1), num_samples=200_000, seeds=16)
    assert metrics.infeasibility(naive, problem, source)[:, -1, 0].mean() > 0.6


def test_online_steps_from_an_iterator_match_the_compiled_run():
    """The same step, driven from Python by samples that arrive one at a time."""
    chain = ed.MarkovChain([[0.9, 0.1], [0.1, 0.9]])
    data = np.array([[1.0, 0.0], [0.0, 1.0]])
    source = ed.MarkovSource(chain, data)
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 0.25, ed.Ball(2.0))
    method = ed.edpp(4.0).bind(problem)
    state = method.init(np.zeros(2), num_constraints=1)
    for index in np.asarray(source.paths([3], 200))[0]:
        state, info = method.step(state, problem.feedback(state.x, data[index]))
        assert bool(info.updated)
    result = ed.run(ed.edpp(4.0), problem, source, x0=np.zeros(2), num_samples=200, seeds=[3], record=1)
    np.testing.assert_allclose(state.x, result.x[0, -1], rtol=1e-12)
    np.testing.assert_allclose(state.queue, result.queue[0, -1], rtol=1e-12)
