"""Comparisons: equal settings or nothing, budgets beside each other, and a failure of any kind stays with its run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

import joblib
import pytest
import torch
from torch import nn

import veil
import veil.training.comparing
from veil.datasets import GroupSpec, generate
from veil.errors import InputError
from veil.foundation.parallel import WORKER_DIED, Workers
from veil.foundation.randomness import Seed
from veil.plans import Plan
from veil.problem import Problem
from veil.report import build_twin
from veil.training.comparing import (
    OTHER_RUNS,
    SEEDS_PUBLIC,
    Comparison,
    Work,
    compare,
    run_trials,
    trials_of,
)
from veil.training.fitting import Job, execute

GROUPS = [GroupSpec("large", 300), GroupSpec("small", 80, angle=1.0)]
SHORT = {"steps": 5, "batch_size": 40}


def linear(problem: Problem, seed: Seed) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(10, 2)


def compared(out: Path, **changes: Any) -> Comparison:
    asked: dict[str, Any] = {"methods": ["erm", "dp-sgd"], "seeds": 2, "workers": Workers(1, "threading")}
    asked |= {**SHORT, **changes}
    return compare(generate(GROUPS), generate(GROUPS, seed=1), out=out, model=linear, **asked)


def test_budgets_stand_beside_each_other_and_no_privacy_needs_one_budget_only(tmp_path: Path) -> None:
    found = compared(tmp_path, epsilons=[1.0, 4.0])
    assert [(row["name"], row["seeds"]) for row in found.summary()] == [
        ("erm", 2),
        ("dp-sgd, ε = 1", 2),
        ("dp-sgd, ε = 4", 2),
    ]
    assert [round(row["epsilon"]) if row["epsilon"] else None for row in found.summary()] == [None, 1, 4]
    assert sum(row["best"] for row in found.summary() if row["private"]) == 1


def test_the_table_and_the_report_say_the_same(tmp_path: Path) -> None:
    found = compared(tmp_path, methods=["erm", "dp-sgd", "dp-is-sgd"])
    page = {row["name"]: row for row in build_twin(found.records)["summary"]}
    for row in found.summary():
        for key in ("worst_group_accuracy", "average_group_accuracy", "p_value", "front", "privacy_cost_gap"):
            assert row[key] == page[row["name"]][key]
    kept = json.loads((tmp_path / "comparison.json").read_text())
    assert kept["summary"] == found.summary()
    values = [row["metrics"]["worst_group_accuracy"] for row in found.rows if row["method"] == "dp-sgd"]
    summary = next(row for row in found.summary() if row["method"] == "dp-sgd")
    assert summary["worst_group_accuracy"]["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)


def test_a_stored_run_is_taken_when_its_settings_are_equal_and_refused_when_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared(tmp_path)
    trained: list[str] = []

    def watched(job: Job, plan: Plan, out: Path, resume: bool) -> Any:
        trained.append(out.name)
        return execute(job, plan, out, resume)

    monkeypatch.setattr(veil.training.comparing, "execute", watched)
    again = compared(tmp_path, methods=["erm", "dp-sgd", "dp-is-sgd"], seeds=2)
    assert trained == ["dp-is-sgd-eps1-seed1", "dp-is-sgd-eps1-seed2"]
    assert len(again.rows) == 6
    for change in ({"learning_rate": 0.1}, {"methods": [veil.method("dp-sgd", clip=2.0)]}):
        with pytest.raises(InputError, match=r"with other settings .* choose another folder"):
            compared(tmp_path, **change)
    other = Work(generate(GROUPS), generate(GROUPS, seed=1), linear, tmp_path, SHORT, {"model": "other"})
    with pytest.raises(InputError, match=r"asked.model was None, now other\): choose another folder"):
        run_trials(trials_of(["erm"], 1, [1.0]), other)
    assert len(trained) == 2


def test_any_error_of_a_run_is_told_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(job: Job, plan: Plan, out: Path, resume: bool) -> Any:
        if plan.method == "erm":
            raise KeyError("nobody expects this")
        return execute(job, plan, out, resume)

    monkeypatch.setattr(veil.training.comparing, "execute", broken)
    found = compared(tmp_path, seeds=1)
    assert found.failures == {"erm-eps1-seed1": "KeyError: 'nobody expects this'"}
    assert [row["method"] for row in found.rows] == ["dp-sgd"]


class Dying:
    """Stands for joblib: every pool gives some results, then its workers die."""

    before_death = 1

    def __init__(self, **_: Any) -> None:
        pass

    def __call__(self, work: Any) -> Iterator[str | None]:
        for function, words, names in list(work)[: self.before_death]:
            yield function(*words, **names)
        raise BrokenExecutor


def test_work_of_a_worker_that_dies_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joblib, "Parallel", Dying)
    found = compared(tmp_path)
    assert len(found.rows) == 4
    assert found.failures == {}


def test_work_that_kills_its_workers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dying, "before_death", 0)
    monkeypatch.setattr(joblib, "Parallel", Dying)
    found = compared(tmp_path)
    assert found.rows == []
    assert set(found.failures.values()) == {WORKER_DIED}


def test_a_run_that_was_cut_short_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = compared(tmp_path / "whole", methods=["dp-sgd"], seeds=1, steps=230)

    class PowerCut(BaseException):
        pass

    batch, left = Problem.batch, [150]

    def failing(self: Problem, rows: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise PowerCut
        return batch(self, rows)

    monkeypatch.setattr(Problem, "batch", failing)
    with pytest.raises(PowerCut):
        compared(tmp_path / "cut", methods=["dp-sgd"], seeds=1, steps=230)
    monkeypatch.setattr(Problem, "batch", batch)
    found = compared(tmp_path / "cut", methods=["dp-sgd"], seeds=1, steps=230)
    assert found.rows[0]["metrics"] == whole.rows[0]["metrics"]
    assert found.rows[0]["privacy"] == whole.rows[0]["privacy"]


def test_a_run_that_was_alone_says_that_more_may_follow_and_that_its_noise_is_known(tmp_path: Path) -> None:
    compared(tmp_path, methods=["dp-sgd"], seeds=1)
    compared(tmp_path, methods=["dp-sgd"], seeds=2)
    for number in (1, 2):
        certificate = json.loads((tmp_path / f"dp-sgd-eps1-seed{number}" / "certificate.json").read_text())
        assert {OTHER_RUNS, SEEDS_PUBLIC} <= set(certificate["not_covered"])


def test_a_method_that_stands_twice_with_other_options_is_refused(tmp_path: Path) -> None:
    """Their runs would share a folder, and the second would be taken for the first."""
    with pytest.raises(InputError, match="dp-sgd is given twice"):
        compared(tmp_path, methods=["dp-sgd", veil.method("dp-sgd", clip=2.0)])
    assert len(compared(tmp_path, methods=["dp-sgd", veil.method("dp-sgd")]).rows) == 2
