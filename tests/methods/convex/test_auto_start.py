"""Where `auto` starts: rare classes as heavy as others where groups are made with them; no weight for unseen gaps."""

from __future__ import annotations

import math

import pytest
import torch

import veil
from veil import methods
from veil.foundation.randomness import Seed
from veil.methods.convex.steered_descent import SteeredDescent
from veil.models import build_model
from veil.plans import Settings
from veil.problem import Cell, Problem, PublicFacts


def start_of(groups: dict[str, int], classes: tuple[str, ...], aim: str = "worst-group") -> list[float]:
    cells = tuple(Cell(group, 0, rows) for group, rows in enumerate(groups.values()))
    facts = PublicFacts(tuple(groups), ("all",), cells, (4,), classes=classes)
    plan = methods.create("auto", {"aim": aim}).plan(facts, Settings.checked(epsilon=1.0))
    assert isinstance(plan.solver, SteeredDescent)
    return list(plan.solver.start)


def test_a_rare_class_that_is_a_group_starts_as_heavy_as_the_others() -> None:
    start = start_of({"0": 20_000, "1": 20_000, "2": 2_000}, ("0", "1", "2"))
    assert start[2] - start[0] == pytest.approx(math.log(10))


@pytest.mark.parametrize("groups", [("a", "b", "c"), ("0 × f", "1 × f", "2 × f")])
def test_other_groups_start_alike(groups: tuple[str, ...]) -> None:
    assert start_of(dict(zip(groups, (20_000, 20_000, 2_000), strict=True)), ("0", "1", "2")) == [0.0] * 3


def test_a_class_that_is_not_heard_starts_as_heavy_as_the_others() -> None:
    """Else it would be predicted for nobody, and no release would ever say so."""
    start = start_of({"0": 2_000, "1": 1_000, "2": 40}, ("0", "1", "2"))
    assert start[2] - start[0] == pytest.approx(math.log(50))


def test_a_unit_that_is_not_heard_starts_as_the_average_row() -> None:
    start = start_of({"a": 20_000, "b": 2_000, "c": 3}, ("no", "yes"), "balanced")
    assert start[2] == 0.0
    assert 20_000 * start[0] + 2_000 * start[1] == pytest.approx(0.0, abs=1e-6)


def test_a_gap_that_no_row_has_gets_no_weight() -> None:
    """Its weight would be noise alone, and a new row with a gap would be judged by it."""
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(4_000, generator=generator) * 2 - 1
    missing = (torch.rand(4_000, generator=generator) < 0.3).float()
    inputs = torch.stack([values, torch.zeros(4_000), values.flip(0), missing], dim=1)
    problem = Problem.from_arrays(inputs, (values > 0).long().numpy(), ["all"] * 4_000, classes=[0, 1])
    model = build_model("additive", problem.public, Seed.from_int(0), blocks=[2, 2], numbers=[0, 2])
    veil.fit(model, problem, method="auto", epsilon=1.0, seed=1)
    weight = model[-1].weight  # type: ignore[index]
    assert not weight[:, 1].any()
    assert weight[:, 3].any()
