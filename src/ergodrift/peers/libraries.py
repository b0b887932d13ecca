"""The libraries themselves, step by step in PyTorch; their compiled twins stand for them where these give the same.

A twin runs all samples, seeds and settings, a thousand times as fast. The library then runs the first samples of seed 0
with the setting that was chosen; where it does not do the same, the row says so and has no number.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from ergodrift.peers import rules
from ergodrift.peers.baselines import Grid, adam_decades, adam_line, tuned, untuned
from ergodrift.peers.descent import follow
from ergodrift.peers.rival import Found, Rival, Trial
from ergodrift.peers.rules import Rule, Steps
from ergodrift.types import PyTree

FIRST = 300  # samples that a library itself is run on
SAME = 1e-5  # how far its twin may be from it, in units of the way it went
COOPER, HUMANE = "cooper-optim", "humancompatible-train"


class Start(NamedTuple):
    """What a library is given: its variable, the number of constraints, the two steps, and loss and constraints of a
    sample as PyTorch functions."""

    x: Any
    constraints: int
    steps: Steps
    samples: int
    ask: Callable[[Any], tuple[Any, Any]]


Stepper = Callable[[Any], None]  # one step on a sample


def _torch() -> Any:
    """PyTorch, which need not be there: no types are known of it."""
    return importlib.import_module("torch")


def by_library(
    trial: Trial, prepare: Callable[[Start], Stepper], steps: Steps, samples: int
) -> tuple[np.ndarray, float]:
    """The point a library reaches on the first samples of seed 0, and the seconds of one step.

    Values and gradients come from one compiled call, the same functions for everybody, and reach PyTorch through an
    `autograd.Function`; after each step x is projected onto the domain, which no library does.
    """
    torch = _torch()

    task, judge = trial.task, trial.judge
    feedback = jax.jit(lambda x, xi: _flat_feedback(task.problem, judge.unravel(x), xi))
    project = jax.jit(lambda x: ravel_pytree(task.problem.geometry.project(judge.unravel(x)))[0])

    class Ask(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, xi: PyTree) -> Any:
            loss, grad, constraints, jac = (
                torch.from_numpy(np.array(part)) for part in feedback(x.detach().numpy(), xi)
            )
            ctx.save_for_backward(grad, jac)
            return loss, constraints

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            grad, jac = ctx.saved_tensors
            return grads[0] * grad + grads[1] @ jac, None

    x = torch.nn.Parameter(torch.from_numpy(np.array(judge.x0)))
    points, rows = task.visits(0)
    first = [jax.tree.map(lambda leaf, row=row: np.asarray(leaf[row]), points) for row in rows[:samples]]
    count = len(judge.optimum.multipliers)
    step = prepare(Start(x, count, steps, task.num_samples, lambda xi: Ask.apply(x, xi)))
    began = time.monotonic()
    for t, xi in enumerate(first):
        if t == 1:
            began = time.monotonic()  # the first step compiles
        step(xi)
        with torch.no_grad():
            x.copy_(torch.from_numpy(np.array(project(x.detach().numpy()))))
    return x.detach().numpy(), (time.monotonic() - began) / max(samples - 1, 1)


def _flat_feedback(problem: Any, x: PyTree, xi: PyTree) -> tuple[jax.Array, ...]:
    found = problem.feedback(x, xi)
    jac = jax.vmap(lambda row: ravel_pytree(row)[0])(found.constraint_jac)
    return found.loss, ravel_pytree(found.loss_grad)[0], found.constraints, jac


def cooper(start: Start) -> Stepper:
    """Cooper as its documentation sets it up: Adam on x, SGD on the multipliers, both at once."""
    import cooper as library  # type: ignore[import-not-found]

    torch = _torch()

    class Constrained(library.ConstrainedMinimizationProblem):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            multiplier = library.multipliers.DenseMultiplier(num_constraints=start.constraints, dtype=start.x.dtype)
            self.limits = library.Constraint(constraint_type=library.ConstraintType.INEQUALITY, multiplier=multiplier)

        def compute_cmp_state(self, xi: PyTree) -> Any:
            loss, constraints = start.ask(xi)
            return library.CMPState(
                loss=loss, observed_constraints={self.limits: library.ConstraintState(violation=constraints)}
            )

    problem = Constrained()
    both = library.optim.SimultaneousOptimizer(
        cmp=problem,
        primal_optimizers=torch.optim.Adam([start.x], lr=float(start.steps.primal)),
        dual_optimizers=torch.optim.SGD(problem.dual_parameters(), lr=float(start.steps.dual), maximize=True),
    )
    return lambda xi: both.roll(compute_cmp_state_kwargs={"xi": xi})


def humane(kind: str) -> Callable[[Start], Stepper]:
    """A dual optimizer of humancompatible-train beside Adam, in the loop its documentation has."""

    def prepare(start: Start) -> Stepper:
        torch = _torch()
        from humancompatible.train import dual_optim  # type: ignore[import-not-found]

        adam = primal = torch.optim.Adam([start.x], lr=float(start.steps.primal))
        n, exact = start.constraints, start.x.dtype
        if kind == "SSL-ALM":
            primal = dual_optim.MoreauEnvelope(adam)
            zeros = torch.zeros(n, dtype=exact)
            dual = dual_optim.ALM(m=n, lr=float(start.steps.dual), init_duals=zeros, is_ineq=True)
        elif kind == "SSG":
            dual = dual_optim.SSG(m=n)
        else:
            dual = dual_optim.PBM(
                m=n, epoch_length=start.samples, init_duals=torch.full((n,), rules.LEAST, dtype=exact),
                init_penalties=torch.ones(n, dtype=exact),
            )  # fmt: skip

        def step(xi: PyTree) -> None:
            loss, constraints = start.ask(xi)
            dual.forward_update(loss, constraints).backward()
            primal.step()
            adam.zero_grad()

        return step

    return prepare


def stood_for(
    rule: Rule, prepare: Callable[[Start], Stepper], package: str, run: Callable[[Trial], Found]
) -> Callable[[Trial], Found]:
    """Let a twin run, and see that the library does the same with the setting that was chosen."""

    def checked(trial: Trial) -> Found:
        found, task, count = run(trial), trial.task, min(FIRST, trial.task.num_samples)
        setting = found.setting or {}
        steps = Steps(*(setting[name] for name in Steps._fields))
        theirs, seconds = by_library(trial, prepare, steps, count)
        first = jax.tree.map(lambda leaf: np.asarray(leaf)[:1, :count], trial.paths)
        twin = follow(rule, task.problem, task.source, task.x0, first, [steps], np.array([count]))[0, 0, -1, 0]
        off = float(np.abs(twin - theirs).max() / max(np.abs(theirs - trial.judge.x0).max(), np.finfo(float).tiny))
        version = f"{package} {importlib.metadata.version(package)}"
        if not off <= SAME:
            raise ArithmeticError(f"the compiled twin leaves {version} by {off:.1e} of its way in {count} samples")
        note = f"compiled twin, within {off:.0e} of {version} over {count} samples; seconds are the library's own"
        return found._replace(seconds=seconds * task.num_samples, note="; ".join(filter(None, [found.note, note])))

    return checked


def _rivals(
    name: str,
    rule: Rule,
    prepare: Callable[[Start], Stepper],
    package: str,
    settings: int,
    grid: Grid | None,
    about: str,
) -> list[Rival]:
    needs = ("torch", "cooper" if package == COOPER else "humancompatible")
    run = stood_for(rule, prepare, package, untuned(rule))
    plain = Rival(f"{name}, default", "library", False, settings, about, run, needs, ("peers/libraries",))
    if grid is None:
        return [plain]
    best = stood_for(rule, prepare, package, tuned(rule, grid))
    return [plain, dataclasses.replace(plain, name=f"{name}, tuned", tuned=True, run=best)]


LIBRARIES = (
    *_rivals(
        "Cooper", rules.ADAM_ASCENT, cooper, COOPER, 2, None,
        "Cooper as in its documentation: Adam at 1e-3, multipliers by SGD at 1e-2, simultaneous; the last point. "
        "Tuned, it is “Adam + dual ascent, tuned”.",
    ),
    *_rivals(
        "SSL-ALM", rules.SSL_ALM, humane("SSL-ALM"), HUMANE, 5, adam_decades,
        "humancompatible-train: ALM with MoreauEnvelope beside Adam, inequality constraints, all else as it comes.",
    ),
    *_rivals(
        "SSG", rules.SSG, humane("SSG"), HUMANE, 2, adam_line,
        "humancompatible-train: the switching subgradient beside Adam.",
    ),
    *_rivals(
        "SPBM", rules.SPBM, humane("SPBM"), HUMANE, 6, adam_line,
        "humancompatible-train: the stochastic penalty-barrier method beside Adam.",
    ),
)  # fmt: skip
