"""Running: from a table on disk to a finished run, by the public, the private or the plain way of preprocessing."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from veil.accounting import AccountingError, Ledger, Relation
from veil.errors import about, require
from veil.files import cache_folder
from veil.methods import Method, relation_asked
from veil.models import SEQUENCE_MODELS, normalise
from veil.noise import GaussianNoise
from veil.plan import Settings
from veil.problem import Problem
from veil.randomness import Seed
from veil.tabular import private
from veil.tabular.charging import Charge, ChargedMethod
from veil.tabular.encoding import Encoding
from veil.tabular.guessing import why_not_learned
from veil.tabular.identity import held_out_identity, request_identity, table_identity
from veil.tabular.images import holds_images, read_image_folder
from veil.tabular.mapped import first_rows, is_large, parquet_problem, table_rows
from veil.tabular.measuring import held_out_problem, measure_exactly, measure_held_out, rows_like
from veil.tabular.predictor import save_preprocessing
from veil.tabular.preparing import (
    Columns,
    Request,
    budget_levels,
    check_ignored,
    classes_of,
    columns_of,
    group_names,
    holdout_of,
    make_model,
    model_options,
    open_schema,
    plain_encoding,
    read_and_check,
    read_off_rows,
    read_public,
    set_rows_apart,
    with_budgets,
)
from veil.tabular.splitting import HOLDOUT_KEY, Split, holdout_key, image_identities
from veil.tabular.table import check_trained, labels_of, table_problem
from veil.training import Callback, Run, fit
from veil.training.run_folder import LEDGER, PREPROCESSING, RunFolder

Say = Callable[[str], None]


def train_table(
    request: Request,
    method: Method,
    settings: Settings,
    *,
    out: Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    config: Mapping[str, Any] | None = None,
    say: Say | None = None,
) -> Run:
    """Read, set rows apart, preprocess, train, measure; the run's folder holds what each of these cost.

    With `resume`, the same call goes on with a run that was cut short at any of these.
    """
    columns = None if holds_images(request.data) else columns_of(request)
    whole = {**(config or {}), **_config(request, columns)}
    if out is None:
        return _train(request, columns, method, settings, None, callbacks, whole, say)
    record = {"method": method.name, **whole, "settings": settings.model_dump(exclude_none=True)}
    folder = RunFolder.open(out, settings, resume, record)
    charge = _charge(request, columns, folder)
    try:
        folder.hold_to("request", request_identity(request, columns, method, record, folder.seed))
        if charge is not None:
            callbacks = [*callbacks, charge]
            if request.private_preprocessing is None:  # else everything is reserved before the first row is read
                method = cast(Method, ChargedMethod(method, charge))
        run = _train(request, columns, method, settings, folder, callbacks, whole, say, charge)
        if charge is not None:
            charge.finish()
        folder.complete()
        return run
    except BaseException:
        if charge is not None:
            charge.give_back()
        folder.abandon()
        raise
    finally:
        folder.close()


def _charge(request: Request, columns: Columns | None, folder: RunFolder) -> Charge | None:
    """The data set's own budget, where the user named one; in a team the first process pays."""
    if request.dataset is None or request.store is None or not folder.leads:
        return None
    groups, owner = (("class",), None) if columns is None else (columns.groups, columns.owner)
    more = _reads_more(request, columns)
    return Charge(request.store, request.dataset, folder.path, groups, owner, request.test is None, more)


def _reads_more(request: Request, columns: Columns | None) -> list[str]:
    """What a run reads off the rows without noise, so that no ε covers it."""
    schema = None if columns is None else columns.schema
    open_ = columns is not None and (schema is None or schema.from_rows)
    found = ["bounds and categories read off the rows"] if open_ and request.private_preprocessing is None else []
    found += ["levels of the rows' own budgets"] if request.row_budgets else []
    return found + (["exact figures on training rows"] if request.show_private else [])


def _train(
    request: Request,
    columns: Columns | None,
    method: Method,
    settings: Settings,
    folder: RunFolder | None,
    callbacks: Sequence[Callback],
    config: Mapping[str, Any],
    say: Say | None,
    charge: Charge | None = None,
) -> Run:
    seed = _seed(settings, folder)
    split = Split(seed, holdout_of(request, holdout_key(seed)), relation_asked(method))
    if split.holdout.share > 0:
        config = {**config, HOLDOUT_KEY: split.holdout.key.secret.hex()}
    if columns is None:
        return _train_images(request, method, settings, folder, callbacks, config, split)
    if is_large(request.data):
        return _train_mapped(request, columns, method, settings, folder, callbacks, config, split)
    table, public = read_and_check(request, columns)
    names, _ = group_names(table, columns)
    groups = names if _releases_sizes(request, columns, names, method) else None
    apart = set_rows_apart(split.holdout, columns, table, split.relation, sizes_public=groups is None)
    training, held = table[~apart], table[apart]
    # All rows are checked before any is trained on or measured: a late error would have cost ε. Where sizes are
    # declared or released, whether a group has a row to train on decides nothing.
    if apart.any() and groups is None and not _declares_sizes(columns):
        check_trained(group_names(training, columns)[0], group_names(held, columns)[0])
    training, budgets = with_budgets(request, training)
    allowed = _least_budget(request, columns, held, budgets)
    found = None
    if request.private_preprocessing is None:
        encoding = plain_encoding(request, columns, training)
    else:
        settings = _with_one_delta(columns, training, groups is not None, settings)
        found = _privately(request, columns, training, method, settings, budgets, seed, folder, charge, groups)
        encoding = found.encoding
        method = private.WithPreprocessing(method, found.tokens(), found.share, found.group_sizes is not None)
    _say_columns(say, encoding, training, columns, request.ignore)
    problem = table_problem(
        training,
        encoding,
        columns.target,
        columns.groups,
        owner=columns.owner,
        budgets=budgets,
        schema=columns.schema,
        group_sizes=_declared(columns, found),
        classes=classes_of(table, columns),
    )
    if groups is not None:
        problem = problem.with_sizes_released()
    test = _tested(public, encoding, columns, problem)
    measured = held_out_problem(held, table, encoding, columns, problem) if split.holdout.share > 0 else None
    _hold_to_rows_apart(folder, measured, allowed)
    run = fit(
        make_model(request, problem.public, encoding, seed),
        problem,
        method=method,
        evaluation=test,
        callbacks=callbacks,
        not_covered=[*read_off_rows(columns.schema, encoding), *([LEVELS] if request.row_budgets else [])],
        out=folder,
        config=config,
        **settings.model_dump(),
    )
    _keep(run, request, encoding)
    if measured is not None:
        _measure(run, measured, split, folder, allowed)
    if request.show_private:
        measure_exactly(run, problem)
    return run


def _least_budget(request: Request, columns: Columns, held: pd.DataFrame, budgets: Mapping[str, float] | None) -> float:
    """The smallest ε that a held-out row allows: none may be charged more, whoever owns it."""
    if held.empty or budgets is None or columns.owner is None:
        return math.inf
    if request.row_budgets is not None:
        return min(budget_levels(request.row_budgets, held).budgets.values())
    owners = set(labels_of(held, columns.owner, "owner").tolist())
    unknown = sorted(owners - set(budgets))
    require(not unknown, f'owner "{unknown[0] if unknown else ""}" has no budget: add a line for them')
    return min(budgets[owner] for owner in owners)


def _seed(settings: Settings, folder: RunFolder | None) -> Seed:
    """One seed for all that a run does; its folder keeps it for as long as the run may have to go on."""
    if folder is not None:
        return folder.seed
    return Seed.from_system() if settings.seed is None else Seed.from_int(settings.seed)


MEASURED_ROWS = 100_000
LEVELS = "The levels of ε among the rows' own budgets: they were read off the rows and stand on this certificate."
PREPARED = "Kinds, bounds and categories of the columns: they were read off the first rows of the table."


def _train_mapped(
    request: Request,
    columns: Columns,
    method: Method,
    settings: Settings,
    folder: RunFolder | None,
    callbacks: Sequence[Callback],
    config: Mapping[str, Any],
    split: Split,
) -> Run:
    """A folder of Parquet files that is larger than memory: converted once, then read through a memory map."""
    require(
        columns.owner is None and request.private_preprocessing is None,
        "a table larger than memory takes neither owners nor private preprocessing: give a schema",
    )
    head = first_rows(request.data)
    check_ignored(head, request.ignore)
    encoding = plain_encoding(request, columns, head)
    public = read_public(request)
    holdout = split.holdout
    if request.holdout is None:
        holdout = replace(holdout, share=min(holdout.share, MEASURED_ROWS / table_rows(request.data)))
    made = parquet_problem(
        request.data, encoding, columns.target, columns.groups, cache_folder(), holdout, split.relation
    )
    _hold_to_rows_apart(folder, made.held_out)
    run = fit(
        make_model(request, made.train.public, encoding, split.seed),
        made.train,
        method=method,
        evaluation=_tested(public, encoding, columns, made.train),
        callbacks=callbacks,
        not_covered=[PREPARED] if columns.schema is None else read_off_rows(columns.schema, encoding),
        out=folder,
        config=config,
        **settings.model_dump(),
    )
    _keep(run, request, encoding)
    if made.held_out is not None:
        _measure(run, made.held_out, split, folder)
    if request.show_private:
        measure_exactly(run, made.train)
    return run


def _train_images(
    request: Request,
    method: Method,
    settings: Settings,
    folder: RunFolder | None,
    callbacks: Sequence[Callback],
    config: Mapping[str, Any],
    split: Split,
) -> Run:
    """A folder with one folder of images per class: the class is target and group. Rows are normalised one by one."""
    images, labels = read_image_folder(request.data)
    rows, classes = normalise(torch.from_numpy(images), "per-row"), sorted(set(labels.tolist()))
    by_place = split.relation is Relation.REPLACE_ONE
    identities = np.arange(len(rows), dtype=np.uint64) if by_place else image_identities(images, labels.tolist())
    apart = split.holdout.sparing(identities, labels)

    def problem(pixels: Tensor, of: NDArray[Any]) -> Problem:
        return Problem.from_arrays(pixels, of, of, classes=classes).with_classes_read()

    training = problem(rows[torch.from_numpy(~apart)], labels[~apart])
    held = problem(rows[torch.from_numpy(apart)], labels[apart]) if apart.any() else None
    if held is not None:
        check_trained(training.public.groups, held.public.groups)
    public = None
    if request.test is not None:
        test_images, test_labels = read_image_folder(request.test)
        public = problem(normalise(torch.from_numpy(test_images), "per-row"), test_labels)
    _hold_to_rows_apart(folder, held)
    run = fit(
        make_model(request, training.public, None, split.seed),
        training,
        method=method,
        evaluation=public,
        callbacks=callbacks,
        out=folder,
        config=config,
        **settings.model_dump(),
    )
    if held is not None:
        _measure(run, held, split, folder)
    if request.show_private:
        measure_exactly(run, training)
    return run


def _hold_to_rows_apart(folder: RunFolder | None, held: Problem | None, allowed: float = math.inf) -> None:
    """Refuse other held-out rows than the run began with: they are measured with the same noise."""
    if folder is not None:
        folder.hold_to("held-out rows", held_out_identity(held, allowed, folder.seed), before=LEDGER)


def _measure(run: Run, held: Problem, split: Split, folder: RunFolder | None, allowed: float = math.inf) -> None:
    """Figures on held-out rows, if these were chosen for the relation that the plan has."""
    plan = run.plan
    if plan.private and plan.relation is not split.relation:
        raise AccountingError(f"rows were held out for {split.relation}, but {plan.method} has {plan.relation}")
    measure_held_out(run, held, split.seed, folder, allowed)


def _keep(run: Run, request: Request, encoding: Encoding) -> None:
    """Let the run's folder hold what turns a new table into predictions."""
    if run.folder is not None:
        options = model_options(request, encoding)
        save_preprocessing(run.folder, encoding, run.plan.facts, request.model, options)


def _declared(columns: Columns, found: private.Preprocessing | None) -> Mapping[str, int] | None:
    if found is not None and found.group_sizes is not None:
        return found.group_sizes
    return columns.schema.group_sizes if columns.schema is not None else None


def _tested(public: pd.DataFrame | None, encoding: Encoding, columns: Columns, problem: Problem) -> Problem | None:
    """The rows of the test table, if there is one."""
    with about("--test"):
        return None if public is None else rows_like(public, encoding, columns, problem)


# δ where the number of rows is itself released with noise: 1 / (2 × rows) would tell it.
DELTA = 1e-6


def _with_one_delta(columns: Columns, training: pd.DataFrame, released: bool, settings: Settings) -> Settings:
    """One δ for preprocessing, training, certificate and budget, fixed before anything is released."""
    if settings.delta is not None:
        return settings
    sizes = columns.schema.group_sizes if columns.schema else None
    counted = 1.0 / (2 * (sum(sizes.values()) if sizes else len(training)))
    return settings.model_copy(update={"delta": DELTA if released else counted})


def _releases_sizes(request: Request, columns: Columns, names: Sequence[str], method: Method) -> bool:
    """Whether group sizes are released with noise: where a plan can be made for noisy ones, and none are declared."""
    if request.private_preprocessing is None or columns.owner is not None or _declares_sizes(columns):
        return False
    return private.relation_of(method, names)[1]


def _declares_sizes(columns: Columns) -> bool:
    return columns.schema is not None and bool(columns.schema.group_sizes)


def _privately(
    request: Request,
    columns: Columns,
    table: pd.DataFrame,
    method: Method,
    settings: Settings,
    budgets: Mapping[str, float] | None,
    seed: Seed,
    folder: RunFolder | None,
    charge: Charge | None,
    groups: list[str] | None,
) -> private.Preprocessing:
    """Bounds and categories by noisy releases, and the sizes of the named groups where `groups` is given."""
    require(
        request.model not in SEQUENCE_MODELS,
        f"{request.model} reads one text column by fixed public rules: leave out --private-preprocessing",
    )
    names, group_of = group_names(table, columns)
    # Groups of declared size are charged whether or not they have a row to train on.
    names = sorted({*names, *(_declared(columns, None) or ())}) if groups is None else groups
    relation, _ = private.relation_of(method, names)
    delta = settings.delta
    assert delta is not None, "fixed before"
    if folder is not None:
        folder.hold_to("table", table_identity(table, columns, budgets, seed), before=PREPROCESSING)
    if charge is not None:
        charge.reserve_whole(max((settings.epsilon, *(budgets or {}).values())), delta, relation, method.name)
    return private.find_encoding(
        table,
        open_schema(request, columns, table),
        groups=names,
        group_of=None if groups is None else group_of,
        budget=settings.epsilon if budgets is None else min(budgets.values()),
        share=float(request.private_preprocessing or 0.0),
        delta=delta,
        relation=relation,
        settings=settings,
        noise=GaussianNoise(seed, secure=settings.secure_noise),
        open_ledger=Ledger if folder is None else partial(folder.ledger, name=PREPROCESSING),
    )


def _config(request: Request, columns: Columns | None) -> dict[str, Any]:
    """What `veil train --config` needs to do the same again."""
    if columns is None:
        for name, given in (("--target", request.target), *(("--group", group) for group in request.groups)):
            require(given in (None, "class"), f"{name} is {given}: in a folder of images the class is target and group")
        for_tables = {
            "--owner": request.owner,
            "--budgets": request.budgets,
            "--row-budgets": request.row_budgets,
            "--private-preprocessing": request.private_preprocessing,
        }
        for option, value in for_tables.items():
            require(value is None, f"{option} is for tables: a folder of images has neither owners nor columns")
        return {"data": str(request.data), "target": "class", "group": ["class"], "model": request.model}
    paths = {"test": request.test, "schema": request.schema, "budgets": request.budgets, "init": request.init}
    return {
        "data": str(request.data),
        "target": columns.target,
        "group": list(columns.groups),
        "model": request.model,
        "owner": None if request.row_budgets is not None else columns.owner,
        "row_budgets": request.row_budgets,
        "holdout": request.holdout,
        "private_preprocessing": request.private_preprocessing,
        "ignore": sorted(request.ignore) or None,
        "train_only": list(request.train_only) or None,
        "dataset": request.dataset,
        # The address of a server may hold a password: it is given anew.
        "store": request.store if request.dataset is not None and "://" not in str(request.store) else None,
        **{name: None if path is None else str(path) for name, path in paths.items()},
    }


def _say_columns(
    say: Say | None, encoding: Encoding, table: pd.DataFrame, columns: Columns, ignore: Collection[str]
) -> None:
    """Tell which columns the model does not see, and why, so that nobody is surprised."""
    if say is None:
        return
    used = {column.name for column in encoding.columns} | columns.left_out()
    reasons = {
        name: "ignored" if name in ignore else "by the schema" if columns.schema else why_not_learned(table[name])
        for name in map(str, table.columns)
        if name not in used
    }
    if reasons:
        say(f"Not learned from: {', '.join(f'{name} ({reason})' for name, reason in reasons.items())}.")
