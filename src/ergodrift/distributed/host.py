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
from ergodrift.distributed.loading import Loading
from ergodrift.distributed.replies import Ready
from ergodrift.distributed.rows import over_rows
from ergodrift.distributed.serialization import deserialize, serialize
from ergodrift.distributed.site import Site
from ergodrift.distributed.wire import WalkSpec
from ergodrift.engine.checkpoint import functions
from ergodrift.types import PyTree

EXAMPLES = 32  # agents of a process who are tried, until one is found for whose data to compile
CACHE_BYTES = 2**30  # of loaded data that a process keeps; those not visited for longest are loaded again when needed


class HostedWalk(NamedTuple):
    """What answers the questions of a walk here."""

    sent: bytes
    spec: WalkSpec
    question: jax.ShapeDtypeStruct
    function: Callable[..., jax.Array]  # of rows (a question, who is asked) and the leaves of their data, stacked
    functions: dict[str, str]
    width: int = 0  # words of an answer


class HostActor:
    """Ray makes an actor of it: many agents, none of which has a process of its own.

    Agents without `Privacy` whose data have the same shapes are answered for by one call of one compiled function. Each
    of the others has an `AgentActor` here, which is asked as if it stood alone. One that cannot be answered for, or at
    whose data the process ends again and again, leaves the others as they are.

    Attributes:
        first: the number of the first agent here; the others follow it.
        loading: whose data are being loaded, under a name that this process shares with those before and after it.
    """

    def __init__(self, first: int, name: str, cache_bytes: int = CACHE_BYTES) -> None:
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        self.first, self.cache_bytes = first, cache_bytes
        self.loading = Loading(name)
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
        """Compile what answers the questions of a walk, for data like those of one of these agents."""
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
        slot, num_constraints = self._example(spec)
        xi, spec = self._data(slot, spec), dataclasses.replace(spec, num_constraints=num_constraints)
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
        rows = np.append(np.asarray(wire.first_question(spec)), question.dtype.type(self.first + slot))[None]
        return prepared._replace(width=self._together(prepared, rows, np.array([slot])).shape[1])

    def _example(self, spec: WalkSpec) -> tuple[int, int]:
        """An agent whose data can be loaded and are such as the functions take, and how many constraints there are."""
        spread = np.unique(np.linspace(0, len(self.agents) - 1, EXAMPLES).astype(int)).tolist()
        failed: list[BaseException] = []
        for slot in sorted(spread, key=lambda slot: self.loading.deaths[slot]):
            try:
                return slot, spec.run_spec.problem.check(spec.x0, self._data(slot, spec))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # what is wrong with one may be right with the next
                failed.append(error)
                write(self.log, error)
        raise failed[0]

    def _data(self, slot: int, spec: WalkSpec) -> PyTree:
        """The data of an agent, in the precision of the walk."""
        if slot in self.loaded:
            self.loaded.move_to_end(slot)
            return self.loaded[slot]
        with self.loading.of(slot):
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
        out = np.zeros((len(rows), prepared.width + 1), prepared.question.dtype)
        for chosen, found in self._answers(prepared, rows, slots):
            out[chosen, :-1], out[chosen, -1] = found, 1
        return out.tobytes() + replies.ANSWER

    def _answers(
        self, prepared: HostedWalk, rows: np.ndarray, slots: np.ndarray
    ) -> Generator[tuple[list[int], np.ndarray]]:
        """Rows and their answers, those with data of the same shapes together; without those that fail."""
        kinds: dict[object, list[int]] = collections.defaultdict(list)
        for row, slot in enumerate(slots.tolist()):
            try:
                kinds[self._kind(slot, prepared)].append(row)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # whatever a loader raises: the others have nothing to do with it
                write(self.log, error)
        turns = list(kinds.values())
        while turns:
            chosen = turns.pop()
            own = np.unique(slots[chosen])
            try:
                found = self._answers_of(int(own[0]), prepared, rows[chosen], slots[chosen])
                if found.shape[1] != prepared.width:
                    raise ValueError(
                        f"answers of {found.shape[1]} words, others of {prepared.width}: more constraints?"
                    )
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                if len(own) == 1:
                    write(self.log, error)
                else:  # whose fault it is shows when each is asked alone
                    turns += [[row for row in chosen if slots[row] == slot] for slot in own.tolist()]
                continue
            yield chosen, found

    def _answers_of(self, one: int, prepared: HostedWalk, rows: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """The answers of agents of one kind, `one` among them."""
        if isinstance(self._kind(one, prepared), int):
            return self._by_itself(one, prepared, rows[:, :-1])
        return self._together(prepared, rows, slots)

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

    def _by_itself(self, slot: int, prepared: HostedWalk, words: np.ndarray) -> np.ndarray:
        """Answers of an agent that guards them."""
        if slot not in self.alone:
            agent = self.agents[slot]
            self.alone[slot] = AgentActor(serialize(agent), self.first + slot, agent.name)
            self.alone[slot].agent = agent  # which has been checked here
        actor, walk = self.alone[slot], next(iter(self.walks))
        if walk not in actor.walks:
            with self.loading.of(slot):
                actor.prepare(walk, prepared.sent)
        said = actor.answer(walk + words.tobytes())
        answer = replies.parsed(said) if said else replies.Fault("it is not ready; its own log says why")
        if not isinstance(answer, bytes):
            raise ValueError(f"agent {self.first + slot}: {answer}")  # for the log of this process; it has its own
        return np.frombuffer(answer, words.dtype).reshape(len(words), -1)

    def end(self) -> bytes:
        """Leave nothing behind."""
        self.loading.end()
        return b""

    def process_id(self) -> bytes:
        """The process that runs this actor."""
        return replies.here(os.getpid())


def _bytes(data: PyTree) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(data))


def _narrow(leaf: np.ndarray) -> np.ndarray:
    """An array as JAX takes it where it has no 64-bit numbers."""
    return leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype))
