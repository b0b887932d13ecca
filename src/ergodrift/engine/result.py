"""What a run leaves, and what can be asked of it."""

from __future__ import annotations

import dataclasses
import os
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import numpy as np
from numpy.typing import ArrayLike

from ergodrift._core import check, tree
from ergodrift._core.saved import read, write
from ergodrift.data.source import Source
from ergodrift.engine.margin import Tightening, shifted
from ergodrift.methods.algorithms import Algorithm
from ergodrift.methods.average import Average
from ergodrift.methods.learned import LearnedWeights
from ergodrift.methods.scalefree import ScaleFreeWeights
from ergodrift.problem import Problem
from ergodrift.solve.feasibility import QueueEvidence, pressure, queue_evidence
from ergodrift.types import Array, PyTree, StepSizes, Weights

if TYPE_CHECKING:
    from ergodrift.theory import TheoryCheck
    from ergodrift.theory.bounds import Bounds
    from ergodrift.trust.certificate import Certificate
    from ergodrift.trust.methods import CertificateMethod

FORMAT = "ergodrift result v1"
KNOWN: dict[str, type] = {
    cls.__name__: cls for cls in (Weights, StepSizes, LearnedWeights, ScaleFreeWeights, Tightening)
}


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """What a run was asked to do.

    It is pickled with its result, training data included, where its functions can be; where they cannot, or are not
    found again, None takes its place.
    """

    algorithm: Algorithm
    problem: Problem
    source: Source
    x0: PyTree
    seeds: np.ndarray
    levels: PyTree
    average: Average
    num_samples: int

    def __reduce__(self) -> tuple[Callable[[bytes], Setting | None], tuple[bytes]]:
        parts = [getattr(self, field.name) for field in dataclasses.fields(self)]
        try:
            return _unpickled, (pickle.dumps(parts, pickle.HIGHEST_PROTOCOL),)
        except Exception:  # functions and data are the user's, and raise what they like
            return _unpickled, (b"",)

    def __deepcopy__(self, memo: object) -> Setting:
        return self  # it never changes


def _unpickled(parts: bytes) -> Setting | None:
    try:
        return Setting(*pickle.loads(parts))
    except Exception:  # the module of a function may be another one here, or none
        return None


@tree.module("name", beside=("setting",))
class Result:
    """What a run leaves: thinned records with leading axes (seeds, records).

    Attributes:
        name: the algorithm's.
        seeds: (seeds,) the integers the paths were drawn with.
        samples: (records,) samples taken at each record.
        rounds: rounds finished by then; equal to `samples` unless rounds use several samples.
        samples_used: samples of finished rounds; an unfinished MLMC window is not counted.
        x: the last point, x_{t+1} after t rounds.
        x_mean: x̄_t, the mean of x_1..x_t, equal weight per round unless `average` says otherwise.
        queue: Q_{t+1}, or the multipliers.
        weights: of the last round: V_t and alpha_t (`Weights`), or primal-dual `StepSizes`.
        loss_sum: sum of f(x, xi) over all samples taken, each at the point held when it came.
        constraint_sum: likewise for g, (..., n).
        solution: what the algorithm recommends: x̄ at the end, leading axis seeds; nearer to x0 where
            `tightening.way` says so.
        paths: the paths that were passed in, if any.
        setting: what the run was asked to do, with problem and source; None in what `load_result` reads, what `vmap` or
            `jit` return, and what was pickled with functions that cannot be. Of results mapped together, the first's.
        margin: (n,) what was added to the constraints in the run, if anything; nothing above has it in it.
        tightening: how the margin was found, and what it costs, where the run was asked to find one.
    """

    name: str
    seeds: Array
    samples: Array
    rounds: Array
    samples_used: Array
    x: PyTree
    x_mean: PyTree
    queue: Array
    weights: PyTree
    loss_sum: Array
    constraint_sum: Array
    solution: PyTree
    paths: PyTree
    setting: Setting | None = None
    margin: PyTree = None
    tightening: PyTree = None

    def certify(
        self,
        problem: Problem | Source | None = None,
        source: Source | None = None,
        confidence: float | None = None,
        method: str | CertificateMethod | None = None,
        *,
        row: int = 0,
        num_samples: int | None = None,
        seed: int | None = None,
        tau_mix: float | None = None,
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
        tuned_for: int | None = None,
    ) -> Certificate:
        """A certificate for the solution of one seed (`row`) on fresh samples, never on those it was fitted on.

        Args:
            problem: the one that was solved, which need not be given; another is refused. About another one, ask
                `ed.certify(other, x, source)`. A source in its place is taken as `source`.
            source: of fresh samples: the run's own unless given, with a path of another seed. After a run on a recorded
                series it must hold samples that the run did not see.
            row: which seed's solution.
            num_samples: as many as the run took, unless given.

        The others are those of `certify`.
        """
        from ergodrift.trust.certify import FRESH, certify
        from ergodrift.trust.training import draws, refuse_other, refuse_training

        asked = self._asked()
        if isinstance(problem, Source) and source is None:
            problem, source = None, problem
        if problem is not None:
            refuse_other(asked.problem, problem)
        seed = FRESH if seed is None else seed
        given = source is not None
        source = asked.source if source is None else source
        if not isinstance(source, Source):
            raise TypeError(f"source must be a Source such as SeriesSource(data), got {type(source).__name__}")
        if source is asked.source and source.arrives:
            raise ValueError(
                "the stream of the run was read and not kept: pass held-out samples, such as SeriesSource(data), or a "
                "stream that goes on where it ended, with num_samples"
            )
        seen = asked.num_samples if self.paths is None else None
        refuse_training(asked.source, source, seen, again=not given)
        seeds = np.asarray(self.seeds).tolist()
        if draws(source) and (seed in seeds if self.paths is None else self._replayed(source, seed)):
            raise ValueError(f"seed={seed} is one of those the run was fitted on; pass another")
        if num_samples is None and source.length is None:
            num_samples = int(asked.source.rows_taken(np.asarray(self.samples)[-1:])[0])
        row = check.integer("row", row, at_least=0, at_most=len(seeds) - 1)
        x = jax.tree.map(lambda leaf: leaf[row], self.solution)
        options = {
            "confidence": confidence,
            "method": method,
            "tau_mix": tau_mix,
            "bounds": bounds,
            "tuned_for": tuned_for,
        }
        chosen: dict[str, PyTree] = {name: value for name, value in options.items() if value is not None}
        return certify(asked.problem, x, source, num_samples=num_samples, seed=seed, **chosen)

    def _replayed(self, source: Source, seed: int) -> bool:
        """Whether the path of this seed is among those that were passed in."""
        count = min(int(np.asarray(self.samples)[-1]), source.length or 2**31)
        fresh = source.path_of(source.paths([seed], count), 0)
        try:
            given = [source.path_of(self.paths, row) for row in range(len(np.asarray(self.seeds)))]
        except TypeError:  # of a source of another kind
            return False
        return any(all(map(_begins, jax.tree.leaves(path), jax.tree.leaves(fresh))) for path in given)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result to a file that `load_result` reads: records, solution, seeds, names; no data, no pickles.

        The data and functions of the run are not in it. The file is replaced whole or not at all. x0 may have been any
        nest of dicts, lists, tuples and NamedTuples; a NamedTuple of your own comes back as one of the same name and
        fields, other classes are refused.

        >>> import ergodrift as ed, jax.numpy as jnp, tempfile, os
        >>> problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 0.3, ed.Ball(2.0))
        >>> result = ed.run(ed.edpp(1), problem, ed.IIDSource(np.eye(2)), x0=np.zeros(2), num_samples=100)
        >>> path = os.path.join(tempfile.mkdtemp(), "result.npz")
        >>> result.save(path)
        >>> ed.load_result(path)
        Result(EDPP-t: 1 seeds, 100 records)
        """
        if tree.is_traced(self):
            raise ValueError("a result cannot be saved while run is traced by vmap or jit; save what they return")
        write(path, FORMAT, {name: getattr(self, name) for name in _fields()}, KNOWN)

    def __repr__(self) -> str:
        seeds, records = np.shape(self.rounds)[-2:]
        said = f"Result({self.name}: {seeds} seeds, {records} records"
        return f"{said}; {self.tightening})" if self.tightening is not None else f"{said})"

    def _asked(self) -> Setting:
        if self.setting is None:
            raise ValueError(
                "this result does not know its run: it was loaded from a file, pickled with functions that cannot be "
                "(such as lambdas), or made inside vmap or jit; call run outside them and ask what it returns, or, for "
                "a certificate, use ed.certify(problem, x, source) with fresh samples"
            )
        seeds = np.ravel(np.asarray(self.seeds)).tolist()
        if len(set(seeds)) < len(seeds) or not set(seeds) <= set(self.setting.seeds.tolist()):
            raise ValueError("this result is not of one run: its seeds are others; ask each run's own result")
        return self.setting

    def feasibility(self) -> QueueEvidence:
        """What the queues say about feasibility: in proportion to t, they grow because the constraints conflict.

        For problems whose law is known, `feasibility(problem, source)` solves for the same and proves it.
        """
        asked = self._asked()
        if not hasattr(self.weights, "penalty"):
            raise ValueError(
                f"{self.name} has damped multipliers in place of queues; run edpp, mdpp or adpp to see them grow"
            )
        mean = jax.tree.map(
            lambda leaf: np.asarray(leaf).mean(axis=0), (self.solution, self.queue, self.weights.penalty)
        )
        x, queue, penalty = mean[0], mean[1][-1], mean[2][-1]
        pull = pressure(asked.problem, asked.source, x, queue, penalty)
        return queue_evidence(self.rounds, self.queue, self.solution, pull)

    def within_theory(self, bounds: Bounds | None = None, *, replay: bool = True) -> TheoryCheck:
        """Hold every record against every bound that the algorithm has; prints as a table, and is true if all hold.

        With a margin, the bounds are those of the run that was made: about the constraints g + m.

        Where no bound applies, as for PD, it is neither true nor false: `checked` is False, and a condition raises.

        Args:
            bounds: F, G and H, as `problems.fairness` returns them; the largest values seen unless given.
            replay: whether to make the run once more, round by round, for the lemmas of appendix A.

        See `theory.within_theory` for which bounds an algorithm has.
        """
        from ergodrift.theory import within_theory

        asked, seen, problem = self._asked(), self, self._asked().problem
        if self.margin is not None:
            problem, source = shifted(problem, self.margin), asked.source
            whole = source.rows_taken(np.asarray(self.samples), self.paths) / source.rows_per_sample
            added = whole[..., None] * np.asarray(self.margin)
            seen = dataclasses.replace(self, constraint_sum=np.asarray(self.constraint_sum) + added)
        return within_theory(
            seen,
            asked.algorithm,
            problem,
            asked.source,
            asked.x0,
            bounds=bounds,
            levels=asked.levels,
            replay=replay,
            average=asked.average,
        )


def _fields() -> list[str]:
    """Those that files hold."""
    return [field.name for field in dataclasses.fields(Result) if field.name != "setting"]  # type: ignore[arg-type]


def load_result(path: str | os.PathLike[str]) -> Result:
    """The result that `Result.save` wrote to this file, with NumPy arrays; reading it cannot run code.

    It has the records and the solution, for `metrics` and for a look; what needs the problem or the data of the run
    (`feasibility`, `within_theory`, `certify`) says so.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a result, damaged, or of another version.
    """
    found = read(path, FORMAT, KNOWN)
    if not set(_fields()) - {"margin", "tightening"} <= set(found) <= set(_fields()):  # older files have no margin
        raise ValueError(f"{os.fspath(path)} is not a saved result: it holds {', '.join(sorted(found))}")
    return Result(**found)


def _begins(long: Array, short: Array) -> bool:
    """Whether one array is the beginning of another."""
    return np.array_equal(np.asarray(long)[: len(short)], np.asarray(short))
