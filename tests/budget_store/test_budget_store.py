"""The budget store charges what may have been spent, refuses what is too much, and never gives back what was read."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import veil.budget_store.connecting as connecting
from tests.budget_store.postgres_server import Server
from veil.accounting import BudgetExceeded, Gaussian, Laplace, Pld, Rdp, Relation, RenyiFilter, Repeated, TokenBucket
from veil.budget_store import BudgetStore, Charge, Cost, DataSet, Limit, Spending
from veil.budget_store.balance import balance, overrun
from veil.budget_store.costs import amount, cost_of, order_for, translated
from veil.budget_store.store import new_claim
from veil.errors import InputError


@pytest.fixture
def store(tmp_path: Path) -> BudgetStore:
    made = BudgetStore.create(tmp_path / "budget.sqlite")
    made.add_dataset(DataSet("people", groups=("sex",)), epsilon=1.0, delta=1e-5)
    return made


def test_a_run_that_would_overrun_the_total_is_refused_and_leaves_nothing_behind(store: BudgetStore) -> None:
    store.reserve("people", Spending("a", Cost(0.7, 1e-6)))
    with pytest.raises(BudgetExceeded, match=r"every row: ε would be 1\.1 of 1, and 0\.3 is left"):
        store.reserve("people", Spending("b", Cost(0.4, 1e-6)))
    with pytest.raises(BudgetExceeded, match="δ would be"):
        store.reserve("people", Spending("b", Cost(0.1, 1e-5)))
    assert [entry.run for entry in store.history("people")] == ["a"]
    store.reserve("people", Spending("b", Cost(0.3, 9e-6)))
    (left,) = store.balances("people")
    assert left.left == pytest.approx(0, abs=1e-9)


def test_what_was_begun_stays_charged_and_what_was_not_can_be_cancelled(store: BudgetStore) -> None:
    read, unread = new_claim(), new_claim()
    store.reserve("people", Spending("read", Cost(0.5, 0.0)), read)
    store.reserve("people", Spending("unread", Cost(0.5, 0.0)), unread)
    store.begin("people", read)
    with pytest.raises(InputError, match="rows may have been read"):
        store.cancel("people", "read")
    store.cancel("people", "unread")
    with pytest.raises(InputError, match="was cancelled"):
        store.begin("people", unread)
    with pytest.raises(InputError, match="was cancelled"):
        store.reserve("people", Spending("unread", Cost(0.5, 0.0)), unread)
    store.finish("people", read)
    with pytest.raises(InputError, match="rows may have been read"):
        store.cancel("people", "read")
    assert [(entry.run, entry.state, entry.charged) for entry in store.history("people")] == [
        ("read", "finished", True),
        ("unread", "cancelled", False),
    ]
    assert store.balances("people")[0].spent_epsilon == 0.5


def test_a_run_that_goes_on_is_not_charged_again_and_cannot_ask_for_something_else(store: BudgetStore) -> None:
    claim = new_claim()
    store.reserve("people", Spending("a", Cost(0.7, 1e-6)), claim)
    store.begin("people", claim)
    assert store.reserve("people", Spending("a", Cost(0.7, 1e-6)), claim).state == "running"
    with pytest.raises(InputError, match="a different amount"):
        store.reserve("people", Spending("a", Cost(0.1, 1e-6)), claim)
    with pytest.raises(InputError, match="another name"):
        store.reserve("people", Spending("a", Cost(0.1, 1e-6)))
    assert store.balances("people")[0].spent_epsilon == 0.7


def test_a_limit_is_kept_for_its_group_and_never_raised(store: BudgetStore) -> None:
    store.add_limit("people", Limit(0.5, 1e-6, group="f"))
    cells = {("f", "everybody"): Cost(0.2, 1e-7), ("m", "everybody"): Cost(0.6, 1e-7)}
    store.reserve("people", Spending("a", Cost(0.6, 1e-7), cells))
    assert [round(found.spent_epsilon, 9) for found in store.balances("people")] == [0.6, 0.2]
    with pytest.raises(BudgetExceeded, match='group "f"'):
        store.reserve("people", Spending("b", Cost(0.35, 1e-7)))
    with pytest.raises(InputError, match="not raised"):
        store.add_limit("people", Limit(0.6, 1e-6, group="f"))
    store.add_limit("people", Limit(0.4, 1e-6, group="f"))
    with pytest.raises(BudgetExceeded):
        store.reserve("people", Spending("b", Cost(0.21, 1e-7)))
    with pytest.raises(InputError, match="not raised"):
        store.add_limit("people", Limit(2.0, 1e-6))


def test_cells_are_added_up_one_by_one_and_unknown_ones_pay_the_most() -> None:
    people = DataSet("people", groups=("sex",))
    first = Charge(Cost(1.0, 0.0), {("f", "o"): Cost(1.0, 0.0), ("m", "o"): Cost(0.2, 0.0)})
    second = Charge(Cost(1.0, 0.0), {("f", "o"): Cost(0.2, 0.0), ("m", "o"): Cost(1.0, 0.0)})
    other = Charge(Cost(0.5, 0.0))
    women_only = Charge(Cost(0.3, 0.0), {("f", "o"): Cost(0.3, 0.0)})
    total = Limit(9.0, 0.1)
    assert balance(total, [first, second], people).spent_epsilon == pytest.approx(1.2)
    assert balance(total, [first, second, other], people).spent_epsilon == pytest.approx(1.7)
    assert balance(Limit(9.0, 0.1, "m"), [first, women_only], people).spent_epsilon == pytest.approx(0.5)
    assert balance(Limit(9.0, 0.1, "x"), [other], people).spent_epsilon == pytest.approx(0.5)


COSTS = st.builds(Cost, st.floats(0, 1), st.floats(0, 1e-6))
NAMES = st.sampled_from(["f", "m", "x"])


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.dictionaries(st.tuples(NAMES, NAMES), COSTS, min_size=1), max_size=6), st.sampled_from([0.3, 2.0]))
def test_no_row_ever_loses_more_than_any_limit_it_is_under(
    asked: list[dict[tuple[str, str], Cost]], total: float
) -> None:
    people = DataSet("people", groups=("sex",))
    limits = [Limit(total, 1e-5), Limit(total / 2, 1e-6, group="f"), Limit(total / 3, 1e-6, owner="m")]
    taken: list[dict[tuple[str, str], Cost]] = []
    charges: list[Charge] = []
    for cells in asked:
        most = Cost(max(c.epsilon for c in cells.values()), max(c.delta for c in cells.values()))
        charge = Charge(most, cells)
        if all(overrun(limit, charges, charge, people) is None for limit in limits):
            taken.append(cells)
            charges.append(charge)
    for cell in {cell for cells in taken for cell in cells}:
        lost = sum(cells[cell].epsilon for cells in taken if cell in cells)
        for limit in limits:
            if limit.covers(cell):
                assert lost <= limit.epsilon * (1 + 2e-6)


def test_renyi_costs_let_more_runs_through_than_sums_and_are_confirmed_by_the_accountants(tmp_path: Path) -> None:
    store = BudgetStore.create(tmp_path / "budget.sqlite")
    store.add_dataset(DataSet("sum"), epsilon=2.0, delta=1e-5)
    store.add_dataset(DataSet("renyi", composition="renyi"), epsilon=2.0, delta=1e-5)
    event = Repeated(Gaussian(10.0), 1)
    rule, taken = TokenBucket((event,)), {}
    for name in ("sum", "renyi"):
        terms = store.dataset(name)
        cost = cost_of(rule, Pld().epsilon([event], 1e-7), 1e-7, terms, Relation.ADD_REMOVE)
        taken[name] = 0
        with pytest.raises(BudgetExceeded):
            while True:
                store.reserve(name, Spending(f"run {taken[name]}", cost))
                taken[name] += 1
    assert taken["renyi"] > 2 * taken["sum"]
    for accountant in (Rdp(), Pld()):
        assert accountant.epsilon([Repeated(event.event, taken["renyi"])], 1e-5) <= 2.0
    assert store.balances("renyi")[0].spent_epsilon <= 2.0


def test_a_run_that_fits_no_renyi_order_is_refused_with_the_reason() -> None:
    terms = DataSet("people", composition="renyi", order=order_for(1.0, 1e-5))
    assert terms.order is not None
    low = RenyiFilter(terms.order / 2, 0.1)
    with pytest.raises(InputError, match="below the budget's"):
        cost_of(low, 1.0, 1e-6, terms, Relation.ADD_REMOVE)
    high = RenyiFilter(terms.order * 2, 0.1)
    assert cost_of(high, 1.0, 1e-6, terms, Relation.ADD_REMOVE).rho == 0.1
    with pytest.raises(InputError, match="use δ = 0"):
        amount(0.5, 1e-6, terms)
    pure = amount(0.01, 0.0, terms)
    assert pure.rho == pytest.approx(terms.order * 0.01**2 / 2)
    assert pure.rho is not None
    laplace = cost_of(TokenBucket((Repeated(Laplace(100.0)),)), 0.01, 1e-6, terms, Relation.ADD_REMOVE)
    assert laplace.rho is not None
    assert laplace.rho <= pure.rho * (1 + 1e-9)


def test_relations_do_not_mix_but_replacing_pays_for_removing_and_adding() -> None:
    replacing = DataSet("people", Relation.REPLACE_ONE)
    double = translated(Cost(1.0, 1e-6), Relation.ADD_REMOVE, replacing)
    # The exact curve of a Gaussian mechanism: one row moves the sum by 1 when it comes or goes, by 2 when replaced.
    both = Pld()
    sigma = 4.0
    epsilon = both.epsilon([Gaussian(sigma)], 1e-6)
    found = translated(Cost(epsilon, 1e-6), Relation.ADD_REMOVE, replacing)
    truth = both.delta([Gaussian(sigma, Relation.REPLACE_ONE)], found.epsilon)
    assert truth <= found.delta
    assert double.epsilon == 2.0
    with pytest.raises(InputError, match="--relation replace-one"):
        translated(Cost(1.0, 1e-6), Relation.REPLACE_ONE, DataSet("people"))


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("mysql://u:hunter2@h/x", "an SQLite file or PostgreSQL, not mysql"),
        ("postgresql://u:hunter2@[::1/x", "not a valid URL"),
        ("sqlite://", "would be lost"),
        ("postgresql://u:hunter2@127.0.0.1:1/x", "did not respond"),
        ("postgresql://u@127.0.0.1:1/x?password=hunter2", "did not respond"),
        ("", "no budget store is given"),
        ("absent.sqlite", "there is no budget store"),
    ],
)
def test_a_place_that_is_no_store_gets_one_sentence_without_its_password(place: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        BudgetStore.open(place)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_store_or_a_newer_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello " * 100)
    with pytest.raises(InputError, match="is not a budget store"):
        BudgetStore.open(tmp_path / "text")
    with pytest.raises(InputError, match="is not a budget store"):
        BudgetStore.create(tmp_path / "text")
    sqlite3.connect(tmp_path / "other").close()
    (tmp_path / "other").touch()
    with pytest.raises(InputError, match="create one with veil budget create"):
        BudgetStore.open(tmp_path / "other")
    BudgetStore.create(tmp_path / "newer")
    connection = sqlite3.connect(tmp_path / "newer")
    connection.execute("UPDATE veil_budget_format SET version = 99")
    connection.commit()
    connection.close()
    with pytest.raises(InputError, match="has format 99"):
        BudgetStore.open(tmp_path / "newer")


def test_a_store_of_the_first_format_is_brought_up_with_all_it_holds(tmp_path: Path) -> None:
    place = tmp_path / "old"
    old = BudgetStore.create(place)
    old.add_dataset(DataSet("books", groups=("sex",)), epsilon=1.0, delta=1e-5)
    old.reserve("books", Spending("first", Cost(0.25, 1e-6)))
    connection = sqlite3.connect(place)
    connection.execute("ALTER TABLE veil_budget_datasets DROP COLUMN person")
    connection.execute("UPDATE veil_budget_format SET version = 1")
    connection.commit()
    connection.close()
    for _ in range(2):
        store = BudgetStore.open(place)
        assert store.dataset("books").person == ""
        assert store.balances("books")[0].spent_epsilon == 0.25
    connection = sqlite3.connect(place)
    connection.execute("UPDATE veil_budget_format SET version = 1")  # as if killed with the column and no format
    connection.commit()
    connection.close()
    assert BudgetStore.open(place).balances("books")[0].spent_epsilon == 0.25
    store.add_dataset(DataSet("visits", person="patient"), epsilon=1.0, delta=1e-5)
    assert store.dataset("visits").person == "patient"


def test_a_busy_store_is_waited_for_and_then_named(tmp_path: Path, store: BudgetStore) -> None:
    holder = sqlite3.connect(tmp_path / "budget.sqlite", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    hasty = BudgetStore.open(tmp_path / "budget.sqlite", patience=0.01)
    with pytest.raises(connecting.StoreUnreachable, match="did not respond"):
        hasty.reserve("people", Spending("a", Cost(0.1, 0.0)))
    assert store.balances("people")[0].spent_epsilon == 0, "looking needs no lock"
    holder.execute("ROLLBACK")
    holder.close()
    hasty.reserve("people", Spending("a", Cost(0.1, 0.0)))


@pytest.mark.parametrize("wrong", ["", "x" * 501, "a\0b", "a\nb", "\ud800"])
def test_names_that_a_store_cannot_hold_are_refused(wrong: str, store: BudgetStore) -> None:
    with pytest.raises(InputError, match="name"):
        DataSet(wrong)
    with pytest.raises(InputError, match="name"):
        Spending(wrong, Cost(0.1, 0.0))
    with pytest.raises(InputError, match="name"):
        Spending("a", Cost(0.1, 0.0), {(wrong, "o"): Cost(0.1, 0.0)})


@pytest.mark.parametrize(("epsilon", "delta"), [(-1, 0), (float("nan"), 0), (float("inf"), 0), (1, 1), (1, -1)])
def test_amounts_that_are_no_cost_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(InputError):
        Cost(epsilon, delta)
    with pytest.raises(InputError):
        Limit(epsilon, delta)


def test_hostile_names_are_only_names(store: BudgetStore) -> None:
    name = "x'); DROP TABLE veil_budget_runs; --"
    store.add_dataset(DataSet(name), epsilon=1.0, delta=1e-5)
    store.reserve(name, Spending(name, Cost(0.5, 0.0), {(name, name): Cost(0.5, 0.0)}))
    assert store.names() == ["people", name]
    assert store.balances(name)[0].spent_epsilon == 0.5


@pytest.mark.slow
def test_a_server_keeps_the_same_books_as_a_file(server: Server, tmp_path: Path) -> None:
    seen = []
    for place in (server.url, str(tmp_path / "budget.sqlite")):
        store = BudgetStore.create(place)
        store.add_dataset(DataSet("books", groups=("sex", "race")), epsilon=0.1 + 0.2, delta=1e-5)
        store.add_limit("books", Limit(0.1, 1e-6, group="Frau × Ärztin"))
        claim = new_claim()
        cells = {("Frau × Ärztin", "o"): Cost(1 / 30, 1e-7), ("m", "o"): Cost(0.1, 1e-7)}
        store.reserve("books", Spending("a", Cost(0.1, 1e-7), cells), claim)
        store.begin("books", claim)
        store.reserve("books", Spending("b", Cost(1 / 30, 1e-7)))
        store.cancel("books", "b")
        with pytest.raises(BudgetExceeded):
            store.reserve("books", Spending("c", Cost(0.1, 1e-7)))
        with pytest.raises(InputError, match="already has a budget"):
            store.add_dataset(DataSet("books"), epsilon=1.0, delta=1e-5)
        runs = [{**e.as_json(), "reserved": "", "begun": "", "ended": ""} for e in store.history("books")]
        seen.append(json.dumps([runs, [found.as_json() for found in store.balances("books")]]))
    assert seen[0] == seen[1]


def opened_to_look(place: str | Path) -> BudgetStore:
    return BudgetStore.open(place, patience=0.2, writable=False)


def check_nothing_can_be_changed(place: str | Path) -> None:
    store = opened_to_look(place)
    (balance,) = store.balances("people")
    with pytest.raises(InputError):
        store.reserve("people", Spending("a", Cost(0.1, 1e-6)))
    assert (store.names(), store.history("people")) == (["people"], [])
    assert balance.left == 1


def test_a_store_that_is_opened_to_look_cannot_be_changed(store: BudgetStore, tmp_path: Path) -> None:
    check_nothing_can_be_changed(store.place)
    odd = tmp_path / "a?b#c%20.sqlite"
    Path(store.place).rename(odd)
    check_nothing_can_be_changed(odd)
    with pytest.raises(InputError, match="there is no budget store"):
        opened_to_look(store.place)
    assert not Path(store.place).exists()


def test_a_server_that_is_asked_to_look_changes_nothing(server: Server) -> None:
    if "people" not in (made := BudgetStore.create(server.url)).names():
        made.add_dataset(DataSet("people"), epsilon=1.0, delta=1e-5)
    look = opened_to_look(server.url)
    before = len(look.history("people"))
    with pytest.raises(InputError, match="read-only"):
        look.reserve("people", Spending("unwanted", Cost(0.01, 0.0)))
    assert len(look.history("people")) == before


def test_a_store_of_the_first_format_stays_as_it_is_when_somebody_only_looks(store: BudgetStore) -> None:
    connection = sqlite3.connect(store.place)
    connection.execute("UPDATE veil_budget_format SET version = 1")
    connection.commit()
    connection.close()
    before = Path(store.place).read_bytes()
    with pytest.raises(InputError, match="has format 1"):
        opened_to_look(store.place)
    assert Path(store.place).read_bytes() == before
