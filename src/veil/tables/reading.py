"""Reading: a table from a CSV, Parquet or Arrow file, a folder of Parquet files, or what another library holds."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from veil.errors import InputError, require
from veil.tables.encoding import as_read
from veil.tables.text import renamed

PARQUET = {".parquet", ".pq"}
ARROW = {".arrow", ".feather", ".ipc"}
# Read as CSV, the first row of such a file would be taken for names of columns, which messages and files repeat.
NOT_READ = {".json", ".jsonl", ".ndjson", ".xlsx", ".xls", ".ods", ".pkl", ".pickle", ".xml", ".html", ".arff"}
_COMPRESSED = {".gz", ".bz2", ".xz", ".zip", ".zst"}
_VALUE = re.compile(r"[+-]?[\d.,]+(e[+-]?\d+)?%?|\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}.*", re.IGNORECASE)


@dataclass(frozen=True)
class Words:
    """Columns of a CSV file that are read as texts: what pandas makes of a word follows from all others.

    Those `as_they_stand` stay so. Of the others, a word that is among the `known` ones of its column stays; None where
    nobody knows any. With `all_alone` a word of any column means the same whatever stands in other rows: 01 and 1.0
    are 1 among words too.
    """

    as_they_stand: tuple[str, ...] = ()
    known: Mapping[str, Sequence[str] | None] = field(default_factory=dict)
    all_alone: bool = False

    def names(self) -> set[str]:
        """All these columns."""
        return {*self.as_they_stand, *self.known}


def read_table(path: Path, words: Words | None = None) -> pd.DataFrame:
    """A CSV, Parquet or Arrow file, or a folder of Parquet files, as a table.

    Args:
        path: CSV, TSV, Parquet, Arrow or Feather; or a folder of Parquet files.
        words: Columns that are read as texts.

    Returns:
        The table.

    Raises:
        InputError: The file is missing, empty or of another kind; the message never quotes a row.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = (Path(place) / "people.csv").write_text("sex,age" + chr(10) + "f,41")
    ...     list(read_table(Path(place) / "people.csv").columns)
    ['sex', 'age']
    """
    refuse_other_kinds(path)
    with naming(path):
        if path.is_dir():
            table = _read_folder(path)
        elif path.suffix in PARQUET:
            table = _read_parquet(path)
        elif path.suffix in ARROW:
            table = _read_arrow(path)
        else:
            table = _read_csv(path, words or Words())
    # Rows are named by their place: an index that came with a file may hold what belongs to a person.
    return _checked(table.reset_index(drop=True), str(path))


_OTHER_FORMAT = "{} is not a supported table: save it as CSV, TSV, Parquet, Arrow or Feather"
# How files of other kinds begin, whatever their names end with.
_BEGINNINGS = {
    b"PK\x03\x04": "a spreadsheet or a ZIP archive",
    b"\xd0\xcf\x11\xe0": "a spreadsheet",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"GIF8": "an image",
    b"%PDF": "a PDF file",
    b"SQLite format 3": "a database",
    b"\x80\x04\x95": "a pickle",
    b"\x1f\x8b": "a compressed file without its ending (.gz)",
}


def refuse_other_kinds(path: Path) -> None:
    """Reject a file that is missing, empty or of another kind by name or beginning, without a word of its content."""
    require(path.exists(), f"file not found: {path}")
    if not path.is_file():
        return
    kind = path.with_suffix("").suffix if path.suffix in _COMPRESSED else path.suffix
    require(kind.lower() not in NOT_READ, _OTHER_FORMAT.format(path))
    with path.open("rb") as file:
        start = file.read(16)
    require(len(start) > 0, f"{path} is not a readable table: it is empty")
    if path.suffix in _COMPRESSED:
        return
    for beginning, kind in _BEGINNINGS.items():
        require(not start.startswith(beginning), f"{path} is {kind}: save it as CSV, TSV, Parquet, Arrow or Feather")


def as_table(data: Any, names: list[str] | None = None, *, empty: bool = False) -> pd.DataFrame:
    """A table from pandas, polars, Arrow, numpy, a mapping of columns, or rows in a list; with no row only if `empty`.

    Args:
        data: Rows in any of these forms.
        names: Names of the columns of an array.
        empty: Whether a table without rows is accepted.

    Returns:
        The table, rows counted from 0.

    Raises:
        InputError: It has no two dimensions, no row, or a name twice.

    >>> as_table(np.zeros((2, 3))).columns.tolist()
    ['x0', 'x1', 'x2']
    """
    if isinstance(data, pd.DataFrame):
        return _checked(data.reset_index(drop=True), "the table", empty)
    if hasattr(data, "to_pandas"):  # Arrow and polars
        return _checked(data.to_pandas(), "the table", empty)
    if isinstance(data, Mapping):
        return _checked(pd.DataFrame(dict(data)), "the table", empty)
    rows = np.asarray(data)
    require(rows.ndim == 2, f"a table must have two dimensions, not {rows.ndim}")
    return _checked(pd.DataFrame(rows, columns=names or [f"x{i}" for i in range(rows.shape[1])]), "the table", empty)


def _read_csv(path: Path, words: Words) -> pd.DataFrame:
    """A heading and rows that are no longer than it: else the first values would silently become names of rows."""
    form = _form_of_csv(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            # pandas gives the second of two columns of one name another name: the heading itself is looked at.
            heading = pd.read_csv(path, **form, header=None, nrows=1, dtype=str, keep_default_na=False)
            names = [str(name) for name in heading.iloc[0] if name]
            require(not names or not names[0].lstrip().startswith(("{", "[")), _OTHER_FORMAT.format(path))
            twice = len(set(names)) < len(names)
            require(not twice or not looks_like_row(names), f"{path}: {ROW_AS_NAMES}")
            table = pd.read_csv(path, **form, dtype={name: str for name in names if name in words.names()})
            if twice:  # pandas has called the second "age" "age.1"
                below = table.set_axis([*map(str, heading.iloc[0])], axis=1)
                require(not _stands_below(below), f"{path}: {ROW_AS_NAMES}")
                table.attrs[RENAMED] = _new_names(map(str, heading.iloc[0]), table)
            return _each_by_itself(table, words)
        except pd.errors.ParserWarning as error:
            raise InputError(f"{path} has rows with more values than its first line has names: correct them") from error


def csv_pieces(path: Path, rows: int, words: Words) -> Iterator[pd.DataFrame]:
    """A CSV file, so many rows at a time; `words` are read as texts in every piece.

    A file with a heading alone is one piece without rows.
    """
    with naming(path):
        form = _form_of_csv(path)
        heading = pd.read_csv(path, **form, header=None, nrows=1, dtype=str, keep_default_na=False)
        kinds = {name: "str" for name in map(str, heading.iloc[0]) if name in words.names()}
        with pd.read_csv(path, **form, chunksize=rows, dtype=kinds) as pieces:
            for piece in pieces:
                yield _each_by_itself(piece, words)


def _form_of_csv(path: Path) -> dict[str, Any]:
    encoding = encoding_of_text(path)
    separator = _separator(path, encoding)
    form = {"skipinitialspace": True, "sep": separator, "low_memory": False, "index_col": False}
    return form | {"encoding": encoding}


# Marks at the beginning of a file that say how its text is encoded; the longer one first, it begins like the other.
_MARKS = {b"\xff\xfe\x00\x00": "utf-32", b"\x00\x00\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


def encoding_of_text(path: Path) -> str:
    """The encoding that a file says it has, by the mark at its beginning; UTF-8 otherwise."""
    if path.suffix in _COMPRESSED:
        return "utf-8"
    with path.open("rb") as file:
        start = file.read(4)
    return next((name for mark, name in _MARKS.items() if start.startswith(mark)), "utf-8-sig")


def _each_by_itself(table: pd.DataFrame, words: Words) -> pd.DataFrame:
    """Words of a column as they would be without the other rows."""
    changed = {}
    for name in table.columns:
        stays = name in words.as_they_stand or not (words.all_alone or name in words.known)
        if stays or not pd.api.types.is_string_dtype(table[name].dtype):
            continue
        column = table[name]
        read = as_read(column, words.known.get(str(name)))
        if not read.equals(column.astype(object).where(column.notna(), None)):
            changed[name] = read.astype(column.dtype)
    return table.assign(**changed) if changed else table


ROW_AS_NAMES = "its first line looks like a row, not like names of columns: put a line with names first"


def looks_like_row(names: Iterable[Any], table: pd.DataFrame | None = None) -> bool:
    """Whether names of columns may be the values of a row: numbers, dates, or what stands in the column below too.

    >>> looks_like_row(["age", "town"]), looks_like_row(["39", "Graz"])
    (False, True)
    """
    listed = [str(name) for name in names]
    if any(_VALUE.fullmatch(name) for name in listed):
        return True
    return table is not None and _stands_below(table)


def _stands_below(table: pd.DataFrame) -> bool:
    """Whether the name of a column is one of its values, as it is where a row was taken for names."""
    head = table.head(1000)
    return any(str(name) in set(head.iloc[:, place].astype(str)) for place, name in enumerate(head.columns))


def _separator(path: Path, encoding: str) -> str:
    """What the first line uses most of: a comma, a semicolon, a tabulator or a bar."""
    if path.suffix not in {".csv", ".tsv", ".txt"}:
        return ","
    with path.open(encoding=encoding) as file:
        heading = re.sub(r'"[^"]*"', "", file.readline())
    return max(",;\t|", key=heading.count)


def parquet_files(folder: Path) -> list[Path]:
    """The Parquet files of a folder, in the order of their names."""
    found = sorted(path for path in folder.glob("**/*") if path.suffix in PARQUET)
    require(len(found) > 0, f"{folder} contains no Parquet file")
    return found


def _read_parquet(file: Path) -> pd.DataFrame:
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as opened:
        twice = len(set(opened.schema_arrow.names)) < len(opened.schema_arrow.names)
        # pandas rejects two columns of one name here, though not in CSV files.
        return unique_names(opened.read().to_pandas()) if twice else pd.read_parquet(file)


def _read_folder(folder: Path) -> pd.DataFrame:
    """All Parquet files of a folder; an error names the file that cannot be read."""
    try:
        return pd.read_parquet(folder)
    except (OSError, ValueError, LookupError, TypeError, NotImplementedError):
        pieces = list[pd.DataFrame]()
        for file in parquet_files(folder):
            with naming(file):
                pieces.append(_read_parquet(file))
        if not any(piece.attrs.get(RENAMED) for piece in pieces):
            raise
        table = pd.concat(pieces, ignore_index=True)
        table.attrs[RENAMED] = {new: old for piece in pieces for new, old in piece.attrs.get(RENAMED, {}).items()}
        return table


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn a library's error about an unreadable file into one sentence that names the file, and quotes none of it."""
    try:
        yield
    except InputError:
        raise
    except UnicodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text: save it as UTF-8 (a file of an older Excel: iconv -f WINDOWS-1252 -t UTF-8)"
        ) from error
    except pd.errors.EmptyDataError as error:
        raise InputError(f"{path} is not a readable table: it is empty") from error
    except (OSError, ValueError, LookupError, TypeError, NotImplementedError, ArithmeticError, MemoryError) as error:
        raise InputError(f"{path} is not a readable table: {_in_words(error)}") from error


def _in_words(error: Exception) -> str:
    """What a library's error says of lines and fields; no more, because it may quote what stands in a row."""
    said = " ".join(str(error).split())
    if fields := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", said):
        expected, line, found = fields.groups()
        return f"line {line} has {found} values where {expected} are expected"
    if row := re.search(r"EOF inside string starting at row (\d+)", said):
        return f"a quotation mark that opens in row {row.group(1)} is not closed"
    if "buffer overflow" in said.lower() or isinstance(error, MemoryError):
        return "it does not fit into memory"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "its content is damaged or of another kind"


def _read_arrow(path: Path) -> pd.DataFrame:
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        try:
            table: pd.DataFrame = pa.ipc.open_file(source).read_pandas()
        except pa.ArrowInvalid:
            table = pa.ipc.open_stream(source).read_pandas()
        return table


def _checked(table: pd.DataFrame, what: str, empty: bool = False) -> pd.DataFrame:
    require(empty or len(table) > 0, f"{what} has no rows")
    return unique_names(table)


def unique_names(table: pd.DataFrame) -> pd.DataFrame:
    """The table with names of columns as texts; of two columns of one name the second gets another, as in pandas."""
    table.columns = table.columns.map(str)
    if table.columns.is_unique:
        return table
    given = list(table.columns)
    found = table.set_axis(renamed(given), axis=1)
    found.attrs[RENAMED] = _new_names(given, found)
    return found


RENAMED = "renamed columns"
"""Where a table keeps which of its columns had the name of another one: a mapping from the new name to the old."""


def _new_names(given: Iterable[str], table: pd.DataFrame) -> dict[str, str]:
    """By its new name, the name that a column had in the file, where several had it."""
    return {str(new): old for old, new in zip(given, table.columns, strict=True) if old and str(new) != old}


def refuse_twice(names: Iterable[Any], what: str) -> None:
    """Reject a table with two columns of the same name."""
    known: set[str] = set()
    for name in map(str, names):
        require(name not in known, f'{what} has two columns named "{name}": rename one')
        known.add(name)
