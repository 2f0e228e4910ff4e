"""Metrics: how well a model serves each group. The definitions of figures do not need torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veil.metrics.groups import GroupMetrics, GroupScore, evaluate, measure

__all__ = ["GroupMetrics", "GroupScore", "evaluate", "measure"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from veil.metrics import groups

    return getattr(groups, name)
