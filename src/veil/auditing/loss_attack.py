"""The loss-threshold attack: rows with a low loss are said to be members (Yeom et al. 2018). One model, no training."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import nn

from veil.auditing.shadow_models import score_rows
from veil.plans import LossFunction
from veil.problem import Problem
from veil.training.losses import row_losses

Floats = NDArray[np.float64]


def loss_scores(
    model: nn.Module, members: Problem, others: Problem, loss: LossFunction = row_losses
) -> tuple[Floats, NDArray[np.bool_]]:
    """Minus the loss of every row, members first, and who is a member."""
    losses = [score_rows(model, problem, loss)[1] for problem in (members, others)]
    inside = np.repeat([True, False], [len(losses[0]), len(losses[1])])
    return -np.nan_to_num(np.concatenate(losses), nan=1e6, posinf=1e6), inside
