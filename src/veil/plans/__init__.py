"""Plans: everything that is decided before a row is read, and controllers, which decide from releases."""

from veil.plans.plan import Earlier, LossFunction, Plan
from veil.request import Settings

__all__ = ["Earlier", "LossFunction", "Plan", "Settings"]
