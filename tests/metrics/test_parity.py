"""Parity notions against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from veil.errors import InputError
from veil.metrics.parity import evaluate_parity, parity
from veil.problem import Problem

#                    group a                group b
TARGETS = np.array([1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0])
PREDICTED = np.array([1, 1, 1, 0, 1, 0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0])
GROUPS = np.array([0] * 8 + [1] * 8)


def test_the_notions_are_the_differences_of_rates() -> None:
    found = parity(PREDICTED, TARGETS, GROUPS)
    assert found.demographic_parity == pytest.approx(abs(4 / 8 - 4 / 8))
    assert found.equal_opportunity == pytest.approx(3 / 4 - 1 / 2)
    assert found.equalised_odds == pytest.approx(max(3 / 4 - 1 / 2, 3 / 6 - 1 / 4))


def test_a_perfect_model_has_equal_opportunity_but_not_demographic_parity() -> None:
    found = parity(TARGETS, TARGETS, GROUPS)
    assert (found.equal_opportunity, found.equalised_odds) == (0.0, 0.0)
    assert found.demographic_parity == pytest.approx(4 / 8 - 2 / 8)


def test_more_than_two_classes_are_refused() -> None:
    with pytest.raises(InputError, match="two classes"):
        parity(PREDICTED, TARGETS + 1, GROUPS)


def test_a_model_is_judged_by_its_predictions_and_comes_back_in_its_own_mode() -> None:
    problem = Problem.from_arrays(PREDICTED[:, None].astype(np.float32), TARGETS, ["ab"[g] for g in GROUPS])
    model = torch.nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0], [1.0]]))
        model.bias.copy_(torch.tensor([0.5, -0.5]))
    model.train()
    assert evaluate_parity(model, problem) == parity(PREDICTED, TARGETS, GROUPS)
    assert model.training
