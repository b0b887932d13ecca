"""Simulators as sources, against closed forms and against a `MarkovSource` on the same states."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift.trust.intervals import batch_errors


def autoregression(phi, mean=0.0):
    def step(key, level):
        level = mean + phi * (level - mean) + jax.random.normal(key) * np.sqrt(1 - phi**2)
        return level, level

    return step


def two_states(key, state):
    """Left with probability 1/4 from state 0 and 1/8 from state 1, by three random bits: the same in any precision."""
    bits = jax.random.randint(key, (), 0, 8, dtype=jnp.int32)
    moves = jnp.where(state == 0, bits < 2, bits < 1)
    return jnp.where(moves, 1 - state, state).astype(jnp.int32), {"state": state.astype(float)}


def slotted_queue(key, waiting):
    """One slot of a single server: arrivals with probability 1/4, a service finished with probability 3/8."""
    arrival, service = jax.random.randint(key, (2,), 0, 8, dtype=jnp.int32)
    up, down = (arrival < 2) & (service >= 3), (arrival >= 2) & (service < 3)
    waiting = jnp.maximum(waiting + up.astype(jnp.int32) - down.astype(jnp.int32), 0)
    return waiting, waiting


class Inventory:
    """An environment as people write them: reset, step(action), observation and cost."""

    def reset(self, key):
        return {"stock": jnp.int32(0), "backlog": jnp.zeros(2, jnp.int32)}

    def step(self, key, state, order):
        demand = jax.random.randint(key, (), 0, 5, dtype=jnp.int32)
        left = state["stock"] + order - demand
        state = {"stock": jnp.maximum(left, 0), "backlog": jnp.stack([jnp.maximum(-left, 0), state["backlog"][0]])}
        return state, {"demand": demand.astype(float), "left": left.astype(float)}

    def under_policy(self, key, state):
        """Order up to 3."""
        return self.step(key, state, 3 - state["stock"])


def within(values, truth, errors=4.5):
    """Whether the mean of a dependent series is the truth, in its standard errors."""
    values = np.asarray(values, dtype=float)
    return abs(values.mean() - truth) <= errors * batch_errors(values[:, None], overlap=False)[0][0]


def test_an_autoregression_has_its_mean_variance_and_autocorrelation():
    source = ed.SimulatorSource(autoregression(0.8, mean=2.0), start=2.0)
    path = np.asarray(source.paths([3], 40_000))[0].astype(float)
    assert within(path, 2.0)
    assert within((path - 2) ** 2, 1.0)
    assert within((path[1:] - 2) * (path[:-1] - 2), 0.8)
    law = source.loss_law
    assert law.weights.shape == (2**14,)
    assert within(law.points, 2.0)


def test_a_queue_at_slots_has_its_geometric_law():
    """Up with 1/4 x 5/8, down with 3/4 x 3/8: n waiting with probability (1 - r) r^n, r = 5/9."""
    source = ed.SimulatorSource(slotted_queue, start=jnp.int32(0), law_samples=2**15)
    waiting = np.asarray(source.loss_law.points)
    ratio = 5 / 9
    for n in range(4):
        assert within(waiting == n, (1 - ratio) * ratio**n)
    assert within(waiting, ratio / (1 - ratio))


@pytest.mark.slow
def test_a_chain_written_as_a_simulator_is_that_chain_in_law():
    chain = ed.MarkovChain([[0.75, 0.25], [0.125, 0.875]])
    table = ed.MarkovSource(chain, {"state": np.array([0.0, 1.0])})
    source = ed.SimulatorSource(two_states, start=lambda key: jax.random.randint(key, (), 0, 2, dtype=jnp.int32))
    paths = np.asarray(source.paths(200, 200)["state"]).astype(int)
    assert abs(paths[:, 0].mean() - 0.5) < 4.5 * 0.5 / np.sqrt(200)  # as `start` draws it
    counts = np.zeros((2, 2))
    np.add.at(counts, (paths[:, :-1].ravel(), paths[:, 1:].ravel()), 1)
    visits = counts.sum(axis=1, keepdims=True)
    assert (np.abs(counts / visits - chain.P) <= 4.5 * np.sqrt(chain.P * (1 - chain.P) / visits)).all()
    problem = ed.Problem(
        lambda x, xi: jnp.sum((x - xi["state"]) ** 2), lambda x, xi: x - 0.4 + 0.1 * xi["state"], ed.Box(-1.0, 1.0)
    )
    runs = [
        ed.run(ed.edpp(4.0), problem, one, x0=np.zeros(1), num_samples=4000, seeds=20).solution
        for one in (source, table)
    ]
    ours, theirs = (np.asarray(run)[:, 0].astype(float) for run in runs)
    spread = np.sqrt((ours.var(ddof=1) + theirs.var(ddof=1)) / 20)
    assert abs(ours.mean() - theirs.mean()) <= 4 * spread + 1e-3


def test_an_environment_under_a_policy():
    environment = Inventory()
    source = ed.SimulatorSource(environment.under_policy, start=environment.reset)
    sample = source.paths(2, 4000)
    demand, left = (np.asarray(sample[name]) for name in ("demand", "left"))
    assert set(np.unique(demand)) == set(range(5))
    np.testing.assert_array_equal(left, 3 - demand)  # it always orders up to 3
    problem = ed.Problem(
        lambda x, xi: jnp.sum((x - xi["demand"]) ** 2), lambda x, xi: x - xi["left"] - 1.5, ed.Box(0.0, 4.0)
    )
    result = ed.run(ed.edpp(1.0), problem, source, x0=np.zeros(1), num_samples=20_000, seeds=2)
    # E demand = 2, E left = 1: the constraint x <= 2.5 is slack.
    np.testing.assert_allclose(np.asarray(result.solution), 2.0, atol=0.1)


def test_whole_numbers_make_the_same_path_in_both_precisions_and_each_seed_its_own():
    paths = []
    for wide in (False, True):
        with jax.enable_x64(wide):
            source = ed.SimulatorSource(slotted_queue, start=np.int32(0), burn_in=7)
            paths.append(np.asarray(source.paths([5, 1, 8], 300)))
    np.testing.assert_array_equal(*paths)
    np.testing.assert_array_equal(source.paths([8, 5, 0], 70)[:2], paths[0][[2, 0], :70])


def test_burn_in_is_taken_before_the_first_sample():
    def count(key, state):
        return state + 1, state.astype(float)

    for burn_in in (0, 5):
        path = ed.SimulatorSource(count, start=0, burn_in=burn_in).paths(2, 3)
        np.testing.assert_array_equal(path, [[burn_in, burn_in + 1, burn_in + 2]] * 2)


@pytest.mark.parametrize(
    "start", [0.5, np.float64(0.5), jnp.full((), 0.5), np.array(0.5), lambda key: 0.5, lambda key: jnp.float32(0.5)]
)
def test_a_start_in_any_spelling(start):
    path = ed.SimulatorSource(lambda key, state: (state / 2, state), start).paths(1, 3)
    np.testing.assert_array_equal(path, [[0.5, 0.25, 0.125]])


def test_a_state_may_hold_anything_and_nothing():
    def step(key, state):
        inner, (count, own) = state["a"], state["b"]
        return {"a": inner * 2, "b": (count + 1, jax.random.fold_in(own, 1))}, {"x": inner, "y": (count,)}

    key = jax.random.key(0)
    path = ed.SimulatorSource(step, {"a": np.ones((2, 2)), "b": (0, key)}).paths(2, 4)
    assert path["x"].shape == (2, 4, 2, 2)
    assert path["y"][0].tolist() == [[0, 1, 2, 3]] * 2
    drawn = ed.SimulatorSource(lambda key, _: ((), jax.random.randint(key, (), 0, 9, dtype=jnp.int32)), start=())
    assert len(set(np.asarray(drawn.paths(1, 50))[0].tolist())) > 5


def test_what_is_known_is_told():
    known = ed.SimulatorSource(autoregression(0.5), 0.0, tau_mix=3.5, law_samples=100, starts_stationary=True)
    assert [known.mixing_time(eps) for eps in (0.3, 0.25, 0.125, 0.1)] == [4, 4, 11, 14]
    assert known.starts_stationary
    assert len(known.loss_law.weights) == 100
    plain = ed.SimulatorSource(autoregression(0.5), 0.0)
    assert plain.mixing_time() is None
    assert not plain.starts_stationary
    assert plain.law_is_simulated
    with pytest.raises(AttributeError, match="law_samples cannot change"):
        known.law_samples = 7


@pytest.mark.parametrize(
    ("step", "start", "options", "message"),
    [
        (3, 0.0, {}, r"step must be a function step\(key, state\) -> \(state, xi\), got 3"),
        (lambda key, state: state, 0.0, {}, r"step\(key, state\) must return a pair \(state, xi\), got"),
        (lambda key, state: (state, state, state), 0.0, {}, "must return a pair"),
        (
            lambda key, state: (jnp.stack([state, state]), state),
            0.0,
            {},
            r"changes the shape of state from \(\) to \(2,",
        ),
        (lambda key, s: ({"a": s["a"][:1]}, s), {"a": np.ones(2)}, {}, r"shape of state\['a'\] from \(2,\) to \(1,\)"),
        (
            lambda key, state: (state.astype(float), state),
            0,
            {},
            r"type of state from int\d+ to float\d+; let `start` .* 0\.0",
        ),
        (lambda key, state: (state > 0, state), 0.0, {}, r"type of state from float\d+ to bool.*jnp.bool"),
        (lambda key, state: ((state, state), state), 0.0, {}, "changes the structure of the state"),
        (lambda key, state: (state, ()), 0.0, {}, "empty sample xi"),
        (lambda key, state: (state["b"], state), {"a": 0.0}, {}, r"step\(key, state\) fails for a state of .*'a'"),
        (lambda key, state: (state, state), lambda key: key.nothing, {}, r"start\(key\) fails"),
        (lambda key, state: (state, state), "zero", {}, "start holds"),
        (autoregression(0.5), 0.0, {"burn_in": -1}, "burn_in must be between 0 and"),
        (autoregression(0.5), 0.0, {"law_samples": 3}, "law_samples must be between 64 and"),
        (autoregression(0.5), 0.0, {"tau_mix": 0.0}, "tau_mix must be > 0"),
    ],
)
def test_what_is_wrong_is_named(step, start, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        ed.SimulatorSource(step, start, **options)


def test_a_sample_that_is_not_finite_is_named():
    def step(key, state):
        return state - 1, {"ok": state, "log": jnp.log(state)}

    source = ed.SimulatorSource(step, start=5.0)
    with pytest.raises(ValueError, match=r"xi\['log'\] = -inf in sample 6 of seed 4; look at step"):
        source.paths([4], 50)
    problem = ed.Problem(lambda x, xi: jnp.sum(x) * xi["log"], lambda x, xi: x, ed.Box(-1.0, 1.0))
    with pytest.raises(ed.NonFiniteError, match=r"seed 0: xi and loss .*at sample 6 .*the sample itself is not finite"):
        ed.run(ed.edpp(1.0), problem, source, x0=np.full(1, 0.5), num_samples=100)


def test_a_run_reads_the_paths_of_its_source():
    source = ed.SimulatorSource(autoregression(0.6), start=0.0, burn_in=10)
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x - xi - 1, ed.Box(-2.0, 2.0))
    drawn = ed.run(ed.edpp(2.0), problem, source, x0=np.zeros(1), num_samples=150, seeds=3)
    given = ed.run(ed.edpp(2.0), problem, source, x0=np.zeros(1), num_samples=150, seeds=3, paths=source.paths(3, 150))
    np.testing.assert_allclose(drawn.x, given.x, rtol=1e-5, atol=1e-6)


# Standard errors of what is known from a simulated path


def tracking(mean, bound):
    """min (x - mean)^2 + 1 subject to x + mean <= bound: x# = bound - mean, f# = (bound - 2 mean)^2 + 1."""
    problem = ed.Problem(
        lambda x, xi: jnp.sum((x - xi) ** 2),
        lambda x, xi: jnp.stack([x[0] + xi - bound, x[0] - 3.0]),
        ed.Box(-4.0, 4.0),
    )

    def gap(x):
        return (x - mean) ** 2 - (bound - 2 * mean) ** 2

    return problem, gap


@pytest.mark.slow
def test_the_error_bars_of_metrics_are_those_of_the_simulated_law():
    """Against the spread over many simulated paths of what each of them would give, which is known in closed form."""
    mean, bound = 1.3, 1.95
    source = ed.SimulatorSource(autoregression(0.9, mean), start=mean, law_samples=2**13)
    problem, gap = tracking(mean, bound)
    reference = ed.solve_reference(problem, source, np.zeros(1))
    result = ed.run(ed.edpp(2.0), problem, source, x0=np.full(1, 0.5), num_samples=40, seeds=2, record=2)
    quality = ed.metrics.evaluate(result, problem, source, reference)
    assert quality.error is not None
    x = float(result.x_mean[0, -1, 0])
    means = np.asarray(source.paths(np.arange(60), 2**13)).mean(axis=1)
    multiplier = float(reference.multipliers[0])
    gaps = (x - means) ** 2 - (bound - 2 * means) ** 2
    spread = [gaps.std(), means.std(), (gaps + multiplier * (x + means - bound)).std()]
    found = [quality.error.gap[0], quality.error.infeasibility[0, 0], quality.error.lagrangian_gap[0]]
    # 60 paths here, some 20 batches there; of the Lagrangian gap the first order all but cancels.
    np.testing.assert_allclose(found, spread, rtol=0.45, atol=0.15 * spread[0])
    assert abs(quality.gap[0, -1] - gap(x)) < 4.5 * quality.error.gap[0]
    assert (quality.error.infeasibility[:, 1] == 0).all()  # this one does not look at the sample


def test_errors_are_shown_where_metrics_are_read_and_nowhere_else():
    source = ed.SimulatorSource(autoregression(0.5, 1.0), start=1.0)
    problem, _ = tracking(1.0, 1.5)
    result = ed.run(ed.edpp(2.0), problem, source, x0=np.zeros(1), num_samples=100, seeds=2)
    reference = ed.solve_reference(problem, source, np.zeros(1))
    assert "16,384 simulated samples: the loss has standard error 0.0" in reference.note
    assert "the constraints have standard error 0.0" in reference.note
    quality = ed.metrics.evaluate(result, problem, source, reference)
    text = str(quality)
    assert "mean over 2 seeds +- standard error of a law that is simulated" in text
    assert text.count("+- ") == 5
    table = ed.IIDSource(np.array([0.0, 2.0]))
    exact = ed.metrics.evaluate(result, problem, table, ed.solve_reference(problem, table, np.zeros(1)))
    assert exact.error is None
    assert "+-" not in str(exact)


@pytest.mark.slow
def test_errors_where_losses_and_constraints_have_paths_of_their_own():
    simulated = ed.SimulatorSource(autoregression(0.5, 1.0), start=1.0)
    known = ed.IIDSource(np.array([0.0, 2.0]))
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi[0]) ** 2), lambda x, xi: x + xi[1] - 1.5, ed.Box(-4.0, 4.0))
    for parts, zero in [((simulated, known), "infeasibility"), ((known, simulated), None), ((simulated,) * 2, None)]:
        source = ed.Zip(*parts)
        result = ed.run(ed.edpp(2.0), problem, source, x0=np.zeros(1), num_samples=50)
        error = ed.metrics.evaluate(result, problem, source, ed.solve_reference(problem, source, np.zeros(1))).error
        assert error is not None
        for name, values in error._asdict().items():
            assert (values == 0).all() if name == zero else (values > 0).all(), (name, values)
