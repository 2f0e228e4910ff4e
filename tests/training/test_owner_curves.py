"""Owner curves: every owner's loss and accuracy, Cond. (2) and the tail's activity along a run, on public rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.methods.method_cases import plan_for
from tests.metrics.test_tail_activity import two_owners
from veil.metrics.ordered_objective import owner_conditions
from veil.metrics.owners import OwnerPull, owner_cosines
from veil.metrics.tail_activity import owner_pulls
from veil.problem import Problem
from veil.training.fitting import Job, execute, row_losses
from veil.training.owner_curves import OwnerCurves, looks


def run_of(method: str, options: dict[str, object], curves: OwnerCurves, **settings: object):  # type: ignore[no-untyped-def]
    problem = two_owners()
    plan = plan_for(method, options, problem, **settings)
    torch.manual_seed(0)
    return execute(Job(torch.nn.Linear(1, 2), problem, None, row_losses, (curves,)), plan, None)


@pytest.mark.parametrize("steps", [1, 3, 7, 60, 3000])
def test_a_run_is_looked_at_densely_in_its_first_quarter_and_at_its_end(steps: int) -> None:
    at = looks(steps)
    assert at[-1] == steps
    assert at[0] == 1
    assert list(at) == sorted(set(at))
    early = [step for step in at if step <= steps / 4]
    assert len(early) >= min(steps // 4, 10) or steps < 8


@pytest.mark.parametrize(
    "options", [{}, {"bound": "normalise"}, {"bound": "adaptive-clip"}, {"order": "ascending"}, {"tail": "auto"}]
)
def test_every_kind_of_run_has_curves_and_activity(options: dict[str, object]) -> None:
    curves = OwnerCurves(two_owners())
    run = run_of("ino-sgd", options, curves, steps=8)
    found = run.findings["OwnerCurves"]
    assert found["steps"] == list(looks(8))
    for name in ("accuracy", "loss", "condition"):
        assert all(len(values) == len(looks(8)) for values in found[name].values())
        assert set(found[name]) == {"careful", "open"}
    assert all(0 <= one["removed"] <= 1 and 0 <= one["idle"] <= 1 for one in found["activity"])
    assert found["sentence"].startswith("INO ")


def test_a_run_without_a_tail_removes_nothing_and_has_its_pull_measured() -> None:
    curves = OwnerCurves(two_owners(), at=(2, 4))
    found = run_of("idp-sgd", {"clip": 0.01}, curves, steps=4).findings["OwnerCurves"]
    assert found["steps"] == [2, 4]
    assert [one["removed"] for one in found["activity"]] == [0.0, 0.0]
    assert found["activity"][0]["clipped"] == pytest.approx(1.0)
    assert "sentence" not in found or "IDP" in found["sentence"]


def test_the_last_condition_is_that_of_the_final_model() -> None:
    problem, curves = two_owners(), OwnerCurves(two_owners(), at=(4,))
    run = run_of("ino-sgd", {}, curves, steps=4)
    pulls = owner_pulls(run.plan)
    wanted = owner_conditions(
        owner_cosines(run.model, problem, row_losses), [pulls[owner] for owner in problem.public.owners]
    )
    found = [run.findings["OwnerCurves"]["condition"][owner][-1] for owner in problem.public.owners]
    assert np.allclose(found, wanted)


def test_pulls_are_rates_rows_and_thresholds_of_the_plan() -> None:
    problem = two_owners()
    plan = plan_for("idp-sgd", {"variant": "both"}, problem)
    for owner, pull in owner_pulls(plan).items():
        assert pull == OwnerPull(plan.details["owner_rates"][owner], 60, plan.details["owner_clips"][owner])


def test_recall_counts_each_class_of_an_owner_alike_and_is_left_out_where_owners_have_one_class() -> None:
    # "careful" has nine rows of class 0 on the left, where they belong, and one of class 1 there too.
    x, classes = [[-1.0]] * 10 + [[1.0]] * 2, [0] * 9 + [1] + [0, 1]
    rows = Problem.from_arrays(
        x, classes, owners=["careful"] * 10 + ["open"] * 2, budgets={"careful": 0.5, "open": 2.0}, classes=[0, 1]
    )
    curves, alone = OwnerCurves(rows, at=(4,)), OwnerCurves(two_owners(), at=(4,))
    run_of("idp-sgd", {}, curves, steps=4)
    found = curves.findings()
    assert found["recall"] == {"careful": [0.5], "open": [0.5]}  # a linear model finds one class at one place
    assert found["accuracy"]["careful"][0] in (0.1, 0.9)
    run_of("idp-sgd", {}, alone, steps=4)
    assert "recall" not in alone.findings()
