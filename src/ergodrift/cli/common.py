"""What the commands share."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

ROOM = 50 * 2**20  # bytes a report may need


class UsageError(Exception):
    """What the user can mend: said in one line, exit code 2."""


def add_output(parser: argparse.ArgumentParser, folder: str) -> None:
    """The options that every command ends with."""
    parser.add_argument("--out", type=Path, default=Path(folder), help="folder (default: %(default)s)")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def at_least(options: argparse.Namespace, **least: int) -> None:
    """Each option is at least so much."""
    for name, bound in least.items():
        value = getattr(options, name)
        if value is not None and value < bound:
            raise UsageError(f"--{name.replace('_', '-')} must be at least {bound}, got {value}")


def make_room(out: Path) -> None:
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
