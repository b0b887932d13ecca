"""The rates of the theorems: sums of powers of tau_mix and T, with constants and logarithms left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from ergodrift._core import check


@dataclasses.dataclass(frozen=True)
class Rate:
    """sum over terms (a, b) of tau_mix^a T^b, up to a constant and powers of log T.

    >>> rate = theorem3()["gap"]
    >>> rate.leading, round(float(rate(T=100, tau_mix=4)), 6)
    ((0.5, -0.5), 0.24)

    Attributes:
        theorem: where it is stated.
        terms: pairs (power of tau_mix, power of T).
    """

    theorem: str
    terms: tuple[tuple[float, float], ...]

    def __call__(self, T: ArrayLike, tau_mix: ArrayLike = 1.0) -> np.ndarray:
        T, tau_mix = np.asarray(T, dtype=float), np.asarray(tau_mix, dtype=float)
        return np.asarray(sum(tau_mix**a * T**b for a, b in self.terms))

    @property
    def leading(self) -> tuple[float, float]:
        """The exponents (of tau_mix, of T) of the term that is left as T grows."""
        return max(self.terms, key=lambda term: (term[1], term[0]))

    def slope(self, T: ArrayLike, tau_mix: ArrayLike = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """d log rate / d log tau_mix and d log rate / d log T at a point: what a fit around there would show."""
        T, tau_mix = np.asarray(T, dtype=float), np.asarray(tau_mix, dtype=float)
        parts = [tau_mix**a * T**b for a, b in self.terms]
        total = sum(parts)
        return tuple(
            sum(term[which] * part for term, part in zip(self.terms, parts, strict=True)) / total for which in (0, 1)
        )  # type: ignore[return-value]

    def through(self, T: float, value: float, tau_mix: float = 1.0) -> Callable[[ArrayLike], np.ndarray]:
        """The rate as a curve in T that passes through a point, for laying over a plot."""
        factor = value / float(self(T, tau_mix))
        return lambda horizon: factor * self(horizon, tau_mix)

    def __str__(self) -> str:
        def power(base: str, exponent: float) -> str:
            return base if exponent == 1 else f"{base}^{exponent:.3g}"

        words = [" ".join(power(base, e) for base, e in zip(("τ", "T"), term, strict=True) if e) for term in self.terms]
        return " + ".join(word or "1" for word in words)


def theorem1(beta: float = 0.5) -> dict[str, Rate]:
    """EDPP, expected regret and violation (Kim and Lee, theorem 1)."""
    b = _beta(beta)
    return _named(
        "theorem 1", regret=[(1 - b, 1 - b)], violation=[(b / 2, (1 + b) / 2), (0.5, 0.5)]
    )  # fmt: skip


def theorem2(beta: float = 0.5) -> dict[str, Rate]:
    """EDPP, expected gap and infeasibility of x̄_T (Kim and Lee, theorem 2)."""
    b = _beta(beta)
    slow = (b / 2, (b - 1) / 2)
    return _named(
        "theorem 2", gap=[(1 - b, -b), slow, (1.0, -1.0)], infeasibility=[slow, (0.5, -0.5), (1.0, -1.0)]
    )  # fmt: skip


def theorem3() -> dict[str, Rate]:
    """EDPP with beta = 1/2 under Slater's condition (Kim and Lee, theorem 3)."""
    root = (0.5, -0.5)
    return _named(
        "theorem 3",
        regret=[(0.5, 0.5)],
        violation=[(0.5, 0.5), (1.5, -0.5)],
        gap=[root, (1.0, -1.0)],
        infeasibility=[root, (1.0, -1.0), (1.5, -1.5)],
    )


def theorem5(beta: float = 0.5) -> dict[str, Rate]:
    """MDPP, gap and infeasibility of x̄_T after T rounds (Kim and Lee, theorem 5)."""
    b = _beta(beta)
    return _named(
        "theorem 5",
        gap=[(1 - b, -b)],
        infeasibility=[((2 * b + 1) / 4, (b - 1) / 2), ((3 - 2 * b) / 4, -(b + 1) / 2)],
    )


def appendix_c(beta: float = 0.5) -> dict[str, Rate]:
    """ADPP on adversarial data, regret and violation, with S_T of order T (Kim and Lee, appendix C)."""
    b = _beta(beta)
    return _named("appendix C", regret=[(0.0, 1 - b)], violation=[(0.0, 0.5), (0.0, (1 + b) / 2)])


def _beta(beta: float) -> float:
    return check.number("beta", beta, above=0, at_most=0.5)


def _named(theorem: str, **terms: list[tuple[float, float]]) -> dict[str, Rate]:
    return {quantity: Rate(theorem, tuple(parts)) for quantity, parts in terms.items()}
