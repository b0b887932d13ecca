"""The tutorial on flights: its own blocks are run in order, and what they print is what the page shows.

`python -m studies.flights` runs them in a folder of its own and prints what came out; with --write-docs the outputs and
the picture of docs/start/flights.md are renewed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parents[1] / "docs" / "start" / "flights.md"
BLOCK = re.compile(r"```(python|sh|text)\n(.*?)```", re.DOTALL)
NUMBER = re.compile(r"\d[\d,.e+-]*\d|\d")


class Shown(NamedTuple):
    """A block of output in the page, and all that its commands printed."""

    block: str
    printed: str


def commands(block: str) -> list[list[str]]:
    """The commands of a block of shell, each as its arguments."""
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("ergodrift ")]


def replay(text: str, folder: Path) -> list[Shown]:
    """Run a page's blocks in order, in a folder; returns each block of output with what was printed before it."""
    found: list[Shown] = []
    printed, scope = "", {"__name__": "__docs__"}
    for kind, block in BLOCK.findall(text):
        if kind == "python":
            with contextlib.chdir(folder):
                exec(compile(block, str(PAGE), "exec"), scope)
        elif kind == "sh":
            printed = "".join(_run(arguments, folder) for arguments in commands(block))
        else:
            found.append(Shown(block, printed))
    return found


def _run(arguments: list[str], folder: Path) -> str:
    path = os.pathsep.join([str(PAGE.parents[1] / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "ergodrift.cli", *arguments]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ergodrift {shlex.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def label(line: str) -> str:
    """What a line is about: its first words, without numbers and verdicts."""
    words = NUMBER.sub("#", line).split()[:4]
    return " ".join(word for word in words if word not in ("satisfied", "violated", "undecided"))


def renewed(shown: Shown) -> str:
    """The block with the lines that were printed now; each is known by the words that it begins with."""
    now = {label(line): line for line in reversed(shown.printed.splitlines())}
    lines = [now.get(label(line), line) if line.strip() != "..." else line for line in shown.block.splitlines()]
    return "".join(f"{line}\n" for line in lines)


def draw(before: dict[str, Any], after: dict[str, Any], path: Path) -> None:
    """How often flights are called late, by airline, by the two models on later months."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    axes = figure.subplots()
    rows = sorted(before["audit"]["by_group"], key=lambda record: record["estimate"])
    names = [record["airline"] for record in rows]
    for content, shift, colour, text in (
        (before, -0.14, "#D55E00", "no constraint"),
        (after, 0.14, "#0072B2", "parity"),
    ):
        by_name = {record["airline"]: record for record in content["audit"]["by_group"]}
        for place, name in enumerate(names):
            record = by_name[name]
            axes.plot([record["lower"], record["upper"]], [place + shift] * 2, color=colour, linewidth=2.2)
            axes.plot(
                record["estimate"], place + shift, "o", color=colour, markersize=5, label=text if not place else None
            )
    axes.set(yticks=range(len(names)), yticklabels=names, xlabel="share of flights called late, October to December")
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    with rc_context({"svg.hashsalt": "flights"}):  # the same numbers make the same file
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """The command itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--write-docs", action="store_true", help="renew the outputs and the picture of docs/start/flights.md"
    )
    options = parser.parse_args()
    text = PAGE.read_text()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = replay(text, folder)
        for shown in found:
            print(shown.printed)
            text = text.replace(shown.block, renewed(shown))
        if options.write_docs:
            audits = [json.loads((folder / part / "audit.json").read_text()) for part in ("free-audit", "parity-audit")]
            draw(audits[0], audits[1], PAGE.with_suffix(".svg"))
            PAGE.write_text(text)


if __name__ == "__main__":
    main()
