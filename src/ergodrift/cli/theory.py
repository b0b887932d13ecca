"""`ergodrift theory`: the bounds on random problems and the slopes."""

from __future__ import annotations

import argparse
import functools
import json
from typing import Any

from ergodrift._core.files import write_whole
from ergodrift.cli.common import add_output, at_least, keep_others, make_room, needs, ready

HELP = "check the theory's bounds on random problems and fit its slopes"
DESCRIPTION = "Hold every bound against runs on random problems, and fit slopes in T and tau_mix."
EXAMPLES = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options of the command."""
    parser.add_argument("--problems", type=int, default=1000, metavar="N", help="random problems (default: 1000)")
    parser.add_argument("--samples", type=int, default=4_096_000, metavar="T", help="longest run of the slopes")
    parser.add_argument("--seeds", type=int, default=64, metavar="K", help="paths of each slope (default: 64)")
    parser.add_argument("--only", choices=("bounds", "slopes"), help="one of the two studies (default: both)")
    add_output(parser, "theory-out")


def resumes(options: argparse.Namespace) -> bool:
    """It begins anew."""
    return False


def run(options: argparse.Namespace) -> None:
    """The command itself."""
    at_least(options, problems=1, samples=2560, seeds=2)
    if options.only != "bounds":
        needs("theory draws its slopes with", "plots", "matplotlib.figure")
    settings = {name: getattr(options, name) for name in ("problems", "samples", "seeds", "only")}
    keep_others(options.out / "theory.json", ("settings",), settings, options.force, ("tables.md",))
    make_room(options.out)
    import jax

    # Bounds are compared with sums over a whole run: in float64, rounding has no say in whether one is crossed.
    jax.config.update("jax_enable_x64", True)
    from ergodrift.experiments import theory as studies
    from ergodrift.experiments.reproduce import versions
    from ergodrift.report.slopes import draw_slopes

    ready()
    log = functools.partial(print, flush=True)
    content: dict[str, Any] = {"schema": studies.SCHEMA, "settings": settings, "versions": versions()}
    tables: list[str] = []

    def write() -> None:
        write_whole(options.out / "theory.json", json.dumps(content))
        write_whole(options.out / "tables.md", "\n\n".join(tables) + "\n")

    if options.only != "bounds":
        content["slopes"] = studies.slopes_study(options.samples, options.seeds, log=log)
        draw_slopes(content["slopes"], options.out)
        tables += [studies.slopes_table(content["slopes"]), studies.limits_table(content["slopes"])]
        write()
    if options.only != "slopes":
        slopes = list(tables)

        def keep(study: studies.BoundsStudy) -> None:
            content["bounds"], tables[:] = study, [*slopes, studies.bounds_table(study)]
            write()

        keep(studies.bounds_study(options.problems, log=log, keep=keep))
        content["informative"] = {T: studies.informative(min(options.problems, 200), T) for T in (1_000, 100_000)}
        tables.append(f"Bounds of EDPP-t below the trivial ones, by T: {content['informative']}")
    write()
    log("\n\n".join(tables))
    log(f"written: {options.out / 'theory.json'}")
