"""Walks over real processes give the numbers of the core; what is asked, answered and counted."""

import dataclasses
import math
import os
import re
import socket
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

import cases
import ergodrift as ed
from ergodrift import distributed as dd
from ergodrift._core import files
from ergodrift._core.progress import Progress
from ergodrift.data.sampler import random_block
from ergodrift.distributed import network as networks
from ergodrift.distributed import roll as rolls
from ergodrift.distributed import wire
from ergodrift.distributed.desk import Desk, _described, feedback
from ergodrift.distributed.privacy import Secret
from ergodrift.distributed.tokens import route
from ergodrift.distributed.wire import Program
from ergodrift.engine.loop import RunSpec
from ergodrift.methods.average import Average
from ergodrift.types import Feedback
from walks import AGENTS, DATA, DIM, GRAPH, PROBLEM, SOURCE, ZERO, agents, close, numbers

pytestmark = pytest.mark.x64("walks equal their simulation to float64's digits")

ALGORITHMS = {
    "edpp": ed.edpp(4.0),
    "mdpp": ed.mdpp(),
    "adpp": ed.adpp(),
    "rdpp": ed.rdpp(),
    "pd": ed.pd(horizon=160, gradient_bound=9.0, constraint_bound=9.0),
}
SAMPLES = 160
AT_ZERO = ed.Reference(ZERO, 0.0, np.zeros(2), np.zeros(2), 0.0)  # what regret is measured against here


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_walk_is_the_run_on_the_pooled_data(network, name):
    """Tokens are seeds: without any path passed in, both draw the same one, bit by bit."""
    algorithm = ALGORITHMS[name]
    walk = dd.walk(PROBLEM, GRAPH, network, algorithm, x0=ZERO, num_samples=SAMPLES, tokens=[3, 8], record=[0, 1, 97])
    run = ed.run(algorithm, PROBLEM, SOURCE, x0=ZERO, num_samples=SAMPLES, seeds=[3, 8], record=[0, 1, 97])
    close(walk.result, run, 1e-12)
    assert np.array_equal(walk.result.seeds, [3, 8])
    visits = np.bincount(np.ravel(SOURCE.paths([3, 8], SAMPLES)), minlength=AGENTS)
    assert np.array_equal(walk.visits, visits)
    assert not walk.held.any()
    assert not walk.restarts.any()
    np.testing.assert_allclose(walk.solution, np.mean(run.solution, axis=0), rtol=1e-12)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_local_rounds_are_the_run_on_the_path_with_states_repeated(network, name):
    algorithm, hops = ALGORITHMS[name], SAMPLES // 4
    path = np.random.default_rng(1).integers(0, AGENTS, (2, hops))
    options = {"x0": ZERO, "num_samples": SAMPLES, "record": [4, 80, 160]}
    walk = dd.walk(PROBLEM, GRAPH, network, algorithm, tokens=2, local_rounds=4, paths=path, combine=None, **options)
    run = ed.run(algorithm, PROBLEM, SOURCE, seeds=2, paths=path.repeat(4, axis=1), **options)
    close(walk.result, run, 1e-12)
    assert np.array_equal(walk.solution, walk.result.solution)
    assert walk.messages.sum() == 2 * sum(len(set(places)) for places in path.T)


@pytest.mark.parametrize("local_rounds", [1, 4])
def test_float32(network, local_rounds):
    x0 = ZERO.astype(np.float32)
    path = SOURCE.paths(1, 400 // local_rounds)
    options = {"x0": x0, "num_samples": 400, "record": [200, 400]}
    walk = dd.walk(PROBLEM, GRAPH, network, ed.adpp(), local_rounds=local_rounds, **options)
    run = ed.run(ed.adpp(), PROBLEM, SOURCE, paths=np.repeat(path, local_rounds, axis=1), **options)
    assert {leaf.dtype for name, leaf in numbers(walk.result).items() if name not in ("rounds", "samples_used")} == {
        np.dtype(np.float32)
    }
    close(walk.result, run, 2e-5)  # a few hundred roundings, in another order
    found, wanted = (ed.metrics.benchmark_losses(one, PROBLEM, SOURCE, [AT_ZERO]) for one in (walk.result, run))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)  # the path of the walk is known, repeats included


def test_a_point_of_several_parts_and_averages(cluster):
    geometry, like = cases.GEOMETRIES["product"]
    problem = ed.Problem(cases.loss, cases.constraints, geometry)
    data = cases.random_data(np.random.default_rng(2), 2, 5, 1)
    x0 = geometry.project(like)
    graph, own = np.ones((2, 2)) - np.eye(2), [jax.tree.map(lambda leaf, i=i: leaf[i], data) for i in range(2)]
    with dd.Network([dd.Agent(xi) for xi in own]) as network:
        for average in ("suffix", ("polynomial", 2)):
            options = {"x0": x0, "num_samples": 300, "record": [300], "average": average}
            walk = dd.walk(problem, graph, network, ed.adpp(), **options)
            run = ed.run(ed.adpp(), problem, ed.MarkovSource(ed.MarkovChain.from_graph(graph), data), **options)
            close(walk.result, run, 1e-12)


def test_metrics_and_summary(network):
    walk = dd.walk(PROBLEM, GRAPH, network, ed.edpp(4.0), x0=ZERO, num_samples=40, tokens=2, record=4)
    run = ed.run(ed.edpp(4.0), PROBLEM, SOURCE, x0=ZERO, num_samples=40, seeds=2, record=4)
    violations = [ed.metrics.violation(one) for one in (walk.result, run)]
    np.testing.assert_allclose(*violations, rtol=1e-12, atol=1e-12)
    found, wanted = (ed.metrics.regret(one, PROBLEM, SOURCE, [AT_ZERO] * 2) for one in (walk.result, run))
    np.testing.assert_allclose(found, wanted, atol=1e-10)
    assert np.array_equal(walk.x, walk.result.x[:, -1])
    assert np.array_equal(walk.queue, walk.result.queue[:, -1])
    # A question is x, an answer f, its gradient, g and its Jacobian: nothing else travels, and no row of data.
    question, answer = 8 * DIM, 8 * (1 + DIM + 2 + 2 * DIM)
    assert walk.bytes.sum() == walk.visits.sum() * (question + answer)
    lines = str(walk).splitlines()
    assert "2 tokens, 40 hops each, 1 round a visit" in lines[0]
    assert [line.split()[:3] for line in lines[2:5]] == [["agent", str(i), str(walk.visits[i])] for i in range(AGENTS)]
    assert int(lines[-1].split()[1]) == 80


def test_the_bar_shows_hops_visits_and_bytes(network, monkeypatch):
    notes = []
    monkeypatch.setattr(Progress, "update", lambda bar, done, note="": notes.append((done, note)))
    dd.walk(PROBLEM, GRAPH, network, ed.edpp(4.0), x0=ZERO, num_samples=130, record=1)
    assert {0, 64, 128} <= {done for done, _ in notes}
    assert re.fullmatch(r"; [\d,]+ hops/s, \d+ to \d+ visits an agent, 0\.0 MB", notes[-1][1])


def test_bytes_do_not_grow_with_the_data(cluster):
    """Raw rows never leave: agents with a thousand times the data send as much."""
    problem = ed.Problem(lambda x, xi: jnp.mean((x - xi) ** 2), lambda x, xi: x[:1] - jnp.mean(xi), ed.Ball(1.0))
    sent = []
    for size in (2, 2000):
        network = dd.Network([dd.Agent(np.full((size, 1), float(i))) for i in range(2)])
        for local_rounds in (1, 5):
            walk = dd.walk(
                problem, np.ones((2, 2)) - np.eye(2), network, ed.edpp(2.0), x0=np.zeros(1), num_samples=20,
                local_rounds=local_rounds,
            )  # fmt: skip
            sent.append(walk.bytes.tolist())
        network.close()
    assert sent[:2] == sent[2:]


def test_agents_load_files_and_functions_where_they_run(cluster, tmp_path):
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet

    column = np.array([0.25, 0.75])
    np.save(tmp_path / "a.npy", column)
    np.savez(tmp_path / "a.npz", v=column)
    table = pa.table({"v": column})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    pyarrow.feather.write_feather(table, tmp_path / "a.arrow")
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    files = [str(tmp_path / "a.npy"), *(tmp_path / name for name in ("a.npz", "a.parquet", "a.arrow", "b.arrow"))]
    kinds = [*files, lambda: column]
    problem = ed.Problem(mean_square, lambda x, xi: x[:1] - 0.5, ed.Ball(1.0))
    with dd.Network([dd.Agent(data) for data in kinds]) as network:
        graph = np.ones((6, 6)) - np.eye(6)
        walk = dd.walk(problem, graph, network, ed.edpp(2.0), x0=np.zeros(1), num_samples=6, paths=np.arange(6))
    run = ed.run(ed.edpp(2.0), problem, ed.IIDSource(column[None]), x0=np.zeros(1), num_samples=6)
    close(walk.result, run, 1e-12)


def test_columns_must_hold_numbers(tmp_path):
    np.savez(tmp_path / "a.npz", v=np.ones(2), name=np.array(["x", "y"]))
    with pytest.raises(ValueError, match=r"data\['name'\] holds <U1, not numbers"):
        dd.Agent(tmp_path / "a.npz").load()


def mean_square(x, xi):
    """Of a column that comes in a dict from some files."""
    values = xi["v"] if isinstance(xi, dict) else xi
    return jnp.mean((x - values) ** 2)


# What travels.


def test_words_are_the_numbers_bit_by_bit():
    tree = {
        "wide": jnp.array([[0.1, -jnp.inf], [jnp.nan, -0.0]]),
        "narrow": jnp.array([0.1, 3e38], jnp.float32),
        "half": jnp.array([0.1, -2.0], jnp.bfloat16),
        "whole": jnp.array(-5, jnp.int32),
        "flag": jnp.array([True, False]),
        "key": jax.random.key(7, impl=wire.KEYS),
    }
    for parts, kind, count in [(tree, np.uint64, 4 + 2 + 2 + 1 + 2 + 2), (dict(list(tree.items())[1:]), np.uint32, 9)]:
        words = jax.jit(wire.pack)(parts)
        assert words.dtype == wire.row(parts).dtype == kind
        assert words.shape == wire.row(parts).shape == (count,)
        back = jax.jit(lambda words, parts=parts: wire.unpack(words, jax.eval_shape(lambda: parts)))(words)
        for name, leaf in parts.items():
            data = jax.random.key_data if name == "key" else np.asarray
            assert back[name].dtype == leaf.dtype
            assert np.asarray(data(back[name])).tobytes() == np.asarray(data(leaf)).tobytes(), name


def test_answers_are_in_the_precision_of_the_walk():
    """The bits of a narrower number would be read as another one, next to 0."""
    narrow = Feedback(jnp.float32(0.5), jnp.full(DIM, 0.25, jnp.float32), jnp.ones(1), jnp.full((1, DIM), 3))
    problem = types.SimpleNamespace(feedback=lambda x, xi: narrow)
    program = types.SimpleNamespace(setup=types.SimpleNamespace(problem=problem), x0=ZERO, num_constraints=1)
    words = feedback(None, cast(Any, program), None, wire.pack(jnp.asarray(ZERO)))
    assert np.asarray(words).view(float).tolist() == [0.5, *[0.25] * DIM, 1.0, *[3.0] * DIM]


def test_routes_are_those_of_the_chain():
    rng = np.random.default_rng(5)
    P = rng.random((6, 6)) * (rng.random((6, 6)) < 0.6) + 0.01 * np.eye(6) + 0.05 * np.roll(np.eye(6), 1, axis=1)
    chain = ed.MarkovChain(P / P.sum(axis=1, keepdims=True))
    sampler, keys = chain.sampler(), jax.random.split(jax.random.key(3), 4)
    starts, first = jax.vmap(sampler.start)(keys)
    bits = jax.vmap(lambda key: random_block(key, jnp.int32(0)))(starts)
    drawn = np.asarray(route(sampler, first, bits, 0))
    assert np.array_equal(drawn[:-1].T, [chain.sample_path(key, 64)[1:] for key in keys])
    # From other places in the middle of a block the same bits decide, by the probabilities there.
    places = np.array([5, 0, 3, 3])
    again = np.asarray(route(sampler, places, bits, 40))
    cumulative = np.cumsum(chain.P, axis=1)
    for number in range(40, 64):
        shares = np.asarray(bits)[:, number, None] / 2.0**31
        places = (shares >= cumulative[places]).sum(axis=1)
        assert again[number].tolist() == places.tolist()


class RayError(Exception):
    pass


class GetTimeoutError(RayError):
    pass


class RayTaskError(RayError):
    pass


class Clockwork:
    """A Ray whose time is a number: agents that are silent for ever, and the last one, whose process has just died."""

    exceptions = types.SimpleNamespace(RayError=RayError, GetTimeoutError=GetTimeoutError, RayTaskError=RayTaskError)

    def __init__(self, agents, back, loads):
        self.now, self.back, self.loads, self.opened = 0.0, back, loads, False
        self.ray, self.agents, self.names = self, [None] * agents, [f"agent {i}" for i in range(agents)]
        self.missing: Any = None  # what it answers, if not what it should
        self.ask = [*[lambda sent: Reply(math.inf, b"")] * (agents - 1), self.answer]
        methods = {"open": self.open, "here": lambda: Reply(self.now, 7)}
        desk = types.SimpleNamespace(**{k: types.SimpleNamespace(remote=method) for k, method in methods.items()})
        self.desks = [None] * (agents - 1) + [desk]

    def answer(self, sent):
        if self.missing is not None:
            return Reply(self.now + 0.01, self.missing)
        if self.now < self.back:
            return Reply(self.now, RayError("its process died"))
        return Reply(self.now, bytes(8) if self.opened else b"")

    def open(self, walk, program):
        self.opened = True
        return Reply(self.now + self.loads, 1)

    def get(self, ref, timeout=math.inf):
        self.now = max(self.now, min(ref.at, self.now + timeout))
        if ref.at > self.now:
            raise GetTimeoutError
        if isinstance(ref.value, Exception):
            raise ref.value
        return ref.value

    def wait(self, refs, timeout):
        self.now = max(self.now, min(min(ref.at for ref in refs), self.now + timeout))
        return [ref for ref in refs if ref.at <= self.now][:1], []

    def put(self, value):
        return value

    def revive(self, agent, error):
        pass

    def look_until_all_are_back(self, roll):
        while roll.probes:
            self.now += 0.5
            roll.look()

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@dataclasses.dataclass(eq=False)
class Reply:
    at: float
    value: object


@pytest.mark.parametrize("silent", [0, 1, 40, 100])
def test_who_is_restarted_waits_for_nobody_who_is_silent(monkeypatch, silent):
    clock = Clockwork(silent + 1, back=3.0, loads=25.0)
    monkeypatch.setattr(rolls, "time", clock)
    roll = rolls.Roll(clock, b"", b"", 8, 8, 1, patience=60.0)  # type: ignore[arg-type]
    found = roll.ask(dict.fromkeys(range(silent + 1), bytes(8)))()
    assert list(found) == [silent]
    assert roll.present.tolist() == [False] * silent + [True]
    assert sum(roll.restarts) == 1
    assert clock.now == pytest.approx(60.0 if silent else 28.0, abs=0.1)
    assert not roll.openings


def test_what_takes_longer_to_load_than_patience_lasts_is_away(monkeypatch):
    clock = Clockwork(1, back=3.0, loads=90.0)
    monkeypatch.setattr(rolls, "time", clock)
    roll = rolls.Roll(clock, b"", b"", 8, 8, 1, patience=60.0)  # type: ignore[arg-type]
    assert roll.ask({0: bytes(8)})() == {}
    assert clock.now == pytest.approx(60.0)
    assert list(roll.probes) == [0]
    clock.now = 94.0
    roll.look()
    assert roll.everybody
    assert roll.late == 0  # it has said that it is there, and answered nothing


@pytest.mark.parametrize("instead", [b"", RayError("its process died")])
def test_who_is_there_but_never_answers_is_set_aside(monkeypatch, instead):
    """As one that is killed for want of memory whenever it is asked."""
    clock = Clockwork(1, back=0.0, loads=1.0)
    clock.missing = instead
    monkeypatch.setattr(rolls, "time", clock)
    roll = rolls.Roll(clock, b"", b"", 8, 8, 1, patience=60.0)  # type: ignore[arg-type]
    for time in range(rolls.CHANCES):
        assert not roll.reasons
        assert roll.ask({0: bytes(8)})() == {}
        assert clock.now == pytest.approx(60.0 * (time + 1), abs=5.0)
        clock.look_until_all_are_back(roll)
    assert roll.reasons == {0: "no answer within 60 seconds, 3 times in a row"}
    assert not roll.probes


def test_one_good_answer_and_the_count_begins_anew(monkeypatch):
    clock = Clockwork(1, back=0.0, loads=1.0)
    monkeypatch.setattr(rolls, "time", clock)
    roll = rolls.Roll(clock, b"", b"", 8, 8, 1, patience=60.0)  # type: ignore[arg-type]
    for _ in range(2 * rolls.CHANCES):
        clock.missing = RayError("its process died")
        assert roll.ask({0: bytes(8)})() == {}
        clock.look_until_all_are_back(roll)
        clock.missing = None
        assert roll.ask({0: bytes(8)})() == {0: bytes(8)}
    assert roll.everybody


def test_an_answer_that_is_an_array_is_a_wrong_one(monkeypatch):
    clock = Clockwork(1, back=0.0, loads=1.0)
    clock.missing = np.ones(2)
    monkeypatch.setattr(rolls, "time", clock)
    roll = rolls.Roll(clock, b"", b"", 8, 8, 1, patience=60.0)  # type: ignore[arg-type]
    assert roll.ask({0: bytes(8)})() == {}
    assert roll.reasons == {0: "it answered with ndarray, not with bytes"}


# Privacy.


def test_clipping_and_noise():
    feedback = PROBLEM.feedback(ZERO + 0.5, jax.tree.map(lambda leaf: 1e3 * leaf[0], DATA))
    clip = {"loss": 1.0, "loss_grad": 2.0, "constraints": 3.0, "constraint_jac": 4.0}
    clipped = dd.Privacy(types.MappingProxyType(clip)).guard(feedback, jax.random.key(0))
    for part, bound in clip.items():
        whole, cut = np.asarray(getattr(feedback, part)), np.asarray(getattr(clipped, part))
        np.testing.assert_allclose(cut, whole * min(1, bound / np.linalg.norm(whole)), rtol=1e-12)
    assert np.linalg.norm(clipped.loss_grad) == pytest.approx(2.0)
    small = jax.tree.map(lambda leaf: leaf * 1e-9, feedback)
    inside = dd.Privacy(1.0).guard(small, jax.random.key(0))
    assert all(np.array_equal(getattr(inside, part), getattr(small, part)) for part in clip)
    huge = dd.Privacy(1.0).guard(jax.tree.map(lambda leaf: leaf * 1e180, feedback), jax.random.key(0))
    assert np.linalg.norm(huge.constraint_jac) == pytest.approx(1.0)  # the squares would overflow

    noisy = jax.vmap(lambda key: dd.Privacy(clip, noise=0.5).guard(feedback, key))(
        jax.random.split(jax.random.key(1), 4000)
    )
    for part, bound in clip.items():
        error = np.asarray(getattr(noisy, part)) - np.asarray(getattr(clipped, part))
        # 4000 draws or more: standard errors are at most sd / sqrt(8000) of a deviation, sd / sqrt(4000) of a mean.
        assert np.std(error) == pytest.approx(0.5 * bound, rel=4 / math.sqrt(8000))
        assert np.abs(error.mean(axis=0)).max() < 5 * 0.5 * bound / math.sqrt(4000)
    parts = [np.asarray(getattr(noisy, part)).reshape(4000, -1) for part in clip]
    correlation = np.corrcoef(np.concatenate(parts, axis=1), rowvar=False)
    assert np.abs(correlation - np.eye(len(correlation))).max() < 5 / math.sqrt(4000)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clipping_bounds_whatever_comes(dtype):
    """Also what overflows, whose NaN would tell, and what is so large or small that a reciprocal leaves the range."""
    range_, key = np.finfo(dtype), jax.random.key(0)
    clipped, noised = (jax.jit(dd.Privacy(1.0, noise=noise).guard) for noise in (0.0, 2.0))
    for entries, wanted in [
        ([np.nan, 3.0, -4.0], [0, 0.6, -0.8]),
        ([np.inf, -np.inf, 0.5], [0, 0, 0.5]),
        ([np.nan] * 3, [0] * 3),
        ([range_.max, -range_.max, range_.max], np.array([1, -1, 1]) / math.sqrt(3)),
        ([range_.max, 0, 1], [1, 0, 0]),
        ([range_.tiny, 0, 0], [range_.tiny, 0, 0]),
        ([0] * 3, [0] * 3),
    ]:
        part = jnp.asarray(entries, dtype)
        feedback = Feedback(part[0], part, part, {"a": part[:1], "b": part[1:]})
        cut = clipped(feedback, key)
        np.testing.assert_allclose(cut.loss_grad, wanted, rtol=4 * range_.eps)
        jac = np.concatenate([cut.constraint_jac["a"], cut.constraint_jac["b"]])
        np.testing.assert_allclose(jac, wanted, rtol=4 * range_.eps)
        assert abs(cut.loss) <= 1
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(noised(feedback, key)))


def test_epsilon_is_that_of_the_gaussian_mechanism():
    """Against the exact curve of Balle and Wang (2018, theorem 8), and below what Rényi divergences give."""
    dp_accounting = pytest.importorskip("dp_accounting")
    for noise, answers in [(50.0, 1), (50.0, 40), (200.0, 1000)]:
        privacy = dd.Privacy(1.0, noise=noise, delta=1e-6)
        epsilon = privacy.epsilon(answers)
        # Replacing all data of an agent moves four parts by 2 clip each, in units of noise * clip, at every answer.
        shift = math.sqrt(answers) * math.sqrt(4) * 2 / noise
        normal = scipy.stats.norm
        delta = normal.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * normal.cdf(-shift / 2 - epsilon / shift)
        assert delta == pytest.approx(1e-6, rel=1e-3)
        accountant = dp_accounting.rdp.RdpAccountant()
        accountant.compose(dp_accounting.GaussianDpEvent(noise / 4), answers)
        assert 0.5 * accountant.get_epsilon(1e-6) < epsilon < accountant.get_epsilon(1e-6)
    assert dd.Privacy(1.0, noise=1.0).epsilon(0) == 0
    assert dd.Privacy(1.0).epsilon(1) == math.inf


def test_the_same_question_gets_the_same_noise_and_another_another(tmp_path):
    file = tmp_path / "secret"
    secret, questions = Secret(file), np.arange(12, dtype=np.uint32).reshape(4, 3)
    assert file.stat().st_mode & 0o777 == 0o600
    keys = secret.keys(questions)
    assert np.array_equal(keys, Secret(file).keys(questions))  # a restarted process
    assert len({tuple(key) for key in keys}) == 4
    assert not np.array_equal(keys, Secret(None).keys(questions))
    file.write_bytes(b"short")
    with pytest.raises(ValueError, match=r"holds 5 bytes, a secret has 32"):
        Secret(file)


def test_a_secret_is_whole_and_the_same_for_all_who_make_it_at_once(tmp_path, monkeypatch):
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: Secret(tmp_path / "shared").bytes, range(64)))
    assert len(found) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["shared"]

    def full(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        Secret(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def opened_desk(loss, file, *, number=0, name=None, data=1.0, local_rounds=1, batch=1, **privacy):
    """A desk whose answers are nothing but noise, and the secret from which it draws that."""
    cloudpickle = pytest.importorskip("ray.cloudpickle")  # `parcel` without its search for modules
    given = dd.Privacy(**{"clip": 1.0, "noise": 1.0, **privacy}, secret=file)
    flag = "jax_cpu_enable_async_dispatch"  # a desk sets it for its process, and this one is not its own
    before = jax.config.read(flag)
    desk = Desk(cloudpickle.dumps(dd.Agent(np.float64(data), name=name, privacy=given)), number)
    jax.config.update(flag, before)
    problem = ed.Problem(loss, lambda x, xi: jnp.stack([0 * jnp.sum(x)]), ed.Ball(5.0))
    setup: Any = RunSpec(problem, ed.edpp(4.0).bind(problem), cast("Any", None), None, Average())
    setup = setup._replace(stream=None, method=setup.method if local_rounds > 1 else None)  # as `walk` sends it
    desk.open(bytes(wire.NAME), cloudpickle.dumps(wire.on_host(Program(setup, ZERO, 1, local_rounds, batch, True))))
    secret = desk.walks[bytes(wire.NAME)].secret
    assert secret is not None
    return desk, secret.bytes


def test_noise_is_shared_by_nothing_but_the_same_question(tmp_path):
    """Answers to two questions with the same noise would differ by what is to be hidden."""
    file, table = tmp_path / "secret", np.arange(64.0)

    def flat(x, xi):
        return 0 * jnp.sum(x) * xi

    def other(x, xi):
        return 0 * jnp.sum(x**2) * xi

    def with_table(table):
        return lambda x, xi: 0 * jnp.sum(x) * xi * jnp.max(table)

    (desk, secret), (again, same_secret) = opened_desk(flat, file), opened_desk(lambda y, z: 0 * jnp.sum(y) * z, file)
    assert secret == same_secret  # the same function, pickled otherwise
    question = bytes(wire.NAME + ZERO.nbytes)
    noise = np.frombuffer(desk.answer(question), float)
    assert np.array_equal(noise, np.frombuffer(again.answer(question), float))
    for changed in (opened_desk(other, file)[0], opened_desk(flat, file, number=1)[0]):
        assert np.abs(noise - np.frombuffer(changed.answer(question), float)).min() > 1e-6  # not one entry in common

    variants = [
        (with_table(table), {}), (with_table(table + 1e-12), {}),  # the same but for a constant
        (flat, {"name": "b"}), (flat, {"data": 2.0}), (flat, {"clip": 2.0}),
        (flat, {"noise": 2.0}), (flat, {"local_rounds": 2}),
    ]  # fmt: skip
    found = {secret, *(opened_desk(loss, file, **options)[1] for loss, options in variants)}
    assert len(found) == 1 + len(variants)


@pytest.mark.parametrize("local_rounds", [1, 2])
def test_answers_do_not_depend_on_who_else_is_asked_for(tmp_path, local_rounds):
    """Questions are answered a batch at a time, whatever their number is, and the noise is that of each question."""
    options = {"file": tmp_path / "secret", "local_rounds": local_rounds}
    desks = [opened_desk(lambda x, xi: jnp.sum((x - xi) ** 2), **options, batch=batch)[0] for batch in (1, 4)]
    width = desks[0].walks[bytes(wire.NAME)].question.shape[0]
    questions = np.random.default_rng(0).uniform(0.1, 1, (9, width)).view(np.uint64)
    if local_rounds > 1:
        questions[:, 0] = 1  # t
    each = [np.frombuffer(desks[0].answer(bytes(wire.NAME) + row.tobytes()), float) for row in questions]
    for count in range(1, 10):
        for desk in desks:
            answers = np.frombuffer(desk.answer(bytes(wire.NAME) + questions[:count].tobytes()), float)
            np.testing.assert_allclose(answers.reshape(count, -1), each[:count], rtol=1e-12)


HOISTED = """
import numpy as np
from ergodrift.distributed.desk import _described
table = np.arange(64.0)
assert _described(lambda x: x + table, table) is None
assert _described(lambda x: x + 1, table) is not None
"""


def test_a_text_that_does_not_say_all_is_not_relied_on():
    def text(start):
        table = start + np.arange(64.0)
        return _described(lambda x: x[0] + table, ZERO)

    assert text(0) == text(0) != text(1)
    assert _described(lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x), ZERO) is None
    # Read when JAX starts; its authors mean to make it the only way.
    environment = {**os.environ, "JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS": "1", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", HOISTED], env=environment, check=True, timeout=120)


def test_private_walks_count_every_answer(cluster, tmp_path):
    pytest.importorskip("dp_accounting")
    privacy = [dd.Privacy(1.0, noise=100.0, secret=tmp_path / f"secret{i}") for i in range(2)]
    members = [
        dd.Agent(agent.data, name=name, privacy=given)
        for agent, name, given in zip(agents(), ("one", "two", "open"), (*privacy, None), strict=True)
    ]
    run = ed.run(ed.edpp(4.0), PROBLEM, SOURCE, x0=ZERO, num_samples=40, seeds=2, record=1)
    with dd.Network(members) as network:
        for local_rounds in (1, 5):
            options = {"x0": ZERO, "num_samples": 40, "tokens": 2, "local_rounds": local_rounds, "record": 1}
            walk, again = (dd.walk(PROBLEM, GRAPH, network, ed.edpp(4.0), **options) for _ in range(2))
            assert walk.epsilon == {
                name: pytest.approx(privacy[0].epsilon(int(walk.visits[i]) * local_rounds))
                for i, name in enumerate(("one", "two"))
            }
            assert "epsilon" in str(walk)
            close(walk.result, again.result, 0)  # the noise is a function of the question
            assert np.abs(walk.x - run.x[:, -1]).max() > 1e-3


def test_a_walk_is_resumed_under_the_same_privacy_only(cluster, tmp_path):
    pytest.importorskip("dp_accounting")
    file, one = tmp_path / "walk.npz", ed.MarkovChain([[1.0]])

    def member(**changed):
        given = {"clip": 1.0, "noise": 100.0, "secret": tmp_path / "secret"} | changed
        return agents(1, name="a", privacy=dd.Privacy(**given))

    def walk(network):
        return dd.walk(PROBLEM, one, network, ed.edpp(4.0), x0=ZERO, num_samples=10, record=1, checkpoint=file)

    with dd.Network(member()) as network:
        first = walk(network)
        for changed in ({"clip": 2.0}, {"noise": 200.0}, {"delta": 1e-3}):
            network.agents = member(**changed)
            with pytest.raises(ValueError, match=r"it belongs to a run with other arguments"):
                walk(network)
        file.unlink()
        network.agents = member(noise=0.0)
        assert walk(network).epsilon == {}  # no privacy to account for
    file.unlink()
    with dd.Network(member()) as network:
        again = walk(network)
    close(first.result, again.result, 0)  # another process, the same secret file
    assert again.epsilon == first.epsilon == {"a": dd.Privacy(1.0, noise=100.0).epsilon(10)}


# What is refused.


def refused(error, match, **changed):
    given = {
        "problem": PROBLEM, "graph": GRAPH, "agents": agents(), "algorithm": ed.edpp(4.0), "x0": ZERO,
        "num_samples": 10,
    } | changed  # fmt: skip
    with pytest.raises(error, match=match):
        dd.walk(**given)


def test_wrong_arguments_are_named_before_any_process_starts(tmp_path):
    refused(TypeError, r"problem must be of type Problem", problem=1)
    refused(TypeError, r"algorithm must be of type Algorithm", algorithm="edpp")
    refused(ValueError, r"graph has 4 nodes, but there are 3 agents", graph=np.ones((4, 4)) - np.eye(4))
    refused(TypeError, r"agents must hold Agent", agents=[1, 2, 3])
    refused(TypeError, r"agents must be a list of Agent\(data\), got NoneType", agents=None)
    refused(ValueError, r"tokens must be between 1", tokens=0)
    refused(ValueError, r"tokens must differ from each other", tokens=[1, 1])
    refused(ValueError, r"agents: two of them have the name 'a'", agents=agents(name="a"))
    refused(ValueError, r"num_samples=10 must be a multiple of local_rounds=3", local_rounds=3)
    refused(ValueError, r"local_rounds must be between 1", local_rounds=0)
    refused(ValueError, r"quorum must be between 1 and 3, got 4", quorum=4)
    refused(ValueError, r"patience must be > 0", patience=0)
    refused(ValueError, r"combine must be 'mean' or None", combine="median")
    refused(ValueError, r"record must hold multiples of local_rounds=2", record=[3], local_rounds=2)
    refused(
        ValueError, r"paths must hold agents between 0 and 2, got 0 to 7", paths=np.full(10, 7) * (np.arange(10) > 0)
    )
    for length in (4, 11):
        refused(ValueError, r"whole numbers of shape \(tokens, hops\) = \(1, 10\)", paths=np.zeros(length, int))
    refused(ValueError, r"x0 lies outside Ball", x0=ZERO + 5)
    refused(ValueError, r"the folder of .* does not exist", checkpoint=tmp_path / "no" / "file")
    with files.locked(tmp_path / "walk.npz", "checkpoint"):
        wanted = r"checkpoint .*walk\.npz is in use by another run in this process"
        refused(ValueError, wanted, checkpoint=tmp_path / "walk.npz")
    refused(ValueError, r"average must be", average="median")
    with pytest.raises(ValueError, match=r"a file must end in one of"):
        dd.Agent("data.csv")
    with pytest.raises(TypeError, match=r"privacy must be a Privacy"):
        dd.Agent(ZERO, privacy=1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"clip must be a number or have the keys"):
        dd.Privacy({"loss": 1.0})
    with pytest.raises(ValueError, match=r"resources\['site:a'\] must be > 0"):
        dd.Agent(ZERO, resources={"site:a": 0})
    with pytest.raises(ValueError, match=r"agents is empty"):
        dd.Network([])


def test_agents_that_cannot_take_part_are_named(cluster, monkeypatch):
    def broken():
        raise FileNotFoundError("/data/site-b.parquet")

    def other():
        return jax.tree.map(lambda leaf: leaf[0], cases.random_data(np.random.default_rng(0), 1, DIM, 2))

    one = ed.MarkovChain([[1.0]])
    for data, reason in [
        (broken, r"b cannot take part: .*site-b\.parquet"),
        (np.array([np.nan]), r"b cannot take part: .*nan at index"),
        (np.ones(3), r"b cannot take part: .*loss\(x, xi\) fails"),
    ]:
        with dd.Network([dd.Agent(data, name="b")]) as network, pytest.raises(dd.AgentError, match=reason):
            dd.walk(PROBLEM, one, network, ed.edpp(4.0), x0=ZERO, num_samples=4)
    two = [agents()[0], dd.Agent(other, name="b")]
    with pytest.raises(dd.AgentError, match=r"b has 4 constraints, but agent 0 has 2"):
        dd.walk(PROBLEM, np.ones((2, 2)) - np.eye(2), two, ed.edpp(4.0), x0=ZERO, num_samples=4)
    monkeypatch.setattr(networks, "START", 3.0)
    far = [dd.Agent(agents()[1].data, name="b", resources={"site:mars": 1})]
    with pytest.raises(dd.AgentError, match=r"b was not ready in time; is there a node with {'site:mars': 1}"):
        dd.walk(PROBLEM, one, far, ed.edpp(4.0), x0=ZERO, num_samples=4, patience=3)


def test_a_network_is_for_one_walk_at_a_time_until_it_is_closed(cluster):
    options = {"x0": ZERO, "num_samples": 4}
    with dd.Network(agents()) as network:
        with network.one_walk(), pytest.raises(RuntimeError, match=r"there is a walk on this Network already"):
            dd.walk(PROBLEM, GRAPH, network, ed.edpp(4.0), **options)
        with pytest.raises(ValueError, match=r"x0"):
            dd.walk(PROBLEM, GRAPH, network, ed.edpp(4.0), x0=ZERO + 9, num_samples=4)
        assert dd.walk(PROBLEM, GRAPH, network, ed.edpp(4.0), **options).hops == 4
    with pytest.raises(RuntimeError, match=r"this Network is closed"):
        dd.walk(PROBLEM, GRAPH, network, ed.edpp(4.0), **options)


def test_an_address_where_nobody_is_is_said_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens there
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=rf"address='{address}': nobody answers there .*is the cluster up"):
            networks._knock(address)
        taken.listen()
        for good in (address, "auto", "local", "ray://192.0.2.1:10001"):
            networks._knock(good)


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=re.escape('pip install "ergodrift[ray]"')):
        dd.Network(agents())
