"""A progress bar for the terminal, silent everywhere else."""

from __future__ import annotations

import sys
import time

PATIENCE = 0.5  # seconds before a bar appears: a run that is over by then needs none


class Progress:
    """One line on stderr, drawn on a terminal only. Where nobody knows how much there is, it counts."""

    def __init__(self, label: str, total: int | None, unit: str = "samples") -> None:
        self.label, self.total, self.unit = label, total, unit
        self.began = time.monotonic()
        self.shown = False

    def update(self, done: int, note: str = "") -> None:
        elapsed = time.monotonic() - self.began
        if not sys.stderr.isatty() or (elapsed < PATIENCE and not self.shown):
            return
        self.shown = True
        if self.total is None:
            sys.stderr.write(f"\r{self.label} {done:,} {self.unit}, {done / elapsed:,.0f} a second{note} \033[K")
            sys.stderr.flush()
            return
        share = done / self.total
        left = elapsed * (1 - share) / share if share else 0.0
        bar = ("█" * round(24 * share)).ljust(24, "░")
        sys.stderr.write(
            f"\r{self.label} {bar} {share:4.0%}  {done:,}/{self.total:,} {self.unit}, {left:.0f} s left{note} \033[K"
        )
        sys.stderr.flush()

    def close(self) -> None:
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
