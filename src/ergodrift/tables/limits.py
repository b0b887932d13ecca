"""Limits as people type them: `demographic_parity_difference <= 0.1`, `accuracy >= 0.7`."""

from __future__ import annotations

import re
from typing import NamedTuple

from ergodrift.tables.files import TableError

# Names that fairlearn's users know, as metrics whose groups are compared.
KNOWN = {
    "demographic_parity": ("selection_rate",),
    "equal_opportunity": ("true_positive_rate",),
    "equalized_odds": ("true_positive_rate", "false_positive_rate"),
}


class Limit(NamedTuple):
    """What is asked of an audit.

    Attributes:
        text: as it was typed.
        metrics: each of them is to keep it.
        of: "difference" or "ratio" of any two groups, or "value": of every group.
        at_most: else at least.
        number: the limit.
    """

    text: str
    metrics: tuple[str, ...]
    of: str
    at_most: bool
    number: float


def limit_from_text(text: str) -> Limit:
    """A limit as people type it.

    >>> limit_from_text("equalized_odds_difference <= 0.1").metrics
    ('true_positive_rate', 'false_positive_rate')
    >>> limit_from_text("accuracy >= 0.7").of
    'value'
    """
    found = re.fullmatch(r"\s*([A-Za-z_][\w -]*?)\s*(<=|>=|<|>|≤|≥)\s*(\S+)\s*", text)
    if found is None:
        raise TableError(f"--limit {text!r} is not of the form 'NAME <= NUMBER', such as {EXAMPLE}")
    name, sign = re.sub(r"[ -]+", "_", found[1]).lower(), found[2]
    try:
        number = float(found[3])
    except ValueError:
        raise TableError(f"--limit {text!r}: {found[3]!r} is no number") from None
    of = next((kind for kind in ("difference", "ratio") if name.endswith(f"_{kind}")), "value")
    base, at_most = name.removesuffix(f"_{of}"), sign[0] in "<≤"
    if of == "value" and base in KNOWN:
        raise TableError(f"--limit {text!r}: write {base}_difference <= or {base}_ratio >=")
    if of != "value" and at_most != (of == "difference"):
        raise TableError(f"--limit {text!r}: a {of} is limited from {'above' if of == 'difference' else 'below'}")
    if of == "ratio" and not 0 < number <= 1:
        raise TableError(f"--limit {text!r}: the smallest ratio of two groups is between 0 and 1")
    if of == "difference" and not number > 0:
        raise TableError(f"--limit {text!r}: a largest difference is positive")
    return Limit(text, KNOWN.get(base, (base,)), of, at_most, number)


EXAMPLE = '"demographic_parity_difference <= 0.1", "selection_rate_ratio >= 0.8" or "accuracy >= 0.7"'
