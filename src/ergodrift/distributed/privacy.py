"""Clipping, noise, and what they are worth: differential privacy of an agent's answers."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check, tree
from ergodrift.distributed.ledger import epsilon_of
from ergodrift.types import Feedback, Key

T = TypeVar("T")
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

    Entries that are not finite count as 0: an answer of NaN would tell that something overflowed.

    Noise is a function of the agent's secret, of all that makes the answer (the agent, its data, the functions of the
    problem, clip and noise) and of the question: the same question gets the same answer, so asking again after a crash
    tells nothing new, and another function of the same data gets noise of its own. It is drawn in floating point, by a
    generator that is not cryptographic: fit for agents who are honest and curious, not for a hub that breaks ciphers
    (Mironov 2012).

    Attributes:
        clip: C_p, one number, or a mapping from each of the four parts.
        noise: z; 0 clips only, and has no privacy to account for.
        delta: the delta at which epsilon is reported.
        secret: a file that holds the secret, made where the agent runs unless it is there; agents may share one.
            Without one the secret lasts as long as the agent's process: a question asked again after that gets another
            answer. Such answers are counted, but for those between a hub's last checkpoint and its own end.
        budget: the epsilon, at `delta`, beyond which the agent answers nothing more, whoever asks; None for no end.
        ledger: the file in which the agent keeps what it has spent, from walk to walk and from process to process
            (`Ledger`); a budget needs one. Agents that name the same file share the budget.
    """

    clip: float | Mapping[str, float]
    noise: float = 0.0
    delta: float = 1e-5
    secret: str | Path | None = None
    budget: float | None = None
    ledger: str | Path | None = None

    def __post_init__(self) -> None:
        given = self.clip if isinstance(self.clip, Mapping) else dict.fromkeys(PARTS, self.clip)
        if set(given) != set(PARTS):
            raise ValueError(f"clip must be a number or have the keys {', '.join(PARTS)}, got {self.clip!r}")
        bounds = {part: check.number(f"clip[{part!r}]", given[part], above=0) for part in PARTS}
        object.__setattr__(self, "clip", bounds)
        object.__setattr__(self, "noise", check.number("noise", self.noise, at_least=0))
        object.__setattr__(self, "delta", check.number("delta", self.delta, above=0, below=1))
        if self.budget is not None:
            object.__setattr__(self, "budget", check.number("budget", self.budget, above=0))
            if self.noise == 0 or self.ledger is None:
                raise ValueError(f"budget={self.budget} needs noise > 0, and ledger=, a file to keep what is spent")

    @property
    def bounds(self) -> Mapping[str, float]:
        """C_p for each part."""
        return cast("Mapping[str, float]", self.clip)  # as it was made when it was checked

    def guard(self, feedback: Feedback, key: Key) -> Feedback:
        """What may leave of an answer. `key` must be of this answer alone."""
        keys = zip(PARTS, jax.random.split(key, len(PARTS)), strict=True)
        return Feedback(**{part: self._guarded(getattr(feedback, part), self.bounds[part], one) for part, one in keys})

    def _guarded(self, part: T, bound: float, key: Key) -> T:
        leaves, structure = jax.tree.flatten(part)
        leaves = [jnp.where(jnp.isfinite(leaf), leaf, 0) for leaf in leaves]
        # Squares of entries of at most 1 do not overflow. They are divided, since 1 / largest may underflow to 0.
        tiny = jnp.finfo(jnp.result_type(*leaves)).tiny
        largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), initial=tiny) for leaf in leaves]))
        units = [leaf / largest for leaf in leaves]
        norm = jnp.sqrt(tree.squared_norm(units))
        inside, factor = largest * norm <= bound, bound / jnp.maximum(norm, 1)
        keys = jax.random.split(key, len(leaves))
        noisy = [
            jnp.where(inside, leaf, unit * factor) + self.noise * bound * jax.random.normal(one, leaf.shape, leaf.dtype)
            for leaf, unit, one in zip(leaves, units, keys, strict=True)
        ]
        return structure.unflatten(noisy)

    def epsilon(self, answers: int) -> float:
        """epsilon at `delta` of so many answers, by Google's dp-accounting; infinite without noise."""
        if answers == 0:
            return 0.0
        return math.inf if self.noise == 0 else epsilon_of(answers * self.cost, self.delta)

    @property
    def cost(self) -> float:
        """The squared shift of one answer between neighbours, in standard deviations of its noise: 16 / z^2."""
        shift = 2 / self.noise
        return len(PARTS) * (shift * shift)  # a power would raise where this is infinite


class Secret:
    """What noise is drawn from: 32 bytes that only the agent knows, in a file or as long as this object lasts."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.bytes = secrets.token_bytes(32) if path is None else kept_secret(Path(path))

    def of(self, *purpose: bytes) -> Secret:
        """A secret of its own for this purpose: a keyed hash of it. Nothing can be told from one about another."""
        derived, digest = Secret(), hashlib.blake2b(key=self.bytes, digest_size=32)
        for part in purpose:
            digest.update(len(part).to_bytes(8, "big") + part)
        derived.bytes = digest.digest()
        return derived

    def keys(self, questions: np.ndarray) -> np.ndarray:
        """The seeds of one key for each question (a row), (m, 2) uint32: a keyed hash of what is asked."""
        digests = [hashlib.blake2b(row.tobytes(), key=self.bytes, digest_size=8).digest() for row in questions]
        return np.frombuffer(b"".join(digests), np.uint32).reshape(-1, 2)


def kept_secret(path: Path) -> bytes:
    """The secret in this file, which is made if it is not there, for its owner's eyes alone.

    It gets its name when it is whole, unless another process was first: then that one's secret is all_present's.
    """
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as file:  # mode 0600
            file.write(secrets.token_bytes(32))
            file.flush()
            os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(file.name, path)
    found = path.read_bytes()
    if len(found) != 32:
        raise ValueError(f"secret: {path} holds {len(found)} bytes, a secret has 32; name another file")
    return found
