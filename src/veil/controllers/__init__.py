"""Controllers: what is learned about the groups on the way, and how it moves sampler and bound."""

from veil.controllers.adaptive_clip import AdaptiveClip
from veil.controllers.protocol import Constant, Controller, State, Steady

__all__ = ["AdaptiveClip", "Constant", "Controller", "State", "Steady"]
