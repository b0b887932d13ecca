"""What runs where the data are: an agent's desk, which answers questions about them."""

from __future__ import annotations

import functools
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
from ergodrift.types import Feedback


class Desk:
    """Ray makes an actor of it. It keeps nothing between questions but its data: asked twice, it answers the same."""

    def __init__(self, agent: bytes, number: int) -> None:
        self.agent: Agent = opened(agent)
        self.number = number
        self.walks: dict[str, Any] = {}
        self.data: Any = None
        self.secret = Secret(self.agent.privacy.secret) if self.agent.privacy else None

    def open(self, walk: str, sent: bytes) -> int:
        """Load the data, unless they are here, and make ready for the questions of a walk; the number of constraints."""
        program: Program = opened(sent)
        jax.config.update("jax_enable_x64", program.wide)
        if self.data is None:
            self.data = self.agent.load()
        xi = tree.cast(jax.tree.map(jnp.asarray, self.data), tree.dtype(program.x0))
        count = program.setup.problem.check(program.x0, xi)
        program = program._replace(num_constraints=count)
        function = feedback if program.local_rounds == 1 else rounds
        answer = functools.partial(function, program, self.agent.privacy)
        setup = jax.tree.map(jnp.asarray, program.setup)
        self.walks = {
            walk: functools.partial(jax.jit(jax.vmap(answer, (None, None, None, 0, 0))), setup, xi, self.number)
        }
        return count

    def answer(self, walk: str, questions: np.ndarray) -> np.ndarray | None:
        """One answer for each question (a row); None where this walk is not known, as after a restart."""
        if walk not in self.walks:
            return None
        count = len(questions)
        keys = np.zeros((count, 2), np.uint32) if self.secret is None else self.secret.keys(questions)
        padding = (1 << (count - 1).bit_length()) - count  # few sizes, so that few are compiled
        if padding:
            questions, keys = (np.concatenate([rows, rows[-1:].repeat(padding, 0)]) for rows in (questions, keys))
        return np.asarray(self.walks[walk](questions, keys))[:count]

    def here(self) -> int:
        """The process that runs this desk."""
        import os

        return os.getpid()


def guarded(
    program: Program, privacy: Privacy | None, setup: loop.Setup, xi: Any, number: Any, x: Any, key: Any
) -> Feedback:
    """The agent's feedback at x, with what its privacy asks for."""
    answer = setup.problem.feedback(x, xi)
    answer = answer if privacy is None else privacy.guard(answer, key)
    return answer._replace(state=number) if setup.method.estimator.needs_state else answer


def feedback(program: Program, privacy: Any, setup: Any, xi: Any, number: Any, words: Any, seed: Any) -> jax.Array:
    """The answer to one question where the hub makes the rounds: x in, feedback out."""
    x = wire.unpack(words, program.x0)
    answer = guarded(program, privacy, setup, xi, number, x, jax.random.wrap_key_data(seed, impl=wire.KEYS))
    return wire.pack(answer[:4])


def rounds(program: Program, privacy: Any, setup: Any, xi: Any, number: Any, words: Any, seed: Any) -> jax.Array:
    """The answer to one question where the agent makes the rounds: a token in, the same token after its rounds out."""
    token: Token = wire.unpack(words, wire.blank_token(program))
    key = jax.random.wrap_key_data(seed, impl=wire.KEYS)
    stock = setup.method.estimator.stock
    state = token.state._replace(window=stock(token.state.window, token.state.t, program.local_rounds))

    def once(turn: Any, visit: Visit) -> Visit:
        own = jax.random.fold_in(key, turn)
        return loop.take_in(setup, visit, guarded(program, privacy, setup, xi, number, visit.state.x, own))

    visit = Visit(state, token.weights, wire.zero_sums(program))
    visit = jax.lax.fori_loop(0, program.local_rounds, once, visit)
    return wire.pack(visit._replace(state=wire.unstocked(visit.state)))
