"""A process that holds many agents: loads their data when they are first visited, and answers for all of them."""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from ergodrift._core import check, tree
from ergodrift.distributed import replies, wire
from ergodrift.distributed.actor import AgentActor, feedback_answer, token_answer
from ergodrift.distributed.agent import Agent
from ergodrift.distributed.faults import RefusalError, plain, state_file, write
from ergodrift.distributed.replies import Ready
from ergodrift.distributed.rows import over_rows
from ergodrift.distributed.serialization import deserialize, serialize
from ergodrift.distributed.site import Site
from ergodrift.distributed.wire import WalkSpec
from ergodrift.engine.checkpoint import functions
from ergodrift.types import PyTree

CACHE_BYTES = 2**30  # of loaded data that a process keeps; those not visited for longest are loaded again when needed


class HostedWalk(NamedTuple):
    """What answers the questions of a walk here."""

    sent: bytes
    spec: WalkSpec
    question: jax.ShapeDtypeStruct
    function: Callable[..., jax.Array]  # of rows (a question, who is asked) and the leaves of their data, stacked
    functions: dict[str, str]


class HostActor:
    """Ray makes an actor of it: many agents, none of which has a process of its own.

    Agents without `Privacy` whose data have the same shapes are answered for by one call of one compiled function. Each
    of the others has an `AgentActor` here, which is asked as if it stood alone.

    Attributes:
        first: the number of the first agent here; the others follow it.
    """

    def __init__(self, first: int, cache_bytes: int = CACHE_BYTES) -> None:
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        self.first, self.cache_bytes = first, cache_bytes
        self.agents: Sequence[Agent] = []
        self.log = state_file(f"process of agent {first}", "log")
        self.walks: dict[bytes, HostedWalk] = {}
        self.loaded: collections.OrderedDict[int, PyTree] = collections.OrderedDict()
        self.size = 0  # bytes in `loaded`
        self.alone: dict[int, AgentActor] = {}

    @functools.cached_property
    def site(self) -> Site:
        return Site.here()

    @plain
    def prepare(self, walk: bytes, spec: bytes, agents: bytes) -> bytes:
        """Compile what answers the questions of a walk, for data like those of the first of these agents."""
        if self.site.agents:  # whose owner says what they are, one by one
            raise RefusalError("site")
        self.agents = self.agents or deserialize(agents, self.site.hub_keys)
        known = next((found for found in self.walks.values() if found.sent == spec), None)
        known = self._prepare(spec) if known is None else known
        self.walks = {walk: known}
        jax.config.update("jax_enable_x64", known.spec.x64)
        return replies.ready(Ready(known.spec.num_constraints, known.functions))

    def _prepare(self, sent: bytes) -> HostedWalk:
        spec: WalkSpec = deserialize(sent, self.site.hub_keys)
        if spec.secure:
            raise RefusalError("group")
        jax.config.update("jax_enable_x64", spec.x64)
        self.loaded.clear()
        self.size = 0
        xi = self._data(0, spec)
        spec = dataclasses.replace(spec, num_constraints=spec.run_spec.problem.check(spec.x0, xi))
        question = wire.question_shape(spec)

        def one(structure: PyTree, row: jax.Array, *leaves: jax.Array) -> jax.Array:
            own, words, number = structure.unflatten(leaves), row[:-1], row[-1].astype(np.int32)
            if spec.local_rounds == 1:
                return feedback_answer(None, spec, own, words)
            return token_answer(None, spec, (own, number), words)

        @functools.partial(jax.jit, static_argnums=0)
        def function(structure: PyTree, rows: jax.Array, *leaves: jax.Array) -> jax.Array:
            return over_rows(functools.partial(one, structure), rows, *leaves)

        private = any(agent.privacy for agent in self.agents)
        known = {} if private else functions(spec.run_spec.problem, spec.x0, xi)
        prepared = HostedWalk(sent, spec, question, function, known)
        rows = np.append(np.asarray(wire.first_question(spec)), question.dtype.type(self.first))[None]
        self._together(prepared, rows, np.zeros(1, int))
        return prepared

    def _data(self, slot: int, spec: WalkSpec) -> PyTree:
        """The data of an agent, in the precision of the walk."""
        if slot in self.loaded:
            self.loaded.move_to_end(slot)
            return self.loaded[slot]
        data = self.agents[slot].load()
        check.fits("data", data)
        wide = bool(jax.config.read("jax_enable_x64"))
        data = jax.tree.map(lambda leaf: leaf if wide else _narrow(leaf), tree.cast(data, tree.dtype(spec.x0)))
        self.loaded[slot] = data
        self.size += _bytes(data)
        while self.size > self.cache_bytes and len(self.loaded) > 1:
            self.size -= _bytes(self.loaded.popitem(last=False)[1])
        return data

    @plain
    def answer(self, sent: bytes) -> bytes:
        """One row for each question: the answer, and 1; or zeros, where the agent that was asked could not answer."""
        prepared = self.walks.get(sent[: wire.ID_BYTES])
        if prepared is None:
            return b""
        width = prepared.question.shape[0]
        rows = np.frombuffer(sent, prepared.question.dtype, -1, wire.ID_BYTES).reshape(-1, width + 1)
        slots = rows[:, -1].astype(np.int64) - self.first
        out: np.ndarray | None = None
        for chosen, found in self._answers(prepared, rows, slots):
            out = np.zeros((len(rows), found.shape[1] + 1), found.dtype) if out is None else out
            out[chosen, :-1], out[chosen, -1] = found, 1
        if out is None:  # nobody could answer
            shape = jax.eval_shape(prepared.function, *_example(prepared, self._data(0, prepared.spec)))
            out = np.zeros((len(rows), shape.shape[1] + 1), shape.dtype)
        return out.tobytes() + replies.ANSWER

    def _answers(
        self, prepared: HostedWalk, rows: np.ndarray, slots: np.ndarray
    ) -> Generator[tuple[list[int], np.ndarray]]:
        """Rows and their answers, those with data of the same shapes together."""
        kinds: dict[object, list[int]] = collections.defaultdict(list)
        for row, slot in enumerate(slots.tolist()):
            try:
                kinds[self._kind(slot, prepared)].append(row)
            except Exception as error:  # whatever a loader raises: the others have nothing to do with it
                write(self.log, error)
        for kind, chosen in kinds.items():
            if isinstance(kind, int):
                found = self._by_itself(kind, prepared, rows[chosen, :-1])
                if found is not None:
                    yield chosen, found
            else:
                yield chosen, self._together(prepared, rows[chosen], slots[chosen])

    def _kind(self, slot: int, prepared: HostedWalk) -> object:
        """What agents that can be answered for at once have in common; of one that cannot, its own number."""
        if self.agents[slot].privacy is not None or self.agents[slot].secure is not None:
            return slot
        leaves, structure = jax.tree.flatten(self._data(slot, prepared.spec))
        return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)

    def _together(self, prepared: HostedWalk, rows: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Answers of agents with data of the same shapes; filled up by the last to a power of two."""
        size = 1 << (max(len(slots), prepared.spec.batch) - 1).bit_length()
        own = [jax.tree.flatten(self._data(int(slot), prepared.spec)) for slot in slots]
        filled = np.minimum(np.arange(size), len(slots) - 1)
        stacked = [np.stack(leaves)[filled] for leaves in zip(*(leaves for leaves, _ in own), strict=True)]
        return np.asarray(prepared.function(own[0][1], rows[filled], *stacked))[: len(slots)]

    def _by_itself(self, slot: int, prepared: HostedWalk, words: np.ndarray) -> np.ndarray | None:
        """Answers of an agent that guards them."""
        if slot not in self.alone:
            agent = self.agents[slot]
            self.alone[slot] = AgentActor(serialize(agent), self.first + slot, agent.name)
            self.alone[slot].agent = agent  # which has been checked here
        actor, walk = self.alone[slot], next(iter(self.walks))
        if walk not in actor.walks:
            actor.prepare(walk, prepared.sent)
        said = actor.answer(walk + words.tobytes())
        answer = replies.parsed(said) if said else None
        return np.frombuffer(answer, words.dtype).reshape(len(words), -1) if isinstance(answer, bytes) else None

    def process_id(self) -> bytes:
        """The process that runs this actor."""
        return replies.here(os.getpid())


def _example(prepared: HostedWalk, data: PyTree) -> tuple:
    leaves, structure = jax.tree.flatten(data)
    row = np.zeros((1, prepared.question.shape[0] + 1), prepared.question.dtype)
    return structure, row, *(leaf[None] for leaf in leaves)


def _bytes(data: PyTree) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(data))


def _narrow(leaf: np.ndarray) -> np.ndarray:
    """An array as JAX takes it where it has no 64-bit numbers."""
    return leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype))
