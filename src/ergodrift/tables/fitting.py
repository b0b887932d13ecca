"""From a surveyed table to a model, its certificate, and all that the page says about it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ergodrift._core.progress import Progress
from ergodrift.experiments.reproduce import versions
from ergodrift.tables.files import Table, TableError
from ergodrift.tables.model import LOSSES, Model
from ergodrift.tables.record import Labels, Record, Rows, classes_of, groups_of, number_of, time_of
from ergodrift.tables.schema import Schema, guess
from ergodrift.tables.survey import Column
from ergodrift.trust import Diagnosis, diagnose

SCHEMA = "ergodrift fit v1"
MOST_CELLS = 2**25  # numbers in the matrix of features that is held in memory; it is copied a few times
LEAST_ROWS = 40
BATCH = 32  # rows of a step in a stream


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """What is to be learned from which table.

    Attributes:
        record: the table and the parts its columns play.
        constraints: as the estimators take them.
        settings: as they were asked for.
        loss: that is minimised, asked for or guessed.
        said: what was guessed and is to be known, in lines.
        every: rows are used one in so many, as many as memory holds; all of them in a stream.
    """

    record: Record
    constraints: list[Any]
    settings: dict[str, Any]
    loss: str
    said: list[str]
    every: int


def prepare(
    table: Table, columns: Mapping[str, Column], settings: Mapping[str, Any], constraints: Sequence[Any] = ()
) -> Task:
    """Everything that can be said before learning starts is said here; what cannot work is refused.

    Args:
        table: the table.
        columns: what the survey found.
        settings: target, positive, features, exclude, categories, time, sensitive, constraint, loss, hold_out, stream.
        constraints: what `constraints_of` made of the texts.
    """
    target = columns[settings["target"]]
    if not target.there:
        raise TableError(f"--target {target.name!r} is empty: there is nothing to learn from")
    few = target.is_truth or not target.is_number or (target.counts is not None and len(target.counts) <= 2)
    loss = settings["loss"] or ("logistic" if few else "squared")
    classes = classes_of(target, settings["positive"]) if LOSSES[loss] == "classes" else number_of(target)
    if classes is None and settings["positive"] is not None:
        raise TableError(f"--positive is for classes; with --loss {loss} {target.name!r} is a number")
    if settings["time"]:
        time_of(columns[settings["time"]])
    groups = tuple(groups_of(columns[name]) for name in settings["sensitive"])
    schema = _schema(table, columns, settings)
    for text, asked in zip(settings["constraint"], constraints, strict=True):
        _fits(text, asked, schema, classes)
    record = Record(table, schema, target.name, classes, groups, settings["time"], target.there)
    if target.there < LEAST_ROWS:
        raise TableError(
            f"{table.path} has {target.there} rows with a {target.name!r}; at least {LEAST_ROWS} are needed"
        )
    stream = settings["stream"]
    every = 1 if stream else -(-target.there * len(schema.names) // MOST_CELLS)
    back = columns[settings["time"]].steps_back if settings["time"] else 0
    if stream and back:
        raise TableError(
            f"--stream takes rows as they come, and {back:,} rows of {table.path} are earlier in {settings['time']!r} "
            "than the row before: sort it first, by a database, or `sort` for CSV"
        )
    said = _said(record, target, loss, back, every)
    return Task(record, list(constraints), dict(settings), loss, said, every)


def _schema(table: Table, columns: Mapping[str, Column], settings: Mapping[str, Any]) -> Schema:
    features, categories = settings["features"], settings["categories"]
    roles = {settings["target"]: "it is the target"}
    roles |= dict.fromkeys([settings["time"]] if settings["time"] else [], "it orders the rows")
    roles |= dict.fromkeys(settings["sensitive"], "it is sensitive; name it in --features to use it")
    roles |= dict.fromkeys(settings["exclude"], "it is excluded")
    if settings["target"] in features:
        raise TableError(f"--features {settings['target']!r} is the target")
    if features:
        unnamed = dict.fromkeys(set(columns) - {*features, *categories}, "it is not among --features")
        roles = {**unnamed, **{name: why for name, why in roles.items() if name not in features}}
    found = guess([column for name, column in columns.items() if name not in roles], features, categories)
    if not found.features:
        why = "; ".join(f"{name!r}: {reason}" for name, reason in found.left_out.items()) or "there are no others"
        raise TableError(f"{table.path} has no column to predict {settings['target']!r} from ({why})")
    given = {name: roles[name] for name in columns if name in roles}
    return Schema(found.features, {**given, **found.left_out})


def constraints_of(texts: Sequence[str], has_groups: bool) -> list[Any]:
    """Constraints as the estimators take them, from what was typed."""
    from ergodrift.sklearn import constraint_from_text

    found: list[Any] = []
    for text in texts:
        try:
            found.append(constraint_from_text(text))
        except (TypeError, ValueError) as error:
            raise TableError(f"--{error}") from error
        if found[-1].needs_groups and not has_groups:
            raise TableError(f"--constraint {text!r} compares groups: name their column by --sensitive")
    return found


def _fits(text: str, asked: Any, schema: Schema, classes: Labels | None) -> None:
    """The constraint can be asked of this target and these columns."""
    if asked.needs_decisions and classes is None:
        raise TableError(f"--constraint {text!r} is about classes, and the target is a number; see --loss")
    what = getattr(asked, "what", None)
    if what is not None and classes is not None and len(classes.levels) > 2:
        raise TableError(f"--constraint {text!r} is for a target with two values; it has {len(classes.levels)}")
    if what is not None and what not in schema.names:
        raise TableError(f"--constraint {text!r}: means can be taken of {', '.join(schema.names[:20])}")


def _said(record: Record, target: Column, loss: str, back: int, every: int) -> list[str]:
    """What was guessed and what was done about it, before learning starts."""
    table = record.table
    counts = target.counts or {}
    if record.classes is None:
        what = f"a number from {target.least:g} to {target.most:g}, mean {target.mean:g}"
    else:
        what = ", ".join(f"{label} {counts[label] / target.there:.1%}" for label in record.classes.levels)
        what += f"; rates are of {record.classes.levels[-1]!r}" if len(record.classes.levels) == 2 else ""
    lines = [
        f"{table.path}: {target.rows:,} rows, {len(table.names)} columns",
        f"target {target.name}: {what} ({loss} loss)",
    ]
    if target.missing:
        share = target.missing / target.rows
        lines.append(f"{target.missing:,} rows ({share:.1%}) have no {target.name!r}: they are left out")
    for group in record.groups:
        lines.append(f"groups of {group.name}: {', '.join(group.levels)}")
    if record.time is None:
        lines.append(
            "rows are taken in the order of the file; name the column of their times by --time if that is another"
        )
    elif back:
        lines.append(f"rows are sorted by {record.time}: {back:,} were earlier than the row before")
    if every > 1:
        lines.append(
            f"{target.there:,} rows in {len(record.schema.names)} columns are more than is held in memory: "
            f"one row in {every} is used; --stream learns from each row once"
        )
    return lines


def fit(task: Task) -> tuple[Model, dict[str, Any]]:
    """Learn, hold out the last rows, certify on them, and gather all that the page says."""
    from ergodrift.sklearn import ConstrainedClassifier, ConstrainedRegressor

    record, settings = task.record, task.settings
    make: Any = ConstrainedRegressor if record.classes is None else ConstrainedClassifier
    once: dict[str, Any] = {"epochs": 1, "order": "given", "batch_size": BATCH} if settings["stream"] else {}
    estimator = make(
        loss=task.loss, constraints=task.constraints, validation_fraction=settings["hold_out"],
        random_state=settings["seed"], **once,
    )  # fmt: skip
    used = -(-record.num_rows // task.every)
    later = round(settings["hold_out"] * used)
    certificate, recent, diagnosis = (_streamed if settings["stream"] else _at_once)(estimator, task, later)
    coef, intercept = record.schema.centred(np.atleast_2d(estimator.coef_), np.atleast_1d(estimator.intercept_))
    classes = record.classes.levels if record.classes else ()
    _in_words(certificate, classes)
    model = Model(
        record.target, task.loss, classes, coef, intercept, record.schema, tuple(settings["constraint"]),
        versions(),
    )  # fmt: skip
    results = {
        "schema": SCHEMA,
        "settings": settings,
        "versions": versions(),
        "data": {
            "name": record.table.path.name,
            "loss": task.loss,
            "rows": record.num_rows,
            "learned": used - later,
            "said": task.said,
            "columns": record.schema.listed(),
        },
        "certificate": certificate.as_dict(),
        "diagnosis": diagnosis,
        "tradeoff": _tradeoff(estimator, recent, task),
        "coefficients": _coefficients(model),
        "text": str(certificate),
    }
    return model, results


def _in_words(certificate: Any, classes: Sequence[str]) -> None:
    """A certificate in the words of the table and of the command, in place of numbers of classes and of arguments."""

    def told(text: str) -> str:
        text = text.replace("validation_fraction", "--hold-out")
        return re.sub(r"of class (\d+)", lambda found: f"of class {classes[int(found[1])]}", text)

    certificate.name[:] = map(told, certificate.name)
    certificate.notes[:] = map(told, certificate.notes)


def _at_once(estimator: Any, task: Task, later: int) -> tuple[Any, Rows, dict[str, Any]]:
    """All rows in memory; where there are constraints the estimator holds out the last rows itself."""
    reading = Progress("reading", task.record.num_rows, "rows")
    rows = task.record.read(task.every, reading.update)
    reading.close()
    learned, held = rows.take(slice(0, len(rows) - later)), rows.take(slice(len(rows) - later, None))
    seen = rows if task.constraints else learned
    progress = Progress("learning from", None, "rows")
    progress.update(len(seen))
    try:
        estimator.fit(_frame(task, seen), seen.y, **_grouped(seen))
    except ValueError as error:
        raise TableError(str(error)) from error
    finally:
        progress.close()
    certificate = getattr(estimator, "certificate_", None)
    if certificate is None:
        certificate = estimator.certify(_frame(task, held), held.y, **_grouped(held))
    return certificate, learned, _diagnosed(estimator.diagnosis_)


def _streamed(estimator: Any, task: Task, later: int) -> tuple[Any, Rows, dict[str, Any]]:
    """A chunk at a time, in one pass; the last rows, as many as memory holds, are kept for the certificate."""
    record = task.record
    later = min(later, MOST_CELLS // len(record.schema.names))
    learned, done = record.num_rows - later, 0
    progress = Progress("learning", record.num_rows, "rows")
    first: dict[str, Any] = {"classes": np.arange(len(record.classes.levels))} if record.classes else {}
    held: list[Rows] = []
    recent: Rows | None = None
    for rows in record.chunks():
        now, rest = rows.take(slice(0, max(learned - done, 0))), rows.take(slice(max(learned - done, 0), None))
        if len(now):
            estimator.partial_fit(_frame(task, now), now.y, **_grouped(now), **first)
            recent = now
        held += [rest] if len(rest) else []
        done += len(rows)
        progress.update(done)
    progress.close()
    assert recent is not None
    last = Rows.joined(held)
    certificate = estimator.certify(_frame(task, last), last.y, **_grouped(last))
    try:
        scores = last.X @ np.atleast_2d(estimator.coef_)[0]
        found = diagnose({"target": last.y.astype(float), "score": scores})
    except ValueError:
        found = None
    return certificate, recent, _diagnosed(found)


def _frame(task: Task, rows: Rows) -> Any:
    import pandas as pd

    return pd.DataFrame(rows.X, columns=task.record.schema.names, copy=False)


def _grouped(rows: Rows) -> dict[str, Any]:
    import pandas as pd

    return {"sensitive_features": pd.DataFrame(dict(rows.groups))} if rows.groups else {}


def _diagnosed(found: Diagnosis | None) -> dict[str, Any]:
    """How dependent the rows are, as plain values."""
    if found is None:
        return {"why": "The record is too short for how long its rows stay correlated."}
    return {
        "num_samples": found.num_samples,
        "tau_mix": found.tau_mix,
        "tau_mix_interval": [end if np.isfinite(end) else None for end in found.tau_mix_interval],
        "ess": found.ess,
        "factor": float(np.sqrt(found.integrated_time)),
        "quantities": [{"name": q.name, "time": max(q.geyer, 1.0), "ess": q.ess} for q in found.quantities],
        "notes": list(found.notes),
        "warnings": list(found.warnings),
    }


def _tradeoff(estimator: Any, rows: Rows, task: Task) -> dict[str, Any] | None:
    """The curve of loss against limit, as plain values and words."""
    from ergodrift.sklearn.tradeoff import tradeoff

    found = tradeoff(estimator, _frame(task, rows), rows.y, **_grouped(rows)) if task.constraints else None
    if found is None:
        return None
    unit, name = _scaled(task.settings["constraint"])
    here = int(np.flatnonzero(found.factors == 1.0)[0])
    more = max((found.losses[here] / found.free_loss - 1) * 100, 0.0)  # below 0 it is the solver's last digit
    return {
        "limits": (unit * found.factors).tolist(),
        "losses": found.losses.tolist(),
        "at": [unit, float(found.losses[here])],
        "free": found.free_loss,
        "xlabel": name,
        "ylabel": "mean loss",
        "said": (
            f"Without constraints the mean loss is {found.free_loss:.4f}, and the largest value "
            f"{unit * found.free_worst:.3g}. To keep the limit costs {more:.2g} % of that loss."
        ),
        "caption": f"Mean loss on {found.num_rows:,} rows of the fit, against the limit; dashed: what was asked for",
    }


def _scaled(texts: Sequence[str]) -> tuple[float, str]:
    """What 1 stands for along the axis of limits, and its name."""
    from ergodrift.sklearn import constraint_from_text

    if len(texts) == 1:
        return float(constraint_from_text(texts[0]).limit), f"limit of {texts[0].partition('<')[0].strip()}"
    return 1.0, "limits, as multiples of those asked for"


def _coefficients(model: Model) -> list[dict[str, Any]]:
    """The effects of all columns, from the largest on, for each score of the model."""
    features = model.schema.features
    means, stds = (
        np.array([value for feature in features for value in getattr(feature, name)]) for name in ("means", "stds")
    )
    log_odds = model.loss == "logistic"
    names = model.classes[-1:] if len(model.coef) == 1 else model.classes
    found: list[dict[str, Any]] = []
    for number, (coef, intercept) in enumerate(zip(model.coef, model.intercept, strict=True)):
        effects = coef * stds
        order = np.argsort(-np.abs(effects), kind="stable")
        of = f"the {'log-odds' if log_odds else 'score'} of {names[number]}" if model.classes else model.target
        rows = [
            {
                "name": model.schema.names[k],
                "coefficient": float(coef[k]),
                "mean": float(means[k]),
                "std": float(stds[k]),
                "effect": float(effects[k]),
            }
            for k in order
        ]
        unit = "log-odds" if log_odds else "score" if model.classes else f"units of {model.target}"
        found.append({"of": of, "unit": unit, "middle": float(intercept + coef @ means), "rows": rows})
    return found
