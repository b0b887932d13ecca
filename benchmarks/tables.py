"""Estimators on tables: ConstrainedClassifier beside LogisticRegression (saga) and fairlearn's ExponentiatedGradient.

python benchmarks/tables.py [--tables compas,adult,flights] [--kinds ergodrift,saga,fairlearn] [--write-docs]

Loss and gap of rates on the rows of the fit and on later rows, seconds of `fit` in a fresh process (compilation
included), and how far the loss is from that of an independent solver with the same gap (SLSQP).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common import write
from scipy.optimize import minimize

from ergodrift import datasets
from ergodrift._core import markdown

LIMITS = {"adult": 0.05, "compas": 0.15, "flights": 0.15}
FAIRLEARN_ROWS = 40_000  # each of its rounds fits a classifier to all of them
NAMES = {
    "ergodrift": "ConstrainedClassifier",
    "saga": "LogisticRegression(saga)",
    "fairlearn": "ExponentiatedGradient(LogisticRegression)",
}
PAGE = Path(__file__).parents[1] / "docs" / "howto" / "tables.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
OCTOBER = np.datetime64("2013-10-01")


def table(name) -> Any:
    """X, y, group and whether a row is later."""
    if name == "adult":
        parts = [datasets.adult("train"), datasets.adult("test")]
        frame: Any = pd.concat([pd.DataFrame(dict(part.columns)) for part in parts], ignore_index=True)
        later = np.repeat([False, True], [len(part) for part in parts])
        y, group = (frame["income"] == ">50K").to_numpy(), frame["sex"]
        numbers = ["age", "education_num", "capital_gain", "capital_loss", "hours_per_week"]
        kinds = ["workclass", "marital_status", "occupation", "relationship", "race"]
    elif name == "compas":
        frame = pd.DataFrame(dict(datasets.compas().columns))
        later = np.arange(len(frame)) >= len(frame) * 4 // 5
        y, group = (frame["two_year_recid"] == 1).to_numpy(), frame["race"] == "African-American"
        numbers, kinds = ["age", "priors_count", "juv_fel_count", "juv_misd_count"], ["sex", "c_charge_degree"]
    else:
        frame = pd.DataFrame(dict(datasets.flights().columns))
        later = (frame["date"] >= OCTOBER).to_numpy()
        delay = frame["arr_delay"]
        y, group = (delay.isna() | (delay > 0)).to_numpy(), frame["carrier"]
        common = group.value_counts()
        group = group.where(group.map(common) >= 0.05 * len(group), "other")
        frame["hour"] = frame["minutes"] // 60
        numbers, kinds = ["distance"], ["carrier", "origin", "hour", "month"]
    X = pd.concat([frame[numbers], pd.get_dummies(frame[kinds].astype(str))], axis=1).astype(float)
    return X, y, group.astype(str), later


def fitted(name, kind):
    """Fit in this process; what came of it as JSON."""
    X, y, group, later = table(name)
    model: Any
    limit = LIMITS[name]
    Xt, yt, gt = X[~later], y[~later], group[~later]
    extra = {}
    if kind == "ergodrift":
        from ergodrift.sklearn import ConstrainedClassifier, DemographicParity

        model = ConstrainedClassifier(constraints=DemographicParity(limit), random_state=0)
        began = time.perf_counter()
        model.fit(Xt, yt, sensitive_features=gt)
        seconds = time.perf_counter() - began
        began = time.perf_counter()
        model.fit(Xt, yt, sensitive_features=gt)
        held = round(0.2 * len(yt))
        extra = {
            "again": time.perf_counter() - began,
            "runs": model.n_runs_,
            "certificate": str(model.certificate_),
            "verdict": "satisfied" if model.certificate_.satisfied else "not certified",
            "later": str(model.certify(X[later], y[later], sensitive_features=group[later])),
            "excess": optimum(model, Xt[:-held], yt[:-held], gt[:-held]),
        }
        probability = model.predict_proba
    elif kind == "saga":
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        model = make_pipeline(StandardScaler(), LogisticRegression(solver="saga"))
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(Xt, yt)
        seconds = time.perf_counter() - began
        probability = model.predict_proba
    else:
        from fairlearn.reductions import DemographicParity, ExponentiatedGradient
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        scaler = StandardScaler().fit(Xt)
        rows = (
            np.arange(len(yt)) if len(yt) <= FAIRLEARN_ROWS else np.linspace(0, len(yt) - 1, FAIRLEARN_ROWS, dtype=int)
        )
        # fairlearn limits groups against all rows: half the limit implies it between any two.
        model = ExponentiatedGradient(LogisticRegression(max_iter=1000), DemographicParity(difference_bound=limit / 2))
        began = time.perf_counter()
        model.fit(scaler.transform(Xt.iloc[rows]), yt[rows], sensitive_features=gt.iloc[rows])
        seconds = time.perf_counter() - began
        extra = {"rows": len(rows)}

        def probability(X) -> Any:
            pairs = [(w, p) for w, p in zip(model.weights_, model.predictors_, strict=True) if w > 0]
            return sum(w * p.predict_proba(scaler.transform(X)) for w, p in pairs)

    found = {"seconds": seconds, **extra}
    for part, rows in {"fit": ~later, "later": later}.items():
        p = np.clip(probability(X[rows])[:, 1], 1e-6, 1 - 1e-6)
        rates: Any = pd.Series(p > 0.5).groupby(group[rows].to_numpy()).mean()
        loss = -np.mean(np.where(y[rows], np.log(p), np.log1p(-p)))
        found |= {f"loss_{part}": float(loss), f"gap_{part}": float(rates.max() - rates.min())}
    print(json.dumps(found))


def optimum(model, X, y, group):
    """How much more loss the model has than SLSQP finds with no larger smoothed gap between any two groups."""
    X = X.to_numpy()
    spread = X.std(axis=0)
    kept = spread > 0
    mean, spread = X[:, kept].mean(axis=0), spread[kept]
    Z = np.column_stack([(X[:, kept] - mean) / spread, np.ones(len(X))])
    sign = np.where(y, 1.0, -1.0)
    ours = np.append(model.coef_[0][kept] * spread, model.intercept_[0] + model.coef_[0] @ X.mean(axis=0))
    names = np.unique(group)
    members = [np.flatnonzero(group.to_numpy() == name) for name in names]
    parts = [Z[rows] for rows in members]

    def loss(x):
        margins = sign * (Z @ x)
        return np.logaddexp(0, -margins).mean(), -(Z.T @ (sign / (1 + np.exp(margins)))) / len(Z)

    def rates(x):
        p = [1 / (1 + np.exp(-4 * (part @ x))) for part in parts]
        return np.array([each.mean() for each in p]), np.stack(
            [part.T @ (4 * each * (1 - each)) / len(part) for part, each in zip(parts, p, strict=True)]
        )

    first, second = np.triu_indices(len(names), 1)
    first, second = np.append(first, second), np.append(second, first)
    bound = np.ptp(rates(ours)[0])
    constraint = {
        "type": "ineq",
        "fun": lambda x: (lambda r: bound - (r[first] - r[second]))(rates(x)[0]),
        "jac": lambda x: (lambda j: j[second] - j[first])(rates(x)[1]),
    }
    best = loss(ours)[0]
    for start in (ours, np.zeros(len(ours))):
        found = minimize(loss, start, jac=True, method="SLSQP", constraints=[constraint],
                         options={"maxiter": 300, "ftol": 1e-9})  # fmt: skip
        if found.success and np.ptp(rates(found.x)[0]) <= bound + 1e-5:
            best = min(best, found.fun)
    return float(loss(ours)[0] / best - 1)


def measured(name, kind):
    """The same in a fresh process, without anything compiled before; None where a package is missing."""
    environment = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, __file__, "--one", name, kind], capture_output=True, text=True, env=environment
    )
    if "ModuleNotFoundError" in done.stderr:
        return None
    done.check_returncode()
    return json.loads(done.stdout.splitlines()[-1])


def as_table(rows):
    """One line for each table and estimator."""
    head = ["table, limit", "", "loss, fit", "gap, fit", "loss, later", "gap, later", "certified", "above optimum", "s"]
    lines = []
    for (name, kind), row in rows.items():
        numbers = [f"{row[key]:.4f}" for key in ("loss_fit", "gap_fit", "loss_later", "gap_later")]
        excess = f"{row['excess']:.3%}" if "excess" in row else ""
        lines.append([f"{name}, {LIMITS[name]}", NAMES[kind], *numbers, row.get("verdict", ""), excess,
                      f"{row['seconds']:.1f}"])  # fmt: skip
    return markdown.table(head, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", default="compas,adult,flights")
    parser.add_argument("--kinds", default=",".join(NAMES))
    parser.add_argument("--one", nargs=2, metavar=("TABLE", "KIND"), help="in this process, as JSON")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/howto/tables.md")
    given = parser.parse_args()
    if given.one:
        fitted(*given.one)
        return
    rows = {}
    for name in given.tables.split(","):
        for kind in given.kinds.split(","):
            found = measured(name, kind)
            if found is None:
                print(f"{name}, {kind}: a package is missing")
                continue
            rows[name, kind] = found
            print(f"{name}, {NAMES[kind]}: {found['seconds']:.1f} s", flush=True)
            for key in ("certificate", "later"):
                if key in found:
                    print(found[key], flush=True)
    print(as_table(rows))
    write("tables", {"limits": LIMITS, "rows": {", ".join(key): row for key, row in rows.items()}})
    if given.write_docs:
        text = PAGE.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{as_table(rows)}\n{END}{after}")


if __name__ == "__main__":
    main()
