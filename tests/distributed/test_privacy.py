"""Clipping and noise are what they promise, and what they cost is counted."""

import math
import os
import types
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

import ergodrift as ed
from ergodrift import distributed as dd
from ergodrift.distributed.privacy import Secret
from ergodrift.types import Feedback
from walks import DATA, EDPP, PROBLEM, ZERO, agents, close

pytestmark = pytest.mark.x64("walks equal their simulation to float64's digits")


def test_clipping_and_noise():
    feedback = PROBLEM.feedback(ZERO + 0.5, jax.tree.map(lambda leaf: 1e3 * leaf[0], DATA))
    clip = {"loss": 1.0, "loss_grad": 2.0, "constraints": 3.0, "constraint_jac": 4.0}
    clipped = jax.jit(dd.Privacy(types.MappingProxyType(clip)).guard)(feedback, jax.random.key(0))
    for part, bound in clip.items():
        whole, cut = np.asarray(getattr(feedback, part)), np.asarray(getattr(clipped, part))
        np.testing.assert_allclose(cut, whole * min(1, bound / np.linalg.norm(whole)), rtol=1e-12)
    assert np.linalg.norm(clipped.loss_grad) == pytest.approx(2.0)
    small = jax.tree.map(lambda leaf: leaf * 1e-9, feedback)
    guard = jax.jit(dd.Privacy(1.0).guard)
    inside = guard(small, jax.random.key(0))
    assert all(np.array_equal(getattr(inside, part), getattr(small, part)) for part in clip)
    huge = guard(jax.tree.map(lambda leaf: leaf * 1e180, feedback), jax.random.key(0))
    assert np.linalg.norm(huge.constraint_jac) == pytest.approx(1.0)  # the squares would overflow

    noise = jax.jit(jax.vmap(lambda key: dd.Privacy(clip, noise=0.5).guard(feedback, key)))
    noisy = noise(jax.random.split(jax.random.key(1), 4000))
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


@pytest.mark.slow
def test_private_walks_count_every_answer(cluster, tmp_path):
    pytest.importorskip("dp_accounting")
    privacy = dd.Privacy(1.0, noise=100.0, secret=tmp_path / "secret")
    private, public = (agent.data for agent in agents(2))
    source = ed.MarkovSource(ed.MarkovChain.from_graph(1 - np.eye(2)), jax.tree.map(lambda leaf: leaf[:2], DATA))
    run = ed.run(EDPP, PROBLEM, source, x0=ZERO, num_samples=40, seeds=2, record=1)
    with dd.Network([dd.Agent(private, name="private", privacy=privacy), dd.Agent(public, name="open")]) as network:
        for local_rounds in (1, 5):
            options = {"x0": ZERO, "num_samples": 40, "tokens": 2, "local_rounds": local_rounds, "record": 1}
            walk, again = (dd.walk(EDPP, PROBLEM, 1 - np.eye(2), network, **options) for _ in range(2))
            assert walk.epsilon == {"private": pytest.approx(privacy.epsilon(int(walk.visits[0]) * local_rounds))}
            assert "epsilon" in str(walk)
            close(walk.result, again.result, 0)  # the noise is a function of the question
            assert np.abs(walk.x - run.x[:, -1]).max() > 1e-3


@pytest.mark.slow
def test_a_walk_is_resumed_under_the_same_privacy_only(cluster, tmp_path):
    pytest.importorskip("dp_accounting")
    file, one = tmp_path / "walk.npz", ed.MarkovChain([[1.0]])

    def member(**changed):
        given = {"clip": 1.0, "noise": 100.0, "secret": tmp_path / "secret"} | changed
        return agents(1, name="a", privacy=dd.Privacy(**given))

    def walk(network):
        return dd.walk(ed.edpp(4.0), PROBLEM, one, network, x0=ZERO, num_samples=10, record=1, checkpoint=file)

    with dd.Network(member()) as network:
        first = walk(network)
    with dd.Network(member(noise=0.0)) as network:
        with pytest.raises(ValueError, match=r"it belongs to a run with other arguments: changed privacy;"):
            walk(network)
        file.unlink()
        assert walk(network).epsilon == {}  # no privacy to account for
    file.unlink()
    with dd.Network(member()) as network:
        again = walk(network)
    close(first.result, again.result, 0)  # another process, the same secret file
    assert again.epsilon == first.epsilon == {"a": dd.Privacy(1.0, noise=100.0).epsilon(10)}
