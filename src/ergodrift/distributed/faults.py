"""What leaves an agent when something goes wrong there: type and place. Texts, and rows in them, stay in its log."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
import re
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ergodrift.distributed import replies

PACKAGE, LIBRARY = Path(__file__).parents[1], Path(sysconfig.get_path("stdlib"))
LOG_BYTES = 1_000_000  # of an agent's log, and of the one before it


class RefusalError(Exception):
    """An agent refuses, for one of the reasons of `replies.REFUSALS`, which says all that the hub is told.

    `detail` is for the agent's own log.
    """

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{replies.REFUSALS[code]}{': ' * bool(detail)}{detail}")
        self.code = code


def state_file(name: str, suffix: str) -> Path:
    """A file that an agent keeps where it runs: `ergodrift/NAME.SUFFIX` where its user keeps such things."""
    home = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    return Path(home, "ergodrift", f"{re.sub(r'[^A-Za-z0-9.-]', '_', name)}.{suffix}")


def plain(method: Callable[..., bytes]) -> Callable[..., bytes]:
    """A method of an actor that answers whatever happens: what it raises becomes a reply of type and place.

    Ray would pickle an exception, with its text, and send it to the hub.
    """

    @functools.wraps(method)
    def answers(actor: Any, *arguments: Any) -> bytes:
        shown = sys.stdout, sys.stderr
        sys.stdout = sys.stderr = Diary(actor)  # type: ignore[assignment]
        try:
            return method(actor, *arguments)
        except KeyboardInterrupt:  # how Ray cancels
            raise
        except BaseException as error:
            write(actor.log, error)
            if isinstance(error, RefusalError):
                return replies.refusal(error.code)
            error = _first(error)
            return replies.failure(_kind(type(error)), _place(error))
        finally:
            sys.stdout, sys.stderr = shown

    return answers


class Diary(io.TextIOBase):
    """What is printed at an agent, warnings included, goes to its own log: Ray would show it to the hub."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        append(self.actor.log, text)
        return len(text)


def _first(error: BaseException) -> BaseException:
    """What was raised first, of all that led to it."""
    seen = {id(error)}
    while (cause := error.__cause__) is not None and cause.__traceback__ is not None and id(cause) not in seen:
        seen.add(id(cause))
        error = cause
    return error


def write(log: Path, error: BaseException) -> None:
    """The whole story, for the agent's own eyes."""
    record = logging.LogRecord("ergodrift", logging.ERROR, "", 0, "%s", ("an answer failed",), None)
    record.exc_info = (type(error), error, error.__traceback__)
    append(log, logging.Formatter("%(asctime)s %(message)s").format(record) + "\n")


def append(log: Path, text: str) -> None:
    """Text at the end of an agent's log, which nobody else can read; in a folder of its own where it cannot be there.

    Nothing is raised, nor printed: that would leave the agent.
    """
    spare = Path(tempfile.gettempdir(), f"ergodrift-{os.getuid()}", log.name)
    for file in (log, spare):
        with contextlib.suppress(OSError):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if file is spare and file.parent.lstat().st_uid != os.getuid():
                continue  # somebody else was there first
            if file.is_file() and file.stat().st_size > LOG_BYTES:
                file.replace(f"{file}.1")
            file.touch(mode=0o600)
            with file.open("a", encoding="utf-8", errors="backslashreplace") as end:
                end.write(text)
            return


def _kind(kind: type) -> str:
    """The name of the type, or of its first base that a module knows by its name: a new one may be called anything."""
    for one in kind.__mro__:
        if one.__name__.isidentifier() and getattr(sys.modules.get(one.__module__), one.__name__, None) is one:
            return one.__name__[: replies.MAX_TEXT]
    return "Exception"


def _place(error: BaseException) -> str:
    """File, line and function of the innermost frame of the user's own code, else of ours, else of any."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_own(Path(frame.filename))]
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)]
    place = (own or ours or frames)[-1:]
    text = " ".join(f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in place)
    return re.sub(r"[^\w.<>: -]", "_", text, flags=re.ASCII)[: replies.MAX_TEXT]


def _is_own(file: Path) -> bool:
    """Whether a file belongs to no package."""
    packages = {"site-packages", "dist-packages"} & set(file.parts)
    return not packages and not any(file.is_relative_to(folder) for folder in (PACKAGE, LIBRARY))
