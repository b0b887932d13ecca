"""Walks at scale, each number beside what it was before: many agents, a slow agent, memory of agents, starting.

"before" was measured on the same kind of machine, two cores, when all tokens hopped together, every agent was an actor
of Ray, and the hub copied what RDPP remembers at every hop. Prints a table and writes bench-results/walk_scale.json.

    python benchmarks/walk_scale.py [--agents N]
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from common import write

import ergodrift as ed
from ergodrift import distributed as dd
from ergodrift.data.source import level_keys, path_keys, seed_keys
from ergodrift.data.stream import TableStream
from ergodrift.distributed import wire
from ergodrift.distributed.tokens import Hub, RandomBits
from ergodrift.distributed.wire import WalkSpec
from ergodrift.engine import loop
from ergodrift.methods.average import Average

NAP = 0.2  # seconds that the slow agent takes for a message


def ring(count):
    at = np.arange(count)
    near = np.r_[(at + 1) % count, (at - 1) % count]
    return scipy.sparse.csr_array((np.ones(2 * count), (np.r_[at, at], near)), shape=(count, count))


def loss(x, xi):
    return jnp.sum((x - xi) ** 2)


def constraints(x, xi):
    return x[:1] - xi[:1]


def nap(seconds):
    time.sleep(float(seconds))
    return np.zeros(())


def drowsy_loss(x, xi):
    return loss(x, xi["centre"]) + jax.pure_callback(nap, jax.ShapeDtypeStruct((), x.dtype), xi["nap"])


def drowsy_constraints(x, xi):
    return constraints(x, xi["centre"])


PROBLEM = ed.Problem(loss, constraints, ed.Ball(1.0))
CALLS = []  # in a process of an agent's own, how often it was asked


def brief(lives):
    """What ends its process once it has been asked so often."""
    CALLS.append(1)
    if len(CALLS) > lives:
        os._exit(1)
    return np.zeros(())


def brief_loss(x, xi):
    return loss(x, xi["centre"]) + jax.pure_callback(brief, jax.ShapeDtypeStruct((), x.dtype), xi["lives"])


BRIEF = ed.Problem(brief_loss, drowsy_constraints, ed.Ball(1.0))
DROWSY = ed.Problem(drowsy_loss, drowsy_constraints, ed.Ball(1.0))


def centre(number):
    return np.random.default_rng(number).normal(size=3)


def rdpp_hops(agents, dimension=100, tokens=64, hops=200):
    """Hops per second of RDPP at the hub alone."""
    algorithm = ed.rdpp()
    estimator = algorithm.estimator.for_run(1000, None, np.full(agents, 1 / agents))
    method = dataclasses.replace(algorithm, estimator=estimator).bind(PROBLEM)
    run_spec = loop.RunSpec(PROBLEM, method, TableStream(RandomBits(), None), None, Average.of(algorithm.average))
    hub, keys = Hub(wire.on_host(WalkSpec(run_spec, np.zeros(dimension), 1, 1, 1, True))), seed_keys(tokens)
    state, rng = hub.start(path_keys(keys), level_keys(keys)), np.random.default_rng(0)

    def answers():
        rows = np.zeros((tokens, hub.width + 2), hub.word)
        rows[:, :-2] = rng.normal(size=(tokens, hub.width)).view(hub.word)
        rows[:, -2], rows[:, -1] = rng.integers(0, agents, tokens), 1
        return rows

    given, began = [answers() for _ in range(hops + 20)], 0.0
    for number, rows in enumerate(given):
        if number == 20:
            began = time.perf_counter()
        state, _ = hub.absorb(state, rows)
    return hops / (time.perf_counter() - began)


def proportional_megabytes(processes):
    """Memory of processes, what several share counted once."""
    lines = (line for one in set(processes) for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines())
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def crowd(agents):
    """Seconds from nothing to the end of the first hops, and token-hops per second after that."""
    began = time.perf_counter()
    members = [dd.Agent(functools.partial(centre, number)) for number in range(agents)]
    chain = ed.MarkovChain.from_graph(ring(agents))
    with dd.Network(members) as network:
        options = {"x0": np.zeros(3), "tokens": 1024, "record": 1}
        dd.walk(ed.edpp(10.0), PROBLEM, chain, network, num_samples=5, **options)
        started = time.perf_counter() - began
        rates = [dd.walk(ed.edpp(10.0), PROBLEM, chain, network, num_samples=300, **options).rate for _ in range(2)]
    return started, max(rates)


def alone(agents=50):
    """Seconds to the end of the first hops, and megabytes, of agents in processes of their own."""
    began = time.perf_counter()
    members = [dd.Agent(functools.partial(centre, number)) for number in range(agents)]
    with dd.Network(members) as network:
        dd.walk(ed.edpp(10.0), PROBLEM, ring(agents), network, x0=np.zeros(3), num_samples=5, tokens=8, record=1)
        return time.perf_counter() - began, proportional_megabytes(network.processes())


def slow(agents=8, tokens=16):
    """Token-hops per second where all are quick, where one is slow, and where it is visited as often as it can be."""
    rates = {}
    for name, seconds in [("quick", 0.0), ("one slow", NAP)]:
        members = [dd.Agent({"centre": centre(i), "nap": seconds * (i == 0)}) for i in range(agents)]
        graph = ring(agents)
        with dd.Network(members) as network:
            go = functools.partial(dd.walk, ed.edpp(10.0), DROWSY, x0=np.zeros(3), tokens=tokens, record=1)
            rates[name] = go(graph=graph, agents=network, num_samples=400 if seconds else 1000).rate
            if seconds:
                rates["one slow, with a barrier"] = go(graph=graph, agents=network, num_samples=40, barrier=True).rate
                chain = dd.paced(graph, np.where(np.arange(agents) == 0, NAP, 1e-3))
                paced = go(graph=chain, agents=network, num_samples=2000, law="uniform")
                rates["one slow, a paced walk"] = paced.rate
    return rates


def crashes(hops=400):
    """How often an agent is started anew that ends after every ten answers, in so many hops."""
    members = [dd.Agent({"centre": centre(i), "lives": 10 if i == 0 else 10**9}) for i in range(2)]
    graph, there = 1 - np.eye(2), np.zeros(hops, int)
    with dd.Network(members) as network:
        found = dd.walk(ed.edpp(10.0), BRIEF, graph, network, x0=np.zeros(3), num_samples=hops, paths=there, quorum=1)
    return int(found.restarts[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--agents", type=int, default=100_000)
    count = parser.parse_args().agents
    jax.config.update("jax_enable_x64", True)
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    rows = {}
    for agents, before in [(50, 224), (5000, 1.3)]:
        rows[f"RDPP at the hub, hops/s, {agents:,} agents, d = 100, 64 tokens"] = before, rdpp_hops(agents)
    rates = slow()
    rows["8 agents, 16 tokens, token-hops/s"] = 1878, rates["quick"]
    rows["the same, one agent sleeps 0.2 s"] = 68, rates["one slow"]
    rows["the same, with a barrier"] = 68, rates["one slow, with a barrier"]
    rows["the same, visited by its pace, law='uniform'"] = None, rates["one slow, a paced walk"]
    seconds, megabytes = alone()
    rows["50 agents in processes of their own: seconds to start"] = 78, seconds
    rows["50 agents in processes of their own: MB"] = 7100, megabytes
    for agents, before in [(5_000, 67_696), (count, 28_103 if count == 100_000 else None)]:
        seconds, rate = crowd(agents)
        rows[f"{agents:,} agents: seconds to start"] = None, seconds
        rows[f"{agents:,} agents, 1,024 tokens, token-hops/s (before: hub alone)"] = before, rate
    rows["400 hops at an agent that ends after every ten answers: starts"] = 39, crashes()
    print(f"{'':70}{'before':>10}{'now':>12}")
    for name, (before, now) in rows.items():
        print(f"{name:70}{'-' if before is None else f'{before:,.4g}':>10}{now:12,.1f}")
    write("walk_scale", {"rows": {name: {"before": before, "now": now} for name, (before, now) in rows.items()}})


if __name__ == "__main__":
    main()
