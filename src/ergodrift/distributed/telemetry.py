"""What a walk says while it goes on: to a function, to a CSV file, or to TensorBoard."""

from __future__ import annotations

import csv
import importlib
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

Numbers: TypeAlias = Mapping[str, float]
Callback: TypeAlias = Callable[[Numbers], object]


def callback_of(log: Callback | str | os.PathLike[str] | None) -> Callback | None:
    """A function as it is; a file that ends in .csv is written to, and in any other folder TensorBoard finds events."""
    if log is None or callable(log):
        return log
    return CsvLog(log) if Path(log).suffix == ".csv" else TensorBoardLog(log)


class CsvLog:
    """One row for each report, appended and flushed: it can be watched while a walk goes on."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise ValueError(f"log: the folder of {self.path} does not exist")

    def __call__(self, numbers: Numbers) -> None:
        new = not self.path.exists() or self.path.stat().st_size == 0
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(numbers))
            if new:
                writer.writeheader()
            writer.writerow(numbers)


class TensorBoardLog:
    """Scalars for TensorBoard, by the writer of tensorboardX or of PyTorch, whichever is installed."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.writer: Any = None
        for name in ("tensorboardX", "torch.utils.tensorboard"):
            try:
                self.writer = importlib.import_module(name).SummaryWriter(os.fspath(folder), flush_secs=1)
            except ImportError:
                continue
            weakref.finalize(self, self.writer.close)  # it writes by a thread, which has the last report till then
            return
        raise ImportError("a log for TensorBoard needs tensorboardX: pip install tensorboardX, or name a .csv file")

    def __call__(self, numbers: Numbers) -> None:
        for name, value in numbers.items():
            if name != "hop":
                self.writer.add_scalar(name, value, int(numbers["hop"]))
        self.writer.flush()
