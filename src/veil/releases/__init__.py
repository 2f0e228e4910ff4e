"""Releases: the one place where sampling, bounds, noise and their events meet."""

from veil.releases.allowance import Allowance
from veil.releases.release import (
    GradientRelease,
    LossRelease,
    PrivateView,
    Released,
    SideRelease,
    Statistic,
    clamp_to_limits,
)

__all__ = [
    "Allowance",
    "GradientRelease",
    "LossRelease",
    "PrivateView",
    "Released",
    "SideRelease",
    "Statistic",
    "clamp_to_limits",
]
