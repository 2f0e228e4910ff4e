"""Predicting files: tables of any size go through a predictor piece by piece, into a CSV or Parquet file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veil.errors import require
from veil.tables.encoding import Category, HashedCategory, as_read
from veil.tables.predictor import Predictor
from veil.tables.reading import ARROW, PARQUET, csv_pieces, naming, parquet_files, read_table

PREDICTED = "predicted"
AT_ONCE = 50_000


def predict_pieces(
    predictor: Predictor,
    data: Path,
    *,
    threshold: float | None = None,
    probabilities: bool = False,
    keep: Sequence[str] = (),
) -> Iterator[pd.DataFrame]:
    """Predictions for all rows of a file or a folder of Parquet files, in order, a table for every piece.

    With two classes, `threshold` is the probability from which the second one is predicted. `keep` are columns of the
    file that are put in front, such as the number of a case.
    """
    two = len(predictor.classes) == 2
    require(threshold is None or two, "--threshold is for models with two classes: leave it out")
    require(threshold is None or 0 < threshold < 1, f"--threshold is {threshold}: it must be between 0 and 1")
    require(not probabilities or bool(predictor.classes), "this model predicts numbers: leave --probabilities out")
    for piece in pieces_of(data, _as_texts(predictor)):
        for name in (*(column.name for column in predictor.encoding.columns), *keep):
            require(
                name in piece.columns,
                f'{data} has no column "{name}", which the model was trained with'
                if name not in keep
                else f'{data} has no column "{name}" to keep',
            )
        found = piece[list(keep)].reset_index(drop=True)
        for name, values in _predicted(predictor, piece, threshold, probabilities).items():
            require(name not in keep, f'--keep "{name}" is the name of a result: rename the column')
            found[name] = values
        yield found


def _predicted(
    predictor: Predictor, rows: pd.DataFrame, threshold: float | None, probabilities: bool
) -> dict[str, NDArray[Any]]:
    if not predictor.classes:
        return {PREDICTED: predictor.predict(rows)}
    chances = predictor.predict_proba(rows)
    chosen = chances.argmax(axis=1) if threshold is None else (chances[:, 1] >= threshold).astype(np.int64)
    found: dict[str, NDArray[Any]] = {PREDICTED: np.array(predictor.classes, dtype=object)[chosen]}
    if probabilities:
        found |= {f"probability of {name}": chances[:, place] for place, name in enumerate(predictor.classes)}
    return found


def _as_texts(predictor: Predictor) -> dict[str, tuple[str, ...] | None]:
    """Columns of categories with the known ones: how their words are read must not follow from a piece."""
    kinds = (column for column in predictor.encoding.columns if isinstance(column, Category | HashedCategory))
    return {column.name: column.values if isinstance(column, Category) else None for column in kinds}


def pieces_of(data: Path, texts: dict[str, tuple[str, ...] | None]) -> Iterator[pd.DataFrame]:
    """A file or a folder, piece by piece; a file without rows is one empty piece."""
    require(data.exists(), f"file not found: {data}")
    if data.is_dir() or data.suffix in PARQUET:
        yield from _parquet_pieces(parquet_files(data) if data.is_dir() else [data])
    elif data.suffix in ARROW:
        yield read_table(data)
    else:
        for piece in csv_pieces(data, AT_ONCE, list(texts)):
            present = {name: as_read(piece[name], known) for name, known in texts.items() if name in piece.columns}
            yield piece.assign(**present)


def _parquet_pieces(files: Sequence[Path]) -> Iterator[pd.DataFrame]:
    import pyarrow.parquet as pq

    for file in files:
        with naming(file), pq.ParquetFile(file) as opened:
            batches = opened.iter_batches(AT_ONCE)
            first = True
            for batch in batches:
                first = False
                yield batch.to_pandas()
            if first:
                yield opened.schema_arrow.empty_table().to_pandas()


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
