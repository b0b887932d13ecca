"""Token walks over real agents, on Ray: data stay where they are, tokens (x_t, Q_t) go from neighbour to neighbour."""

from ergodrift.distributed.agent import Agent
from ergodrift.distributed.masks import Secure
from ergodrift.distributed.network import AgentError, Network, QuorumError
from ergodrift.distributed.outcome import Walk
from ergodrift.distributed.privacy import Privacy
from ergodrift.distributed.site import Site
from ergodrift.distributed.walk import walk

__all__ = ["Agent", "AgentError", "Network", "Privacy", "QuorumError", "Secure", "Site", "Walk", "walk"]
