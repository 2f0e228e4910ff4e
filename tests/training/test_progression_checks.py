"""Progression refuses what it cannot account for, and says what its certificate rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.methods.method_cases import small_problem
from tests.training.progression_cases import LOWERED, plan_of, trained
from veil.accounting import Gaussian, Relation, Repeated, TokenBucket
from veil.accounting.verify import verify
from veil.bounding import Clip
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.gradients import GradientError
from veil.metrics.noisy_confusion import DISJOINT
from veil.plans import Plan
from veil.plans.controllers import Constant
from veil.plans.plan import METRICS
from veil.problem import Problem
from veil.releases import LossRelease
from veil.tables.measuring import HeldOutFigures
from veil.training.fitting import Job, execute, row_losses
from veil.training.progression import (
    LATER_IS_GONE,
    OTHER_BRANCHES,
    CheckpointEvery,
    raise_budgets,
    raised_plan,
    roll_back,
)
from veil.training.run_folder import RunFolder

# The checks of `fit`


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.mixes = nn.Linear(4, 2), False

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.linear(rows)
        return out - out.mean(0) if self.mixes else out


def test_a_loss_or_model_that_mixes_rows_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    problem = small_problem()
    run = execute(Job(Mixing(), problem, None, row_losses, (), ()), plan_of("dp-sgd", problem), None)

    def mixing(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        losses = row_losses(model, batch)
        return losses * losses.mean()

    with pytest.raises(GradientError):
        raise_budgets(run, problem, {"careful": 1.0}, 5, loss=mixing, out=tmp_path / "more")
    run.model.mixes = True  # type: ignore[assignment]
    with pytest.raises(GradientError):
        raise_budgets(run, problem, {"careful": 1.0}, 5, out=tmp_path / "more")
    assert not (tmp_path / "more").exists()


def test_other_rows_are_refused() -> None:
    problem = small_problem()
    run = trained(plan_of("idp-sgd", problem), problem)
    with pytest.raises(InputError, match="not that of the earlier run"):
        raise_budgets(run, small_problem(rows=246), {"careful": 1.0}, 5)


def of_people(people: list[str], owners: list[str], person_rows: str) -> Problem:
    inputs = torch.arange(len(people), dtype=torch.float32)[:, None] / len(people)
    targets, budgets = [0, 1] * (len(people) // 2), {"careful": 0.5, "open": 2.0}
    return Problem.from_arrays(
        inputs, targets, owners=owners, budgets=budgets, people=people, rows_per_person=2, person_rows=person_rows
    )


@pytest.mark.parametrize("person_rows", ["mean", "each"])
def test_people_who_became_others_are_not_charged_as_those_they_were(person_rows: str) -> None:
    """Sizes and names of owners are the same in all three: only who is who differs."""
    people, owners = [f"p{row // 2}" for row in range(40)], ["careful"] * 20 + ["open"] * 20
    others = [*(f"p{row % 10}" for row in range(20)), *people[20:]]  # as many people, with other rows
    problem = of_people(people, owners, person_rows)
    plan = plan_of("dp-sgd", problem, accountant="pld")
    run = execute(Job(nn.Linear(1, 2), problem, None, row_losses, (), ()), plan, None)
    for other in (of_people(others, owners, person_rows), of_people(people, owners[::-1], person_rows)):
        assert replace(other.public, budgets=None) == replace(problem.public, budgets=None)
        with pytest.raises(InputError, match="who is who"):
            raise_budgets(run, other, {"careful": 1.0}, 3)
    same = of_people(people, owners, person_rows)
    assert raise_budgets(run, same, {"careful": 1.0}, 3).certificate.by_owner["careful"] <= 1.0


def test_a_model_that_was_trained_on_after_the_run_is_refused() -> None:
    problem = small_problem()
    run = trained(plan_of("dp-sgd", problem), problem)
    execute(Job(run.model, problem, None, row_losses, (), ()), plan_of("dp-sgd", problem, seed=6), None)
    with pytest.raises(InputError, match="changed after the run"):
        raise_budgets(run, problem, {"careful": 1.0}, 5)


def test_checkpoints_of_another_run_are_refused_and_among_several_the_own_ones_are_taken() -> None:
    problem, points = small_problem(), CheckpointEvery(1)
    loud = trained(plan_of("dp-sgd", problem), problem, points)
    theirs = list(points.kept)
    run = trained(plan_of("dp-sgd", problem, seed=6), problem, points)
    with pytest.raises(InputError, match="none of the checkpoints belongs to this run"):
        roll_back(run, theirs, LOWERED)
    mine = {point.steps: point for point in points.kept[len(theirs) :]}
    back = roll_back(run, points.kept, LOWERED)
    assert torch.equal(back.model.weight, mine[back.plan.steps].weights["weight"])  # type: ignore[arg-type]
    assert loud.plan is not run.plan


def test_owners_who_rest_are_not_in_the_tests_of_updates() -> None:
    problem = small_problem()
    with pytest.raises(InputError, match="every owner"):
        raised_plan(plan_of("dpsur", problem), {"careful": 1.0}, 5)


def test_owners_of_whose_rows_nothing_is_learned_cannot_go_on_alone() -> None:
    problem = small_problem()
    plan = plan_of("dp-sgd", problem)
    release = plan.controller.release({}, 0)
    limits = tuple(0.0 if plan.facts.owners[cell.owner] == "careful" else 1.0 for cell in plan.facts.cells)
    silent = Constant(replace(release, bound=Clip(limits)))
    rules = tuple(rule if limit else TokenBucket(()) for rule, limit in zip(plan.rules or (), limits, strict=True))
    with pytest.raises(InputError, match="no row of the owners"):
        raised_plan(replace(plan, controller=silent, rules=rules), {"careful": 1.0}, 5)


def test_budgets_that_rise_are_not_rolled_back_to() -> None:
    problem, points = small_problem(), CheckpointEvery(1)
    run = trained(plan_of("dp-sgd", problem), problem, points)
    with pytest.raises(InputError, match="use raise_budgets"):
        roll_back(run, points.kept, {"careful": 0.6})


@dataclass(frozen=True)
class WithLosses(Constant):
    """A constant release, and a look at the groups' losses on the side."""

    def side_release(self, state: Any, step: int) -> LossRelease | None:
        return LossRelease("losses", 1.0, 1.0, Relation.ADD_REMOVE)


class Unknown:
    """A rule of some other kind."""

    def __init__(self, rule: TokenBucket) -> None:
        self.refusal, self.guarantee, self.reading = rule.refusal, rule.guarantee, rule.reading
        self.as_json = rule.as_json


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: replace(plan, controller=WithLosses(plan.controller.gradient)), "differ"),
        (lambda plan: replace(plan, rules=tuple(TokenBucket(()) for _ in plan.rules)), "do not cover all"),
        (lambda plan: replace(plan, rules=tuple(Unknown(rule) for rule in plan.rules)), "Unknown"),
    ],
)
def test_releases_that_cannot_be_accounted_for_are_refused(change: Callable[[Plan], Plan], message: str) -> None:
    problem, points = small_problem(), CheckpointEvery(1)
    run = trained(plan_of("dp-sgd", problem), problem, points)
    run.plan = change(run.plan)
    kept = [replace(point, plan=run.plan) for point in points.kept]
    with pytest.raises(InputError, match=message):
        roll_back(run, kept, LOWERED)
    with pytest.raises(InputError, match=message):
        raise_budgets(run, problem, {"careful": 1.0}, 5)


def test_whatever_else_the_rules_pay_for_is_carried_over() -> None:
    """A token of which progression knows nothing stays in the rule of every continued run."""
    problem, points = small_problem(), CheckpointEvery(1)
    plan, extra = plan_of("dp-sgd", problem), Repeated(Gaussian(30.0), 3)
    rules = tuple(TokenBucket((*rule.tokens, extra)) for rule in plan.rules or ())  # type: ignore[attr-defined]
    plan = replace(plan, rules=rules, over_budget=True)
    run = trained(plan, problem, points)
    more = raise_budgets(run, problem, {"careful": 1.2}, 5)
    back = roll_back(run, points.kept, {"careful": 0.5, "open": 0.5})
    for continued in (more, back):
        assert not continued.plan.over_budget
        assert all(extra in rule.tokens for rule in continued.plan.rules or ())  # type: ignore[attr-defined]


# What is said, and the folder


def test_what_the_earlier_certificate_rests_on_and_leaves_out_stays_said() -> None:
    problem, points = small_problem(), CheckpointEvery(1)
    plan = replace(plan_of("dp-sgd", problem), assumptions=("It rains.",))
    run = execute(Job(nn.Linear(4, 2), problem, problem, row_losses, (points,), ("The moon.",)), plan, None)
    back = roll_back(run, points.kept, LOWERED)
    more = raise_budgets(back, problem, {"careful": 1.0}, 5)
    for certificate in (back.certificate, more.certificate):
        assert set(run.certificate.assumptions) <= set(certificate.assumptions)
        assert {"The moon.", METRICS, LATER_IS_GONE} <= set(certificate.not_covered)
        for texts in (certificate.assumptions, certificate.not_covered):
            assert len(set(texts)) == len(texts)
    assert OTHER_BRANCHES in more.certificate.not_covered


def test_held_out_rows_are_measured_once(tmp_path: Path) -> None:
    problem, points = small_problem(), CheckpointEvery(1)
    apart = Problem.from_arrays(problem.inputs, problem.targets, ["majority", "minority"] * 120, classes=[0, 1])
    plan = plan_of("dp-sgd", problem)
    folder = RunFolder.start(tmp_path / "run", plan.settings)
    measure = HeldOutFigures(apart, folder.seed, plan.relation, folder)
    run = execute(Job(nn.Linear(4, 2), problem, callbacks=(points,), measures=[measure]), plan, folder)
    folder.complete()
    later = HeldOutFigures(apart, Seed.from_int(9), plan.relation)
    more = raise_budgets(run, problem, {"careful": 1.0}, 5, out=tmp_path / "more", callbacks=[points])
    again = roll_back(more, points.kept, {"careful": 0.9}, out=tmp_path / "again")
    assert (tmp_path / "more" / "evaluation.jsonl").read_bytes() == (tmp_path / "run" / "evaluation.jsonl").read_bytes()
    for continued in (more, again):
        assert continued.folder is not None
        assert (continued.folder / "evaluation.jsonl").exists()
        assert verify(continued.folder / "certificate.json").holds
        with pytest.raises(InputError, match="already measured"):
            later(continued.model, continued.plan)
    back = roll_back(run, points.kept, LOWERED, out=tmp_path / "back")
    assert not set(DISJOINT.values()) & set(back.certificate.assumptions)
    assert not (tmp_path / "back" / "evaluation.jsonl").exists()
    later(back.model, back.plan)


def test_a_folder_is_a_run_of_its_own_and_is_not_used_twice(tmp_path: Path) -> None:
    problem, points = small_problem(), CheckpointEvery(1)
    run = trained(plan_of("dp-sgd", problem), problem, points, out=tmp_path / "run")
    back = roll_back(run, points.kept, LOWERED, out=tmp_path / "back")
    assert back.folder == tmp_path / "back"
    assert not (tmp_path / "back" / "seed.key").exists()
    for taken in ("run", "back"):
        with pytest.raises(InputError, match="already contains a run"):
            roll_back(run, points.kept, LOWERED, out=tmp_path / taken)
        with pytest.raises(InputError, match="already contains a run"):
            raise_budgets(run, problem, {"careful": 1.0}, 5, out=tmp_path / taken)


def test_a_run_that_was_charged_to_a_data_set_is_not_raised_also_after_a_way_back(tmp_path: Path) -> None:
    problem, points = small_problem(), CheckpointEvery(1)
    run = trained(plan_of("dp-sgd", problem), problem, points, out=tmp_path / "run")
    (tmp_path / "run" / "budget.json").write_text("{}")
    for charged in (run, roll_back(run, points.kept, LOWERED)):
        with pytest.raises(InputError, match="charged to the budget of a data set"):
            raise_budgets(charged, problem, {"careful": 1.0}, 5)


def test_the_checkpoint_keeps_its_weights_when_the_run_goes_on() -> None:
    problem, points = small_problem(), CheckpointEvery(1)
    run = trained(plan_of("dp-sgd", problem), problem, points)
    back = roll_back(run, points.kept, LOWERED)
    before = back.model.weight.detach().clone()  # type: ignore[union-attr, operator]
    raise_budgets(back, problem, {"careful": 1.0}, 5)
    kept: Mapping[str, Tensor] = points.kept[back.plan.steps - 1].weights
    assert torch.equal(back.model.weight, before)  # type: ignore[arg-type]
    assert torch.equal(kept["weight"], before)


def test_a_run_whose_folder_is_out_of_sight_is_not_raised_past_its_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    problem = small_problem()
    run = trained(plan_of("dp-sgd", problem), problem, CheckpointEvery(1), out=Path("run"))
    (tmp_path / "run" / "budget.json").write_text("{}")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="folder of the earlier run, is missing"):
        raise_budgets(run, problem, {"careful": 1.0}, 5)
