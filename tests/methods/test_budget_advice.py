"""Advice on budgets: the numbers are those of the plans that it speaks of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.methods.method_cases import plan_for
from veil.accounting import Rdp, Repeated
from veil.accounting.events import PoissonGaussian
from veil.errors import InputError
from veil.methods.budget_advice import advice_on, budget_advice
from veil.methods.idp_sgd import owner_shares
from veil.plans import Settings
from veil.problem import Problem

SETTINGS = Settings(steps=60, batch_size=100, delta=1e-4, accountant="rdp")


def rows(small: float = 0.2, large: float = 2.0) -> Problem:
    owners = ["careful"] * 3000 + ["open"] * 1000
    return Problem.from_arrays([[0.0]] * 4000, [0, 1] * 2000, owners=owners, budgets={"careful": small, "open": large})


def test_draws_and_pulls_are_those_of_the_plan() -> None:
    found, shares = budget_advice(rows().public, SETTINGS), owner_shares("sample", 1.0, rows().public, SETTINGS)
    assert [part.owner for part in found.now.owners] == ["careful", "open"]
    assert [part.draws for part in found.now.owners] == pytest.approx([shares.rates[0] * 3000, shares.rates[1] * 1000])
    assert sum(part.pull for part in found.now.owners) == pytest.approx(1.0)
    assert sum(part.draws for part in found.now.owners) == pytest.approx(100)
    assert found.now.relative_noise == pytest.approx(shares.sigma / 100)


def test_lowered_budgets_are_a_share_of_the_way_down_and_within_them() -> None:
    found = budget_advice(rows().public, SETTINGS, lower=0.4)
    assert [part.epsilon for part in found.lowered.owners] == pytest.approx([0.2, 2.0 - 0.4 * 1.8])
    less = replace(rows().public, budgets=(0.2, 2.0 - 0.4 * 1.8))
    shares = owner_shares("sample", 1.0, less, SETTINGS)
    for part, rate in zip(found.lowered.owners, shares.rates, strict=True):
        assert part.draws == pytest.approx(rate * part.rows)
        spent = Rdp().epsilon([Repeated(PoissonGaussian(shares.sigma, rate), 60)], 1e-4)
        assert spent <= part.epsilon
    assert found.lowered.most_private.pull > found.now.most_private.pull
    assert found.lowered.relative_noise > found.now.relative_noise


@pytest.mark.parametrize("variant", ["sample", "scale", "both"])
def test_every_variant_is_told_about_the_owner_with_the_smallest_budget(variant: str) -> None:
    found = budget_advice(rows().public, SETTINGS, variant=variant)  # type: ignore[arg-type]
    assert found.sentences[0].startswith('Owner "careful" (ε = 0.2) has 75 % of the rows')
    assert f"{100 * found.lowered.most_private.pull:.0f} % of the pull" in found.sentences[1]
    assert f"everybody, it would have {100 * 0.75:.0f} % of the pull" in found.sentences[2]
    assert "larger clip" in found.sentences[3]


def test_one_budget_for_all_gives_every_owner_its_share_of_the_rows() -> None:
    found = budget_advice(rows().public, SETTINGS)
    assert {part.epsilon for part in found.equal.owners} == {0.2}
    assert {part.owner: part.pull for part in found.equal.owners} == pytest.approx({"careful": 0.75, "open": 0.25})
    shares = owner_shares("sample", 1.0, replace(rows().public, budgets=(0.2, 0.2)), SETTINGS)
    assert found.equal.relative_noise == pytest.approx(shares.sigma / 100)
    turned = Problem.from_arrays(
        [[0.0]] * 4000, [0, 1] * 2000, owners=["a"] * 1000 + ["b"] * 3000, budgets={"a": 2.0, "b": 0.2}
    )
    assert "75 % of the pull" in budget_advice(turned.public, SETTINGS).sentences[2]


def test_nearly_equal_budgets_need_no_advice() -> None:
    found = budget_advice(rows(1.95, 2.0).public, SETTINGS)
    assert len(found.sentences) == 2
    assert "little to gain" in found.sentences[1]


def test_a_plan_of_one_budget_gets_none_and_a_question_about_it_is_rejected() -> None:
    problem = Problem.from_arrays([[0.0]] * 100, [0, 1] * 50)
    assert advice_on(plan_for("dp-sgd", {}, problem)) is None
    with pytest.raises(InputError, match="different budgets"):
        budget_advice(problem.public, SETTINGS)
    with pytest.raises(InputError, match="between 0 and 1"):
        budget_advice(rows().public, SETTINGS, lower=1.5)


def test_a_plan_with_budgets_is_advised_with_its_own_variant() -> None:
    plan = plan_for("ino-sgd", {"variant": "scale"}, rows(), accountant="rdp", steps=60, batch_size=100)
    found = advice_on(plan)
    assert found is not None
    assert found.now == budget_advice(plan.facts, plan.settings, variant="scale").now
