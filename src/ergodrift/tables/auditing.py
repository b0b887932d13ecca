"""From a table of logged predictions to an audit, and all that its page says."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ergodrift.experiments.reproduce import versions
from ergodrift.tables import cells
from ergodrift.tables.files import Table, TableError
from ergodrift.tables.limits import Limit, limit_from_text
from ergodrift.tables.record import Labels, classes_of, groups_of, moments, numbers_of, time_of
from ergodrift.tables.survey import Column
from ergodrift.trust import Audit, audit

OF_CLASSES = ("selection_rate", "true_positive_rate", "false_positive_rate", "accuracy")
OF_NUMBERS = ("mean_prediction", "mean_absolute_error")


def audit_table(
    table: Table,
    columns: Mapping[str, Column],
    settings: Mapping[str, Any],
    progress: Callable[[int], None] = lambda rows: None,
) -> tuple[Audit, dict[str, Any]]:
    """The audit (`ed.Audit`), and its content for JSON and the page.

    Args:
        table: with a column for the truth and one for the prediction.
        columns: what the survey found.
        settings: target, prediction, positive, threshold, sensitive, time, metric, limit, confidence.
        progress: told how many rows have been read.
    """
    target, prediction = columns[settings["target"]], columns[settings["prediction"]]
    limits = [limit_from_text(text) for text in settings["limit"]]
    codings = codings_of(target, prediction, settings["positive"], settings["threshold"])
    classes = codings[0].levels if isinstance(codings[0], Labels) else ()
    metrics = list(dict.fromkeys([*settings["metric"], *(name for limit in limits for name in limit.metrics)]))
    if not metrics:
        metrics = list(OF_CLASSES if len(classes) == 2 else ("accuracy",) if classes else OF_NUMBERS)
    groups = [groups_of(columns[name]) for name in settings["sensitive"]]
    if settings["time"]:
        time_of(columns[settings["time"]])
    values, sensitive, times = _read(table, settings, codings, groups, progress)
    truth, predicted = values
    said = [_told(target, codings[0])]
    if left_out := target.rows - len(truth):
        said.append(f"{left_out:,} rows have no {target.name!r} or no {prediction.name!r}: they are left out")
    if not len(truth):
        raise TableError(f"{table.path} has no row with both {target.name!r} and {prediction.name!r}")
    if not settings["time"]:
        said.append("rows are taken in the order of the file; --time names the column of their times")
    try:
        found = audit(
            dict(zip(metrics, metrics, strict=True)), truth, predicted, sensitive_features=sensitive, time=times,
            confidence=settings["confidence"], pos_label=1 if len(classes) == 2 else None,
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise TableError(f"--metric or --limit: {error}") from error
    return found, {
        "schema": "ergodrift audit v1",
        "settings": dict(settings),
        "versions": versions(),
        "data": {"name": table.path.name, "rows": len(truth), "said": said, "groups": [group.name for group in groups]},
        "audit": found.to_dict(),
        "limits": [record for limit in limits for record in judged(found, limit)],
    }


def judged(found: Audit, limit: Limit) -> list[dict[str, Any]]:
    """What an audit says of a limit, for each of its metrics."""
    if limit.of == "value":
        extreme = found.group_max() if limit.at_most else found.group_min()
        verdicts = extreme.at_most(limit.number) if limit.at_most else extreme.at_least(limit.number)
    else:
        verdicts = found.difference().at_most(limit.number) if limit.at_most else found.ratio().at_least(limit.number)
    wanted = {"limit_text": limit.text, "of": limit.of, "at_most": limit.at_most}
    return [{**record, **wanted} for record in verdicts.records() if record["metric"] in limit.metrics]


def codings_of(
    target: Column, prediction: Column, positive: str | None, threshold: float | None
) -> tuple[Labels | float | None, Labels | float | None]:
    """How to read truth and prediction: as the same classes, by a threshold, or (None) as numbers."""
    for column in (target, prediction):
        if not column.there:
            raise TableError(f"column {column.name!r} is empty")
    if threshold is not None:
        numbers_of("--prediction", prediction, "leave out --threshold, which is for scores")
        classes = classes_of(target, positive, "--threshold is for a target with two values")
        if len(classes.levels) != 2:
            raise TableError(f"--threshold is for a target with two values; {target.name!r} has {len(classes.levels)}")
        return classes, threshold
    if prediction.is_number and not _few(prediction):
        if positive is None and target.is_number and not _few(target):
            return None, None
        if _few(target):
            raise TableError(
                f"--prediction {prediction.name!r} holds numbers from {prediction.least:g} to {prediction.most:g}, and "
                f"{target.name!r} two values; pass --threshold 0.5 to make decisions of the numbers"
            )
    seen = [list(column.counts or {}) for column in (target, prediction)]
    if (
        all(not np.isnan(cells.truth(label, digits=True)) for labels in seen for label in labels)
        and not target.is_constant
    ):
        found = classes_of(target, positive)  # True and False beside 1 and 0 are the same
        return found, found
    if not set(seen[0]) & set(seen[1]):
        raise TableError(
            f"--target {target.name!r} holds {', '.join(seen[0][:4])}, --prediction {prediction.name!r} holds "
            f"{', '.join(seen[1][:4])}: they have no value in common"
        )
    merged = dataclasses.replace(
        target,
        is_number=target.is_number and prediction.is_number,
        labels=Counter(target.counts or {}) + Counter(prediction.counts or {}),
    )
    found = classes_of(merged, positive, "audit compares numbers, or classes")
    return found, found


def _few(column: Column) -> bool:
    return column.counts is not None and len(column.counts) <= 2


def _told(target: Column, coding: Labels | float | None) -> str:
    if not isinstance(coding, Labels):
        return f"{target.name}: a number from {target.least:g} to {target.most:g}"
    shown = ", ".join(coding.levels)
    return f"{target.name}: {shown}" + (f"; rates are of {coding.levels[1]!r}" if len(coding.levels) == 2 else "")


def _coded(column: Any, coding: Labels | float | None, comma: bool) -> np.ndarray:
    """Numbers, NaN where a cell is missing."""
    if isinstance(coding, Labels):
        found = coding.codes(column, comma)
        return np.where(found < 0, np.nan, found)
    found = cells.numbers(column, comma)
    assert found is not None  # the survey has seen it
    return found if coding is None else np.where(np.isnan(found), np.nan, found > coding)


def _read(
    table: Table,
    settings: Mapping[str, Any],
    codings: tuple[Labels | float | None, Labels | float | None],
    groups: Sequence[Labels],
    progress: Callable[[int], None],
) -> tuple[list[np.ndarray], dict[str, np.ndarray], np.ndarray | None]:
    """Truth and prediction, groups and times of the rows that have both."""
    names = [settings["target"], settings["prediction"]]
    needed = [*names, *(group.name for group in groups), *([settings["time"]] if settings["time"] else [])]
    parts: list[list[np.ndarray]] = []
    comma, done = table.decimal_comma, 0
    for chunk in table.chunks(list(dict.fromkeys(needed))):
        values = [_coded(chunk.column(name), coding, comma) for name, coding in zip(names, codings, strict=True)]
        there = ~np.isnan(values[0] + values[1])
        values += [group.codes(chunk.column(group.name), comma).astype(np.int16) for group in groups]
        values += [moments(chunk.column(settings["time"]), comma)] if settings["time"] else []
        parts.append([value[there] for value in values])
        done += chunk.num_rows
        progress(done)
    columns = [np.concatenate(each) for each in zip(*parts, strict=True)]
    labelled = {
        group.name: np.array(group.levels, dtype=object)[codes]
        for group, codes in zip(groups, columns[2:], strict=False)
    }
    return columns[:2], labelled, columns[-1] if settings["time"] else None
