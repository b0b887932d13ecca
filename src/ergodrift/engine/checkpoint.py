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
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core.files import check_folder, locked, npz, real, remove_leftovers, replacing
from ergodrift._core.signature import computation
from ergodrift.problem import Problem, value_and_jacobian
from ergodrift.types import Array, PyTree

T = TypeVar("T", bound=PyTree)

FORMAT = "ergodrift run v4"
BEFORE = tuple(f"ergodrift run v{number}" for number in (1, 2, 3))
SAVE_SECONDS = 10.0  # how often a running loop writes its state


class Checkpoint:
    """Saves and restores a pytree under a fingerprint of the run it belongs to.

    Used as a context, it has the file for itself: a second user is refused, and what a killed one left is removed.

    Args:
        path: the file; its folder must exist and be writable.
        identity: a pytree that tells this run from others, and more of them by name (data, loss, ...): where one has
            changed, the refusal says which.
        known: by name, digests of what somebody takes part with, by who that is: compared where this run and the one
            before both know them, and kept where only the one before does.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *identity: PyTree,
        known: Mapping[str, Mapping[str, str]] | None = None,
        **named: PyTree,
    ) -> None:
        self.path = Path(path)
        self.fingerprints = {name: fingerprint(part) for name, part in {"settings": identity, **named}.items()}
        self.known = {
            f"{name} of {who}": digest for name, all_ in (known or {}).items() for who, digest in all_.items()
        }
        self.saved_at = time.monotonic()
        self._failed = False
        self._open = contextlib.ExitStack()
        check_folder("checkpoint", self.path)

    def __enter__(self) -> Checkpoint:
        self._open.enter_context(locked(self.path, "checkpoint"))
        remove_leftovers(real(self.path))
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def restore(self, like: T) -> T:
        """What was saved, in the structure of `like`; `like` itself where there is no file yet."""
        if not self.path.exists():
            return like
        leaves, structure = jax.tree.flatten(like)
        try:
            with npz(self.path) as file:
                self._check(file)
                stored = {name: file[name] for name in _names(like)}
                for (name, array), leaf in zip(stored.items(), leaves, strict=True):
                    wanted = _frozen(leaf)
                    if (array.shape, array.dtype) != (wanted.shape, wanted.dtype):
                        found = f"{array.dtype} of shape {array.shape}"
                        raise ValueError(f"{name} is {found}, not {wanted.dtype} of shape {wanted.shape}")
        except Exception as error:  # there is no end to what a damaged file makes its readers raise
            raise ValueError(f"checkpoint {self.path} cannot be used: {error}") from error
        return structure.unflatten([_thawed(array, leaf) for array, leaf in zip(stored.values(), leaves, strict=True)])

    def _check(self, file: Mapping[str, np.ndarray]) -> None:
        """Raise where the file is of another format, or of another run."""
        found = str(file["format"])
        if found in BEFORE:
            raise ValueError(
                f"it is of format {found!r}, of an earlier version, which noted a run in other terms: finish the run "
                "with that version, or use another file or delete it"
            )
        if found != FORMAT:
            raise ValueError(f"it has format {found!r}, this version reads {FORMAT!r}")
        before = dict(line.rsplit(" ", 1) for line in np.atleast_1d(file["fingerprint"]).tolist())
        saved = np.atleast_1d(file["known"]).tolist() if "known" in file else []
        known = dict(line.rsplit(" ", 1) for line in saved)
        other = [name.split(" of ")[0] for name, digest in self.known.items() if known.get(name, digest) != digest]
        self.known = known | self.known
        names = [*self.fingerprints, *(name for name in before if name not in self.fingerprints)]
        changed = [*dict.fromkeys(other), *(name for name in names if before.get(name) != self.fingerprints.get(name))]
        if changed:
            jax_before = str(file["jax"])
            newer = "" if jax_before == jax.__version__ else f" (or look so to JAX {jax.__version__}, not {jax_before})"
            raise ValueError(
                f"it belongs to a run with other arguments: changed {' and '.join(changed)}{newer}; use another file "
                "or delete it"
            )

    def save(self, state: PyTree, *, last: bool = False) -> bool:
        """Write the state; a crash at any moment leaves the old file or the new one, whole.

        Returns whether it was written. A full disk ends no run: it is said once, and at the end, and tried again when
        it is time to save again.
        """
        arrays = dict(zip(_names(state), map(_frozen, jax.tree.leaves(state)), strict=True))
        lines = np.array([f"{name} {digest}" for name, digest in self.fingerprints.items()])
        known = np.array([f"{name} {digest}" for name, digest in self.known.items()], str)
        about = {"format": FORMAT, "fingerprint": lines, "known": known, "jax": jax.__version__}
        whole = io.BytesIO()  # a zip file that is cut short raises once more when it is closed
        np.savez(whole, allow_pickle=False, **about, **arrays)
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


def functions(problem: Problem, x: PyTree, xi: PyTree) -> dict[str, str]:
    """What loss and constraints compute for points and samples of these shapes, with their derivatives."""

    def loss(x: PyTree, xi: PyTree) -> PyTree:  # as a vector of one: then it need not have a reverse
        return value_and_jacobian(lambda y: jnp.reshape(problem.loss(y, xi), 1), x)

    def constraints(x: PyTree, xi: PyTree) -> PyTree:
        return value_and_jacobian(lambda y: problem.constraints(y, xi), x)

    return {"loss": computation(loss, x, xi), "constraints": computation(constraints, x, xi)}


def _names(state: PyTree) -> list[str]:
    """What each array is, as Python would write it: in ten years somebody may have to make sense of the file."""
    return [f"state{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_leaves_with_path(state)]


def _is_key(leaf: PyTree) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _frozen(leaf: PyTree) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _thawed(array: np.ndarray, like: PyTree) -> Array:
    if isinstance(like, np.ndarray):
        return array  # what is kept on the host stays there, in its own precision
    return (
        jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
        if _is_key(like)
        else jnp.asarray(array)
    )


def fingerprint(identity: PyTree) -> str:
    """A short text that differs where a pytree does: its structure, types and numbers."""
    # The structure names every class and function; where they lie in memory is left out.
    structure = re.sub(r" at 0x[0-9a-f]+", "", str(jax.tree.structure(identity)))
    digest = hashlib.sha256(structure.encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(identity):
        array = leaf if isinstance(leaf, str) else _frozen(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {getattr(array, 'dtype', '')} {np.shape(array)} ".encode())
        digest.update(array.encode() if isinstance(array, str) else np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
