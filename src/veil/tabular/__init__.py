"""Tables: from columns to rows of numbers, and models for them."""

from veil.tabular.encoding import Encoding, fit_encoding
from veil.tabular.models import MODELS, build_model
from veil.tabular.table import read_table, table_problem

__all__ = ["MODELS", "Encoding", "build_model", "fit_encoding", "read_table", "table_problem"]
