"""Preparing: from a request to checked tables, roles of columns, an encoding and a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import nn

from veil.accounting import Relation
from veil.errors import InputError, about, require
from veil.foundation.randomness import Seed
from veil.foundation.words import numbers as numbers_typed
from veil.methods import create
from veil.methods.auto import crossed_for, knots_for
from veil.methods.convex.setting import LinearMethod
from veil.models import SEQUENCE_MODELS, build_model, load_public_weights, reads_text, train_only
from veil.problem import PublicFacts, cross
from veil.problem.budgets import Levels, quantise, read_budgets
from veil.problem.people import name_hashes, names_of
from veil.request import Request
from veil.tables.encoding import PLAIN, Codes, Encoding, Numeric, day_comes_first, numbers
from veil.tables.guessing import RARE, Kind, fit_encoding, form_of, guess_kind
from veil.tables.number_forms import Form
from veil.tables.reading import Words, read_table
from veil.tables.schema import PRIVATE_NOTE, Schema, SchemaColumn, read_schema
from veil.tables.splitting import Holdout, identities_for
from veil.tables.table import (
    Columns,
    check_classes,
    check_groups,
    group_labels,
    labels_of,
    labels_of_group,
    nearest_name,
    require_columns,
)
from veil.tables.text import vocabulary_of

HOLDOUT = 0.2
# A target of more different numbers than this is a quantity, unless someone says otherwise.
MOST_CODES = 20
TARGET_BOUNDS = "Bounds of the target: they were taken from the rows."
DRAFTED = (
    "Kinds, bounds and categories of the columns: they were taken from the rows into a draft of the schema. Where the "
    f'schema still says "{PRIVATE_NOTE}", put what everybody may know and delete the mark: then they are covered.'
)


def columns_of(request: Request) -> Columns:
    """Roles from the command line, else from the schema."""
    require(
        request.row_budgets is None or (request.owner is None and request.budgets is None),
        "--row-budgets gives every row its own ε: omit --owner and --budgets",
    )
    # A level of per-row budgets is an owner: the column that has them says to which level a row belongs.
    named = request.owner or request.row_budgets
    schema = None if request.schema_file is None else read_schema(request.schema_file)
    if schema is not None:
        schema = schema.with_roles(request.target, list(request.group), named, set(request.ignore), request.person)
    target = request.target or (next(iter(schema.names("target")), None) if schema else None)
    require(target is not None, "no target: give --target, or a schema with a column of kind target")
    require(target not in request.ignore, f'"{target}" is the target: --ignore cannot leave it out')
    groups = request.group or (tuple(schema.names("group")) if schema else ())
    require(len(groups) > 0, "no group: give --group, or a schema with a column of kind group")
    owner = named or (next(iter(schema.names("owner")), None) if schema else None)
    require(request.budgets is None or owner is not None, "--budgets needs --owner, the column that names the owner")
    person = request.person or (next(iter(schema.names("person")), None) if schema else None)
    return Columns(str(target), groups, owner, schema, person, missing_group=request.missing_group or None)


def with_number(request: Request, columns: Columns, table: pd.DataFrame) -> Columns:
    """The same where the target is a class; else with the target as a number within its bounds.

    Bounds that nobody states are read off the rows, and the certificate says so (`TARGET_BOUNDS`).
    """
    name, stated = columns.target, stated_bounds(request, columns)
    if request.task == "classification":
        require(request.target_bounds is None, "--target-bounds is for numbers: leave it out, or --task classification")
        return columns
    require_columns(table, (name,))
    asked, form = request.task == "regression" or stated is not None, _target_form(columns, table[name])
    if not asked and (columns.known(name) is not None or not _is_quantity(table[name], form)):
        return columns
    if stated is None:
        require(
            request.private_preprocessing is None,
            "the bounds of the target are not released by --private-preprocessing: give --target-bounds LOW,HIGH",
        )
        values = numbers(table[name], name, written=form)
        require(bool(np.isfinite(values).any()), f'target "{name}" has no number in it')
        stated = (float(np.nanmin(values)), float(np.nanmax(values)))
        require(stated[0] < stated[1], "the target has a single value: there is nothing to learn")
    return replace(columns, number=Numeric(name, *stated, "refuse", (), False, *form))


def _target_form(columns: Columns, column: pd.Series) -> Form:
    """How the numbers of a target are written: as the schema says, else as its rows do."""
    if columns.schema is not None:
        return next((facts.written for facts in columns.schema.columns if facts.name == columns.target), PLAIN)
    return PLAIN if pd.api.types.is_numeric_dtype(column) else form_of(column.dropna().astype("string").str.strip())


def stated_bounds(request: Request, columns: Columns) -> tuple[float, float] | None:
    """The smallest and the largest possible target, as someone who may know them said."""
    if request.target_bounds is None:
        return None if columns.schema is None else columns.schema.target_bounds()
    given = numbers_typed(request.target_bounds, "--target-bounds")
    two = len(given) == 2 and bool(np.isfinite(given).all()) and given[0] < given[1]
    require(two, f"--target-bounds is {request.target_bounds}: give two numbers, the smaller one first: 0,100")
    return given[0], given[1]


def _is_quantity(column: pd.Series, form: Form) -> bool:
    """Whether a target looks like a number rather than a code of a class."""
    kinds = pd.api.types
    numeric = kinds.is_numeric_dtype(column) and not kinds.is_bool_dtype(column)
    return (numeric or form != PLAIN) and column.nunique() > MOST_CODES


def check_tables(request: Request, columns: Columns, table: pd.DataFrame, public: pd.DataFrame | None) -> None:
    """Both tables have the columns that are needed, and nothing is missing in them."""
    check_columns(table, columns)
    check_named(table, request)
    check_groups(len(group_names(table, columns)[0]), len(table), columns.groups)
    if public is not None:
        with about("--test"):
            check_columns(public, columns)


def words_of(columns: Columns, private: bool) -> Words:
    """How words are read: each by itself where what a row becomes must owe nothing to the others.

    That is so with a schema and with `private` preprocessing; people are always known by their names as they stand.
    """
    stated = columns.schema.columns if columns.schema is not None else ()
    as_they_stand = {facts.name for facts in stated if facts.written != PLAIN or facts.kind == "text"}
    if columns.person is not None:
        as_they_stand.add(columns.person)
    known = {facts.name: facts.values for facts in stated if facts.values}
    return Words(tuple(sorted(as_they_stand)), known, all_alone=private or columns.schema is not None)


def read_public(request: Request, columns: Columns) -> pd.DataFrame | None:
    """The test table, if there is one: its rows are public, so it cannot be the training table."""
    if request.test is None:
        return None
    require(request.holdout is None, "give either --test or --holdout, not both")
    return read_apart(request.test, request.data, words_of(columns, request.private_preprocessing is not None))


def read_apart(test: Path, training: Path, words: Words | None = None) -> pd.DataFrame:
    """A table of public rows, which is not the training table."""
    require(
        test.resolve() != training.resolve(),
        "--test names the training table itself, whose rows are private: give a table of public rows",
    )
    return read_table(test, words)


def with_budgets(request: Request, rows: pd.DataFrame) -> tuple[pd.DataFrame, Mapping[str, float] | None]:
    """Each owner's ε; per-row budgets are cut into levels, which take the place of the numbers in their column."""
    if request.row_budgets is None:
        return rows, None if request.budgets is None else read_budgets(request.budgets)
    levels = budget_levels(request.row_budgets, rows)
    return rows.assign(**{request.row_budgets: levels.of_row}), levels.budgets


def budget_levels(column: str, rows: pd.DataFrame) -> Levels:
    """Per-row budgets as levels; an error names the row of the file."""
    return quantise(rows[column].to_numpy(), names=rows.index.tolist())


def check_columns(table: pd.DataFrame, columns: Columns) -> None:
    """Target, groups and owner are there, complete, and of known values."""
    require_columns(table, (columns.target, *columns.groups, *([columns.owner] if columns.owner else [])))
    if columns.number is not None:
        columns.number.encode(table[columns.target])
    else:
        check_classes(labels_of(table, columns.target, "target", columns.known(columns.target)), columns.target)
    for name in columns.groups:
        labels_of_group(table, name, columns)
    if columns.owner:
        labels_of(table, columns.owner, "owner")


def check_named(table: pd.DataFrame, request: Request) -> None:
    """Check that every ignored column and every category exists: a misspelled one would be learned as it looks."""
    names = {str(name) for name in table.columns}
    for option, given in (("--ignore", request.ignore), ("--category", request.category)):
        for name in sorted(set(given) - names):
            raise InputError(
                f'{option} names "{name}", which is not a column of the table: {nearest_name(name, table)}'
            )
    require(
        not request.category or request.schema_file is None,
        '--category is for tables without a schema: write kind = "category" in the schema',
    )


def classes_of(table: pd.DataFrame, columns: Columns) -> list[str]:
    """The classes that occur in a table, in the order of their words; none where the target is a number."""
    if columns.number is not None:
        return []
    return sorted(set(labels_of(table, columns.target, "target").tolist()))


def holdout_of(request: Request, key: Seed) -> Holdout:
    """The share of rows to hold out, none where there are public test rows, and the key that chooses them."""
    if request.test is not None:
        return Holdout(0.0, key)
    return Holdout(HOLDOUT if request.holdout is None else request.holdout, key)


def set_rows_apart(
    holdout: Holdout, columns: Columns, table: pd.DataFrame, relation: Relation | None, sizes_public: bool = True
) -> NDArray[np.bool_]:
    """Which rows are held out. Small tables and small groups keep all theirs, where their sizes are public."""
    if holdout.share == 0:
        return np.zeros(len(table), dtype=bool)
    # A person is known by the name, whatever the rows say: with it all rows of a person stay in their part.
    named = None if columns.person is None else names_of(table[columns.person])
    rows = identities_for(relation, table) if named is None else name_hashes(named)
    if not sizes_public:
        return holdout.chosen(rows)
    return holdout.sparing(rows, group_names(table, columns)[1], columns.group_sizes())


def plain_encoding(request: Request, columns: Columns, table: pd.DataFrame, rare: int = RARE) -> Encoding:
    """From the schema where there is one, else read off the rows; categories of fewer than `rare` rows are left out."""
    sequence = reads_text(request.model)
    if columns.schema is not None:
        found = columns.schema.encoding(sequence)
    else:
        # Beside a text that is read as such, the words of a group are no second one.
        unused = columns.left_out() | set(request.ignore) | set(columns.groups if sequence else ())
        found = fit_encoding(table, unused, sequence, rare=rare, categories=request.category)
    kind, _, folder = request.model.partition(":")
    if sequence and kind == "hf":
        # A model from disk comes with the tokens that it was trained on.
        codes = tuple(replace(c, tokenizer=folder) for c in found.columns if isinstance(c, Codes))
        return replace(found, columns=codes)
    return found


def read_off_rows(schema: Schema | None, encoding: Encoding, rare: int = RARE) -> list[str]:
    """What the certificate says of an encoding that holds what was taken from rows."""
    if not encoding.from_rows:
        return []
    return [fitted_on_rows(rare) if schema is None else DRAFTED]


def fitted_on_rows(rare: int = RARE) -> str:
    """What the certificate says where columns were taken from rows, and categories of fewer than `rare` left out."""
    return (
        "Kinds, bounds and categories of the columns: they were taken from the training rows. A category is stored in "
        f"the run's folder if at least {rare} rows have it; a bound may be the value of a single row."
    )


def open_schema(request: Request, columns: Columns, table: pd.DataFrame) -> Schema:
    """The schema for private preprocessing: the user's, or one that states the kind of each column and nothing else."""
    if columns.schema is not None:
        return columns.schema
    found = []
    for name in map(str, table.columns):
        if name in columns.left_out() or name in request.ignore:
            found.append(SchemaColumn(name, "ignore"))
        elif name in columns.groups:
            found.append(SchemaColumn(name, "group"))
        else:
            kind = "category" if name in request.category else guess_kind(table[name])
            found.append(SchemaColumn(name, kind, **_read_as(table[name], kind)))
    return Schema(tuple(found))


def _read_as(column: pd.Series, kind: Kind) -> dict[str, Any]:
    """How the dates or numbers of a column are written."""
    if kind == "date":
        return {"day_first": day_comes_first(column)}
    if kind != "numeric" or pd.api.types.is_numeric_dtype(column):
        return {}
    decimal, unit = form_of(column.dropna().astype("string").str.strip())
    return {"decimal": decimal, "unit": unit}


def with_group_values(schema: Schema, columns: Columns, table: pd.DataFrame) -> Schema:
    """The schema with the values of columns of groups, which are public: names of groups are."""
    stated = [
        replace(facts, values=tuple(sorted(set(labels_of_group(table, facts.name, columns).tolist()))))
        if facts.kind == "group" and facts.values is None and facts.name in columns.groups
        else facts
        for facts in schema.columns
    ]
    return replace(schema, columns=tuple(stated))


def group_names(table: pd.DataFrame, columns: Columns) -> tuple[list[str], list[str]]:
    """The names of all groups, and the group of each row."""
    ids, names = cross(group_labels(table, columns), len(table))
    return list(names), [names[i] for i in ids]


def model_options(request: Request, facts: PublicFacts, encoding: Encoding | None) -> dict[str, Any]:
    """The options asked for, and those that follow from public facts and from how columns become numbers."""
    options = dict(request.model_option)
    if request.model == "logistic":
        method = create(request.method, request.options())
        if isinstance(method, LinearMethod):  # its bounds are for rows that the model shortens too
            options.setdefault("feature_radius", method.radius_for(facts))
    if encoding is None:
        return options
    if request.model in ("wide-and-deep", "additive"):
        options.setdefault("blocks", list(encoding.widths()))
    if request.model == "additive":
        options.setdefault("numbers", encoding.numbers())
        options.setdefault("knots", knots_for(facts, request.settings))
        options.setdefault("crossed", crossed_for(facts, request.settings))
        named = [column.name for column in encoding.columns]
        options.setdefault("first", [named.index(name) for name in request.group if name in named])
    first = encoding.columns[0]
    if request.model in SEQUENCE_MODELS and isinstance(first, Codes):
        options.setdefault("vocabulary", vocabulary_of(first.form, first.buckets))
    return options


def make_model(request: Request, facts: PublicFacts, encoding: Encoding | None, seed: Seed) -> nn.Module:
    """The model asked for, with public starting weights and chosen layers where they are given."""
    model = build_model(request.model, facts, seed, **model_options(request, facts, encoding))
    if request.init is not None:
        load_public_weights(model, request.init)
    if request.train_only:
        train_only(model, request.train_only)
    return model
