"""`person_rows="each"`: rows are drawn one by one, and ε is that of all rows of a person together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import veil
from tests.methods.method_cases import CASES, SOLVED, plan_for, small_problem
from tests.methods.test_neighbour_replay import distance, neighbours, released
from tests.problem.people_cases import in_people
from veil import methods
from veil.accounting import AccountingError, Ledger, Pld, Rdp, Relation, RenyiFilter
from veil.accounting.certificate import ROWS_FACT, certify, check_budgets
from veil.accounting.verify import verify
from veil.auditing.attacks import AuditSettings, canary_audit
from veil.auditing.canaries import play
from veil.auditing.replay import Scene, random_scene, replay_checks, tied_scene
from veil.auditing.self_test import self_test
from veil.budget_store import BudgetedRun, BudgetStore, DataSet, reserve_for
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.gradients import GradientEngine
from veil.plans import Plan, Settings
from veil.problem import Problem
from veil.problem.people import Several
from veil.training.losses import row_losses
from veil.training.person_losses import by_person

ROWS = 3
# A ladder of rates takes seconds to price.
SLOW = [case for case in CASES if case[0] == "asc" and "sampling" not in case[1] and "neighbours" not in case[1]]
MARKED = [pytest.param(*case, marks=[pytest.mark.long] if case in SLOW else []) for case in CASES]


def in_rows(problem: Problem, most: int = ROWS) -> Problem:
    """Rows of a cell, three at a time, are those of one person and pull the same way."""
    person_of = np.empty(len(problem.cell_of), np.int64)
    begin = 0
    for cell in range(len(problem.public.cells)):
        own = np.flatnonzero(problem.cell_of == cell)
        person_of[own] = begin + np.arange(len(own)) // most
        begin += len(own)
    first = np.unique(person_of, return_index=True)[1]
    same = first[np.unique(person_of, return_inverse=True)[1]]
    alike = replace(problem, inputs=problem.inputs[same], targets=problem.targets[same])
    return alike.with_each_row(person_of, most)


def planned(name: str, options: dict[str, object], problem: Problem, **settings: object) -> Plan | None:
    """The plan, or None where it is rejected because its releases are accounted for one row alone."""
    chosen: dict[str, object] = {"epsilon": 1.0, "delta": 1e-4, "steps": 20, "batch_size": 24, "seed": 5}
    try:
        return methods.planned(methods.create(name, options), problem.public, Settings.checked(**(chosen | settings)))
    except (InputError, AccountingError) as error:
        if any(said in str(error) for said in ("one row of a person", "several rows", "by pld alone")):
            return None
        raise


def takes_rows(name: str, options: dict[str, object]) -> bool:
    """Not where rows are drawn one by one and replaced, nor where spending is adaptive under a filter."""
    drawn_and_replaced = options.get("neighbours") == "replace-one" or "paper_losses" in options
    return not drawn_and_replaced and options.get("cap") != 2.0


@pytest.mark.parametrize(("name", "options"), MARKED, ids=str)
def test_nobody_moves_the_sum_by_more_than_their_drawn_rows_may(name: str, options: dict[str, object]) -> None:
    problem = in_rows(small_problem())
    plan = planned(name, options, problem)
    assert (plan is not None) == takes_rows(name, options)
    if plan is None:
        return
    assert plan.relation is not None
    assert plan.rules is not None
    for cell, rule in enumerate(plan.rules):
        budget = plan.facts.budget_of(cell, plan.settings.epsilon)
        together = rule.guarantee(plan.delta, Pld(rows=ROWS))
        assert together <= budget * (1 + 1e-6) or plan.over_budget
        assert together > rule.guarantee(plan.delta, Pld()), "one row costs as much as three: nothing is shown"
    reach = 1 if plan.relation is Relation.ADD_REMOVE else 2
    release = plan.controller.release(plan.controller.start(), 0)
    moved = []
    whole = released(release, problem, 1)
    assert problem.person_of is not None
    taken = np.bincount(problem.person_of[whole.view.rows], minlength=len(problem.person_of))
    several = [row for row in whole.view.rows.tolist() if taken[problem.person_of[row]] > 1]
    for row in [*several[:3], *whole.view.rows[:5].tolist(), 1]:
        other = released(release, neighbours(problem, int(row), plan.relation), 1)
        limit, drawn = release.bound.limits[problem.cell_of[row]], taken[problem.person_of[row]]
        gap = distance(release, whole, other)
        assert gap <= drawn * reach * limit * (1 + 1e-4)
        moved.append(gap / limit)
        for statistic in release.statistics:
            change = np.linalg.norm(whole.statistics[statistic.name] - other.statistics[statistic.name])
            assert change <= drawn * reach * statistic.limit * (1 + 1e-9)
    assert max(moved) > 0.5, "nobody came near their bound: the test shows nothing"


@pytest.mark.parametrize("name", SOLVED)
def test_solvers_are_charged_for_all_rows_of_a_person(name: str) -> None:
    problem = in_rows(small_problem())
    plan = planned(name, {}, problem, steps=None)
    assert plan is not None, name
    assert plan.rules is not None
    for cell, rule in enumerate(plan.rules):
        together = rule.guarantee(plan.delta, Pld(rows=ROWS))
        assert together <= plan.facts.budget_of(cell, plan.settings.epsilon) * (1 + 1e-6)
        assert together > 1.5 * rule.guarantee(plan.delta, Pld())


def people(rows: int = 600, most: int = ROWS) -> Problem:
    generator = np.random.default_rng(0)
    person = generator.integers(0, rows // 3, rows)
    x = generator.normal(size=(rows, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    return Problem.from_arrays(x, y, person % 2, people=person, rows_per_person=most, person_rows="each")


def test_rows_that_count_are_entries_and_the_certificate_is_for_people(tmp_path: Path) -> None:
    problem = people()
    assert problem.person_of is not None
    assert max(np.bincount(problem.person_of)) == ROWS
    assert problem.public.rows == len(problem) == len(problem.person_of)
    run = veil.fit(
        torch.nn.Linear(4, 2), problem, method="dp-sgd", epsilon=1.0, steps=2, batch_size=30, out=tmp_path / "run"
    )
    certificate = run.certificate
    assert (certificate.unit, certificate.facts[ROWS_FACT]) == ("one person", ROWS)
    assert "how many rows each group has" in certificate.statement
    assert any(f"at most {ROWS} rows of each count" in said for said in certificate.assumptions)
    verdict = verify(tmp_path / "run" / "certificate.json")
    assert verdict.holds
    assert all(opinion.second == pytest.approx(opinion.claimed, rel=5e-3) for opinion in verdict.opinions), (
        "a second accountant, which shares no code, has another ε"
    )


def test_an_accountant_of_single_rows_certifies_no_person() -> None:
    ledger = Ledger(planned("dp-sgd", {}, people()).terms())  # type: ignore[union-attr]
    for judge in (Pld(), Rdp(), Pld(rows=2)):
        for check in (certify, check_budgets):
            with pytest.raises(AccountingError, match="the ledger is for 3"):
                check(ledger, judge)
    held_by_filter = replace(
        ledger.terms, accounts=tuple(replace(one, rule=RenyiFilter(8.0, 0.1)) for one in ledger.terms.accounts)
    )
    with pytest.raises(AccountingError, match="fixed beforehand"):
        certify(Ledger(held_by_filter), Pld(rows=ROWS))
    for wrong in (0, True, "3", 2.5):
        changed = replace(ledger.terms, facts={**ledger.terms.facts, ROWS_FACT: wrong})
        with pytest.raises(AccountingError, match="number of rows of one person"):
            certify(Ledger(changed), Pld(rows=ROWS))
    rows_alone = {name: value for name, value in ledger.terms.facts.items() if name != "unit"}
    with pytest.raises(AccountingError, match="number of rows of one person"):
        certify(Ledger(replace(ledger.terms, facts=rows_alone)), Pld(rows=ROWS))


def test_canaries_are_people_with_all_their_rows_and_see_a_plan_that_counts_one_row() -> None:
    plan = planned("dp-sgd", {}, people(), steps=4, batch_size=60)
    assert plan is not None
    settings = AuditSettings(canaries=1500, seed=3)
    honest = canary_audit(plan, settings)
    assert not honest.overall.above
    scores = play(plan, per_group=50, seed=Seed.from_int(1))
    assert scores.canaries.rows == ROWS
    assert np.bincount(scores.canaries.problem.inputs[:, 0].numpy()).max() == ROWS
    # The mutant: noise for one row, and the same promise.
    for_rows = plan_for("dp-sgd", {}, replace(people(), person_of=None).drawn(), steps=4, batch_size=60)
    one_row = replace(plan.facts, unit="row", rows_per_unit=1, person_rows="mean")
    loose = methods.planned(methods.create("dp-sgd"), one_row, for_rows.settings)
    mutant = replace(plan, controller=loose.controller, rules=loose.rules)
    bounds = canary_audit(replace(mutant, facts=plan.facts), settings).overall.bounds
    promised = plan.settings.epsilon
    assert max(bound.epsilon for bound in bounds) > promised > max(bound.epsilon for bound in honest.overall.bounds)


def test_the_mechanism_of_a_plan_for_rows_of_people_passes_its_self_test() -> None:
    plan = planned("dp-sgd", {}, people(), steps=4, batch_size=60)
    assert plan is not None
    assert self_test(plan, seed=1, per_group=300).passed


def test_a_budget_of_renyi_costs_takes_no_run_that_counts_each_row(tmp_path: Path) -> None:
    plan = planned("dp-sgd", {}, people())
    assert plan is not None
    store = BudgetStore.create(tmp_path / "store.sqlite")
    store.add_dataset(DataSet("sum", person="who"), epsilon=3.0, delta=1e-2)
    store.add_dataset(DataSet("renyi", person="who", composition="renyi"), epsilon=3.0, delta=1e-2)
    charged = reserve_for(plan, BudgetedRun(store, "sum", "one", person="who"))
    assert charged.spending.most.epsilon == pytest.approx(1.0, rel=1e-3)
    with pytest.raises(InputError, match="count one row of a person"):
        reserve_for(plan, BudgetedRun(store, "renyi", "two", person="who"))


def test_wrong_ways_are_one_sentence() -> None:
    with pytest.raises(InputError, match='person_rows is "both": it must be mean or each'):
        Problem.from_arrays([[0.0], [1.0]], [0, 1], people=["a", "b"], person_rows="both")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="by pld alone: use accountant pld"):
        veil.plan(people(), "dp-sgd", accountant="rdp")


def test_the_replay_of_a_plan_for_people_removes_whole_people(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = veil.plan(in_people(small_problem()), "dp-sgd", epsilon=1.0, delta=1e-4, steps=4, batch_size=24)
    assert all(check.passed for scene in (tied_scene(plan), random_scene(plan)) for check in replay_checks(plan, scene))
    assert tied_scene(plan).problem.several is not None
    # The mutant: every row of a person is bounded by itself, and all count.
    several = random_scene(plan)
    apart = several.problem.apart()[0]
    person_of = several.problem.several.person_of  # type: ignore[union-attr]
    mutant = Scene("rows", replace(apart, person_of=person_of), GradientEngine(several.engine.model, row_losses))
    assert not all(check.passed for check in replay_checks(plan, mutant))


def test_batches_of_people_by_size_are_the_same_sum() -> None:
    sizes = np.array([1, 7, 2, 40, 3, 1, 12, 5])
    generator = torch.Generator().manual_seed(0)
    rows, first = int(sizes.sum()), np.concatenate([[0], np.cumsum(sizes)])
    x, y = torch.randn(rows, 4, generator=generator), torch.randint(0, 2, (rows,), generator=generator)
    one = Problem.from_arrays(x[torch.from_numpy(first[:-1])], y[torch.from_numpy(first[:-1])], classes=[0, 1])
    people, loss = by_person(one.with_people(Several(x, y, first), 40), row_losses)
    torch.manual_seed(0)
    engine = GradientEngine(torch.nn.Linear(4, 2), loss)
    release = veil.plan(one, "dp-sgd", epsilon=1.0, steps=1, batch_size=4).controller.release({}, 0)
    everybody = np.random.default_rng(0).permutation(len(sizes))
    places = people.alike(everybody)
    assert max(np.ptp(np.log2(sizes[everybody[some]])) for some in places) < 1, "a batch is mostly empty places"
    parts, whole = release.bounded_sum(engine, people, everybody), release._bounded(engine, people, everybody)
    for name, value in whole.sums[0].items():
        torch.testing.assert_close(parts.sums[0][name], value)
    torch.testing.assert_close(parts.per_row.norms, whole.per_row.norms)
    torch.testing.assert_close(parts.weights, whole.weights)
