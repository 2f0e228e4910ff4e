"""Predict rows with an exported model. It needs onnxruntime (with numpy) and the standard library, not Veil.

    python score.py rows.csv > predictions.csv

Raw values are read as Veil reads them. A value that cannot be read, or a missing column, is an error that names column
and row, and never quotes the value.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

if __name__ == "__main__":
    sys.dont_write_bytecode = True  # veil verify accepts nothing beside the model that it cannot compare
from veil.tables.text import (
    CENTURY_FROM,
    DAY_AND_MONTH,
    bag_of_tokens,
    plain_number,
    renamed,
    text_codes,
    word_as_read,
    word_hash,
    word_of,
)

Row = Mapping[str, Any]
# What pandas reads as "no value" in a CSV file.
NO_VALUE = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA")
) | {"NULL", "NaN", "None", "n/a", "nan", "null"}
AT_ONCE = 10_000
_PLACE = re.compile(DAY_AND_MONTH)


class WrongRows(ValueError):
    """What is wrong with rows, in one sentence."""


class Scorer:
    """An exported model: rows as mappings from column to value in, predictions out.

    Args:
        path: The file `model.onnx`.
    """

    def __init__(self, path: str | Path) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        notes = self.session.get_modelmeta().custom_metadata_map
        record = json.loads(notes["veil.preprocessing"])
        self.columns: list[dict[str, Any]] = record["columns"]
        self.classes: list[str] = record["classes"]

    def predict(self, rows: Sequence[Row], read: bool = False) -> dict[str, Any]:
        """The predicted class or number of each row and, of classes, the probabilities [rows, classes].

        `read` says that all values are texts of a CSV file.

        Args:
            rows: Raw values by the name of the column.
            read: Whether all values are texts.

        Returns:
            `predicted` and, of classes, `probabilities`.
        """
        if not rows:
            return {"predicted": []} | ({"probabilities": np.zeros((0, len(self.classes)))} if self.classes else {})
        _refuse_missing([column["name"] for column in self.columns], rows)
        feeds = {column["name"]: self._feed(column, rows, read) for column in self.columns}
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, feeds), strict=True))

    def table(self, rows: Sequence[Row], read: bool = False) -> dict[str, Any]:
        """The columns that `veil predict --probabilities` writes.

        Args:
            rows: Raw values by the name of the column.
            read: Whether all values are texts of a CSV file.

        Returns:
            One entry per column.
        """
        found = self.predict(rows, read)
        chances = found.get("probabilities", np.zeros((len(rows), 0)))
        more = {f"probability of {name}": chances[:, place] for place, name in enumerate(self.classes)}
        return {"predicted": found["predicted"], **more}

    def _feed(self, column: dict[str, Any], rows: Sequence[Row], read: bool) -> Any:
        name, kind = column["name"], column["column"]
        given = [_value(row[name], read) for row in rows]
        if kind in ("Numeric", "Date"):
            as_number = number if kind == "Numeric" else days
            numbers = [_number(as_number, value, column, place) for place, value in enumerate(given)]
            return np.array(numbers, dtype=np.float64)[:, None]
        words = ["" if value is None else word_of(value) for value in given]
        if kind in ("Category", "HashedCategory") and read:
            known = frozenset(column["values"]) if kind == "Category" else None
            words = [word and word_as_read(word, known) for word in words]
        if kind == "Category":
            return np.array(words, dtype=object)[:, None]
        if kind == "HashedCategory":
            return np.array([[word_hash(name, word, column["buckets"])] for word in words], dtype=np.int64)
        if kind == "Text":
            return bag_of_tokens(words, column["form"], column["buckets"])
        return text_codes(words, column["form"], column["length"], column["buckets"])


def _refuse_missing(names: Sequence[str], rows: Sequence[Row]) -> None:
    """All columns that a row lacks, in one sentence."""
    for place, row in enumerate(rows):
        missing = [f'"{name}"' for name in names if name not in row]
        if missing:
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            which = f"column {missing[0]}" if len(missing) == 1 else f"columns {', '.join(missing[:5])}{more}"
            raise WrongRows(f"row {place} has no {which}, which the model was trained with")


def _value(value: Any, read: bool) -> Any:
    """None where there is no value."""
    if value is None or value != value or (read and value in NO_VALUE):
        return None
    return value


def _number(read: Callable[[Any, dict[str, Any]], float], value: Any, column: dict[str, Any], place: int) -> float:
    found = math.nan if value is None else read(value, column)
    wrong = "cannot be read" if math.isinf(found) else "is missing"
    if math.isinf(found) or (math.isnan(found) and column["missing"] == "refuse"):
        raise WrongRows(f'column "{column["name"]}" {wrong} in row {place}: correct the value or leave it empty')
    return found


def number(value: Any, column: dict[str, Any]) -> float:
    """A value as a number; NaN where it is missing, infinity where it is none."""
    if isinstance(value, str):
        text = value.strip()
        if text in ("", *column["missing_words"]):
            return math.nan
        try:
            text = plain_number(text, column.get("decimal", ""), column.get("unit", ""))
            found = math.inf if "_" in text else float(text)
        except ValueError:
            found = math.inf
        found = math.inf if math.isnan(found) else found
    else:
        try:
            found = float(value)
        except OverflowError:  # a whole number beyond any double
            found = math.inf
    return math.nan if math.isinf(found) and column["lenient"] else found


def days(value: Any, column: dict[str, Any]) -> float:
    """A date as days since 1970-01-01; infinity where it is none, NaN if such values count as missing."""
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(_year_first(str(value), column))
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):  # in UTC the first and last days of the calendar may lie outside it
        return math.nan if column["lenient"] else math.inf
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(days=1)


def _year_first(text: str, column: dict[str, Any]) -> str:
    parts = _PLACE.match(text)
    if parts is None:
        return text.strip()
    first, sign, second, year, rest = parts.groups()
    turn = sign == "." if column["day_first"] is None else column["day_first"]
    day, month = (first, second) if turn else (second, first)
    year = ("20" if int(year) < CENTURY_FROM else "19") + year if len(year) == 2 else year
    return f"{year}-{month:>02}-{day:>02}{rest}".strip()


def _load_pyfunc(path: str) -> Any:
    """What MLflow calls to load the model."""
    found = Path(path)
    return _ForTables(Scorer(found / "model.onnx" if found.is_dir() else found))


class _ForTables:
    """Takes and gives tables of pandas, as MLflow does."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    def predict(self, table: Any, params: Any = None) -> Any:
        """The table that `veil predict --probabilities` writes."""
        import pandas

        rows = table.astype(object).where(table.notna(), None).to_dict("records")
        return pandas.DataFrame(self.scorer.table(rows), index=table.index)


def main(path: str) -> None:
    """A CSV file in, a CSV file out."""
    scorer, writer = Scorer(Path(__file__).with_name("model.onnx")), csv.writer(sys.stdout, lineterminator="\n")
    with open(path, encoding=_encoding(path), newline="") as file:
        separator = max(",;\t|", key=re.sub(r'"[^"]*"', "", file.readline()).count)
        file.seek(0)
        lines = csv.reader(file, delimiter=separator, skipinitialspace=True)
        names = renamed(next(lines, []))
        piece, heading = list[Row](), True
        for line in lines:
            if not line:
                continue
            piece.append(dict(zip_longest(names, line[: len(names)])))
            if len(piece) == AT_ONCE:
                heading = _write(writer, scorer.table(piece, read=True), heading)
                piece = []
        _write(writer, scorer.table(piece, read=True), heading)


def _encoding(path: str) -> str:
    with open(path, "rb") as file:
        start = file.read(2)
    return "utf-16" if start in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


def _write(writer: Any, table: dict[str, Any], heading: bool) -> bool:
    if heading:
        writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    return False


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except UnicodeDecodeError:
        sys.exit("error: the file is not UTF-8: save it as UTF-8")
    except csv.Error:
        sys.exit("error: the file cannot be read as CSV: a field is too long or has a sign that no text has")
    except (WrongRows, OSError, IndexError) as error:
        sys.exit("usage: python score.py rows.csv" if isinstance(error, IndexError) else f"error: {error}")
