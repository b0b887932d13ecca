"""What the tests of walks over real agents share: a small problem, its agents, and what is compared."""

import jax
import numpy as np

import cases
import ergodrift as ed
from ergodrift import distributed as dd
from ergodrift.distributed.tokens import MOVED, Hub
from ergodrift.distributed.walk_loop import WalkLoop

AGENTS, DIM = 3, 3
GRAPH = np.ones((AGENTS, AGENTS)) - np.eye(AGENTS)
PROBLEM = ed.Problem(cases.loss, cases.constraints, ed.Ball(1.5))
DATA = cases.random_data(np.random.default_rng(0), AGENTS, DIM, 1)
SOURCE = ed.MarkovSource(ed.MarkovChain.from_graph(GRAPH), DATA)
ZERO = np.zeros(DIM)
EDPP = ed.edpp(4.0)


def agents(count=AGENTS, **options):
    """Agents with the data of the first states of `SOURCE`."""
    return [dd.Agent(jax.tree.map(lambda leaf, i=i: leaf[i], DATA), **options) for i in range(count)]


def numbers(result):
    """All numbers of a result, by name."""
    kept = ("rounds", "samples_used", "x", "x_mean", "queue", "weights", "loss_sum", "constraint_sum", "solution")
    return {
        f"{name}{jax.tree_util.keystr(path)}": np.asarray(leaf)
        for name in kept
        for path, leaf in jax.tree_util.tree_leaves_with_path(getattr(result, name))
    }


def same(one, other):
    """Whether two results are equal to the last bit."""
    pairs = zip(numbers(one).values(), numbers(other).values(), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def close(one, other, tolerance):
    """Whether two results are equal up to a share of each number's size (or of 1, where that is larger)."""
    for (name, a), b in zip(numbers(one).items(), numbers(other).values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=name)


def walk(network, **options):
    given = {"graph": GRAPH, "algorithm": EDPP, "x0": ZERO, "num_samples": 60, "record": 5} | options
    return dd.walk(problem=PROBLEM, agents=network, **given)


class Visited:
    """Keeps where each token was when it made a round."""

    def __init__(self, monkeypatch):
        self.hops = []
        before = Hub.absorb

        def absorb(hub, tokens, answers):
            tokens, questions = before(hub, tokens, answers)
            asked = answers.reshape(len(questions), -1)[:, -2].astype(int)
            self.hops.append(np.where(questions[:, -1] == MOVED, asked, -1))
            return tokens, questions

        monkeypatch.setattr(Hub, "absorb", absorb)

    def path(self, token):
        places = np.array(self.hops)[:, token]
        return places[places >= 0]


def at_hop(monkeypatch, actions):
    """Do something at some hops, while the agents are being asked."""
    before = WalkLoop._observe

    def observe(loop):
        actions.pop(loop.hop, lambda: None)()
        return before(loop)

    monkeypatch.setattr(WalkLoop, "_observe", observe)
