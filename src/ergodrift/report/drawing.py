"""Small pictures in SVG, drawn without a library; colours come from the page's style, so they suit light and dark."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from ergodrift.report.markup import number

WIDTH, ROW, SIDE = 460, 26, 8
LETTER = 7.0  # pixels a letter takes, about
LONGEST = 22  # letters of a label
STYLE = """
figure > div { background: var(--card); max-width: 40rem; }
figure svg { width: min(100%, 35rem); }
figure svg text { font: 13px var(--plain); fill: var(--ink); font-variant-numeric: tabular-nums; }
figure svg .soft { fill: var(--soft); font-size: 12px; }
figure svg .end { text-anchor: end; }
figure svg .middle { text-anchor: middle; }
figure svg .mark { stroke: var(--accent); stroke-width: 3; fill: none; stroke-linecap: round; }
figure svg .point { fill: var(--accent); stroke: var(--card); stroke-width: 1.5; }
figure svg .satisfied { --accent: var(--good); }
figure svg .violated { --accent: var(--bad); }
figure svg .undecided { --accent: var(--open); }
figure svg .limit { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 5 4; }
figure svg .bar { fill: var(--accent); }
figure svg .bar.less { fill: var(--bad); }
figure svg .path { fill: none; stroke: var(--accent); stroke-width: 2.5; stroke-linejoin: round; }
"""


class Interval(NamedTuple):
    """A row of `intervals`: what it is of, its value and ends, None where there is none, and a class of the style."""

    label: str
    middle: float | None
    low: float | None
    high: float | None
    kind: str = ""


class Scale:
    """From numbers to pixels along one axis."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        low, high = min(values), max(values)
        room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
        self.low, self.high, self.first, self.last = low - room, high + room, first, last

    def __call__(self, value: float) -> float:
        share = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        return round(self.first + share * (self.last - self.first), 1)

    def ticks(self, most: int = 5) -> list[float]:
        """Round numbers within the range.

        >>> Scale([0.0, 0.1], 0, 100).ticks()
        [0.0, 0.05, 0.1]
        """
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
        first = math.ceil(self.low / step)
        return [round(k * step, 12) for k in range(first, math.floor(self.high / step) + 1)]


def intervals(rows: Sequence[Interval], xlabel: str, limits: Sequence[float] = ()) -> str:
    """Rows of points with their intervals above one axis, limits as dashed lines; what is too long ends at the edge."""
    left = SIDE + LETTER * min(max(len(row.label) for row in rows), LONGEST) + 12
    x = Scale([*_shown(rows), *limits] or [0.0, 1.0], left, WIDTH - SIDE - 6)
    bottom = 10 + ROW * len(rows)
    parts = [_axis(x, bottom, xlabel)]
    parts += [f'<line class="limit" x1="{x(v)}" x2="{x(v)}" y1="4" y2="{bottom}"/>' for v in limits]
    for place, row in enumerate(rows):
        y = 10 + ROW * place + ROW / 2
        parts.append(f'<g class="{row.kind}"><title>{escape(_said(row))}</title>{_label(row.label, left - 12, y)}')
        if row.low is not None or row.high is not None:
            ends = x(x.low if row.low is None else row.low), x(x.high if row.high is None else row.high)
            parts.append(f'<line class="mark" x1="{ends[0]}" x2="{ends[1]}" y1="{y}" y2="{y}"/>')
        if row.middle is not None:
            parts.append(f'<circle class="point" cx="{x(row.middle)}" cy="{y}" r="5"/>')
        parts.append("</g>")
    return _svg(bottom + 44, parts)


def _shown(rows: Sequence[Interval]) -> list[float]:
    """What the axis must hold: all points, and the ends of intervals but for those far longer than most."""
    lengths = [row.high - row.low for row in rows if row.low is not None and row.high is not None]
    most = 6 * statistics.median(lengths) if lengths else 0.0
    found = [row.middle for row in rows if row.middle is not None]
    for row in rows:
        if row.low is not None and row.high is not None and row.high - row.low <= most:
            found += [row.low, row.high]
    return found


def bars(rows: Sequence[tuple[str, float]], xlabel: str) -> str:
    """Bars from zero to either side."""
    left = SIDE + LETTER * min(max(len(label) for label, _ in rows), LONGEST) + 12
    x = Scale([0.0, *(value for _, value in rows)], left, WIDTH - SIDE - 6)
    bottom = 10 + ROW * len(rows)
    parts = [_axis(x, bottom, xlabel), f'<line class="zero" x1="{x(0)}" x2="{x(0)}" y1="4" y2="{bottom}"/>']
    for place, (label, value) in enumerate(rows):
        y = 10 + ROW * place + ROW / 2
        begin, end = sorted((x(0), x(value)))
        kind = "bar" if value >= 0 else "bar less"
        parts.append(f"<g><title>{escape(f'{label}: {number(value)}')}</title>{_label(label, left - 12, y)}")
        parts.append(
            f'<rect class="{kind}" x="{begin}" width="{max(end - begin, 1):.1f}" y="{y - 8}" height="16" rx="2"/></g>'
        )
    return _svg(bottom + 44, parts)


def curve(
    xs: Sequence[float], ys: Sequence[float], xlabel: str, ylabel: str, at: tuple[float, float] | None = None
) -> str:
    """A line through points; one of them, or another, is marked."""
    top, bottom, left = 30, 270, 64
    x = Scale([*xs, *([at[0]] if at else [])], left, WIDTH - SIDE - 6)
    y = Scale([*ys, *([at[1]] if at else [])], bottom, top)
    parts = [_axis(x, bottom, xlabel), f'<text class="soft" x="{SIDE}" y="16">{escape(ylabel)}</text>']
    for value in y.ticks():
        parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH - SIDE}" y1="{y(value)}" y2="{y(value)}"/>')
        parts.append(f'<text class="soft end" x="{left - 8}" y="{y(value) + 4}">{_tick(value)}</text>')
    points = " ".join(f"{x(a)},{y(b)}" for a, b in zip(xs, ys, strict=True))
    parts.append(f'<polyline class="path" points="{points}"/>')
    parts += [f'<circle class="point" cx="{x(a)}" cy="{y(b)}" r="3.5"/>' for a, b in zip(xs, ys, strict=True)]
    if at:
        parts.append(f'<line class="limit" x1="{x(at[0])}" x2="{x(at[0])}" y1="{top - 8}" y2="{bottom}"/>')
        parts.append(f'<circle class="point" cx="{x(at[0])}" cy="{y(at[1])}" r="7"/>')
    return _svg(bottom + 44, parts)


def _axis(x: Scale, y: float, label: str) -> str:
    marks = "".join(
        f'<line class="grid" x1="{x(value)}" x2="{x(value)}" y1="4" y2="{y}"/>'
        f'<text class="soft middle" x="{x(value)}" y="{y + 17}">{_tick(value)}</text>'
        for value in x.ticks()
    )
    middle = (x.first + x.last) / 2
    return f'{marks}<text class="soft middle" x="{middle:.1f}" y="{y + 36}">{escape(label)}</text>'


def _tick(value: float) -> str:
    return f"{value:,.6g}".replace("-", "\N{MINUS SIGN}")


def _label(text: str, right: float, y: float) -> str:
    shown = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return f'<text class="end" x="{right:.1f}" y="{y + 4.5}">{escape(shown)}</text>'


def _said(row: Interval) -> str:
    ends = ["no end" if end is None else number(end) for end in (row.low, row.high)]
    middle = "no value" if row.middle is None else number(row.middle)
    return f"{row.label}: {middle} [{ends[0]}, {ends[1]}]"


def _svg(height: float, parts: Sequence[str]) -> str:
    body = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" xmlns="http://www.w3.org/2000/svg">{body}</svg>'
