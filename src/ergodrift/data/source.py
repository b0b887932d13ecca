"""A source is where samples come from. It is checked on the host when it is made.

`stream()` is its device side, a pytree that draws the entries of a path in blocks and makes samples of them;
`loss_law` and `constraint_law` are the finite laws under which expectations are taken.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from ergodrift._core import check
from ergodrift._core.precision import double
from ergodrift._core.tree import is_traced
from ergodrift.data.sampler import BLOCK, Sampler, draw
from ergodrift.data.stream import Simulated, Stream, padded
from ergodrift.problem import Problem
from ergodrift.types import Array, Key, PyTree

LAW_SEED = 2**32 - 2  # of the path that stands for a law: far from those of runs, and not that of certificates


class Law(NamedTuple):
    """A finite law: `points` is a pytree with a leading axis, `weights` sum to one along it."""

    points: PyTree
    weights: Array


class Visits(NamedTuple):
    """The samples along a path, points[rows]: a path that comes back to few points is evaluated at those alone."""

    points: PyTree
    rows: np.ndarray


class Source:
    """Where samples come from. A subclass gives its samples; all else has a default, to be overridden where more is
    known.

    Samples come from two plain JAX functions, `init(key) -> state` and `sample(key, state) -> (state, xi)`, of which
    the first may be left out. A path is a function of its seed (and of the precision of JAX where the simulator draws
    floating-point numbers), however a run is cut. Numbers that a source keeps are constants of the compiled loop.

    Attributes:
        law_samples: how many simulated samples stand for the stationary law in expectations, where it is not known: a
            path of a fixed seed, after as many samples that are left out. Expectations are then off by about sigma
            sqrt(tau / law_samples), with sigma the spread of what is averaged and tau its autocorrelation time.

    >>> import jax, jax.numpy as jnp
    >>> class Walk(Source):
    ...     def init(self, key):
    ...         return jnp.zeros(())
    ...
    ...     def sample(self, key, state):
    ...         state = 0.9 * state + jax.random.normal(key)
    ...         return state, state
    >>> Walk().paths(seeds=2, num_samples=5).shape
    (2, 5)
    """

    law_samples = 2**14

    def init(self, key: Key) -> PyTree:
        """The state before the first sample: any pytree of arrays."""
        return ()

    def sample(self, key: Key, state: PyTree) -> tuple[PyTree, PyTree]:
        """The next state and the sample xi: any pytrees of arrays, of the same shapes every time."""
        raise NotImplementedError(
            f"{type(self).__name__} has no samples: define sample(self, key, state) -> (state, xi), and "
            "init(self, key) -> state if there is a state"
        )

    def stream(self) -> Stream:
        """The device side."""
        self.__dict__["_in_use"] = True
        return Simulated(self.init, self.sample)

    def __setattr__(self, name: str, value: object) -> None:
        if self.__dict__.get("_in_use"):  # its numbers are constants of what is compiled: a change would go unseen
            raise AttributeError(
                f"{type(self).__name__} has given samples already: {name} cannot change; make a new source"
            )
        super().__setattr__(name, value)

    def sampler(self) -> Sampler:
        """What draws the entries of paths."""
        return self.stream()

    # What is known about the samples

    @property
    def length(self) -> int | None:
        """How many samples there are; None where they never end."""
        return None

    @property
    def arrives(self) -> bool:
        """Whether samples arrive from outside while a run goes on, so that none can be drawn beforehand."""
        return False

    def beginning(self, most: int) -> Source:
        """What a look at the samples before a run is taken at: itself, or of what arrives the first samples."""
        return self

    @property
    def per_pass(self) -> int | None:
        """How many there are before any comes again: fewer than `length` where a record is read several times."""
        return self.length

    @property
    def in_order(self) -> Source:
        """The same samples as they were recorded, row by row and once: what dependence is measured on."""
        return self

    @property
    def rows_per_sample(self) -> int:
        """How many rows a full sample has: more than 1 where samples are batches."""
        return 1

    def rows_taken(self, counts: np.ndarray, paths: PyTree = None) -> np.ndarray:
        """How many rows the first `counts` samples hold, on the paths given or on any that is drawn."""
        return np.asarray(counts)

    def rows_seen(self, num_samples: int) -> int:
        """How many rows of a record, from its start, hold all that a run of so many samples has seen."""
        return num_samples

    def asked(self, problem: Problem) -> Problem:
        """The problem as it is asked about these samples, which may be batches of those that its functions are of."""
        return problem

    def mixing_time(self, eps: float = 0.25) -> int | None:
        """tau_mix(eps), the first t after which the law is within eps of the stationary one; None where not known."""
        return None

    def distance(self, t: int) -> float | None:
        """d_mix(t), the distance from the stationary law after t samples; None where not known."""
        return None

    @property
    def independent(self) -> bool:
        """Whether samples are independent of each other."""
        return False

    @property
    def starts_stationary(self) -> bool:
        """Whether the first sample already follows the stationary law."""
        return False

    @property
    def stationary(self) -> np.ndarray | None:
        """The stationary law of states that come back; None where there are none.

        It goes with `table`: an entry of a path is then the number of a state.
        """
        return None

    @property
    def recorded(self) -> PyTree:
        """The recorded samples that all samples are taken from, along a leading axis; None where a law makes them."""
        return None

    @property
    def table(self) -> PyTree:
        """The points that entries are row numbers of; None where every entry is a sample of its own."""
        return None

    @property
    def parts(self) -> tuple[Source, Source]:
        """Where losses and where constraints come from."""
        return self, self

    @property
    def paired(self) -> bool:
        """Whether losses and constraints come from two sources: then xi is a pair, and so is a path."""
        return self.parts[0] is not self

    @property
    def example(self) -> PyTree:
        """One sample, for shapes."""
        return self._first

    @property
    def entry(self) -> PyTree:
        """What a path is made of, for shapes: a sample, unless the stream has other entries."""
        return self.example

    # Laws

    @property
    def loss_law(self) -> Law:
        """The stationary law under which the loss is averaged."""
        return self._simulated_law

    @property
    def law_is_simulated(self) -> bool:
        """Whether expectations are those of a simulated path, and so known to its standard error only."""
        return type(self).loss_law is Source.loss_law

    @property
    def constraint_law(self) -> Law:
        """The stationary law under which the constraints are averaged."""
        return self.loss_law

    # Paths

    def paths(self, seeds: int | Sequence[int] | Array, num_samples: int) -> PyTree:
        """The entries that `run` draws for these seeds, (seeds, num_samples, ...), for replay or for a look."""
        num_samples = check.integer("num_samples", num_samples, at_least=1, at_most=self.length or 2**31 - 1)
        sampler, blocks = self.sampler(), -(-num_samples // BLOCK)
        entries = jax.vmap(lambda key: draw(sampler, key, blocks))(path_keys(seed_keys(seeds)))
        return jax.tree.map(lambda leaf: leaf[:, :num_samples], entries)

    def samples_in(self, paths: PyTree) -> int:
        """How many samples per seed `paths` hold."""
        lengths = {_length(leaf, entry) for leaf, entry in self._leaves(paths)}
        if len(lengths) > 1:
            raise ValueError(f"paths must be equally long, got {sorted(lengths)} samples per seed")
        return lengths.pop()

    def check_paths(self, paths: PyTree, num_seeds: int, num_samples: int) -> PyTree:
        """`paths` as device arrays, one row per seed, or an error that says what is wrong with them."""
        rows = [by_seed(leaf, entry, num_seeds, num_samples) for leaf, entry in self._leaves(paths)]
        return jax.tree.unflatten(jax.tree.structure(self.entry), [padded(row) for row in rows])

    def path_of(self, paths: PyTree, row: int) -> PyTree:
        """The path of one seed, out of one row per seed or one path for all."""
        leaves = [leaf if np.ndim(leaf) == np.ndim(entry) + 1 else leaf[row] for leaf, entry in self._leaves(paths)]
        return jax.tree.unflatten(jax.tree.structure(self.entry), leaves)

    def visits(self, path: PyTree) -> tuple[Visits, Visits]:
        """The samples along the path of one seed, as losses see them and as constraints do."""
        points = jax.tree.map(np.asarray, jax.vmap(self.stream().xi)(path))
        found = Visits(points, np.arange(len(jax.tree.leaves(points)[0])))
        return found, found

    @functools.cached_property
    def _first(self) -> PyTree:
        entry = jax.tree.map(lambda leaf: leaf[0, 0], self.paths([LAW_SEED], 1))
        return jax.tree.map(np.asarray, self.stream().xi(entry))

    @functools.cached_property
    def _simulated_law(self) -> Law:
        skipped = self.law_samples if self.length is None else 0
        count = min(self.law_samples, self.length or self.law_samples)
        with double():  # whatever the precision of the moment: the law is one and the same
            path = jax.tree.map(lambda leaf: leaf[0, skipped:], self.paths([LAW_SEED], skipped + count))
            return Law(self.visits(path)[0].points, np.full(count, 1 / count))

    def _leaves(self, paths: PyTree) -> list[tuple[np.ndarray, np.ndarray]]:
        """The arrays of paths beside those of one entry."""
        if jax.tree.structure(paths) != jax.tree.structure(self.entry):
            raise TypeError(
                f"paths must have the structure of what source.paths(...) draws, got {type(paths).__name__}"
            )
        return list(zip(map(np.asarray, jax.tree.leaves(paths)), jax.tree.leaves(self.entry), strict=True))


def _length(leaf: np.ndarray, entry: np.ndarray) -> int:
    axes = leaf.shape[: leaf.ndim - np.ndim(entry)]
    if not axes or not axes[-1]:
        raise ValueError(f"paths must hold entries, (seeds, num_samples, ...), got shape {leaf.shape}")
    return axes[-1]


def by_seed(leaf: np.ndarray, entry: np.ndarray, num_seeds: int, num_samples: int) -> np.ndarray:
    """Entries with one row per seed; one path serves all seeds."""
    inner = np.shape(entry)
    if leaf.ndim == 1 + len(inner):
        leaf = np.broadcast_to(leaf, (num_seeds, *leaf.shape))
    if leaf.ndim != 2 + len(inner) or leaf.shape[0] != num_seeds or leaf.shape[2:] != inner:
        axes = ", ".join(["seeds", "num_samples", *map(str, inner)])
        wanted = ", ".join(map(str, (num_seeds, num_samples, *inner)))
        raise ValueError(f"paths must have shape ({axes}) = ({wanted}), got {leaf.shape}")
    if leaf.shape[1] != num_samples:
        how = "short" if leaf.shape[1] < num_samples else "long"
        raise ValueError(
            f"paths too {how}: {leaf.shape[1]} samples per seed, but num_samples={num_samples}; leave num_samples "
            "out to replay all of a path, or pass as many samples"
        )
    return leaf


def seed_keys(seeds: int | Sequence[int] | Array, name: str = "seeds") -> jax.Array:
    """One key for each seed: a count, or a list of integers."""
    if is_traced(seeds):
        raise ValueError(f"{name} cannot be traced by vmap or jit: pass all of them at once, they run side by side")
    if isinstance(seeds, int) or np.ndim(seeds) == 0:
        numbers = list(range(check.integer(name, seeds, at_least=1)))
    else:
        numbers = [check.integer(name, seed, at_least=0, at_most=2**32 - 1) for seed in seeds]
        if not numbers:
            raise ValueError(f"{name} is empty; pass a count such as 20 or a list of integers")
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"{name} must differ from each other, got {numbers}")
    # What `jax.random.key` makes of a seed, whichever generator and offset JAX is set to.
    words = np.stack([np.zeros(len(numbers)), np.array(numbers)], axis=1).astype(np.uint32)
    return jax.random.wrap_key_data(jax.device_put(words), impl="threefry2x32")  # jnp.asarray would compile a program


@jax.jit
def path_keys(keys: jax.Array) -> jax.Array:
    """The keys that paths are drawn with."""
    return jax.vmap(lambda key: jax.random.fold_in(key, np.uint32(0)))(keys)


@jax.jit
def level_keys(keys: jax.Array) -> jax.Array:
    """The keys that MLMC levels are drawn with, independent of the paths."""
    return jax.vmap(lambda key: jax.random.fold_in(key, np.uint32(1)))(keys)
