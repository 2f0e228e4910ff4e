"""Budgets: files are read and checked, per-row budgets are cut from below, the table says what each level gets."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veil import methods
from veil.errors import Caution, InputError
from veil.plans import Settings
from veil.plans.levels import level_table
from veil.problem import Problem
from veil.problem.budgets import quantise, read_budgets


def test_csv_toml_and_mapping_give_the_same_budgets(tmp_path: Path) -> None:
    table = tmp_path / "budgets.csv"
    table.write_text("\ufeffOwner, Epsilon\nnorth, 1\nsouth east,0.5\n", encoding="utf-8")
    named = tmp_path / "budgets.toml"
    named.write_text('[budgets]\nnorth = 1\n"south east" = 0.5\n', encoding="utf-8")
    bare = tmp_path / "bare.toml"
    bare.write_text('north = 1.0\n"south east" = 0.5\n', encoding="utf-8")
    expected = {"north": 1.0, "south east": 0.5}
    assert read_budgets(expected) == read_budgets(table) == read_budgets(str(named)) == read_budgets(bare) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("owner,epsilon\na,0\n", 'budget of owner "a" is "0"'),
        ("owner,epsilon\na,-1\n", "above 0"),
        ("owner,epsilon\na,nan\n", "above 0"),
        ("owner,epsilon\na,inf\n", "above 0"),
        ("owner,epsilon\na,much\n", '"much"'),
        ("owner,epsilon\na\n", "None"),
        ("owner,epsilon\na,1\na,2\n", "two budgets"),
        ("who,how\na,1\n", "it has who, how"),
        ("", "it has nothing"),
        ("owner,epsilon\n", "no budget"),
    ],
)
def test_a_wrong_csv_is_refused_with_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "b.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_budgets(path)


@pytest.mark.parametrize("text", ["a = ", "budgets = 3", "[budgets]\na = true", "[budgets.a]\nb = 1"])
def test_a_wrong_toml_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "b.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError):
        read_budgets(path)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_budgets(tmp_path / "absent.csv")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.floats(0.01, 20), min_size=1, max_size=60), st.integers(1, 6))
def test_no_row_gets_a_level_above_its_own_budget(budgets: list[float], levels: int) -> None:
    found = quantise(budgets, levels)
    given_to = np.array([found.budgets[name] for name in found.of_row.tolist()])
    assert np.all(given_to <= np.array(budgets))
    assert len(found.budgets) <= levels
    assert set(found.of_row.tolist()) == set(found.budgets)
    assert found.kept == pytest.approx(float(np.mean(given_to / np.array(budgets))))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=9), st.integers(1, 4))
def test_levels_lose_no_more_than_the_best_of_all_choices(budgets: list[int], levels: int) -> None:
    own = np.array(budgets, dtype=float)

    def loss(edges: tuple[float, ...]) -> float:
        below = np.array([max(edge for edge in edges if edge <= value) for value in own])
        return float(np.log(own / below).sum())

    values = sorted(set(own.tolist()))
    others = itertools.chain.from_iterable(itertools.combinations(values[1:], k) for k in range(levels))
    best = min(loss((values[0], *rest)) for rest in others)
    found = quantise(own, levels)
    assert loss(tuple(found.budgets.values())) == pytest.approx(best, abs=1e-9)


def test_many_different_budgets_are_cut_quickly_and_from_below() -> None:
    budgets = np.random.default_rng(0).lognormal(size=20_000)
    found = quantise(budgets, 10)
    assert len(found.budgets) == 10
    assert found.kept > 0.75
    assert min(found.budgets.values()) == budgets.min()


@pytest.mark.parametrize(("values", "levels"), [(3, 3), (512, None), (2000, 2000), (2000, 5000)])
def test_as_many_different_budgets_as_there_may_be_levels_stay_as_they_are(values: int, levels: int | None) -> None:
    budgets = np.tile(np.random.default_rng(0).lognormal(size=values), 2)
    found = quantise(budgets, levels)
    assert [found.budgets[name] for name in found.of_row.tolist()] == budgets.tolist()
    assert found.kept == 1.0


def test_one_more_budget_than_that_is_cut_into_levels() -> None:
    found = quantise(np.random.default_rng(0).lognormal(size=513))
    assert len(found.budgets) < 512
    assert 0.98 <= found.kept < 1.0


def test_levels_that_nobody_counted_keep_98_percent_of_the_budgets_and_are_not_more_than_that_takes() -> None:
    own = np.random.default_rng(0).lognormal(0.0, 0.5, 3000)
    found = quantise(own)
    assert found.kept >= 0.98
    assert quantise(own, len(found.budgets) - 1).kept < 0.98
    assert len(quantise(np.repeat([0.1, 1.0, 5.0], 40)).budgets) == 3


def test_budgets_over_six_powers_of_ten_keep_98_percent_without_a_warning() -> None:
    own = np.exp(np.random.default_rng(0).uniform(np.log(1e-3), np.log(1e3), 5000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = quantise(own)
    assert found.kept >= 0.98
    assert len(found.budgets) > 256


@pytest.mark.parametrize("name", ["exponential", "log-normal", "log-uniform"])
def test_wide_budgets_too_keep_98_percent(name: str) -> None:
    draw = np.random.default_rng(0)
    own = {
        "exponential": draw.exponential(1.0, 5000),
        "log-normal": draw.lognormal(0.0, 1.5, 5000),
        "log-uniform": np.exp(draw.uniform(np.log(0.01), np.log(100.0), 5000)),
    }[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = quantise(own)
    assert found.kept >= 0.98
    assert 128 < len(found.budgets) < 256


def test_budgets_too_wide_for_the_levels_are_said_to_lose_more_than_2_percent() -> None:
    own = np.random.default_rng(0).lognormal(0.0, 6.0, 5000)
    with pytest.warns(Caution, match=r"512 levels keep 97\.\d % of them, not 98 %"):
        found = quantise(own)
    assert len(found.budgets) == 512
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked = quantise(own, 512)
    assert asked.kept == found.kept < 0.98


def test_levels_are_the_best_of_all_ways_to_choose_so_many() -> None:
    own = np.sort(np.random.default_rng(3).lognormal(size=9))

    def loss(edges: np.ndarray) -> float:
        return float(np.log(own / edges[np.searchsorted(edges, own, side="right") - 1]).sum())

    for number in range(1, 9):
        found = loss(np.array(sorted(quantise(own, number).budgets.values())))
        ways = (own[[0, *rest]] for rest in itertools.combinations(range(1, 9), number - 1))
        assert found == pytest.approx(min(map(loss, ways)))


@pytest.mark.parametrize("wrong", [[], [1.0, 0.0], [1.0, float("nan")], [[1.0]], ["x"]])
def test_wrong_row_budgets_are_refused(wrong: list[object]) -> None:
    with pytest.raises(InputError):
        quantise(wrong, 3)  # type: ignore[arg-type]


def test_a_wrong_row_budget_is_named_by_its_row_and_not_by_its_value() -> None:
    with pytest.raises(InputError, match="the budget of row 1 is not") as error:
        quantise([1.0, -7.25])
    assert "7.25" not in str(error.value)
    with pytest.raises(InputError, match="the budget of row 417 is not"):
        quantise([1.0, -7.25], names=[3, 417])


def row_budget_problem() -> Problem:
    generator = np.random.default_rng(1)
    budgets = np.where(np.arange(400) % 4 == 0, 0.5, 2.0) + generator.random(400) * 0.3
    return Problem.from_arrays(generator.normal(size=(400, 3)), np.arange(400) % 2, budgets=quantise(budgets, levels=3))


def test_row_budgets_become_owners_of_a_problem() -> None:
    problem = row_budget_problem()
    assert problem.public.budgets is not None
    assert 1 < len(problem.public.owners) <= 3
    with pytest.raises(InputError, match="omit owners"):
        Problem.from_arrays([[0.0], [1.0]], [0, 1], owners=["a", "b"], budgets=[1.0, 1.0])
    with pytest.raises(InputError, match="2 rows and 3 per-row budgets"):
        Problem.from_arrays([[0.0], [1.0]], [0, 1], budgets=[1.0, 1.0, 1.0])
    few = Problem.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 0], budgets=np.array([0.5, 2.0, 2.0]))
    assert few.public.budgets == (0.5, 2.0)


def test_the_table_says_what_each_level_gets_and_the_spent_epsilon_is_exact() -> None:
    problem = row_budget_problem()
    given_settings = Settings.checked(delta=1e-5, steps=50, batch_size=40)
    plan = methods.create("idp-sgd").plan(problem.public, given_settings)
    rows = level_table(plan)
    assert [row.owner for row in rows] == list(problem.public.owners)
    for row in rows:
        assert 0.99 * row.budget <= row.epsilon <= row.budget
        assert row.expected_uses == pytest.approx(50 * row.rate)
    by_budget = sorted(rows, key=lambda row: row.budget)
    assert by_budget[0].rate < by_budget[-1].rate


def test_a_method_that_is_not_private_has_no_table() -> None:
    plan = methods.create("erm").plan(row_budget_problem().public, Settings.checked(steps=5))
    with pytest.raises(InputError, match="not private"):
        level_table(plan)


def test_the_only_column_beside_the_budgets_has_the_owners(tmp_path: Path) -> None:
    path = tmp_path / "budgets.csv"
    path.write_text("hospital,epsilon\nnorth,0.5\nsouth,2\n", encoding="utf-8")
    assert read_budgets(path) == {"north": 0.5, "south": 2.0}
