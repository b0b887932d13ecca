"""A simulator as a source: one JAX function that makes the next state and the next sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check, tree
from ergodrift._core.arrays import as_arrays
from ergodrift.data.sampler import split
from ergodrift.data.source import Source, seed_keys
from ergodrift.types import Array, Key, PyTree

Step: TypeAlias = Callable[[Key, PyTree], tuple[PyTree, PyTree]]


class SimulatorSource(Source):
    """Samples that a simulator makes one after the other, compiled into the loop: an autoregressive process, a queue,
    an environment under a fixed policy.

    state_{t+1}, xi_{t+1} = step(key_{t+1}, state_t), with a key of its own for each sample of each seed: a path is a
    function of its seed, however a run is cut. Seeds run side by side, on a GPU too. Floating-point draws differ with
    the precision of JAX; whole numbers of a type that is named, `jax.random.randint(key, (), 0, 6, dtype=jnp.int32)`,
    do not.

    Expectations (`metrics`, `solve_reference`, `feasibility`) are those of one long simulated path; they have a
    standard error, which the metrics and the note of a reference tell.

    Args:
        step: `step(key, state) -> (state, xi)` in JAX. States keep structure, shapes and types; xi is any pytree of
            arrays.
        start: the state before the first sample, any pytree of numbers and arrays, or a function of a key.
        burn_in: steps that every path takes before its first sample, so that it begins near the stationary law.
        law_samples: how many samples stand for the stationary law, after as many that are left out besides.
        tau_mix: the mixing time, where it is known: opens certificates for every n and the theorems.
        starts_stationary: whether `start` draws from the stationary law.

    >>> def step(key, level):
    ...     level = 0.9 * level + jax.random.normal(key)
    ...     return level, {"demand": level}
    >>> source = SimulatorSource(step, start=0.0)
    >>> source.paths(seeds=2, num_samples=5)["demand"].shape
    (2, 5)
    """

    def __init__(
        self,
        step: Step,
        start: PyTree | Callable[[Key], PyTree],
        *,
        burn_in: int = 0,
        law_samples: int = Source.law_samples,
        tau_mix: float | None = None,
        starts_stationary: bool = False,
    ) -> None:
        if not callable(step):
            raise TypeError(f"step must be a function step(key, state) -> (state, xi), got {step!r}")
        self.step = step
        self.start = start if callable(start) else jax.tree.map(_strong, _arrays(start))
        self.burn_in = check.integer("burn_in", burn_in, at_least=0)
        self.law_samples = check.integer("law_samples", law_samples, at_least=64, at_most=2**29)
        self.tau_mix = None if tau_mix is None else check.number("tau_mix", tau_mix, above=0)
        self._stationary = bool(starts_stationary)
        _check_step(self.step, self._first_state)

    def init(self, key: Key) -> PyTree:
        if not self.burn_in:
            return self._first_state(key)
        first, later = split(key)

        def one(number: jax.Array, state: PyTree) -> PyTree:
            return jax.tree.map(_like, self.step(jax.random.fold_in(later, number), state)[0], state)

        return jax.lax.fori_loop(0, self.burn_in, one, self._first_state(first))

    def sample(self, key: Key, state: PyTree) -> tuple[PyTree, PyTree]:
        return self.step(key, state)

    def _first_state(self, key: Key) -> PyTree:
        if callable(self.start):
            return jax.tree.map(_strong, self.start(key))
        check.fits("start", self.start)
        return jax.tree.map(jnp.asarray, self.start)

    def mixing_time(self, eps: float = 0.25) -> int | None:
        """tau_mix(eps) <= tau_mix ceil(log2(1 / eps)) for eps < 1/4 (Levin and Peres 2017, section 4.5)."""
        if self.tau_mix is None:
            return None
        return math.ceil(self.tau_mix * (1 if eps >= 0.25 else math.ceil(math.log2(1 / eps))))

    @property
    def starts_stationary(self) -> bool:
        return self._stationary

    def paths(self, seeds: int | Sequence[int] | Array, num_samples: int) -> PyTree:
        """The samples that `run` draws for these seeds, (seeds, num_samples, ...); refused where one is not finite."""
        found = super().paths(seeds, num_samples)
        if not tree.is_traced(found):
            _refuse_nan(found, seeds)
        return found

    def __repr__(self) -> str:
        return f"SimulatorSource({getattr(self.step, '__qualname__', self.step)})"


def _is_key(leaf: PyTree) -> bool:
    """Whether this is a key of `jax.random`, which environments like to keep in their state."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _arrays(start: PyTree) -> PyTree:
    if start is None or not jax.tree.leaves(start):
        return start  # a simulator without memory has no state
    if any(map(_is_key, jax.tree.leaves(start))):
        return start
    return as_arrays("start", start)


def _strong(leaf: PyTree) -> PyTree:
    """A number as an array whose type does not give way to others: a state has the same type in every round."""
    if isinstance(leaf, jax.Array):
        return leaf if _is_key(leaf) else jax.lax.convert_element_type(leaf, leaf.dtype)
    return np.asarray(leaf)


def _like(new: jax.Array, old: jax.Array) -> jax.Array:
    return new if _is_key(old) else jnp.asarray(new, old.dtype)


def _check_step(step: Step, first: Callable[[Key], PyTree]) -> None:
    """Take one step in shapes alone; say by name what does not fit."""
    key = seed_keys([0])[0]
    try:
        before = jax.eval_shape(first, key)
    except Exception as error:
        raise ValueError(f"start(key) fails: {error}") from error
    for path, leaf in jax.tree_util.tree_leaves_with_path(before):
        if not hasattr(leaf, "dtype"):
            raise TypeError(f"start(key){jax.tree_util.keystr(path)} must be an array of numbers, got {leaf!r}")
    shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", before)
    try:
        found = jax.eval_shape(step, key, before)
    except Exception as error:
        raise ValueError(f"step(key, state) fails for a state of {shapes}: {error}") from error
    if not isinstance(found, tuple) or len(found) != 2:
        raise TypeError(f"step(key, state) must return a pair (state, xi), got {type(found).__name__}")
    after, xi = found
    if not jax.tree.leaves(xi):
        raise ValueError(
            "step(key, state) returns an empty sample xi; return the numbers that loss and constraints read"
        )
    if jax.tree.structure(after) != jax.tree.structure(before):
        raise ValueError(
            f"step(key, state) changes the structure of the state from {jax.tree.structure(before)} to "
            f"{jax.tree.structure(after)}; return a state like `start`"
        )
    for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True):
        name = f"state{jax.tree_util.keystr(path)}"
        if new.shape != old.shape:
            raise ValueError(
                f"step(key, state) changes the shape of {name} from {old.shape} to {new.shape}; return what `start` has"
            )
        if not _is_same_kind(old.dtype, new.dtype):
            like = "0.0" if jnp.issubdtype(new.dtype, jnp.floating) else f"jnp.zeros({new.shape}, jnp.{new.dtype})"
            raise TypeError(
                f"step(key, state) changes the type of {name} from {old.dtype} to {new.dtype}; let `start` hold the "
                f"type that step returns, such as {like}"
            )


def _is_same_kind(old: np.dtype, new: np.dtype) -> bool:
    """Floats of another precision are brought back to that of the state; whole numbers are not cut, nor made floats."""
    floats = [jnp.issubdtype(kind, jnp.floating) for kind in (old, new)]
    return all(floats) or (old == new) or (jnp.issubdtype(old, jnp.integer) and jnp.issubdtype(new, jnp.integer))


def _refuse_nan(paths: PyTree, seeds: int | Sequence[int] | Array) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(paths):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact) or bool(jnp.isfinite(leaf).all()):
            continue
        row, sample, *rest = (int(i) for i in np.argwhere(~np.isfinite(np.asarray(leaf)))[0])
        seed = row if np.ndim(seeds) == 0 else int(np.asarray(seeds)[row])
        value = np.asarray(leaf)[(row, sample, *rest)]
        raise ValueError(
            f"the simulator gives xi{jax.tree_util.keystr(path)} = {value} in sample {sample + 1} of seed {seed}; "
            "look at step(key, state) for divisions, logarithms and states that grow without bound"
        )
