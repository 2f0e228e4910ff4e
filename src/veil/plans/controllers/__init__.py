"""Controllers: what is learned about the groups on the way, and how it moves sampler and bound."""

from veil.plans.controllers.adaptive_clip import AdaptiveClip
from veil.plans.controllers.protocol import Constant, Controller, State, Steady, first_release

__all__ = ["AdaptiveClip", "Constant", "Controller", "State", "Steady", "first_release"]
