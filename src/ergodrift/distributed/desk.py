"""What runs where the data are: an agent's desk, which answers questions about them."""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift import loop, tree
from ergodrift.distributed import wire
from ergodrift.distributed.agent import Agent
from ergodrift.distributed.parcel import opened
from ergodrift.distributed.privacy import Privacy, Secret
from ergodrift.distributed.wire import Program, Token, Visit
from ergodrift.method import zero_feedback
from ergodrift.problem import Problem
from ergodrift.types import Feedback

KEPT = 7  # programs that stay compiled beside the present one


class Desk:
    """Ray makes an actor of it. It keeps nothing between questions but its data: asked twice, it answers the same."""

    def __init__(self, agent: bytes, number: int) -> None:
        # Each answer is waited for: a thread to compute it in the background would have to be woken up for it.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        self.sent, self.number = agent, number
        self.walks: dict[bytes, Any] = {}  # what answers the questions of a walk; the last one only
        self.ready: dict[bytes, Any] = {}  # the same, by what was said when a walk began

    @functools.cached_property
    def agent(self) -> Agent:
        return opened(self.sent)

    @functools.cached_property
    def data(self) -> Any:
        return self.agent.load()

    @functools.cached_property
    def secret(self) -> Secret | None:
        return Secret(self.agent.privacy.secret) if self.agent.privacy else None

    def open(self, walk: bytes, program: bytes) -> int:
        """Load the data, unless they are here, and make ready for the questions of a walk: the number of constraints.

        All that can fail is done here, not when the process starts: here it has somebody to tell.
        """
        if program not in self.ready:
            self.ready = dict(list(self.ready.items())[-KEPT:]) | {program: self._made_ready(program)}
        wide, count, *rest = self.ready[program]
        jax.config.update("jax_enable_x64", wide)
        self.walks = {walk: rest}
        return count

    def _made_ready(self, sent: bytes) -> tuple[bool, int, Any, int, Any, Secret | None]:
        program: Program = opened(sent)
        jax.config.update("jax_enable_x64", program.wide)
        xi = tree.cast(jax.tree.map(jnp.asarray, self.data), tree.dtype(program.x0))
        count = program.setup.problem.check(program.x0, xi)
        program = dataclasses.replace(program, num_constraints=count)
        one = functools.partial(feedback if program.local_rounds == 1 else rounds, self.agent.privacy)
        number = np.int32(self.number)
        question = wire.question(program)

        def answers(fixed: Any, words: Any, *seeds: Any) -> jax.Array:
            return jax.vmap(functools.partial(one, *fixed))(words.reshape(-1, *question.shape), *seeds)

        def about(xi: Any, *asked: Any) -> jax.Array:
            return answers((program, xi, number), *asked)

        secret = self.secret and self.secret.of(*self._purpose(answers, (program, xi, number), question, sent))
        # The data alone are an argument: a process that was just woken up takes its time for every one.
        return program.wide, count, question.dtype, question.shape[0], wire.bound(about, xi), secret

    def _purpose(self, answers: Any, fixed: Any, question: jax.ShapeDtypeStruct, sent: bytes) -> list[bytes]:
        """All that makes an answer but the question: whatever differs in it must not share its noise."""
        numbers = [np.asarray(leaf) for leaf in jax.tree.leaves(fixed)]
        shapes = [(str(array.dtype), array.shape) for array in numbers]
        description = repr((self.number, self.agent.name, self.agent.privacy, shapes)).encode()
        asked = np.zeros(question.shape, question.dtype), np.zeros((1, 2), np.uint32)
        program = _described(answers, fixed, *asked)
        return [description, program or sent, *(array.tobytes() for array in numbers)]

    def answer(self, sent: bytes) -> bytes:
        """One answer for each question. Nothing where the walk is not known, as after a restart.

        Bytes, not arrays: Ray takes them as they are, and pickling would cost as much as the answer. A process that was
        just woken up takes its time for every call into NumPy, hence so few.
        """
        walk = self.walks.get(sent[: wire.NAME])
        if walk is None:
            return b""
        word, width, answer, secret = walk
        words = np.frombuffer(sent, word, -1, wire.NAME)
        count = len(words) // width
        padding = (1 << (count - 1).bit_length()) - count  # few sizes, so that few are compiled
        if padding:
            words = np.concatenate([words, np.tile(words[-width:], padding)])
        asked = (words,) if secret is None else (words, secret.keys(words.reshape(-1, width)))
        answers = np.asarray(answer(*asked))
        return (answers[:count] if padding else answers).tobytes()

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


def feedback(privacy: Any, program: Program, xi: Any, number: Any, words: Any, seed: Any = None) -> jax.Array:
    """The answer to one question where the hub makes the rounds: x in, feedback out."""
    x = wire.unpack(words, program.x0)
    answer = guarded(privacy, program.setup.problem, xi, x, _key(seed))
    kinds = zero_feedback(program.x0, program.num_constraints)
    return wire.pack(jax.tree.map(lambda part, kind: part.astype(kind.dtype), answer[:4], kinds[:4]))


def rounds(privacy: Any, program: Program, xi: Any, number: Any, words: Any, seed: Any = None) -> jax.Array:
    """The answer to one question where the agent makes the rounds: a token in, the same token after its rounds out."""
    setup, key = program.setup, _key(seed)
    token: Token = wire.unpack(words, wire.blank_token(program))
    stock = setup.method.estimator.stock
    state = token.state._replace(window=stock(token.state.window, token.state.t, program.local_rounds))

    def once(turn: Any, visit: Visit) -> Visit:
        own = None if key is None else jax.random.fold_in(key, turn)
        answer = guarded(privacy, setup.problem, xi, visit.state.x, own)
        return loop.take_in(setup, visit, answer._replace(state=number))

    visit = Visit(state, token.weights, wire.zero_sums(program))
    visit = jax.lax.fori_loop(0, program.local_rounds, once, visit)
    return wire.pack(visit._replace(state=wire.unstocked(visit.state)))


def _key(seed: Any) -> Any:
    return None if seed is None else jax.random.wrap_key_data(seed, impl=wire.KEYS)
