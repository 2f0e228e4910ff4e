"""Controllers: adapt sampler and bound during training, from released values."""

from veil.plans.controllers.adaptive_clip import AdaptiveClip
from veil.plans.controllers.protocol import Constant, Controller, State, Steady, first_release, loudest_release

__all__ = ["AdaptiveClip", "Constant", "Controller", "State", "Steady", "first_release", "loudest_release"]
