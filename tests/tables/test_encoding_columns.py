"""Columns into numbers: no other row is looked at, kinds are guessed as a person would, wrong values name the row."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from veil.datasets import GroupSpec, generate
from veil.errors import InputError
from veil.handover.serving.score import number
from veil.request import Request
from veil.tables import as_table, draft_schema, fit_encoding, read_schema, read_table
from veil.tables.encoding import (
    Category,
    Codes,
    Column,
    Date,
    Encoding,
    HashedCategory,
    Numeric,
    Text,
    day_comes_first,
    days,
)
from veil.tables.guessing import NESTED, fit_column, guess_kind, why_not_learned
from veil.tables.identifiers import COUNTS, IDENTIFIER, look_like_codes, why_identifier
from veil.tables.mapped import is_large
from veil.tables.opening import open_to_compare
from veil.tables.preparing import words_of
from veil.tables.reading import RENAMED
from veil.tables.table import Columns
from veil.tables.text import bag_of_tokens, character_codes, token_codes

COLUMNS = {
    "number": Numeric("c", -10, 10),
    "number without flag": Numeric("c", -10, 10, "middle"),
    "category": Category("c", ("a", "b", "1")),
    "hashed category": HashedCategory("c", 16, tuple(range(8))),
    "text": Text("c", buckets=16),
    "codes": Codes("c", length=6),
}


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.one_of(st.none(), st.integers(-20, 20)), min_size=1, max_size=12), st.sampled_from(sorted(COLUMNS)))
def test_a_rows_numbers_do_not_depend_on_other_rows(values: list[int | None], kind: str) -> None:
    column, table = COLUMNS[kind], pd.Series(values, dtype="Int64", name="c")
    whole = column.encode(table)
    assert whole.shape == (len(values), column.width())
    assert np.isfinite(whole).all()
    for row in range(len(values)):
        assert np.array_equal(whole[row], column.encode(table.iloc[row : row + 1])[0])


def test_numbers_are_clamped_to_their_bounds_and_gaps_are_marked() -> None:
    rows = Numeric("c", 0, 10).encode(pd.Series([0, 5, 10, 99, None]))
    assert rows.tolist() == [[-1, 0], [0, 0], [1, 0], [1, 0], [0, 1]]


def test_words_for_missing_are_gaps_and_other_words_are_errors() -> None:
    assert Numeric("c", 0, 10, missing_words=("?",)).encode(pd.Series(["5", " ?", None])).tolist() == [
        [0, 0],
        [0, 1],
        [0, 1],
    ]
    with pytest.raises(InputError, match='column "c" is not a number in row 1'):
        Numeric("c", 0, 10).encode(pd.Series(["5", "?"]))
    assert Numeric("c", 0, 10, lenient=True).encode(pd.Series(["5", "x", "inf"])).tolist() == [[0, 0], [0, 1], [0, 1]]


def test_dates_are_days_between_their_bounds() -> None:
    date = Date("c", 0, 100)
    rows = date.encode(pd.Series(["1970-01-01", "1970-04-11", None, "2030-01-01"]))
    assert rows.tolist() == [[-1, 0], [1, 0], [0, 1], [1, 0]]
    with pytest.raises(InputError, match='column "c" is not a date in row 1'):
        date.encode(pd.Series(["1970-01-01", "tomorrow"]))


DATE_COLUMNS = {
    "dots put the day first": (["03.04.2020", "05.06.2021"], ["2020-04-03", "2021-06-05"]),
    "slashes put the month first": (["03/04/2020", "05/06/2021"], ["2020-03-04", "2021-05-06"]),
    "no doubt about one value decides for all": (["03/04/2020", "31/06/1999", "25/12/2021"], None),
    "the month first by a value without doubt": (["03.04.2020", "12.25.2021"], ["2020-03-04", "2021-12-25"]),
    "short years and times": (["3.4.20", "31.12.99 06:00"], ["2020-04-03", "1999-12-31 06:00"]),
    "years first": (["2020-04-03", "2021-06-05"], ["2020-04-03", "2021-06-05"]),
}


@pytest.mark.parametrize("case", DATE_COLUMNS)
def test_a_column_of_dates_is_read_one_way(case: str) -> None:
    given, wanted = DATE_COLUMNS[case]
    column = pd.Series(given)
    if wanted is None:  # 31/06 is no day at all: it must not be read as another one
        assert np.isnan(days(column, "c", lenient=True, day_first=day_comes_first(column))).tolist() == [0, 1, 0]
        return
    fitted = fit_column(column, "c", guess_kind(column))
    assert isinstance(fitted, Date)
    assert days(column, "c", day_first=fitted.day_first).tolist() == days(pd.Series(wanted), "c").tolist()
    assert np.array_equal(fitted.encode(column)[:1], fitted.encode(column[:1])), "alone a row is read as in its table"


def test_a_date_against_the_order_of_its_column_is_refused_by_its_row() -> None:
    with pytest.raises(InputError, match='column "c" is not a date in row 1'):
        Date("c", 0, 100).encode(pd.Series(["1/2/1970", "25/2/1970"]))
    assert Date("c", 0, 100, day_first=True).encode(pd.Series(["1/2/1970", "25/2/1970"])).shape == (2, 2)


def test_the_order_of_day_and_month_survives_a_schema(tmp_path: Path) -> None:
    draft = draft_schema(pd.DataFrame({"since": ["03/04/2020", "25/12/2021"] * 10}))
    (tmp_path / "schema.toml").write_text(draft.to_toml())
    assert "day_first = true" in draft.to_toml()
    assert read_schema(tmp_path / "schema.toml") == draft


def test_the_same_category_is_the_same_whatever_type_it_was_read_with() -> None:
    category = Category("c", ("1", "2", "2.5"))
    as_int = category.encode(pd.Series([1, 2]))
    as_float = category.encode(pd.Series([1.0, 2.0]))
    assert np.array_equal(as_int, as_float)
    assert np.array_equal(as_int, category.encode(pd.Series(["1", "2"])))
    assert category.encode(pd.Series([2.5, 1.0])).argmax(axis=1).tolist() == [2, 0]


def test_a_sequence_column_stands_alone() -> None:
    with pytest.raises(InputError, match="exactly one text column"):
        Encoding((Codes("a"), Numeric("b", 0, 1)), from_rows=False)


KINDS = {
    "numbers": (pd.Series([1.5, 2.0, None]), "numeric"),
    "numbers as words": (pd.Series(["1", "2", "?", "4"]), "numeric"),
    "dates": (pd.Series(["2020-01-31", "2021-12-01", None]), "date"),
    "German dates": (pd.Series(["31.01.2020", "01.12.2021"]), "date"),
    "timestamps": (pd.Series(pd.to_datetime(["2020-01-31"])), "date"),
    "truth values": (pd.Series([True, False]), "category"),
    "few words": (pd.Series(["red", "green"] * 50), "category"),
    "many words": (pd.Series([f"city {i % 300}" for i in range(3000)]), "category"),
    "sentences": (pd.Series([f"this is sentence number {i} of many" for i in range(200)]), "text"),
    "row numbers": (pd.Series(np.arange(100)), "ignore"),
    "row numbers with gaps": (pd.Series(np.flatnonzero(np.random.default_rng(0).random(100) < 0.7)), "ignore"),
    "shuffled row numbers with gaps": (pd.Series(np.random.default_rng(0).permutation(100)[:80]), "ignore"),
    "whole numbers that repeat": (pd.Series(np.arange(100) // 2), "numeric"),
    "whole numbers far apart": (pd.Series(np.random.default_rng(0).permutation(10_000)[:80]), "numeric"),
    "codes of one row each": (pd.Series([f"X{i}" for i in range(200)]), "ignore"),
    "nothing": (pd.Series([None, None], dtype=object), "ignore"),
    "mixed": (pd.Series(["3", "4 kg", "5", "six"] * 10), "category"),
}


@pytest.mark.parametrize("case", KINDS)
def test_kinds_are_guessed_as_a_person_would(case: str) -> None:
    column, kind = KINDS[case]
    assert guess_kind(column) == kind


_DRAW = np.random.default_rng(5)
NUMBERS = {
    "acct": (_DRAW.integers(10**7, 10**8, 600), IDENTIFIER),
    "customer_number": (_DRAW.integers(10**7, 10**8, 600), IDENTIFIER),
    "loan_id": (_DRAW.integers(1, 10**6, 600), IDENTIFIER),
    "patient_id": (np.repeat(np.arange(200) + 7000, 3), IDENTIFIER),
    "userId": ([f"U{place // 12:04}" for place in range(720)], IDENTIFIER),
    "counted": (np.r_[np.arange(540), np.arange(60)], COUNTS),
    "income": (_DRAW.lognormal(10, 1, 600).round(), None),
    "x": (_DRAW.lognormal(15, 0.3, 600).round(), None),
    "bell": (_DRAW.normal(5e6, 1e6, 600).round(), None),
    "price": (_DRAW.integers(10**6, 10**7, 600), None),
    "account": (_DRAW.lognormal(8, 1, 600).round(), None),
    "employee_number": (_DRAW.lognormal(4, 1, 600).round(), None),
    "household": (_DRAW.integers(1, 9, 600), None),
    "store_id": (_DRAW.integers(1, 90, 600), None),
    "born": (10_000 * _DRAW.integers(1930, 2010, 600) + 100 * _DRAW.integers(1, 13, 600) + 7, None),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_identifiers_are_left_out_and_quantities_are_not(name: str) -> None:
    values, why = NUMBERS[name]
    column = pd.Series(values, name=name)
    assert why_identifier(column, name) == why
    assert (guess_kind(column) == "ignore") == (why is not None)
    assert why is None or why_not_learned(column) == why


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        ([1010, 4021, 8010, 8020], True),
        ([111, 122, 243, 519, 720, 833], True),
        ([100, 200, 500], False),
        ([6, 12, 24, 36, 48], False),
        ([1998, 2001, 2005], False),
        ([70, 700, 7011], False),
    ],
)
def test_codes_are_known_by_their_content(values: list[int], codes: bool) -> None:
    assert look_like_codes(pd.Series(values * 50), 64) == codes


def test_only_the_commonest_categories_are_kept() -> None:
    table = pd.DataFrame({"town": [f"t{i % 200}" for i in range(2000)] + ["common"] * 100})
    encoding = fit_encoding(table, set())
    assert encoding.width() == 64
    assert encoding.encode(pd.DataFrame({"town": ["common", "never seen", None]})).sum(axis=1).tolist() == [1, 0, 0]


def test_no_category_or_word_of_few_rows_is_kept_however_small_the_table_is() -> None:
    for rows in (12, 40, 400):
        names = ["Anna"] * (rows - 10) + ["Ottokar"] * 9 + ["Xaver"]
        ages = ["30"] * (rows - 1) + ["keeps it from her husband"]
        table = pd.DataFrame({"first name": names, "age": ages, "n": np.arange(rows) ** 0.5})
        written = str(fit_encoding(table, set())) + draft_schema(table).to_toml()
        assert "Ottokar" not in written
        assert "Xaver" not in written
        assert "husband" not in written
        assert ("Anna" in written) == (rows > 12)


def test_a_table_without_a_column_to_learn_from_is_refused() -> None:
    with pytest.raises(InputError, match="no feature columns"):
        fit_encoding(pd.DataFrame({"id": np.arange(50), "y": [0, 1] * 25}), {"y"})


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".arrow", ".feather"])
def test_every_file_format_gives_the_same_table(suffix: str, tmp_path: Path) -> None:
    import pyarrow as pa

    table = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "z"]})
    path = tmp_path / f"table{suffix}"
    if suffix == ".parquet":
        table.to_parquet(path, index=False)
    elif suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, pa.Schema.from_pandas(table)) as writer:
            writer.write_table(pa.Table.from_pandas(table, preserve_index=False))
    elif suffix == ".feather":
        table.to_feather(path)
    else:
        table.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    found = read_table(path)
    assert found["a"].tolist() == [1, 2, 3]
    assert found["b"].tolist() == ["x", "y", "z"]


@pytest.mark.parametrize("name", ["twice.csv", "twice.csv.gz"])
def test_the_second_of_two_columns_of_one_name_is_renamed_as_pandas_does(name: str, tmp_path: Path) -> None:
    pd.DataFrame([[1, 2, 3]], columns=["age", "town, if any", "age"]).to_csv(tmp_path / name, index=False)
    table = read_table(tmp_path / name)
    assert table.columns.tolist() == ["age", "town, if any", "age.1"]
    assert table.attrs[RENAMED] == {"age.1": "age"}


def test_a_row_of_words_with_one_word_twice_is_no_heading(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("nurse,Graz,nurse\nclerk,Linz,nurse\nnurse,Graz,cook\n")
    with pytest.raises(InputError, match="looks like a row"):
        read_table(tmp_path / "rows.csv")


def test_columns_without_a_name_are_no_two_columns_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "open.csv").write_text("a,,\n1,2,3\n")
    assert read_table(tmp_path / "open.csv").shape == (1, 3)


@pytest.mark.parametrize("form", [{"sep": ";"}, {"sep": ","}, {"sep": "\t"}])
def test_decimal_commas_are_numbers_and_commas_that_may_mean_two_things_are_not(
    form: dict[str, str], tmp_path: Path
) -> None:
    table = pd.DataFrame(
        {
            "height": ["170,5", "-99", None],
            "exact": ["1,2345", "12,345", "3,000"],
            "thousands": ["1,234", "12,345", "1"],
            "both": ["1.234,5", "2,5", "3,5"],
            "words": ["1,5", "two", "3"],
            "paid": ["$1,234.50", "-$20", "$3"],
            "share": ["12.5%", "3 %", "?"],
            "mixed": ["75 kg", "75000 g", "3 kg"],
            "code": ["A12", "B7", "A3"],
            "age": [1, 2, 3],
        }
    )
    table.to_csv(tmp_path / "t.csv", index=False, **form)
    found = read_table(tmp_path / "t.csv")
    read = {"height": [170.5, -99.0, np.nan], "exact": [1.2345, 12.345, 3.0], "both": [1234.5, 2.5, 3.5]}
    read |= {"paid": [1234.5, -20.0, 3.0], "share": [12.5, 3.0, np.nan], "age": [1.0, 2.0, 3.0]}
    for name, values in read.items():
        assert guess_kind(found[name]) == "numeric"
        column = fit_column(found[name], name, "numeric", rare=1)
        assert isinstance(column, Numeric)
        np.testing.assert_array_equal(column.read(found[name]), values)
        # Whoever gets the exported model reads the same.
        listed = found[name].astype(object).where(found[name].notna(), None)
        np.testing.assert_array_equal([np.nan if v is None else number(v, asdict(column)) for v in listed], values)
    for name in ("thousands", "words", "mixed", "code"):
        assert guess_kind(found[name]) != "numeric"
        assert found[name].tolist() == table[name].tolist()


VALUES = st.sampled_from(
    ("1", "01", "1.0", "2", "170,5", "1.234", "1.234,5", "1e3", "0x10", "inf", "1_000", "12345678901234567", " 7", "7 ")
) | st.sampled_from(
    ("true", "False", "x", "", "NA", "-", "?", "ja", "$5", "75 kg", "3/4/2020", "2020-01-31", "31.12.1999", "20200131")
)
STATED = {
    "plain": 'kind = "numeric"\nlow = 0\nhigh = 100\nmissing_words = ["?"]',
    "comma": 'kind = "numeric"\nlow = 0\nhigh = 2000\ndecimal = ","\nunit = "kg"',
    "born": 'kind = "date"\nlow = 1990-01-01\nhigh = 2025-01-01',
    "code": 'kind = "category"\nvalues = ["1", "2", "True", "x"]',
    "zeros": 'kind = "category"\nvalues = ["01", "2", "true"]',
    "words": 'kind = "text"\nbuckets = 16',
}


@settings(deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_a_row_becomes_owes_nothing_to_the_other_rows_of_its_file(data: st.DataObject, tmp_path: Path) -> None:
    """One odd value makes pandas read a whole column otherwise: without care it would move every row."""
    (tmp_path / "s.toml").write_text("".join(f"[columns.{name}]\n{facts}\n" for name, facts in STATED.items()))
    schema = read_schema(tmp_path / "s.toml")
    words = words_of(Columns("none", (), schema=schema), private=True)
    rows = data.draw(st.lists(st.lists(VALUES, min_size=6, max_size=6), min_size=2, max_size=4))
    # As private preprocessing reads: what is not of its kind is missing, so that not even an error tells.
    columns = [column for facts in schema.columns if (column := facts.column()) is not None]
    encoding = Encoding(tuple(_lenient(column) for column in columns), from_rows=False)

    def encoded(some: list[list[str]]) -> Any:
        pd.DataFrame([*some, ["4"] * 6], columns=list(STATED)).to_csv(tmp_path / "t.csv", index=False)
        return encoding.encode(read_table(tmp_path / "t.csv", words))

    together = encoded(rows)
    for place, row in enumerate(rows):
        np.testing.assert_array_equal(encoded([row])[0], together[place])


def _lenient(column: Column) -> Column:
    return replace(column, lenient=True) if isinstance(column, Numeric | Date) else column


def test_a_file_that_says_it_is_utf_16_is_read(tmp_path: Path) -> None:
    table = pd.DataFrame({"Größe": ["170,5", "180,1"], "Ort": ["Köln", "Wien"]})
    for encoding in ("utf-16", "utf-8-sig", "utf-8", "utf-32"):
        table.to_csv(tmp_path / "t.csv", sep=";", index=False, encoding=encoding)
        assert read_table(tmp_path / "t.csv").to_dict("list") == table.to_dict("list")
    table.to_csv(tmp_path / "t.csv", sep=";", index=False, encoding="cp1252")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        read_table(tmp_path / "t.csv")


def test_lists_and_records_are_left_out(tmp_path: Path) -> None:
    rows = {"age": [1, 2] * 10, "parts": [[1, 2], [3]] * 10, "who": [{"name": "A"}, {"name": "B"}] * 10}
    pd.DataFrame(rows).to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    assert [column.name for column in fit_encoding(table, set()).columns] == ["age"]
    assert [why_not_learned(table[name]) for name in ("parts", "who")] == [NESTED, NESTED]


@pytest.mark.parametrize("damage", ["no Parquet", "torn"])
def test_one_bad_file_of_a_folder_is_named(damage: str, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        pd.DataFrame({"x": np.arange(5000.0)}).to_parquet(tmp_path / f"{name}.parquet")
    whole = (tmp_path / "b.parquet").read_bytes()
    # The second keeps its heading and its end: only who reads the rows sees it.
    torn = whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :]
    (tmp_path / "b.parquet").write_bytes(b"PAR1xxxxx" if damage == "no Parquet" else torn)
    with pytest.raises(InputError, match=r"b\.parquet is not a readable table"):
        read_table(tmp_path)
    if damage == "no Parquet":
        with pytest.raises(InputError, match=r"b\.parquet is not a readable table"):
            is_large(tmp_path)


def test_tables_of_other_libraries_are_taken_and_wrong_ones_refused() -> None:
    import pyarrow as pa

    assert as_table(pa.table({"a": [1, 2]}))["a"].tolist() == [1, 2]
    assert as_table({"a": [1, 2]})["a"].tolist() == [1, 2]
    assert as_table([[1, 2], [3, 4]])["x1"].tolist() == [2, 4]
    twice = as_table(pd.DataFrame([[1, 2, 3, 4]], columns=["a", "a", "a.1", "a"]))
    assert twice.columns.tolist() == ["a", "a.2", "a.1", "a.3"]
    assert twice.attrs[RENAMED] == {"a.2": "a", "a.3": "a"}
    with pytest.raises(InputError, match="has no rows"):
        as_table(pd.DataFrame({"a": []}))
    with pytest.raises(InputError, match="two dimensions, not 1"):
        as_table([1, 2, 3])


def test_texts_become_codes_and_bags_by_fixed_rules() -> None:
    assert character_codes(["ab", "ÄB", "日"], 3).tolist() == [[0, 2, 3], [0, 28, 29], [0, 0, 1]]
    codes = token_codes(["Hello hello world", ""], 4, 50)
    assert codes[0, 1] == codes[0, 2] != codes[0, 3]
    assert codes[1].tolist() == [0, 0, 0, 0]
    bags = bag_of_tokens(["one two", "two one", "", "one"], "tokens", 64)
    assert np.array_equal(bags[0], bags[1])
    assert np.linalg.norm(bags, axis=1).round(6).tolist() == [1, 1, 0, 1]
    near, far = (bag_of_tokens(["Johansson", other], "characters", 512) for other in ("Johanson", "Nakamura"))
    assert near[0] @ near[1] > 0.5 > far[0] @ far[1]


@pytest.mark.statistical
def test_generated_groups_have_the_optimum_that_they_declare() -> None:
    """20,000 rows per group: the standard error is 0.003, so 0.015 is five of them (false alarm below 1e-6)."""
    groups = [
        GroupSpec("easy", 20_000, margin=3.0),
        GroupSpec("turned", 20_000, margin=2.0, angle=1.0, label_noise=0.1),
        GroupSpec("shifted", 20_000, margin=1.0, shift=5.0),
    ]
    problem = generate(groups, features=4, seed=1)
    x, y = problem.inputs.double().numpy(), problem.targets.numpy()
    for index, name in enumerate(problem.public.groups):
        group = next(group for group in groups if group.name == name)
        of = problem.group_of == index
        best = x[of][:, 0] * np.cos(group.angle) + x[of][:, 1] * np.sin(group.angle) > 0
        assert (best == y[of]).mean() == pytest.approx(group.best_accuracy(), abs=0.015)


@pytest.mark.parametrize("rare", [5, 10])
def test_the_certificate_says_from_how_many_rows_on_a_category_is_kept(rare: int) -> None:
    """Else it would promise that a category of seven rows is not in the run's folder, and it would be there."""
    towns = ["here"] * 43 + ["there"] * 7
    table = pd.DataFrame({"town": towns, "sex": ["f", "m"] * 25, "y": ["no", "yes"] * 25})
    request = Request.checked(data=Path("rows"), target="y", group=("sex",))
    opened = open_to_compare(request, (table, table), rare)
    assert opened.encoding is not None
    kept = next(column for column in opened.encoding.columns if column.name == "town")
    assert ("there" in kept.values) == (rare == 5)  # type: ignore[union-attr]
    assert f"if at least {rare} rows have it" in opened.not_covered[0]
