"""Networks with constraints: ours beside Cooper (Lagrangian and nuPI), humancompatible-train (SSL-ALM and SPBM), a
fixed penalty, and no constraints at all.

The same networks, batches, seeds and Adam for all, so the same number of gradient evaluations but for what ours
measures. The others' settings are chosen in hindsight, by the numbers that are shown: of those whose violation is small
(SLACK), the one with the smallest loss, else the one with the smallest violation. Loss and violation are those of the
last weights on all training samples; "test" is on samples that no one has seen. Oscillation is the standard deviation
of a multiplier over the last quarter of the rounds, over the largest mean of one, averaged over constraints.

Prints a table for each task and writes bench-results/networks.json.

    pip install -r requirements-peers.txt
    python benchmarks/networks.py [--seeds N] [--tasks adult,flights,digits,norm] [--jobs N]
        [--write-docs docs/howto/networks_torch.md]
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportPrivateImportUsage=false
from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import itertools
import multiprocessing
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cooper
import numpy as np
import torch
from common import write
from humancompatible.train import dual_optim
from sklearn.datasets import load_digits
from torch import nn

from ergodrift import datasets
from ergodrift._core.markdown import table
from ergodrift.torch import DriftPlusPenalty

BEGIN, END = "<!-- networks: begin -->", "<!-- networks: end -->"
SLACK = 0.005  # a violation that counts as none, in units of the constraint


@dataclasses.dataclass(frozen=True)
class Task:
    """Samples, a network, and `ask(model, X, y) -> loss, constraints, proxy` with constraints wanted <= 0."""

    name: str
    about: str
    train: tuple[torch.Tensor, ...]
    test: tuple[torch.Tensor, ...]
    network: Callable[[], nn.Module]
    ask: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    count: int
    rate: float
    batch: int
    epochs: int
    in_order: bool = False

    @property
    def rounds(self) -> int:
        return self.epochs * -(-len(self.train[0]) // self.batch)

    def judge(self, model: nn.Module, part: tuple[torch.Tensor, ...]) -> tuple[float, float]:
        """Loss and largest violation over a whole part."""
        with torch.no_grad():
            loss, constraints, _ = self.ask(model, *part)
        return float(loss), max(float(constraints.max()), 0.0)

    def batches(self, seed: int) -> Any:
        order, count = torch.Generator().manual_seed(seed), len(self.train[0])
        for _ in range(self.epochs):
            places = torch.arange(count) if self.in_order else torch.randperm(count, generator=order)
            for rows in places.to(self.train[0].device).split(self.batch):
                yield tuple(part[rows] for part in self.train)


def adult() -> Task:
    """Income above 50,000 dollars, with at most 0.05 between the mean scores of women and men."""

    def table(part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        columns = datasets.adult(part).columns
        numbers = ["age", "education_num", "capital_gain", "capital_loss", "hours_per_week"]
        X = np.column_stack([np.log1p(columns[name].astype(float)) for name in numbers])
        for name in ("workclass", "marital_status", "occupation", "relationship", "race", "sex"):
            X = np.column_stack([X, *(columns[name] == value for value in np.unique(datasets.adult().columns[name]))])
        return X, columns["income"] == ">50K", columns["sex"] == "Female"

    (X, y, women), test = table("train"), table("test")
    centre, scale = X.mean(0), X.std(0) + 1e-9

    def tensors(X: np.ndarray, y: np.ndarray, women: np.ndarray) -> tuple[torch.Tensor, ...]:
        return tuple(torch.tensor(part, dtype=torch.float32) for part in ((X - centre) / scale, y, women))

    def ask(model, X, y, women):
        score = model(X).squeeze(-1)
        loss, shown = nn.functional.binary_cross_entropy_with_logits(score, y), score.sigmoid()
        gap = (women * shown).sum() / women.sum().clamp(min=1) - ((1 - women) * shown).sum() / (1 - women).sum()
        constraints = torch.stack([gap, -gap]) - 0.05
        return loss, constraints, constraints

    width = X.shape[1]
    return Task(
        "adult", "MLP on Adult, mean scores of women and men at most 0.05 apart; 2 constraints",
        tensors(X, y, women), tensors(*test),
        lambda: nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)),
        ask, 2, 1e-3, 256, 4,
    )  # fmt: skip


def flights() -> Task:
    """Late or not, batches in the order of time, with at most 0.05 from each airline to all in mean score."""
    columns = datasets.flights().columns
    known = ~np.isnan(columns["arr_delay"])
    carrier = columns["carrier"]
    names, counts = np.unique(carrier, return_counts=True)
    carrier = np.where(np.isin(carrier, names[counts >= 0.05 * len(carrier)]), carrier, "other")
    groups = np.unique(carrier)
    numbers = ("distance", "temp", "humid", "wind_speed", "precip", "pressure", "visib")
    X = np.column_stack([columns[name].astype(float) for name in numbers])
    kinds = (carrier, columns["origin"], columns["minutes"] // 60)
    X = np.column_stack([X, *(kind == value for kind in kinds for value in np.unique(kind))])
    early = columns["month"] <= 9
    centre, scale = X[early].mean(0), X[early].std(0) + 1e-9
    member = (carrier[:, None] == groups).astype(float)

    def part(rows: np.ndarray) -> tuple[torch.Tensor, ...]:
        every = ((X - centre) / scale, columns["arr_delay"] > 0, member)
        return tuple(torch.tensor(one[rows & known], dtype=torch.float32) for one in every)

    def ask(model, X, y, member):
        score = model(X).squeeze(-1)
        shown = score.sigmoid()
        rates = (member * shown[:, None]).sum(0) / member.sum(0).clamp(min=1)
        gaps = torch.where(member.sum(0) > 0, rates - shown.mean(), torch.zeros_like(rates))
        constraints = torch.cat([gaps, -gaps]) - 0.05
        return nn.functional.binary_cross_entropy_with_logits(score, y), constraints, constraints

    width, count = X.shape[1], 2 * len(groups)
    return Task(
        "flights",
        f"MLP on flights in the order of time, mean scores of {len(groups)} airlines within 0.05 of that of all; "
        f"{count} constraints; tested on later months",
        part(early), part(~early),
        lambda: nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)),
        ask, count, 1e-3, 512, 2, in_order=True,
    )  # fmt: skip


def digits() -> Task:
    """Handwritten digits through noise, 5 to 9 of them rare; each class is to be recalled at 80 %."""
    found = load_digits()
    rng = np.random.default_rng(0)
    X, y = found.images.astype(np.float32)[:, None] / 16, found.target
    order = rng.permutation(len(y))
    test, train = order[:600], order[600:]
    train = np.repeat(train[(y[train] < 5) | (rng.random(len(train)) < 0.25)], 5)

    def seen(rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        noisy = X[rows] + 0.3 * rng.standard_normal((len(rows), 1, 8, 8))
        return torch.tensor(noisy, dtype=torch.float32), torch.tensor(y[rows])

    def ask(model, X, y):
        score = model(X)
        mine = nn.functional.one_hot(y, 10).to(score.dtype)
        weight = mine / mine.sum(0).clamp(min=1)
        here = mine.sum(0) > 0
        recall = ((score.argmax(-1) == y).float()[:, None] * weight).sum(0)
        soft = (score.softmax(-1) * weight).sum(0)
        none = torch.zeros_like(soft)
        return (
            nn.functional.cross_entropy(score, y), torch.where(here, 0.8 - recall, none),
            torch.where(here, 0.8 - soft, none),
        )  # fmt: skip

    def network() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10),
        )  # fmt: skip

    return Task(
        "digits", "convolutional network on noisy digits, recall of each class at least 80 % (by a proxy); 10 limits",
        seen(train), seen(np.repeat(test, 3)), network, ask, 10, 5e-3, 128, 12,
    )  # fmt: skip


def norm() -> Task:
    """Cooper's first tutorial: logistic regression under |W|^2 <= 1, here on digits, where its optimum is known."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    X, y = torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target)

    def ask(model, X, y):
        constraint = (sum(p.square().sum() for p in model.parameters()) - 1).reshape(1)
        return nn.functional.cross_entropy(model(X), y), constraint, constraint

    train, test = order[600:], order[:600]
    return Task(
        "norm", "logistic regression on digits with a squared norm of at most 1, after Cooper's tutorial; 1 constraint",
        (X[train], y[train]), (X[test], y[test]), lambda: nn.Linear(64, 10), ask, 1, 1e-2, 128, 40,
    )  # fmt: skip


TASKS = {"adult": adult, "flights": flights, "digits": digits, "norm": norm}
Setting = dict[str, float]
Trainer = Callable[[Task, nn.Module, Any, Setting], list[torch.Tensor]]


def adam(task: Task, model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=task.rate)


def falling(task: Task, opt: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """The learning rate of all goes to 0 along a cosine, so that the last weights are worth looking at."""
    return torch.optim.lr_scheduler.CosineAnnealingLR(opt, task.rounds)


def ours(task, model, batches, setting):
    opt, seen = DriftPlusPenalty(adam(task, model), task.count), []
    rate = falling(task, opt)
    for batch in batches:
        loss, constraints, proxy = task.ask(model, *batch)
        opt.zero_grad()
        opt.backward(loss, constraints, proxy=None if proxy is constraints else proxy)
        opt.step()
        rate.step()
        seen.append(opt.multipliers)
    return seen


class Problem(cooper.ConstrainedMinimizationProblem):
    """A task as Cooper wants it."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.task, self.model = task, model
        self.multiplier = cooper.multipliers.DenseMultiplier(num_constraints=task.count)
        self.limits = cooper.Constraint(
            constraint_type=cooper.ConstraintType.INEQUALITY, formulation_type=cooper.formulations.Lagrangian,
            multiplier=self.multiplier,
        )  # fmt: skip

    def compute_cmp_state(self, batch):
        loss, constraints, proxy = self.task.ask(self.model, *batch)
        state = cooper.ConstraintState(violation=proxy, strict_violation=constraints)
        return cooper.CMPState(loss=loss, observed_constraints={self.limits: state})


def by_cooper(dual: Callable[..., torch.optim.Optimizer]) -> Trainer:
    def train(task, model, batches, setting):
        problem, opt, seen = Problem(task, model), adam(task, model), []
        rate = falling(task, opt)
        both = cooper.optim.SimultaneousOptimizer(
            cmp=problem, primal_optimizers=opt,
            dual_optimizers=dual(problem.dual_parameters(), maximize=True, **setting),
        )  # fmt: skip
        for batch in batches:
            both.roll(compute_cmp_state_kwargs={"batch": batch})
            rate.step()
            seen.append(problem.multiplier.weight.detach().clone())
        return seen

    return train


def by_humane(kind: str) -> Trainer:
    """A dual optimiser of humancompatible-train beside Adam; it has no place for a proxy, and takes that alone."""

    def train(task, model, batches, setting):
        opt, seen, m = adam(task, model), [], task.count
        rate, primal, zeros = falling(task, opt), opt, torch.zeros(task.count)
        if kind == "SSL-ALM":
            primal = dual_optim.MoreauEnvelope(opt)
            dual = dual_optim.ALM(m=m, init_duals=zeros, is_ineq=True, **setting)
        else:
            dual = dual_optim.PBM(
                m=m,
                epoch_length=task.rounds // task.epochs,
                init_duals=zeros + 1e-3,
                init_penalties=zeros + 1,
                **setting,
            )
        for batch in batches:
            loss, _, proxy = task.ask(model, *batch)
            opt.zero_grad()
            dual.forward_update(loss, proxy).backward()
            primal.step()
            rate.step()
            seen.append(dual.duals.detach().flatten().clone())
        return seen

    return train


def penalised(task, model, batches, setting):
    opt = adam(task, model)
    rate = falling(task, opt)
    for batch in batches:
        loss, _, proxy = task.ask(model, *batch)
        opt.zero_grad()
        (loss + setting.get("weight", 0.0) * proxy.clamp(min=0).sum()).backward()
        opt.step()
        rate.step()
    return []


def grid(**axes: tuple[float, ...]) -> list[Setting]:
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]


METHODS: dict[str, tuple[Trainer, list[Setting]]] = {
    "ours": (ours, [{}]),
    "Cooper": (by_cooper(torch.optim.SGD), grid(lr=(1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0))),
    "Cooper, nuPI": (by_cooper(cooper.optim.nuPI), grid(lr=(1e-3, 1e-2, 0.1, 1.0), Kp=(1.0, 10.0, 100.0))),
    "SSL-ALM": (by_humane("SSL-ALM"), grid(lr=(1e-3, 1e-2, 0.1, 1.0), penalty=(0.0, 1.0))),
    "SPBM": (by_humane("SPBM"), grid(penalty_mult=(0.1, 0.5), gamma=(0.1, 0.5, 0.9))),
    "fixed penalty": (penalised, grid(weight=(0.1, 0.3, 1.0, 3.0, 10.0, 30.0))),
    "unconstrained": (penalised, [{}]),
}


def trained(task: Task, train: Trainer, setting: Setting, seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    model = task.network()
    began = time.perf_counter()
    seen = train(task, model, task.batches(seed), setting)
    spent = time.perf_counter() - began
    loss, violation = task.judge(model, task.train)
    test_loss, test_violation = task.judge(model, task.test)
    oscillation = float("nan")
    if seen:
        last = torch.stack(seen[-len(seen) // 4 :])
        largest = float(last.mean(0).max())
        oscillation = float(last.std(0).mean()) / largest if largest > 0 else 0.0
    return {
        "loss": loss, "violation": violation, "test_loss": test_loss, "test_violation": test_violation,
        "oscillation": oscillation, "seconds": spent,
    }  # fmt: skip


@functools.cache
def task_of(key: str) -> Task:
    """A task, made once in each process."""
    torch.set_num_threads(1)
    return TASKS[key]()


def one_run(key: str, name: str, number: int, seed: int) -> dict[str, float]:
    train, settings = METHODS[name]
    return trained(task_of(key), train, settings[number], seed)


def row(key: str, name: str, seeds: int, pool: concurrent.futures.Executor) -> dict[str, Any]:
    """A method with its best setting, its numbers averaged over seeds."""
    settings, found = METHODS[name][1], []
    every = [[pool.submit(one_run, key, name, k, seed) for seed in range(seeds)] for k in range(len(settings))]
    for setting, futures in zip(settings, every, strict=True):
        runs = [future.result() for future in futures]
        means = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
        means = {key: value if np.isfinite(value) else 1e9 for key, value in means.items() if key != "oscillation"} | {
            "oscillation": means["oscillation"]
        }
        found.append({"method": name, "setting": setting, "chosen": len(setting), "tried": len(settings), **means})
    found.sort(key=lambda one: (max(one["violation"] - SLACK, 0.0), one["loss"]))
    return found[0] | {"all": found}


HEAD = ["Method", "loss", "violation", "test loss", "test violation", "oscillation", "settings chosen"]


def cells(one: dict[str, Any]) -> list[str]:
    """A row of the table."""
    numbers = [f"{one[key]:.4f}" for key in ("loss", "violation", "test_loss", "test_violation")]
    steady = "-" if np.isnan(one["oscillation"]) else f"{one['oscillation']:.3f}"
    chosen = ", ".join(f"{name} {value:g}" for name, value in one["setting"].items())
    return [one["method"], *numbers, steady, f"{one['chosen']} ({chosen}; of {one['tried']})" if chosen else "0"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--methods", default=";".join(METHODS), help="names, with semicolons between them")
    parser.add_argument("--write-docs", metavar="PAGE", help="put the tables into this page, between its marks")
    parser.add_argument("--jobs", type=int, default=1, help="processes that train at the same time")
    asked = parser.parse_args()
    results: dict[str, Any] = {}
    page: list[str] = []
    pool = concurrent.futures.ProcessPoolExecutor(asked.jobs, multiprocessing.get_context("spawn"))
    for key in asked.tasks.split(","):
        task = task_of(key)
        print(f"\n{task.name}: {task.about}")
        rows = []
        for name in asked.methods.split(";"):
            rows.append(row(key, name, asked.seeds, pool))
            print(" | ".join(cells(rows[-1])), f"| {rows[-1]['seconds']:.1f} s", flush=True)
        results[task.name] = {"about": task.about, "rows": rows}
        page += [*textwrap.wrap(f"**{task.name}**: {task.about}.", 100), "", table(HEAD, map(cells, rows)), ""]
    write("networks", {"seeds": asked.seeds, "slack": SLACK, "tasks": results})
    if asked.write_docs:
        path = Path(asked.write_docs)
        before, rest = path.read_text().split(BEGIN)
        path.write_text(f"{before}{BEGIN}\n" + "\n".join(page) + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
