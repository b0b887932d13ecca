"""What the commands share."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ergodrift._core import interrupt
from ergodrift.tables import Table

ROOM = 50 * 2**20  # bytes a report may need


class UsageError(Exception):
    """What the user can mend: said in one line, exit code 2."""


def add_output(parser: argparse.ArgumentParser, folder: str) -> None:
    """The options that every command ends with."""
    parser.add_argument("--out", type=Path, default=Path(folder), help="folder (default: %(default)s)")
    parser.add_argument("--force", action="store_true", help="replace results of another configuration in that folder")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def at_least(options: argparse.Namespace, **least: int) -> None:
    """Each option is at least so much."""
    for name, bound in least.items():
        value = getattr(options, name)
        if value is not None and value < bound:
            raise UsageError(f"--{name.replace('_', '-')} must be at least {bound}, got {value}")


def needs(what: str, extra: str, *modules: str) -> None:
    """The modules that a command needs besides the core are there, before any work starts."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            name = module.partition(".")[0]
            raise UsageError(
                f"{what} {name}, which cannot be imported here ({error}); pip install 'ergodrift[{extra}]'"
            ) from error


def keep_others(
    file: Path, names: tuple[str, ...], here: Mapping[str, object], force: bool, beside: tuple[str, ...] = ()
) -> None:
    """Results of another configuration, and files of somebody else, are not overwritten, unless that is asked for.

    Args:
        file: where results are written, in JSON.
        names: the keys under which the file says what was asked for.
        here: what is asked for now.
        force: whether to go on all the same.
        beside: names of what is written after it; where one of them is there without it, it is not ours.
    """
    if force:
        return
    advice = "pass another --out, or --force to replace it"
    if not file.exists():
        for other in filter(Path.exists, map(file.with_name, beside)):
            raise UsageError(f"--out: {other} is there without {file.name}, so it is not of this command; {advice}")
        return
    try:
        there = json.loads(file.read_text())
        for name in names:
            there = there[name]
        there = {name: there[name] for name in here}
    except (OSError, ValueError, LookupError, TypeError):
        raise UsageError(f"--out: {file} does not say which configuration it is of; {advice}") from None
    here = json.loads(json.dumps(here))  # tuples are lists there
    if differ := [f"{name}={there[name]!r} there, {here[name]!r} here" for name in here if there[name] != here[name]]:
        raise UsageError(f"--out: {file} holds the results of another configuration ({'; '.join(differ)}); {advice}")


def find_all(table: Table, options: argparse.Namespace, *names: str) -> list[str]:
    """The columns that these options name, each once; all of them must be there."""
    found: list[str] = []
    for option in names:
        given = getattr(options, option)
        several = given if isinstance(given, list) else [given] if given is not None else []
        found += [table.find(f"--{option}", name) for name in several]
    return list(dict.fromkeys(found))


def ready() -> None:
    """All is imported: from here on Ctrl-C can be caught, and is."""
    interrupt.as_usual()


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
