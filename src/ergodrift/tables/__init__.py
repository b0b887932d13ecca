"""Tables in files: read a chunk at a time, looked over, turned into numbers in a way that is said and kept."""

from ergodrift.tables.files import Table, TableError
from ergodrift.tables.model import LOSSES, Model
from ergodrift.tables.schema import Feature, Schema, guess
from ergodrift.tables.survey import Column, survey

__all__ = ["LOSSES", "Column", "Feature", "Model", "Schema", "Table", "TableError", "guess", "survey"]
