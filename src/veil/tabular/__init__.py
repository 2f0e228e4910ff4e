"""Tables: from columns to rows of numbers, by public knowledge, by private releases, or read off the rows."""

from veil.models import MODELS, build_model
from veil.tabular.encoding import Encoding
from veil.tabular.guessing import fit_encoding
from veil.tabular.predictor import Predictor, load_predictor
from veil.tabular.reading import as_table, read_table
from veil.tabular.schema import ColumnFacts, Schema, draft_schema, read_schema
from veil.tabular.table import table_problem

__all__ = [
    "MODELS",
    "ColumnFacts",
    "Encoding",
    "Predictor",
    "Schema",
    "as_table",
    "build_model",
    "draft_schema",
    "fit_encoding",
    "load_predictor",
    "read_schema",
    "read_table",
    "table_problem",
]
