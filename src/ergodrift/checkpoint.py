"""Interrupt and resume: the state of a run in one file, replaced atomically.

The file is a plain `.npz` without pickles: reading one cannot run code.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift.files import locked, real, remove_leftovers, replacing

FORMAT = "ergodrift run v2"
SAVE_SECONDS = 10.0  # how often a running loop writes its state


class Checkpoint:
    """Saves and restores a pytree under a fingerprint of the run it belongs to.

    Used as a context, it has the file for itself: a second user is refused, and what a killed one left is removed.

    Args:
        path: the file; its folder must exist and be writable.
        identity: a pytree that tells this run from others: hyperparameters, data, records, seeds. The functions of a
            problem cannot be compared: changing them between two halves of a run is up to the caller.
    """

    def __init__(self, path: str | os.PathLike[str], *identity: Any) -> None:
        self.path = Path(path)
        self.fingerprint = _fingerprint(identity)
        self.saved_at = time.monotonic()
        self._failed = False
        self._open = contextlib.ExitStack()
        if not self.path.parent.is_dir() or not os.access(self.path.parent, os.W_OK):
            raise ValueError(f"checkpoint: the folder of {self.path} does not exist or cannot be written to")

    def __enter__(self) -> Checkpoint:
        self._open.enter_context(locked(self.path, "checkpoint"))
        remove_leftovers(real(self.path))
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.close()

    def restore(self, like: Any) -> Any:
        """What was saved, in the structure of `like`; `like` itself where there is no file yet."""
        if not self.path.exists():
            return like
        leaves, structure = jax.tree.flatten(like)
        try:
            with self.path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                if str(file["format"]) != FORMAT:
                    raise ValueError(f"it has format {str(file['format'])!r}, this version reads {FORMAT!r}")
                if str(file["fingerprint"]) != self.fingerprint:
                    raise ValueError("it belongs to a run with other arguments; use another file or delete it")
                stored = {name: file[name] for name in _names(like)}
                for (name, array), leaf in zip(stored.items(), leaves, strict=True):
                    wanted = _frozen(leaf)
                    if (array.shape, array.dtype) != (wanted.shape, wanted.dtype):
                        found = f"{array.dtype} of shape {array.shape}"
                        raise ValueError(f"{name} is {found}, not {wanted.dtype} of shape {wanted.shape}")
        except Exception as error:  # there is no end to what a damaged file makes its readers raise
            raise ValueError(f"checkpoint {self.path} cannot be used: {error}") from error
        return structure.unflatten([_thawed(array, leaf) for array, leaf in zip(stored.values(), leaves, strict=True)])

    def save(self, state: Any, *, last: bool = False) -> bool:
        """Write the state; a crash at any moment leaves the old file or the new one, whole.

        Returns whether it was written. A full disk ends no run: it is said once, and at the end, and tried again when
        it is time to save again.
        """
        arrays = dict(zip(_names(state), map(_frozen, jax.tree.leaves(state)), strict=True))
        whole = io.BytesIO()  # a zip file that is cut short raises once more when it is closed
        np.savez(whole, allow_pickle=False, format=FORMAT, fingerprint=self.fingerprint, **arrays)
        try:
            with replacing(self.path) as file:
                file.write(whole.getbuffer())
        except OSError as error:
            self.saved_at = time.monotonic()
            if last or not self._failed:
                self._failed = True
                then = (
                    "the result is returned, but not kept there" if last else "the run goes on, and tries again later"
                )
                warnings.warn(f"checkpoint {self.path} could not be written ({error}); {then}", stacklevel=3)
            return False
        self.saved_at = time.monotonic()
        return True

    @property
    def due(self) -> bool:
        """Whether it is time to save again."""
        return time.monotonic() - self.saved_at >= SAVE_SECONDS


def _names(state: Any) -> list[str]:
    """What each array is, as Python would write it: in ten years somebody may have to make sense of the file."""
    return [f"state{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_leaves_with_path(state)]


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _frozen(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _thawed(array: np.ndarray, like: Any) -> Any:
    if isinstance(like, np.ndarray):
        return array  # what is kept on the host stays there, in its own precision
    return (
        jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
        if _is_key(like)
        else jnp.asarray(array)
    )


def _fingerprint(identity: Any) -> str:
    # The structure names every class and function; where they lie in memory is left out.
    structure = re.sub(r" at 0x[0-9a-f]+", "", str(jax.tree.structure(identity)))
    digest = hashlib.sha256(structure.encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(identity):
        array = leaf if isinstance(leaf, str) else _frozen(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {getattr(array, 'dtype', '')} {np.shape(array)} ".encode())
        digest.update(array.encode() if isinstance(array, str) else np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
