"""Clipping, noise, and what they are worth: differential privacy of an agent's answers."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import secrets
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift import check, tree
from ergodrift.types import Feedback

PARTS = ("loss", "loss_grad", "constraints", "constraint_jac")


@dataclasses.dataclass(frozen=True)
class Privacy:
    """Every part of every answer is clipped to a norm, and Gaussian noise is added to it.

    An answer has four parts p: the loss, its gradient, the constraints, their Jacobian. Each leaves as
    p min(1, C_p / ||p||) + z C_p N(0, I), with the Euclidean norm over all entries of the part. Neighbours are two
    data sets of one agent that may differ in everything: it is the agent as a whole that is protected, not only a row
    of its data. Between neighbours a part moves by at most 2 C_p, which is 2 / z standard deviations of its noise, and
    all four by at most 4 / z; so n answers are one Gaussian mechanism of noise multiplier z / (4 sqrt n), whoever
    chooses the questions, and however (Dong, Roth and Su 2022, corollary 3.3).

    Noise is a function of the agent's secret and the question: the same question gets the same answer, so asking
    again after a crash tells nothing new. It is drawn in floating point, by a generator that is not cryptographic:
    fit for agents who are honest and curious, not for a hub that breaks ciphers (Mironov 2012).

    Attributes:
        clip: C_p, one number, or a mapping from each of the four parts.
        noise: z; 0 clips only, and has no privacy to account for.
        delta: the delta at which epsilon is reported.
        secret: a file that holds the secret, made where the agent runs unless it is there; without one the secret
            lasts as long as the agent's process: a question asked again after that gets another answer. Such answers
            are counted, but for those between a hub's last checkpoint and its own end.
    """

    clip: Any
    noise: float = 0.0
    delta: float = 1e-5
    secret: str | Path | None = None

    def __post_init__(self) -> None:
        given = self.clip if isinstance(self.clip, dict) else dict.fromkeys(PARTS, self.clip)
        if set(given) != set(PARTS):
            raise ValueError(f"clip must be a number or have the keys {', '.join(PARTS)}, got {self.clip!r}")
        bounds = {part: check.number(f"clip[{part!r}]", given[part], above=0) for part in PARTS}
        object.__setattr__(self, "clip", bounds)
        object.__setattr__(self, "noise", check.number("noise", self.noise, at_least=0))
        object.__setattr__(self, "delta", check.number("delta", self.delta, above=0, below=1))

    def guard(self, feedback: Feedback, key: jax.Array) -> Feedback:
        """What may leave of an answer. `key` must be of this answer alone."""
        parts = feedback._asdict()
        for part, one in zip(PARTS, jax.random.split(key, len(PARTS)), strict=True):
            parts[part] = self._guarded(parts[part], self.clip[part], one)
        return Feedback(**parts)

    def _guarded(self, part: Any, bound: float, key: jax.Array) -> Any:
        # The norm of what is scaled down to entries of at most 1 does not overflow.
        leaves, structure = jax.tree.flatten(part)
        largest = jnp.maximum(jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in leaves])), 1e-30)
        norm = largest * jnp.sqrt(tree.squared_norm(tree.scale(part, 1 / largest)))
        factor = jnp.minimum(1, bound / norm)
        keys = jax.random.split(key, len(leaves))
        noisy = [
            leaf * factor + self.noise * bound * jax.random.normal(one, leaf.shape, leaf.dtype)
            for leaf, one in zip(leaves, keys, strict=True)
        ]
        return structure.unflatten(noisy)

    def epsilon(self, answers: int) -> float:
        """epsilon at `delta` of so many answers, by Google's dp-accounting; infinite without noise."""
        if answers == 0:
            return 0.0
        if self.noise == 0:
            return math.inf
        try:
            import dp_accounting
        except ImportError:
            raise ImportError('accounting for noise needs dp-accounting: pip install "ergodrift[ray]"') from None
        multiplier = self.noise / (2 * math.sqrt(len(PARTS) * answers))
        return float(dp_accounting.get_epsilon_gaussian(multiplier, self.delta))


class Secret:
    """What an agent's noise is drawn from: 32 bytes that only it knows."""

    def __init__(self, path: str | Path | None) -> None:
        self.bytes = secrets.token_bytes(32) if path is None else _kept(Path(path))

    def keys(self, questions: np.ndarray) -> np.ndarray:
        """The seeds of one key for each question (a row), (m, 2) uint32: a keyed hash of what is asked."""
        digests = [hashlib.blake2b(row.tobytes(), key=self.bytes, digest_size=8).digest() for row in questions]
        return np.frombuffer(b"".join(digests), np.uint32).reshape(-1, 2)


def _kept(path: Path) -> bytes:
    """The secret in this file, which is made if it is not there, for its owner's eyes alone."""
    try:
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
    except FileExistsError:
        pass
    found = path.read_bytes()
    if len(found) != 32:
        raise ValueError(f"secret: {path} holds {len(found)} bytes, a secret has 32; name another file")
    return found
