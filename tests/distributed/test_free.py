"""Without a barrier: tokens move on when their own answer is there, and their numbers know nothing of it."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift import distributed as dd
from walks import ZERO, close, same, walk

pytestmark = pytest.mark.x64("walks equal their simulation to float64's digits")

AGENTS, TOKENS, NAP = 4, 8, 0.05
GRAPH = np.ones((AGENTS, AGENTS)) - np.eye(AGENTS)
CENTRES = np.random.default_rng(0).normal(size=(AGENTS, 3))


def nap(seconds):
    time.sleep(float(seconds))
    return np.zeros(())


def loss(x, xi):
    late = jax.pure_callback(nap, jax.ShapeDtypeStruct((), x.dtype), xi["nap"])
    return jnp.sum((x - xi["centre"]) ** 2) + late


def constraints(x, xi):
    return x[:1] - xi["centre"][:1]


PROBLEM = ed.Problem(loss, constraints, ed.Ball(1.5))


@pytest.fixture(scope="module")
def drowsy(cluster):
    """Agents the first of which sleeps over every message."""
    members = [dd.Agent({"centre": centre, "nap": NAP * (i == 0)}) for i, centre in enumerate(CENTRES)]
    with dd.Network(members) as network:
        yield network


def go(network, **options):
    given = {"x0": ZERO, "num_samples": 70, "tokens": TOKENS, "record": 7} | options
    return dd.walk(ed.edpp(4.0), PROBLEM, GRAPH, network, **given)


@pytest.mark.slow
def test_a_slow_agent_holds_up_those_who_are_with_it_alone(drowsy):
    """All make the hops and numbers of `run`; with a barrier nearly every hop would wait for the slow one."""
    free, bound = go(drowsy, arrivals=True), go(drowsy, barrier=True)
    source = ed.MarkovSource(ed.MarkovChain.from_graph(GRAPH), {"centre": CENTRES, "nap": np.zeros(AGENTS)})
    close(free.result, ed.run(ed.edpp(4.0), PROBLEM, source, x0=ZERO, num_samples=70, seeds=TOKENS, record=7), 1e-12)
    assert same(free.result, bound.result)
    assert np.array_equal(free.visits, bound.visits)
    # With a barrier no token is ever more than one hop ahead of another.
    assert free.arrivals is not None
    made = np.cumsum(np.arange(TOKENS)[:, None] == free.arrivals.token[None], axis=1)
    assert (made.max(axis=0) - made.min(axis=0)).max() > 3
    replayed = go(drowsy, arrivals=free.arrivals)
    assert same(replayed.result, free.result)
    assert replayed.arrivals is not None
    for name, one, other in zip(free.arrivals._fields, free.arrivals, replayed.arrivals, strict=True):
        assert np.array_equal(one, other), name


@pytest.mark.slow
def test_a_free_walk_is_resumed_wherever_its_tokens_are(network, tmp_path, monkeypatch):
    from ergodrift.distributed.free_loop import FreeLoop

    file, options = tmp_path / "walk.npz", {"tokens": 5, "num_samples": 150, "algorithm": ed.mdpp()}
    whole, before = walk(network, **options), FreeLoop._absorb
    made = []

    def absorb(loop, heard):

        before(loop, heard)
        made.append(loop.made.copy())
        if loop.made.sum() > 400:
            loop.save()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FreeLoop, "_absorb", absorb)
        with pytest.raises(KeyboardInterrupt):
            walk(network, checkpoint=file, **options)
    resumed = walk(network, checkpoint=file, **options)
    assert same(whole.result, resumed.result)
    assert np.array_equal(whole.visits, resumed.visits)
