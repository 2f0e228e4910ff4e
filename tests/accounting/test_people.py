"""The ε of a person with several rows is never below the truth, and is exact where a pair of tables attains it."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as peer
from scipy import stats
from scipy.integrate import trapezoid

from veil.accounting import (
    Account,
    AccountingError,
    Gdp,
    Ledger,
    Pld,
    Rdp,
    RenyiFilter,
    Terms,
    TokenBucket,
    certify,
    epsilon_of_person,
    epsilon_of_rows,
)
from veil.accounting import events as kinds
from veil.accounting.certificate import Certificate
from veil.accounting.conversion import epsilon_at_order, gaussian_delta, gaussian_epsilon
from veil.accounting.people import _one_after_another
from veil.accounting.pld.several import pair_of_rows
from veil.accounting.verify import verify

DELTA = 1e-5
STEPS = kinds.PoissonGaussian(1.0, 0.01)
REPLACED = kinds.Relation.REPLACE_ONE
GRID = {"value_discretization_interval": 5e-3, "log_mass_truncation_bound": -40}
KINDS: tuple[kinds.Event, ...] = (
    kinds.Gaussian(4.0),
    kinds.Gaussian(4.0, REPLACED),
    kinds.PoissonGaussian(2.0, 0.05),
    kinds.PoissonGaussian(2.0, 0.05, REPLACED),
    kinds.PoissonGaussian(2.0, 1.0, REPLACED),
    kinds.SubsetGaussian(4.0, 1000, 20),
    kinds.SubsetGaussian(4.0, 6, 6),
    kinds.Laplace(10.0),
    kinds.NoisyMax(20.0),
    kinds.Tree(10.0, 8),
    kinds.Mixture(0.2, kinds.PoissonGaussian(2.0, 0.05)),
    kinds.Mixture(0.2, kinds.SubsetGaussian(4.0, 1000, 20)),
    kinds.Envelope((kinds.PoissonGaussian(2.0, 0.05), kinds.PoissonGaussian(4.0, 0.1))),
    kinds.Selection((kinds.Repeated(kinds.Gaussian(20.0), 1),), shape=1.0, gamma=0.5),
    kinds.Choice(((kinds.Repeated(kinds.Gaussian(20.0)),), (kinds.Repeated(kinds.Gaussian(30.0), 2),))),
)


def chained(events: Sequence[kinds.Repeated], rows: int) -> float:
    return _one_after_another(lambda by, delta: by.epsilon(events, delta), rows, DELTA, Pld())


def hockey_stick(first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]], a: float) -> float:
    """H_a of two mixtures of unit normals, given as (weight, mean), by brute force."""
    x = np.linspace(-25.0, 35.0, 60_001)
    density = [sum(w * stats.norm.pdf(x - mean) for w, mean in side) for side in (first, second)]
    return float(trapezoid(np.maximum(density[0] - a * density[1], 0.0), x))


@pytest.mark.parametrize("event", KINDS, ids=repr)
def test_one_row_has_the_epsilon_of_the_accountant(event: kinds.Event) -> None:
    by = Rdp() if isinstance(event, kinds.Selection) else Pld()
    steps = [kinds.Repeated(event, 3)]
    assert epsilon_of_rows(steps, 1, DELTA, by) == by.epsilon(steps, DELTA)


@pytest.mark.parametrize("event", KINDS, ids=repr)
def test_more_rows_never_have_less_and_never_more_than_one_after_another(event: kinds.Event) -> None:
    by = Rdp() if isinstance(event, kinds.Selection) else Pld()
    steps = [kinds.Repeated(event, 3)]
    found = [epsilon_of_rows(steps, rows, DELTA, by) for rows in (1, 2, 3, 5, 10)]
    assert all(math.isfinite(one) for one in found)
    assert all(more >= less * (1 - 1e-3) for less, more in itertools.pairwise(found))
    for rows, epsilon in zip((2, 3, 5, 10), found[1:], strict=True):
        assert epsilon <= _one_after_another(lambda b, d: b.epsilon(steps, d), rows, DELTA, by) * (1 + 1e-9)


@pytest.mark.parametrize("rows", [2, 5, 10])
def test_a_release_over_all_rows_moves_k_times_as_far(rows: int) -> None:
    steps = [kinds.Repeated(kinds.Gaussian(10.0), 20)]
    exact = gaussian_epsilon(rows * math.sqrt(20) / 10.0, DELTA)
    assert epsilon_of_rows(steps, rows, DELTA, Pld()) == pytest.approx(exact, rel=1e-9)
    assert epsilon_of_rows(steps, rows, DELTA, Pld()) >= exact * (1 - 1e-12)


@pytest.mark.parametrize(
    ("rows", "rate", "noise", "steps"), [(2, 0.02, 1.0, 50), (5, 0.1, 2.0, 20), (10, 0.01, 4.0, 99)]
)
def test_a_second_accountant_agrees_about_drawn_rows(rows: int, rate: float, noise: float, steps: int) -> None:
    binomial = stats.binom(rows, rate).pmf(np.arange(rows + 1))
    chances = list(binomial / binomial.sum())
    second = peer.from_mixture_gaussian_mechanism(noise, list(range(rows + 1)), chances, **GRID)
    exact = second.self_compose(steps).get_epsilon_for_delta(DELTA)
    found = epsilon_of_rows([kinds.Repeated(kinds.PoissonGaussian(noise, rate), steps)], rows, DELTA, Pld())
    assert found == pytest.approx(exact, rel=5e-3)  # the second one's grid is coarse
    assert found >= Pld(rows=rows).lower_epsilon([kinds.Repeated(kinds.PoissonGaussian(noise, rate), steps)], DELTA)


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
@pytest.mark.parametrize(("rate", "noise"), [(0.3, 1.0), (0.02, 0.6), (0.5, 8.0)])
def test_the_pair_of_drawn_rows_is_that_of_an_integral(rows: int, rate: float, noise: float) -> None:
    pair = pair_of_rows(kinds.PoissonGaussian(noise, rate), rows)
    drawn = [(float(stats.binom(rows, rate).pmf(j)), j / noise) for j in range(rows + 1)]
    for epsilon in (0.0, 1e-3, 0.1, 0.5, 2.0):
        at = np.array([epsilon])
        for profile, sides in ((pair.up, (drawn, [(1.0, 0.0)])), (pair.down, ([(1.0, 0.0)], drawn))):
            value, error = profile(at)
            assert float(value[0]) == pytest.approx(hockey_stick(*sides, math.exp(epsilon)), rel=1e-5, abs=1e-9)
            assert 0 <= float(error[0]) <= 1e-9


@pytest.mark.parametrize(("size", "batch", "rows"), [(3, 1, 2), (4, 2, 2), (4, 3, 2), (5, 2, 3), (5, 2, 9)])
def test_a_batch_without_replacement_never_tells_more_of_k_rows_than_the_bound(
    size: int, batch: int, rows: int
) -> None:
    noise, k = 1.5, min(rows, size)
    pair = pair_of_rows(kinds.SubsetGaussian(noise, size, batch), rows)
    batches = list(itertools.combinations(range(size), batch))
    for others in (-1.0, 0.0, 1.0):
        sides = [
            [(1 / len(batches), sum(own if i < k else others for i in drawn) / noise) for drawn in batches]
            for own in (1.0, -1.0)
        ]
        for epsilon in (0.0, 0.2, 1.0, 2.5):
            bound = float(sum(pair.up(np.array([epsilon])))[0])
            assert hockey_stick(sides[0], sides[1], math.exp(epsilon)) <= bound + 1e-6
            assert hockey_stick(sides[1], sides[0], math.exp(epsilon)) <= bound + 1e-6


def test_a_batch_of_all_rows_is_no_batch() -> None:
    whole, all_rows = kinds.SubsetGaussian(4.0, 50, 50), kinds.Gaussian(4.0, REPLACED)
    assert epsilon_of_rows([whole], 3, DELTA, Pld()) == pytest.approx(epsilon_of_rows([all_rows], 3, DELTA, Pld()))


def test_rows_one_after_another_are_never_below_what_they_are_together() -> None:
    for rows in (2, 3, 5):
        steps = [kinds.Repeated(kinds.PoissonGaussian(2.0, 0.02), 100)]
        assert chained(steps, rows) >= Pld(rows=rows).epsilon(steps, DELTA)
        wide = [kinds.Repeated(kinds.Gaussian(10.0), 1)]
        assert chained(wide, rows) >= gaussian_epsilon(rows / 10.0, DELTA)


def test_pure_privacy_of_k_rows_is_at_most_k_times_that_of_one() -> None:
    assert epsilon_of_rows([kinds.Laplace(2.0)], 4, 1e-9, Pld()) <= 4 / 2.0
    assert epsilon_of_rows([kinds.NoisyMax(2.0)], 3, 1e-9, Pld()) <= 3 * kinds.NoisyMax(2.0).range


def test_an_approximation_or_no_row_at_all_has_no_epsilon() -> None:
    with pytest.raises(AccountingError, match="underestimate"):
        epsilon_of_rows([kinds.Gaussian(1.0)], 2, DELTA, Gdp())
    with pytest.raises(AccountingError, match="at least 1"):
        epsilon_of_rows([kinds.Gaussian(1.0)], 0, DELTA, Pld())
    assert epsilon_of_rows([], 5, DELTA, Pld()) == 0.0


def ledger_of(*rules: object, relation: kinds.Relation = kinds.Relation.ADD_REMOVE, path: Path | None = None) -> Ledger:
    accounts = tuple(Account(f"group {i}", "everybody", 9.0, rule) for i, rule in enumerate(rules))  # type: ignore[arg-type]
    return Ledger(Terms(relation, DELTA, "pld", accounts, {"method": "test"}), path)


def bucket(event: kinds.Event, times: int) -> TokenBucket:
    return TokenBucket((kinds.Repeated(event, times),))


def test_rows_of_groups_that_are_drawn_alike_cost_as_in_one_group() -> None:
    ledger = ledger_of(bucket(STEPS, 100), bucket(STEPS, 100))
    ledger.reserve("gradient", 0, 100, {0: STEPS, 1: STEPS})
    together = epsilon_of_rows([kinds.Repeated(STEPS, 100)], 5, DELTA, Pld())
    assert epsilon_of_person(ledger, 5, Pld()) == together


def test_rows_of_groups_that_are_drawn_differently_are_not_taken_for_rows_of_one_group() -> None:
    rare, often = kinds.PoissonGaussian(1.0, 0.01), kinds.PoissonGaussian(1.0, 0.05)
    ledger = ledger_of(bucket(rare, 50), bucket(often, 50))
    ledger.reserve("gradient", 0, 50, {0: rare, 1: often})
    both = [(1 - 0.01) * (1 - 0.05), 0.01 * 0.95 + 0.99 * 0.05, 0.01 * 0.05]
    second = peer.from_mixture_gaussian_mechanism(1.0, [0, 1, 2], both, **GRID)
    truth = second.self_compose(50).get_epsilon_for_delta(DELTA)
    assert epsilon_of_person(ledger, 2, Pld()) >= truth * (1 - 1e-3)
    assert epsilon_of_person(ledger, 2, Pld()) >= Pld(rows=2).epsilon([kinds.Repeated(often, 50)], DELTA) * (1 - 1e-3)


def test_rows_of_groups_that_take_turns_are_not_taken_for_rows_of_one_group() -> None:
    # In every step one of two groups is drawn: the two rows of a person are seen twice as often as two of one group.
    turn = kinds.Mixture(0.5, kinds.Gaussian(0.2))
    ledger = ledger_of(bucket(turn, 1), bucket(turn, 1))
    ledger.reserve("gradient", 0, 1, {0: turn, 1: turn})
    found = epsilon_of_person(ledger, 2, Pld())
    assert gaussian_delta(5.0, found) <= DELTA  # a row in each group: always seen, moved by 1
    assert found > epsilon_of_rows([turn], 1, DELTA, Pld())


def test_a_filter_bounds_as_many_rows_as_its_order_allows() -> None:
    rule = RenyiFilter(32.0, 0.1)
    ledger = ledger_of(rule)
    assert epsilon_of_person(ledger, 1, Rdp()) == pytest.approx(float(epsilon_at_order(0.1, 32.0, DELTA)))
    two, ten = (epsilon_of_person(ledger, rows, Rdp()) for rows in (2, 10))
    assert 2 * epsilon_of_person(ledger, 1, Rdp()) < two < ten < math.inf
    # a kinds.Gaussian of this cost, twice as far apart, is one of the runs that the filter admits
    assert two >= gaussian_epsilon(2 * math.sqrt(2 * 0.1 / 32.0), DELTA)
    assert epsilon_of_person(ledger_of(RenyiFilter(4.0, 0.1)), 10, Rdp()) == math.inf


def test_a_certificate_says_what_it_means_for_people_with_several_rows(tmp_path: Path) -> None:
    ledger = ledger_of(bucket(STEPS, 100), path=tmp_path / "ledger.jsonl")
    ledger.reserve("gradient", 0, 100, {0: STEPS})
    certificate = certify(ledger, Pld())
    assert certificate.unit == "one row"
    assert list(certificate.by_rows) == ["2", "5", "10"]
    assert certificate.by_rows["5"] == epsilon_of_rows([kinds.Repeated(STEPS, 100)], 5, DELTA, Pld())
    certificate.save(tmp_path / "certificate.json")
    assert Certificate.load(tmp_path / "certificate.json") == certificate
    assert verify(tmp_path / "certificate.json").holds


def test_a_certificate_made_before_there_was_a_curve_still_holds_and_a_wrong_curve_does_not(tmp_path: Path) -> None:
    ledger = ledger_of(bucket(STEPS, 100), path=tmp_path / "ledger.jsonl")
    path = tmp_path / "certificate.json"
    record = certify(ledger, Pld()).as_json()
    old = {name: value for name, value in record.items() if name not in ("unit", "by_rows")}
    path.write_text(json.dumps(old))
    assert verify(path).holds
    path.write_text(json.dumps({**record, "by_rows": {**record["by_rows"], "10": 1.0}}))
    assert any("by_rows" in fault for fault in verify(path).faults)
    path.write_text(json.dumps({**record, "unit": "one person"}))
    assert any(fault.startswith("unit does not follow from the ledger") for fault in verify(path).faults)
    path.write_text(json.dumps({**record, "unit": "everybody"}))
    with pytest.raises(AccountingError, match="unit"):
        verify(path)


def test_a_certificate_has_no_number_where_no_epsilon_holds() -> None:
    certificate = certify(ledger_of(RenyiFilter(4.0, 0.1)), Rdp())
    assert list(certificate.by_rows) == ["2"]


def test_where_one_row_costs_too_much_nothing_is_proved_row_by_row() -> None:
    """δ shared among ten rows at ε = 300 is no number any more."""
    assert _one_after_another(lambda by, delta: 300.0, 10, DELTA, Rdp()) == math.inf


def _spent_once(noise: float, event: kinds.Event | None = None) -> Ledger:
    event = event or kinds.Gaussian(noise)
    rule = TokenBucket((kinds.Repeated(event, 1),))
    facts = {"method": "auto", "steps": 1}
    ledger = Ledger(Terms(kinds.Relation.ADD_REMOVE, DELTA, "pld", (Account("a", "all", 9.0, rule),), facts))
    ledger.reserve("gradient", 0, 1, {0: event})
    return ledger


def test_rows_that_are_held_out_count_for_a_person_as_well_as_those_trained_on() -> None:
    """Two Gaussian releases, and a person with rows in both parts: never more than k rows of the dearer part."""
    trained, measured = _spent_once(12.0), _spent_once(4.0)
    found = certify(trained, Pld(), held_out={"evaluation.jsonl": measured}).by_rows
    for rows in (2, 5):
        mixtures = [math.hypot(some / 12.0, (rows - some) / 4.0) for some in range(rows + 1)]
        assert max(gaussian_epsilon(mixture, DELTA) for mixture in mixtures) <= found[str(rows)] * (1 + 1e-9)
        assert found[str(rows)] == pytest.approx(gaussian_epsilon(rows / 4.0, DELTA), rel=1e-2)


def test_drawn_and_held_out_rows_of_a_person_are_taken_one_after_another() -> None:
    drawn, measured = _spent_once(0.0, kinds.PoissonGaussian(2.0, 0.2)), _spent_once(6.0)
    found = certify(drawn, Pld(), held_out={"evaluation.jsonl": measured})
    alone = [epsilon_of_person(ledger, 2, Pld()) for ledger in (drawn, measured)]
    assert found.by_rows["2"] >= max(alone)
