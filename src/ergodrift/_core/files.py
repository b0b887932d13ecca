"""Files that are there whole or not at all, and that one user writes at a time."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import threading
import time
import zipfile
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib.npyio import NpzFile

try:
    import fcntl
except ImportError:  # no such locks on this system: those of this process are all there is
    fcntl = None

DAY = 86_400.0  # seconds after which a scratch file of another machine counts as left behind
_numbers = itertools.count()
_writing: set[Path] = set()  # scratch files of this process
_held: dict[Path, int] = {}  # files that are locked, by which process: a fork has this table too, not the locks
_guard = threading.Lock()


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Generator[BinaryIO]:
    """A file to write to, which takes the place of `path` when all is written; a crash leaves the old one, whole.

    What an earlier writer left behind when it was killed is removed.
    """
    path = real(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}; make it first")
    remove_leftovers(path)
    scratch = path.with_name(f".{path.name}.{_host()}.{os.getpid()}-{next(_numbers)}.tmp")
    with _guard:
        _writing.add(scratch)
    try:
        with scratch.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
        with _guard:
            _writing.discard(scratch)


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that at any moment the old one or the new one is there, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def npz(path: Path) -> Generator[NpzFile]:
    """The arrays of an .npz file. Pickled objects, which could run anything, are never loaded."""
    with path.open("rb") as raw:
        if not zipfile.is_zipfile(raw):
            raise ValueError("it is not an .npz file, or it is cut short")
        raw.seek(0)
        try:
            with np.load(raw, allow_pickle=False) as file:
                yield file
        except ValueError as error:
            if "allow_pickle" in str(error):  # NumPy's advice, to allow them, is not ours
                raise ValueError("it holds Python objects, which are not loaded") from error
            raise


def check_folder(name: str, path: str | os.PathLike[str]) -> None:
    """Raise where no file can be written there: better now than after hours."""
    folder = Path(path).parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"{name}: the folder of {os.fspath(path)} does not exist or cannot be written to")


def real(path: str | os.PathLike[str]) -> Path:
    """The file itself, whatever links lead to it: two spellings of one file are one file."""
    return Path(os.path.realpath(path))


def remove_leftovers(path: Path) -> None:
    """Remove the scratch files for `path` of processes that are no more."""
    wanted = re.compile(rf"\.{re.escape(path.name)}\.(?:(?P<host>.+)\.)?(?P<process>\d+)(?:-\d+)?\.tmp")
    with contextlib.suppress(OSError):
        for other in path.parent.iterdir():
            found = wanted.fullmatch(other.name)
            if found and _is_left(other, found["host"], int(found["process"])):
                with contextlib.suppress(OSError):
                    other.unlink(missing_ok=True)


def _is_left(scratch: Path, host: str | None, process: int) -> bool:
    if host not in (None, _host()):  # nothing is known of its processes
        return time.time() - scratch.stat().st_mtime > DAY
    if process == os.getpid():
        with _guard:
            return scratch not in _writing
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is there, and somebody else's
        return False
    return False


@contextlib.contextmanager
def locked(path: str | os.PathLike[str], name: str) -> Generator[None]:
    """`path` for one user alone, in this process and in others; a second one is refused, with `name` and who has it.

    The lock is the system's, on a file beside `path`: it ends with the process that holds it, however that ends.
    """
    path = real(path)
    beside = path.with_name(f".{path.name}.lock")
    with _guard:
        if _held.get(path) == os.getpid():
            raise ValueError(_in_use(name, path, "another run in this process"))
        _held[path] = os.getpid()
    lock = None
    try:
        lock = _lock(beside, name, path)
        yield
    finally:
        if lock is not None:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)  # while it is still held, so that no other can hold it too
            os.close(lock)
        with _guard:
            _held.pop(path, None)


def _lock(beside: Path, name: str, path: Path) -> int | None:
    if fcntl is None:
        return None
    while True:
        try:
            lock = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:  # another user's file, which can be locked all the same; or no room for one, and then no lock
            if not beside.exists():
                return None
            lock = os.open(beside, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 200, 0).decode(errors="replace") or "another process"
            os.close(lock)
            raise ValueError(_in_use(name, path, holder)) from None
        except OSError:  # a file system without locks
            os.close(lock)
            return None
        try:
            if os.path.samestat(os.fstat(lock), os.stat(beside)):
                with contextlib.suppress(OSError):  # who it is only serves the message
                    os.ftruncate(lock, 0)
                    os.pwrite(lock, f"process {os.getpid()} on {_host()}".encode(), 0)
                return lock
        except FileNotFoundError:
            pass
        os.close(lock)  # its last holder removed it in between: again


def _in_use(name: str, path: Path, holder: str) -> str:
    return f"{name} {path} is in use by {holder}; wait until that ends, or use another file"


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname()) or "host"
