"""Mapped rows: tables larger than memory, converted once to a file of numbers and read by row through a memory map.

A folder of Parquet files is read piece by piece, each piece is encoded, and the numbers are appended to a file; after
that a batch is a gather from the map. The converted rows are as private as the table: the folder they are kept in is
readable by its owner alone.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
import pyarrow
import torch
from numpy.typing import NDArray
from torch import Tensor

from veil.accounting import Relation
from veil.errors import InputError, require
from veil.problem import EVERYBODY, Cell, Problem, PublicFacts
from veil.problem.people import Counting, Several, count_known, name_hashes, names_of
from veil.problem.rows import made_up_like, usable
from veil.tables.encoding import Encoding, words
from veil.tables.reading import naming, parquet_files, refuse_twice
from veil.tables.splitting import Holdout, numbered, row_hashes
from veil.tables.table import check_groups, check_trained, require_columns

ROWS_AT_ONCE = 65_536
LARGE = 2_000_000
IN_ONE_PIECE = 1024


class MappedRows:
    """Rows of a .npy file, read through a memory map: the system keeps as much of the file in memory as is free.

    `chosen` are the rows of the file that count here, in their order; all where it is None.
    """

    def __init__(self, path: Path, chosen: NDArray[np.int64] | None = None) -> None:
        self.path, self.chosen = path, chosen
        self._open()

    def _open(self) -> None:
        self._array: np.memmap[Any, np.dtype[Any]] = np.load(self.path, mmap_mode="r")
        self._array._mmap.madvise(mmap.MADV_RANDOM)

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, and numbers per row."""
        rows, *others = self._array.shape
        return (rows if self.chosen is None else len(self.chosen), *others)

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        """The numbers of some rows. A long piece is read from the file: the map is set up for single rows."""
        rows = rows if self.chosen is None else self.chosen[rows]
        if len(rows) >= IN_ONE_PIECE and (np.diff(rows) > 0).all() and rows[-1] - rows[0] < 2 * len(rows):
            width, span = self._array[:1].size, int(rows[-1] - rows[0]) + 1
            start = self._array.offset + int(rows[0]) * width * self._array.itemsize
            piece = np.fromfile(self.path, self._array.dtype, span * width, offset=start)
            piece = piece.reshape(span, *self._array.shape[1:])
            return usable(torch.from_numpy(piece if span == len(rows) else piece[rows - rows[0]]))
        return usable(torch.from_numpy(np.asarray(self._array[rows])))

    def made_up(self, count: int, generator: torch.Generator) -> Tensor:
        """Random rows of the same shape and kind."""
        return made_up_like(usable(np.zeros((1, *self._array.shape[1:]), self._array.dtype)), count, generator)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "chosen": self.chosen}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path, self.chosen = state["path"], state["chosen"]
        self._open()


@dataclass(frozen=True)
class MappedPeople:
    """The column that names people, how many rows of each count at most, and how."""

    column: str
    most: int
    person_rows: Counting = "mean"


@dataclass(frozen=True)
class Converted:
    """A converted table: training rows as a problem, and the held-out rows (never trained on) where there are some.

    `place` is the folder that holds what it was converted to.
    """

    train: Problem
    held_out: Problem | None
    place: Path


def is_large(path: Path) -> bool:
    """Whether a path is a folder of Parquet files with more rows than are comfortable in memory."""
    return path.is_dir() and table_rows(path) > LARGE


def table_rows(folder: Path) -> int:
    """How many rows the files of a folder have, by their headings."""
    return sum(rows_in(file) for file in parquet_files(folder))


def rows_in(file: Path) -> int:
    """How many rows a Parquet file has, by its heading."""
    import pyarrow.parquet as pq

    with naming(file):
        return int(pq.read_metadata(file).num_rows)


def first_rows(folder: Path) -> pd.DataFrame:
    """The first piece of a folder of Parquet files."""
    import pyarrow.parquet as pq

    require(folder.is_dir(), f"{folder} is a file: give a folder of Parquet files, or omit --workers")
    first = parquet_files(folder)[0]
    with naming(first), pq.ParquetFile(first) as source:
        refuse_twice(source.schema_arrow.names, str(first))
        table: pd.DataFrame = next(source.iter_batches(ROWS_AT_ONCE)).to_pandas()
    return table


def parquet_problem(
    folder: Path,
    encoding: Encoding,
    target: str,
    groups: Sequence[str],
    cache: Path,
    holdout: Holdout | None = None,
    relation: Relation | None = None,
    people: MappedPeople | None = None,
) -> Converted:
    """Convert a folder of Parquet files, unless that was done before, and open what came of it."""
    files = parquet_files(folder)
    place = converted(files, encoding, target, groups, cache, None if people is None else people.column)
    facts = json.loads((place / "facts.json").read_text(encoding="utf-8"))
    if people is not None:
        return _of_people(place, facts, encoding.width(), people, holdout, groups)
    apart = _held_out(files, place, holdout, relation)
    train = _opened(place, facts, encoding.width(), None if apart is None else np.flatnonzero(~apart))
    check_groups(len(facts["groups"]), len(train), groups)
    if apart is None or not apart.any():
        return Converted(train, None, place)
    held = _opened(place, facts, encoding.width(), np.flatnonzero(apart), load=True)
    check_trained(train.public.groups, held.public.groups)
    return Converted(train, held, place)


def converted(
    files: Sequence[Path], encoding: Encoding, target: str, groups: Sequence[str], cache: Path, person: str | None
) -> Path:
    """The folder that holds the numbers of some files, which are converted unless that was done before."""
    state = [file_state(path) for path in files]
    key = blake2b(repr((state, encoding, target, tuple(groups), person)).encode(), digest_size=12).hexdigest()
    place = cache / f"table-{key}"
    if not (place / "facts.json").exists():
        # In a folder of its own until it is whole: another process may be at it too.
        part = place.with_name(f"{place.name}.{os.getpid()}.part")
        _convert(files, encoding, target, groups, part, person)
        try:
            part.rename(place)
        except OSError:  # the other one was first, with the same numbers
            shutil.rmtree(part)
    return place


def file_state(path: Path) -> tuple[str, int, int]:
    """What a file is known by, short of reading it: where it is, size and when it was written.

    Files of one name in several folders may be of one size and age: numbers kept by name would be those of another.
    """
    return str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns


def _of_people(
    place: Path, facts: dict[str, Any], width: int, people: MappedPeople, holdout: Holdout | None, groups: Sequence[str]
) -> Converted:
    """The rows that count of each person; whether somebody is held out is decided by their name."""
    hashes = name_hashes(names_in(place))
    of = np.load(place / "groups.npy")
    counted = count_known(np.load(place / "people.npy"), hashes, of, people.most)
    drawn = counted.drawn
    kept = np.ones(len(drawn), dtype=bool)
    if holdout is not None and holdout.share > 0:
        kept = ~holdout.sparing(hashes, of[drawn])
    some = counted.of(kept)
    if people.person_rows == "each":
        train = _opened(place, facts, width, some.rows).with_each_row(some.person_of, some.most)
    else:
        several = None
        if some.most > 1:
            targets = _labels(place, facts)[torch.from_numpy(some.rows)]
            several = Several(torch.empty((0, width)), targets, some.first, MappedRows(place / "rows.npy", some.rows))
        train = _opened(place, facts, width, some.drawn).with_people(several, some.most)
    check_groups(len(facts["groups"]), len(train), groups)
    if kept.all():
        return Converted(train, None, place)
    held = _opened(place, facts, width, drawn[~kept], load=True)
    check_trained(train.public.groups, held.public.groups)
    return Converted(train, held, place)


def names_in(place: Path) -> NDArray[np.object_]:
    """The people of a converted table, in the order of their first rows."""
    import pyarrow.parquet as pq

    return np.asarray(pq.read_table(place / "people.parquet")["name"].to_numpy(), dtype=object)


def _convert(
    files: Sequence[Path], encoding: Encoding, target: str, groups: Sequence[str], place: Path, person: str | None
) -> None:
    """One pass: numbers, class codes and group codes, each appended to its file; and the number of each person."""
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o700)
    classes, names, people = _Codes(target), _Codes(", ".join(groups)), _People(person)
    position = 0
    wanted = [*(column.name for column in encoding.columns), target, *groups, *([person] if person else [])]
    with ExitStack() as stack:
        writer = _Writer(place, encoding.width(), stack)
        for batch in pieces(files, wanted):
            piece = batch.to_pandas()
            piece.index = pd.RangeIndex(position, position + len(piece))
            position += len(piece)
            numbers = encoding.encode(piece).astype(np.float32, copy=False)
            labels = classes.codes([piece[target]])
            of = names.codes([piece[name] for name in groups]) if groups else np.zeros(len(piece), np.int16)
            writer.append(numbers, labels, of)
            if person is not None:  # a gap among whole numbers makes fractions of a piece, and must not of a name
                people.add(batch.column(person).to_pandas(types_mapper=whole_with_gaps), piece.index)
        writer.finish()
    if person is not None:
        people.save(place)
    pyarrow.default_memory_pool().release_unused()
    facts = {"classes": classes.words, "groups": names.words if groups else [EVERYBODY]}
    (place / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def _held_out(
    files: Sequence[Path], place: Path, holdout: Holdout | None, relation: Relation | None
) -> NDArray[np.bool_] | None:
    """Which rows are held out. What rows are known by is worked out once, from all their columns, and kept."""
    if holdout is None or holdout.share == 0:
        return None
    groups = np.load(place / "groups.npy")
    if relation is Relation.REPLACE_ONE:
        return holdout.sparing(np.arange(len(groups), dtype=np.uint64), groups)
    return holdout.sparing(identities_in(files, place), groups)


def identities_in(files: Sequence[Path], place: Path) -> NDArray[np.uint64]:
    """What the rows of some files are known by, kept in the folder that they were converted to."""
    kept = place / "identities.npy"
    if not kept.exists():
        found = [row_hashes(batch.to_pandas(types_mapper=whole_with_gaps)) for batch in pieces(files)]
        content, read = (np.concatenate(lanes) for lanes in zip(*found, strict=True))
        part = kept.with_suffix(f".{os.getpid()}.npy")
        np.save(part, numbered(content, read))
        part.replace(kept)
    return np.asarray(np.load(kept))


def whole_with_gaps(kind: pyarrow.DataType) -> Any:
    """Whole numbers stay whole in a piece that has gaps: which rows share a piece depends on all rows."""
    if pyarrow.types.is_unsigned_integer(kind):
        return pd.UInt64Dtype()
    return pd.Int64Dtype() if pyarrow.types.is_signed_integer(kind) else None


def pieces(files: Sequence[Path], columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Some columns, or all, of a number of rows at a time."""
    import pyarrow.parquet as pq

    wanted = None if columns is None else list(dict.fromkeys(columns))
    for path in files:
        with naming(path), pq.ParquetFile(path, memory_map=True) as source:
            refuse_twice(source.schema_arrow.names, str(path))
            require_columns(pd.DataFrame(columns=source.schema_arrow.names), wanted or [])
            yield from source.iter_batches(ROWS_AT_ONCE, columns=wanted)


class _People:
    """Names as numbers in the order in which they were first seen, row by row.

    Whole numbers are put in order at the end, all at once: of a million people that is several times as fast.
    """

    def __init__(self, column: str | None) -> None:
        self._column, self._known = column, dict[str, int]()
        self._whole, self._codes = list[NDArray[Any]](), list[NDArray[np.int32]]()

    def add(self, names: pd.Series, rows: pd.Index) -> None:
        """Some more rows."""
        missing = names.isna().to_numpy()
        if missing.any():
            row = rows[int(missing.argmax())]
            raise InputError(f'column "{self._column}" is missing in row {row}: fill it in or remove the row')
        if pd.api.types.is_integer_dtype(names.dtype) and not self._codes:
            kind = np.uint64 if pd.api.types.is_unsigned_integer_dtype(names.dtype) else np.int64
            if not self._whole or self._whole[0].dtype == kind:
                self._whole.append(names.to_numpy(dtype=kind))
                return
        self._settle()
        self._codes.append(self._numbered(names, rows))

    def _numbered(self, names: Any, rows: pd.Index | None = None) -> NDArray[np.int32]:
        codes, distinct = pd.factorize(names_of(names))
        if rows is not None and (codes < 0).any():  # a word of blanks is none
            row = rows[int((codes < 0).argmax())]
            raise InputError(f'column "{self._column}" is missing in row {row}: fill it in or remove the row')
        numbers = [self._known.setdefault(name, len(self._known)) for name in distinct.tolist()]
        return np.array(numbers, dtype=np.int32)[codes]

    def _settle(self) -> None:
        """What was read as whole numbers, one name at a time: other files have names of another kind."""
        self._codes += [self._numbered(values) for values in self._whole]
        self._whole.clear()

    def save(self, place: Path) -> None:
        """The number of each row's person, and the name of each person."""
        import pyarrow.parquet as pq

        names: Any = list(self._known)
        if self._whole:
            distinct, first, inverse = np.unique(np.concatenate(self._whole), return_index=True, return_inverse=True)
            self._whole.clear()
            order = np.argsort(first)
            place_of = np.empty(len(order), dtype=np.int32)
            place_of[order] = np.arange(len(order))
            self._codes, names = [place_of[inverse.ravel()]], names_of(distinct[order])
        np.save(place / "people.npy", np.concatenate(self._codes))
        pq.write_table(pyarrow.table({"name": pyarrow.array(names, type=pyarrow.string())}), place / "people.parquet")


class _Codes:
    """Words as numbers in the order in which they were first seen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.words: list[str] = []
        self._known: dict[str, int] = {}

    def codes(self, columns: Sequence[pd.Series]) -> NDArray[np.int16]:
        """A code per row; several columns are crossed."""
        found = [pd.factorize(column, use_na_sentinel=True) for column in columns]
        for codes, _ in found:
            if (codes < 0).any():
                row = columns[0].index[int((codes < 0).argmax())]
                raise InputError(f'column "{self.name}" is missing in row {row}: fill it in or remove the row')
        texts = [words(pd.Series(values)) for _, values in found]
        if len(found) == 1:
            crossed, inverse = texts[0], found[0][0]
        else:
            distinct, inverse = np.unique(np.stack([codes for codes, _ in found], axis=1), axis=0, return_inverse=True)
            crossed = [" × ".join(texts[i][code] for i, code in enumerate(line)) for line in distinct]
        for word in crossed:
            if word not in self._known:
                require(len(self._known) < 10_000, f'column "{self.name}" has more than 10,000 different values')
                self._known[word] = len(self.words)
                self.words.append(word)
        return np.array([self._known[word] for word in crossed], dtype=np.int16)[inverse.ravel()]


class _Writer:
    """Appends to three raw files and gives them a .npy heading at the end."""

    def __init__(self, place: Path, width: int, stack: ExitStack) -> None:
        self._width = width
        self._rows = 0
        self._kinds: tuple[tuple[str, Any], ...] = (("rows", np.float32), ("targets", np.int16), ("groups", np.int16))
        self._paths = [place / f"{name}.npy" for name, _ in self._kinds]
        self._files: list[BinaryIO] = [stack.enter_context(path.open("wb")) for path in self._paths]
        for file in self._files:
            file.write(b"\0" * 128)

    def append(self, *arrays: NDArray[Any]) -> None:
        self._rows += len(arrays[0])
        for file, array in zip(self._files, arrays, strict=True):
            file.write(np.ascontiguousarray(array).tobytes())

    def finish(self) -> None:
        for index, (file, (_, dtype)) in enumerate(zip(self._files, self._kinds, strict=True)):
            shape = (self._rows, self._width) if index == 0 else (self._rows,)
            text = f"{{'descr': '{np.dtype(dtype).str}', 'fortran_order': False, 'shape': {shape}, }}"
            file.seek(0)
            file.write(b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + text.ljust(117).encode() + b"\n")


def _opened(
    place: Path, facts: dict[str, Any], width: int, which: NDArray[np.int64] | None, load: bool = False
) -> Problem:
    """Rows on disk, or those of some numbers, as a problem; classes and groups are in the order of their words."""
    require(len(facts["classes"]) >= 2, "the target has a single value: choose a target with at least two")
    labels, of = _labels(place, facts), np.load(place / "groups.npy")
    if which is not None:
        labels, of = labels[torch.from_numpy(which)], of[which]
    group_order = _ranks(facts["groups"])
    codes = np.bincount(of, minlength=len(group_order))
    sizes = np.empty(len(group_order), dtype=np.int64)
    sizes[group_order] = codes
    present = np.flatnonzero(sizes)
    cell_of_group = np.full(len(sizes), -1, dtype=np.int64)
    cell_of_group[present] = np.arange(len(present))
    public = PublicFacts(
        groups=tuple(np.array(sorted(facts["groups"]))[present].tolist()),
        owners=(EVERYBODY,),
        cells=tuple(Cell(cell, 0, int(sizes[group])) for cell, group in enumerate(present)),
        input_shape=(width,),
        classes=tuple(sorted(facts["classes"])),
    )
    source = MappedRows(place / "rows.npy", which)
    cells = cell_of_group[group_order][of]
    everybody = np.ones(len(of), dtype=bool)
    if load:
        rows = source.take(np.arange(len(of)))
        return Problem(rows, labels.long(), cells, public, everybody)
    return Problem(torch.empty((0, width)), labels, cells, public, everybody, source=source)


def _labels(place: Path, facts: dict[str, Any]) -> Tensor:
    """The class of every row, by the order of their words."""
    return torch.from_numpy(_ranks(facts["classes"]).astype(np.int16)[np.load(place / "targets.npy")])


def _ranks(listed: Sequence[str]) -> NDArray[np.int64]:
    """For each word, its place among the sorted words."""
    ranks = np.empty(len(listed), dtype=np.int64)
    ranks[np.argsort(np.array(listed, dtype=object).astype(str), kind="stable")] = np.arange(len(listed))
    return ranks
