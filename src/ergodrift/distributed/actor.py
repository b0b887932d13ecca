"""What runs where the data are: the actor of an agent, which answers questions about them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check, tree
from ergodrift.distributed import masks, replies, wire
from ergodrift.distributed.agent import Agent
from ergodrift.distributed.faults import RefusalError, plain, state_file
from ergodrift.distributed.ledger import Ledger
from ergodrift.distributed.masks import Member, Secure
from ergodrift.distributed.privacy import Privacy, Secret
from ergodrift.distributed.replies import Ready
from ergodrift.distributed.rows import over_rows
from ergodrift.distributed.serialization import deserialize
from ergodrift.distributed.site import Site
from ergodrift.distributed.wire import Token, Visit, WalkSpec
from ergodrift.engine import loop
from ergodrift.engine.checkpoint import functions
from ergodrift.methods.memory import Memory
from ergodrift.methods.method import zero_feedback
from ergodrift.problem import Problem
from ergodrift.types import Array, Feedback, Key, PyTree

MAX_COMPILED = 7  # specifications that stay compiled beside the present one


class PreparedWalk(NamedTuple):
    """What answers the questions of a walk."""

    spec: WalkSpec
    digest: bytes  # of the specification as it was sent
    question: jax.ShapeDtypeStruct
    function: Callable[..., jax.Array]  # of the words of `spec.batch` questions, and their noise where there is any
    secret: Secret | None
    functions: dict[str, str]  # what loss and constraints compute here, for checkpoints; nothing where that is private

    def answers(self, words: np.ndarray) -> np.ndarray:
        """The answers to one batch."""
        if self.secret is None:
            return np.asarray(self.function(words))
        return np.asarray(self.function(words, self.secret.keys(words.reshape(-1, *self.question.shape))))


class AgentActor:
    """Ray makes an actor of it. It keeps nothing between questions but its data: asked twice, it answers the same.

    Whatever it says is plain bytes (`replies`), and whatever is raised stays here, but for its type and place.
    """

    def __init__(self, agent: bytes, number: int, name: str | None = None) -> None:
        # Each answer is waited for: a thread to compute it in the background would have to be woken up for it.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        self.sent, self.number, self.name = agent, number, name or f"agent {number}"
        self.log = state_file(self.name, "log")
        self.walks: dict[bytes, PreparedWalk] = {}  # the last one only
        self.prepared: dict[bytes, PreparedWalk] = {}  # by the specification as it was sent
        self.converted: dict[tuple[np.dtype, bool], PyTree] = {}  # the data in the precision of a walk

    @functools.cached_property
    def site(self) -> Site:
        return Site.here()

    @functools.cached_property
    def agent(self) -> Agent:
        agent: Agent = deserialize(self.sent, self.site.hub_keys)
        if self.site.agents:  # the owner of this machine says what its agents are
            if self.name not in self.site.agents:
                raise RefusalError("site", self.name)
            agent = self.site.agents[self.name]
        self.log = self.log if agent.log is None else Path(agent.log)
        return agent

    @functools.cached_property
    def data(self) -> PyTree:
        return self.agent.load()

    @functools.cached_property
    def secret(self) -> Secret | None:
        return Secret(self.agent.privacy.secret) if self.agent.privacy else None

    @functools.cached_property
    def ledger(self) -> Ledger | None:
        privacy = self.agent.privacy
        if privacy is None or privacy.budget is None or privacy.ledger is None:
            return None
        return Ledger(privacy.ledger, privacy.budget, privacy.delta)

    @functools.cached_property
    def member(self) -> Member:
        """Its part in secure aggregation."""
        secure = self.agent.secure or Secure()
        file = state_file(self.name, "key") if secure.key is None else Path(secure.key)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Member(file, secure.fewest, secure.peers)

    @plain
    def prepare(self, walk: bytes, spec: bytes) -> bytes:
        """Load the data, unless they are here, and compile what answers the questions of a walk: that this is `Ready`.

        All that can fail or take long is done here: not when the process starts, when there is nobody to tell, and not
        when a question waits.
        """
        if spec not in self.prepared:
            self.prepared = dict(list(self.prepared.items())[-MAX_COMPILED:]) | {spec: self._prepare(spec)}
        prepared = self.prepared[spec]
        jax.config.update("jax_enable_x64", prepared.spec.x64)
        self.walks = {walk: prepared}
        privacy = self.agent.privacy
        told = (dict(privacy.bounds), privacy.noise, privacy.delta) if privacy else None
        if privacy is not None and self.ledger is not None:
            self.ledger.check(prepared.spec.local_rounds * privacy.cost)
        if self.agent.secure and not prepared.spec.secure:
            raise RefusalError("group")
        ready = Ready(prepared.spec.num_constraints, prepared.functions, told)
        if prepared.spec.secure:
            ready = ready._replace(key=self.member.public.hex(), fewest=self.member.fewest)
        return replies.ready(ready)

    def _prepare(self, sent: bytes) -> PreparedWalk:
        spec: WalkSpec = deserialize(sent, self.site.hub_keys)
        # The hub refuses this before; but it may not have known, or an agent that guards its answers comes later.
        if self.agent.privacy and spec.local_rounds > 1 and isinstance(spec.run_spec.method.estimator, Memory):
            raise RefusalError("memory")
        jax.config.update("jax_enable_x64", spec.x64)
        xi = self._data(tree.dtype(spec.x0), spec.x64)
        spec = dataclasses.replace(spec, num_constraints=spec.run_spec.problem.check(spec.x0, xi))
        one, own = (feedback_answer, xi) if spec.local_rounds == 1 else (token_answer, (xi, np.int32(self.number)))
        leaves, structure = jax.tree.flatten(own)
        question = wire.question_shape(spec)

        def answers(spec: WalkSpec, leaves: PyTree, words: jax.Array, *seeds: jax.Array) -> jax.Array:
            each = functools.partial(one, self.agent.privacy, spec, structure.unflatten(leaves))
            return over_rows(each, words.reshape(-1, *question.shape), *seeds)

        # What is the agent's own is an argument, so that all compile the same; nothing else is, since a process that
        # was just woken up takes its time for every one.
        function = functools.partial(jax.jit(functools.partial(answers, spec)), leaves)
        secret = self.secret and self.secret.of(*self._purpose(answers, spec, leaves, question, sent))
        # What functions compute depends on the shapes of the data, which are the agent's own business if it has any:
        # then only who has the secret can tell what was digested.
        known = functions(spec.run_spec.problem, spec.x0, xi)
        if self.agent.privacy is not None and self.secret is not None:
            lasting = self.agent.privacy.secret is not None
            known = {part: self.secret.of(text.encode()).bytes.hex() for part, text in known.items()} if lasting else {}
        prepared = PreparedWalk(spec, hashlib.sha256(sent).digest(), question, function, secret, known)
        prepared.answers(np.tile(np.asarray(wire.first_question(spec)), spec.batch))
        return prepared

    def _data(self, dtype: np.dtype, x64: bool) -> PyTree:
        if (dtype, x64) not in self.converted:
            check.fits("data", self.data)
            self.converted[dtype, x64] = tree.cast(jax.tree.map(jnp.asarray, self.data), dtype)
        return self.converted[dtype, x64]

    def _purpose(
        self,
        answers: Callable[..., jax.Array],
        spec: WalkSpec,
        leaves: PyTree,
        question: jax.ShapeDtypeStruct,
        sent: bytes,
    ) -> list[bytes]:
        """All that makes an answer but the question: whatever differs in it must not share its noise."""
        numbers = [np.asarray(leaf) for leaf in jax.tree.leaves((spec, leaves))]
        shapes = [(str(array.dtype), array.shape) for array in numbers]
        description = repr((self.number, self.agent.name, self.agent.privacy, shapes)).encode()
        asked = np.zeros(question.shape, question.dtype), np.zeros((1, 2), np.uint32)
        text = _lowered(answers, spec, leaves, *asked)
        return [description, text or sent, *(array.tobytes() for array in numbers)]

    @plain
    def answer(self, sent: bytes) -> bytes:
        """One answer for each question. Nothing where the walk is not known, as after a restart.

        Bytes, not arrays: Ray takes them as they are, and pickling would cost as much as the answer. A process that was
        just woken up takes its time for every call into NumPy, hence so few where there is one batch.
        """
        prepared = self.walks.get(sent[: wire.ID_BYTES])
        if prepared is None:
            return b""
        if prepared.spec.secure:
            return self._masked(prepared, sent[: wire.ID_BYTES], sent[wire.ID_BYTES :]) + replies.ANSWER
        words = np.frombuffer(sent, prepared.question.dtype, -1, wire.ID_BYTES)
        return self._answers(prepared, words).tobytes() + replies.ANSWER

    def _answers(self, prepared: PreparedWalk, words: np.ndarray) -> np.ndarray:
        """The answers to all questions in these words, once they are paid for."""
        width = prepared.question.shape[0]
        batch = prepared.spec.batch * width
        if self.ledger is not None and self.agent.privacy is not None:
            self.ledger.spend(len(words) // width * prepared.spec.local_rounds * self.agent.privacy.cost)
        if len(words) == batch:
            return prepared.answers(words)
        padded = np.concatenate([words, np.tile(words[-width:], -len(words) % batch // width)])
        answers = [prepared.answers(padded[start : start + batch]) for start in range(0, len(padded), batch)]
        return np.concatenate(answers)[: len(words) // width]

    def _masked(self, prepared: PreparedWalk, walk: bytes, sent: bytes) -> bytes:
        """The answers under masks, or what opens this member's own: as the question wants."""
        what, asked, body = masks.unpacked(sent)
        self.member.check(asked)
        words = np.frombuffer(body, prepared.question.dtype)
        # Under the same masks as the answer of another function, of a constant, this one would be in clear.
        body = prepared.digest + body
        if what == masks.OPEN:
            return self.member.opening(walk, asked, body, words.reshape(-1, prepared.question.shape[0]))
        answers = self._answers(prepared, words)
        return self.member.masked(walk, asked, body, answers.view(f"f{answers.dtype.itemsize}"))

    def process_id(self) -> bytes:
        """The process that runs this actor."""
        return replies.here(os.getpid())


def _lowered(function: Callable[..., jax.Array], *arguments: PyTree) -> bytes | None:
    """The function as XLA is given it: the same text for the same computation, whichever process sent it and how.

    Nothing where the text does not say all: a callback is named by its address, and JAX may hand constants over as
    arguments of their own.
    """
    text = jax.jit(function, keep_unused=True).lower(*arguments).as_text()
    head = text[text.index("@main(") :].split("->", 1)[0]
    whole = head.count(": tensor<") == len(jax.tree.leaves(arguments)) and "callback" not in text
    return text.encode() if whole else None


def private_feedback(privacy: Privacy | None, problem: Problem, xi: PyTree, x: PyTree, key: Key | None) -> Feedback:
    """The agent's feedback at x, with what its privacy asks for; the key is that of its noise."""
    answer = problem.feedback(x, xi)
    if privacy is None:
        return answer
    assert key is not None, "who has privacy has a secret"
    return privacy.guard(answer, key)


def feedback_answer(
    privacy: Privacy | None, spec: WalkSpec, xi: PyTree, words: jax.Array, seed: Array | None = None
) -> jax.Array:
    """The answer to one question where the hub makes the rounds: x in, feedback out."""
    x = wire.unpack(words, spec.x0)
    answer = private_feedback(privacy, spec.run_spec.problem, xi, x, _key(seed))
    kinds = zero_feedback(spec.x0, spec.num_constraints)
    return wire.pack(jax.tree.map(lambda part, kind: part.astype(kind.dtype), answer[:4], kinds[:4]))


def token_answer(
    privacy: Privacy | None,
    spec: WalkSpec,
    own: tuple[PyTree, jax.Array],
    words: jax.Array,
    seed: Array | None = None,
) -> jax.Array:
    """The answer to one question where the agent makes the rounds: a token in, the same token after its rounds out."""
    run_spec, key, (xi, number) = spec.run_spec, _key(seed), own
    token: Token = wire.unpack(words, wire.token_shapes(spec))
    prefetch = run_spec.method.estimator.prefetch
    state = token.state._replace(window=prefetch(token.state.window, token.state.t, spec.local_rounds))

    def once(turn: jax.Array, so_far: tuple[Visit, jax.Array]) -> tuple[Visit, jax.Array]:
        visit, good = so_far
        own = None if key is None else jax.random.fold_in(key, turn)
        answer = private_feedback(privacy, run_spec.problem, xi, visit.state.x, own)
        new = loop.absorb(run_spec, visit, answer._replace(state=number))
        return new, good & (loop.finite(answer[:4]) | ~loop.finite(visit.state.x))

    visit = Visit(state, token.weights, wire.zero_sums(spec))
    visit, good = jax.lax.fori_loop(0, spec.local_rounds, once, (visit, jnp.bool_(True)))
    return wire.pack((visit._replace(state=wire.without_prefetch(visit.state)), good.astype(jnp.int32)))


def _key(seed: Array | None) -> Key | None:
    return None if seed is None else jax.random.wrap_key_data(jnp.asarray(seed), impl=wire.KEY_TYPE)
