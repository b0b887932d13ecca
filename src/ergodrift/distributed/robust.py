"""What to believe: bounds on the answers of one agent, and feedback of several that one liar cannot steer."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ergodrift._core import check
from ergodrift.distributed.privacy import PARTS
from ergodrift.distributed.wire import Layout

LOUD_FACTOR = 30.0  # times the median of agents' largest answers: who goes beyond is told of, or set aside
FEWEST = 3  # agents that must have been heard before anybody is judged by them
TRIMMED = 0.2  # the share of answers that "trimmed" leaves out at each end
ROUNDS = 32  # of Weiszfeld's method, and of centred clipping

log = logging.getLogger("ergodrift.distributed")


class Bounds:
    """Limits on the norm of each part of an answer: the loss, its gradient, the constraints, their Jacobian.

    Limits that are not given are thirty times the median of the largest norms that agents have shown. A loss may be
    zero at one point and not at another: its limit is that of its gradient times the way across the domain, if that is
    more; so it is for constraints and their Jacobian.

    Args:
        given: one number for all parts, a mapping from some of them, "auto" for limits from what others answer, or
            None for these as well: who goes beyond is told of then, not set aside. Nothing else tells a lie from an
            agent whose data are unlike others', and to do without the latter moves the optimum.
        layout: where the parts stand in an answer.
        names: of the agents.
        across: the way across the domain.
    """

    def __init__(
        self, given: float | Mapping[str, float] | str | None, layout: Layout, names: list[str], across: float = 0.0
    ) -> None:
        self.names, self.layout = names, layout
        self.across = across if np.isfinite(across) else 0.0
        self.ends = np.cumsum([0, *layout.widths]).tolist()
        self.limits = None if given is None or isinstance(given, str) else np.square(checked_bounds(given))
        self.strict = given is not None
        self.largest = np.full((len(names), len(PARTS)), -1.0)  # squares of the norms, of those who were heard
        self.now, self.looks = np.full(len(PARTS), np.inf), 0  # the limits from what was heard, and when to look anew
        self.loud: dict[int, str] = {}

    def complaint(self, agent: int, answer: bytes) -> str | None:
        """What is wrong with these answers of an agent; nothing where all is well."""
        numbers = self.layout.numbers(answer)
        return self.complaints(np.full(len(numbers), agent), numbers).get(agent)

    def complaints(self, agents: np.ndarray, numbers: np.ndarray) -> dict[int, str]:
        """What is wrong with answers (rows, numbers), for those of the agents (rows,) who are to be set aside."""
        with np.errstate(over="ignore", invalid="ignore"):  # what is so large is too large
            entries = np.square(numbers, dtype=float)
            squares = np.stack([entries[:, a:b].sum(axis=1) for a, b in itertools.pairwise(self.ends)], axis=1)
        limits = self._limits(len(numbers))
        found = (squares > limits).any(axis=1)
        sound = ~found & np.isfinite(squares).all(axis=1)  # the token that is to take in what is not finite says so
        np.maximum.at(self.largest, agents[sound], squares[sound])
        said: dict[int, str] = {}
        for agent, norms in zip(agents[found].tolist(), squares[found], strict=True):
            if agent in said or agent in self.loud:
                continue
            part = int(np.argmax(norms > limits))
            said[agent] = f"its {PARTS[part]} has the norm {norms[part] ** 0.5:.3g}, beyond {limits[part] ** 0.5:.3g}"
            said[agent] += "" if self.limits is not None else f", {LOUD_FACTOR:g} times what others answer"
        if self.strict:
            return said
        for agent, text in said.items():
            log.warning('%s is loud: %s; bounds="auto" would set it aside', self.names[agent], text)
        self.loud |= said
        return {}

    def is_loud(self, agent: int) -> bool:
        """Whether it has answered far beyond what others do."""
        return agent in self.loud

    def _limits(self, count: int) -> np.ndarray:
        """The largest squares allowed in so many answers, by part."""
        if self.limits is not None:
            return self.limits
        self.looks -= count
        if self.looks < 0:
            heard = self.largest[self.largest[:, 0] >= 0]
            self.looks = len(heard) // (1 if len(heard) == len(self.names) else 8)
            if len(heard) >= FEWEST:
                loss, grad, constraints, jac = np.median(heard, axis=0)
                far = self.across**2
                middle = np.array([max(loss, far * grad), grad, max(constraints, far * jac), jac])
                self.now = np.where(middle > 0, LOUD_FACTOR**2 * middle, np.inf)
        return self.now


def checked_bounds(given: float | Mapping[str, float]) -> np.ndarray:
    """The largest norm of each part, infinite where none is given."""
    by_part = given if isinstance(given, Mapping) else dict.fromkeys(PARTS, given)
    if not by_part or set(by_part) - set(PARTS):
        raise ValueError(f"bounds must be a number, 'auto' or have keys among {', '.join(PARTS)}, got {given!r}")
    bounds = {part: check.number(f"bounds[{part!r}]", bound, above=0) for part, bound in by_part.items()}
    return np.array([bounds.get(part, np.inf) for part in PARTS])


def mean(answers: np.ndarray) -> np.ndarray:
    """Of the answers (members, ..., d): one liar moves it at will."""
    return answers.mean(axis=0)


def median(answers: np.ndarray) -> np.ndarray:
    """Entry by entry; up to half of the members may lie (Yin et al. 2018)."""
    return np.median(answers, axis=0)


def trimmed_mean(answers: np.ndarray) -> np.ndarray:
    """Entry by entry, the mean without the largest and the smallest fifth (Yin et al. 2018)."""
    cut = int(np.ceil(TRIMMED * len(answers))) if len(answers) > 2 else 0
    return np.sort(answers, axis=0)[cut : len(answers) - cut].mean(axis=0)


def geometric_median(answers: np.ndarray) -> np.ndarray:
    """The point of least total distance, by Weiszfeld's method; up to half may lie (Chen, Su and Xu 2017).

    >>> liars = np.array([[1.0, 0.0], [1.1, 0.1], [0.9, 0.1], [1.0, -0.1], [1e300, -1e12]])
    >>> bool(np.abs(geometric_median(liars) - [1.0, 0.0]).max() < 0.1)
    True
    """
    centre, typical = _start(answers)
    for _ in range(ROUNDS):
        weights = 1 / (_norm(answers - centre) + 1e-9 * typical + 1e-12 * _norm(centre) + 1e-200)
        centre = np.sum(weights * answers, axis=0) / np.sum(weights, axis=0)
    return centre


def clipped_mean(answers: np.ndarray) -> np.ndarray:
    """Centred clipping: what lies further from the centre than the median member counts as if it lay there
    (Karimireddy, He and Jaggi 2021)."""
    centre, typical = _start(answers)
    for _ in range(ROUNDS):
        distance = _norm(answers - centre)
        with np.errstate(invalid="ignore"):
            centre = centre + np.mean(
                (answers - centre) * np.minimum(1, typical / np.maximum(distance, 1e-300)), axis=0
            )
    return centre


def _start(answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The median entry by entry, and how far members typically lie from it."""
    centre = np.median(answers, axis=0)
    return centre, np.median(_norm(answers - centre), axis=0, keepdims=True) + 1e-300


def _norm(rows: np.ndarray) -> np.ndarray:
    """Along the last axis, without overflow on the way."""
    largest = np.max(np.abs(rows), axis=-1, keepdims=True) + 1e-300
    return largest * np.linalg.norm(rows / largest, axis=-1, keepdims=True)


AGGREGATES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": mean,
    "median": median,
    "trimmed": trimmed_mean,
    "geometric median": geometric_median,
    "clipped": clipped_mean,
}


def aggregated(name: str, answers: np.ndarray, widths: Sequence[int]) -> np.ndarray:
    """The feedback of a group, (questions, numbers), of its members' answers, (members, questions, numbers).

    Each part is taken by itself: a loss and a gradient have different units.
    """
    parts = np.split(answers, np.cumsum(widths)[:-1], axis=-1)
    return np.concatenate([AGGREGATES[name](part) if part.shape[-1] else part[0] for part in parts], axis=-1)
