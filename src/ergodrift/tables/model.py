"""A linear model of the rows of a table, in a JSON file: nothing in it runs, and all of it can be read."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ergodrift._core.files import write_whole
from ergodrift.tables.files import TableError
from ergodrift.tables.schema import Schema

FORMAT = "ergodrift model v1"
PROBABLE = ("logistic",)  # losses whose scores are log-odds
LOSSES = {"logistic": "classes", "hinge": "classes", "squared": "number", "huber": "number", "quantile": "number"}


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """Scores a.x + b of a row, and what they say about the target.

    Attributes:
        target: name of the column that is predicted.
        loss: what the model was fitted by.
        classes: labels of the target, empty for a number; of two, the second is the one whose rates are constrained.
        coef: (k, d), one row for each class, or one alone for two classes and for a number.
        intercept: (k,).
        schema: how a row becomes d numbers.
        constraints: as they were asked for.
        versions: of what fitted it.
    """

    target: str
    loss: str
    classes: tuple[str, ...]
    coef: np.ndarray
    intercept: np.ndarray
    schema: Schema
    constraints: tuple[str, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """(n, k) of rows (n, d)."""
        return rows @ self.coef.T + self.intercept

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """(n,) numbers, or the places of the predicted classes."""
        scores = self.scores(rows)
        if not self.classes:
            return scores[:, 0]
        return (scores[:, 0] > 0).astype(int) if len(self.coef) == 1 else scores.argmax(axis=1)

    def probabilities(self, rows: np.ndarray) -> np.ndarray | None:
        """(n, classes), where the loss has such: softmax of the scores, of two classes the logistic function."""
        if self.loss not in PROBABLE:
            return None
        scores = self.scores(rows)
        if len(self.coef) == 1:
            scores = np.hstack([np.zeros_like(scores), scores])
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it, whole or not at all."""
        content = {
            "format": FORMAT,
            "target": self.target,
            "loss": self.loss,
            "classes": list(self.classes),
            "constraints": list(self.constraints),
            "versions": dict(self.versions),
            "intercept": self.intercept.tolist(),
            "coef": self.coef.tolist(),
            "columns": self.schema.names,
            "schema": self.schema.to_json(),
        }
        write_whole(Path(path), json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Model:
        """What `save` wrote; a folder stands for the `model.json` in it.

        Raises:
            TableError: there is no such file, it is no model, or parts of it do not fit together.
        """
        path = Path(path)
        path = path / "model.json" if path.is_dir() else path
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise TableError(f"{path} cannot be read: {error.strerror}; `ergodrift fit` writes such files") from error
        except ValueError as error:
            raise TableError(f"{path} is no model file: it is not JSON, or it is cut short") from error
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise TableError(f"{path} is no model file: its format is {found!r}, this version reads {FORMAT!r}")
        try:
            return cls._made(content)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise TableError(f"{path} is damaged: {type(error).__name__}: {error}") from error

    @classmethod
    def _made(cls, content: dict[str, Any]) -> Model:
        schema = Schema.from_json(content["schema"])
        coef, intercept = np.array(content["coef"], float), np.array(content["intercept"], float)
        classes = tuple(str(label) for label in content["classes"])
        outputs = len(classes) if len(classes) > 2 else 1
        if coef.shape != (outputs, len(schema.names)) or intercept.shape != (outputs,):
            raise ValueError(f"coef {coef.shape} and intercept {intercept.shape} do not fit the columns and classes")
        if content["columns"] != schema.names or not (np.isfinite(coef).all() and np.isfinite(intercept).all()):
            raise ValueError("columns differ from the schema, or coefficients are not finite")
        if LOSSES.get(content["loss"]) != ("classes" if classes else "number"):
            raise ValueError(f"loss {content['loss']!r} does not fit the classes {classes}")
        return cls(
            str(content["target"]), content["loss"], classes, coef, intercept, schema,
            tuple(content["constraints"]), content["versions"],
        )  # fmt: skip
