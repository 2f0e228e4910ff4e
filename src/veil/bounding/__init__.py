"""Bounding: the rules that limit how much one row can move a sum."""

from veil.bounding.bounds import Bound, Clip, Normalise, UnitClip, Weighted, check_row_local
from veil.bounding.group_mean import GroupMean

__all__ = ["Bound", "Clip", "GroupMean", "Normalise", "UnitClip", "Weighted", "check_row_local"]
