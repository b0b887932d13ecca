"""Put the numbers of bench-results/*.json into laboratory/speed.md and howto/distributed.md, between their markers.

python benchmarks/table.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from ergodrift._core.markdown import table

OUT, DOCS = Path("bench-results"), Path("docs")


def load(name):
    path = OUT / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def one_seed(report):
    names = list(report["rows"]["float32"])

    def cell(kind, name):
        rows = report["rows"][kind]
        if name not in rows:
            return "not installed"
        base = rows["64 seeds, C"] if name.startswith("64") else rows["C"]
        return f"{rows[name]:.2f} ({rows[name] / base:.2f}x)"

    rows = [(name, cell("float32", name), cell("float64", name)) for name in names]
    return table(["µs per round (and seed), multiple of C", "float32", "float64"], rows)


def why(report):
    return table(["", "µs per round (and seed)"], [(name, f"{value:.2f}") for name, value in report["rows"].items()])


def step_overhead(report):
    rows = [
        (row["algorithm"], row["dtype"], *(f"{row[key]:.3f}" for key in ("floor", "one", "twenty")))
        for row in report["rows"]
    ]
    return table(["", "", "loss, constraints, derivatives alone", "one seed", "20 seeds, each"], rows)


def online_step(report):
    rows = [
        (row["name"], row["dtype"], f"{row['ours']:.1f}", f"{row['bare']:.1f}", f"{row['ours'] / row['bare']:.2f}")
        for row in report["rows"]
    ]
    return table(["µs a call", "", "ours", "bare `jax.jit`", "ratio"], rows)


def stream(report):
    """Three tables: streams beside series, learners beside runs and bare calls, memory."""
    ratio = [
        (
            row["name"],
            *(f"{row[key]:.2f}" for key in ("series", "stream", "chunks")),
            f"{row['series'] / row['stream']:.2f}",
        )
        for row in report["throughput"]
    ]
    learners = [
        (
            row["name"],
            *(f"{row[key]:.2f}" for key in ("run", "chunks")),
            f"{row['chunks'] / row['run']:.2f}",
            *(f"{row[key]:.0f}" for key in ("single", "bare", "packed")),
            f"{row['single'] / row['bare']:.2f}",
        )
        for row in report["learner"]
    ]
    memory = [
        (
            f"{row['rows']:,} rows by `{name}`",
            *(f"{row[key] / 1e6:,.0f}" for key in ("bytes", "peak", "growth")),
            f"{row['seconds']:.0f}",
        )
        for name, row in report.get("memory", {}).items()
    ]
    compiled = ", ".join(f"{name} {count}" for name, count in report["compilations"].items())
    parts = [
        table(["µs a row", "series", "stream", "its chunks alone", "series / stream"], ratio),
        table(
            [
                "µs a row",
                "`run`",
                "chunks of 1,000",
                "ratio",
                "one by one",
                "bare `jax.jit`",
                "the same, packed",
                "ratio",
            ],
            learners,
        ),
        f"Compilations of the loop, chunks of 1 to 300,000 rows in all lengths: {compiled}.",
    ]
    if memory:
        parts.append(table(["", "Parquet, MB", "peak, MB", "of which the run, MB", "seconds"], memory))
    return "\n\n".join(parts)


def experiment(report):
    rows = [(name, f"{seconds:.0f} s") for name, seconds in report["rows"].items()]
    return table(["eight algorithms, 20 seeds, 101,562 samples each", ""], rows)


def growth(report):
    rows = []
    for name, row in report["rows"].items():
        if name == "long":
            rows.append(("10^8 samples", f"{row['seconds']:.0f}", "", "", f"{row['peak_bytes'] / 1e6:.0f}"))
            continue
        sizes = ", ".join(f"{size:,}" for size in row["sizes"])
        seconds = ", ".join(f"{second:.2g}" for second in row["seconds"])
        memory = ", ".join(f"{size / 1e6:.0f}" for size in row["peak_bytes"])
        rows.append((f"{name}: {sizes}", seconds, f"{row['exponent']:.2f}", f"{row['last_two']:.2f}", memory))
    return table(["", "seconds", "exponent", "of the last two", "peak memory of the process, MB"], rows)


def sparse(report):
    hand, own = report["rows"]["scipy"], report["rows"]["ergodrift"]
    return table(["µs per round", ""], [("scipy.sparse by hand", f"{hand:.0f}"), ("ergodrift", f"{own:.0f}")])


def reference(report):
    whole = report["rows"]["SLSQP, ftol 1e-15"]["seconds"]
    rows = [
        (name, f"{row['seconds']:.1f}", f"{row['seconds'] / whole:.2f}", f"{row['above']:.0e}")
        for name, row in report["rows"].items()
    ]
    return table(["", "seconds", "multiple of SLSQP", "above the best loss"], rows)


def cold_start(report):
    imports = table(["processor seconds", ""], [(name, f"{s:.2f}") for name, s in report["rows"].items()])
    rows = [
        (name, f"{row['cold']:.2f}", row["programs"], f"{row['cached']:.2f}")
        for name, row in report["algorithms"].items()
    ]
    heads = ["first result, after the import", "processor seconds", "programs compiled", "with the cache"]
    return imports + "\n\n" + table(heads, rows)


def gpu(report):
    rates = [(f"{r['seeds']:,}", f"{r['ours']:.2f}", f"{r['of_roofline']:.0%}") for r in report["seeds"]]
    text = table(["seeds, the paper's problem", "million seed-rounds a second", "of the roofline"], rates)
    against = [
        (f"{name}, {r['seeds']:,}", f"{r['ours']:.2f}", f"{r['by_hand']:.2f}", f"{r['ratio']:.1f}")
        for name, rows in [("plain functions, d = 3", report["plain"]), ("`LinearModel`, d = 30", report["linear"])]
        for r in rows
    ]
    text += "\n\n" + table(["problem, seeds", "ergodrift", "`lax.scan` by hand", "ratio"], against)
    base = report["algorithms"]["EDPP-t"]
    others = [(name, f"{rate:.0f}", f"{rate / base:.0%}") for name, rate in report["algorithms"].items()]
    text += "\n\n" + table(["4,096 seeds, d = 3", "million seed-samples a second", "of EDPP-t"], others)
    wide, net = report["wide"], report["network"]
    sizes = [
        (f"10^6 features, batches of 1,024 rows, {wide['data_gb']:.0f} GB", f"{wide['ours_ms']:.2f}",
         f"{wide['bare_gradient_ms']:.2f}", f"{wide['read_twice_ms']:.2f}"),
        (f"a network of {net['parameters'] / 1e6:.1f} million parameters", f"{net['ours_ms']:.2f}",
         f"{net['bare_gradients_ms']:.2f}", ""),
    ]  # fmt: skip
    text += "\n\n" + table(
        ["one large problem, ms", "a round", "bare gradients by XLA", "to read the batch twice"], sizes
    )
    gaps = dict(report["difference"])
    free, rounding = gaps.pop("SDPP"), gaps.pop("SDPP, CPU, from 1e-15 beside")
    text += f"\n\nA run of 10 samples, compiled before: {report['call']:.1f} ms."
    text += (
        f"\n\nfloat64, 1,000 rounds, every algorithm but SDPP: CPU and GPU differ by at most {max(gaps.values()):.0e}."
    )
    return text + f"\nSDPP: by {free:.0e}; two runs on the CPU that begin 1e-15 apart, by {rounding:.0e} (below)."


def shown(value):
    """A number; or quartiles, as the median and between which two half of the turns lie."""
    if isinstance(value, list):
        low, middle, high = value
        return f"{middle:.2f} ({low:.2f} to {high:.2f})"
    return f"{value:,.0f}"


def walk(report):
    rows = [(name, shown(value)) for name, value in report["rows"].items()]
    return table([f"{report['agents']} agents on a ring, two cores", ""], rows)


def walk_scale(report):
    def number(value):
        return "" if value is None else f"{value:,.1f}" if value % 1 and value < 10 else f"{value:,.0f}"

    rows = [(name, number(row["before"]), number(row["now"])) for name, row in report["rows"].items()]
    return table(["two cores", "before", "now"], rows)


PAGES = {
    "laboratory/speed.md": (
        one_seed,
        why,
        step_overhead,
        online_step,
        stream,
        experiment,
        growth,
        sparse,
        reference,
        cold_start,
        gpu,
    ),
    "howto/distributed.md": (walk, walk_scale),
}


def main() -> None:
    for page, renders in PAGES.items():
        text = (DOCS / page).read_text()
        for render in renders:
            name = render.__name__
            report = load(name)
            if report is None:
                print(f"no {OUT / name}.json: its table stays as it is")
                continue
            block = f"<!-- {name} -->\n{render(report)}\n<!-- /{name} -->"
            place = rf"<!-- {name} -->.*?<!-- /{name} -->"
            text, count = re.subn(place, lambda _, block=block: block, text, flags=re.S)
            if not count:
                raise SystemExit(f"{DOCS / page} has no place for {name}")
        (DOCS / page).write_text(text)


if __name__ == "__main__":
    main()
