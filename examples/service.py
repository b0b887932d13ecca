"""A service: it learns from a file that grows, certifies what it recommends, and may be killed at any moment.

Power is reserved by a rule, r = x0 + x1 cold + x2 calm, as little as possible, so that on average no more than 0.05 of
the demand is missing. The file has a line for every hour, as it comes: CSV with a header, or JSON lines.

    python examples/service.py --follow data.csv --state state.npz --page status.html
    python examples/service.py --invent data.csv    # in another terminal: hours that nobody has lived through

What was learned and the place in the file are saved together, so nothing is lost and nothing learned twice, whenever it
is killed: it has no code for its own end. A line that is half written waits. A line without the numbers is left out and
counted. A socket cannot be read a second time, so let it write to a file first: nc -lk 9000 >> data.csv
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import json
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import status

import ergodrift as ed

COLUMNS = ("cold", "calm", "demand")
TRIED_AFTER = 2_000  # hours after which the rule is fixed that is judged on all that follow
MOST = 2**16  # bytes to read at a time


def reserve(x, xi):
    return x[0] + x[1] * xi["cold"] + x[2] * xi["calm"]


def missing(x, xi):
    return jnp.stack([jnp.maximum(xi["demand"] - reserve(x, xi), 0.0) - status.LIMIT])


PROBLEM = ed.Problem(reserve, missing, ed.Ball(10.0))


def read_on(path: Path, note: dict) -> tuple[list[bytes], list[str], dict]:
    """The whole lines after those that were learned from, the names of their columns, and a note of where they end."""
    with path.open("rb") as file:
        header, last = file.readline(), note.get("last", "").encode("latin-1")
        if not header.endswith(b"\n"):
            return [], [], note
        names = [] if header.startswith(b"{") else fields_of(header)
        offset = note.get("offset", len(header) if names else 0)
        file.seek(offset - len(last))
        if file.read(len(last)) != last:
            sys.exit(
                f"{path} does not hold what was learned from it, up to byte {offset:,}: it was cut, or another file "
                "has its name. Bring it back; or begin anew, with another --state"
            )
        text = file.read(MOST)
    if names and (lacking := set(COLUMNS) - set(names)):
        sys.exit(f"{path} has no column {', '.join(sorted(lacking))}: its first line is {header!r}")
    whole = text[: text.rfind(b"\n") + 1]
    if len(text) == MOST and not whole:
        sys.exit(f"{path} has no end of a line within {MOST:,} bytes from byte {offset:,} on")
    tail = (last + whole)[-200:].decode("latin-1")
    return whole.splitlines(), names, {**note, "offset": offset + len(whole), "last": tail}


def fields_of(line: bytes) -> list[str]:
    return [field.strip() for field in next(csv.reader([line.decode("utf-8-sig")]), [])]


def numbers_of(line: bytes, names: list[str]) -> list[float]:
    fields = dict(zip(names, fields_of(line), strict=True)) if names else json.loads(line)
    numbers = [float(fields[name]) for name in COLUMNS]
    if not all(abs(number) < 1e30 for number in numbers):  # NaN is not, and float32 holds no more
        raise ValueError(f"not finite: {numbers}")
    return numbers


def learn(learner: ed.Learner, lines: list[bytes], names: list[str], note: dict) -> None:
    """Learn from these lines and take the note along; at the hour for it, fix a rule to be judged."""
    rows = []
    for line in filter(bytes.strip, lines):
        try:
            rows.append(numbers_of(line, names))
        except (KeyError, TypeError, ValueError) as error:
            note["left_out"] = note.get("left_out", 0) + 1
            print(f"left out {line[:80]!r}: {type(error).__name__}: {error}", file=sys.stderr)
    table = dict(zip(COLUMNS, np.array(rows, np.float32).reshape(-1, len(COLUMNS)).T, strict=True))
    until = TRIED_AFTER - learner.samples_seen
    if 0 < until <= len(rows):
        learner.learn({name: column[:until] for name, column in table.items()})
        table = {name: column[until:] for name, column in table.items()}
        learner.watch(on_drift=say)
    learner.learn(table, note)


def say(drift: ed.Drift) -> None:
    print(f"drift: {drift}", file=sys.stderr)


def invent(path: Path) -> None:
    """Ten hours a second, each much like the one before."""
    rng, level = np.random.default_rng(), np.zeros(3)
    with path.open("a", buffering=1) as file:
        if not file.tell():
            print(*COLUMNS, sep=",", file=file)
        while True:
            level = 0.9 * level + 0.4 * rng.normal(size=3)
            print(*level[:2].round(4), (3 + level @ [1.0, 0.5, 0.5]).round(4), sep=",", file=file)
            time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--follow", type=Path, default=Path("data.csv"))
    parser.add_argument("--state", type=Path, default=Path("state.npz"))
    parser.add_argument("--page", type=Path, default=Path("status.html"))
    parser.add_argument("--every", type=float, default=1.0, help="seconds between saves")
    parser.add_argument("--once", action="store_true", help="learn what is there, and end")
    parser.add_argument("--invent", type=Path, help="append hours to this file, and do nothing else")
    options = parser.parse_args()
    if options.invent:
        invent(options.invent)
    lock = options.state.with_name(f"{options.state.name}.lock").open("w")  # goes with the process, however that ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"{options.state} is in use by another service")
    if options.state.exists():
        learner = ed.Learner.load(options.state, PROBLEM, on_drift=say)
    else:
        learner = ed.Learner(ed.sdpp(), PROBLEM, np.zeros(3, np.float32))
    print(f"goes on after {learner.samples_seen:,} hours", flush=True)
    new, saved_at = True, -np.inf
    while True:
        lines, names, note = read_on(options.follow, learner.note) if options.follow.exists() else ([], [], {})
        if lines:
            learn(learner, lines, names, note)
            new = True
        if new and learner.samples_seen and (not lines or time.monotonic() >= saved_at + options.every):
            learner.save(options.state)
            status.write(options.page, learner)
            new, saved_at = False, time.monotonic()
        if not lines and options.once:
            return
        if not lines:
            time.sleep(min(options.every, 0.2))


if __name__ == "__main__":
    main()
