"""The ledger keeps every cost, refuses what is over budget, and notices what was changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veil.accounting import (
    Account,
    AccountingError,
    BudgetExceeded,
    Gaussian,
    Ledger,
    LedgerDamaged,
    PoissonGaussian,
    Relation,
    RenyiFilter,
    Repeated,
    Terms,
    TokenBucket,
)

EVENT = PoissonGaussian(1.0, 0.01)


def terms(*rules: object) -> Terms:
    bucket = TokenBucket((Repeated(EVENT, 10),))
    accounts = tuple(Account(f"group {i}", "everybody", 1.0, rule) for i, rule in enumerate(rules or (bucket, bucket)))  # type: ignore[arg-type]
    return Terms(Relation.ADD_REMOVE, 1e-5, "rdp", accounts, {"method": "test"})


def test_a_reservation_is_on_disk_before_reserve_returns(tmp_path: Path) -> None:
    ledger = Ledger(terms(), tmp_path / "ledger.jsonl")
    ledger.reserve("gradient", 0, 4, {0: EVENT})
    again = Ledger.open(tmp_path / "ledger.jsonl")
    assert again.spent(0) == (Repeated(EVENT, 4),)
    assert again.spent(1) == ()
    assert again.check == ledger.check


def test_a_reservation_over_budget_is_refused_and_leaves_the_ledger_unchanged(tmp_path: Path) -> None:
    ledger = Ledger(terms(), tmp_path / "ledger.jsonl")
    ledger.reserve("gradient", 0, 8, {0: EVENT, 1: EVENT})
    before = (tmp_path / "ledger.jsonl").read_bytes()
    with pytest.raises(BudgetExceeded, match='group "group 0"'):
        ledger.reserve("gradient", 8, 3, {0: EVENT, 1: EVENT})
    assert (tmp_path / "ledger.jsonl").read_bytes() == before
    assert ledger.spent(0) == ledger.spent(1) == (Repeated(EVENT, 8),)


def test_an_event_without_a_token_is_refused() -> None:
    with pytest.raises(BudgetExceeded):
        Ledger(terms()).reserve("gradient", 0, 1, {0: Gaussian(100.0)})


def test_a_renyi_filter_admits_any_order_of_events_up_to_its_sum() -> None:
    rule = RenyiFilter(order=8.0, rho=8.0 / 2 * (1 + 0.25))
    ledger = Ledger(terms(rule))
    ledger.reserve("a", 0, 1, {0: Gaussian(2.0)})
    ledger.reserve("b", 0, 1, {0: Gaussian(1.0)})
    with pytest.raises(BudgetExceeded, match="at order 8"):
        ledger.reserve("c", 0, 1, {0: Gaussian(1000.0)})


def test_relations_do_not_mix() -> None:
    with pytest.raises(AccountingError, match="replace-one"):
        Ledger(terms()).reserve("gradient", 0, 1, {0: PoissonGaussian(1.0, 0.01, Relation.REPLACE_ONE)})


def test_repeating_the_same_reservation_costs_nothing_and_another_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(terms(), tmp_path / "ledger.jsonl")
    ledger.reserve("gradient", 0, 4, {0: EVENT})
    ledger.reserve("gradient", 0, 4, {0: EVENT})
    assert ledger.spent(0) == (Repeated(EVENT, 4),)
    with pytest.raises(AccountingError, match="a different cost"):
        ledger.reserve("gradient", 0, 5, {0: EVENT})


@settings(deadline=None, derandomize=True, max_examples=60)
@given(cut=st.integers(1, 400))
def test_a_torn_last_line_is_dropped_and_every_whole_line_kept(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    ledger = Ledger(terms(), path)
    ledger.reserve("gradient", 0, 2, {0: EVENT})
    whole = path.read_bytes()
    ledger.reserve("gradient", 2, 3, {0: EVENT})
    torn = path.read_bytes()
    path.write_bytes(torn[: max(len(whole) + 1, len(torn) - cut)])
    again = Ledger.open(path)
    assert again.recovered
    assert again.spent(0) == (Repeated(EVENT, 2),)
    assert path.read_bytes() == whole
    again.reserve("gradient", 2, 3, {0: EVENT})
    assert path.read_bytes() == torn


@pytest.mark.parametrize("whole", [False, True])
def test_after_an_interrupted_write_nothing_is_reserved_until_the_file_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(terms(), path)
    ledger.reserve("gradient", 0, 2, {0: EVENT})
    sync = os.fsync

    def interrupt(number: int) -> None:
        if whole:
            sync(number)
        else:
            os.truncate(number, path.stat().st_size - 5)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("veil.accounting.ledger.os.fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ledger.reserve("gradient", 2, 3, {0: EVENT})
    left = path.read_bytes()
    with pytest.raises(AccountingError, match="interrupted, so nothing more can be reserved"):
        ledger.reserve("gradient", 2, 3, {0: EVENT})
    assert path.read_bytes() == left
    again = Ledger.open(path)
    again.reserve("gradient", 2, 3, {0: EVENT})  # the line that was cut short, or the same one once more
    assert again.spent(0) == (Repeated(EVENT, 5),)
    assert Ledger.open(path).entries == again.entries


@pytest.mark.parametrize("old", ['"count":4', '"rate":0.01', '"first":0', '"delta":1e-05'])
def test_a_changed_line_is_noticed(tmp_path: Path, old: str) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(terms(), path).reserve("gradient", 0, 4, {0: EVENT})
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, old[:-1] + "2"))
    with pytest.raises(LedgerDamaged):
        Ledger.open(path)


def test_a_removed_line_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(terms(), path)
    ledger.reserve("gradient", 0, 4, {0: EVENT})
    ledger.reserve("gradient", 4, 4, {0: EVENT})
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[2])
    with pytest.raises(LedgerDamaged, match="checksum"):
        Ledger.open(path)


def test_a_ledger_is_never_written_over(tmp_path: Path) -> None:
    Ledger(terms(), tmp_path / "ledger.jsonl")
    with pytest.raises(AccountingError, match="never overwritten"):
        Ledger(terms(), tmp_path / "ledger.jsonl")


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    content=st.one_of(
        st.binary(max_size=300), st.text(max_size=200).map(lambda t: json.dumps({"record": t}).encode() + b"\n")
    )
)
def test_foreign_content_gives_a_clear_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    path.write_bytes(content)
    with pytest.raises(LedgerDamaged):
        Ledger.open(path)


def test_terms_survive_the_way_to_disk_and_back(tmp_path: Path) -> None:
    given_terms = terms(TokenBucket((Repeated(EVENT, 10),)), RenyiFilter(16.0, 0.5))
    Ledger(given_terms, tmp_path / "ledger.jsonl")
    assert Ledger.open(tmp_path / "ledger.jsonl").terms == given_terms
