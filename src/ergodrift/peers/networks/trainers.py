"""Who trains: each takes the same network, batches and Adam, whose rate falls to 0 along a cosine."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from ergodrift.peers.networks.task import Task

Setting: TypeAlias = dict[str, float]
Batches: TypeAlias = Iterable[tuple[Any, ...]]
Train: TypeAlias = Callable[[Task, Any, Batches, Setting], list[Any]]  # returns the multipliers of every round


@dataclasses.dataclass(frozen=True)
class Trainer:
    """A competitor.

    Attributes:
        name: in tables and figures.
        settings: those that are tried, of which hindsight chooses; one that is empty is what it comes with.
        train: with one of them.
        needs: packages without which it is missing.
        about: one line for the page.
    """

    name: str
    settings: tuple[Setting, ...]
    train: Train
    needs: tuple[str, ...]
    about: str


def _adam(task: Task, model: Any) -> Any:
    import torch  # type: ignore[import-not-found]

    return torch.optim.Adam(model.parameters(), lr=task.rate)


def _falling(rounds: int, opt: Any) -> Any:
    """So that the last weights are worth looking at."""
    import torch  # type: ignore[import-not-found]

    return torch.optim.lr_scheduler.CosineAnnealingLR(opt, rounds)


def ours(task: Task, model: Any, batches: Batches, setting: Setting) -> list[Any]:
    """The wrapper of `ergodrift.torch`, as it comes."""
    return _ours(task, model, batches, task.rounds)


def ours_in_budget(task: Task, model: Any, batches: Batches, setting: Setting) -> list[Any]:
    """The same in so few rounds that all its gradients are as many as those of the others, one in each round."""
    return _ours(task, model, batches, affordable(task.rounds, task.count))


def affordable(budget: int, count: int, every: int = 10) -> int:
    """Rounds that take no more gradients than that: one each, all sizes in the first, two in each `every`-th."""
    return max((r for r in range(1, budget + 1) if r + 1 + count + 2 * ((r - 1) // every) <= budget), default=1)


def _ours(task: Task, model: Any, batches: Batches, rounds: int) -> list[Any]:
    from ergodrift.torch import DriftPlusPenalty

    opt = DriftPlusPenalty(_adam(task, model), task.count)
    rate, seen = _falling(rounds, opt), list[Any]()
    for batch in itertools.islice(batches, rounds):
        loss, constraints, proxy = task.ask(model, *batch)
        opt.zero_grad()
        opt.backward(loss, constraints, proxy=None if proxy is constraints else proxy)
        opt.step()
        rate.step()
        seen.append(opt.multipliers)
    return seen


def cooper(rule: str) -> Train:
    """Cooper's Lagrangian, or its augmented one, simultaneous; multipliers by SGD or nuPI."""

    def train(task: Task, model: Any, batches: Batches, setting: Setting) -> list[Any]:
        import cooper as library  # type: ignore[import-not-found]
        import torch  # type: ignore[import-not-found]

        setting = dict(setting)
        formulation, more = library.formulations.Lagrangian, dict[str, Any]()
        if rule == "augmented":
            weights = torch.full((task.count,), setting.pop("coefficient"))
            formulation = library.formulations.AugmentedLagrangian
            more["penalty_coefficient"] = library.penalty_coefficients.DensePenaltyCoefficient(init=weights)

        class Constrained(library.ConstrainedMinimizationProblem):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.multiplier = library.multipliers.DenseMultiplier(num_constraints=task.count)
                self.limits = library.Constraint(
                    constraint_type=library.ConstraintType.INEQUALITY,
                    formulation_type=formulation,
                    multiplier=self.multiplier,
                    **more,
                )

            def compute_cmp_state(self, batch: tuple[Any, ...]) -> Any:
                loss, constraints, proxy = task.ask(model, *batch)
                state = library.ConstraintState(violation=proxy, strict_violation=constraints)
                return library.CMPState(loss=loss, observed_constraints={self.limits: state})

        problem, opt, seen = Constrained(), _adam(task, model), list[Any]()
        dual = library.optim.nuPI if rule == "nuPI" else torch.optim.SGD
        rate = _falling(task.rounds, opt)
        both = library.optim.SimultaneousOptimizer(
            cmp=problem,
            primal_optimizers=opt,
            dual_optimizers=dual(problem.dual_parameters(), maximize=True, **{"lr": 1e-2, **setting}),
        )
        for batch in batches:
            both.roll(compute_cmp_state_kwargs={"batch": batch})
            rate.step()
            seen.append(problem.multiplier.weight.detach().clone())
        return seen

    return train


def humane(kind: str) -> Train:
    """A dual optimiser of humancompatible-train beside Adam: gradients of the proxy, multipliers by the true values,
    or where `soft` is set, by the proxy too."""

    def train(task: Task, model: Any, batches: Batches, setting: Setting) -> list[Any]:
        import torch  # type: ignore[import-not-found]
        from humancompatible.train import dual_optim  # type: ignore[import-not-found]

        setting = dict(setting)
        opt, seen, zeros, soft = _adam(task, model), list[Any](), torch.zeros(task.count), setting.pop("soft", 0.0)
        rate, primal = _falling(task.rounds, opt), opt
        if kind == "SSL-ALM":
            primal = dual_optim.MoreauEnvelope(opt)
            dual = dual_optim.ALM(m=task.count, init_duals=zeros, is_ineq=True, **setting)
        else:
            dual = dual_optim.PBM(
                m=task.count, epoch_length=task.rounds // task.epochs, init_duals=zeros + 1e-3,
                init_penalties=zeros + 1, **setting,
            )  # fmt: skip
        for batch in batches:
            loss, constraints, proxy = task.ask(model, *batch)
            shown = (proxy if soft else constraints).detach()
            opt.zero_grad()
            # What its `forward_update` does in one call, which has no place for a proxy: SSL-ALM descends with the
            # multipliers after their step, SPBM with those before.
            if kind == "SSL-ALM":
                dual.update(shown)
            dual.forward(loss, proxy).backward()
            if kind != "SSL-ALM":
                dual.update(shown)
            primal.step()
            rate.step()
            seen.append(dual.duals.detach().flatten().clone())
        return seen

    return train


def penalised(task: Task, model: Any, batches: Batches, setting: Setting) -> list[Any]:
    """The loss, and a fixed weight on what is violated; no weight is no constraints."""
    opt = _adam(task, model)
    rate = _falling(task.rounds, opt)
    for batch in batches:
        loss, _, proxy = task.ask(model, *batch)
        opt.zero_grad()
        (loss + setting.get("weight", 0.0) * proxy.clamp(min=0).sum()).backward()
        opt.step()
        rate.step()
    return []


def _grid(**axes: tuple[float, ...]) -> tuple[Setting, ...]:
    return tuple(dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values()))


OURS, FEWER = "ours", "ours, as many gradients"
DEFAULT: tuple[Setting, ...] = ({},)
COOPER, HUMANE = ("torch", "cooper"), ("torch", "humancompatible")
TRAINERS = (
    Trainer(OURS, DEFAULT, ours, ("torch",), "`ergodrift.torch.DriftPlusPenalty`, nothing chosen"),
    Trainer(FEWER, DEFAULT, ours_in_budget, ("torch",),
            "the same, in so few rounds that the gradients it measures sizes with are paid for"),
    Trainer("Cooper, default", DEFAULT, cooper("SGD"), COOPER, "multipliers by SGD at 1e-2, as in its documentation"),
    Trainer("Cooper, tuned", _grid(lr=(1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)), cooper("SGD"), COOPER, "its dual step"),
    Trainer("nuPI, default", DEFAULT, cooper("nuPI"), COOPER, "Cooper's nuPI at 1e-2, all else as it comes"),
    Trainer("nuPI, tuned", _grid(lr=(1e-3, 1e-2, 0.1, 1.0), Kp=(1.0, 10.0, 100.0)), cooper("nuPI"), COOPER,
            "its dual step and Kp"),
    Trainer("Cooper, augmented, tuned", _grid(lr=(1e-3, 1e-2, 0.1, 1.0), coefficient=(0.1, 1.0, 10.0)),
            cooper("augmented"), COOPER, "its augmented Lagrangian; its dual step and coefficient"),
    Trainer("SSL-ALM, default", DEFAULT, humane("SSL-ALM"), HUMANE, "humancompatible-train's, as it comes"),
    Trainer("SSL-ALM, tuned", _grid(lr=(1e-3, 1e-2, 0.1, 1.0), penalty=(0.0, 1.0)), humane("SSL-ALM"), HUMANE,
            "its dual step and penalty"),
    Trainer("SPBM, default", DEFAULT, humane("SPBM"), HUMANE, "humancompatible-train's, as it comes"),
    Trainer("SPBM, tuned", _grid(penalty_mult=(0.1, 0.5), gamma=(0.1, 0.5, 0.9), soft=(0.0, 1.0)), humane("SPBM"),
            HUMANE, "its penalty_mult and gamma, and whether multipliers go by the proxy too"),
    Trainer("fixed penalty, tuned", _grid(weight=(0.1, 0.3, 1.0, 3.0, 10.0, 30.0)), penalised, ("torch",),
            "its weight on the sum of violations"),
    Trainer("unconstrained", DEFAULT, penalised, ("torch",), "the loss alone"),
)  # fmt: skip
