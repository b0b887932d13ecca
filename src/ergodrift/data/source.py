"""Where samples come from: a chain over per-state data, a recorded series, independent draws, or two side by side.

A source is checked on the host when it is made. `stream()` is its device side, a pytree that draws indices in blocks
and looks samples up; `loss_law` and `constraint_law` are the finite laws under which expectations are taken.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check, tree
from ergodrift._core.arrays import as_arrays
from ergodrift.data.chain import MarkovChain
from ergodrift.data.sampler import BLOCK, Categorical, InOrder, Replay, Side, draw, split


class Law(NamedTuple):
    """A finite law: `points` is a pytree with a leading axis, `weights` sum to one along it."""

    points: Any
    weights: Any


class Stream(NamedTuple):
    """A source on the device. `sampler` draws indices; `data` are looked up with them."""

    sampler: Any
    data: Any

    def at(self, indices: Any, at: Any) -> Any:
        """The index at place `at` of a block of them (one for each part, where there are parts)."""
        return jax.tree.map(lambda leaf: leaf[at], indices)

    def xi(self, index: Any) -> Any:
        """The sample with this index."""
        if isinstance(self.sampler, Side):
            return tuple(_take(part, i) for part, i in zip(self.data, index, strict=True))
        return _take(self.data, index)


@tree.module()
class Turned:
    """An array whose samples are tall and narrow, (n, d) with a small d, kept as (d, n): twice as fast to multiply."""

    array: Any


def _turn(leaf: Any) -> Any:
    array = jnp.asarray(leaf)
    return Turned(jnp.swapaxes(array, -1, -2)) if array.ndim == 3 and 4 * array.shape[-1] <= array.shape[-2] else array


def _take(data: Any, index: Any) -> Any:
    def one(leaf: Any) -> Any:
        return leaf.array[index].T if isinstance(leaf, Turned) else leaf[index]

    return jax.tree.map(one, data, is_leaf=lambda leaf: isinstance(leaf, Turned))


class Source(abc.ABC):
    """The common face of all sources."""

    @property
    @abc.abstractmethod
    def length(self) -> int | None:
        """How many samples there are; None where they never end."""

    @abc.abstractmethod
    def stream(self, replay: bool = False) -> Stream:
        """The device side; with `replay`, indices come from paths that are passed in."""

    def sampler(self) -> Any:
        """What draws the indices."""
        return self.stream().sampler

    def samples_in(self, paths: Any) -> int:
        """How many samples of each seed `paths` hold."""
        shape = np.shape(paths)
        if not shape or not shape[-1]:
            raise ValueError(f"paths must hold indices, (seeds, num_samples), got shape {shape}")
        return shape[-1]

    @abc.abstractmethod
    def check_paths(self, paths: Any, num_seeds: int, num_samples: int) -> Any:
        """`paths` as device arrays, one row a seed, or an error that says what is wrong with them."""

    @property
    @abc.abstractmethod
    def loss_law(self) -> Law:
        """The stationary law under which the loss is averaged."""

    @property
    def constraint_law(self) -> Law:
        """The stationary law under which the constraints are averaged."""
        return self.loss_law

    @property
    def state_law(self) -> np.ndarray | None:
        """The stationary law of the states an index tells apart and that come back; None where there are none."""
        return None

    @property
    def example(self) -> Any:
        """One sample, for shapes."""
        return jax.tree.map(lambda leaf: leaf[0], self.loss_law.points)

    def start(self, key: jax.Array) -> Any:
        """What the sampler starts from: a key, or one for each part."""
        return key

    def loss_index(self, index: Any) -> Any:
        """The part of an index that points into `loss_law`."""
        return index

    def paths(self, seeds: Any, num_samples: int) -> Any:
        """The indices that `run` draws for these seeds, (seeds, num_samples), for replay or for a look."""
        num_samples = check.integer("num_samples", num_samples, at_least=1, at_most=self.length or 2**31 - 1)
        sampler, starts = self.sampler(), jax.vmap(self.start)(path_keys(seed_keys(seeds)))
        indices = jax.vmap(lambda start: draw(sampler, start, -(-num_samples // BLOCK)))(starts)
        return jax.tree.map(lambda leaf: leaf[:, :num_samples], indices)


class _Rows(Source):
    """A source whose samples are rows of one table; a subclass says how rows are drawn and how they weigh."""

    def __init__(self, data: Any, weights: np.ndarray) -> None:
        self.data, self.weights = data, weights

    @property
    def length(self) -> int | None:
        return None

    def stream(self, replay: bool = False) -> Stream:
        check.fits("data", self.data)
        return Stream(Replay() if replay else self.sampler(), jax.tree.map(_turn, self.data))

    @property
    def loss_law(self) -> Law:
        return Law(self.data, self.weights)

    @property
    def state_law(self) -> np.ndarray | None:
        return None if self.length else self.weights

    def check_paths(self, paths: Any, num_seeds: int, num_samples: int) -> Any:
        paths, size = np.asarray(paths), len(self.weights)
        if not np.issubdtype(paths.dtype, np.integer):
            raise TypeError(f"paths must hold integers, got {paths.dtype}")
        if paths.ndim == 1:
            paths = np.broadcast_to(paths, (num_seeds, len(paths)))
        if paths.ndim != 2 or paths.shape[0] != num_seeds:
            wanted = f"(seeds, num_samples) = ({num_seeds}, {num_samples})"
            raise ValueError(f"paths must have shape {wanted}, got {paths.shape}")
        if paths.shape[1] != num_samples:
            how = "short" if paths.shape[1] < num_samples else "long"
            raise ValueError(
                f"paths too {how}: {paths.shape[1]} states a seed, but num_samples={num_samples}; leave num_samples "
                "out to replay all of a path, or pass as many states"
            )
        if paths.min() < 0 or paths.max() >= size:
            raise ValueError(f"paths must hold states between 0 and {size - 1}, got {paths.min()} to {paths.max()}")
        return Replay.padded(paths)


def seed_keys(seeds: Any, name: str = "seeds") -> jax.Array:
    """One key for each seed: a count, or a list of integers."""
    if np.ndim(seeds) == 0:
        numbers = list(range(check.integer(name, seeds, at_least=1)))
    else:
        numbers = [check.integer(name, seed, at_least=0, at_most=2**32 - 1) for seed in seeds]
        if not numbers:
            raise ValueError(f"{name} is empty; pass a count such as 20 or a list of integers")
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"{name} must differ from each other, got {numbers}")
    # What `jax.random.key` makes of a seed, whichever generator and offset JAX is set to.
    words = np.stack([np.zeros(len(numbers)), np.array(numbers)], axis=1).astype(np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def path_keys(keys: jax.Array) -> jax.Array:
    """The keys that paths are drawn with."""
    return jax.vmap(lambda key: jax.random.fold_in(key, 0))(keys)


def level_keys(keys: jax.Array) -> jax.Array:
    """The keys that MLMC levels are drawn with, independent of the paths."""
    return jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)


class MarkovSource(_Rows):
    """xi_t = data[state_t], with state_t a path of the chain.

    Args:
        chain: the Markov chain.
        data: arrays with one row for each state, as for `SeriesSource`.
        start: the first state; drawn from the stationary law unless given.

    >>> source = MarkovSource(MarkovChain([[0.9, 0.1], [0.3, 0.7]]), np.array([1.0, -1.0]))
    >>> source.paths(seeds=2, num_samples=5).shape
    (2, 5)
    """

    def __init__(self, chain: MarkovChain, data: Any, start: int | None = None) -> None:
        if not isinstance(chain, MarkovChain):
            raise TypeError(
                f"chain must be a MarkovChain, got {type(chain).__name__}; wrap the matrix in MarkovChain(P)"
            )
        data, rows = _table(data)
        if rows != chain.num_states:
            raise ValueError(f"data has {rows} rows along its leading axis, the chain has {chain.num_states} states")
        if start is not None:
            start = check.integer("start", start, at_least=0, at_most=chain.num_states - 1)
        super().__init__(data, chain.stationary)
        self.chain, self.first = chain, start

    def sampler(self) -> Any:
        return self.chain.sampler(self.first)


class IIDSource(_Rows):
    """Independent draws from the rows of `data`.

    Args:
        data: arrays with as many rows, as for `SeriesSource`.
        weights: probabilities of the rows, up to a factor; equal unless given.

    >>> IIDSource(np.array([1.0, 2.0]), weights=[1, 3]).loss_law.weights
    array([0.25, 0.75])
    """

    def __init__(self, data: Any, weights: Any = None) -> None:
        data, rows = _table(data)
        weights = np.ones(rows) if weights is None else np.asarray(weights, dtype=float)
        if weights.shape != (rows,):
            raise ValueError(f"weights must have shape ({rows},), one for each row of data, got {weights.shape}")
        if not np.isfinite(weights).all() or weights.min() < 0 or weights.sum() == 0:
            raise ValueError(f"weights must be finite, not negative, and not all zero, got {weights}")
        super().__init__(data, weights / weights.sum())

    def sampler(self) -> Any:
        return Categorical.from_weights(self.weights)


class SeriesSource(_Rows):
    """A recorded series, read once and in order; all seeds see the same samples.

    Args:
        data: arrays with time along their leading axis: one, or a tuple or dict of them, or any other pytree. A table
            (pandas, polars, pyarrow) becomes a dict of its columns, so that a loss reads `xi["price"]`; nested lists,
            series and tensors become arrays. What is no number is refused by name (see `arrays.as_arrays`).

    >>> SeriesSource(np.arange(100.0)).length
    100
    >>> SeriesSource({"price": [1.0, 2.0, 4.0], "sold": [3, 1, 0]}).example
    {'price': np.float64(1.0), 'sold': np.int64(3)}
    """

    def __init__(self, data: Any) -> None:
        data, rows = _table(data)
        super().__init__(data, np.full(rows, 1 / rows))

    @property
    def length(self) -> int:
        return len(self.weights)

    def sampler(self) -> Any:
        return InOrder()


class Zip(Source):
    """Two sources side by side: xi_t = (losses_t, constraints_t).

    This is online convex optimisation with ergodic constraints (Kim and Lee, section 2.2) when `losses` is a series and
    `constraints` a chain. The loss function may read xi[0] only and the constraints xi[1] only: each is averaged over
    its own source.

    >>> chain = MarkovChain([[0.9, 0.1], [0.3, 0.7]])
    >>> Zip(SeriesSource(np.arange(100.0)), MarkovSource(chain, np.array([1.0, -1.0]))).length
    100
    """

    def __init__(self, losses: Source, constraints: Source) -> None:
        for name, part in [("losses", losses), ("constraints", constraints)]:
            if not isinstance(part, Source) or isinstance(part, Zip):
                raise TypeError(f"{name} must be a plain source such as SeriesSource(data), got {type(part).__name__}")
        self.losses, self.constraints = losses, constraints

    @property
    def length(self) -> int | None:
        lengths = [part.length for part in (self.losses, self.constraints) if part.length is not None]
        return min(lengths, default=None)

    def sampler(self) -> Any:
        return Side((self.losses.sampler(), self.constraints.sampler()))

    def stream(self, replay: bool = False) -> Stream:
        parts = [self.losses.stream(replay), self.constraints.stream(replay)]
        return Stream(Side(tuple(part.sampler for part in parts)), tuple(part.data for part in parts))

    def start(self, key: jax.Array) -> Any:
        return tuple(split(key))

    def _pairs(self, paths: Any) -> list[tuple[Source, Any]]:
        if not isinstance(paths, tuple) or len(paths) != 2:
            raise TypeError(
                "paths of a Zip must be a pair (losses, constraints) of index arrays; see source.paths(...)"
            )
        return [(self.losses, paths[0]), (self.constraints, paths[1])]

    def samples_in(self, paths: Any) -> int:
        losses, constraints = (part.samples_in(path) for part, path in self._pairs(paths))
        if losses != constraints:
            raise ValueError(f"paths of a Zip must be equally long, got {losses} and {constraints} states a seed")
        return losses

    def check_paths(self, paths: Any, num_seeds: int, num_samples: int) -> Any:
        return tuple(part.check_paths(path, num_seeds, num_samples) for part, path in self._pairs(paths))

    @property
    def loss_law(self) -> Law:
        law, other = self.losses.loss_law, self.constraints.example
        return Law((law.points, _repeated(other, len(law.weights))), law.weights)

    @property
    def constraint_law(self) -> Law:
        law, other = self.constraints.loss_law, self.losses.example
        return Law((_repeated(other, len(law.weights)), law.points), law.weights)

    def loss_index(self, index: Any) -> Any:
        return index[0]


def _table(data: Any) -> tuple[Any, int]:
    """Data as arrays, and the common length of all along their leading axis, after checking that they are finite."""
    data = as_arrays("data", data)
    leaves = jax.tree_util.tree_leaves_with_path(data)
    if not leaves:
        raise ValueError("data holds no arrays")
    rows = {jax.tree_util.keystr(path) or "data": np.shape(leaf)[:1] for path, leaf in leaves}
    if () in rows.values():
        scalars = [name for name, shape in rows.items() if not shape]
        raise ValueError(
            f"data: every array needs a leading axis, but {_some(scalars)} is one number; pass columns, such as "
            "{'a': [1.0, 2.0]}, not a list of dicts"
        )
    if len(set(rows.values())) > 1:
        lengths = [f"{name} has {shape[0]}" for name, shape in rows.items()]
        raise ValueError(f"data: arrays differ along their leading axis: {_some(lengths)}")
    count = next(iter(rows.values()))[0]
    if count == 0:
        raise ValueError("data has no rows")
    check.finite("data", data)
    return data, count


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def _repeated(point: Any, count: int) -> Any:
    return jax.tree.map(lambda leaf: np.broadcast_to(np.asarray(leaf), (count, *np.shape(leaf))), point)
