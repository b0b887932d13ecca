"""Token walks over real agents: data stay where they are, tokens (x_t, Q_t) walk from neighbour to neighbour, on Ray."""

from ergodrift.distributed.agent import Agent
from ergodrift.distributed.network import AgentError, Network, QuorumError
from ergodrift.distributed.outcome import Walk
from ergodrift.distributed.walk import walk

__all__ = ["Agent", "AgentError", "Network", "QuorumError", "Walk", "walk"]
