"""Bounding: the rules that limit how much one row can move a sum."""

from veil.bounding.bounds import (
    Bound,
    Clip,
    Normalise,
    TighterClip,
    UnitClip,
    Weighted,
    by_row,
    check_row_local,
    looks_at_one_row,
)
from veil.bounding.global_scale import GlobalScale, UnitGroupClip
from veil.bounding.group_mean import GroupMean
from veil.bounding.ordered import BetaTail, LinearTail, Ordered, StepTail, tail_from

__all__ = [
    "BetaTail",
    "Bound",
    "Clip",
    "GlobalScale",
    "GroupMean",
    "LinearTail",
    "Normalise",
    "Ordered",
    "StepTail",
    "TighterClip",
    "UnitClip",
    "UnitGroupClip",
    "Weighted",
    "by_row",
    "check_row_local",
    "looks_at_one_row",
    "tail_from",
]
