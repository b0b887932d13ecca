"""A certificate that is brought up to date while samples arrive, in constant memory."""

from __future__ import annotations

import os
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check, saved
from ergodrift._core.precision import double
from ergodrift._core.signature import computation
from ergodrift.data.expectation import wide
from ergodrift.data.series import SeriesSource
from ergodrift.problem import Problem
from ergodrift.problem.point import as_point
from ergodrift.problem.rows import SAVED
from ergodrift.trust.certificate import TUNED_FOR, Certificate
from ergodrift.trust.dependence import depends
from ergodrift.trust.plain import Plain
from ergodrift.trust.ranges import checked_bounds, fitting, pinned
from ergodrift.trust.values import path_values
from ergodrift.trust.watch import Watch
from ergodrift.types import PyTree

FORMAT = "ergodrift monitor v2"
OPTIONS = ("confidence", "tau_mix", "bounds", "tuned_for")


class Monitor:
    """An anytime-valid certificate that is brought up to date while samples arrive.

    While too little was seen to say anything, it is undecided, has no ends, and says why. Intervals are intersected
    over time. Without bounds, ends that later samples show to have been given too early (they stay correlated for
    longer, or rare, large values turn up) are taken back. Ends that exclude each other, or the mean of all samples, are
    a finding of their own, "inconsistent". What it says depends on the samples alone, not on how they were cut into
    updates, but for the rounding of the functions; an update costs the same however many came before, and so does the
    memory.

    Args:
        problem: loss and constraints; or a function of samples, as in `certify`, with no point and no loss.
        x: a fixed point.
        confidence: with which all its intervals of constraints, at all times together, hold.
        tau_mix, bounds: as in `certify`; with both, the guarantee is for every n.
        tuned_for: the number of samples at which the interval should be tightest.

    >>> import ergodrift as ed
    >>> problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x + xi, ed.Ball(2.0))
    >>> monitor = ed.Monitor(problem, np.array([-0.5]), tau_mix=1, bounds=(-1.5, 0.5))
    >>> rng = np.random.default_rng(0)
    >>> monitor.update(rng.choice([-1.0, 1.0], size=(100, 1))).verdict
    ['undecided']
    >>> monitor.update(rng.choice([-1.0, 1.0], size=(900, 1))).verdict
    ['satisfied']
    """

    def __init__(
        self,
        problem: Problem | Callable[[PyTree], object],
        x: PyTree = None,
        confidence: float = 0.95,
        *,
        tau_mix: float | None = None,
        bounds: object = None,
        tuned_for: int = TUNED_FOR,
    ) -> None:
        self.problem, self.x = problem if isinstance(problem, Problem) else Plain(problem), x
        if isinstance(self.problem, Plain) and x is not None:
            raise TypeError("a function of samples has no point x: Monitor(function)")
        if isinstance(problem, Problem):
            self.x = as_point("x", x)
        self.confidence = check.number("confidence", confidence, above=0.5, below=1)
        self.tau_mix = None if tau_mix is None else check.number("tau_mix", tau_mix, at_least=1)
        self.bounds = None if bounds is None else checked_bounds(bounds)
        self.tuned_for = check.integer("tuned_for", tuned_for, at_least=1)
        self._watch: Watch | None = None
        self._first: PyTree = None  # the first sample: of which shapes all must be, and what a file is checked with

    def update(self, samples: object) -> Certificate:
        """More samples (a leading axis of time, of any length), and where things stand after them."""
        self.take(samples)
        return self.certificate()

    def take(self, samples: object) -> tuple[np.ndarray, np.ndarray]:
        """More samples, and what they say at x: losses (n,) and constraints (n, m)."""
        source = SeriesSource(samples)
        losses, constraints = self._values(source)
        if self._watch is None:
            self._first = jax.tree.map(np.asarray, source.example)
            self._watch = self._new(constraints)
        self._watch.add(losses, constraints)
        return losses, constraints

    def certificate(self) -> Certificate:
        """Where things stand."""
        if self._watch is None:
            raise ValueError("there is no certificate yet: this monitor has seen no samples")
        found = self._watch.certificate()
        return found.without_loss() if isinstance(self.problem, Plain) else found

    @property
    def num_samples(self) -> int:
        """How many samples there were."""
        return 0 if self._watch is None else self._watch.loss.count

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that goes on with the next sample, the point and the settings; not the functions, and no samples
        but the first. The file is there whole or not at all, and holds arrays and text only."""
        saved.write(path, FORMAT, self.content(), SAVED)

    def content(self) -> dict[str, PyTree]:
        """What a file holds."""
        if self._watch is None:
            raise ValueError("there is nothing to save: this monitor has seen no samples")
        first = dict(zip(("loss", "constraints"), self._values(single(self._first)), strict=True))
        return {
            "x": self.x,
            "options": {name: getattr(self, name) for name in OPTIONS},
            "first": {"sample": self._first, **first},
            "functions": self._functions(),
            "watch": self._watch.state(),
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str], problem: Problem | Callable[[PyTree], object]) -> Monitor:
        """Go on where a saved monitor was, bit for bit.

        The functions are not in the file: `problem` must be the one it watched, and is refused where it says something
        else of the first sample or, to the same version of JAX, computes something else.
        """
        return cls.of(saved.read(path, FORMAT, SAVED), problem, path)

    @classmethod
    def of(
        cls, stored: dict[str, PyTree], problem: Problem | Callable[[PyTree], object], path: str | os.PathLike[str]
    ) -> Monitor:
        """From the content of a file, which is named where it cannot be used."""
        try:
            found = cls(problem, stored["x"], **stored["options"])
            found._first, first = stored["first"]["sample"], stored["first"]
            before, watch = stored["functions"], stored["watch"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"monitor {path} cannot be used: {error}") from error
        now = found._functions()
        changed = [name for name in ("loss", "constraints") if before[name] != now[name]]
        if changed and before["jax"] == now["jax"]:
            raise ValueError(f"monitor {path} watched another problem: changed {' and '.join(changed)}")
        losses, constraints = found._values(single(found._first))
        agree = constraints.shape == first["constraints"].shape and np.allclose(losses, first["loss"])
        if not (agree and np.allclose(constraints, first["constraints"])):
            raise ValueError(
                f"monitor {path} watched another problem: of its first sample that said loss {first['loss'][0]:g} and "
                f"constraints {first['constraints'][0]}, this one says {losses[0]:g} and {constraints[0]}"
            )
        found._watch = found._new(constraints)
        try:
            found._watch.restore(watch)
        except (KeyError, ValueError) as error:
            raise ValueError(f"monitor {path} cannot be used: {error}") from error
        return found

    def _functions(self) -> dict[str, str]:
        """What loss and constraints compute, and which JAX says so."""
        if isinstance(self.problem, Plain):
            return {"loss": "", "constraints": "", "jax": jax.__version__}
        with double():
            x, xi = wide(self.x), wide(self._first)
            found = {name: computation(getattr(self.problem, name), x, xi) for name in ("loss", "constraints")}
        return {**found, "jax": jax.__version__}

    def _new(self, constraints: np.ndarray) -> Watch:
        """A watch for constraints (n, m). Those that do not depend on the sample are known from the first."""
        number = constraints.shape[1]
        if isinstance(self.problem, Plain):
            loss, each = np.zeros(1, bool), np.ones(number, bool)
        else:
            functions = self.problem.loss, self.problem.constraints
            loss, each = (depends(function, self.x, self._first) for function in functions)
        ranges = pinned(None if self.bounds is None else fitting(self.bounds, number), constraints, each)
        return Watch(number, self.confidence, self.tau_mix, ranges, self.tuned_for, constant_loss=not loss.any())

    def _values(self, source: SeriesSource) -> tuple[np.ndarray, np.ndarray]:
        """Losses (n,) and constraints (n, m). Functions are compiled for lengths that are powers of two: samples that
        arrive in pieces of any length compile a few times only."""
        count = source.length
        if self._first is None and isinstance(self.problem, Problem):
            self.problem.check(jax.tree.map(jnp.asarray, self.x), source.example)
        elif self._first is not None and shapes(source.example) != shapes(self._first):
            raise ValueError(
                f"samples have shapes {shapes(source.example)}, those before had {shapes(self._first)}: one sample has "
                "one shape throughout"
            )
        if isinstance(self.problem, Plain):
            return np.zeros(count), self.problem.values(source.data)
        room = 1 << (count - 1).bit_length()
        rows = np.minimum(np.arange(room), count - 1)  # filled up with the last one
        padded = SeriesSource(jax.tree.map(lambda leaf: np.asarray(leaf)[rows], source.data))
        losses, constraints = path_values(self.problem, padded, self.x, np.arange(count))
        check.finite("loss along the path", losses)
        check.finite("constraints along the path", constraints)
        return losses, constraints


def single(sample: PyTree) -> SeriesSource:
    """A series of one sample."""
    return SeriesSource(jax.tree.map(lambda leaf: np.asarray(leaf)[None], sample))


def shapes(sample: PyTree) -> PyTree:
    """The shapes of a pytree's leaves."""
    return jax.tree.map(np.shape, sample)
