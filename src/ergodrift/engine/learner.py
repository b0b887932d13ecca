"""A learner: an algorithm that samples are handed to as they come, for as long as they come."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

import jax
import numpy as np

from ergodrift._core import check, saved, tree
from ergodrift._core.arrays import as_arrays
from ergodrift._core.files import check_folder
from ergodrift.data.sampler import BLOCK
from ergodrift.engine.checkpoint import fingerprint, functions
from ergodrift.engine.drive import NEVER
from ergodrift.engine.history import History
from ergodrift.engine.intake import Intake
from ergodrift.engine.lookout import Lookout
from ergodrift.engine.recipe import KNOWN, described, made
from ergodrift.engine.result import Result
from ergodrift.engine.rows import checked, forms, is_table, one_sample
from ergodrift.methods.algorithms import Algorithm
from ergodrift.methods.average import Average
from ergodrift.methods.given import check_kinds
from ergodrift.methods.method import checked_point
from ergodrift.problem import Problem
from ergodrift.trust.alarm import Drift
from ergodrift.trust.certificate import Certificate
from ergodrift.types import Array, PyTree

FORMAT = "ergodrift learner v1"
MOST = NEVER - BLOCK  # samples that can be counted


class Learner:
    """An algorithm that learns from samples as they come, one by one or in chunks, for as long as they come.

    Chunks give the numbers of `run` on the same samples, bit for bit, however they are cut; single samples do to
    rounding. Memory does not grow. Nothing else is to be done by the caller: all is compiled, and checked. It counts
    to 2^31 samples, some 24 days at a thousand a second; then it says so.

    A NaN or an infinity that arises is told a few calls later, or when the learner is asked for something: it then
    stands before the sample that brought it. A sample that is itself not finite, or of another shape, is refused at
    once, and the learner stands where it was.

    Args:
        algorithm: such as `ed.sdpp()`, which needs no settings, or what `ed.auto` chose from a record. Those that
            remember states (`rdpp`, `srdpp`) are refused: a stream has none that come back.
        problem: loss, constraints and domain.
        x0: a point of the domain. Its precision is the learner's.
        example: one sample, for shapes. Without it the first call says what a sample is; where that could be read in
            two ways, it is asked for.
        seed: of the random levels of MDPP; others draw nothing.
        history: how many records to keep; every second one is dropped whenever there are twice as many.
        average: as in `run`.
        save_to: a file to save to whenever `save_every` more samples were learned from; see `save`. Where the disk
            is full, it warns and tries again after as many.

    Attributes:
        note: numbers and text of your own, saved with the rest: such as how far a file was read.

    >>> import ergodrift as ed
    >>> problem = ed.Problem(lambda x, xi: (xi["a"] @ x - xi["b"]) ** 2, lambda x, xi: x[:1] - 0.3, ed.Ball(2.0))
    >>> learner = ed.Learner(ed.sdpp(), problem, np.zeros(2))
    >>> rng = np.random.default_rng(0)
    >>> for _ in range(20):
    ...     a = rng.normal(size=(500, 2))
    ...     learner.learn({"a": a, "b": a @ [1.0, 0.5] + 0.1 * rng.normal(size=500)})
    >>> learner.learn({"a": np.ones(2), "b": 1.5})
    >>> print(learner.samples_seen, learner.solution.round(1))
    10001 [0.3 0.5]
    """

    def __init__(
        self,
        algorithm: Algorithm,
        problem: Problem,
        x0: PyTree,
        *,
        example: PyTree = None,
        seed: int = 0,
        history: int = 100,
        average: str | tuple[str, int] | None = None,
        save_to: str | os.PathLike[str] | None = None,
        save_every: int = 100_000,
    ) -> None:
        check_kinds(algorithm=algorithm, problem=problem)
        if algorithm.estimator.needs_state:
            raise ValueError(
                f"algorithm: {algorithm.name} remembers which state a sample came from, which nobody tells a learner; "
                "take ed.sdpp()"
            )
        self.algorithm, self.problem = algorithm, problem
        self.x0 = checked_point(problem.geometry, x0)
        self.seed = check.integer("seed", seed, at_least=0, at_most=2**32 - 1)
        self.average = Average.of(algorithm.average if average is None else average)
        self.note: dict[str, PyTree] = {}
        self.save_to = None if save_to is None else os.fspath(save_to)
        self.save_every = check.integer("save_every", save_every, at_least=1)
        if save_to is not None:
            check_folder("save_to", save_to)
        self._save_at = self.save_every
        self._records = check.integer("history", history, at_least=1)
        self._intake: Intake | None = None  # from the first sample on
        self._lookout: Lookout | None = None
        if example is not None:
            self._begin(jax.tree.map(np.asarray, as_arrays("example", example)))

    # What it has learned

    @property
    def samples_seen(self) -> int:
        """How many samples it has learned from."""
        return 0 if self._intake is None else self._intake.count

    @property
    def solution(self) -> PyTree:
        """What the algorithm recommends: x̄ of the samples so far."""
        return jax.tree.map(np.asarray, self.x0) if self._intake is None else self._intake.now().x_mean

    @property
    def x(self) -> PyTree:
        """The point at which the next sample is asked."""
        return jax.tree.map(np.asarray, self.x0) if self._intake is None else self._intake.now().x

    @property
    def queue(self) -> Array:
        """The virtual queues, or the multipliers of a primal-dual method."""
        if self._intake is None:
            raise ValueError("the number of constraints is not known before the first sample: pass example=, or learn")
        return self._intake.now().queue

    @property
    def history(self) -> Result:
        """Records from the start on, evenly spaced, the last one of now; with the fields of what `run` returns."""
        if self._intake is None or not self._intake.count:
            raise ValueError("there is no history yet: the learner has seen no samples")
        now, kept = self._intake.now(), self._intake.history
        counts, records = list(kept.samples), list(kept.records)
        if counts[-1:] != [self.samples_seen]:
            counts, records = [*counts, self.samples_seen], [*records, now]
        stacked = History.stack(records)
        solution = jax.tree.map(lambda leaf: leaf[None], now.x_mean)
        told: dict[str, PyTree] = {"solution": solution, "paths": None}
        return Result(self.algorithm.name, np.array([self.seed]), np.array(counts), **stacked._asdict(), **told)

    # How a point does

    def watch(
        self, x: PyTree = None, confidence: float = 0.95, on_drift: Callable[[Drift], object] | None = None
    ) -> None:
        """Fix a point, and from now on judge it on every sample before that is learned from.

        So the samples are held-out ones: `certificate` says whether the constraints hold there, at all times together
        (`Monitor`), and `drift` whether the law of its loss and constraints has changed since (`DriftAlarm`). Samples
        are judged a few hundred at a time, and when either is asked for. To watch another point, call it again.

        Args:
            x: the point that is in use; the present solution unless given.
            confidence: of the certificate, and that the alarm is never false.
            on_drift: is called once, with the `Drift`, when one is found, after the samples that showed it were learned
                from. (Twice, where the process is killed before the next save.)
        """
        if self._intake is not None:
            self._intake.look()  # samples so far are not held out
        point = self.solution if x is None else jax.tree.map(np.asarray, checked_point(self.problem.geometry, x))
        self._lookout = Lookout(self.problem, point, confidence, on_drift)

    @property
    def watched(self) -> PyTree:
        """The point that is watched; None where none is."""
        return None if self._lookout is None else self._lookout.monitor.x

    @property
    def certificate(self) -> Certificate | None:
        """Whether the constraints hold at the point that is watched; None before any sample has come."""
        found = self._judged()
        return None if found is None else found.certificate()

    @property
    def drift(self) -> Drift | None:
        """That the law has changed since the point was fixed; None where nothing was found.

        Column 0 is the loss at the point, column 1 + i constraint i; samples are counted from when it was fixed.
        """
        found = self._judged()
        if found is None:
            return None
        found.tell()
        return found.drift()

    def _judged(self) -> Lookout | None:
        if self._lookout is not None and self._intake is not None:
            self._intake.look()
            self._lookout.judge(self._intake.structure)
        return self._lookout

    def _stand(self, rows: list[np.ndarray]) -> None:
        if self._lookout is not None and self._intake is not None:
            self._lookout.add(rows, self._intake.structure)

    # Learning

    def learn(self, samples: PyTree, note: dict[str, PyTree] | None = None) -> None:
        """Take in one sample, or a chunk of them along a leading axis of time.

        Args:
            samples: arrays, tables, tensors and lists as everywhere; also one row of a table, or a list of dicts.
            note: becomes `note` once they are learned from, so that a file has both or neither.

        Raises:
            ValueError, TypeError: the samples are not finite, or not like those before; nothing was learned from them.
            NonFiniteError: a NaN or an infinity arose, in this call or one of the last 64.
        """
        leaves, structure = jax.tree.flatten(samples)
        intake = self._intake
        if intake is None or structure != intake.structure:
            intake, leaves = self._understood(samples)
        if intake is not None:
            self._take(intake, leaves)
        if note is not None:
            self.note = note
        if self.save_to is not None and self.samples_seen >= self._save_at:
            self._save_itself(self.save_to)
        if self._lookout is not None:
            self._lookout.tell()

    def _take(self, intake: Intake, leaves: list[PyTree]) -> None:
        axes, row = np.shape(leaves[0]), intake.rows[0].shape
        lead = axes[: len(axes) - len(row)]
        if len(lead) > 1 or len(axes) < len(row):
            raise ValueError(f"samples{intake.rows[0].name} has shape {axes}, one sample has {row}")
        count = lead[0] if lead else 1
        if intake.count + count > MOST:
            raise ValueError(f"samples: a learner counts to {MOST:,}, and has seen {intake.count:,} already")
        arrays = checked(intake.rows, leaves, lead, intake.count)
        if lead:
            if self._lookout is not None:
                intake.look()  # rows are judged once they stand
            intake.take_rows(arrays, count)
        else:
            intake.take_one(arrays)

    def _understood(self, samples: PyTree) -> tuple[Intake | None, list[PyTree]]:
        """The arrays of samples that were given in a form of their own, or are the first."""
        if type(samples) in (list, tuple) and not samples:
            return None, []  # nothing has come
        intake = self._intake
        if intake is None:
            given = list(forms(samples))
            if all(np.shape(leaf)[:1] == (0,) for leaf in jax.tree.leaves(given[0])):
                return None, []  # no rows, and so nothing to tell a sample from
            intake = self._begin(one_sample(self.problem, self.x0, given, is_table(samples)))
        form = None
        for form in forms(samples):
            leaves, structure = jax.tree.flatten(form)
            if structure == intake.structure:
                return intake, leaves
        names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(form)]
        before = [row.name for row in intake.rows]
        told = [check.some(each) if any(each) else f"{len(each)} array" for each in (names, before)]
        hint = "; pass example= to Learner.load" if names == before else ""  # a NamedTuple of another class
        raise ValueError(f"samples hold {told[0]}, those before held {told[1]}{hint}")

    def _begin(self, example: PyTree) -> Intake:
        """All that depends on what a sample is."""
        check.finite("the first sample", example)  # by what the functions say of it a file is known again
        told = (self.algorithm, self.problem, self.x0, self.average, self.seed, example)
        self._intake = Intake(*told, History(self._records), self._stand)
        self._identity = self._told_apart(self._intake)  # now: the functions are compiled now, whatever they read later
        return self._intake

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that goes on with the next sample, the algorithm and `note`: no functions, no samples but the
        first, no pickles. At any moment the old file or the new one is there, whole."""
        if self._intake is None:
            raise ValueError("there is nothing to save: this learner has seen no samples")
        standing = self._intake.state()
        lookout = self._judged()
        content = {
            "x0": self.x0,
            "example": self._intake.example,
            "average": (self.average.degree, self.average.suffix),
            "seed": self.seed,
            "save_every": self.save_every,
            "note": self.note,
            "watched": None if lookout is None else lookout.content(),
            "algorithm": described(self.algorithm),
            **standing,
            **self._identity,
        }
        saved.write(path, FORMAT, content, KNOWN)
        if self.save_to is not None and os.fspath(path) == self.save_to:
            self._save_at = self.samples_seen + self.save_every

    def _save_itself(self, path: str) -> None:
        self._save_at = self.samples_seen + self.save_every
        try:
            self.save(path)
        except OSError as error:
            warnings.warn(f"{path} could not be written ({error}); the learner goes on, and tries again", stacklevel=3)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        problem: Problem,
        algorithm: Algorithm | None = None,
        *,
        example: PyTree = None,
        save_to: str | os.PathLike[str] | None = None,
        save_every: int | None = None,
        on_drift: Callable[[Drift], object] | None = None,
    ) -> Learner:
        """Go on where a saved learner was, bit for bit.

        Args:
            path: the file.
            problem: the one it learned: functions are not in the file. Another one is refused.
            algorithm: where it has parts that are not the library's own, which are not in the file either.
            example: one sample, where samples are NamedTuples of your own: their class is not in the file either.
            save_to, save_every: as in `Learner`; as often as before unless given.
            on_drift: as in `watch`.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is no learner, damaged, of another version, or of another problem or algorithm.
        """
        stored = saved.read(path, FORMAT, KNOWN)
        try:
            if algorithm is None and stored["algorithm"] is None:
                raise ValueError("its algorithm has parts of your own, which are not in the file: pass algorithm=")
            own = made(stored["algorithm"]) if algorithm is None else algorithm
            if (wide := tree.dtype(stored["x0"])) != jax.dtypes.canonicalize_dtype(wide):
                raise ValueError(f'it is in {wide}: turn that on by jax.config.update("jax_enable_x64", True)')
            often = stored["save_every"] if save_every is None else save_every
            found = cls(own, problem, stored["x0"], seed=stored["seed"], save_to=save_to, save_every=often)
            found.average = Average(*stored["average"])
            first = stored["example"]
            if example is not None:
                first = jax.tree.structure(as_arrays("example", example)).unflatten(jax.tree.leaves(first))
            intake = found._begin(first)
            found._refuse_another(stored)
            intake.restore(stored)
            found.note, found._save_at = stored["note"], intake.count + found.save_every
            if stored["watched"] is not None:
                found._lookout = Lookout.of(stored["watched"], problem, intake.structure, on_drift)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"learner {os.fspath(path)} cannot be used: {error}") from error
        return found

    def _refuse_another(self, before: dict[str, PyTree]) -> None:
        now = self._identity
        changed = [name for name in now["prints"] if now["prints"][name] != before["prints"].get(name)]
        if changed and before["jax"] == now["jax"]:
            raise ValueError(f"it is of another problem or algorithm: changed {' and '.join(changed)}")
        same = before["says"].shape == now["says"].shape
        if not (same and np.allclose(before["says"], now["says"], rtol=1e-4, equal_nan=True)):
            raise ValueError("it is of another problem: loss or constraints say something else of its first sample")

    def _told_apart(self, intake: Intake) -> dict[str, PyTree]:
        """What tells this problem and algorithm from others: prints, which another version of JAX may make otherwise,
        and what the functions say of the first sample, slopes included."""
        xi = tree.cast(intake.example, tree.dtype(self.x0))
        heard = self.problem.feedback(self.x0, xi)
        prints = {
            **functions(self.problem, self.x0, xi),
            "domain": fingerprint(self.problem.geometry),
            "algorithm": fingerprint((self.algorithm.name, intake.setup.method)),
        }
        slopes = [np.abs(leaf).sum() for leaf in jax.tree.leaves((heard.loss_grad, heard.constraint_jac))]
        says = np.concatenate([np.asarray(heard.constraints), [np.asarray(heard.loss)], slopes])
        return {"prints": prints, "jax": jax.__version__, "says": says}
