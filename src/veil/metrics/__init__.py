"""Metrics: how well a model serves each group."""

from veil.metrics.groups import GroupMetrics, GroupScore, evaluate, measure

__all__ = ["GroupMetrics", "GroupScore", "evaluate", "measure"]
