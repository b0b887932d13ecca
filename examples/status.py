"""The page of the service: what it has learned, whether that keeps its limit, whether the law has changed."""

from __future__ import annotations

import time
from html import escape
from pathlib import Path

import numpy as np

import ergodrift as ed

LIMIT = 0.05  # of the demand may be missing, on average
STYLE = """
:root { color-scheme: light dark; --ink: #1c1f23; --soft: #5b6470; --ground: #fff; --line: #0072b2; --limit: #a8500a }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaed; --soft: #a3adb8; --ground: #15181c; --line: #56b4e9; --limit: #e69f00 } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 44rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem }
th { text-align: left; font-weight: 400; color: var(--soft); padding-right: 1.5rem }
@media (min-width: 40rem) { th { white-space: nowrap } }
th, td { vertical-align: top; padding-block: .15rem } figure { margin: 1.5rem 0 } figcaption { color: var(--soft) }
svg { width: 100%; height: auto; display: block } text { font-size: 13px; fill: var(--soft) }
polyline { fill: none; stroke: var(--line); stroke-width: 2 } line { stroke: var(--limit); stroke-dasharray: 5 4 }
"""


def write(path: Path, learner: ed.Learner) -> None:
    """At any moment the old page or the new one is there, whole."""
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.write_text(page(learner), encoding="utf-8")
    scratch.replace(path)


def page(learner: ed.Learner) -> str:
    history = learner.history
    told = {
        "Hours learned from": f"{learner.samples_seen:,}",
        "Lines left out": f"{learner.note.get('left_out', 0):,}",
        "Rule of now": rule(learner.solution),
        "Rule on trial": "none yet" if learner.watched is None else rule(learner.watched),
        "Does it keep the limit?": verdict(learner.certificate),
        "Has the law changed?": change(learner.drift),
        "Written": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    rows = "".join(f"<tr><th scope=row>{name}</th><td>{escape(text)}</td></tr>" for name, text in told.items())
    samples = np.asarray(history.samples)
    reserved, missing = (np.ravel(sums) / samples for sums in (history.loss_sum, history.constraint_sum))
    drawn = figure("Power reserved, mean of all hours so far", samples, reserved)
    drawn += figure(f"Demand missing, mean of all hours so far; dashed: the limit of {LIMIT}", samples, missing + LIMIT)
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Power to reserve</title>
<meta name="viewport" content="width=device-width"><meta http-equiv="refresh" content="5"><style>{STYLE}</style>
<body><main><h1>Power to reserve</h1><table>{rows}</table>{drawn}</main></body></html>"""


def rule(x: np.ndarray) -> str:
    return f"r = {x[0]:.3f} + {x[1]:.3f} cold + {x[2]:.3f} calm".replace("+ -", "\N{MINUS SIGN} ")


def verdict(certificate: ed.Certificate | None) -> str:
    if certificate is None:
        return "nothing is on trial"
    low, mean, high = (LIMIT + float(end[0]) for end in (certificate.lower, certificate.estimate, certificate.upper))
    between = f", between {low:.4f} and {high:.4f} at 95 %" if np.isfinite([low, high]).all() else ""
    return f"{certificate.verdict[0]}: {mean:.4f} missing in {certificate.num_samples:,} hours on trial{between}"


def change(drift: ed.Drift | None) -> str:
    if drift is None:
        return "no sign of it"
    what = f"{drift.aspect} of {('power reserved', 'demand missing')[drift.column]}"
    return f"yes: {what}, from {drift.before:.3g} to {drift.after:.3g}, found in hour {drift.sample:,} on trial"


def figure(caption: str, samples: np.ndarray, values: np.ndarray) -> str:
    """A line over samples, with the limit where that is what it is about."""
    limit = LIMIT if "limit" in caption else None
    shown = values if limit is None else np.append(values, limit)
    low, height = float(shown.min()), float(np.ptp(shown)) or 1.0
    x, y = 580 * samples / samples[-1], 130 - 120 * (shown - low) / height
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=False))
    dashes = "" if limit is None else f'<line x1="0" x2="580" y1="{y[-1]:.1f}" y2="{y[-1]:.1f}"/>'
    now = f'<text x="588" y="{y[len(x) - 1] + 4:.1f}">{values[-1]:.3g}</text>'
    axis = f'<text x="0" y="152">hour 1</text><text x="580" y="152" text-anchor="end">{samples[-1]:,}</text>'
    drawing = f'{dashes}<polyline points="{points}"/>{now}{axis}'
    caption = f"{caption}; drawn from {low:.3g} to {low + height:.3g}"
    label = f'viewBox="0 0 640 160" role="img" aria-label="{caption}: now {values[-1]:.3g}"'
    return f"<figure><figcaption>{caption}</figcaption><svg {label}>{drawing}</svg></figure>"
