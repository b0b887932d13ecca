"""The report of a fitted table: one HTML page that needs nothing but a browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ergodrift.report import drawing
from ergodrift.report.markup import figure, fill, number, style, table, value

NONE = "\N{EN DASH}"
SHOWN = 12  # quantities and coefficients
ROW = ("name", "limit", "two_sided", "estimate", "lower", "upper", "verdict", "more_rows", "reason")
BADGES = {"satisfied": ("holds", "✓"), "violated": ("fails", "✕"), "undecided": ("depends", "◐")}


def fit_page(results: Mapping[str, Any]) -> str:
    """The whole page.

    Args:
        results: what `ergodrift.tables.fitting.fit` returned.
    """
    settings, data = results["settings"], results["data"]
    parts = {
        "style": style() + drawing.STYLE,
        "title": escape(f"{settings['target']}, from {data['name']}"),
        "summary": _summary(results),
        "certificate": _certificate(results["certificate"]),
        "cost": _cost(results),
        "dependence": dependence(results["diagnosis"]),
        "coefficients": _coefficients(results),
        "columns": _columns(data),
        "setup": setup(settings),
        "versions": escape(", ".join(f"{name} {version}" for name, version in results["versions"].items())),
    }
    return fill("fit.html", parts, results)


def badge(verdict: str) -> str:
    """A verdict, with a sign that needs no colour."""
    kind, sign = BADGES[verdict]
    return f'<span class="badge {kind}"><span aria-hidden="true">{sign}</span> {escape(verdict)}</span>'


def shown(given: float | None) -> str:
    """A number, or a dash."""
    return NONE if given is None else number(given)


def ends(low: float | None, high: float | None) -> str:
    """An interval; a dash where there is no end."""
    return f'<span class="nowrap">[{shown(low)}, {shown(high)}]</span>'


def _summary(results: Mapping[str, Any]) -> str:
    data, found = results["data"], results["certificate"]
    what = f"A linear model by {escape(data['loss'])} loss, learned from {data['learned']:,} rows"
    held = f"the last {found['num_rows']:,} rows, which it has not seen"
    verdicts = found["verdict"]
    if not verdicts:
        return f"<p>{what}, without constraints. Its mean loss on {held}, is {number(found['loss'])}.</p>"
    count = {verdict: verdicts.count(verdict) for verdict in BADGES}
    if count["satisfied"] == len(verdicts):
        said = f"<strong>All constraints are certified to hold</strong> on {held}"
    elif count["violated"]:
        verb = "is" if count["violated"] == 1 else "are"
        said = f"<strong>{count['violated']} of {len(verdicts)} quantities {verb} violated</strong> on {held}"
    else:
        many = f"{count['undecided']} of {len(verdicts)}"
        said = f"<strong>Whether the constraints hold is undecided</strong> for {many} on {held}"
    sure = f"with {found['confidence']:.0%} confidence"
    return f"<p>{what}. {said}, {sure}. Its mean loss there is {number(found['loss'])}.</p>"


def _certificate(found: Mapping[str, Any]) -> str:
    if not found["name"]:
        return "<p>No constraint was asked for; pass one by <code>--constraint</code>.</p>"
    rows: list[dict[str, Any]] = [
        dict(zip(ROW, each, strict=True)) for each in zip(*(found[key] for key in ROW), strict=True)
    ]
    parts = [
        f"<p>Intervals for the true quantities, rates of decisions among them, on {found['num_rows']:,} rows that were "
        f"held out. With {found['confidence']:.0%} confidence all of them hold together, also where rows depend on "
        "each other.</p>"
    ]
    for limit, two_sided in dict.fromkeys((row["limit"], row["two_sided"]) for row in rows):
        own = [row for row in rows if (row["limit"], row["two_sided"]) == (limit, two_sided)]
        parts += _limited(sorted(own, key=_excess, reverse=True), limit, two_sided)
    return "\n".join(parts + notes(found["notes"]))


def _limited(rows: Sequence[Mapping[str, Any]], limit: float, two_sided: bool) -> list[str]:
    """A picture and a table of the quantities that have one limit."""
    caption, first = f"Limit {'±' if two_sided else ''}{limit:g}", rows[:SHOWN]
    if len(rows) > SHOWN:
        caption += f": the {SHOWN} of {len(rows)} quantities that are nearest to it, or beyond"
    drawn = [drawing.Interval(r["name"], r["estimate"], r["lower"], r["upper"], r["verdict"]) for r in first]
    cells = [
        [escape(r["name"]), badge(r["verdict"]) + _more(r), shown(r["estimate"]), ends(r["lower"], r["upper"])]
        for r in first
    ]
    picture = drawing.intervals(drawn, "estimate and interval", (-limit, limit) if two_sided else (limit,))
    head = ["Quantity", "Verdict", "Estimate", "Interval"]
    return [figure(caption, picture), table(escape(caption), head, cells, "words wide")]


def _excess(row: Mapping[str, Any]) -> float:
    if row["upper"] is None or row["lower"] is None:
        return float("inf")
    return max(row["upper"], -row["lower"]) if row["two_sided"] else row["upper"]


def _more(row: Mapping[str, Any]) -> str:
    if row["reason"]:
        return f'<br><span class="note">{escape(row["reason"])}</span>'
    more = row["more_rows"]
    return f'<br><span class="note">about {more:,} more rows would decide</span>' if more else ""


def notes(found: Sequence[str]) -> list[str]:
    """Plain sentences, each a paragraph."""
    return [f'<p class="note">{escape(note)}</p>' for note in found]


def _cost(results: Mapping[str, Any]) -> str:
    found = results["tradeoff"]
    if found is None:
        return "<p>There is no limit to trade the loss against.</p>"
    drawn = drawing.curve(found["limits"], found["losses"], found["xlabel"], found["ylabel"], found["at"])
    return "\n".join([f"<p>{escape(found['said'])}</p>", figure(found["caption"], drawn)])


def dependence(found: Mapping[str, Any] | None) -> str:
    """What a diagnosis says."""
    if found is None or "tau_mix" not in found:
        why = "" if found is None else escape(found["why"])
        return f"<p>How dependent the rows are could not be told. {why}</p>"
    low, high = map(shown, found["tau_mix_interval"])
    said = (
        f"<p>A row says something about the next {number(found['tau_mix'])} or so (95 % interval {low} to {high}). For "
        f"an average, {found['num_samples']:,} rows are worth about <strong>{found['ess']:,.0f} independent "
        f"ones</strong>: intervals that take rows for independent are about {number(found['factor'])} times too "
        "narrow.</p>"
    )
    rows = [[escape(q["name"]), number(q["time"]), f"{q['ess']:,.0f}"] for q in found["quantities"][:SHOWN]]
    listed = table("Autocorrelation", ["Quantity", "Time (rows)", "Worth (rows)"], rows, "numbers") if rows else ""
    return "\n".join([said, listed, *notes(found["notes"]), *notes(found["warnings"])])


def _coefficients(results: Mapping[str, Any]) -> str:
    parts = []
    for found in results["coefficients"]:
        rows = found["rows"][:SHOWN]
        caption = f"Largest effects on {found['of']}, of one standard deviation"
        parts.append(figure(caption, drawing.bars([(row["name"], row["effect"]) for row in rows], found["unit"])))
        cells = [[escape(row["name"]), number(row["coefficient"]), number(row["mean"]), number(row["std"]),
                  number(row["effect"])] for row in rows]  # fmt: skip
        head = ["Column", "Per unit", "Mean", "Std.", "Per std."]
        parts.append(table(escape(f"Effects on {found['of']}"), head, cells, "numbers wide"))
        parts.append(f"<p class='note'>At the average row {escape(found['of'])} is {number(found['middle'])}. "
                     f"The effects of a category average to 0. {len(found['rows'])} columns in all.</p>")  # fmt: skip
    return "\n".join(parts)


def _columns(data: Mapping[str, Any]) -> str:
    rows = [[escape(name or "(no name)"), escape(what)] for name, what in data["columns"]]
    said = [f"<p>{escape(line)}</p>" for line in data["said"]]
    return "\n".join([*said, table("Columns", ["Column", "Taken as"], rows, "words")])


def setup(settings: Mapping[str, Any]) -> str:
    """All that was asked for."""
    rows = [
        [escape(name.replace("_", "-")), value(given)]
        for name, given in settings.items()
        if given not in (None, [], False)
    ]
    return table("What was asked for", ["Option", "Value"], rows, "words")
