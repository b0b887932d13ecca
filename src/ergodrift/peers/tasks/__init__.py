"""The tasks by name. Each is built when it is called for, and needs no packages but its own."""

import functools
from collections.abc import Callable

from ergodrift.peers.task import Task
from ergodrift.peers.tasks.electricity import capacity, interval
from ergodrift.peers.tasks.finance import cvar, hedge, tracking
from ergodrift.peers.tasks.paper import design
from ergodrift.peers.tasks.people import adult_parity, compas_parity, neyman_pearson
from ergodrift.peers.tasks.queue import queues
from ergodrift.peers.tasks.travel import carriers, network

TASKS: dict[str, Callable[..., Task]] = {
    "flights": carriers,
    "compas": compas_parity,
    "adult": adult_parity,
    "neyman": neyman_pearson,
    "cvar": cvar,
    "tracking": tracking,
    "hedge": hedge,
    "capacity": capacity,
    "prices": interval,
    "queue": queues,
    "network": network,
    "paper-default": functools.partial(design, "default"),
    "paper-wide": functools.partial(design, "wide"),
    "paper-infeasible-start": functools.partial(design, "infeasible-start"),
}

__all__ = ["TASKS"]
