"""The named algorithms: each is an update rule, a schedule and an estimator."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ergodrift._core import check, tree
from ergodrift.geometry import Geometry
from ergodrift.methods.average import AverageKind
from ergodrift.methods.estimator import Estimator, MultiLevel, SingleSample
from ergodrift.methods.learned import Learned
from ergodrift.methods.memory import Aging, Memory
from ergodrift.methods.method import DriftPlusPenalty, Method, PrimalDual
from ergodrift.methods.scalefree import Distances, ScaledDrift, Scales
from ergodrift.methods.schedule import AdaGrad, Constant, Damped, Decaying, Ergodic, Schedule
from ergodrift.methods.windows import GrowingWindow, Widening
from ergodrift.problem import CompactForm, Problem
from ergodrift.types import Array, Scalar


@dataclasses.dataclass(frozen=True, eq=False)
class Algorithm:
    """A named recipe; `bind` makes it a method for a problem. The functions below make those of the paper, and yours
    is `Algorithm("mine", DriftPlusPenalty, MySchedule(), MyEstimator())`.

    Attributes:
        name: how reports call it.
        rule: DriftPlusPenalty, PrimalDual, or a `Method` of your own.
        schedule: how its weights are set.
        estimator: how samples become rounds.
        average: how the points are weighed in the x̄ it recommends; see `run`.
        reason: why it was chosen, where `auto` chose it.
    """

    name: str
    rule: Callable[[Geometry, Schedule, Estimator], Method]
    schedule: Schedule
    estimator: Estimator = dataclasses.field(default_factory=SingleSample)
    average: AverageKind = "uniform"
    reason: str = ""

    def __post_init__(self) -> None:
        for name, value, kind in [("schedule", self.schedule, Schedule), ("estimator", self.estimator, Estimator)]:
            if not isinstance(value, kind):
                raise TypeError(f"{name} must be an instance of a subclass of {kind.__name__}, got {value!r}")
        if not callable(self.rule):
            raise TypeError(f"rule must be a Method class such as DriftPlusPenalty, not an instance: got {self.rule!r}")

    def bind(self, problem: Problem) -> Method:
        """The method on this problem's domain, with `init` and `step`.

        >>> import jax.numpy as jnp, ergodrift as ed
        >>> problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 0.5, ed.Ball(2.0))
        >>> method = ed.dpp().bind(problem)
        >>> state = method.init(jnp.zeros(2), num_constraints=1)
        >>> for xi in jnp.ones((3, 2)):
        ...     state, info = method.step(state, problem.feedback(state.x, xi))
        >>> int(state.t), state.queue.shape
        (3, (1,))
        """
        return self.rule(problem.geometry, self.schedule, self.estimator)


def edpp(tau_mix: Scalar | Literal["auto"], beta: Scalar = 0.5, horizon: Scalar | None = None) -> Algorithm:
    """Ergodic drift-plus-penalty, for a known mixing time (Kim and Lee, algorithm 1), or one estimated as it runs.

    V_t = (tau_mix t)^beta, alpha_t = tau_mix t (EDPP-t); with a horizon T, both are fixed at t = T (EDPP-T).

    Args:
        tau_mix: the mixing time, at least 1; an estimate need not be a whole number. "auto" estimates it round by round
            (`Learned`); `result.weights.tau_mix` has the estimates.
        beta: trades regret against violation, in (0, 1/2].
        horizon: T, the number of samples.
    """
    beta = check.number("beta", beta, above=0, at_most=0.5)
    if isinstance(tau_mix, str) and tau_mix == "auto":
        if horizon is not None:
            raise ValueError(f"horizon={horizon} fixes the weights beforehand, but tau_mix='auto' sets them as it runs")
        return Algorithm("EDPP-auto", DriftPlusPenalty, Learned(beta))
    if isinstance(tau_mix, str):
        raise TypeError(f"tau_mix must be a number, got {tau_mix!r}; 'auto' estimates it as the run goes")
    tau: Scalar = check.number("tau_mix", tau_mix, at_least=1)
    if horizon is None:
        return Algorithm("EDPP-t", DriftPlusPenalty, Ergodic(tau, beta))
    proximity = tau * check.number("horizon", horizon, at_least=1)
    return Algorithm("EDPP-T", DriftPlusPenalty, Constant(proximity**beta, proximity))


def dpp(horizon: Scalar | None = None) -> Algorithm:
    """Drift-plus-penalty for i.i.d. data (Yu, Neely and Wei 2017): EDPP with tau_mix = 1 and beta = 1/2.

    DPP-t has V_t = sqrt t, alpha_t = t; DPP-T, with a horizon T, has V = sqrt T, alpha = T.
    """
    kind = "DPP-t" if horizon is None else "DPP-T"
    return dataclasses.replace(edpp(1.0, horizon=horizon), name=kind)


def mdpp(
    delta: Scalar | None = None,
    beta: Scalar = 0.5,
    cap: int | None = 4,
    diameter: Scalar | None = None,
    add_delta: bool = True,
) -> Algorithm:
    """MLMC adaptive drift-plus-penalty, for an unknown mixing time (Kim and Lee, algorithm 2).

    V_t = S_{t-1}^beta / R, alpha_t = S_{t-1} / R^2, with S_0 = delta and the sizes of the MLMC estimates.

    Args:
        delta: S_0 > 0; larger favours the constraints. It has the units of a_t, so that no number suits all problems:
            unless given, it is the a_t of the first round, which theorem 5 allows as it allows any.
        beta: trades regret against violation, in (0, 1/2].
        cap: the most samples that a round may use; None is the theory's T^2 for T rounds, which varies a lot. The
            paper's experiment has 16, which is better where samples are dependent over hundreds, and worse elsewhere.
        diameter: R; the geometry's unless given.
        add_delta: whether every a_t includes delta, as the proofs need; the paper's experiment runs without.
    """
    start = 1.0 if delta is None else check.number("delta", delta, above=0)
    beta = check.number("beta", beta, above=0, at_most=0.5)
    offset = start if add_delta else 0.0
    schedule = AdaGrad(start, offset, beta, _positive("diameter", diameter), lagged=True, relative=delta is None)
    return Algorithm("MDPP", DriftPlusPenalty, schedule, MultiLevel.with_cap(cap))


def adpp(beta: Scalar = 0.5, diameter: Scalar | None = None) -> Algorithm:
    """Adaptive drift-plus-penalty for adversarial losses and constraints (Kim and Lee, appendix C).

    V_t = S_t^beta / R, alpha_t = S_t / R^2: parameter-free, no mixing time and no horizon.

    Args:
        beta: trades regret against violation, in (0, 1/2].
        diameter: R; the geometry's unless given.
    """
    beta = check.number("beta", beta, above=0, at_most=0.5)
    schedule = AdaGrad(0.0, 0.0, beta, _positive("diameter", diameter), lagged=False)
    return Algorithm("ADPP", DriftPlusPenalty, schedule)


def rdpp(
    law: ArrayLike | Literal["stationary", "visits"] = "stationary",
    num_states: int | None = None,
    compact: CompactForm | None = None,
) -> Algorithm:
    """Remembering drift-plus-penalty: for finitely many states that are told apart (agents, regimes, rows).

    The feedback of a round is the law's average of the last feedback of every state, and V_t = sqrt t,
    alpha_t = sqrt(t (t + (3 age_t / 2)^2)) with its age; no mixing time and no horizon. Recommends the average of its
    points with weights t^3. Not in the paper; see docs/laboratory/memory.md. (Related: MC-SAG, Even 2023, without
    constraints.)

    Args:
        law: how states weigh: "stationary", as the source's chain says; "visits", by their shares of the samples so
            far; or an array with one weight for each state, such as the uniform law while the walk has another.
        num_states: needed with "visits" where there is no source, for `method.step`. Each feedback there must say which
            state it came from: `feedback._replace(state=3)`.
        compact: for `method.step`: the form that `problem.compact(xi)` offers for its feedback, to remember that in the
            place of gradients; feedback then comes from `compact.feedback(problem, x, xi)`. `run` does so by itself.

    >>> rdpp([0.5, 0.25, 0.25]).name
    'RDPP'
    """
    count = None if num_states is None else check.integer("num_states", num_states, at_least=1)
    if isinstance(law, str):
        check.choice("law", law, ("stationary", "visits"))
        if count is not None and law == "stationary":
            raise ValueError(
                "num_states goes with law='visits'; to know the law as well, pass it: law=chain.stationary"
            )
        estimator = Memory(None, count, law == "visits", compact)
    else:
        traced = isinstance(law, jax.Array) and tree.is_traced(law)
        weights: Array = jnp.asarray(law) if traced else np.asarray(law, dtype=float)
        if weights.ndim != 1 or not weights.size or (count is not None and count != weights.size):
            wanted = "(S,)" if count is None else f"({count},)"
            raise ValueError(f"law must have shape {wanted}, one weight for each state, got {weights.shape}")
        if not traced and (not np.isfinite(weights).all() or weights.min() < 0 or weights.sum() == 0):
            raise ValueError(f"law must be finite, not negative, and not all zero, got {weights}")
        estimator = Memory(weights / weights.sum(), weights.size, compact=compact)
    return Algorithm("RDPP", DriftPlusPenalty, Aging(), estimator, average=("polynomial", 3))


def wdpp() -> Algorithm:
    """Windowed drift-plus-penalty: parameter-free, for streams whose states cannot be told apart.

    The constraints of a round are averaged over a window that grows with t, and V_t = t^(3/4), alpha_t = t^(3/2);
    neither a mixing time nor a horizon nor a bound is asked for. Not in the paper; docs/laboratory/memory.md has what
    was measured and what was tried.
    """
    return Algorithm("WDPP", DriftPlusPenalty, Widening(), GrowingWindow())


def sdpp(scales: Scales | None = None, distance: Scalar | None = None) -> Algorithm:
    """Scale-free drift-plus-penalty: no mixing time, horizon, bound, diameter or step is asked for.

    Steps are distances over energies (after Ivgi, Hinder and Carmon 2023), and each multiplier has a rate of its own,
    all from what the run itself has seen (`Distances`). The same run comes out whatever the units of the loss, of each
    constraint and of x. Recommends the average of its points with weights t. Not in the paper; see
    docs/laboratory/scalefree.md.

    Args:
        scales: what is known beforehand, as `auto` measures it: with it, samples that depend on each other do not
            carry the point along.
        distance: a first guess of how far the solution is from x0; a hundredth of the domain's diameter unless given.

    >>> sdpp().name
    'SDPP'
    """
    return Algorithm(
        "SDPP",
        ScaledDrift,
        Distances(scales=scales, first=_positive("distance", distance)),
        average=("polynomial", 1),
    )


def srdpp(law: ArrayLike | Literal["stationary", "visits"] = "stationary") -> Algorithm:
    """Scale-free RDPP: remembers every state as `rdpp` does, and takes its steps as `sdpp` does.

    What is remembered has no noise but its age, so that energies forget nothing and the steps are shorter. Recommends
    the average of its points with weights t^3. Not in the paper; see docs/laboratory/scalefree.md.

    Args:
        law: how states weigh, as for `rdpp`.

    >>> srdpp("visits").name
    'SRDPP'
    """
    schedule = Distances(memory=0.0, mean_memory=3.0, stride=0.3)
    return dataclasses.replace(rdpp(law), name="SRDPP", rule=ScaledDrift, schedule=schedule)


def pd(horizon: Scalar, gradient_bound: Scalar, constraint_bound: Scalar, radius: Scalar | None = None) -> Algorithm:
    """The primal-dual baseline PD (Mahdavi, Jin and Yang 2012).

    Args:
        horizon: T, the number of samples.
        gradient_bound: G, a bound on the norms of all gradients.
        constraint_bound: D, a bound on all |g_i|.
        radius: r, of a ball around 0 that holds X; the geometry's unless given.
    """
    schedule = Damped(
        check.number("horizon", horizon, at_least=1),
        check.number("gradient_bound", gradient_bound, above=0),
        check.number("constraint_bound", constraint_bound, above=0),
        _positive("radius", radius),
    )
    return Algorithm("PD", PrimalDual, schedule)


def pd2(
    gradient_bound: Scalar, beta: Scalar = 0.5, radius: Scalar | None = None, aggregate: str = "vector"
) -> Algorithm:
    """The primal-dual baseline PD2 with decaying steps (Jenatton, Huang and Archambeau 2016).

    Args:
        gradient_bound: G, a bound on the norms of all gradients.
        beta: in (0, 1).
        radius: r, of a ball around 0 that holds X; the geometry's unless given.
        aggregate: "vector" for one multiplier per constraint, "max" for one on max_i g_i.
    """
    schedule = Decaying(
        check.number("gradient_bound", gradient_bound, above=0),
        check.number("beta", beta, above=0, below=1),
        _positive("radius", radius),
    )
    check.choice("aggregate", aggregate, ("vector", "max"))
    return Algorithm("PD2", functools.partial(PrimalDual, aggregate=aggregate), schedule)


def _positive(name: str, value: Scalar | None) -> Scalar | None:
    return None if value is None else check.number(name, value, above=0)
