"""Those to whom questions go: the agents of a network, or processes that many of them share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ergodrift.distributed.agent import Agent
from ergodrift.distributed.replies import LostError

START_TIMEOUT = 120.0  # seconds that agents have at least to start and to load their data
RETRY_DELAY = 0.02  # seconds before an agent whose process died is asked again, or one that is away is looked for


class AgentError(RuntimeError):
    """An agent cannot take part; the message names it and says why."""


class QuorumError(RuntimeError):
    """Too few agents are left to go on; the message says where the state of the walk is kept."""


class Peers(Protocol):
    """What a conversation needs to know of them. Lists are by number; `ask[i]` sends a question to the i-th actor."""

    ray: Any
    agents: list[Agent]
    names: list[str]
    actors: list[Any]
    ask: list[Any]
    excluded: set[str]
    changes: int

    def restart(self, number: int, error: LostError) -> None:
        """Start one anew where Ray has given it up."""
        ...


class Starter(Peers, Protocol):
    """Who can start actors, and sign what is sent to them."""

    key: str | os.PathLike[str] | None

    def actor(self, kind: type, resources: Mapping[str, float], *arguments: object, concurrency: int = 1) -> Any:
        """An actor of this class on a node that has these resources; Ray restarts it whenever its process dies."""
        ...


class Surveyed(Peers, Protocol):
    """A network whose agents can all be asked at once."""

    hosts: Any
    key: str | os.PathLike[str] | None

    def exclusive(self) -> AbstractContextManager[None]:
        """Refuse other walks meanwhile."""
        ...
