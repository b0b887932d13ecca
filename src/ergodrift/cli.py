"""The command line: `ergodrift reproduce`, `ergodrift theory` and `ergodrift beyond`."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ergodrift
from ergodrift.experiments.config import DESIGNS, Config, configure

ROOM = 50 * 2**20  # bytes a report may need
INTERRUPTED = 130  # the shell's exit code for Ctrl-C

EXAMPLES = """examples:
  ergodrift reproduce                               the paper's experiment, 20 seeds, into reproduce-out/
  ergodrift reproduce --quick --out /tmp/look       a first look in under a minute
  ergodrift reproduce --design wide --seeds 40      clusters rotated by 45 degrees, 40 seeds
  ergodrift reproduce --config mine.toml            any field from a TOML file, such as: p = 0.01
"""


class UsageError(Exception):
    """What the user can mend: said in one line, exit code 2."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if not hasattr(options, "action"):
        parser.print_help()
        return 0
    try:
        options.action(options)
    except KeyboardInterrupt:
        print("\ninterrupted; run the same command again to go on", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if options.debug:
            raise
        print(f"ergodrift: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


def build_parser() -> argparse.ArgumentParser:
    """All commands and options."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="ergodrift",
        description="Constrained stochastic optimisation when the data are not i.i.d.",
        epilog=EXAMPLES,
        formatter_class=raw,
    )
    parser.add_argument("--version", action="version", version=f"ergodrift {ergodrift.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    command = commands.add_parser(
        "reproduce",
        help="run section 5 of the paper end to end and write a report",
        description="Run section 5 of Kim and Lee end to end: eight algorithms on the same paths, with a report.",
        epilog=EXAMPLES,
        formatter_class=raw,
    )
    command.add_argument(
        "--design", choices=tuple(DESIGNS), default="default", help="which setup (default: %(default)s)"
    )
    command.add_argument("--seeds", type=int, metavar="K", help="how many independent paths (default: 20)")
    command.add_argument("--samples", type=int, metavar="N", help="samples each algorithm sees (default: 101562)")
    command.add_argument("--seed", type=int, metavar="S", help="fixes everything, data and paths (default: 0)")
    command.add_argument("--quick", action="store_true", help="4 seeds and 20,000 samples: under a minute")
    command.add_argument("--config", type=Path, metavar="FILE", help="TOML file with any field of the configuration")
    command.add_argument("--out", type=Path, default=Path("reproduce-out"), help="folder (default: %(default)s)")
    command.add_argument("--debug", action="store_true", help="show tracebacks")
    command.set_defaults(action=_reproduce)
    command = commands.add_parser(
        "theory",
        help="check the theory's bounds on random problems and fit its slopes",
        description="Hold every bound against runs on random problems, and fit slopes in T and tau_mix.",
    )
    command.add_argument("--problems", type=int, default=1000, metavar="N", help="random problems (default: 1000)")
    command.add_argument("--samples", type=int, default=4_096_000, metavar="T", help="longest run of the slopes")
    command.add_argument("--seeds", type=int, default=64, metavar="K", help="paths of each slope (default: 64)")
    command.add_argument("--only", choices=("bounds", "slopes"), help="one of the two studies (default: both)")
    command.add_argument("--out", type=Path, default=Path("theory-out"), help="folder (default: %(default)s)")
    command.add_argument("--debug", action="store_true", help="show tracebacks")
    command.set_defaults(action=_theory)
    command = commands.add_parser(
        "beyond",
        help="RDPP and WDPP beside the paper's algorithms, in tables and a figure",
        description="Designs, networks and mixing times from 1 to 10,000: beyond.json, beyond.md and sweep.svg.",
    )
    command.add_argument("--quick", action="store_true", help="4 seeds and shorter runs: a few minutes")
    command.add_argument("--out", type=Path, default=Path("beyond-out"), help="folder (default: %(default)s)")
    command.add_argument("--debug", action="store_true", help="show tracebacks")
    command.set_defaults(action=_beyond)
    return parser


def _theory(options: argparse.Namespace) -> None:
    for name, least in [("problems", 1), ("samples", 2560), ("seeds", 2)]:
        if getattr(options, name) < least:
            raise UsageError(f"--{name} must be at least {least}, got {getattr(options, name)}")
    _make_room(options.out)
    import jax

    # Bounds are compared with sums over a whole run: in float64, rounding has no say in whether one is crossed.
    jax.config.update("jax_enable_x64", True)
    from ergodrift.experiments import theory as studies
    from ergodrift.experiments.reproduce import versions, write_whole
    from ergodrift.report.slopes import draw_slopes

    say = functools.partial(print, flush=True)
    content: dict[str, Any] = {"schema": studies.SCHEMA, "versions": versions()}
    tables: list[str] = []

    def write() -> None:
        write_whole(options.out / "theory.json", json.dumps(content))
        write_whole(options.out / "tables.md", "\n\n".join(tables) + "\n")

    if options.only != "bounds":
        content["slopes"] = studies.slopes_study(options.samples, options.seeds, say=say)
        draw_slopes(content["slopes"], options.out)
        tables += [studies.slopes_table(content["slopes"]), studies.limits_table(content["slopes"])]
        write()
    if options.only != "slopes":
        slopes = list(tables)

        def keep(study: dict[str, Any]) -> None:
            content["bounds"], tables[:] = study, [*slopes, studies.bounds_table(study)]
            write()

        keep(studies.bounds_study(options.problems, say=say, keep=keep))
        content["informative"] = {T: studies.informative(min(options.problems, 200), T) for T in (1_000, 100_000)}
        tables.append(f"Bounds of EDPP-t below the trivial ones, by T: {content['informative']}")
    write()
    say("\n\n".join(tables))
    say(f"written: {options.out / 'theory.json'}")


def _beyond(options: argparse.Namespace) -> None:
    _make_room(options.out)
    from ergodrift.experiments.beyond import beyond, markdown
    from ergodrift.experiments.reproduce import write_whole
    from ergodrift.report.figures import draw_sweep

    results = beyond(options.quick, say=lambda line: print(line, flush=True))
    write_whole(options.out / "beyond.json", json.dumps(results))
    write_whole(options.out / "beyond.md", markdown(results))
    draw_sweep(results["sweep"], options.out / "sweep.svg")
    print(f"tables: {options.out / 'beyond.md'}")


def _reproduce(options: argparse.Namespace) -> None:
    try:
        config = configure(
            options.design,
            quick=options.quick,
            file=options.config,
            seeds=options.seeds,
            samples=options.samples,
            seed=options.seed,
        )
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    _make_room(options.out)
    import jax

    jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)  # seeds are spread over all cores
    write_report(config, options.out, say=lambda line: print(line, flush=True))


def write_report(config: Config, out: Path, say: Any = print) -> dict[str, Any]:
    """Run the experiment and write results.json, the figures and index.html into a folder; returns the results."""
    # Imported here, so that --help and wrong usage answer at once.
    from ergodrift.experiments.claims import claims, table
    from ergodrift.experiments.reproduce import Experiment, reproduce, write_whole
    from ergodrift.report.figures import draw
    from ergodrift.report.page import page

    fields = ", ".join(f"{name}={value}" for name, value in vars(config).items())
    say(f"configuration: {fields}")
    results = reproduce(config, parts=out / ".finished", say=say)
    results = {**results, "claims": claims(results), "table": table(results)}
    write_whole(out / "results.json", json.dumps(results))
    figures = out / "figures"
    figures.mkdir(exist_ok=True)
    draw(results, Experiment.rows_of(config), figures)
    captions = {"Data points by state and label, in the paper's colours": (figures / "data.svg").read_text()}
    write_whole(out / "index.html", page(results, captions))
    for line in summary(results):
        say(line)
    say(f"report: {out / 'index.html'}")
    return results


def summary(results: dict[str, Any]) -> list[str]:
    """A compact table of how each algorithm ended, and of the claims."""
    lines = [
        "",
        f"{'':8}{'gap':>11}{'Lagrangian':>12}{'constraint 1':>14}{'(paper)':>9}{'constraint 2':>14}{'regret':>10}",
    ]
    paper = {row["algorithm"]: row["paper"] for row in results["table"]}
    for name, found in results["algorithms"].items():
        final = {metric: sum(values) / len(values) for metric, values in found["final"].items()}
        beside = "" if paper[name] is None else f"{paper[name]:+.4f}"
        lines.append(
            f"{name:8}{final['gap']:+11.4f}{final['lagrangian_gap']:12.5f}{final['infeasibility_1']:+14.4f}"
            f"{beside:>9}{final['infeasibility_2']:+14.4f}{final['regret']:10.1f}"
        )
    lines += [
        "",
        *(f"{entry['verdict']:14} {entry['claim']} ({entry['wins']}/{entry['seeds']})" for entry in results["claims"]),
    ]
    return lines


def _make_room(out: Path) -> None:
    """The folder exists, can be written to and has room, before any work starts."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out) as probe:
            probe.write(b"probe")
        free = os.statvfs(out)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written to: {error.strerror}") from error
    if free.f_bavail * free.f_frsize < ROOM:
        raise UsageError(f"--out {out} has less than {ROOM // 2**20} MB free")


def entry() -> None:
    """The command itself."""
    code = main()
    if code == INTERRUPTED:  # end at once: XLA may still be computing, and would be torn down while it does
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


if __name__ == "__main__":
    entry()
