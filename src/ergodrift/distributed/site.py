"""What the owner of a machine decides there, whatever a hub asks for: who its agents are, and which hubs they obey."""

from __future__ import annotations

import dataclasses
import importlib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ergodrift.distributed.agent import Agent
from ergodrift.distributed.masks import Secure
from ergodrift.distributed.privacy import Privacy

VARIABLE = "ERGODRIFT_SITE"  # where `ray start` is run on the machine of the agents


@dataclasses.dataclass(frozen=True)
class Site:
    """The rules of a machine, in a TOML file that the environment variable ERGODRIFT_SITE names there.

    With it, an agent of that machine is what the file says, not what the hub says, and others are refused::

        hub_keys = ["/etc/ergodrift/hub.pub"]

        [agents."north/0"]
        data = "/srv/site/rows-0.npz"     # or "package.module:function"
        log = "/var/log/ergodrift/north-0.log"
        privacy = { clip = 1.0, noise = 400.0, delta = 1e-5, budget = 2.0, ledger = "/srv/site/ledger-0" }
        secure = { fewest = 5 }

    Attributes:
        hub_keys: files with the Ed25519 public keys (PEM) of hubs whose functions are run here; all hubs, if empty.
        agents: by name; those of the hub, if there are none.
    """

    hub_keys: tuple[str, ...] = ()
    agents: Mapping[str, Agent] = dataclasses.field(default_factory=dict)

    @staticmethod
    def read(path: str | Path) -> Site:
        """The rules in this file."""
        said = tomllib.loads(Path(path).read_text())
        if unknown := set(said) - {"hub_keys", "agents"}:
            raise ValueError(f"{path}: a site has hub_keys and agents, not {', '.join(sorted(unknown))}")
        agents = {name: _agent(name, dict(given)) for name, given in said.get("agents", {}).items()}
        return Site(tuple(said.get("hub_keys", ())), agents)

    @staticmethod
    def here() -> Site:
        """The rules of this machine, which has none unless its environment names them."""
        path = os.environ.get(VARIABLE)
        return Site.read(path) if path else Site()


def _agent(name: str, given: dict[str, Any]) -> Agent:
    data = given.pop("data")
    module, colon, function = data.partition(":")
    if colon and not Path(data).exists():
        data = getattr(importlib.import_module(module), function)
    for option, kind in (("privacy", Privacy), ("secure", Secure)):
        if option in given:
            given[option] = kind(**given[option])
    return Agent(data, name=name, **given)
