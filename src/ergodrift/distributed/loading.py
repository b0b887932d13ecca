"""Whose data a process was loading when it ended: kept in a file, so that the process after it knows."""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path

from ergodrift.distributed.faults import RefusalError

MOST_DEATHS = 2  # of processes while they load the data of one agent; after that nobody loads them again
NUMBER = struct.Struct("<q")


class Loading:
    """Which agent is being loaded now, and how often a process ended while it loaded whom.

    The file holds the agent that is being loaded, -1 for none, and after it one number for each death.

    Args:
        name: of the file, the same for a process and for those that are started in its place.
    """

    def __init__(self, name: str) -> None:
        self.path = Path(tempfile.gettempdir(), f"ergodrift-{os.getuid()}-{name}.loading")
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        held = [agent for (agent,) in NUMBER.iter_unpack(os.pread(self.file, os.fstat(self.file).st_size, 0))]
        now, *died = held or [-1]
        if now >= 0:
            died.append(now)
            os.pwrite(self.file, NUMBER.pack(now), NUMBER.size * len(died))
        os.pwrite(self.file, NUMBER.pack(-1), 0)
        self.deaths = Counter(died)

    @contextlib.contextmanager
    def of(self, agent: int) -> Generator[None]:
        """While this agent is loaded.

        Raises:
            RefusalError: processes have ended of it before.
        """
        if self.deaths[agent] >= MOST_DEATHS:
            raise RefusalError("deadly")
        os.pwrite(self.file, NUMBER.pack(agent), 0)
        try:
            yield
        finally:
            os.pwrite(self.file, NUMBER.pack(-1), 0)

    def end(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)
