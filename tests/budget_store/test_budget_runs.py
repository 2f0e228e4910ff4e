"""What a plan reserves from a budget, what its folder keeps, and the commands that show it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from veil import methods
from veil.accounting import BudgetExceeded, Relation
from veil.budget_store import BudgetedRun, BudgetStore, DataSet, reserve_amount, reserve_for
from veil.cli.budget import budget_app
from veil.errors import InputError
from veil.plans import Plan, Settings
from veil.problem import Problem

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Women are drawn more often than men, and so pay more."""
    rows = 400
    problem = Problem.from_arrays([[float(i)] for i in range(rows)], [0, 1] * 200, ["f"] * 40 + ["m"] * 360)
    found = methods.create("dp-is-sgd").plan(problem.public, Settings.checked(steps=10, batch_size=40, delta=1e-6))
    assert found.rules is not None
    return found


@pytest.fixture
def store(tmp_path: Path) -> BudgetStore:
    made = BudgetStore.create(tmp_path / "budget.sqlite")
    made.add_dataset(DataSet("people", groups=("sex",)), epsilon=2.0, delta=1e-5)
    return made


def test_a_plan_is_charged_cell_by_cell_where_its_groups_are_the_budget_s(plan: Plan, store: BudgetStore) -> None:
    own = reserve_for(plan, BudgetedRun(store, "people", "a", groups=["sex"]))
    assert plan.rules is not None
    accountant = plan.settings.accountant_for()
    expected = {
        plan.facts.groups[cell.group]: rule.guarantee(1e-6, accountant)
        for cell, rule in zip(plan.facts.cells, plan.rules, strict=True)
    }
    assert {group: cost.epsilon for (group, _), cost in own.spending.cells.items()} == expected
    assert expected["m"] < expected["f"]
    other = reserve_for(plan, BudgetedRun(store, "people", "b", groups=["colour"]))
    assert dict(other.spending.cells) == {}
    assert other.spending.most.epsilon == max(expected.values())


def test_a_held_out_row_pays_for_its_measurement(plan: Plan, store: BudgetStore) -> None:
    with_rest = reserve_for(plan, BudgetedRun(store, "people", "a", groups=["sex"]), held_out=True)
    assert {cost.epsilon for cost in with_rest.spending.cells.values()} >= {1.0}
    assert min(cost.epsilon for cost in with_rest.spending.cells.values()) >= 0.999


def test_plans_can_be_kept_in_renyi_costs(plan: Plan, store: BudgetStore) -> None:
    store.add_dataset(DataSet("tight", composition="renyi"), epsilon=2.0, delta=1e-6)
    runs = 0
    with pytest.raises(BudgetExceeded):
        while True:
            reserve_for(plan, BudgetedRun(store, "tight", f"run {runs}"), held_out=True)
            runs += 1
    assert runs > 2, "sums would admit two runs of ε = 1"


def test_a_run_keeps_its_mark_and_a_copy_in_its_folder(plan: Plan, store: BudgetStore, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = reserve_for(plan, BudgetedRun(store, "people", "a", groups=["sex"], folder=folder))
    first.begin()
    again = reserve_for(plan, BudgetedRun(store, "people", "another name", groups=["sex"], folder=folder))
    assert (again.claim, again.spending.run) == (first.claim, "a")
    assert len(store.history("people")) == 1
    again.begin()
    again.finish()
    kept = json.loads((folder / "budget.json").read_text())
    assert kept["state"] == "finished"
    assert kept["charged"]["epsilon"] == first.spending.most.epsilon
    assert kept["limits"][0]["spent_epsilon"] == pytest.approx(first.spending.most.epsilon)
    with pytest.raises(InputError, match="another name"):
        reserve_for(plan, BudgetedRun(store, "people", "a", groups=["sex"], folder=tmp_path / "second"))


def test_a_crash_between_mark_and_reservation_charges_once(
    plan: Plan, store: BudgetStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = BudgetStore.reserve

    def crash(*words: object) -> None:
        real(*words)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(BudgetStore, "reserve", crash)
    with pytest.raises(KeyboardInterrupt):
        reserve_for(plan, BudgetedRun(store, "people", "a", folder=tmp_path / "run"))
    monkeypatch.undo()
    assert len(store.history("people")) == 1, "a crashed run stays charged"
    reserve_for(plan, BudgetedRun(store, "people", "a", folder=tmp_path / "run"))
    assert len(store.history("people")) == 1


def test_a_refused_run_charges_nothing_and_can_be_asked_for_again(
    plan: Plan, store: BudgetStore, tmp_path: Path
) -> None:
    reserve_amount(BudgetedRun(store, "people", "most"), epsilon=1.9, delta=0.0, relation=Relation.ADD_REMOVE)
    with pytest.raises(BudgetExceeded):
        reserve_for(plan, BudgetedRun(store, "people", "a", folder=tmp_path / "run"))
    store.cancel("people", "most")
    reserve_for(plan, BudgetedRun(store, "people", "a", folder=tmp_path / "run")).cancel()
    assert store.balances("people")[0].spent_epsilon == 0
    assert json.loads((tmp_path / "run" / "budget.json").read_text())["state"] == "cancelled"
    reserve_for(plan, BudgetedRun(store, "people", "a", folder=tmp_path / "run")).begin()
    assert [entry.state for entry in store.history("people")] == ["cancelled", "cancelled", "running"]


def test_a_method_that_is_not_private_gets_no_budget(store: BudgetStore) -> None:
    problem = Problem.from_arrays([[0.0], [1.0]] * 50, [0, 1] * 50)
    with pytest.raises(InputError, match="not private"):
        reserve_for(
            methods.create("erm").plan(problem.public, Settings.checked(steps=2)), BudgetedRun(store, "people", "a")
        )


def test_a_damaged_copy_is_said_and_nothing_is_charged(plan: Plan, store: BudgetStore, tmp_path: Path) -> None:
    for content in ("", "[]", "{}", '{"claim": 3}', "\x00"):
        (tmp_path / "budget.json").write_text(content)
        with pytest.raises(InputError, match="is damaged"):
            reserve_for(plan, BudgetedRun(store, "people", "a", folder=tmp_path))
    assert store.history("people") == []


def budget(*words: str) -> dict[str, object]:
    outcome = RUNNER.invoke(budget_app, [*words, "--json"])
    if outcome.exception is not None:
        raise outcome.exception
    found: dict[str, object] = json.loads(outcome.stdout)
    return found


def test_the_commands_tell_the_same_as_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEIL_BUDGET", str(tmp_path / "team.sqlite"))
    budget("create", "people", "--epsilon", "3", "--delta", "1e-5", "--group", "sex, race")
    budget("limit", "people", "--group", "f × [b]a[/b]", "--epsilon", "1", "--delta", "1e-6")
    assert budget("reserve", "people", "--run", "survey", "--epsilon", "0.5")["state"] == "reserved"
    shown = budget("show")
    (people,) = shown["datasets"]  # type: ignore[misc]
    assert people["groups"] == ["sex", "race"]
    assert [limit["left_epsilon"] for limit in people["limits"]] == [2.5, 0.5]
    with pytest.raises(BudgetExceeded):
        budget("reserve", "people", "--run", "more", "--epsilon", "0.6")
    with pytest.raises(InputError, match="--no-row-was-read"):
        budget("cancel", "people", "--run", "survey")
    assert budget("cancel", "people", "--run", "survey", "--no-row-was-read")["charged"] is False
    assert [run["state"] for run in budget("history", "people")["runs"]] == ["cancelled"]  # type: ignore[attr-defined]
    for words in (["show"], ["history", "people"]):
        text = RUNNER.invoke(budget_app, words)
        assert text.exit_code == 0
        assert "people" in text.stdout
    assert "[b]a[/b]" in RUNNER.invoke(budget_app, ["show"]).stdout
    with pytest.raises(InputError, match="relation is"):
        budget("create", "x", "--epsilon", "1", "--delta", "1e-5", "--relation", "none")
    with pytest.raises(InputError, match="compose is"):
        budget("create", "x", "--epsilon", "1", "--delta", "1e-5", "--compose", "pld")
    with pytest.raises(InputError, match="no run"):
        budget("cancel", "people", "--run", "nothing")


def test_the_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "budgets.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    exec(compile(block, "budgets.md", "exec"), {})
    assert (tmp_path / "budget.sqlite").exists()
