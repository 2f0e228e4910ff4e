"""Bounds on the gap between training rows and new rows."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from veil.accounting import Account, Ledger, Pld, RenyiFilter, Terms, TokenBucket, certify
from veil.accounting.certificate import Certificate
from veil.accounting.conversion import gaussian_delta
from veil.accounting.events import AccountingError, Gaussian, PoissonGaussian, Relation, Repeated
from veil.accounting.gdp import Gdp
from veil.accounting.generalisation import (
    calibration_gap,
    gap_bounds,
    gap_sentence,
    property_gap,
    subgroup_gap,
    tv_from_events,
    tv_from_privacy,
)
from veil.accounting.rdp import Rdp
from veil.accounting.verify import verify

REPLACE = Relation.REPLACE_ONE


def test_proposition_two_six_is_tight_on_randomised_response_with_a_leak() -> None:
    # with probability δ the row is told outright, else randomised response with ε: its total variation is the bound
    for epsilon, delta in [(0.0, 0.0), (1.0, 0.0), (1.0, 0.1), (3.0, 1e-5), (0.0, 0.2)]:
        tell = delta + (1 - delta) * math.tanh(epsilon / 2)
        assert tv_from_privacy(epsilon, delta) == pytest.approx(tell)


def test_proposition_two_six_beats_the_direct_bound_and_never_exceeds_one() -> None:
    assert tv_from_privacy(1.0, 1e-3) < math.expm1(1.0) + 1e-3
    assert tv_from_privacy(1e4, 0.0) == 1.0
    assert tv_from_privacy(50.0, 1.0) == 1.0


def test_the_profile_says_more_than_one_pair() -> None:
    events = [Repeated(PoissonGaussian(5.0, 0.01, REPLACE), 1000)]
    tight = tv_from_events(Rdp(), events)
    assert 0 < tight < tv_from_privacy(Rdp().epsilon(events, 1e-5), 1e-5)


def test_the_bound_of_a_gaussian_is_not_below_its_exact_total_variation() -> None:
    for noise in (1.0, 10.0, 1000.0):
        exact = gaussian_delta(2 / noise, 0.0)
        assert exact <= tv_from_events(Rdp(), [Gaussian(noise, REPLACE)]) <= 1.31 * exact
    assert tv_from_events(Rdp(), []) == 0.0


def test_only_replace_one_and_only_proofs_count() -> None:
    with pytest.raises(AccountingError, match="replace-one"):
        tv_from_events(Rdp(), [Gaussian(1.0)])
    with pytest.raises(AccountingError, match="approximation"):
        tv_from_events(Gdp(), [Gaussian(1.0, REPLACE)])


def test_a_property_scales_with_its_range() -> None:
    assert property_gap(0.25) == 0.25
    assert property_gap(0.25, -2.0, 2.0) == 1.0
    with pytest.raises(AccountingError, match="is empty"):
        property_gap(0.1, 1.0, 0.0)


def test_a_small_group_is_as_safe_as_a_large_one_once_it_is_there() -> None:
    assert subgroup_gap(0.1, 0.5, 10_000) == pytest.approx(subgroup_gap(0.1, 0.01, 10_000))
    assert subgroup_gap(0.1, 0.0, 50) == 1.0
    assert subgroup_gap(0.1, 0.01, 10) > 0.9
    assert subgroup_gap(0.1, 1.0, 1) == 0.1


@pytest.mark.statistical
def test_a_noisy_mean_keeps_all_three_gaps_below_their_bounds() -> None:
    # 200,000 trainings on 4 rows of ±1, group = first two draws by a coin; false alarm below 1e-6 (5 standard errors)
    rng = np.random.default_rng(0)
    trials, rows, sigma = 200_000, 4, 3.0
    table = rng.choice([-1.0, 1.0], size=(trials, rows))
    model = table.sum(axis=1) + sigma * rng.standard_normal(trials)
    tv = gaussian_delta(2 / sigma, 0.0)
    fresh = rng.choice([-1.0, 1.0], size=trials)
    error = 5 / math.sqrt(trials)
    train, test = np.mean(table[:, 0] * model > 0), np.mean(fresh * model > 0)
    assert 0.02 < abs(train - test) <= property_gap(tv) + error
    group = rng.random((trials, rows)) < 0.3
    inside = group.sum(axis=1)
    agree = ((table * model[:, None] > 0) & group).sum(axis=1) / np.maximum(inside, 1)
    assert abs(agree[inside > 0].mean() - np.mean((fresh * model > 0)[inside > 0])) <= tv + error
    assert abs(agree.mean() - test) <= subgroup_gap(tv, 0.3, rows) + error
    score = 1 / (1 + np.exp(-model))
    bins = np.digitize(score, [0.25, 0.5, 0.75])

    def calibration(label: np.ndarray) -> float:
        return float(sum(abs(np.mean((bins == b) * ((label + 1) / 2 - score))) for b in range(4)))

    assert abs(calibration(table[:, 0]) - calibration(fresh)) <= calibration_gap(tv) + 4 * error


def test_calibration_cannot_be_off_by_more_than_one() -> None:
    assert calibration_gap(0.9) == 1.0
    assert calibration_gap(0.0) == 0.0


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_what_is_not_a_probability_is_refused(value: float) -> None:
    for ask in (property_gap, calibration_gap, lambda tv: subgroup_gap(tv, 0.5, 10)):
        with pytest.raises(AccountingError, match="between 0 and 1"):
            ask(value)
    with pytest.raises(AccountingError, match="between 0 and 1"):
        subgroup_gap(0.1, value, 10)
    with pytest.raises(AccountingError, match="between 0 and 1"):
        tv_from_privacy(1.0, value)
    with pytest.raises(AccountingError, match="at least one"):
        subgroup_gap(0.1, 0.5, 0)


EMPTY = -1


def worst_gap(told: dict[tuple[int, ...], np.ndarray], chances: np.ndarray, row: int) -> float:
    """The largest gap of any [0, 1] property between training row `row` and a new row of the same distribution:
    the total variation between (row, model) and (new row, model), over all tables."""
    values, tables = range(len(chances)), itertools.product(range(len(chances)), repeat=len(next(iter(told))))
    seen, new = np.zeros((2, len(values), len(next(iter(told.values())))))
    for table in tables:
        likely = float(np.prod(chances[list(table)]))
        seen[table[row]] += likely * told[table]
        new += likely * chances[:, None] * told[table][None, :]
    return float(np.abs(seen - new).sum() / 2)


def farthest(told: dict[tuple[int, ...], np.ndarray]) -> float:
    """The total variation between tables one of which has an empty place where the other has a row."""
    return max(
        float(np.abs(told[one] - told[(*one[:i], EMPTY, *one[i + 1 :])]).sum() / 2)
        for one in told
        for i in range(len(one))
        if one[i] != EMPTY
    )


def test_twice_the_total_variation_of_removal_bounds_the_gap_of_every_small_mechanism() -> None:
    """All tables of two rows with three values, 200 random mechanisms with five outcomes, by enumeration."""
    rng, ratios = np.random.default_rng(0), []
    tables = list(itertools.product((EMPTY, 0, 1, 2), repeat=2))
    for _ in range(200):
        told = {table: rng.dirichlet(np.full(5, 0.3)) for table in tables}
        chances = rng.dirichlet(np.ones(3))
        ratios += [worst_gap(told, chances, row) / farthest(told) for row in (0, 1)]
    assert 0.3 < max(ratios) <= 2


def test_once_the_total_variation_of_removal_is_no_bound() -> None:
    """One row of twenty values: the empty table names any value but z, for a random z; row z turns "all but z" into
    "only z". Removing it moves 1/20 of the mass, and the gap of "my value is named" is nearly twice that."""
    values = 20
    told = {(EMPTY,): np.concatenate([np.full(values, 1 / values), np.zeros(values)])}
    for z in range(values):
        mine = told[(EMPTY,)].copy()
        mine[z], mine[values + z] = 0.0, 1 / values
        told[(z,)] = mine
    variation, gap = farthest(told), worst_gap(told, np.full(values, 1 / values), 0)
    assert variation == pytest.approx(1 / values)
    assert 1.8 * variation < gap <= 2 * variation


def ledger_of(relation: Relation, *rules: object, path: Path | None = None) -> Ledger:
    accounts = tuple(Account(f"g{i // 2}", f"o{i % 2}", 50.0, rule) for i, rule in enumerate(rules))  # type: ignore[arg-type]
    return Ledger(Terms(relation, 1e-5, "pld", accounts, {"method": "test"}), path)


def test_a_group_has_the_largest_bound_of_its_cells_and_removal_counts_twice() -> None:
    few, many = (TokenBucket((Repeated(PoissonGaussian(3.0, 0.01), times),)) for times in (100, 1000))
    found = gap_bounds(ledger_of(Relation.ADD_REMOVE, few, many, few, few, many, few), Pld())
    assert found == {f"g{i}": 2 * Pld().total_variation(rule.tokens) for i, rule in enumerate((many, few, many))}
    replaced = TokenBucket((Repeated(PoissonGaussian(3.0, 0.01, REPLACE), 100),))
    assert gap_bounds(ledger_of(REPLACE, replaced), Pld()) == {"g0": Pld().total_variation(replaced.tokens)}


def test_a_filter_bounds_the_gap_of_a_gaussian_that_it_admits() -> None:
    found = gap_bounds(ledger_of(Relation.ADD_REMOVE, RenyiFilter(8.0, 0.04)), Rdp())["g0"]
    assert 2 * gaussian_delta(math.sqrt(2 * 0.04 / 8.0), 0.0) <= found < 2 * tv_from_privacy(1.0, 1e-5)


def test_many_rules_have_looser_bounds_and_no_smaller_ones() -> None:
    rules = [TokenBucket((Repeated(Gaussian(2.0 + i), 1),)) for i in range(40)]
    loose = gap_bounds(ledger_of(Relation.ADD_REMOVE, *rules), Pld())
    for group in range(20):
        assert loose[f"g{group}"] >= min(1.0, 2 * gaussian_delta(1 / (2.0 + 2 * group), 0.0))


def test_a_weak_guarantee_says_nothing_about_new_rows_and_a_strong_one_says_how_much() -> None:
    weak, strong = TokenBucket((Repeated(Gaussian(0.1), 1),)), TokenBucket((Repeated(Gaussian(10.0), 1),))
    assert "too weak" in certify(ledger_of(Relation.ADD_REMOVE, weak), Pld()).generalisation_statement
    mixed = certify(ledger_of(Relation.ADD_REMOVE, weak, weak, strong), Pld())
    assert mixed.generalisation["g0"] == 1.0
    exact = 200 * gaussian_delta(0.1, 0.0)
    assert f"at most {exact:.1f} points" in mixed.generalisation_statement
    assert mixed.generalisation_statement.endswith("for 1 of 2 groups the guarantee says nothing.")
    assert '2.0 ("b") to 10.0 ("a") points' in gap_sentence({"a": 0.1, "b": 0.02})


def test_a_bound_that_does_not_follow_from_the_ledger_is_found(tmp_path: Path) -> None:
    rule, path = TokenBucket((Repeated(Gaussian(10.0), 1),)), tmp_path / "certificate.json"
    record = certify(ledger_of(Relation.ADD_REMOVE, rule, path=tmp_path / "ledger.jsonl"), Pld()).as_json()
    path.write_text(json.dumps(record))
    assert Certificate.load(path).generalisation == record["generalisation"]
    assert verify(path).holds
    path.write_text(json.dumps({**record, "generalisation": {"g0": 0.01}}))
    assert any("generalisation" in fault for fault in verify(path).faults)
    old = {name: value for name, value in record.items() if not name.startswith("generalisation")}
    path.write_text(json.dumps(old))
    assert verify(path).holds
