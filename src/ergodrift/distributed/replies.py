"""What agents say, as plain bytes that the hub parses and checks: nothing that comes from them is ever unpickled."""

from __future__ import annotations

import json
import math
import re
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ergodrift.types import Feedback

if TYPE_CHECKING:
    from ray import ObjectRef

ANSWER, READY, FAULT, HERE = b"A", b"R", b"F", b"H"  # the last byte of a reply says what it is
PLAIN = b"RAW"  # how Ray marks bytes, which it hands over as they are; all else it would unpickle
# All that an agent says in words stands here, so that no word of its data can be among them.
REFUSALS = {
    "budget": "its privacy budget is spent",
    "rows": "its data have no rows",
    "arrays": "its data hold no arrays",
    "finite": "its data are not finite",
    "key": "what it was sent is not signed by a hub that its machine knows",
    "site": "its machine has no agent of that name",
    "ledger": "its privacy ledger cannot be used",
    "group": "it answers in groups that it knows, or that are large enough, and this was none",
    "memory": "it guards its answers, and this walk would hand them on from agent to agent",
    "opened": "it has opened its answer to this question for another group",
    "bound": "its answer is not finite, or beyond the bounds of secure aggregation",
    "ended": "its process ended before it was ready",
    "deadly": "its process ended whenever it loaded this agent's data",
}
MAX_TEXT = 120  # characters of a type's name, or of a place
MOST_BYTES = 2**20  # of a reply that is no answer: an agent that says more is not heard out


class Ready(NamedTuple):
    """That an agent is ready for a walk.

    Attributes:
        constraints: how many there are.
        functions: digests of what loss and constraints compute there, for checkpoints; empty where that is private.
        privacy: clip by part, noise and delta, where its answers are guarded.
        key: its public key of this walk, in hexadecimal, for secure aggregation.
        fewest: members that a group must have for it to answer there.
    """

    constraints: int
    functions: dict[str, str]
    privacy: tuple[dict[str, float], float, float] | None = None
    key: str = ""
    fewest: int = 0


class Fault(NamedTuple):
    """That something went wrong at an agent: the sentence for whom it may concern."""

    text: str


class NotPlainError(Exception):
    """What came from an agent is no plain bytes; it was not looked at."""


class LostError(Exception):
    """An agent's process or node has died, or its answer was lost. `given_up`: Ray will not start it again."""

    def __init__(self, cause: str, given_up: bool = False) -> None:
        super().__init__(cause)
        self.given_up = given_up


def read(ray: ModuleType, ref: ObjectRef, timeout: float, most: int = MOST_BYTES) -> bytes:
    """The bytes behind a reference, once they are there; of no more than `most` a copy is made.

    `ray.get` unpickles whatever an agent returns or raises, and unpickling can run any code. So the object is taken
    from Ray as it travelled, and only bytes are accepted.

    Raises:
        GetTimeoutError: of Ray, nothing came within `timeout` seconds.
        LostError: nothing will come.
        NotPlainError: something else came, or more of it.
    """
    worker: Any = ray._private.worker.global_worker  # no public function leaves an object as it is
    if not hasattr(worker, "core_worker"):
        raise RuntimeError("the hub must run on a machine of the cluster: through ray:// answers would be unpickled")
    ((data, metadata, *_),) = worker.core_worker.get_objects([ref], int(1000 * timeout))
    kind = bytes(metadata or b"").split(b",")[0]
    if kind == PLAIN:
        if data is not None and data.size > most:
            raise NotPlainError(f"{data.size} bytes, more than {most}")
        return b"" if data is None else data.to_pybytes()
    if not kind.isdigit():
        raise NotPlainError("an object, not with plain bytes")
    name = _error_name(ray, int(kind))
    if name == "TASK_EXECUTION_EXCEPTION":
        raise NotPlainError("an exception, not with plain bytes")
    raise LostError(name.lower().replace("_", " "), given_up=name == "ACTOR_DIED")


def leave_unread(ray: ModuleType) -> None:
    """From now on nothing that was raised in this cluster is unpickled here unless it is asked for.

    Ray does so with an exception that comes, or is, when nobody holds a reference to it any more, in order to print it.
    """
    ray._private.worker.global_worker.raise_errors = _nothing  # there is no setting for it


def _nothing(*_: object) -> None:
    pass


def _error_name(ray: ModuleType, number: int) -> str:
    try:
        return str(ray._private.serialization.ErrorType.Name(number))
    except ValueError:
        return f"error {number}"


def ready(said: Ready) -> bytes:
    """The reply of an agent that is ready."""
    return json.dumps(said._asdict()).encode() + READY


def refusal(code: str) -> bytes:
    """The reply of an agent that refuses, for a reason of `REFUSALS`."""
    return json.dumps({"refusal": code}).encode() + FAULT


def failure(kind: str, place: str) -> bytes:
    """The reply of an agent where something was raised: its type and where, and no more."""
    return json.dumps({"type": kind, "place": place}).encode() + FAULT


def here(process: int) -> bytes:
    """The reply of an agent that only says where it is."""
    return str(process).encode() + HERE


def parsed(reply: bytes) -> bytes | Ready | Fault | int:
    """What a reply says: the words of an answer, that the agent is ready, a fault, or the number of its process.

    Raises:
        NotPlainError: it is none of these.
    """
    kind, body = reply[-1:], reply[:-1]
    if kind == ANSWER:
        return body
    try:
        return {READY: _ready, FAULT: _fault, HERE: int}[kind](json.loads(body))
    except (KeyError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
        raise NotPlainError("something that is no reply") from None


def _ready(said: dict[str, Any]) -> Ready:
    constraints, functions, privacy, fewest = (said[name] for name in ("constraints", "functions", "privacy", "fewest"))
    if not all(type(count) is int and 0 <= count <= 2**31 for count in (constraints, fewest)):
        raise ValueError
    if privacy is not None:
        clip, noise, delta = privacy
        clip = {part: float(clip[part]) for part in Feedback._fields[:4]}
        if not all(0 < bound < math.inf for bound in clip.values()) or not (0 <= noise < math.inf and 0 < delta < 1):
            raise ValueError
        privacy = clip, float(noise), float(delta)
    digests = {name: _matched(r"[0-9a-f]{0,128}", functions[name]) for name in ("loss", "constraints") if functions}
    return Ready(constraints, digests, privacy, _matched(r"([0-9a-f]{64})?", said["key"]), fewest)


def _fault(said: dict[str, Any]) -> Fault:
    if "refusal" in said:
        return Fault(REFUSALS[said["refusal"]])
    kind, place = _matched(r"[\w.]+", said["type"]), _matched(r"[\w.<>:/ -]*", said["place"])
    return Fault(f"it failed with {kind} at {place}; its own log has the text")


def _matched(pattern: str, text: object) -> str:
    if not isinstance(text, str) or len(text) > 2 * MAX_TEXT or not re.fullmatch(pattern, text, re.ASCII):
        raise ValueError
    return text
