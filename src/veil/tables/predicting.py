"""Predicting files: tables of any size go through a predictor piece by piece, into a CSV or Parquet file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veil.errors import InputError, quoted, require
from veil.metrics.score_counts import Thresholds, thresholds_for
from veil.problem.groups import CROSSED
from veil.tables.encoding import PLAIN, Category, Codes, HashedCategory, Numeric, Text, words
from veil.tables.predictor import Predictor
from veil.tables.reading import (
    ARROW,
    PARQUET,
    Words,
    csv_pieces,
    naming,
    parquet_files,
    read_table,
    refuse_other_kinds,
    unique_names,
)
from veil.tables.table import OTHER_GROUPS
from veil.training.run import SCORES_FILE

PREDICTED = "predicted"
AT_ONCE = 50_000


@dataclass(frozen=True)
class GroupThresholds:
    """Thresholds by group, of rows whose group is told by columns; a group that has none takes that of all.

    Args:
        columns: Columns that tell the group of a row.
        chosen: Threshold of all rows, and of groups that have their own.
        missing_group: Name of the group of rows that have none.
        source: What the thresholds were chosen on, as a sentence begins.

    >>> import pandas as pd
    >>> chosen = GroupThresholds(("sex",), Thresholds(0.5, {"f": 0.4}))
    >>> chosen.of_rows(pd.DataFrame({"sex": ["f", "m"]})).tolist()
    [0.4, 0.5]
    """

    columns: tuple[str, ...]
    chosen: Thresholds
    missing_group: str = ""
    source: str = "On the public rows of the run"

    def of_rows(self, rows: pd.DataFrame) -> NDArray[np.float64]:
        """The threshold of each row.

        Args:
            rows: A table with the group columns.

        Returns:
            One probability per row; the second class is predicted from there on.
        """
        own, others = self.chosen.by_group, self.chosen.by_group.get(OTHER_GROUPS, self.chosen.overall)
        if not own:
            return np.full(len(rows), self.chosen.overall)
        labels = zip(*(words(rows[name]) for name in self.columns), strict=True)
        named = (CROSSED.join(word or self.missing_group for word in parts) for parts in labels)
        return np.array([own.get(name, others) for name in named], dtype=np.float64)


def thresholds_of(run: Path, aim: str) -> GroupThresholds:
    """The thresholds that serve an aim best on the rows that a run was measured on: public ones, or by noisy counts.

    Args:
        run: Folder of a finished run with two classes.
        aim: "accuracy", "balanced", "worst-group" or another aim of `veil predict --threshold-for`.

    Returns:
        The thresholds, with the columns that tell the group of a row.

    Raises:
        InputError: The run has no such figures, or they cannot carry the aim.
    """
    path = run / SCORES_FILE
    require(
        path.exists(),
        f"{run} has no figures that carry a threshold, which takes two classes and counts by probability: train with "
        "--test (public rows) or --release-scores (held-out rows, with noise), or give --threshold",
    )
    try:
        record, about = (json.loads((run / name).read_text(encoding="utf-8")) for name in (SCORES_FILE, "run.json"))
        columns = tuple(str(name) for name in about["config"].get("group", ()))
        missing = str(about["config"].get("missing_group") or "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{run} is not a readable run: scores.json or run.json is damaged") from error
    chosen = thresholds_for(aim, record)
    if "noise" not in record:
        return GroupThresholds(columns, chosen, missing)
    return GroupThresholds(columns, chosen, missing, "By noisy counts of held-out rows, which the certificate covers")


def predict_pieces(
    predictor: Predictor,
    data: Path,
    *,
    threshold: float | GroupThresholds | None = None,
    probabilities: bool = False,
    keep: Sequence[str] = (),
) -> Iterator[pd.DataFrame]:
    """Predictions for all rows of a file or a folder of Parquet files, in order, a table for every piece.

    With two classes, `threshold` is the probability from which the second one is predicted, or that of each group.
    `keep` are columns of the file that are put in front, such as the number of a case.
    """
    two = len(predictor.classes) == 2
    require(threshold is None or two, "--threshold is for models with two classes: leave it out")
    stated = not isinstance(threshold, float) or 0 < threshold < 1
    require(stated, f"--threshold is {threshold}: it must be between 0 and 1")
    require(not probabilities or bool(predictor.classes), "this model predicts numbers: leave --probabilities out")
    learned, told = [column.name for column in predictor.encoding.columns], list[str]()
    if isinstance(threshold, GroupThresholds):
        told = list(threshold.columns) if threshold.chosen.by_group else []
    texts = _as_texts(predictor, told)
    for piece in pieces_of(data, texts):
        for names, why in (
            (keep, " to keep"),
            (told, " with the group, which the threshold needs"),
            (learned, ", which the model was trained with"),
        ):
            missing = [name for name in names if name not in piece.columns]
            require(not missing, f"{data} has no {quoted(missing)}{why}")
        found = piece[list(keep)].reset_index(drop=True)
        for name, values in _predicted(predictor, piece, threshold, probabilities).items():
            require(name not in keep, f'--keep "{name}" is the name of a result: rename the column')
            found[name] = values
        yield found


def _predicted(
    predictor: Predictor, rows: pd.DataFrame, threshold: float | GroupThresholds | None, probabilities: bool
) -> dict[str, NDArray[Any]]:
    if not predictor.classes:
        return {PREDICTED: predictor.predict(rows)}
    chances = predictor.predict_proba(rows)
    from_where = threshold.of_rows(rows) if isinstance(threshold, GroupThresholds) else threshold
    chosen = chances.argmax(axis=1) if from_where is None else (chances[:, 1] >= from_where).astype(np.int64)
    found: dict[str, NDArray[Any]] = {PREDICTED: np.array(predictor.classes, dtype=object)[chosen]}
    if probabilities:
        found |= {f"probability of {name}": chances[:, place] for place, name in enumerate(predictor.classes)}
    return found


def _as_texts(predictor: Predictor, told: Sequence[str]) -> Words:
    """Columns of words and texts, and of numbers in a form of their own: no piece decides how they are read.

    `told` are columns of groups.
    """
    learned = predictor.encoding.columns
    known = {column.name: column.values for column in learned if isinstance(column, Category)}
    hashed = [column.name for column in learned if isinstance(column, HashedCategory)]
    texts = [c.name for c in learned if isinstance(c, Text | Codes) or (isinstance(c, Numeric) and c.written != PLAIN)]
    return Words(tuple(texts), dict.fromkeys([*told, *hashed]) | known)


def pieces_of(data: Path, texts: Words) -> Iterator[pd.DataFrame]:
    """A file or a folder, piece by piece; a file without rows is one empty piece."""
    refuse_other_kinds(data)
    if data.is_dir() or data.suffix in PARQUET:
        yield from _parquet_pieces(parquet_files(data) if data.is_dir() else [data])
    elif data.suffix in ARROW:
        yield read_table(data)
    else:
        yield from csv_pieces(data, AT_ONCE, texts)


def _parquet_pieces(files: Sequence[Path]) -> Iterator[pd.DataFrame]:
    import pyarrow.parquet as pq

    for file in files:
        with naming(file), pq.ParquetFile(file) as opened:
            batches = opened.iter_batches(AT_ONCE)
            first = True
            for batch in batches:
                first = False
                yield unique_names(batch.to_pandas())
            if first:
                yield unique_names(opened.schema_arrow.empty_table().to_pandas())


class CsvWriter(AbstractContextManager["CsvWriter"]):
    """Rows as CSV, with one heading."""

    def __init__(self, file: IO[str]) -> None:
        self._file, self._heading = file, True

    def write(self, table: pd.DataFrame) -> None:
        """The next rows."""
        table.to_csv(self._file, index=False, header=self._heading)
        self._heading = False

    def __exit__(self, *_: object) -> None:
        self._file.flush()


class ParquetWriter(AbstractContextManager["ParquetWriter"]):
    """Rows as a Parquet file; kinds of columns are those of the first piece that has rows."""

    def __init__(self, path: Path) -> None:
        self._path, self._writer = path, None  # type: tuple[Path, Any]
        self._empty: pd.DataFrame | None = None

    def write(self, table: pd.DataFrame) -> None:
        """The next rows; a piece without any tells nothing about kinds, and is written only where all are like it."""
        if len(table) > 0:
            self._write(table)
        elif self._empty is None:
            self._empty = table

    def _write(self, table: pd.DataFrame) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._writer is None:
            made = pa.Table.from_pandas(table, preserve_index=False)
            self._writer = pq.ParquetWriter(self._path, made.schema)
        else:
            made = pa.Table.from_pandas(table, schema=self._writer.schema, preserve_index=False)
        self._writer.write_table(made)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._writer is None and self._empty is not None:
            self._write(self._empty)
        if self._writer is not None:
            self._writer.close()
