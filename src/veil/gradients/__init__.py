"""Per-row gradients: losses, norms and weighted sums for any module, one rule per layer kind, a generic fallback.

>>> import torch
>>> from torch import nn
>>> model = nn.Linear(2, 1)
>>> engine = GradientEngine(model, lambda model, rows: model(rows).squeeze(1))
>>> engine.norms_and_losses(torch.eye(2)).norms
tensor([1.4142, 1.4142])
"""

from veil.gradients.engine import GradientEngine
from veil.gradients.fixing import fix
from veil.gradients.probing import Finding
from veil.gradients.records import Batch, FallbackWarning, GradientError, GradientSum, LossFn, PerRow, Weigh
from veil.gradients.validation import check, validate

__all__ = [
    "Batch",
    "FallbackWarning",
    "Finding",
    "GradientEngine",
    "GradientError",
    "GradientSum",
    "LossFn",
    "PerRow",
    "Weigh",
    "check",
    "fix",
    "validate",
]
