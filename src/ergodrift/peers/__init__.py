"""The tools people use, and ours, on the same tasks: dependent data, constraints, independent optima."""

from ergodrift.peers.task import Optimum, Table, Task

__all__ = ["Optimum", "Table", "Task"]
