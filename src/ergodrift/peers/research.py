"""Methods of other authors, as named algorithms: told what their theorems ask for, or tuned in hindsight."""

from __future__ import annotations

import itertools

from ergodrift.methods.algorithms import Algorithm
from ergodrift.methods.baselines import augmented_lagrangian, sinha_vaze, switching, yu_lee_lee
from ergodrift.peers.baselines import DECADES, scale
from ergodrift.peers.ours import ROOMS as OURS
from ergodrift.peers.ours import best_of, bounds, one_of_ours
from ergodrift.peers.rival import Rival, Setting, Trial

ROOMS = (*OURS, "peers/research")
THEIRS = ((1.0, 1.0), (300.0, 1e-3))  # scales of Yu, Lee and Lee: those of the theorem, and of their experiments


def _potential(trial: Trial) -> list[tuple[Setting, Algorithm]]:
    gradient, constraint = bounds(trial)
    tried = [*THEIRS, (30.0, 1e-3), (3000.0, 1e-3)]
    return [
        ({"gamma_scale": gamma, "regularizer_scale": weight}, yu_lee_lee(gradient, constraint, None, gamma, weight))
        for gamma, weight in tried
    ]


def _switching(trial: Trial) -> list[tuple[Setting, Algorithm]]:
    unit, level = scale(trial), bounds(trial)[1]
    return [
        ({"step": p * unit.primal, "tolerance": q * level}, switching(p * unit.primal, q * level))
        for p, q in itertools.product(DECADES, DECADES)
    ]


def _augmented(trial: Trial) -> list[tuple[Setting, Algorithm]]:
    unit, samples = scale(trial), trial.task.num_samples
    return [
        ({"step": p * unit.primal, "dual_step": d * unit.dual},
         augmented_lagrangian(samples, p * unit.primal, d * unit.dual, unit.dual))
        for p, d in itertools.product(DECADES, DECADES)
    ]  # fmt: skip


def _sinha_vaze(trial: Trial) -> Algorithm:
    return sinha_vaze(trial.task.num_samples, bounds(trial)[0])


RESEARCH = (
    Rival(
        "Sinha-Vaze", "research", False, 2,
        "Sinha and Vaze (2024), for constraints that hold sample by sample; told the horizon and the largest gradient.",
        one_of_ours(_sinha_vaze), rooms=ROOMS,
    ),
    Rival(
        "Yu-Lee-Lee, tuned", "research", True, 4,
        "Yu, Lee and Lee (2026), without Slater's condition; told the largest gradient and constraint, with the scales "
        "of their theorem, of their experiments, or ten times more or less.",
        best_of(_potential), rooms=ROOMS,
    ),
    Rival(
        "CSA, tuned", "research", True, 3,
        "Switching subgradients in batches of ten (Lan and Zhou 2020): step and tolerance chosen in hindsight.",
        best_of(_switching), rooms=ROOMS,
    ),
    Rival(
        "augmented Lagrangian, tuned", "research", True, 4,
        "Huang, Zhang and Alacaoglu (2025) with averaged constraints: both steps chosen in hindsight.",
        best_of(_augmented), rooms=ROOMS,
    ),
)  # fmt: skip
