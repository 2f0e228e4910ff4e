"""Tail activity: what the order removes of public rows' gradients, and the sentence when there is nothing left."""

from __future__ import annotations

import pytest
import torch

from tests.methods.method_cases import plan_for
from veil.errors import InputError
from veil.metrics.tail_activity import tail_activity
from veil.problem import Problem
from veil.training.fitting import row_losses


def two_owners(owners: tuple[str, str] = ("careful", "open")) -> Problem:
    """Owner 0 has rows of class 0 on the left, owner 1 of class 1 on the right."""
    x = torch.tensor([[-1.0], [1.0]]).repeat(60, 1)
    budgets = dict(zip(owners, (0.5, 2.0), strict=True))
    return Problem.from_arrays(x, [0, 1] * 60, owners=list(owners) * 60, budgets=budgets, classes=[0, 1])


def linear(left: float, right: float) -> torch.nn.Linear:
    """Logits right·x for class 1 where x > 0 and so on: a large number means rows that are learnt."""
    model = torch.nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-left - right], [left + right]]) / 4)
        model.bias.copy_(torch.tensor([left - right, right - left]) / 4)
    return model


def test_where_gradients_have_vanished_ino_is_said_to_do_nothing() -> None:
    problem = two_owners()
    found = tail_activity(linear(20.0, 20.0), problem, row_losses, plan_for("ino-sgd", {"clip": 0.5}, problem))
    assert found.idle > 0.99
    assert found.sentence == "INO is doing nothing here: 100 % of the tail has no gradient left."


def test_where_all_gradients_fill_their_thresholds_the_tail_removes_half_of_its_length() -> None:
    """A straight tail over 30 % of the line takes 15 % of it; at thresholds this small nothing of it is idle."""
    problem = two_owners()
    plan = plan_for("ino-sgd", {"clip": 0.001, "tail": 30.0, "alpha": 1.0, "beta": 1.0}, problem)
    found = tail_activity(linear(0.0, 0.0), problem, row_losses, plan)
    assert found.removed == pytest.approx(0.15, abs=1e-6)
    assert (found.clipped, found.idle) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-6))
    assert found.sentence.startswith("INO removes 15 %")


def test_the_owner_whose_rows_are_learnt_loses_and_the_other_does_not() -> None:
    problem = two_owners()
    plan = plan_for("ino-sgd", {"clip": 0.001, "tail": 30.0, "alpha": 1.0, "beta": 1.0}, problem)
    found = tail_activity(linear(-0.5, 1.0), problem, row_losses, plan)
    assert found.removed_by_owner["careful"] == pytest.approx(0.0, abs=1e-9)
    assert found.removed_by_owner["open"] > 0.15
    assert '"open", the most affected' in found.sentence


def test_an_owner_pulls_by_its_rows_in_training_however_many_public_rows_it_has() -> None:
    """Both owners have 60 rows in training; the second has every public row twice."""
    problem = two_owners()
    plan = plan_for("ino-sgd", {"clip": 0.001, "tail": 30.0, "alpha": 1.0, "beta": 1.0}, problem)
    x, model = torch.cat([torch.full((60, 1), -1.0), torch.full((120, 1), 1.0)]), linear(-0.5, 1.0)
    named = ["careful"] * 60 + ["open"] * 120
    more = Problem.from_arrays(
        x, [0] * 60 + [1] * 120, owners=named, budgets={"careful": 0.5, "open": 2.0}, classes=[0, 1]
    )
    alike, doubled = (tail_activity(model, rows, row_losses, plan) for rows in (problem, more))
    assert doubled.removed_by_owner == pytest.approx(alike.removed_by_owner, abs=1e-9)
    assert doubled.pull_by_owner == pytest.approx(alike.pull_by_owner)
    assert doubled.removed == pytest.approx(alike.removed)


def test_the_tail_gives_pull_to_the_owner_that_it_leaves_alone() -> None:
    problem, model = two_owners(), linear(-0.5, 1.0)
    options = {"clip": 0.001, "tail": 30.0, "alpha": 1.0, "beta": 1.0}
    without, with_tail = (
        tail_activity(model, problem, row_losses, plan).pull_by_owner
        for plan in (plan_for("idp-sgd", {"clip": 0.001}, problem), plan_for("ino-sgd", options, problem))
    )
    assert sum(with_tail.values()) == pytest.approx(1.0)
    assert with_tail["careful"] == pytest.approx(without["careful"] / 0.85)


def test_a_plan_without_a_tail_removes_nothing() -> None:
    problem = two_owners()
    found = tail_activity(linear(0.0, 0.0), problem, row_losses, plan_for("idp-sgd", {"clip": 0.001}, problem))
    assert (found.removed, found.idle, found.clipped) == (0.0, 1.0, pytest.approx(1.0))


def test_normalised_gradients_fill_their_thresholds_where_clipped_ones_do_not() -> None:
    """Rows that are learnt well have short gradients: clipping leaves the tail idle, normalising does not."""
    problem, learnt = two_owners(), linear(4.0, 4.0)
    clipped = tail_activity(learnt, problem, row_losses, plan_for("ino-sgd", {}, problem))
    normalised = tail_activity(
        learnt, problem, row_losses, plan_for("ino-sgd", {"bound": "normalise", "gamma": 1e-4}, problem)
    )
    assert clipped.idle > 0.9 > 0.1 > normalised.idle


def test_strange_owners_and_plans_without_rates_are_rejected() -> None:
    problem = two_owners()
    with pytest.raises(InputError, match="no rates by owner"):
        tail_activity(linear(0.0, 0.0), problem, row_losses, plan_for("dp-sgd", {"sampling": "wor"}, problem))
    with pytest.raises(InputError, match="no owner strange"):
        tail_activity(linear(0.0, 0.0), two_owners(("strange", "open")), row_losses, plan_for("ino-sgd", {}, problem))
