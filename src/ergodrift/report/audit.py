"""The report of an audit: one HTML page that needs nothing but a browser."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ergodrift.report import drawing
from ergodrift.report.fit import badge, ends, notes, setup, shown
from ergodrift.report.markup import figure, fill, number, style, table

Record = Mapping[str, Any]


def audit_page(results: Mapping[str, Any]) -> str:
    """The whole page.

    Args:
        results: what `ergodrift.tables.auditing.audit_table` returned, with `versions`.
    """
    settings, data, found = results["settings"], results["data"], results["audit"]
    parts = {
        "style": style() + drawing.STYLE,
        "title": escape(f"{settings['prediction']} against {settings['target']}, in {data['name']}"),
        "summary": _summary(results),
        "limits": _limits(results),
        "groups": "\n".join([_intro(found), *(_metric(found, data["groups"], metric) for metric in found["metrics"])]),
        "gaps": _gaps(found),
        "said": "\n".join([*(f"<p>{escape(line)}</p>" for line in data["said"]), *notes(found["warnings"])]),
        "setup": setup(settings),
        "versions": escape(", ".join(f"{name} {version}" for name, version in results["versions"].items())),
    }
    return fill("audit.html", parts, results)


def limit_lines(limits: Iterable[Record]) -> list[str]:
    """The verdicts, a line each, for the terminal."""
    return [f"{limit['limit_text']}: {limit['verdict']}{_where(limit)}{_more(limit)}" for limit in limits]


def _where(limit: Record) -> str:
    low, high = ("none" if limit[end] is None else f"{limit[end]:.4g}" for end in ("lower", "upper"))
    middle = "no value" if limit["estimate"] is None else f"{limit['estimate']:.4g}"
    return f" ({limit['metric']} {middle}, interval {low} to {high})"


def _more(limit: Record) -> str:
    more = limit["more_rows"]
    why = f"; {limit['reason']}" if limit["reason"] and limit["verdict"] == "undecided" else ""
    return why + (f"; about {more:,} more rows would decide" if more else "")


def _summary(results: Mapping[str, Any]) -> str:
    found, limits = results["audit"], results["limits"]
    groups = len({tuple(record[name] for name in results["data"]["groups"]) for record in found["by_group"]})
    what = f"{found['rows']:,} rows, {groups} groups of {escape(', '.join(results['data']['groups']))}."
    if not limits:
        return f"<p>{what} No limit was asked about.</p>"
    verdicts = [limit["verdict"] for limit in limits]
    if set(verdicts) == {"satisfied"}:
        said = "All limits are satisfied" if len(limits) > 1 else "The limit is satisfied"
    elif "violated" in verdicts:
        count = verdicts.count("violated")
        said = (
            f"{count} of {len(limits)} limits {'is' if count == 1 else 'are'} violated"
            if len(limits) > 1
            else "The limit is violated"
        )
    else:
        said = "Whether the limits hold is undecided" if len(limits) > 1 else "Whether the limit holds is undecided"
    return f"<p>{what} <strong>{said}</strong>, with {found['confidence']:.0%} confidence.</p>"


def _limits(results: Mapping[str, Any]) -> str:
    limits = results["limits"]
    if not limits:
        return "<p>None was asked about; pass one by <code>--limit</code>.</p>"
    rows = []
    for limit in limits:
        why = f'<br><span class="note">{escape(_more(limit).lstrip("; "))}</span>' if _more(limit) else ""
        rows.append([escape(limit["limit_text"]), badge(limit["verdict"]) + why, escape(limit["metric"]),
                     shown(limit["estimate"]), ends(limit["lower"], limit["upper"])])  # fmt: skip
    head = ["Limit", "Verdict", "Metric", "Estimate", "Interval"]
    return table("Limits", head, rows, "words wide")


def _intro(found: Mapping[str, Any]) -> str:
    return (
        f"<p>Points are what was seen, lines intervals: with {found['confidence']:.0%} confidence all of a table hold "
        "together, also where rows depend on each other. The dashed line is all rows together. “Worth” is how many "
        "independent rows would say as much.</p>"
    )


def _metric(found: Mapping[str, Any], groups: Sequence[str], metric: str) -> str:
    """One metric in all groups, from the largest value down."""
    rows = [record for record in found["by_group"] if record["metric"] == metric]
    rows.sort(key=lambda record: -1e300 if record["estimate"] is None else record["estimate"], reverse=True)
    overall = [record["estimate"] for record in found["overall"] if record["metric"] == metric]
    names = [", ".join(str(record[name]) for name in groups) for record in rows]
    drawn = [
        drawing.Interval(name, record["estimate"], record["lower"], record["upper"])
        for name, record in zip(names, rows, strict=True)
    ]
    cells = [
        [
            escape(name),
            shown(r["estimate"]),
            ends(r["lower"], r["upper"]),
            f"{r['rows']:,.0f}",
            _worth(r),
            escape(r["reason"]),
        ]
        for name, r in zip(names, rows, strict=True)
    ]
    known = [value for value in overall if value is not None]
    caption = f"{metric} by group" + (f"; all rows together: {number(known[0])}" if known else "")
    head = ["Group", "Estimate", "Interval", "Rows", "Worth", ""]
    body = table(escape(f"{metric} by group"), head, cells, "numbers wide")
    return "\n".join([f"<h3>{escape(metric)}</h3>", figure(caption, drawing.intervals(drawn, metric, known)), body])


def _worth(record: Record) -> str:
    worth = record["effective_rows"]
    return shown(None) if worth is None else f"{min(worth, record['rows']):,.0f}"


def _gaps(found: Mapping[str, Any]) -> str:
    parts = []
    for kind, words in (
        ("difference", "Largest difference between two groups"),
        ("ratio", "Smallest ratio of two groups"),
    ):
        cells = [
            [escape(r["metric"]), shown(r["estimate"]), ends(r["lower"], r["upper"]), escape(r["reason"])]
            for r in found[kind]
        ]
        parts.append(table(words, ["Metric", "Estimate", "Interval", ""], cells, "words wide"))
    return "\n".join(parts)
