"""Precision, in one place: when numbers have 64 bits, and that each precision has constants of its own.

A run has the precision of its point. What is judged afterwards (references, certificates, expectations) is computed in
float64 whatever the run used, so the same functions of the user are traced with 64-bit numbers on and off.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator

import jax
import numpy as np

from ergodrift.types import PyTree


@contextlib.contextmanager
def double() -> Generator[None]:
    """Compute in float64 in this block, whatever the caller's setting.

    Arrays that the user's functions have captured in float32 meet float64 points here. That is our doing and not
    theirs, so types are promoted even where the caller has asked JAX for strictness.
    """
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


def separate_constants() -> None:
    """Let JAX convert a NumPy constant for each precision by itself.

    JAX turns a NumPy array that a traced function has captured into a constant of the precision of the moment, and
    finds that constant again by the array alone for as long as any trace holds it. A trace in the other precision is
    then given a constant of the wrong type: it cannot be compiled or, worse, has lost half its digits. No arrangement
    of ours prevents that, since any trace will do: ours, the user's own `jax.jit`, or one inside their functions.

    JAX offers no public way to change this. Where the conversion cannot be replaced, or has no such fault, it stays.
    """
    try:
        from jax._src import dtypes, literals

        array = np.zeros(1)
        with jax.enable_x64(False):
            narrow = dtypes.canonicalize_value(array)
        with jax.enable_x64(True):
            if dtypes.canonicalize_value(array) is narrow:
                dtypes.register_canonicalize_value_handler(np.ndarray, _Constants(literals.TypedNdArray))
    except (ImportError, AttributeError):
        return


class _Constants:
    """NumPy arrays as constants of a trace: the same object for the same array and type, while anyone has it."""

    def __init__(self, typed: Callable[[np.ndarray], PyTree]) -> None:
        self.typed = typed
        self.known: dict[tuple[int, np.dtype], tuple[Callable[[], PyTree], Callable[[], PyTree]]] = {}

    def __call__(self, array: np.ndarray) -> PyTree:
        kind = jax.dtypes.canonicalize_dtype(array.dtype)
        key = id(array), kind
        mine, constant = (one() for one in self.known.get(key, (_nothing, _nothing)))
        value = np.asarray(array, kind)
        if mine is not array or constant is None or not np.array_equal(np.asarray(constant), value, equal_nan=True):
            constant = self.typed(value if value is not array else value.copy())  # an array may be changed in place

            def forget(_: object) -> None:
                self.known.pop(key, None)

            self.known[key] = weakref.ref(array, forget), weakref.ref(constant, forget)
        return constant


def _nothing() -> None:
    return None


separate_constants()  # whoever computes in two precisions imports this module
