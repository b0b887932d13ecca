"""Agents who are visited together: a node of the graph is a group, and its feedback is that of all its members."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ergodrift._core import check
from ergodrift.distributed import masks
from ergodrift.distributed.masks import ASK, OPEN, Round
from ergodrift.distributed.network import QuorumError
from ergodrift.distributed.replies import Ready
from ergodrift.distributed.robust import AGGREGATES, aggregated
from ergodrift.distributed.roster import Roster
from ergodrift.distributed.wire import Layout

SECURE = "secure"
DEFAULT_BOUND = 1e6  # on the entries of answers in secure aggregation, unless given


def checked_groups(groups: Sequence[Sequence[int | str]], names: Sequence[str], aggregate: str) -> list[list[int]]:
    """The members of each group as numbers of agents, each in one group."""
    check.choice("aggregate", aggregate, (*AGGREGATES, SECURE))
    numbers = {name: number for number, name in enumerate(names)} | {number: number for number in range(len(names))}
    found = []
    for group in groups:
        if unknown := [member for member in group if member not in numbers]:
            raise ValueError(f"groups: there is no agent {unknown[0]!r}; name agents, or number them from 0")
        found.append([numbers[member] for member in group])
    everybody = sorted(member for group in found for member in group)
    if everybody != list(range(len(names))):
        raise ValueError(f"groups must have each of the {len(names)} agents in one group, got {groups!r}")
    if aggregate == SECURE and min(map(len, found)) < masks.FEWEST:
        raise ValueError(f"groups: secure aggregation needs {masks.FEWEST} members in each; two would tell each other")
    return found


class MaskedRoster(Roster):
    """The conversation with agents whose answers are masked, each under a key of its own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for agent in list(self.ready):
            self._has_own_key(agent)

    def _is_fit(self, agent: int, said: object) -> bool:
        return super()._is_fit(agent, said) and self._has_own_key(agent)

    def _has_own_key(self, agent: int) -> bool:
        """Whether an agent has a key that no other has; it is set aside if not, since its group would refuse to answer.

        Of two with the same key nobody can say who took it from whom.
        """
        own = self.ready[agent].key
        twins = [other for other, said in self.ready.items() if said.key == own and other not in self.reasons]
        if own and twins == [agent]:
            return True
        for one in twins:
            self.set_aside(one, "its key is another's, too" if own else "it has no key")
        return False

    def _num_questions(self, asked: bytes) -> int:
        what, _, words = masks.unpacked(asked)
        return 0 if what == OPEN else len(words) // self.question_bytes

    def _expected_bytes(self, asked: bytes) -> int:
        numbers = self.answer_bytes // self.number_bytes
        return masks.KEY_BYTES if asked[:1] == OPEN else 8 * numbers * self._num_questions(asked)


def _counter(name: str) -> property:
    """What the roster counts for each agent, summed over groups, on top of what a checkpoint holds."""

    def get(groups: GroupRoster) -> list[int]:
        counts, base = getattr(groups.roster, name), groups.base.get(name, [0] * len(groups.members))
        return [before + sum(counts[agent] for agent in own) for before, own in zip(base, groups.members, strict=True)]

    def put(groups: GroupRoster, saved: list[int]) -> None:
        groups.base[name] = saved

    return property(get, put)


class GroupRoster:
    """`Roster` for groups, as the loop of a walk sees it: what is an agent there is a group here.

    Those of a group's members who are there answer; without any, or in secure aggregation with fewer than three, the
    group is away.
    """

    messages, bytes, asked, restarts = (_counter(name) for name in ("messages", "bytes", "asked", "restarts"))

    def __init__(
        self, roster: Roster, members: list[list[int]], aggregate: str, layout: Layout, bound: float = DEFAULT_BOUND
    ) -> None:
        self.roster, self.members, self.aggregate, self.layout, self.bound = roster, members, aggregate, layout, bound
        self.fewest = masks.FEWEST if aggregate == SECURE else 1
        names = roster.network.names
        self.network = types.SimpleNamespace(names=[" + ".join(names[agent] for agent in group) for group in members])
        self.patience = roster.patience
        self.base: dict[str, list[int]] = {}
        self.given_up: set[bytes] = set()  # questions opened for a group one of whose members was then lost

    def ask(self, questions: dict[int, bytes]) -> Callable[[], dict[int, bytes]]:
        """Send the questions to all members of each group. What is returned waits, and aggregates."""
        if self.aggregate == SECURE:
            return self._sums(questions)
        answers = self.roster.ask({agent: asked for group, asked in questions.items() for agent in self._there(group)})

        def found() -> dict[int, bytes]:
            rows = {agent: self.layout.numbers(answer) for agent, answer in answers().items()}
            for agent in [agent for agent, numbers in rows.items() if not np.isfinite(numbers).all()]:
                self.roster.set_aside(agent, "its answer is not finite")
                del rows[agent]
            stacks = {group: [rows[agent] for agent in self.members[group] if agent in rows] for group in questions}
            return {
                group: self.layout.bytes(aggregated(self.aggregate, np.stack(stack), self.layout.widths))
                for group, stack in stacks.items()
                if stack
            }

        return found

    def _sums(self, questions: dict[int, bytes]) -> Callable[[], dict[int, bytes]]:
        """The means over groups, by secure aggregation."""
        waiting = {group: asked for group, asked in questions.items() if asked not in self.given_up}
        rounds = self._rounds(waiting)
        answers = self.roster.ask(self._packed(ASK, rounds, waiting))

        def found() -> dict[int, bytes]:
            nonlocal rounds, answers
            means: dict[int, bytes] = {}
            while rounds:
                masked = answers()
                whole = {group: one for group, one in rounds.items() if self._keys(masked) >= set(one.keys)}
                seeds = self.roster.ask(self._packed(OPEN, whole, waiting))() if whole else {}
                for group, one in whole.items():
                    del waiting[group]
                    if not self._keys(seeds) >= set(one.keys):
                        self._give_up(questions[group])
                        continue
                    own = [agent for agent in self.members[group] if self._key(agent) in one.keys]
                    numbers = masks.total([masked[a] for a in own], [seeds[a] for a in own], one.scale) / len(own)
                    means[group] = self.layout.bytes(numbers)
                # Those who were missed are not asked again; who is left repeats the round under new masks.
                rounds = self._rounds(waiting)
                answers = self.roster.ask(self._packed(ASK, rounds, waiting))
            return means

        return found

    def _give_up(self, question: bytes) -> None:
        """A member was lost between answering and opening. To repeat the question without it could tell its answer."""
        self.given_up.add(question)
        if len(self.members) == 1:
            raise QuorumError("a member was lost while its group opened a sum, and there is no other group to go to")

    def _rounds(self, waiting: dict[int, bytes]) -> dict[int, Round]:
        """A round for each group that has enough members."""
        rounds = {}
        for group in waiting:
            keys = tuple(sorted(self._key(agent) for agent in self._there(group)))
            if len(keys) >= self.fewest:
                rounds[group] = Round(keys, os.urandom(masks.NONCE_BYTES), masks.scale_for(len(keys), self.bound))
        return rounds

    def _packed(self, what: bytes, rounds: dict[int, Round], waiting: dict[int, bytes]) -> dict[int, bytes]:
        return {
            agent: one.packed(what) + waiting[group]
            for group, one in rounds.items()
            for agent in self.members[group]
            if self._key(agent) in one.keys
        }

    def _key(self, agent: int) -> bytes:
        return bytes.fromhex(self.roster.ready[agent].key) if agent in self.roster.ready else b""

    def _keys(self, found: dict[int, bytes]) -> set[bytes]:
        return {self._key(agent) for agent in found}

    def _there(self, group: int) -> list[int]:
        """The members who can be asked: without those who want more company than there is."""
        there = [agent for agent in self.members[group] if self.roster.present[agent]]
        while there and (most := max(map(self._company, there))) > len(there):
            there = [agent for agent in there if self._company(agent) < most]
        return there

    def _company(self, agent: int) -> int:
        return self.roster.ready[agent].fewest if agent in self.roster.ready else 0

    def poll(self) -> None:
        """Take back those who were away and respond again."""
        self.roster.poll()

    def set_aside(self, group: int, reason: str) -> None:
        """Never ask the members of this group again."""
        for agent in self._there(group):
            self.roster.set_aside(agent, reason)

    def is_to_blame(self, group: int) -> bool:
        """Whether a member's answers are far beyond others'."""
        return any(self.roster.is_to_blame(agent) for agent in self.members[group])

    @property
    def present(self) -> np.ndarray:
        """(groups,) which have enough members who are there."""
        return np.array([len(self._there(group)) >= self.fewest for group in range(len(self.members))])

    @property
    def num_agents(self) -> int:
        """How many agents there are in all groups."""
        return self.roster.num_agents

    @property
    def num_present(self) -> int:
        """How many of them are present."""
        return self.roster.num_present

    @property
    def all_present(self) -> bool:
        """Whether all members of all groups are there."""
        return self.roster.all_present

    @property
    def probes(self) -> dict[int, object]:
        """The groups that may come back."""
        away = {group: [a for a in own if a in self.roster.probes] for group, own in enumerate(self.members)}
        return {group: own for group, own in away.items() if own and not self.present[group]}

    @property
    def reasons(self) -> dict[int, str]:
        """The groups that have too few members for good."""
        left = {group: [a for a in own if a not in self.roster.reasons] for group, own in enumerate(self.members)}
        return {group: "too few members are left" for group, own in left.items() if len(own) < self.fewest}

    @property
    def ready(self) -> dict[int, Ready]:
        """What each agent said when it was ready."""
        return self.roster.ready

    @property
    def absences(self) -> dict[str, str]:
        """Why, for each agent that is not present."""
        return self.roster.absences

    @property
    def late(self) -> int:
        """Answers thrown away."""
        return self.roster.late

    @late.setter
    def late(self, count: int) -> None:
        self.roster.late = count
