"""Opening: from a request to rows. Tables in memory, tables on disk and folders of images all become the same thing.

Training, dry runs and audits open rows here, so they split, encode and check them alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veil.accounting import Ledger, Relation
from veil.errors import about, require
from veil.foundation.randomness import Seed
from veil.methods import Method, create
from veil.models import normalise, reads_text
from veil.noise import GaussianNoise
from veil.problem import Problem
from veil.releases import Allowance
from veil.request import NETWORK, SUITED, Request, Settings
from veil.tables import private
from veil.tables.charging import Charge
from veil.tables.column_uses import ColumnUse, column_uses, left_out
from veil.tables.encoding import Category, Encoding
from veil.tables.gathering import check_person, gather, most_rows, require_other_people, with_own_budgets
from veil.tables.guessing import DIFFERENT, RARE
from veil.tables.identity import table_identity
from veil.tables.images import read_image_folder, scaling_for
from veil.tables.looking import LOOKED, Remark, look_at_groups, look_at_merging, look_at_names, look_at_rows
from veil.tables.mapped import MappedPeople, first_rows, is_large, names_in, table_rows
from veil.tables.measuring import held_out_problem
from veil.tables.merging import MERGED, with_merged_groups
from veil.tables.partitions import converted_table
from veil.tables.preparing import (
    TARGET_BOUNDS,
    budget_levels,
    check_named,
    check_tables,
    classes_of,
    columns_of,
    group_names,
    make_model,
    open_schema,
    plain_encoding,
    read_off_rows,
    read_public,
    set_rows_apart,
    stated_bounds,
    with_budgets,
    with_group_values,
    with_number,
    words_of,
)
from veil.tables.reading import read_table
from veil.tables.repeated_people import named_like_people, repeated_people
from veil.tables.schema import Schema
from veil.tables.splitting import Holdout, Split, image_identities
from veil.tables.table import MOST_NAMES, Columns, check_trained, labels_of, table_problem
from veil.training.run_folder import PREPROCESSING, RunFolder

Say = Callable[[str], None]

MEASURED_ROWS = 100_000
LEVELS = "The levels of the per-row budgets: they were taken from the rows and appear on this certificate."
PREPARED = "Kinds, bounds and categories of the columns: they were taken from the first rows of the table."


@dataclass(frozen=True)
class Opening:
    """What opening needs besides the request: how rows are split, and where private preprocessing is charged.

    `tables` are training and public rows that are in memory already: nothing is read then. Where columns are read off
    rows, a category that fewer than `rare` of them have is left out. With `look`, the table is looked at first, and
    what is worth knowing about it is said.
    """

    method: Method
    settings: Settings
    split: Split
    folder: RunFolder | None = None
    charge: Charge | None = None
    say: Say | None = None
    tables: tuple[pd.DataFrame, pd.DataFrame | None] | None = None
    rare: int = RARE
    look: bool = False


Tables = tuple[pd.DataFrame, pd.DataFrame | None, Problem]


@dataclass(frozen=True)
class ModelFactory:
    """Builds the model that a request names; a class, so that other processes can receive it."""

    request: Request
    encoding: Encoding | None

    def __call__(self, problem: Problem, seed: Seed) -> nn.Module:
        """A model for the problem, at the start that follows from the seed."""
        return make_model(self.request, problem.public, self.encoding, seed)

    def suiting(
        self, method: str, options: Mapping[str, Any] | None = None, *, model: str | None = None
    ) -> ModelFactory:
        """The same for another method with its options: the model given, or the one that suits the method."""
        asked = {"method": method, "option": dict(options or {}), "model": model or SUITED.get(method, NETWORK)}
        return replace(self, request=self.request.model_copy(update=asked))


@dataclass(frozen=True)
class Opened:
    """A request with its rows: those to train on, public and held-out ones, and how columns became numbers.

    Method and settings are those asked for, or follow from private preprocessing. `allowed` is the smallest ε that a
    held-out row allows. `choosing` says which of the held-out rows a search chooses by, `share` which share of all rows
    is held out. `uses` says what became of each column, `remarks` what a look at the table found.
    """

    request: Request
    problem: Problem
    test: Problem | None
    held_out: Problem | None
    encoding: Encoding | None
    method: Method
    settings: Settings
    not_covered: tuple[str, ...] = ()
    allowed: float = math.inf
    choosing: NDArray[np.bool_] | None = None
    uses: tuple[ColumnUse, ...] = ()
    remarks: tuple[Remark, ...] = ()
    share: float = 0.0

    @property
    def factory(self) -> ModelFactory:
        """How the model asked for is built."""
        return ModelFactory(self.request, self.encoding)


def open_rows(request: Request, columns: Columns | None, by: Opening) -> Opened:
    """Read, check, split and encode the rows of a request; `columns` is None for a folder of images."""
    if columns is None:
        return _open_images(request, by)
    # Roles may stand in the schema alone: from here on they are those of the request too.
    request = request.model_copy(update={"group": columns.groups})
    large = by.tables is None and (is_large(request.data) or request.workers is not None)
    return _open_mapped(request, columns, by) if large else _open_table(request, columns, by)


def open_to_compare(
    request: Request, tables: tuple[pd.DataFrame, pd.DataFrame | None] | None = None, rare: int = RARE
) -> Opened:
    """Rows for several methods evaluated on public rows: none are held out, so no seed is needed."""
    nobody = Seed.from_int(0)
    by = Opening(create("erm"), request.settings, Split(nobody, Holdout(0.0, nobody), None), tables=tables, rare=rare)
    return open_rows(request, columns_of(request), by)


def parted(
    problem: Callable[[NDArray[np.int64]], Problem], training_rows: NDArray[np.int64], apart: NDArray[np.int64]
) -> tuple[Problem, Problem | None]:
    """Problems of the rows to train on and of those set apart; a group that has none to train on is rejected."""
    training, held = problem(training_rows), problem(apart) if len(apart) else None
    if held is not None:
        check_trained(training.public.groups, held.public.groups)
    return training, held


def _open_table(request: Request, columns: Columns, by: Opening) -> Opened:
    """A table that fits into memory, by the public, the private or the plain way of preprocessing."""
    split, method, settings = by.split, by.method, by.settings
    read_as = words_of(columns, request.private_preprocessing is not None)
    table, public = by.tables or (read_table(request.data, read_as), read_public(request, columns))
    columns = with_number(request, columns, table)
    check_tables(request, columns, table, public)
    check_person(request, columns, table)
    columns = with_merged_groups(request, columns, table)
    request, columns, table = with_own_budgets(request, columns, table)
    whole, gathered = table, None if columns.person is None else gather(request, columns, table, public)
    table = table if gathered is None else gathered.people
    names, _ = group_names(table, columns)
    groups = names if _releases_sizes(request, columns, names, method) else None
    apart = set_rows_apart(split.holdout, columns, table, split.relation, sizes_public=groups is None)
    choosing = np.zeros_like(apart)
    if split.choosing > 0:  # the same coin with a smaller share: a part of the rows held out
        fewer = replace(split.holdout, share=split.choosing)
        choosing = apart & set_rows_apart(fewer, columns, table, split.relation, sizes_public=groups is None)
    training, held = table[~apart] if gathered is None else gathered.entries(~apart), table[apart]
    # All rows are checked before any is trained on or measured: a late error would have cost ε. Where sizes are
    # declared or released, whether a group has a row to train on decides nothing.
    if apart.any() and groups is None and not _declares_sizes(columns):
        check_trained(group_names(training, columns)[0], group_names(held, columns)[0])
    training, budgets = with_budgets(request, training)
    found = None
    if request.private_preprocessing is None:
        encoding = plain_encoding(request, columns, training, by.rare)
    else:
        settings = _with_one_delta(columns, training, groups is not None, settings)
        # Names of groups are public wherever their rows are: a value without a row to train on keeps its place.
        schema = with_group_values(open_schema(request, columns, training), columns, table)
        found = _privately(request, columns, training, replace(by, settings=settings), budgets, groups, schema)
        encoding = found.encoding
        if by.say is not None:
            by.say(f"Private preprocessing finds what at least about {found.stands_out:,.0f} rows share.")
        method = private.WithPreprocessing(method, found.tokens(), found.share, found.group_sizes is not None)
    uses = column_uses(training, columns, encoding, request.ignore, released=found is not None)
    _say_columns(by.say, uses)
    _say_rows_of_people(by.say, request, columns)
    people = _people(by.say, table, columns, encoding)
    problem = table_problem(
        training,
        encoding,
        columns,
        budgets=budgets,
        group_sizes=_declared(columns, found),
        classes=classes_of(whole, columns),
    )
    if gathered is not None:
        problem = gathered.added_to(problem, ~apart, encoding, columns)
    if groups is not None:
        problem = problem.with_sizes_released()
    remarks = _looked(by, request, columns, (table, public, problem), encoding)
    return Opened(
        request,
        problem,
        _tested(public, encoding, columns, problem),
        held_out_problem(held, table, encoding, columns, problem) if split.holdout.share > 0 else None,
        encoding,
        method,
        settings,
        (*_not_covered(request, columns, encoding, by.rare), *people, *_said_of_look(by, encoding)),
        _least_budget(request, columns, held, budgets),
        choosing[apart],
        uses,
        tuple(remarks),
        split.holdout.share,
    )


def _said_of_look(by: Opening, encoding: Encoding) -> list[str]:
    """What the certificate says of a look: also that nothing was found tells about the rows."""
    return [LOOKED] if by.look and encoding.from_rows else []


def _open_mapped(request: Request, columns: Columns, by: Opening) -> Opened:
    """A folder of Parquet files that is larger than memory: converted once, then read through a memory map."""
    require(
        request.task != "regression" and request.target_bounds is None,
        "a table larger than memory takes classes alone: cut the target into ranges, or train on fewer rows",
    )
    require(
        columns.owner is None and request.private_preprocessing is None,
        "a table larger than memory supports neither owners nor private preprocessing: give a schema",
    )
    require(
        request.merge_groups_below is None and request.missing_group is None,
        "a table larger than memory keeps its groups as they are: merge and fill them in a column of their own",
    )
    head = first_rows(request.data)
    check_named(head, request)
    check_person(request, columns, head)
    encoding = plain_encoding(request, columns, head)
    public = read_public(request, columns)
    holdout = by.split.holdout
    if request.holdout is None and columns.person is None:
        # By the declared number where a row may be missing: its absence must not move others between the parts.
        sizes = columns.group_sizes()
        rows = table_rows(request.data) if sizes is None else max(1, sum(sizes.values()))
        holdout = replace(holdout, share=min(holdout.share, MEASURED_ROWS / rows))
    people = None
    if columns.person is not None:
        people = MappedPeople(columns.person, most_rows(request), request.person_rows or "mean")
    made = converted_table(request, columns, by.method, replace(by.split, holdout=holdout), encoding, people)
    if columns.person is not None and public is not None:
        require_other_people(public, columns.person, names_in(made.place))
    said = [PREPARED] if columns.schema is None else read_off_rows(columns.schema, encoding)
    one_each = head if columns.person is None else head.drop_duplicates(columns.person)
    _say_rows_of_people(by.say, request, columns)
    said += _people(by.say, one_each, columns, encoding)
    test = _tested(public, encoding, columns, made.train)
    uses = column_uses(head, columns, encoding, request.ignore)
    remarks = _looked(by, request, columns, (head, public, made.train), encoding)
    said += _said_of_look(by, encoding)
    return Opened(
        request,
        made.train,
        test,
        made.held_out,
        encoding,
        by.method,
        by.settings,
        tuple(said),
        uses=uses,
        remarks=tuple(remarks),
        share=holdout.share,
    )


def _open_images(request: Request, by: Opening) -> Opened:
    """A folder with one folder of images per class: the class is target and group. Rows are normalised one by one."""
    images, labels = read_image_folder(request.data)
    scaling = scaling_for(request.model)
    rows, classes = normalise(torch.from_numpy(images), scaling), sorted(set(labels.tolist()))
    by_place = by.split.relation is Relation.REPLACE_ONE
    identities = np.arange(len(rows), dtype=np.uint64) if by_place else image_identities(images, labels.tolist())
    apart = by.split.holdout.sparing(identities, labels)

    def problem(pixels: Tensor, of: NDArray[Any]) -> Problem:
        return Problem.from_arrays(pixels, of, of, classes=classes).with_classes_read()

    training, held = parted(
        lambda some: problem(rows[torch.from_numpy(some)], labels[some]), np.flatnonzero(~apart), np.flatnonzero(apart)
    )
    test = None
    if request.test is not None:
        test_images, test_labels = read_image_folder(request.test)
        test = problem(normalise(torch.from_numpy(test_images), scaling), test_labels)
    return Opened(request, training, test, held, None, by.method, by.settings, share=by.split.holdout.share)


def _not_covered(request: Request, columns: Columns, encoding: Encoding, rare: int) -> list[str]:
    """What was read off rows without noise."""
    found = read_off_rows(columns.schema, encoding, rare)
    if columns.number is not None and stated_bounds(request, columns) is None:
        found.append(TARGET_BOUNDS)
    if request.merge_groups_below is not None and columns.group_sizes() is None:
        found.append(MERGED)
    return [*found, LEVELS] if request.row_budgets else found


def _least_budget(request: Request, columns: Columns, held: pd.DataFrame, budgets: Mapping[str, float] | None) -> float:
    """The smallest ε that a held-out row allows: none may be charged more."""
    if held.empty or budgets is None or columns.owner is None:
        return math.inf
    if request.row_budgets is not None:
        return min(budget_levels(request.row_budgets, held).budgets.values())
    owners = set(labels_of(held, columns.owner, "owner").tolist())
    unknown = sorted(owners - set(budgets))
    require(not unknown, f'owner "{unknown[0] if unknown else ""}" has no budget: add a line for it')
    return min(budgets[owner] for owner in owners)


def _declared(columns: Columns, found: private.Preprocessing | None) -> Mapping[str, int] | None:
    if found is not None and found.group_sizes is not None:
        return found.group_sizes
    return columns.group_sizes()


def _tested(public: pd.DataFrame | None, encoding: Encoding, columns: Columns, problem: Problem) -> Problem | None:
    """The rows of the test table, if there is one."""
    with about("--test"):
        return None if public is None else table_problem(public, encoding, columns, problem.public, owners=True)


# δ where the number of rows is itself released with noise: 1 / (2 × rows) would tell it.
DELTA = 1e-6


def _with_one_delta(columns: Columns, training: pd.DataFrame, released: bool, settings: Settings) -> Settings:
    """One δ for preprocessing, training, certificate and budget, fixed before anything is released."""
    if settings.delta is not None:
        return settings
    if released:
        return settings.model_copy(update={"delta": DELTA})
    sizes = columns.group_sizes()
    # A table without a row to train on is rejected later, in a sentence.
    rows = max(1, sum(sizes.values()) if sizes else len(training))
    return settings.model_copy(update={"delta": 1.0 / (2 * rows)})


def _releases_sizes(request: Request, columns: Columns, names: Sequence[str], method: Method) -> bool:
    """Whether group sizes are released with noise: where a plan can be made for noisy ones, and none are declared."""
    if request.private_preprocessing is None or columns.owner is not None or _declares_sizes(columns):
        return False
    if request.person_rows == "each":  # a filter, which noisy sizes need, counts one row
        return False
    return private.relation_of(method, names)[1]


def _declares_sizes(columns: Columns) -> bool:
    return columns.group_sizes() is not None


def _rows_together(request: Request) -> int:
    """How many rows of a person count, each by itself."""
    return most_rows(request) if request.person_rows == "each" else 1


def _privately(
    request: Request,
    columns: Columns,
    table: pd.DataFrame,
    by: Opening,
    budgets: Mapping[str, float] | None,
    groups: list[str] | None,
    schema: Schema,
) -> private.Preprocessing:
    """Bounds and categories by noisy releases, and the sizes of the named groups where `groups` is given."""
    require(
        not reads_text(request.model),
        f"{request.model} reads one text column by fixed public rules: omit --private-preprocessing",
    )
    settings, seed, folder = by.settings, by.split.seed, by.folder
    names, group_of = group_names(table, columns)
    # Groups of declared size are charged whether or not they have a row to train on.
    names = sorted({*names, *(_declared(columns, None) or ())}) if groups is None else groups
    relation, _ = private.relation_of(by.method, names)
    delta = settings.delta
    assert delta is not None, "fixed before"
    if folder is not None:
        folder.hold_to("table", table_identity(table, columns, budgets, seed), before=PREPROCESSING)
    if by.charge is not None:
        most = max((settings.epsilon, *(budgets or {}).values()))
        by.charge.reserve_whole(most, delta, relation, by.method.name)
    return private.find_encoding(
        table,
        schema,
        Allowance(
            epsilon=settings.epsilon if budgets is None else min(budgets.values()),
            delta=delta,
            relation=relation,
            accountant=settings.accountant_of_rows(_rows_together(request)),
            noise=GaussianNoise(seed, secure=settings.secure_noise),
            open_ledger=Ledger if folder is None else partial(folder.ledger, name=PREPROCESSING),
        ),
        share=float(request.private_preprocessing or 0.0),
        groups=names,
        group_of=None if groups is None else group_of,
        rows=sum(sizes.values()) if (sizes := columns.group_sizes()) else len(table),
    )


def _say_columns(say: Say | None, uses: Collection[ColumnUse]) -> None:
    """Report which columns the model does not use, and why."""
    reasons = left_out(uses)
    if say is not None and reasons:
        listed = [f"{name} ({reason})" for name, reason in reasons.items()]
        more = f" and {len(listed) - MOST_NAMES:,} more" if len(listed) > MOST_NAMES else ""
        say(f"Not used as features: {', '.join(listed[:MOST_NAMES])}{more}.")
        if DIFFERENT in reasons.values():
            say('The words of a column that is different in almost every row are used with kind = "text" in --schema.')


def _looked(by: Opening, request: Request, columns: Columns, tables: Tables, encoding: Encoding) -> list[Remark]:
    """What a look at the table finds, said on the way; rows are looked at only where columns are read off them."""
    if not by.look:
        return []
    table, public, problem = tables
    found = look_at_names(table, columns, request.ignore)
    if encoding.from_rows:
        asked = request.task is not None or stated_bounds(request, columns) is not None
        # A "telephone" of two values says whether there is one.
        two = {c.name for c in encoding.columns if isinstance(c, Category) and len(c.values) <= 2}
        found = [remark for remark in found if remark.kind != "name or address" or not two.issuperset(remark.columns)]
        seen = look_at_rows(table, columns, encoding, request.ignore)
        found += [remark for remark in seen if not asked or remark.kind != "numeric target"]
    tested = None if public is None else group_names(public, columns)[0]
    facts = problem.public
    if columns.kept is not None:
        whole = replace(columns, kept=None)
        declared = whole.group_sizes()  # which of these have rows is a fact of private rows
        found += look_at_merging(group_names(table, whole)[0] if declared is None else declared, columns.kept)
    found += look_at_groups(dict(zip(facts.groups, facts.group_sizes, strict=True)), tested)
    if by.say is not None:
        for remark in found:
            by.say(remark.sentence)
    return found


def _say_rows_of_people(say: Say | None, request: Request, columns: Columns) -> None:
    """Report how many rows of a person count; whether somebody has more is not said, as it would be read off rows."""
    if say is not None and columns.person is not None:
        say(
            f'Of every "{columns.person}" at most {most_rows(request)} rows count, all of one group; any further '
            "ones are left out. Use --rows-per-person for another limit."
        )


def _people(say: Say | None, table: pd.DataFrame, columns: Columns, encoding: Encoding) -> list[str]:
    """Report columns by which one person seems to have several rows; the sentences for the certificate.

    Of people `table` has one row each: then it is about what several of them share, as a household. Numbers of such
    rows would be exact figures of private rows: none is shown.
    """
    known = {columns.target, *columns.groups, *([columns.person] if columns.person else [])}
    one, many = ("person", "people") if columns.person else ("row", "rows")
    all_of = "All people who share it" if columns.person else "All rows of one person together"
    if encoding.from_rows:
        found = repeated_people(table, known)
        use = "" if columns.person else " Use --person {0} to protect people."
        not_these = "those who share it together" if columns.person else "people"
        shown = [
            f'{many.title()} share "{name}" with other {many}: this run protects {many}, not {not_these}.'
            + use.format(name)
            for name in found
        ]
        missing = [f'{all_of}: {many} share "{name}", as was read off the rows.' for name in found]
    else:
        kinds = {column.name for column in encoding.columns if isinstance(column, Category)}
        not_it = "all of them together" if columns.person else "the person"
        shown = missing = [
            f'{all_of}: where {many} share "{name}", each {one} is protected, not {not_it}.'
            for name in named_like_people(table, known | kinds)
        ]
    if say is not None:
        for sentence in shown:
            say(sentence)
    return missing
