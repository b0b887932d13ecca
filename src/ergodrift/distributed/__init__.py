"""Token walks over real agents, on Ray: data stay where they are, tokens (x_t, Q_t) go from neighbour to neighbour."""

from ergodrift.distributed.agent import Agent
from ergodrift.distributed.masks import Secure
from ergodrift.distributed.minibatch import minibatch
from ergodrift.distributed.network import AgentError, Network, QuorumError
from ergodrift.distributed.outcome import Arrivals, Walk
from ergodrift.distributed.partitions import partitions
from ergodrift.distributed.privacy import Privacy
from ergodrift.distributed.routes import Changing, SelfRepellent, hastings, levy, paced
from ergodrift.distributed.site import Site
from ergodrift.distributed.survey import Evaluation
from ergodrift.distributed.walk import walk

__all__ = [
    "Agent",
    "AgentError",
    "Arrivals",
    "Changing",
    "Evaluation",
    "Network",
    "Privacy",
    "QuorumError",
    "Secure",
    "SelfRepellent",
    "Site",
    "Walk",
    "hastings",
    "levy",
    "minibatch",
    "paced",
    "partitions",
    "walk",
]
