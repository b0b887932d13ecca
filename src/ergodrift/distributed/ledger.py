"""A privacy budget that the agent keeps: what it has spent, in a file that outlasts it, and no answer beyond it."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Generator
from pathlib import Path

from ergodrift._core.files import replacing
from ergodrift.distributed.faults import RefusalError

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None

FORMAT = "ergodrift ledger v1"
SHARE = 1e-3  # of the budget that is written off at a time: a crash costs at most that


def epsilon_of(squared: float, delta: float) -> float:
    """epsilon at delta of Gaussian mechanisms whose squared shifts, in standard deviations, add up to this.

    n answers of noise z shift by 4 / z each: 16 n / z^2 in all (Dong, Roth and Su 2022, corollary 3.3). By Google's
    dp-accounting.
    """
    try:
        import dp_accounting
    except ImportError:
        raise ImportError('accounting for noise needs dp-accounting: pip install "ergodrift[ray]"') from None
    if squared in (0.0, math.inf):
        return float(squared)
    return float(dp_accounting.get_epsilon_gaussian(squared**-0.5, delta))


def limit_of(epsilon: float, delta: float) -> float:
    """The squared shifts that this epsilon allows: the inverse of `epsilon_of`, from below."""
    low, high = 1e-12, 1.0
    while epsilon_of(high, delta) < epsilon:
        high *= 4
    while high / low > 1 + 1e-9:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if epsilon_of(middle, delta) > epsilon else (middle, high)
    return low


class Ledger:
    """Counts what answers cost, whoever asks and however often the agent is started.

    What is to be spent is written off before anything is answered, a thousandth of the budget at a time, by a file that
    takes the place of the one before it: after a crash at any moment the file says at least what was spent. Agents may
    share a ledger; then they share the budget. A file that is damaged stops all answers; so does one that is gone, or
    says less than it has said before, until the agent is started anew.

    Args:
        path: the file; it is made when it is not there.
        budget: epsilon.
        delta: at which that holds.
    """

    def __init__(self, path: str | Path, budget: float, delta: float) -> None:
        self.path, self.limit = Path(path), limit_of(budget, delta)
        self.left = 0.0  # written off and not yet used
        self.least = 0.0  # what the file must say, since it has said so before

    def spend(self, squared: float) -> None:
        """Spend this much, or refuse."""
        if not squared >= 0:
            raise RefusalError("budget", f"{squared} cannot be spent")
        if squared > self.left:
            with self._locked():
                spent = self.spent()
                if spent + squared - self.left > self.limit:
                    raise RefusalError("budget", f"{spent:.6g} of {self.limit:.6g} squared shifts are spent")
                more = min(max(squared - self.left, SHARE * self.limit), self.limit - spent)
                self._write(spent + more)
                self.left += more
        self.left -= squared

    def check(self, squared: float) -> None:
        """Refuse where this much cannot be spent any more."""
        if self.spent() + squared - self.left > self.limit:
            raise RefusalError("budget")

    def spent(self) -> float:
        """The squared shifts written off so far, by all who use this file."""
        try:
            said = json.loads(self.path.read_text())
            if said["format"] != FORMAT or not 0 <= said["spent"] < float("inf"):
                raise ValueError(f"it holds {said}")
            spent = float(said["spent"])
        except FileNotFoundError:
            spent = 0.0
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise RefusalError("ledger", f"{self.path}: {error}") from error
        if spent < self.least:
            raise RefusalError("ledger", f"{self.path}: it said {self.least:.6g} before, and now {spent:.6g}")
        self.least = spent
        return spent

    def _write(self, spent: float) -> None:
        try:
            with replacing(self.path) as file:
                file.write(json.dumps({"format": FORMAT, "spent": spent}).encode())
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)  # its new name, too, must outlast a loss of power
            finally:
                os.close(folder)
        except OSError as error:
            raise RefusalError("ledger", f"{self.path}: {error}") from error
        self.least = spent

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        """One at a time; the others wait. The lock ends with its process."""
        if fcntl is None:
            yield
            return
        try:
            lock = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise RefusalError("ledger", f"{self.path}: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)
