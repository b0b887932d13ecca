"""What a walk leaves."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from ergodrift.data.chain import MarkovChain
from ergodrift.engine.result import Result
from ergodrift.types import Array, PyTree


class Arrivals(NamedTuple):
    """In which order answers came: all that a walk without a barrier leaves to chance.

    A turn is what was absorbed at once, a message what an agent was asked at once. One entry for every visit of a
    token, in the order of absorption.

    Attributes:
        token: whose visit.
        agent: whom it asked.
        message: the number of the message it was asked in.
        turn: the number of the turn it was absorbed in.
        answered: whether there was an answer.
    """

    token: np.ndarray
    agent: np.ndarray
    message: np.ndarray
    turn: np.ndarray
    answered: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Walk:
    """What a walk leaves: its tokens as the seeds of a `Result`, and what it took to move them.

    Attributes:
        result: the records, leading axes (tokens, records), for `metrics`. Regret needs the path, which is not known
            where a token had to go elsewhere or hold its place.
        solution: the mean of the tokens' solutions, or all of them, leading axis tokens, with combine=None.
        agents: the names of the agents, in the order of the arrays below.
        visits: (agents,) answers that were absorbed, one per token.
        held: (tokens,) hops at which a token held its place and made no round.
        unanswered: (agents,) how many of these were for want of this agent's answer.
        set_aside: why, for each agent that was not there at the end.
        loud: for each agent whose answers were far beyond others' and taken in all the same, which and by how much.
        messages: (agents,) questions and answers that travelled.
        bytes: (agents,) what these held, without what Ray and the network wrap around it.
        hops: how often all tokens moved.
        local_rounds: rounds per visit.
        seconds: how long this took, waiting included; of the last part, where a walk was resumed.
        rate: hops per second, all tokens counted, from the second hop on (compilation is over by then).
        restarts: (agents,) how often an agent did not know the walk, as after a restart of its process.
        late: answers that came after their hop was made without them, and were discarded.
        epsilon: for each agent with noise, the privacy cost, at its delta, of all its answers in this walk; those of
            other walks on the same data come on top.
        components: how many connected components the agents that are not set aside form; a token stays in its own.
        chain: the walk, as a Markov chain on the agents.
        arrivals: the order in which answers came, where it was kept.
    """

    result: Result
    solution: PyTree
    agents: tuple[str, ...]
    visits: np.ndarray
    held: np.ndarray
    unanswered: np.ndarray
    set_aside: dict[str, str]
    messages: np.ndarray
    bytes: np.ndarray
    hops: int
    local_rounds: int
    seconds: float
    rate: float
    restarts: np.ndarray
    late: int
    epsilon: dict[str, float]
    components: int
    chain: MarkovChain
    arrivals: Arrivals | None = None
    loud: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def x(self) -> PyTree:
        """The tokens' last points."""
        return jax.tree.map(lambda leaf: leaf[:, -1], self.result.x)

    @property
    def queue(self) -> Array:
        """The tokens' last queues."""
        return self.result.queue[:, -1]

    def __str__(self) -> str:
        tokens = len(np.asarray(self.result.seeds))
        head = (
            f"{self.result.name}: {tokens} token{'s' * (tokens > 1)}, {self.hops:,} hops each, "
            f"{self.local_rounds} round{'s' * (self.local_rounds > 1)} per visit; {self.rate:,.0f} hops per second, "
            f"{self.held.sum()} held, {self.late} late"
        )
        if self.components > 1:
            head += f"; without those set aside the graph has {self.components} components"
        wide = max(len(name) for name in (*self.agents, "agent"))
        columns = f"{'visits':>12}{'messages':>12}{'kB':>12}{'restarts':>10}"
        lines = [head, f"{'agent':{wide}}{columns}"]
        for number, name in enumerate(self.agents):
            row = f"{name:{wide}}{self.visits[number]:12,}{self.messages[number]:12,}"
            row += f"{self.bytes[number] / 1e3:12,.1f}{self.restarts[number]:10}"
            if name in self.epsilon:
                row += f"  epsilon {self.epsilon[name]:.3g}"
            row += f"  loud: {self.loud[name]}" if name in self.loud else ""
            lines.append(row + (f"  set aside: {self.set_aside[name]}" if name in self.set_aside else ""))
        total = f"{'all':{wide}}{self.visits.sum():12,}{self.messages.sum():12,}{self.bytes.sum() / 1e3:12,.1f}"
        return "\n".join([*lines, f"{total}{self.restarts.sum():10}"])
