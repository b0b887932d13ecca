"""`ergodrift peers`: our algorithms and the tools people use instead, on the same samples."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
from pathlib import Path

from ergodrift._core.files import write_whole
from ergodrift.cli.common import UsageError, add_output, keep_others, make_room, needs, ready

HELP = "compare all algorithms and the tools people use instead on real, dependent data"
DESCRIPTION = """Run every algorithm of this package, and Cooper, humancompatible-train, fairlearn, descent-ascent and
Adam with dual ascent, on the same samples in the same order; train networks under constraints with ours, Cooper,
humancompatible-train and a penalty; write tables, figures and a page that says who won where.
What is not installed is named as missing: pip install -r requirements-peers.txt. Finished results are kept."""
EXAMPLES = """\
  ergodrift peers                                   all tasks, 20 orders or paths of each, into peers-out/
  ergodrift peers --quick                           three tasks cut short, in a minute or two
  ergodrift peers --tasks compas,adult --seeds 4    some of it
  ergodrift peers --networks                        the networks alone, 5 seeds of each
  ergodrift peers --networks digits,norm --seeds 2  some of them
"""
QUICK_SEEDS = 3
ALL = ("all",)


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options of the command."""
    parser.add_argument("--quick", action="store_true", help="three short tasks, three seeds; one network")
    parser.add_argument("--tasks", type=_names, metavar="A,B", help="names of tasks (default: all, and all networks)")
    parser.add_argument(
        "--networks", type=_names, nargs="?", const=ALL, metavar="A,B",
        help="train networks, those named or all; with --tasks beside those, without it alone",
    )  # fmt: skip
    parser.add_argument(
        "--rivals", type=_names, metavar="A;B", help="names of competitors, with ; between (default: all)"
    )
    parser.add_argument("--seeds", type=int, metavar="K", help="orders or paths of each task (default: 20, networks 5)")
    parser.add_argument("--write-docs", type=Path, metavar="FILE", help="write the tables into this page too")
    add_output(parser, "peers-out")


def _names(text: str) -> tuple[str, ...]:
    separator = ";" if ";" in text else ","
    return tuple(name.strip() for name in text.split(separator) if name.strip())


def _cores() -> int:
    """Those that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resumes(options: argparse.Namespace) -> bool:
    """Finished results are kept."""
    return True


def run(options: argparse.Namespace) -> None:
    """The command itself."""
    import jax

    jax.config.update("jax_enable_x64", True)  # gaps of a millionth, and libraries that are compared to rounding
    with contextlib.suppress(RuntimeError):  # of a program that has started JAX before it calls this
        jax.config.update("jax_num_cpu_devices", _cores())  # seeds are spread over all of them
    from ergodrift.peers.bench import QUICK, Config, compare
    from ergodrift.peers.networks import bench as nets
    from ergodrift.peers.tasks import TASKS

    everything = options.tasks is None and options.networks is None
    tasks, networks = options.tasks or (), options.networks or ()
    if everything:
        tasks = tuple(name for name in QUICK if name in TASKS) if options.quick else tuple(TASKS)
    if networks == ALL or (everything and not options.rivals):
        networks = nets.QUICK if options.quick else tuple(nets.TASKS)
    seeds, network_seeds = (
        options.seeds if options.seeds is not None else min(QUICK_SEEDS, usual) if options.quick else usual
        for usual in (20, nets.SEEDS)
    )
    try:
        config = Config(tasks, seeds, options.quick, options.rivals or (), networks, network_seeds)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    needs("peers draws its figures with", "plots", "matplotlib.figure")
    from ergodrift.report.networks import NETWORKS
    from ergodrift.report.peers import MARKS, parted, write_report

    if options.write_docs is not None:
        try:
            for marks in ((MARKS,) if tasks else ()) + ((NETWORKS,) if networks else ()):
                parted(options.write_docs, marks)
        except (OSError, ValueError) as error:
            raise UsageError(f"--write-docs: {error}") from error
    keep_others(options.out / "results.json", ("config",), dataclasses.asdict(config), options.force, ("index.html",))
    make_room(options.out)
    ready()
    results = compare(config, options.out / ".finished", log=lambda line: print(line, flush=True), jobs=_cores())
    write_whole(options.out / "results.json", json.dumps(results, allow_nan=False))
    write_report(results, options.out, options.write_docs)
    print(f"report: {options.out / 'index.html'}")
