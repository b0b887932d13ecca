"""Sources from outside: a simulator and a generator, with everything that takes a source.

The simulator is a chain that is known in closed form, so a `MarkovSource` on the same states is the judge.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from digits import rounded

ARRIVAL, PLACES = 0.4, 5


class Queue(ed.Source):
    """Customers waiting: one arrives with probability `arrival`, else one is served."""

    def __init__(self, arrival=ARRIVAL, places=PLACES):
        self.arrival, self.places = arrival, places

    def init(self, key):
        return jnp.int32(0)

    def sample(self, key, state):
        step = jnp.where(jax.random.bernoulli(key, self.arrival), 1, -1)
        state = jnp.clip(state + step, 0, self.places)
        return state, {"waiting": state.astype(float)}


class KnownQueue(Queue):
    """The same, started in its law, with all that can be said of it."""

    def init(self, key):
        return jax.random.choice(key, PLACES + 1, p=jnp.asarray(LAW)).astype(jnp.int32)

    def mixing_time(self, eps=0.25):
        return CHAIN.mixing_time(eps)

    @property
    def starts_stationary(self):
        return True


def moves():
    P = np.zeros((PLACES + 1, PLACES + 1))
    for state in range(PLACES + 1):
        P[state, min(state + 1, PLACES)] += ARRIVAL
        P[state, max(state - 1, 0)] += 1 - ARRIVAL
    return P


CHAIN = ed.MarkovChain(moves())
LAW = (ARRIVAL / (1 - ARRIVAL)) ** np.arange(PLACES + 1)
LAW /= LAW.sum()
TABLE = ed.MarkovSource(CHAIN, {"waiting": np.arange(PLACES + 1.0)})
QUEUE = Queue()
PROBLEM = ed.Problem(
    lambda x, xi: jnp.sum((x - 1.0) ** 2) + 0.1 * xi["waiting"] * x[0],
    lambda x, xi: jnp.stack([x[0] + 0.2 * xi["waiting"] - 1.0, x[1] - 0.5]),
    ed.Box(np.zeros(2), np.ones(2)),
)
X0 = np.zeros(2)
MEAN = LAW @ np.arange(PLACES + 1)


def states(paths):
    """The numbers of the chain's states along paths of the queue."""
    return np.asarray(paths["waiting"]).astype(int)


def ran(source: ed.Source = QUEUE, algorithm=None, **options: Any):
    options = {"num_samples": 300, "seeds": 3, "record": 10} | options
    return ed.run(algorithm or ed.edpp(9.0), PROBLEM, source, x0=X0, **options)


RUN = ran()


def records(result):
    return result.x, result.x_mean, result.queue, result.loss_sum


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, records(a), records(b))


def alike(a, b):
    """To rounding: another program computed it."""
    close = functools.partial(np.testing.assert_allclose, rtol=rounded(1e-12), atol=rounded(1e-12))
    jax.tree.map(close, records(a), records(b))


# Paths


def test_a_path_is_a_function_of_its_seed_alone():
    long = states(QUEUE.paths([4, 0, 9], 200))
    np.testing.assert_array_equal(states(QUEUE.paths([9, 4], 65)), long[[2, 0], :65])
    assert len({tuple(row) for row in long}) == 3
    with jax.threefry_partitionable(False):
        np.testing.assert_array_equal(states(QUEUE.paths([4, 0, 9], 200)), long)


def test_a_path_moves_as_the_simulator_says():
    path = states(QUEUE.paths([1], 40_000))[0]
    assert path[0] in (0, 1)  # from an empty room
    counts = np.zeros_like(CHAIN.P)
    np.add.at(counts, (path[:-1], path[1:]), 1)
    assert (counts[CHAIN.P == 0] == 0).all()
    visits = counts.sum(axis=1, keepdims=True)
    assert (np.abs(counts / visits - CHAIN.P) <= 4.5 * np.sqrt(CHAIN.P * (1 - CHAIN.P) / visits)).all()


def test_a_state_of_python_numbers_will_do():
    class Drift(ed.Source):
        def init(self, key):
            return 0.5

        def sample(self, key, state):
            return 1, state  # a whole number where a float was

    np.testing.assert_array_equal(Drift().paths([0], 3)[0], [0.5, 1.0, 1.0])


def test_a_source_without_samples_says_what_is_missing():
    with pytest.raises(NotImplementedError, match=r"Empty has no samples: define sample\(self, key, state\)"):
        type("Empty", (ed.Source,), {})().paths([0], 3)


# Runs


def test_a_run_is_that_of_the_chain_on_the_same_states():
    paths = states(QUEUE.paths(3, 300))
    alike(RUN, ran(TABLE, paths=paths))


def test_however_a_run_is_cut_its_numbers_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("ergodrift.engine.drive.CALL_SECONDS", 0.0)  # the shortest calls there are
    saved = tmp_path / "run.npz"
    same(RUN, ran(checkpoint=saved))
    same(RUN, ran(checkpoint=saved))
    same(RUN, ran(Queue(), checkpoint=saved))  # another object, the same samples
    with pytest.raises(ValueError, match="changed seeds or x0"):
        ran(Queue(arrival=0.3), checkpoint=saved)
    np.testing.assert_array_equal(ran(record=[17, 300]).x[:, -1], RUN.x[:, -1])


def test_paths_can_be_replayed():
    paths = QUEUE.paths(3, 300)
    same(RUN, ran(paths=paths, num_samples=None))
    one = jax.tree.map(lambda leaf: leaf[1], paths)
    again = ran(paths=one)  # the same for every seed
    np.testing.assert_array_equal(again.x, np.repeat(RUN.x[1:2], 3, axis=0))
    with pytest.raises(ValueError, match="paths too short: 100 samples per seed, but num_samples=300"):
        ran(paths=jax.tree.map(lambda leaf: leaf[:, :100], paths))
    with pytest.raises(ValueError, match=r"paths must have shape \(seeds, num_samples\) = \(3, 300\), got \(2, 300\)"):
        ran(paths=jax.tree.map(lambda leaf: leaf[:2], paths))
    with pytest.raises(TypeError, match=r"the structure of what source\.paths"):
        ran(paths=paths["waiting"])


def test_a_sweep_is_a_vmap():
    taus = jnp.array([4.0, 9.0])
    swept = jax.vmap(lambda tau: ran(algorithm=ed.edpp(tau)).solution)(taus)
    np.testing.assert_allclose(swept[1], RUN.solution, rtol=rounded(1e-12))
    assert not np.allclose(swept[0], swept[1], rtol=1e-3)


def test_states_that_are_not_told_apart_are_not_remembered():
    with pytest.raises(ValueError, match="the source has none that come back"):
        ran(algorithm=ed.rdpp())


def test_what_a_source_keeps_does_not_change_once_it_has_given_samples():
    queue = Queue()
    queue.arrival = 0.3
    queue.paths(1, 3)
    with pytest.raises(AttributeError, match=r"Queue has given samples already: arrival cannot change; make a new"):
        queue.arrival = 0.5


def test_states_are_not_cut_to_whole_numbers_and_samples_come_in_pairs():
    class Cut(ed.Source):
        def init(self, key):
            return jnp.int32(0)

        def sample(self, key, state):
            return state.astype(float) + 0.5, state

    class Lone(ed.Source):
        sample: Any = lambda self, key, state: jnp.ones(3)

    with pytest.raises(TypeError, match=r"turns a state of type int32 into float.*let init\(key\) return floating"):
        Cut().paths(1, 3)
    with pytest.raises(TypeError, match=r"must return a pair \(state, xi\)"):
        Lone().paths(1, 3)


# What is judged under the stationary law


def test_a_reference_says_what_a_simulated_law_leaves_open():
    note = ed.solve_reference(PROBLEM, QUEUE).note
    assert "16,384 simulated samples: the loss has standard error" in note
    assert not ed.solve_reference(PROBLEM, TABLE).note
    exact, found = (ed.solve_reference(PROBLEM, source).value for source in (TABLE, QUEUE))
    assert abs(found - exact) < 4.5 * float(re.findall(r"the loss has standard error ([0-9.e-]+)", note)[0])


def test_expectations_are_those_of_a_long_simulated_path():
    law = QUEUE.loss_law
    assert len(law.weights) == Queue.law_samples == 2**14
    spread = np.sqrt(LAW @ (np.arange(PLACES + 1) - MEAN) ** 2)
    error = 4.5 * spread * np.sqrt(2 * CHAIN.relaxation_time / 2**14)
    assert abs(law.weights @ law.points["waiting"] - MEAN) < error
    with jax.enable_x64(not jax.config.values["jax_enable_x64"]):
        again = Queue().loss_law
    np.testing.assert_array_equal(law.points["waiting"], again.points["waiting"])


def test_the_law_may_be_given():
    class Exact(Queue):
        @property
        def loss_law(self):
            return ed.Law({"waiting": np.arange(PLACES + 1.0)}, LAW)

    exact, judge = ed.solve_reference(PROBLEM, Exact(), X0), ed.solve_reference(PROBLEM, TABLE, X0)
    np.testing.assert_allclose(exact.x, judge.x, atol=1e-9)


def test_reference_and_feasibility():
    judge, found = (ed.solve_reference(PROBLEM, source, X0) for source in (TABLE, QUEUE))
    np.testing.assert_allclose(found.x, judge.x, atol=0.03)
    assert found.gap < 1e-9
    feasible = ed.feasibility(PROBLEM, QUEUE, X0)
    assert feasible.verdict == "slater"
    assert feasible.margin == pytest.approx(ed.feasibility(PROBLEM, TABLE, X0).margin, abs=0.03)


@pytest.mark.parametrize("every", [False, True])
def test_regret_is_that_of_the_chain_on_the_same_states(every):
    paths = states(QUEUE.paths(3, 300))
    table = ran(TABLE, paths=paths)
    judges, found = (
        [one.value for one in ed.metrics.benchmarks(result, PROBLEM, source, every)]
        for result, source in ((table, TABLE), (RUN, QUEUE))
    )
    if every:  # the largest number waiting has come up in 16,384 samples: the same constraints
        np.testing.assert_allclose(found, judges, atol=1e-7)
    else:  # E[g] is a little different: what x_1 may be
        np.testing.assert_allclose(found, judges, atol=0.05)
    fixed = ed.metrics.benchmarks(table, PROBLEM, TABLE)
    regrets = [ed.metrics.regret(*pair, fixed) for pair in ((table, PROBLEM, TABLE), (RUN, PROBLEM, QUEUE))]
    np.testing.assert_allclose(*regrets, rtol=rounded(1e-9), atol=rounded(1e-9))
    replayed = ran(paths=QUEUE.paths(3, 300))
    np.testing.assert_allclose(ed.metrics.regret(replayed, PROBLEM, QUEUE, fixed), regrets[1])


def test_quality():
    reference = ed.solve_reference(PROBLEM, QUEUE, X0)
    quality = ed.metrics.evaluate(RUN, PROBLEM, QUEUE, reference)
    assert (quality.lagrangian_gap > -1e-9).all()
    np.testing.assert_allclose(quality.infeasibility[..., 1], np.asarray(RUN.x_mean)[..., 1] - 0.5, atol=1e-6)


# Trust, theory and choice


def test_a_certificate_and_its_fresh_samples():
    x = np.array([1.0 - 0.2 * MEAN, 0.5])
    margin = np.array([0.1, 0.1])
    assert ed.certify(PROBLEM, x - margin, QUEUE, num_samples=20_000).satisfied
    assert ed.certify(PROBLEM, x + margin, QUEUE, num_samples=20_000).verdict[0] == "violated"
    found = ed.certify(PROBLEM, x - margin, KnownQueue(), num_samples=20_000, method="bernstein", bounds=(-1.0, 2.0))
    assert found.guarantee == "every n"
    with pytest.raises(ValueError, match="needs tau_mix and bounds"):
        ed.certify(PROBLEM, x, QUEUE, num_samples=2000, method="hoeffding")
    with pytest.raises(ValueError, match="this source starts elsewhere"):
        ed.certify(PROBLEM, x, QUEUE, num_samples=2000, method="bernstein")
    assert RUN.certify(num_samples=5000).num_samples == 5000
    with pytest.raises(ValueError, match="seed=2 is one of those"):
        RUN.certify(seed=2)
    with pytest.raises(ValueError, match="seed=1 is one of those"):
        ran(paths=QUEUE.paths(3, 300)).certify(seed=1)


def test_its_dependence_is_seen():
    found = ed.diagnose(QUEUE, num_samples=40_000)
    assert found.names == ["waiting"]
    low, high = found.tau_mix_interval
    assert low <= CHAIN.relaxation_time <= high
    through = ed.diagnose(QUEUE, PROBLEM, X0, num_samples=40_000)
    assert through.tau_mix == pytest.approx(found.tau_mix, rel=1e-6)


def test_auto_asks_the_source_or_its_samples():
    asked = ed.auto(PROBLEM, QUEUE, X0, num_samples=900)
    assert "their long-run variance is up to" in asked.reason
    assert "with x0=..." in ed.auto(PROBLEM, QUEUE, num_samples=900).reason
    independent = type("Coin", (Queue,), {"independent": True})()
    assert "are independent" in ed.auto(PROBLEM, independent, X0, num_samples=900).reason


def test_what_the_theory_says_of_it():
    check = RUN.within_theory()
    assert check
    assert {entry.statement for entry in check.entries} == {"appendix A"}
    assert check.left_out == (
        ("theorems 1 to 3", "the first sample does not follow the stationary law: the source starts elsewhere"),
    )
    told = ran(KnownQueue()).within_theory()
    assert told
    assert {"theorem 1", "theorems 2 and 3"} <= {entry.statement for entry in told.entries}


@pytest.mark.slow
def test_beside_another_source():
    losses = ed.SeriesSource(np.linspace(0.0, 1.0, 300))
    problem = ed.Problem(
        lambda x, xi: jnp.sum((x - xi[0]) ** 2),
        lambda x, xi: x[:1] + 0.2 * xi[1]["waiting"] - 1.0,
        ed.Box(np.zeros(2), np.ones(2)),
    )
    results, references = [], []
    for part in (QUEUE, TABLE):
        pair = ed.Zip(losses, part)
        paths = pair.paths(2, 300)
        if part is TABLE:
            paths = (paths[0], states(ed.Zip(losses, QUEUE).paths(2, 300)[1]))
        results.append(ed.run(ed.edpp(9.0), problem, pair, x0=X0, seeds=2, paths=paths, record=5))
        references.append(ed.solve_reference(problem, pair, X0))
    alike(*results)
    np.testing.assert_allclose(references[0].x, references[1].x, atol=0.03)
    assert ed.auto(problem, ed.Zip(losses, KnownQueue()), X0).name == "SDPP"


# A generator


def prices(seed):
    rng, price = np.random.default_rng(seed), 1.0
    while True:
        price = 0.9 * price + 0.1 + 0.05 * rng.normal()
        yield {"price": price}


def test_a_generator_is_recorded():
    source = ed.SeriesSource.record(prices(0), 500)
    assert source.length == 500
    first = prices(0)
    np.testing.assert_array_equal(source.data["price"][:3], [next(first)["price"] for _ in range(3)])
    problem = ed.Problem(
        lambda x, xi: (x[0] - 1.0) ** 2, lambda x, xi: xi["price"] * x - 0.5, ed.Box(X0[:1], X0[:1] + 1)
    )
    result = ed.run(ed.auto(problem, source), problem, source, x0=X0[:1], record=5)
    with pytest.raises(ValueError, match="samples that the point was fitted on"):
        result.certify(ed.SeriesSource.record(prices(0), 400))
    assert ed.certify(problem, np.array([0.4]), ed.SeriesSource.record(prices(1), 5000)).satisfied
    with pytest.raises(ValueError, match="the stream is empty"):
        ed.SeriesSource.record(iter(()))
