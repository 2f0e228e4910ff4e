"""INO-SGD: budgets used up and never overrun in every variant, golden rates and clips, INO with no tail is IDP-SGD."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch

from tests.methods.method_cases import NoNoise, plan_for, small_engine, small_problem
from veil import methods
from veil.accounting import Rdp
from veil.accounting.calibration import clip_for, rate_for
from veil.bounding import Ordered
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.methods.idp_sgd import owner_shares
from veil.plans import Plan, Settings
from veil.problem import Cell, PublicFacts
from veil.training.fitting import Job, execute, row_losses

VARIANTS = ("sample", "scale", "both")
UNDERNEATH = ("clip", "adaptive-clip", "normalise")
OPTIONS: list[dict[str, object]] = [{"variant": v, "bound": b} for v in VARIANTS for b in UNDERNEATH] + [
    {"order": "random"},
    {"order": "ascending", "variant": "scale"},
    {"order": "owner"},
    {"importance": "steps"},
    {"importance": (0.9, 0.1)},
    {"importance": lambda place: 1.0 - place**2},
    {"alpha": 2.0, "beta": 5.0, "tail": 300.0},
]


@cache
def planned(index: int) -> Plan:
    return plan_for("ino-sgd", OPTIONS[index], small_problem())


@pytest.mark.parametrize(
    "index", range(len(OPTIONS)), ids=lambda index: re.sub(" at 0x[0-9a-f]+", "", str(OPTIONS[index]))
)
def test_every_owner_spends_its_budget_to_one_percent_and_never_overruns_it(index: int) -> None:
    plan = planned(index)
    assert plan.rules is not None
    accountant = plan.settings.accountant_for()
    for cell, rule in enumerate(plan.rules):
        budget = plan.facts.budget_of(cell, 1.0)
        assert 0.99 * budget <= rule.guarantee(plan.delta, accountant) <= budget


@pytest.mark.parametrize(
    "index", range(len(OPTIONS)), ids=lambda index: re.sub(" at 0x[0-9a-f]+", "", str(OPTIONS[index]))
)
def test_removing_a_row_moves_the_release_by_at_most_its_own_limit(index: int) -> None:
    problem, plan = small_problem(), planned(index)
    release = plan.controller.release(plan.controller.start(), 0)
    sampler = release.draw.sampler

    def bounded(chosen: object) -> torch.Tensor:
        released = release.make(
            small_engine(),
            chosen,
            sampler(chosen.strata()),
            Seed.from_int(2),
            0,
            NoNoise(),  # type: ignore[attr-defined,arg-type]
        )
        return torch.cat([value.flatten() for value in released.gradient.values()]).double() * release.divisor

    whole = bounded(problem)
    drawn = sampler(problem.strata()).draw(Seed.from_int(2), 0)
    for row in drawn[:10].tolist():
        limit = release.bound.limits[problem.cell_of[row]]
        assert float((whole - bounded(problem.without(row))).norm()) <= limit * (1 + 1e-4)


def test_golden_rates_and_clips_of_the_papers() -> None:
    rdp = Rdp()
    assert rate_for(8.0, 1e-5, 4.0, 1000, accountant=rdp) == pytest.approx(0.193, rel=5e-3)
    assert rate_for(0.6, 1e-5, 4.0, 1000, accountant=rdp) == pytest.approx(0.0189, rel=5e-3)
    assert clip_for(0.5, 1e-5, 0.05, 4.0, 1000, accountant=rdp) == pytest.approx(0.328, rel=5e-3)
    assert clip_for(3.0, 1e-5, 0.05, 4.0, 1000, accountant=rdp) == pytest.approx(1.589, rel=5e-3)


def test_owner_shares_reach_the_golden_ratio_of_rates() -> None:
    """Budgets 8 and 0.6 at noise 4 and 1,000 steps: rates .193 and .0189; the batch is the one these rates draw."""
    cells = (Cell(0, 0, 1000), Cell(0, 1, 1000))
    facts = PublicFacts(("all",), ("open", "careful"), cells, (2,), classes=("0", "1"), budgets=(8.0, 0.6))
    given_settings = Settings.checked(delta=1e-5, steps=1000, batch_size=212, accountant="rdp")
    shares = owner_shares("sample", 1.0, facts, given_settings)
    assert shares.sigma == pytest.approx(4.0, rel=0.02)
    assert shares.rates == pytest.approx((0.193, 0.0189), rel=0.02)


def test_without_a_tail_it_is_idp_sgd() -> None:
    problem = small_problem()
    ours, theirs = (plan_for(name, options, problem) for name, options in (("ino-sgd", {"tail": 0}), ("idp-sgd", {})))
    assert ours.controller == theirs.controller
    assert ours.rules == theirs.rules


def test_the_order_costs_nothing_beyond_idp_sgd() -> None:
    problem = small_problem()
    for variant in VARIANTS:
        ours = plan_for("ino-sgd", {"variant": variant, "tail": 60}, problem)
        assert ours.rules == plan_for("idp-sgd", {"variant": variant}, problem).rules


def test_the_tail_is_a_share_of_the_expected_sum_of_thresholds() -> None:
    for variant in VARIANTS:
        plan = planned(OPTIONS.index({"variant": variant, "bound": "clip"}))
        release = plan.controller.release(plan.controller.start(), 0)
        expected = sum(
            cell.rows * rate * limit
            for cell, rate, limit in zip(plan.facts.cells, release.draw.rates, release.bound.limits, strict=True)
        )
        assert isinstance(release.bound, Ordered)
        assert release.bound.tail.length == pytest.approx(0.6 * expected)


def test_easy_rows_weigh_less_and_hard_rows_fully() -> None:
    problem = small_problem()
    plan = plan_for("ino-sgd", {"tail": 50.0}, problem, batch_size=120)
    release = plan.controller.release(plan.controller.start(), 0)
    released = release.make(
        small_engine(),
        problem,
        release.draw.sampler(problem.strata()),
        Seed.from_int(3),
        0,
        NoNoise(),  # type: ignore[arg-type]
    )
    view = released.view
    shares = (view.weights * view.per_row.norms.clamp_min(1.0)).numpy()
    order = view.per_row.losses.numpy().argsort()
    assert shares[order[-5:]] == pytest.approx(1.0, abs=1e-3)
    assert shares[order[:5]].max() < 0.3


@pytest.mark.parametrize("bound", UNDERNEATH)
def test_a_run_ends_with_every_budget_kept_in_the_ledger(bound: str) -> None:
    problem = small_problem()
    plan = planned(OPTIONS.index({"variant": "scale", "bound": bound}))
    run = execute(Job(torch.nn.Linear(4, 2), problem, None, row_losses, (), ()), plan, None)
    for owner, spent in run.certificate.by_owner.items():
        assert 0.99 * run.certificate.budgets[owner] <= spent <= run.certificate.budgets[owner]


def test_micro_batches_give_the_same_release() -> None:
    """The order is over the whole batch, however it is cut."""
    problem = small_problem()
    models = []
    for micro in (None, 7):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = torch.nn.Linear(4, 2)
        plan = plan_for("ino-sgd", {}, problem, micro_batch=micro, steps=5)
        execute(Job(model, problem, None, row_losses, (), ()), plan, None)
        models.append(model.weight.detach())
    assert torch.allclose(models[0], models[1], atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tail": -1}, "tail is"),
        ({"bound": "none"}, "bound is"),
        ({"importance": "sinus"}, "importance is"),
        ({"importance": lambda place: place}, "increases"),
        ({"importance": (0.1, 0.5)}, "increases"),
        ({"order": "best"}, "order is"),
        ({"variant": "neither"}, "variant is"),
        ({"neighbours": "replace-one"}, "no option"),
        ({"count_noise": 0.5}, "count_noise"),
    ],
    ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", str(value)),
)
def test_wrong_options_are_refused_with_a_sentence(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_for("ino-sgd", options, small_problem())


def test_it_is_listed_with_its_relation() -> None:
    about = next(row for row in methods.table() if row["name"] == "ino-sgd")
    assert (about["private"], about["relation"], about["family"]) == (True, "add-remove", "individualised")
