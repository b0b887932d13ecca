"""Tables in Markdown, for studies, benchmarks and commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table with these column heads.

    >>> print(table(["data", "n"], [["AR(1)", 20]]))
    | data | n |
    |---|---|
    | AR(1) | 20 |
    """

    def line(cells: Sequence[object]) -> str:
        return "| " + " | ".join(map(str, cells)) + " |"

    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)])
