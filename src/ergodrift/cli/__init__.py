"""The command line.

Each command is a module with `HELP`, `DESCRIPTION`, `EXAMPLES`, `add_options`, `run`, and `resumes`: whether the
same command takes up its work after an interruption. `run` may return an exit code of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import ergodrift
from ergodrift._core import interrupt
from ergodrift._core.interrupt import INTERRUPTED
from ergodrift.cli import audit, fit, peers, predict, reproduce, theory, walk
from ergodrift.cli.common import UsageError
from ergodrift.tables import TableError

COMMANDS = {
    "fit": fit,
    "predict": predict,
    "audit": audit,
    "reproduce": reproduce,
    "theory": theory,
    "walk": walk,
    "peers": peers,
}

__all__ = ["UsageError", "build_parser", "entry", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 1 failed, 2 wrong usage, 3 not kept, 130 interrupted."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if not hasattr(options, "run"):
        parser.print_help()
        return 0
    try:
        return options.run(options) or 0
    except KeyboardInterrupt:
        again = "; run the same command again to go on" if options.resumes(options) else ""
        print(f"\ninterrupted{again}", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if options.debug:
            raise
        print(f"ergodrift: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError | TableError) else 1


def build_parser() -> argparse.ArgumentParser:
    """All commands and options."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="ergodrift",
        description="Constrained stochastic optimisation when the data are not i.i.d.",
        epilog="examples:\n" + "".join(command.EXAMPLES for command in COMMANDS.values()),
        formatter_class=raw,
    )
    parser.add_argument("--version", action="version", version=f"ergodrift {ergodrift.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in COMMANDS.items():
        epilog = f"examples:\n{command.EXAMPLES}" if command.EXAMPLES else None
        added = commands.add_parser(
            name, help=command.HELP, description=command.DESCRIPTION, epilog=epilog, formatter_class=raw
        )
        command.add_options(added)
        added.set_defaults(run=command.run, resumes=command.resumes)
    return parser


def entry() -> None:
    """The command itself."""
    code = main()
    interrupt.quietly()  # all is done: an impatient Ctrl-C finds nothing to interrupt
    if code == INTERRUPTED:  # end at once: XLA may still be computing, and would be torn down while it does
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)
