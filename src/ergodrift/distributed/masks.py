"""Secure aggregation: agents who are visited together add masks that cancel, so that only their sum can be read.

The protocol is that of Bonawitz et al. (2017, figure 4) for a group that answers as a whole: each pair of members
shares a mask that one adds and the other subtracts, and each member adds a mask of its own, which it opens only when
told that all have answered. A round in which one is missing opens nothing, and is repeated by those who are left with
new masks. That the masked answers tell their sum and nothing else is lemma 6.1 there. Keys are agreed on by X25519 (RFC
7748), masks are HKDF-SHA256 (RFC 5869) of the whole question, stretched by ChaCha20 (RFC 8439), all from
`cryptography`. Numbers are fixed-point modulo 2^64, so that masks cancel exactly.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ergodrift._core import check
from ergodrift.distributed.faults import RefusalError
from ergodrift.distributed.privacy import kept_secret

KEY_BYTES, NONCE_BYTES = 32, 16
ASK, OPEN = b"\x01", b"\x02"  # what a question wants: the masked answers, or what opens the member's own mask
FEWEST = 3  # members: the sum of two tells each of them the other's answer
MAX_REMEMBERED = 2**20  # questions of which a member remembers for whom it has opened them
TOP = 62  # bits of a sum below its sign


@dataclasses.dataclass(frozen=True)
class Secure:
    """An agent that answers in groups only, so that nobody learns more than the sum of its answer and others'.

    Attributes:
        fewest: members that a group must have; at least 3, since the sum of two tells each the other's answer.
        peers: public keys, in hexadecimal, of all who may be in a group with it; without them whoever the hub names,
            and a hub that lies could name itself.
        key: the file of its own key, which is made where the agent runs; `ergodrift/NAME.key` beside its log unless
            given.
    """

    fewest: int = FEWEST
    peers: Sequence[str] = ()
    key: str | Path | None = None

    def __post_init__(self) -> None:
        check.integer("fewest", self.fewest, at_least=FEWEST)
        for peer in self.peers:
            if not isinstance(peer, str) or len(peer) != 2 * KEY_BYTES or set(peer) - set("0123456789abcdef"):
                raise ValueError(f"peers must hold public keys of {2 * KEY_BYTES} hexadecimal digits, got {peer!r}")


class Round(NamedTuple):
    """One question to a group: for whom, under which nonce, and the fixed-point scale."""

    keys: tuple[bytes, ...]  # the members' public keys, sorted
    nonce: bytes
    scale: float

    def packed(self, what: bytes) -> bytes:
        """What stands before the words of the question."""
        return (
            what + len(self.keys).to_bytes(2, "big") + b"".join(self.keys) + self.nonce + struct.pack("<d", self.scale)
        )

    @property
    def num_bytes(self) -> int:
        """How many bytes that is."""
        return 3 + KEY_BYTES * len(self.keys) + NONCE_BYTES + 8


def unpacked(sent: bytes) -> tuple[bytes, Round, bytes]:
    """What a question wants, its round, and its words."""
    count = int.from_bytes(sent[1:3], "big")
    after = 3 + KEY_BYTES * count
    keys = tuple(sent[start : start + KEY_BYTES] for start in range(3, after, KEY_BYTES))
    (scale,) = struct.unpack("<d", sent[after + NONCE_BYTES : after + NONCE_BYTES + 8])
    return sent[:1], Round(keys, sent[after : after + NONCE_BYTES], scale), sent[after + NONCE_BYTES + 8 :]


def scale_for(members: int, bound: float) -> float:
    """The largest power of two at which the sum of so many numbers of at most `bound` stays below 2^62.

    >>> scale_for(4, 1.0) == 2.0**60
    True
    """
    return 2.0 ** (TOP - math.ceil(math.log2(members * bound)))


class Member:
    """An agent's part: its key, which lasts in a file, and what it has opened so far."""

    def __init__(self, file: Path, fewest: int = FEWEST, peers: Sequence[str] = ()) -> None:
        self.private = kept_secret(file)
        self.key: Any = _x25519().X25519PrivateKey.from_private_bytes(self.private)
        self.public: bytes = self.key.public_key().public_bytes_raw()
        self.fewest, self.peers = fewest, {bytes.fromhex(peer) for peer in peers}
        self.shared: dict[bytes, bytes] = {}
        self.opened: dict[bytes, tuple[bytes, ...]] = {}

    def check(self, asked: Round) -> None:
        """Refuse a group that is too small, is not mine, or has strangers among its members."""
        keys = set(asked.keys)
        if len(keys) < max(self.fewest, FEWEST) or len(keys) < len(asked.keys) or self.public not in keys:
            raise RefusalError("group", f"{len(keys)} members, of which I am {'one' * (self.public in keys) or 'none'}")
        if self.peers and not keys <= self.peers | {self.public}:
            raise RefusalError("group", "not all of its members are known here")

    def masked(self, walk: bytes, asked: Round, words: bytes, numbers: np.ndarray) -> bytes:
        """The answers to a question in fixed point, under all masks of this member."""
        limit = 2.0**TOP / (len(asked.keys) * asked.scale)
        if not np.isfinite(numbers).all() or np.abs(numbers).max(initial=0) > limit:
            raise RefusalError("bound", f"an entry is not finite, or beyond {limit:g}")
        purpose = _purpose(walk, asked, words)
        total = np.rint(numbers.ravel() * asked.scale).astype(np.int64).view(np.uint64)
        total = total + stretched(self.own_seed(purpose), len(total))
        for peer in asked.keys:
            if peer != self.public:
                mask = stretched(_derived(self._shared(peer), b"pair", purpose), len(total))
                total = total + mask if self.public < peer else total - mask
        return total.tobytes()

    def opening(self, walk: bytes, asked: Round, words: bytes, rows: np.ndarray) -> bytes:
        """What opens this member's own mask, once it is told that all have answered; for one group per question."""
        for row in rows:
            question = hashlib.blake2b(walk + row.tobytes(), digest_size=16).digest()
            if self.opened.setdefault(question, asked.keys) != asked.keys:
                raise RefusalError("opened")
        while len(self.opened) > MAX_REMEMBERED:
            del self.opened[next(iter(self.opened))]
        return self.own_seed(_purpose(walk, asked, words))

    def own_seed(self, purpose: bytes) -> bytes:
        """The seed of the mask that only this member knows until it opens it."""
        return _derived(self.private, b"own", purpose)

    def _shared(self, peer: bytes) -> bytes:
        if peer not in self.shared:
            self.shared[peer] = self.key.exchange(_x25519().X25519PublicKey.from_public_bytes(peer))
        return self.shared[peer]


def total(masked: Sequence[bytes], seeds: Sequence[bytes], scale: float) -> np.ndarray:
    """The sum of the members' numbers, of all their masked answers and of what opens them."""
    words = sum((np.frombuffer(one, np.uint64) for one in masked[1:]), np.frombuffer(masked[0], np.uint64).copy())
    for seed in seeds:
        words = words - stretched(seed, len(words))
    return words.view(np.int64) / scale


def stretched(seed: bytes, count: int) -> np.ndarray:
    """So many words of ChaCha20's key stream."""
    ciphers: Any = imported("cryptography.hazmat.primitives.ciphers")
    cipher = ciphers.Cipher(ciphers.algorithms.ChaCha20(seed, bytes(16)), mode=None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * count)), np.uint64)


def _purpose(walk: bytes, asked: Round, words: bytes) -> bytes:
    """All that makes an answer, the function among the words: no mask serves two of them, and who is asked otherwise
    cancels nobody's masks."""
    return hashlib.sha256(walk + asked.packed(ASK) + words).digest()


def _derived(secret: bytes, use: bytes, purpose: bytes) -> bytes:
    hkdf: Any = imported("cryptography.hazmat.primitives.kdf.hkdf")
    hashes: Any = imported("cryptography.hazmat.primitives.hashes")
    return hkdf.HKDF(hashes.SHA256(), 32, salt=None, info=b"ergodrift " + use + purpose).derive(secret)


def _x25519() -> Any:
    return imported("cryptography.hazmat.primitives.asymmetric.x25519")


def imported(name: str) -> Any:
    """A module of `cryptography`, which comes with an extra."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError('secure aggregation and signatures need cryptography: pip install "ergodrift[ray]"') from None
