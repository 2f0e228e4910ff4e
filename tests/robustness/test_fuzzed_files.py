"""Files that nobody would write on purpose: never a traceback, never what stands in a row in a message."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from veil.errors import InputError
from veil.request import Request
from veil.tables.checking import check_table
from veil.tables.reading import read_table

SECRET = "Zwetschkenknoedl"  # in no heading, so no message has any business with it
NUMBER = "918273645"

CELLS = st.one_of(
    st.sampled_from(
        ["", " ", "NA", "?", "1", "2.5", "-3", "1e400", "1,5", "true", "2020-01-31", "31.12.1999", SECRET, NUMBER]
    ),
    st.text(max_size=6),
)
ENDINGS = ("utf-8", "utf-8-sig", "utf-16", "latin-1", "cp1252")


@st.composite
def csv_files(draw: Any) -> bytes:
    """A heading and rows in some dialect, some of them too long or too short, in some encoding."""
    names = draw(st.lists(st.sampled_from(["a", "b", "y", "g", "a b", "", "1", "a.1"]), min_size=1, max_size=6))
    separator, line, quote = draw(
        st.tuples(st.sampled_from(",;\t| :"), st.sampled_from(["\n", "\r\n", "\r"]), st.sampled_from(['"', "'", ""]))
    )
    rows = draw(st.lists(st.lists(CELLS, min_size=0, max_size=len(names) + 1), max_size=30))
    text = line.join(separator.join(f"{quote}{cell}{quote}" for cell in row) for row in [names, *rows])
    encoded = text.encode(draw(st.sampled_from(ENDINGS)), errors="replace")
    return encoded + draw(st.sampled_from([b"", b"\x00", b"\xff\xfe", line.encode()]))


def _opened(path: Path) -> None:
    """Read and look at a file; whatever is wrong with it is said in one sentence without content."""
    said = []
    for work in (
        lambda: read_table(path),
        lambda: check_table(Request.checked(data=path, target="y", group=("g",))),
    ):
        try:
            found = work()
        except InputError as error:
            said.append(str(error))
        else:
            said += [remark.sentence for remark in getattr(found, "remarks", ())]
    for sentence in said:
        assert SECRET not in sentence
        assert NUMBER not in sentence
        assert "Traceback" not in sentence
        assert len(sentence) < 2000


def _fuzz(examples: int, folder: Path) -> None:
    place = folder / "fuzzed.csv"

    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(csv_files())
    def check(content: bytes) -> None:
        place.write_bytes(content)
        _opened(place)

    check()


@pytest.mark.filterwarnings("ignore")
def test_a_csv_in_any_dialect_is_a_table_or_a_sentence(tmp_path: Path) -> None:
    _fuzz(120, tmp_path)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_a_csv_in_any_dialect_is_a_table_or_a_sentence_in_many_tries(tmp_path: Path) -> None:
    _fuzz(3000, tmp_path)


def _parquet(**columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


COUNT = 120
USUAL: dict[str, Any] = {"y": ["p", "q"] * (COUNT // 2), "g": ["f", "f", "m", "m"] * (COUNT // 4)}
NESTED: dict[str, Any] = {
    "lists": [[1, 2], []] * (COUNT // 2),
    "structures": [{"name": SECRET, "n": 1}, None] * (COUNT // 2),
    "lists of structures": [[{"name": SECRET}]] * COUNT,
    "maps": pa.array([[(SECRET, 1)]] * COUNT, pa.map_(pa.string(), pa.int64())),
    "bytes": [SECRET.encode()] * COUNT,
    "decimals": pa.array([None] * COUNT, pa.decimal128(38, 10)),
    "durations": pa.array([1] * COUNT, pa.duration("ns")),
    "times": pa.array([1] * COUNT, pa.time64("ns")),
    "dictionaries": pa.array([SECRET, "b"] * (COUNT // 2)).dictionary_encode(),
    "nothing": pa.nulls(COUNT),
    "huge numbers": [2**63 - 1, -(2**63)] * (COUNT // 2),
    "infinite": [float("inf"), float("nan")] * (COUNT // 2),
}


@pytest.mark.parametrize("kind", NESTED)
def test_a_parquet_file_with_an_odd_column_is_a_table_or_a_sentence(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "odd.parquet"
    place.write_bytes(_parquet(**USUAL, x=list(range(COUNT)), **{kind: NESTED[kind]}))
    _opened(place)
    # The odd column as the target, and as the group.
    for role in ("y", "g"):
        place.write_bytes(_parquet(**USUAL | {role: NESTED[kind]}, x=list(range(COUNT))))
        _opened(place)


@pytest.mark.parametrize("cut", [1, 4, 20, 200])
def test_a_torn_parquet_file_is_a_sentence(cut: int, tmp_path: Path) -> None:
    whole = _parquet(**USUAL, name=[SECRET] * COUNT)
    for content in (whole[:-cut], whole[cut:], whole[:cut] + bytes(8) + whole[cut + 8 :]):
        (tmp_path / "torn.parquet").write_bytes(content)
        _opened(tmp_path / "torn.parquet")


def test_mixed_types_in_one_column_are_a_table_or_a_sentence(tmp_path: Path) -> None:
    mixed = [1, "1", 1.0, None, True, SECRET, "2020-01-01", " "] * 15
    pd.DataFrame({**USUAL, "x": mixed, "z": range(COUNT)}).to_csv(tmp_path / "mixed.csv", index=False)
    _opened(tmp_path / "mixed.csv")


def _many_columns(columns: int, folder: Path) -> None:
    names = [f"c{place}" for place in range(columns)]
    rows = np.random.default_rng(0).integers(0, 9, (12, columns)).astype(str)
    lines = [",".join([*names, "y", "g"])] + [",".join([*row, "yn"[k % 2], "fm"[k % 2]]) for k, row in enumerate(rows)]
    (folder / "wide.csv").write_text("\n".join(lines))
    assert read_table(folder / "wide.csv").shape == (12, columns + 2)
    with pytest.raises(InputError) as error:
        check_table(Request.checked(data=folder / "wide.csv", target="z", group=("g",)))
    assert len(str(error.value)) < 500, "all names would fill the screen"


def test_very_many_columns_are_read_and_not_all_named_in_a_message(tmp_path: Path) -> None:
    _many_columns(3_000, tmp_path)


@pytest.mark.long
def test_a_hundred_thousand_columns_are_read_and_not_all_named_in_a_message(tmp_path: Path) -> None:
    _many_columns(100_000, tmp_path)
