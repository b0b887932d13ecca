"""Which agents a hop asks for which tokens, and their answers as the hub absorbs them."""

from __future__ import annotations

import numpy as np

from ergodrift.distributed.tokens import Hub


class HopPlan:
    """One hop: who is asked for which tokens.

    Attributes:
        target: (tokens,) the agent that each is to visit.
        groups: the tokens (rows) that go to each agent, of those that are there.
        answers: (tokens, words), room for what they answer, who was asked, and 1 if there is an answer.
    """

    def __init__(self, hub: Hub, target: np.ndarray, present: np.ndarray) -> None:
        self.target, self.word = target, hub.word
        self.answers = np.zeros((len(target), hub.width + 2), hub.word)
        self.answers[:, -2] = target
        order, counts = np.argsort(target, kind="stable"), np.bincount(target)
        agents = np.flatnonzero(counts)
        rows = np.split(order, np.cumsum(counts[agents])[:-1])
        self.groups = {int(agent): own for agent, own in zip(agents, rows, strict=True) if present[agent]}

    def asked(self, questions: np.ndarray) -> dict[int, bytes]:
        """What each agent is asked."""
        return {agent: questions[rows, :-1].tobytes() for agent, rows in self.groups.items()}

    def rows_of(self, answers: dict[int, bytes]) -> np.ndarray:
        """The answers that came, one row per token, as the hub absorbs them."""
        for agent, answer in answers.items():
            rows = self.groups[agent]
            self.answers[rows, :-2] = np.frombuffer(answer, self.word).reshape(len(rows), -1)
            self.answers[rows, -1] = 1
        return self.answers


class SingleTokenPlan:
    """`HopPlan` for a single token, with as few calls into NumPy as can be: all of them are between two questions."""

    def __init__(self, hub: Hub, target: np.ndarray, present: np.ndarray) -> None:
        self.hub, self.target, self.agent = hub, target, int(target[0])
        self.there = present[self.agent]
        self.signature = np.array([self.agent, 1], hub.word).tobytes()  # who was asked, and that there is an answer

    def asked(self, questions: np.ndarray) -> dict[int, bytes]:
        """What the agent is asked."""
        return {self.agent: questions.tobytes()[: self.hub.question_bytes]} if self.there else {}

    def rows_of(self, answers: dict[int, bytes]) -> np.ndarray:
        """The answer, if it came, as the hub absorbs it."""
        answer = answers.get(self.agent)
        row = bytes(self.hub.answer_bytes + len(self.signature)) if answer is None else answer + self.signature
        return np.frombuffer(row, self.hub.word)
