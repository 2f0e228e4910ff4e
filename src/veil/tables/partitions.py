"""Partitions: a folder of Parquet files whose rows are never in one place.

Each file is a part, converted to numbers where it is held: in this process, one after the other, or by actors of Ray on
many machines, which read the folder from storage that all of them share. What is read off all rows is what a table in
memory has read off too: classes, groups and their sizes. Everything else that leaves a part is a sum over its rows
within their bounds, which gets its noise here, once, after all parts were added up.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veil.accounting import Relation
from veil.errors import require
from veil.foundation.files import cache_folder
from veil.foundation.holders import HeldHere, Holders, held_by_actors
from veil.methods import Method
from veil.problem import EVERYBODY, Cell, Problem, PublicFacts
from veil.problem.sums import KEPT, Chain, HeldRows, Measure, View, memory
from veil.request import Request
from veil.tables.encoding import Encoding
from veil.tables.mapped import (
    Converted,
    MappedPeople,
    MappedRows,
    converted,
    file_state,
    identities_in,
    parquet_problem,
    rows_in,
)
from veil.tables.reading import parquet_files
from veil.tables.splitting import FEW_ROWS, Holdout, Split
from veil.tables.table import Columns, check_groups, check_trained
from veil.training.digests import Digester
from veil.training.identity import rows_identity


@dataclass(frozen=True)
class Survey:
    """What is read off the rows of one part: class words, group words, and how many rows each group has."""

    classes: tuple[str, ...]
    groups: tuple[str, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Declared:
    """What a schema states instead of rows: classes in their order, whether these are public, and group sizes."""

    classes: tuple[str, ...] | None = None
    public: bool = False
    sizes: Mapping[str, int] | None = None

    @classmethod
    def by(cls, columns: Columns) -> Declared:
        """What the schema of some columns states."""
        known, schema = columns.known(columns.target), columns.schema
        public = known is not None and schema is not None and not schema.from_rows
        return cls(None if known is None else tuple(known), public, columns.group_sizes())


NOTHING_DECLARED = Declared()


@dataclass(frozen=True)
class Layout:
    """What all parts have to agree on: names in their order, who is held out, and the public facts of the rest.

    `sizes` are those of groups before rows were held out, or declared; `before` says how many rows other parts have
    before each. `room` is the share of its machine's memory that a part may take.
    """

    classes: tuple[str, ...]
    groups: tuple[str, ...]
    sizes: tuple[int, ...]
    before: tuple[int, ...]
    holdout: Holdout | None
    relation: Relation | None
    room: float
    declared: Declared
    public: PublicFacts | None = None


@dataclass(frozen=True)
class PartMaker:
    """Opens one file wherever it is called; a file that was changed since is rejected."""

    number: int
    file: Path
    state: tuple[str, int, int]
    encoding: Encoding
    target: str
    groups: tuple[str, ...]

    def __call__(self) -> PartOfTable:
        require(self.file.exists(), f"{self.file} cannot be read here: all workers need the folder at the same path")
        require(
            file_state(self.file) == self.state,
            f"{self.file} was changed while it was in use: run the command again, with a new --out",
        )
        place = converted([self.file], self.encoding, self.target, self.groups, cache_folder(), None)
        return PartOfTable(self, place)


class PartOfTable:
    """The rows of one file: what is read off them, who is held out, and sums over those to train on."""

    def __init__(self, made_by: PartMaker, place: Path) -> None:
        self._by, self._place = made_by, place
        self._words = json.loads((place / "facts.json").read_text(encoding="utf-8"))
        self._rows: tuple[Layout, HeldRows] | None = None

    def survey(self) -> Survey:
        """Words and counts of this part."""
        words = self._words
        counts = np.bincount(self._groups, minlength=len(words["groups"]))
        return Survey(tuple(words["classes"]), tuple(words["groups"]), tuple(counts.tolist()))

    def held_out(self, layout: Layout) -> NDArray[np.bool_]:
        """Which rows are held out: by their values, or by their place in the whole table."""
        holdout, groups = layout.holdout, self._groups
        if holdout is None or holdout.share == 0:
            return np.zeros(len(groups), dtype=bool)
        sizes = dict(zip(layout.groups, layout.sizes, strict=True))
        return holdout.sparing(self._identities(layout), np.array(self._words["groups"], dtype=object)[groups], sizes)

    def problem(self, layout: Layout, held_out: bool = False) -> Problem:
        """The rows to train on, or those held out, which are read into memory."""
        apart = self.held_out(layout)
        which, width = np.flatnonzero(apart == held_out), self._by.encoding.width()
        codes = _places(self._words["classes"], layout.classes).astype(np.int16)
        labels = torch.from_numpy(codes[np.load(self._place / "targets.npy")][which])
        cells = _places(self._words["groups"], layout.groups)[self._groups][which]
        facts = layout.public or _facts(layout, np.zeros(len(layout.groups), dtype=np.int64), width)
        source, everybody = MappedRows(self._place / "rows.npy", which), np.ones(len(which), dtype=bool)
        problem = Problem(torch.empty((0, width)), labels, cells, facts, everybody, source=source)
        if held_out:
            return replace(problem, inputs=source.take(np.arange(len(which))), targets=labels.long(), source=None)
        return problem

    def total(self, layout: Layout, chain: Chain, measure: Measure) -> Tensor:
        """A sum over the rows to train on. What was seen of them is kept for the next one if there is room for all."""
        if self._rows is None or self._rows[0] != layout:
            self._rows = layout, HeldRows(self.problem(layout), KEPT * memory() * layout.room)
        rows = self._rows[1]
        found = rows.total(chain, measure)
        if not rows.whole:
            self._rows = None
        return found

    @property
    def _groups(self) -> NDArray[np.int16]:
        return np.asarray(np.load(self._place / "groups.npy"))

    def _identities(self, layout: Layout) -> NDArray[np.uint64]:
        if layout.relation is Relation.REPLACE_ONE:
            return np.arange(len(self._groups), dtype=np.uint64) + np.uint64(layout.before[self._by.number])
        return identities_in([self._by.file], self._place)


@dataclass(frozen=True)
class Summed:
    """Asks for the sum of a measure over the rows of a part."""

    measure: Measure

    def __call__(self, part: PartOfTable, given: tuple[Layout, Chain]) -> Tensor:
        layout, chain = given
        return part.total(layout, chain, self.measure)


@dataclass(frozen=True)
class PartitionedRows:
    """Sums over the rows of all parts, added up in the order of the files whoever holds them."""

    holders: Holders
    given: tuple[Layout, Chain]

    def through(self, view: View) -> PartitionedRows:
        """The same rows, seen through one more view."""
        layout, chain = self.given
        return PartitionedRows(self.holders, (layout, chain.then(view)))

    def total(self, measure: Measure) -> Tensor:
        """The sum of a measure over all rows: private until noise is added."""
        found: Tensor = reduce(add, self.holders.ask(Summed(measure), self.given))
        return found

    def identity(self, key: bytes) -> dict[str, str]:
        """Keyed digests of all parts, by what of them it is."""
        digest, found = Digester(key), self.holders.ask(_identified, (self.given[0], key))
        return {name: digest.of([part[name] for part in found]) for name in found[0]}

    def close(self) -> None:
        """Let go of all rows."""
        self.holders.close()


def converted_table(
    request: Request,
    columns: Columns,
    method: Method,
    split: Split,
    encoding: Encoding,
    people: MappedPeople | None,
) -> Converted:
    """All rows in one file of numbers; for methods that take nothing but sums over rows, each file by itself."""
    folder, roles = request.data, (encoding, columns.target, columns.groups)
    sums = getattr(method, "sums_rows", False)
    if request.workers is not None:
        require(sums, f"--workers is for methods that need only sums over rows: auto and group-gd, not {method.name}")
        require(people is None, "rows of a person may lie in several files: omit --workers")
        require(not request.show_private, "--show-private reads single rows, which --workers keeps apart: omit one")
    if request.workers is not None or (sums and people is None and not request.show_private):
        stated = Declared.by(columns)
        return partitioned_problem(folder, *roles, request.workers, split.holdout, split.relation, stated)
    return parquet_problem(folder, *roles, cache_folder(), split.holdout, split.relation, people)


def partitioned_problem(
    folder: Path,
    encoding: Encoding,
    target: str,
    groups: Sequence[str],
    workers: int | None = None,
    holdout: Holdout | None = None,
    relation: Relation | None = None,
    declared: Declared = NOTHING_DECLARED,
) -> Converted:
    """A problem over the Parquet files of a folder, each of which is held apart: in this process, or by Ray's actors.

    Args:
        folder: The folder; with several machines, on storage that all of them reach by the same path.
        encoding: How columns become numbers, from a schema or from public rows.
        target: The column to predict.
        groups: Columns that make the groups.
        workers: How many actors hold the files; None keeps them in this process, one after the other.
        holdout: Which rows are kept out of training.
        relation: The neighbouring relation that the held-out rows follow.
        declared: Classes and group sizes that a schema states.

    Returns:
        The rows to train on, of which sums alone can be had, and the held-out rows in memory.

    Raises:
        InputError: A file cannot be read, a column is missing, or Ray is not installed.
    """
    files = [path.resolve() for path in parquet_files(folder) if rows_in(path) > 0]
    require(len(files) > 0, f"{folder} has no rows")
    makers = [PartMaker(i, f, file_state(f), encoding, target, tuple(groups)) for i, f in enumerate(files)]
    holders: Holders = HeldHere(makers) if workers is None else held_by_actors(makers, workers)
    try:
        surveys: list[Survey] = holders.ask(_surveyed)
        layout = _layout(surveys, holdout, relation, holders.room, declared)
        check_groups(len(layout.groups), sum(layout.sizes), groups)
        problems: list[tuple[NDArray[np.int64], Problem]] = holders.ask(_split, layout)
        counts = np.sum([count for count, _ in problems], axis=0)
        public = _facts(layout, counts, encoding.width())
        held = _joined([problem for _, problem in problems], layout, encoding.width())
        if declared.sizes is None:
            check_trained([name for name, count in zip(layout.groups, counts, strict=True) if count], layout.groups)
        rows = PartitionedRows(holders, (replace(layout, public=public), Chain()))
        nobody = np.zeros(0, dtype=np.int64)
        none = (
            torch.empty((0, encoding.width())),
            torch.empty(0, dtype=torch.int64),
            nobody,
            public,
            nobody.astype(bool),
        )
        return Converted(Problem(*none, elsewhere=rows), held, cache_folder())
    except BaseException:
        holders.close()
        raise


def _layout(
    surveys: Sequence[Survey], holdout: Holdout | None, relation: Relation | None, room: float, declared: Declared
) -> Layout:
    read = {word for survey in surveys for word in survey.classes}
    classes = tuple(sorted(read)) if declared.classes is None else declared.classes
    require(
        read <= set(classes),
        f"the target has a value that is not one of the {len(classes)} known ones: correct it, or add it to the schema",
    )
    require(len(classes) >= 2, "the target has a single value: choose a target with at least two")
    sizes: Counter[str] = Counter()
    for survey in surveys:
        sizes.update(dict(zip(survey.groups, survey.sizes, strict=True)))
    groups = tuple(sorted({name for name, size in sizes.items() if size > 0} | set(declared.sizes or ())))
    known: Mapping[str, int] = sizes if declared.sizes is None else declared.sizes
    missing = [name for name in groups if name not in known]
    require(not missing, f'no size is declared for group "{missing[0] if missing else ""}"')
    before = np.cumsum([0, *(sum(survey.sizes) for survey in surveys)])[:-1].tolist()
    public = tuple(known[name] for name in groups)
    return Layout(classes, groups, public, tuple(before), holdout, relation, room, declared)


def _facts(layout: Layout, counts: NDArray[np.int64], width: int) -> PublicFacts:
    """Public facts of rows to train on: of so many in each group, or as many as were declared."""
    stated = layout.declared.sizes is not None
    cells = tuple(Cell(g, 0, int(count)) for g, count in enumerate(layout.sizes if stated else counts))
    return PublicFacts(
        layout.groups,
        (EVERYBODY,),
        cells,
        (width,),
        classes=layout.classes,
        sizes="declared" if stated else "counted",
        classes_declared=layout.declared.public,
    )


def _joined(parts: Sequence[Problem], layout: Layout, width: int) -> Problem | None:
    """The held-out rows of all parts as one problem in memory; None where there are none and everybody may know that.

    Of counted groups, those that have some. Where sizes are declared, which groups are among them is not public.
    """
    cells = np.concatenate([part.cell_of for part in parts])
    inputs, targets = (torch.cat([getattr(part, name) for part in parts]) for name in ("inputs", "targets"))
    there = np.ones(len(cells), dtype=bool)
    few = layout.declared.sizes is None or sum(layout.sizes) < FEW_ROWS
    if len(cells) == 0 and (few or layout.holdout is None or layout.holdout.share == 0):
        return None
    counts = np.bincount(cells, minlength=len(layout.groups))
    facts, some = _facts(layout, counts, width), np.flatnonzero(counts)
    if layout.declared.sizes is None:
        groups = tuple(layout.groups[group] for group in some)
        own = tuple(Cell(cell, 0, int(counts[group])) for cell, group in enumerate(some))
        return Problem(inputs, targets, np.searchsorted(some, cells), replace(facts, groups=groups, cells=own), there)
    if len(cells) == 0:  # a row that is not there
        inputs, targets, cells, there = (
            torch.zeros(1, width),
            targets.new_zeros(1),
            np.zeros(1, np.int64),
            ~np.ones(1, bool),
        )
    return Problem(inputs, targets, cells, facts, there)


def _surveyed(part: PartOfTable, _: object) -> Survey:
    return part.survey()


def _split(part: PartOfTable, layout: Layout) -> tuple[NDArray[np.int64], Problem]:
    """How many rows of each group a part trains on, and those that it holds out."""
    counts = np.bincount(part.problem(layout).cell_of, minlength=len(layout.groups))
    return counts, part.problem(layout, held_out=True)


def _identified(part: PartOfTable, given: tuple[Layout, bytes]) -> dict[str, str]:
    layout, key = given
    return rows_identity(part.problem(layout), Digester(key))


def _places(words: Sequence[str], listed: Sequence[str]) -> NDArray[np.int64]:
    """For each of a part's words, its place among those of all parts; −1 where no row has it."""
    place_of = {word: place for place, word in enumerate(listed)}
    return np.array([place_of.get(word, -1) for word in words], dtype=np.int64)
