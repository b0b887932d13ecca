"""`ergodrift walk`: tokens over agents in processes of their own, on this machine or on a cluster."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from ergodrift._core import check
from ergodrift.cli.common import UsageError, add_output, keep_others, make_room, needs, ready
from ergodrift.experiments.graphs import GRAPHS
from ergodrift.experiments.network import ALGORITHMS, KINDS

HELP = "walk tokens over agents that keep their data, and show the network"
DESCRIPTION = """Start agents with different data on a network, each in a process of its own; walk tokens over them on
Ray; judge what came of it. Writes results.json and index.html, with the network and its visits."""
EXAMPLES = """\
  ergodrift walk                                    8 agents in a ring, one token, into walk-out/
  ergodrift walk --graph geometric --agents 20 --tokens 64 --local-rounds 10 --samples 20000
  ergodrift walk --address 192.0.2.1:6379           on a running Ray cluster
  ergodrift walk --checkpoint walk.npz              killed, it goes on when called again
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options of the command."""
    said = "%(choices)s (default: %(default)s)"
    parser.add_argument("--graph", choices=GRAPHS, default="ring", metavar="NAME", help=said)
    parser.add_argument("--agents", type=int, default=8, metavar="N", help="how many agents (default: %(default)s)")
    parser.add_argument("--kind", choices=KINDS, default="metropolis", metavar="WALK", help=said)
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="edpp", metavar="NAME", help=said)
    parser.add_argument("--tokens", type=int, default=1, metavar="K", help="tokens that walk at once (default: 1)")
    parser.add_argument("--samples", type=int, default=2000, metavar="T", help="of each token (default: %(default)s)")
    parser.add_argument("--local-rounds", type=int, default=1, metavar="k", help="samples at each visit (default: 1)")
    parser.add_argument("--points", type=int, default=100, metavar="n", help="an agent has 2n rows (default: 100)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="fixes data, places and paths (default: 0)")
    parser.add_argument("--clip", type=float, metavar="C", help="clip every part of an answer to this norm")
    parser.add_argument("--noise", type=float, default=0.0, metavar="z", help="add Gaussian noise of z C to it")
    parser.add_argument("--address", help="of a running Ray cluster (default: one is started on this machine)")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="keep the walk here, and go on from it")
    parser.add_argument("--patience", type=float, default=60.0, metavar="s", help="seconds to wait for an agent")
    add_output(parser, "walk-out")


def resumes(options: argparse.Namespace) -> bool:
    """From its checkpoint."""
    return options.checkpoint is not None


def run(options: argparse.Namespace) -> None:
    """The command itself."""
    import jax

    jax.config.update("jax_enable_x64", True)  # the walk is compared with the simulation to the last digits
    from ergodrift.experiments.network import Demo, demo
    from ergodrift.experiments.reproduce import write_whole
    from ergodrift.report.network import describe, network_page

    try:
        check.number("--patience", options.patience, above=0)
        config = Demo(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Demo)})
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    needs("walk moves its tokens with", "ray", "ray", *(["dp_accounting"] if config.noise else []))
    keep_others(options.out / "results.json", ("config",), dataclasses.asdict(config), options.force, ("index.html",))
    make_room(options.out)
    ready()
    engine: dict[str, Any] = {name: getattr(options, name) for name in ("address", "checkpoint", "patience")}
    walked, found = demo(config, **engine)
    drawn = describe(walked, found.pop("places"))
    results = {**found, "walk": drawn}
    write_whole(options.out / "results.json", json.dumps(results, allow_nan=False))
    write_whole(options.out / "index.html", network_page(results))
    print(walked)
    last = found["records"][-1]
    print(", ".join(f"{name} {value:,.6g}" for name, value in last.items()))
    if "difference" in found:
        print(f"largest difference from ed.run on the pooled data: {found['difference']:.1e}")
    print(f"report: {options.out / 'index.html'}")
