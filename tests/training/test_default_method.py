"""The method of `fit` and `session` where none is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import veil
from veil import methods
from veil.problem import Problem


class Planned(Exception):
    """Ends a run when its method is known."""


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found = list[str]()

    def plan(_: Problem, method: Any, **__: Any) -> Any:
        found.append(method if isinstance(method, str) else method.name)
        raise Planned

    monkeypatch.setattr(methods, "plan", plan)
    return found


def problem(groups: int = 2, inputs: Any = None) -> Problem:
    rows = np.zeros((40, 4), np.float32) if inputs is None else inputs
    return Problem.from_arrays(rows, np.arange(40) % 2, [f"g{place % groups}" for place in range(40)])


LINEAR, NETWORK = nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("model", "groups", "given", "method"),
    [
        (LINEAR, 2, {}, "auto"),
        (LINEAR, 1, {"epsilon": 2.0, "seed": 1}, "auto"),
        (LINEAR, 2, {"epochs": 3}, "asc"),
        (LINEAR, 1, {"steps": 3}, "dp-sgd"),
        (LINEAR, 2, {"loss": F.cross_entropy}, "asc"),
        (NETWORK, 2, {}, "asc"),
        (NETWORK, 1, {}, "dp-sgd"),
        (NETWORK, 2, {"method": "dp-sgd"}, "dp-sgd"),
    ],
)
def test_fit_takes_the_method_that_suits_model_groups_and_settings(
    model: nn.Module, groups: int, given: dict[str, Any], method: str, planned: list[str]
) -> None:
    with pytest.raises(Planned):
        veil.fit(model, problem(groups), **given)
    assert planned == [method]


@pytest.mark.parametrize(("groups", "method"), [(1, "dp-sgd"), (2, "asc")])
def test_a_session_is_the_same_without_methods_that_have_no_batches(
    groups: int, method: str, planned: list[str]
) -> None:
    with pytest.raises(Planned):
        veil.session(LINEAR, problem(groups))
    assert planned == [method]


def test_what_is_chosen_trains() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = problem(2, torch.randn(40, 4, generator=generator))
    assert veil.fit(nn.Linear(4, 2), rows, epsilon=2.0, seed=1).certificate.method == "auto"
    assert veil.fit(nn.Linear(4, 2), rows, epsilon=2.0, steps=2, batch_size=10, seed=1).certificate.method == "asc"
