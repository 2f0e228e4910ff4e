"""Tables: from columns to rows of numbers, by public knowledge, by private releases, or read off the rows."""

from veil.models import MODELS, build_model
from veil.tables.encoding import Encoding
from veil.tables.guessing import fit_encoding
from veil.tables.predictor import Predictor, load_predictor
from veil.tables.reading import as_table, read_table
from veil.tables.schema import Schema, SchemaColumn, draft_schema, read_schema
from veil.tables.table import Columns, table_problem

__all__ = [
    "MODELS",
    "Columns",
    "Encoding",
    "Predictor",
    "Schema",
    "SchemaColumn",
    "as_table",
    "build_model",
    "draft_schema",
    "fit_encoding",
    "load_predictor",
    "read_schema",
    "read_table",
    "table_problem",
]
