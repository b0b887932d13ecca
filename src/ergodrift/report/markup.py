"""What the pages share: templates and their parts, tables, numbers as text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import cast

MINUS = "\N{MINUS SIGN}"


def template(name: str) -> str:
    """A file of this package."""
    return files("ergodrift.report").joinpath(name).read_text(encoding="utf-8")


def fill(name: str, parts: Mapping[str, str], results: Mapping[str, object]) -> str:
    """A template filled: `{{claims}}` is a part of the page, `{{config.seeds}}` a value of the results."""

    def filled(match: re.Match[str]) -> str:
        group, _, key = match[1].partition(".")
        return value(cast("Mapping[str, object]", results[group])[key]) if key else parts[group]

    # In one pass: what looks like a placeholder in the text of a result stays text.
    return re.sub(r"\{\{([\w.]+)\}\}", filled, template(name))


def style() -> str:
    """One style for all pages: it stands in the experiment's."""
    found = re.search(r"<style>\n(.*?)\n</style>", template("page.html"), re.DOTALL)
    assert found is not None
    return found[1]


def figure(caption: str, svg: str) -> str:
    """An SVG with its caption, set in as it is: it must be trusted."""
    # What stands before <svg, an XML declaration and a document type, has no place inside HTML.
    drawing, text = svg[svg.index("<svg") :], escape(caption)
    return f'<figure><div role="img" aria-label="{text}">{drawing}</div><figcaption>{text}</figcaption></figure>'


def embedded(data: object) -> str:
    """Data as JSON inside an element of its own."""
    # Without any "<", no text in the data can close the element or open a comment.
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", r"\u003c")


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], kind: str) -> str:
    """Cells are markup; the first of a row names it. The frame can scroll, so it takes the keyboard's focus."""
    heads = "".join(f'<th scope="col">{text}</th>' for text in head)
    body = "\n".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>' for first, *rest in rows
    )
    return f"""<div class="frame" role="region" aria-label="{caption}" tabindex="0"><table class="{kind}">
<caption>{caption}</caption><thead><tr>{heads}</tr></thead>
<tbody>{body}</tbody></table></div>"""


def coded(text: str) -> str:
    """Text in which code stands between backticks."""
    return re.sub(r"`(.*?)`", r"<code>\1</code>", escape(text))


def number(value: float) -> str:
    """Four decimals, as in the paper's table, but for large and small numbers; the page's script does the same."""
    if not math.isfinite(value):
        return "not finite"
    size = abs(value)
    if 0 < size < 0.001:
        return f"{value:.2e}".replace("e-0", "e-").replace("-", MINUS)
    digits = 0 if size >= 1000 else 2 if size >= 10 else 4
    return f"{value:,.{digits}f}".replace("-", MINUS)


def plural(count: int, word: str) -> str:
    """So many of a thing."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def value(given: object) -> str:
    """Any value of the results as text."""
    if isinstance(given, list | tuple):
        return ", ".join(value(entry) for entry in given)
    if isinstance(given, float):
        return f"{given:.6g}".replace("-", MINUS)
    return f"{given:,}" if isinstance(given, int) else escape(str(given))
