"""The plan of a search: the number of trials, a trial's share, candidates that public rules leave out, the audit."""

from __future__ import annotations

import re

import numpy as np
import pytest

from veil.accounting import Pld, TokenBucket
from veil.auditing.search_canaries import audit_search, best_of_trials, epsilon_of_best, fit_search
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.problem import Cell, PublicFacts
from veil.request import Settings, TuneRequest
from veil.request.tuning import candidate
from veil.training.searching import NumberOfTrials, plan_search, plan_trial, score_event

FACTS = PublicFacts(("F", "M"), ("all",), (Cell(0, 0, 3000), Cell(1, 0, 7000)), (20,), classes=("0", "1"))
TWO = [candidate("auto"), candidate("group-gd weight=3")]


def planned(trials: float = 3.0, texts: tuple[str, ...] = ("auto", "group-gd"), **settings: float):
    number = NumberOfTrials.expecting(trials)
    return plan_search([candidate(t) for t in texts], FACTS, Settings.checked(**{"epsilon": 1.0} | settings), number)


@pytest.mark.parametrize("mean", [1.5, 3.0, 20.0])
def test_the_number_of_trials_is_drawn_from_the_distribution_that_is_charged(mean: float) -> None:
    number = NumberOfTrials.expecting(mean)
    assert number.mean == pytest.approx(mean, rel=1e-9)
    chances = number.chances(20_000)
    assert chances.sum() == pytest.approx(1.0, abs=1e-6)
    assert (chances * np.arange(1, 20_001)).sum() == pytest.approx(mean, rel=1e-3)
    # The logarithmic distribution: −(1−γ)^k / (k·log γ).
    k = np.arange(1, 11)
    np.testing.assert_allclose(chances[:10], -((1 - number.gamma) ** k) / (k * np.log(number.gamma)), rtol=1e-9)
    drawn = np.array([number.draw(Seed.from_int(seed)) for seed in range(2000)])
    assert drawn.min() == 1
    # Four standard errors: a false alarm in 16,000.
    for count in (1, 2, 3):
        chance = chances[count - 1]
        assert abs((drawn == count).mean() - chance) < 4 * np.sqrt(chance * (1 - chance) / 2000)


def test_trials_are_drawn_by_their_weights_and_each_by_itself() -> None:
    search = planned(texts=("auto", "group-gd weight=3"))
    drawn = [search.drawn(Seed.from_int(1), number) for number in range(2000)]
    assert abs(np.mean(drawn) - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 2000)
    assert drawn[7] == search.drawn(Seed.from_int(1), 7)


@pytest.mark.parametrize("trials", [2.0, 10.0])
def test_a_share_uses_the_whole_budget_and_no_more(trials: float) -> None:
    search = planned(trials)
    delta = search.settings.delta_for(FACTS)
    for rule in search.whole().rules or ():
        assert rule.guarantee(delta, Pld()) <= 1.0 * (1 + 1e-9)
    assert max(rule.guarantee(delta, Pld()) for rule in search.whole().rules or ()) > 0.99
    terms = search.scoring_terms(FACTS)
    assert 0.99 < terms.accounts[0].rule.guarantee(delta, Pld()) <= 1.0 * (1 + 1e-9)
    naive = plan_search(TWO, FACTS, Settings.checked(epsilon=1.0), int(trials))
    assert naive.share.epsilon < search.share.epsilon < 1.0


@pytest.mark.parametrize("shape", [0.0, 1.0, -0.5])
def test_the_chance_that_all_trials_are_low_is_what_their_number_says(shape: float) -> None:
    number, each = NumberOfTrials(0.1, shape), np.array([0.0, 0.2, 0.7, 0.99, 1.0])
    counted = (number.chances(5000)[:, None] * each[None] ** np.arange(1, 5001)[:, None]).sum(axis=0)
    assert number.chance_of_all_below(each) == pytest.approx(counted, abs=1e-6)


@pytest.mark.statistical
def test_noise_that_is_read_off_published_values_proves_what_there_is_and_no_more() -> None:
    """Of 100 audits at 95 %, more than 10 would exceed the truth in less than 1 of 50 repetitions."""
    search, distance = planned(10.0, epsilon=4.0, delta=0.1), 1.5
    assert isinstance(search.trials, NumberOfTrials)
    truth = epsilon_of_best(search.trials, distance, 0.1)
    found = []
    for number in range(100):
        published = best_of_trials(search.trials, 60, np.random.default_rng(number)) / distance
        found.append(fit_search(search, published, 1.0, Seed.from_int(number % 5)).epsilon)
    assert sum(epsilon > truth for epsilon in found) <= 10
    assert np.median(found) > 0.75 * truth


def test_candidates_that_cannot_work_are_left_out_by_public_rules() -> None:
    texts = ("auto", "group-gd", "erm", "auto neighbours=replace-one", "auto aim=nonsense", "auto every=4")
    left_out = planned(texts=texts).left_out
    assert {label: bool(reason) for label, reason in left_out.items()} == dict.fromkeys(
        ("erm", "auto neighbours=replace-one", "auto aim=nonsense", "auto every=4"), True
    )
    few = PublicFacts(("F",), ("all",), (Cell(0, 0, 60),), (20,), classes=("0", "1"))
    number, settings = NumberOfTrials.expecting(2.0), Settings.checked(epsilon=0.2)
    wide = [candidate("auto"), candidate("dp-sgd model=mlp")]
    found = plan_search(wide, few, settings, number, lambda one: 5000)
    assert "longest possible update" in found.left_out["dp-sgd model=mlp"]
    with pytest.raises(InputError, match="no candidate can work here"):
        planned(texts=("erm",))


def test_methods_that_draw_batches_are_left_out_where_every_trial_is_charged() -> None:
    both = [candidate("auto"), candidate("dp-sgd model=logistic")]
    charged = plan_search(both, FACTS, Settings.checked(epsilon=1.0), 2)
    assert [one.method for one in charged.candidates] == ["auto"]
    assert "use selection" in charged.left_out["dp-sgd model=logistic"]
    assert not plan_search(both, FACTS, Settings.checked(epsilon=1.0), NumberOfTrials.expecting(2.0)).left_out


def test_an_audit_of_the_search_stays_below_its_certificate_and_catches_one_that_forgets_the_trials() -> None:
    # δ is large so that the attack needs no rare events; at 95 % and by both limits a false alarm is below 1 in 20,
    # and with this seed there is none.
    search = planned(60.0, epsilon=1.0, delta=0.05)
    assert audit_search(search, 40_000, Seed.from_int(3)).epsilon <= 1.0
    whole = Settings.checked(epsilon=1.0, delta=0.05)
    forgetful = planned(60.0, epsilon=1.0, delta=0.05)
    mutant = type(search)(
        forgetful.settings,
        forgetful.trials,
        forgetful.candidates,
        tuple(plan_trial(one, FACTS, whole) for one in forgetful.candidates),
    )
    assert score_event(mutant.plans[0]).noise_multiplier < score_event(search.plans[0]).noise_multiplier
    assert audit_search(mutant, 40_000, Seed.from_int(3)).epsilon > 1.0


def test_a_range_is_a_list_of_candidates_that_share_its_weight() -> None:
    found = TuneRequest.checked(
        data="t.csv", candidate=["auto weight=3", "dp-sgd epochs=5..40/3 clip=0.1|1"]
    ).candidates()
    assert [one.settings.get("epochs") for one in found] == [None, 5, 5, 14, 14, 40, 40]
    assert [one.options.get("clip") for one in found] == [None, 0.1, 1, 0.1, 1, 0.1, 1]
    assert [one.weight for one in found] == [3, *[pytest.approx(1 / 6)] * 6]


def test_every_value_of_a_range_is_planned_and_charged_before_any_is_drawn() -> None:
    request = TuneRequest.checked(data="t.csv", candidate=["dp-sgd epochs=1|20 model=logistic"])
    number = NumberOfTrials.expecting(2.0)
    search = plan_search(request.candidates(), FACTS, Settings.checked(epsilon=1.0), number)
    assert [plan.settings.epochs for plan in search.plans] == [1, 20]
    runs = {rule.tokens for plan in search.plans for rule in plan.rules or () if isinstance(rule, TokenBucket)}
    [token] = {token for rule in search.whole().rules or () for token in getattr(rule, "tokens", ())}
    [either] = token.event.events
    assert len(runs) == 2
    assert set(either.event.runs) == runs


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("dp-sgd clip=1..0.1", "from a number above 0 to a larger one"),
        ("dp-sgd clip=0..1", "from a number above 0 to a larger one"),
        ("dp-sgd clip=a..b", "a is not a number"),
        ("dp-sgd clip=0.1..1/1", "from 2 to 64 values"),
        ("dp-sgd clip=0.1..1/x", "give a range as"),
        ("dp-sgd clip=0.1|", "on both sides"),
        ("dp-sgd weight=1..2", "weight is a number"),
        ("dp-sgd clip=0.1..1/9 epochs=1..90/9", "make 81 candidates"),
    ],
)
def test_a_range_that_makes_no_sense_is_rejected_with_the_candidate_it_is_in(text: str, wrong: str) -> None:
    with pytest.raises(InputError, match=f"candidate .*{re.escape(wrong)}"):
        TuneRequest.checked(data="t.csv", candidate=[text]).candidates()
