"""The odometer on the way is never below what was spent and exact at the end; a long history is stored once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from tests.methods.method_cases import plan_for, small_problem
from veil import methods
from veil.accounting import Ledger
from veil.training import Callback, StepReport, fit, load
from veil.training.reporting import Reporter, spent_by_group
from veil.training.reservations import Reservations


class Compare(Callback):
    """What every step said was spent, beside an exact reading of the same entries."""

    def __init__(self, ledger: Path, plan: Any) -> None:
        self.ledger, self.plan, self.seen = ledger, plan, list[tuple[int, float, float]]()

    def on_step(self, report: StepReport) -> None:
        ledger = Ledger.open(self.ledger)
        exact = spent_by_group(ledger, self.plan)
        self.seen += [(report.step, report.spent[group], exact[group]) for group in exact]


@pytest.mark.parametrize("options", [{}, {"sampling": "wor"}, {"loss_rate": 0.2}])
def test_the_reading_on_the_way_is_not_below_what_was_spent(tmp_path: Path, options: dict[str, object]) -> None:
    problem = small_problem()
    asked = {"epsilon": 1.0, "delta": 1e-4, "steps": 20, "batch_size": 24, "seed": 5, "accountant": "pld"}
    compare = Compare(tmp_path / "run" / "ledger.jsonl", plan_for("asc", options, problem, accountant="pld"))
    torch.manual_seed(0)
    run = fit(
        nn.Linear(4, 2),
        problem,
        method=methods.create("asc", options),
        out=tmp_path / "run",
        callbacks=[compare],
        **asked,
    )
    assert len(compare.seen) == 40
    for step, said, exact in compare.seen:
        # An exact reading may itself be loose by a part in ten thousand.
        assert said >= exact * (1 - 2e-4)
        assert said <= 1.0 + 1e-9 or said <= max(run.certificate.by_group.values()) * (1 + 1e-9), step
    assert [said for step, said, _ in compare.seen if step == 19] == pytest.approx(
        [exact for step, _, exact in compare.seen if step == 19]
    )
    assert any(said > exact * 1.01 for step, said, exact in compare.seen if step < 19), "no reading was a quick one"


def test_a_long_history_is_whole_in_parquet_and_thin_in_the_record(tmp_path: Path) -> None:
    torch.manual_seed(0)
    run = fit(
        nn.Linear(4, 2),
        small_problem(),
        method="dp-sgd",
        epsilon=1.0,
        delta=1e-4,
        steps=700,
        batch_size=24,
        out=tmp_path / "run",
    )
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    steps = record["history"]["step"]
    assert len(steps) <= 240
    assert (steps[0], steps[-1]) == (0, 699)
    assert len(run.as_json()["history"]["step"]) == 700
    assert len(load(tmp_path / "run").history) == len(pd.read_parquet(tmp_path / "run" / "history.parquet")) == 700
    page = (tmp_path / "run" / "report.html").read_text()
    assert load(tmp_path / "run").report(tmp_path / "again.html").read_text() == page


class Counted:
    """A release whose events are asked for."""

    def __init__(self, events: Any) -> None:
        self._events, self.asked = events, 0

    def events(self, facts: Any) -> Any:
        self.asked += 1
        return self._events


def test_what_was_reserved_for_one_release_does_not_cover_another() -> None:
    problem = small_problem()
    plan = plan_for("dp-sgd", {}, problem)
    release = plan.controller.release(plan.controller.start(), 0)
    events = release.events(plan.facts)
    ledger = Ledger(plan.terms())
    reservations, one, same = Reservations(plan, ledger), Counted(events), Counted(events)
    for step in range(4):
        reservations.reserve("gradient", one, 4, step)
    assert (one.asked, len(ledger.entries)) == (1, 1)
    reservations.reserve("gradient", same, 4, 3)
    assert (same.asked, len(ledger.entries)) == (1, 1)
    other = Counted({0: events[0]})
    reservations.reserve("gradient", other, 1, 3)
    assert len(ledger.entries) == 2
    # A checkpoint that is put back covers what it says, whatever was seen before.
    reservations.reserved = {"gradient": (10, {1: events[1]})}
    reservations.reserve("gradient", other, 1, 4)
    assert (other.asked, len(ledger.entries)) == (2, 3)


def test_a_history_tells_values_of_each_shape_and_shares_no_list() -> None:
    reporter = Reporter.__new__(Reporter)
    reporter._latest = {}
    assert reporter._told("a", np.zeros((2, 2))) == [[0.0, 0.0], [0.0, 0.0]]
    assert reporter._told("a", np.zeros(4)) == [0.0] * 4
    first = reporter._told("b", np.ones((2, 2)))
    first[0][0] = 99.0
    assert reporter._told("b", np.ones((2, 2))) == [[1.0, 1.0], [1.0, 1.0]]
    objects = np.array([1, 2], dtype=object)
    assert reporter._told("c", objects) == [1.0, 2.0]
    objects[:] = [3, 4]
    assert reporter._told("c", objects) == [3.0, 4.0]
