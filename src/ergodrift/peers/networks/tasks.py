"""The tasks by name; each is built when it is called for, in a process that has PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ergodrift import datasets
from ergodrift.peers.networks.task import Task


def _tensors(*parts: np.ndarray) -> tuple[Any, ...]:
    import torch  # type: ignore[import-not-found]

    return tuple(torch.tensor(part, dtype=torch.float32) for part in parts)


def _perceptron(width: int) -> Callable[[], Any]:
    from torch import nn  # type: ignore[import-not-found]

    return lambda: nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))


def _digits() -> Any:
    from sklearn.datasets import load_digits

    return load_digits()


def adult() -> Task:
    """Income above 50,000 dollars, with at most 0.05 between the mean scores of women and men."""
    import torch  # type: ignore[import-not-found]
    from torch.nn import functional  # type: ignore[import-not-found]

    known = datasets.adult().columns

    def table(part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        columns = datasets.adult(part).columns
        numbers = ["age", "education_num", "capital_gain", "capital_loss", "hours_per_week"]
        X = np.column_stack([np.log1p(columns[name].astype(float)) for name in numbers])
        for name in ("workclass", "marital_status", "occupation", "relationship", "race", "sex"):
            X = np.column_stack([X, *(columns[name] == value for value in np.unique(known[name]))])
        return X, columns["income"] == ">50K", columns["sex"] == "Female"

    (X, y, women), (later, *rest) = table("train"), table("test")
    centre, scale = X.mean(0), X.std(0) + 1e-9

    def ask(model: Any, X: Any, y: Any, women: Any) -> tuple[Any, Any, Any]:
        score = model(X).squeeze(-1)
        loss, shown = functional.binary_cross_entropy_with_logits(score, y), score.sigmoid()
        gap = (women * shown).sum() / women.sum().clamp(min=1) - ((1 - women) * shown).sum() / (1 - women).sum()
        constraints = torch.stack([gap, -gap]) - 0.05
        return loss, constraints, constraints

    return Task(
        "Perceptron on Adult, mean scores of women and men at most 0.05 apart; 2 constraints",
        _tensors((X - centre) / scale, y, women), _tensors((later - centre) / scale, *rest),
        _perceptron(X.shape[1]), ask, 2, 1e-3, 256, 4,
    )  # fmt: skip


def flights() -> Task:
    """Late or not, batches in the order of time, with at most 0.05 from each airline to all in mean score."""
    import torch  # type: ignore[import-not-found]
    from torch.nn import functional  # type: ignore[import-not-found]

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
    X = (X - X[early].mean(0)) / (X[early].std(0) + 1e-9)
    every = (X, columns["arr_delay"] > 0, (carrier[:, None] == groups).astype(float))

    def ask(model: Any, X: Any, y: Any, member: Any) -> tuple[Any, Any, Any]:
        score = model(X).squeeze(-1)
        shown = score.sigmoid()
        rates = (member * shown[:, None]).sum(0) / member.sum(0).clamp(min=1)
        gaps = torch.where(member.sum(0) > 0, rates - shown.mean(), torch.zeros_like(rates))
        constraints = torch.cat([gaps, -gaps]) - 0.05
        return functional.binary_cross_entropy_with_logits(score, y), constraints, constraints

    train, test = (_tensors(*(one[rows & known] for one in every)) for rows in (early, ~early))
    return Task(
        f"Perceptron on flights in the order of time, mean scores of {len(groups)} airlines within 0.05 of that of "
        f"all; {2 * len(groups)} constraints; tested on later months",
        train, test, _perceptron(X.shape[1]), ask, 2 * len(groups), 1e-3, 512, 2, in_order=True,
    )  # fmt: skip


def digits() -> Task:
    """Handwritten digits through noise, 5 to 9 of them rare; each class is to be recalled at 80 %."""
    import torch  # type: ignore[import-not-found]
    from torch import nn  # type: ignore[import-not-found]

    found, rng = _digits(), np.random.default_rng(0)
    X, y = found.images.astype(np.float32)[:, None] / 16, found.target
    order = rng.permutation(len(y))
    test, train = order[:600], order[600:]
    train = np.repeat(train[(y[train] < 5) | (rng.random(len(train)) < 0.25)], 5)

    def seen(rows: np.ndarray) -> tuple[Any, Any]:
        noisy = X[rows] + 0.3 * rng.standard_normal((len(rows), 1, 8, 8))
        return *_tensors(noisy), torch.tensor(y[rows])

    def ask(model: Any, X: Any, y: Any) -> tuple[Any, Any, Any]:
        score = model(X)
        mine = nn.functional.one_hot(y, 10).to(score.dtype)
        weight, here = mine / mine.sum(0).clamp(min=1), mine.sum(0) > 0
        recall = ((score.argmax(-1) == y).float()[:, None] * weight).sum(0)
        soft = (score.softmax(-1) * weight).sum(0)
        none = torch.zeros_like(soft)
        return (
            nn.functional.cross_entropy(score, y), torch.where(here, 0.8 - recall, none),
            torch.where(here, 0.8 - soft, none),
        )  # fmt: skip

    def network() -> Any:
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10),
        )  # fmt: skip

    return Task(
        "Convolutional network on noisy digits, recall of each class at least 80 % (by a proxy); 10 constraints",
        seen(train), seen(np.repeat(test, 3)), network, ask, 10, 5e-3, 128, 12,
    )  # fmt: skip


def norm() -> Task:
    """Cooper's first tutorial: logistic regression under |W|^2 <= 1, here on digits, where its optimum is known."""
    import torch  # type: ignore[import-not-found]
    from torch import nn  # type: ignore[import-not-found]

    found = _digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    (X,), y = _tensors(found.data / 16), torch.tensor(found.target)

    def ask(model: Any, X: Any, y: Any) -> tuple[Any, Any, Any]:
        constraint = (sum(p.square().sum() for p in model.parameters()) - 1).reshape(1)
        return nn.functional.cross_entropy(model(X), y), constraint, constraint

    train, test = order[600:], order[:600]
    return Task(
        "Logistic regression on digits with a squared norm of at most 1, after Cooper's tutorial; 1 constraint",
        (X[train], y[train]), (X[test], y[test]), lambda: nn.Linear(64, 10), ask, 1, 1e-2, 128, 40,
    )  # fmt: skip


TASKS: dict[str, Callable[[], Task]] = {"adult": adult, "flights": flights, "digits": digits, "norm": norm}
NEEDS: dict[str, tuple[str, ...]] = {"digits": ("sklearn",), "norm": ("sklearn",)}  # where their data are
