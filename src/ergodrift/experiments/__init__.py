"""Experiments: the paper's, as a library."""

from ergodrift.experiments.config import DESIGNS, Config, configure
from ergodrift.experiments.reproduce import Experiment, reproduce

__all__ = ["DESIGNS", "Config", "Experiment", "configure", "reproduce"]
