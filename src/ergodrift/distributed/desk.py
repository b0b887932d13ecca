"""What runs where the data are: an agent's desk, which answers questions about them."""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check, tree
from ergodrift.distributed import wire
from ergodrift.distributed.agent import Agent
from ergodrift.distributed.parcel import opened
from ergodrift.distributed.privacy import Privacy, Secret
from ergodrift.distributed.wire import Program, Token, Visit
from ergodrift.engine import loop
from ergodrift.engine.checkpoint import functions
from ergodrift.methods.method import zero_feedback
from ergodrift.problem import Problem
from ergodrift.types import Feedback

KEPT = 7  # programs that stay compiled beside the present one


class Ready(NamedTuple):
    """What answers the questions of a walk."""

    program: Program
    question: jax.ShapeDtypeStruct
    function: Any  # of the words of `program.batch` questions, and their noise where there is any
    secret: Secret | None
    functions: dict[str, str]  # what loss and constraints compute here, for checkpoints; nothing where that is private

    def answers(self, words: np.ndarray) -> np.ndarray:
        """The answers to one batch."""
        if self.secret is None:
            return np.asarray(self.function(words))
        return np.asarray(self.function(words, self.secret.keys(words.reshape(-1, *self.question.shape))))


class Desk:
    """Ray makes an actor of it. It keeps nothing between questions but its data: asked twice, it answers the same."""

    def __init__(self, agent: bytes, number: int) -> None:
        # Each answer is waited for: a thread to compute it in the background would have to be woken up for it.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        self.sent, self.number = agent, number
        self.walks: dict[bytes, Ready] = {}  # the last one only
        self.ready: dict[bytes, Ready] = {}  # by what was said when a walk began
        self.cast: dict[Any, Any] = {}  # the data in the precision of a walk

    @functools.cached_property
    def agent(self) -> Agent:
        return opened(self.sent)

    @functools.cached_property
    def data(self) -> Any:
        return self.agent.load()

    @functools.cached_property
    def secret(self) -> Secret | None:
        return Secret(self.agent.privacy.secret) if self.agent.privacy else None

    def open(self, walk: bytes, program: bytes) -> tuple[int, dict[str, str]]:
        """Load the data, unless they are here, and make ready for the questions of a walk: the number of constraints,
        and what loss and constraints compute.

        All that can fail or take long is done here, compilation too: not when the process starts, when there is nobody
        to tell, and not when a question waits.
        """
        if program not in self.ready:
            self.ready = dict(list(self.ready.items())[-KEPT:]) | {program: self._made_ready(program)}
        ready = self.ready[program]
        jax.config.update("jax_enable_x64", ready.program.wide)
        self.walks = {walk: ready}
        return ready.program.num_constraints, ready.functions

    def _made_ready(self, sent: bytes) -> Ready:
        program: Program = opened(sent)
        jax.config.update("jax_enable_x64", program.wide)
        xi = self._data(tree.dtype(program.x0), program.wide)
        program = dataclasses.replace(program, num_constraints=program.setup.problem.check(program.x0, xi))
        one, own = (feedback, xi) if program.local_rounds == 1 else (rounds, (xi, np.int32(self.number)))
        leaves, structure = jax.tree.flatten(own)
        question = wire.question(program)

        def answers(program: Program, leaves: Any, words: Any, *seeds: Any) -> jax.Array:
            each = functools.partial(one, self.agent.privacy, program, structure.unflatten(leaves))
            return jax.vmap(each)(words.reshape(-1, *question.shape), *seeds)

        # What is the agent's own is an argument, so that all compile the same; nothing else is, since a process that
        # was just woken up takes its time for every one.
        function = functools.partial(jax.jit(functools.partial(answers, program)), leaves)
        secret = self.secret and self.secret.of(*self._purpose(answers, program, leaves, question, sent))
        # What functions compute depends on the shapes of the data, which are the agent's own business if it has any.
        known = {} if self.agent.privacy else functions(program.setup.problem, program.x0, xi)
        ready = Ready(program, question, function, secret, known)
        ready.answers(np.tile(np.asarray(wire.first_question(program)), program.batch))
        return ready

    def _data(self, dtype: Any, wide: bool) -> Any:
        if (dtype, wide) not in self.cast:
            check.fits("data", self.data)
            self.cast[dtype, wide] = tree.cast(jax.tree.map(jnp.asarray, self.data), dtype)
        return self.cast[dtype, wide]

    def _purpose(
        self, answers: Any, program: Program, leaves: Any, question: jax.ShapeDtypeStruct, sent: bytes
    ) -> list[bytes]:
        """All that makes an answer but the question: whatever differs in it must not share its noise."""
        numbers = [np.asarray(leaf) for leaf in jax.tree.leaves((program, leaves))]
        shapes = [(str(array.dtype), array.shape) for array in numbers]
        description = repr((self.number, self.agent.name, self.agent.privacy, shapes)).encode()
        asked = np.zeros(question.shape, question.dtype), np.zeros((1, 2), np.uint32)
        text = _described(answers, program, leaves, *asked)
        return [description, text or sent, *(array.tobytes() for array in numbers)]

    def answer(self, sent: bytes) -> bytes:
        """One answer for each question. Nothing where the walk is not known, as after a restart.

        Bytes, not arrays: Ray takes them as they are, and pickling would cost as much as the answer. A process that was
        just woken up takes its time for every call into NumPy, hence so few where there is one batch.
        """
        ready = self.walks.get(sent[: wire.NAME])
        if ready is None:
            return b""
        words = np.frombuffer(sent, ready.question.dtype, -1, wire.NAME)
        width = ready.question.shape[0]
        batch = ready.program.batch * width
        if len(words) == batch:
            return ready.answers(words).tobytes()
        padded = np.concatenate([words, np.tile(words[-width:], -len(words) % batch // width)])
        answers = [ready.answers(padded[start : start + batch]) for start in range(0, len(padded), batch)]
        return np.concatenate(answers)[: len(words) // width].tobytes()

    def here(self) -> int:
        """The process that runs this desk."""
        return os.getpid()


def _described(function: Any, *arguments: Any) -> bytes | None:
    """The function as XLA is given it: the same text for the same computation, whichever process sent it and how.

    Nothing where the text does not say all: a callback is named by its address, and JAX may hand constants over as
    arguments of their own.
    """
    text = jax.jit(function, keep_unused=True).lower(*arguments).as_text()
    head = text[text.index("@main(") :].split("->", 1)[0]
    whole = head.count(": tensor<") == len(jax.tree.leaves(arguments)) and "callback" not in text
    return text.encode() if whole else None


def guarded(privacy: Privacy | None, problem: Problem, xi: Any, x: Any, key: Any) -> Feedback:
    """The agent's feedback at x, with what its privacy asks for."""
    answer = problem.feedback(x, xi)
    return answer if privacy is None else privacy.guard(answer, key)


def feedback(privacy: Any, program: Program, xi: Any, words: Any, seed: Any = None) -> jax.Array:
    """The answer to one question where the hub makes the rounds: x in, feedback out."""
    x = wire.unpack(words, program.x0)
    answer = guarded(privacy, program.setup.problem, xi, x, _key(seed))
    kinds = zero_feedback(program.x0, program.num_constraints)
    return wire.pack(jax.tree.map(lambda part, kind: part.astype(kind.dtype), answer[:4], kinds[:4]))


def rounds(privacy: Any, program: Program, own: Any, words: Any, seed: Any = None) -> jax.Array:
    """The answer to one question where the agent makes the rounds: a token in, the same token after its rounds out."""
    setup, key, (xi, number) = program.setup, _key(seed), own
    token: Token = wire.unpack(words, wire.blank_token(program))
    prefetch = setup.method.estimator.prefetch
    state = token.state._replace(window=prefetch(token.state.window, token.state.t, program.local_rounds))

    def once(turn: Any, so_far: Any) -> Any:
        visit, good = so_far
        own = None if key is None else jax.random.fold_in(key, turn)
        answer = guarded(privacy, setup.problem, xi, visit.state.x, own)
        new = loop.absorb(setup, visit, answer._replace(state=number))
        return new, good & (loop.finite(answer[:4]) | ~loop.finite(visit.state.x))

    visit = Visit(state, token.weights, wire.zero_sums(program))
    visit, good = jax.lax.fori_loop(0, program.local_rounds, once, (visit, jnp.bool_(True)))
    return wire.pack((visit._replace(state=wire.unstocked(visit.state)), good.astype(jnp.int32)))


def _key(seed: Any) -> Any:
    return None if seed is None else jax.random.wrap_key_data(seed, impl=wire.KEYS)
