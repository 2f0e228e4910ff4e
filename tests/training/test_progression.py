"""Progression certifies what was released: every release of the earlier run and of the continued one, and no less."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.methods.method_cases import small_problem
from tests.training.progression_cases import (
    DELTA,
    LOWERED,
    Witness,
    costs,
    first,
    plan_of,
    preprocessing,
    settings,
    trained,
    watched,
)
from veil import methods
from veil.accounting import Ledger, RenyiFilter, Repeated
from veil.accounting.verify import verify
from veil.errors import InputError
from veil.plans.plan import SEED_GIVEN
from veil.problem import Problem
from veil.tables.private import WithPreprocessing
from veil.training.callbacks import Callback, StepReport, StopTraining
from veil.training.progression import CheckpointEvery, raise_budgets, roll_back
from veil.training.run import Run

CASES = [("dp-sgd", 0.3), ("dp-sgd", 0.6), ("dpsur", 0.0), ("dpsur", 0.3), ("idp-sgd", 0.0), ("ino-sgd", 0.0)]
cases = pytest.mark.parametrize(("name", "share"), CASES)


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Witness:
    return watched(monkeypatch)


def raises(name: str) -> list[dict[str, float]]:
    """Two raises, one after the other; dpsur tests on rows of all owners, so all must raise."""
    if name == "dpsur":
        return [{"careful": 1.0, "open": 2.5}, {"careful": 1.5, "open": 3.0}]
    return [{"careful": 1.0}, {"open": 3.0}]


@cases
def test_a_run_rolled_back_certifies_all_that_was_released_up_to_the_checkpoint(
    name: str, share: float, witness: Witness
) -> None:
    problem, points = small_problem(), CheckpointEvery(1)
    plan = plan_of(name, problem, share)
    with witness.part() as made:
        run = trained(plan, problem, points)
    back = roll_back(run, points.kept, LOWERED)
    assert 0 < back.plan.steps < plan.steps
    assert dict(back.certificate.by_owner) == pytest.approx(costs(plan, share, first(made, back.plan.steps)))
    assert all(back.certificate.by_owner[owner] <= LOWERED[owner] for owner in LOWERED)


@cases
def test_a_raised_run_certifies_all_releases_of_both_parts(name: str, share: float, witness: Witness) -> None:
    problem = small_problem()
    plan = plan_of(name, problem, share)
    with witness.part() as made:
        run = trained(plan, problem)
    with witness.part() as further:
        more = raise_budgets(run, problem, raises(name)[0], 9)
    assert dict(more.certificate.by_owner) == pytest.approx(costs(plan, share, made, further))
    assert 0.98 < more.certificate.by_owner["careful"] <= 1.0


@cases
def test_a_run_raised_twice_certifies_all_three_parts(name: str, share: float, witness: Witness) -> None:
    problem = small_problem()
    plan, run, parts = plan_of(name, problem, share), None, []
    for budgets in (None, *raises(name)):
        with witness.part() as made:
            run = trained(plan, problem) if run is None else raise_budgets(run, problem, budgets or {}, 9)
        parts.append(made)
    assert run is not None
    assert dict(run.certificate.by_owner) == pytest.approx(costs(plan, share, *parts))
    assert dict(run.certificate.by_owner) == pytest.approx(dict(run.certificate.budgets), rel=0.02)
    assert run.plan.details["earlier_steps"] == 21
    assert len(set.union(*witness.seeds)) == 3


@cases
def test_a_raised_run_rolled_back_certifies_the_earlier_run_too(name: str, share: float, witness: Witness) -> None:
    problem, points = small_problem(), CheckpointEvery(1)
    plan = plan_of(name, problem, share)
    with witness.part() as made:
        run = trained(plan, problem)
    with witness.part() as further:
        more = raise_budgets(run, problem, raises(name)[0], 9, callbacks=[points])
    back = roll_back(more, points.kept, {"careful": 0.8})
    steps = back.plan.steps
    assert 0 < steps < 9
    assert dict(back.certificate.by_owner) == pytest.approx(costs(plan, share, made, first(further, steps)))
    assert back.certificate.by_owner["careful"] <= 0.8
    again = raise_budgets(back, problem, raises(name)[1], 5)
    last = first(witness.steps[-10:] if name == "dpsur" else witness.steps[-5:], 5)
    assert dict(again.certificate.by_owner) == pytest.approx(costs(plan, share, made, first(further, steps), last))


def test_under_pld_too_every_test_of_an_update_is_paid_for(witness: Witness) -> None:
    problem, points = small_problem(), CheckpointEvery(1)
    plan = plan_of("dpsur", problem, 0.3, accountant="pld")
    with witness.part() as made:
        run = trained(plan, problem, points)
    back = roll_back(run, points.kept, LOWERED)
    assert dict(back.certificate.by_owner) == pytest.approx(costs(plan, 0.3, first(made, back.plan.steps)))
    with witness.part() as further:
        more = raise_budgets(run, problem, raises("dpsur")[0], 9)
    assert dict(more.certificate.by_owner) == pytest.approx(costs(plan, 0.3, made, further))


@cases
def test_verify_finds_in_the_ledgers_on_disk_what_the_certificate_says(
    name: str, share: float, tmp_path: Path, witness: Witness
) -> None:
    problem, points = small_problem(), CheckpointEvery(1)
    plan = plan_of(name, problem, share)
    run = trained(plan, problem, points, out=tmp_path / "run")
    back = roll_back(run, points.kept, LOWERED, out=tmp_path / "back")
    more = raise_budgets(run, problem, raises(name)[0], 9, out=tmp_path / "more", callbacks=[points])
    twice = raise_budgets(more, problem, raises(name)[1], 9, out=tmp_path / "twice")
    again = roll_back(more, points.kept, {"careful": 0.8}, out=tmp_path / "again")
    for continued in (run, back, more, twice, again):
        assert continued.folder is not None
        verdict = verify(continued.folder / "certificate.json")
        assert verdict.holds, (continued.folder.name, verdict)
        assert (continued.folder / "preprocessing.jsonl").exists() == bool(share)
        ledger, accountant = Ledger.open(continued.folder / "ledger.jsonl"), plan.settings.accountant_for()
        spent = [accountant.epsilon(ledger.spent(cell), DELTA) for cell in range(len(plan.facts.cells))]
        assert max(spent) == pytest.approx(continued.certificate.epsilon)
    own = [Ledger.open(tmp_path / name / "ledger.jsonl").entries for name in ("run", "more", "twice")]
    assert [sum(e["count"] for e in entries if e["purpose"].endswith("gradient")) for entries in own] == [12, 21, 30]


# Runs that stopped early, and filters


class StopAt(Callback):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step(self, report: StepReport) -> None:
        if report.step + 1 == self.steps:
            raise StopTraining("what was released says so")


def test_a_run_that_stopped_early_keeps_its_promise_when_it_is_raised() -> None:
    problem = small_problem()
    run = trained(plan_of("idp-sgd", problem), problem, StopAt(3))
    assert run.stopped
    more = raise_budgets(run, problem, {"careful": 1.0}, 9)
    assert more.certificate.by_owner["open"] == pytest.approx(run.certificate.by_owner["open"])
    assert more.certificate.by_owner["careful"] > 0.98


def test_which_checkpoint_is_the_last_tells_nothing_that_is_not_paid_for_in_a_run_that_stopped_early() -> None:
    """Stopping after step 5 is seen in a checkpoint at 5 where 8 was allowed: the releases that decided it count."""
    problem = small_problem()
    points = CheckpointEvery(1)
    plan = plan_of("dp-sgd", problem)
    run = trained(plan, problem, points, StopAt(5))
    budget = run.plan.settings.accountant_for().epsilon(
        [Repeated(plan.controller.release({}, 0).events(plan.facts)[0], 8)], DELTA
    )
    back = roll_back(run, points.kept, {"careful": budget * 1.0001})
    assert back.plan.steps == 5
    assert back.certificate.epsilon == pytest.approx(budget)
    assert max(back.certificate.spent_by_group.values()) < 0.9 * budget


def filtered(out: Path | None = None) -> tuple[Problem, Run, CheckpointEvery]:
    """Group sizes were released with noise, so every cell has a Rényi filter."""
    own = small_problem()
    groups = [own.public.groups[group] for group in own.group_of]
    sizes = {"majority": 198, "minority": 41}
    problem = Problem.from_arrays(own.inputs, own.targets, groups, classes=[0, 1], group_sizes=sizes)
    chosen = settings()
    tokens = preprocessing(0.3, chosen, 1.0)
    method = WithPreprocessing(methods.create("dp-sgd"), tokens, 0.3, sizes_released=True)
    points = CheckpointEvery(1)
    return problem, trained(methods.planned(method, problem.public, chosen), problem, points, out=out), points


def test_a_filter_stays_a_filter_and_guarantees_the_new_budget() -> None:
    problem, run, points = filtered()
    assert all(isinstance(rule, RenyiFilter) for rule in run.plan.rules or ())
    order = run.plan.rules[0].order  # type: ignore[index, attr-defined]
    more = raise_budgets(run, problem, {"everybody": 1.7}, 250)
    back = roll_back(run, points.kept, {"everybody": 0.9})
    low = raise_budgets(back, problem, {"everybody": 1.2}, 9)
    for continued, budget in ((more, 1.7), (back, 0.9), (low, 1.2)):
        assert all(isinstance(rule, RenyiFilter) and rule.order == order for rule in continued.plan.rules or ())
        assert continued.certificate.epsilon == pytest.approx(budget)
        assert budget * 0.8 < max(continued.certificate.spent_by_group.values()) <= budget
    assert 0 < back.plan.steps < run.plan.steps


def test_a_filter_counts_what_was_released_before() -> None:
    _, run, points = filtered()
    tokens = [Repeated(part.events[0], part.count) for part in run.plan.earlier]
    rule = run.plan.rules[0]  # type: ignore[index]
    alone = rule.reading(tokens, DELTA, run.plan.settings.accountant_for())
    with pytest.raises(InputError, match="before the first step"):
        roll_back(run, points.kept, {"everybody": alone * 0.99})


# Seeds


@pytest.mark.parametrize("seed", [5, None])
def test_no_part_has_the_seed_of_another_whether_it_was_given_or_drawn(seed: int | None, witness: Witness) -> None:
    problem, points = small_problem(), CheckpointEvery(1)
    with witness.part():
        run = trained(plan_of("dpsur", problem, seed=seed), problem, points)
    back = roll_back(run, points.kept, LOWERED)
    for start in (run, run, back):
        for budgets in raises("dpsur"):
            with witness.part():
                more = raise_budgets(start, problem, budgets, 4)
            assert (SEED_GIVEN in more.certificate.assumptions) == (seed is not None)
    used = [secret for part in witness.seeds for secret in part]
    # A seed that was given makes the same call repeatable; everything else has noise of its own.
    assert len(used) == 7
    assert len(set(used)) == (5 if seed is not None else 7)


def test_a_run_rolled_back_does_not_measure_with_the_noise_of_the_earlier_figures() -> None:
    problem, points = small_problem(), CheckpointEvery(1)
    run = trained(plan_of("dp-sgd", problem), problem, points)
    assert roll_back(run, points.kept, LOWERED).plan.settings.seed != run.plan.settings.seed
