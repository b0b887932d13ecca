"""Checkpoints anywhere that fsspec or pyarrow can write: a local file that is copied there whenever it is written."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
import warnings
import weakref
from pathlib import Path
from typing import Any

from ergodrift.engine.checkpoint import Checkpoint
from ergodrift.types import PyTree


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether this names a file elsewhere, such as "s3://bucket/walk.npz"."""
    return "://" in os.fspath(path)


def checkpoint_at(path: str | os.PathLike[str], **named: PyTree) -> Checkpoint:
    """The checkpoint in a file, here or elsewhere."""
    return RemoteCheckpoint(os.fspath(path), **named) if is_remote(path) else Checkpoint(path, **named)


class RemoteCheckpoint(Checkpoint):
    """A checkpoint elsewhere. Objects there are replaced whole, so it is the old one or the new one at any moment."""

    def __init__(self, url: str, **named: PyTree) -> None:
        self.url, self.store = url, _store(url)
        folder = tempfile.mkdtemp(prefix="ergodrift-")
        weakref.finalize(self, shutil.rmtree, folder, True)
        super().__init__(Path(folder, "walk.npz"), **named)
        self.store.fetch(self.path)

    def save(self, state: PyTree, *, last: bool = False) -> bool:
        if not super().save(state, last=last):
            return False
        try:
            self.store.store(self.path)
        except Exception as error:  # whatever a network raises: the walk goes on, and tries again later
            warnings.warn(f"checkpoint {self.url} could not be written ({error})", stacklevel=3)
            return False
        return True


class FsspecStore:
    """A file of an fsspec file system."""

    def __init__(self, url: str) -> None:
        self.fs, self.name = importlib.import_module("fsspec").core.url_to_fs(url)

    def fetch(self, path: Path) -> None:
        if self.fs.exists(self.name):
            path.write_bytes(self.fs.cat_file(self.name))

    def store(self, path: Path) -> None:
        self.fs.pipe_file(self.name, path.read_bytes())


class ArrowStore:
    """A file of a pyarrow file system."""

    def __init__(self, url: str) -> None:
        self.fs, self.name = importlib.import_module("pyarrow.fs").FileSystem.from_uri(url)

    def fetch(self, path: Path) -> None:
        try:
            with self.fs.open_input_stream(self.name) as file:
                path.write_bytes(file.read())
        except FileNotFoundError:
            pass

    def store(self, path: Path) -> None:
        with self.fs.open_output_stream(self.name) as file:
            file.write(path.read_bytes())


def _store(url: str) -> Any:
    """fsspec's file system where it is installed and knows the scheme, else pyarrow's."""
    said = []
    for kind in (FsspecStore, ArrowStore):
        try:
            return kind(url)
        except Exception as error:  # not installed, no such scheme, no credentials: the other may do
            said.append(f"{kind.__name__}: {error}")
    raise ValueError(f"checkpoint={url!r} cannot be opened: {'; '.join(said)}; install the package for its scheme")
