"""EDPP with tau_mix="auto": the estimate, the order that appendix A asks of the weights, and a run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from cases import ar1
from ergodrift.methods.learned import FEWEST, Learned
from ergodrift.types import Feedback, Sizes


@jax.jit
def listen(series, beta=0.5):
    """Feed losses to the schedule, everything else being constant; V_t, alpha_t and the estimates, (n,) each."""
    schedule = Learned(beta)
    series = jnp.asarray(series)
    blank = jnp.zeros(2, series.dtype)
    sizes = Sizes(blank[0], blank[:1], blank[:1])

    def one(state, pair):
        t, value = pair
        feedback = Feedback(value, blank, blank[:1], blank[None])
        state, weights = schedule.weights(schedule.absorb(state, t, feedback), t, sizes)
        return state, weights

    state = schedule.init(ed.Ball(1.0), blank, 1)
    times = jnp.arange(1, len(series) + 1, dtype=jnp.int32)
    return jax.lax.scan(one, state, (times, series))[1]


def test_the_allan_variances_are_those_of_whole_blocks():
    y = ar1(0.7, 2 * FEWEST * 4)[:, 0]  # levels 0, 1 and 2 have enough pairs at the end

    def allan(length):
        means = y.reshape(-1, 2, length).mean(axis=2)
        return np.mean(np.square(means[:, 1] - means[:, 0])) / 2

    powers = np.array([allan(length) for length in (1, 2, 4)])
    ratio = np.max(powers * [1, 2, 4]) / (powers.sum() / 2)
    assert listen(y).tau_mix[-1] == pytest.approx((max(ratio, 1) + 1) / 2)


@pytest.mark.parametrize("tau", [1, 10, 50])
def test_the_estimate_is_of_the_right_size(tau):
    found = jax.vmap(listen)(ar1(1 - 1 / tau, 400 * tau, columns=10).T).tau_mix[:, -1]
    assert 0.7 * tau <= np.median(found) <= 2 * tau


def test_float32_blocks_keep_their_digits():
    """Plain sums of 4,096 values near 100,000 are rounded to multiples of 32, and the noise of their means is 1/64."""
    y = (1e5 + ar1(0.0, 2 * FEWEST * 4096)[:, 0]).astype(np.float32)
    narrow, wide = (float(listen(series).tau_mix[-1]) for series in (y, y.astype(float)))
    assert narrow == pytest.approx(wide, rel=0.02)


@pytest.mark.parametrize("beta", [0.2, 0.5])
def test_weights_and_their_ratio_never_decrease(beta):
    y = np.concatenate([np.zeros(200), ar1(0.99, 3000)[:, 0], ar1(0.0, 3000)[:, 0]])
    weights = listen(y, beta)
    for values in (weights.penalty, weights.proximity, weights.proximity / weights.penalty):
        assert (np.diff(values) >= -1e-9 * np.asarray(values)[1:]).all()
    assert float(weights.tau_mix[-1]) < float(jnp.max(weights.tau_mix)) / 1.5  # though the estimate itself falls


@pytest.mark.slow
def test_a_run_reports_its_estimate_and_comes_near_the_one_told_the_truth():
    chain = ed.MarkovChain([[0.98, 0.01, 0.01], [0.01, 0.98, 0.01], [0.01, 0.01, 0.98]])
    data = {"c": np.array([[2.0, 1.0], [0.0, 3.0], [1.0, -1.0]]), "e": np.array([0.5, -0.25, -0.25])}
    source = ed.MarkovSource(chain, data)
    problem = ed.Problem(
        lambda x, xi: jnp.sum((x - xi["c"]) ** 2) / 2,
        lambda x, xi: jnp.stack([x[0] + x[1] - 1 + xi["e"]]),
        ed.Ball(4.0),
    )
    reference = ed.solve_reference(problem, source)
    gaps = []
    for algorithm in (ed.edpp("auto"), ed.edpp(chain.mixing_time())):
        result = ed.run(algorithm, problem, source, x0=np.zeros(2), num_samples=10_000, seeds=8, record=1)
        gaps.append(ed.metrics.evaluate(result, problem, source, reference).lagrangian_gap.mean())
        if algorithm.name == "EDPP-auto":
            assert result.weights.tau_mix.shape == (8, 1)
            assert 20 <= np.median(result.weights.tau_mix) <= 100  # the relaxation time is 33
    assert gaps[0] <= 1.3 * gaps[1]


def test_auto_has_no_horizon():
    with pytest.raises(ValueError, match="fixes the weights beforehand"):
        ed.edpp("auto", horizon=100)
    with pytest.raises(TypeError, match="tau_mix must be a number, got 'Auto'; 'auto' estimates it"):
        ed.edpp("Auto")
