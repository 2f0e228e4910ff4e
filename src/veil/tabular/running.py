"""Running: from a table on disk to a finished run, by the public, the private or the plain way of preprocessing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from veil.accounting import Relation
from veil.budgets import read_budgets
from veil.datasets.files import cache_folder
from veil.datasets.images import holds_images, read_image_folder
from veil.errors import require
from veil.methods import Method
from veil.metrics import evaluate
from veil.metrics.noisy_confusion import DISJOINT, noisy_metrics
from veil.models import SEQUENCE_MODELS, normalise
from veil.noise import GaussianNoise
from veil.plan import Settings
from veil.problem import Problem
from veil.randomness import Seed
from veil.tabular import private
from veil.tabular.encoding import Encoding
from veil.tabular.mapped import first_rows, is_large, parquet_problem, table_rows
from veil.tabular.predictor import save_preprocessing
from veil.tabular.preparing import (
    FITTED_ON_ROWS,
    HOLDOUT,
    Columns,
    Request,
    columns_of,
    group_names,
    make_model,
    model_options,
    open_schema,
    plain_encoding,
    read_and_check,
    set_rows_apart,
)
from veil.tabular.reading import read_table
from veil.tabular.table import table_problem
from veil.training import Callback, Run, fit

Say = Callable[[str], None]


def train_table(
    request: Request,
    method: Method,
    settings: Settings,
    *,
    out: Path | None = None,
    callbacks: Sequence[Callback] = (),
    config: Mapping[str, Any] | None = None,
    say: Say | None = None,
) -> Run:
    """Read, set rows apart, preprocess, train, measure; the run's folder holds what each of these cost."""
    if holds_images(request.data):
        return _train_images(request, method, settings, out, callbacks, config or {})
    columns = columns_of(request)
    require(out is None or not (out / "ledger.jsonl").exists(), f"{out} holds a run already: choose another folder")
    if is_large(request.data):
        return _train_mapped(request, columns, method, settings, out, callbacks, config or {})
    table, public = read_and_check(request, columns)
    apart = set_rows_apart(request, len(table))
    training = table[~apart]
    budgets = None if request.budgets is None else read_budgets(request.budgets)
    found = None
    if request.private_preprocessing is None:
        encoding = plain_encoding(request, columns, training)
    else:
        found = _privately(request, columns, training, method, settings, budgets, out)
        encoding = found.encoding
        method = private.WithPreprocessing(method, found.tokens(), found.share, found.group_sizes is not None)
    _say_columns(say, encoding, table, columns)
    problem = table_problem(
        training,
        encoding,
        columns.target,
        columns.groups,
        owner=columns.owner,
        budgets=budgets,
        schema=columns.schema,
        group_sizes=_declared(columns, found),
    )
    test = None if public is None else _like(public, encoding, columns, problem)
    run = fit(
        make_model(request, problem.public, encoding, settings.seed),
        problem,
        method=method,
        evaluation=test,
        callbacks=callbacks,
        not_covered=[FITTED_ON_ROWS] if encoding.from_rows else [],
        out=out,
        config={**(config or {}), **_config(request, columns)},
        **settings.model_dump(),
    )
    _keep(run, request, encoding)
    if found is not None:
        private.record(run, found)
    if apart.any():
        measure_held_out(run, _like(table[apart], encoding, columns, problem))
    return run


MEASURED_ROWS = 100_000
PREPARED = "Kinds, bounds and categories of the columns: they were read off the first rows of the table."


def _train_mapped(
    request: Request,
    columns: Columns,
    method: Method,
    settings: Settings,
    out: Path | None,
    callbacks: Sequence[Callback],
    config: Mapping[str, Any],
) -> Run:
    """A folder of Parquet files that is larger than memory: converted once, then read through a memory map."""
    require(
        columns.owner is None and request.private_preprocessing is None,
        "a table larger than memory takes neither owners nor private preprocessing: give a schema",
    )
    head = first_rows(request.data)
    encoding = plain_encoding(request, columns, head)
    public = None if request.test is None else read_table(request.test)
    share = min(HOLDOUT, MEASURED_ROWS / table_rows(request.data)) if request.holdout is None else request.holdout
    made = parquet_problem(
        request.data, encoding, columns.target, columns.groups, cache_folder(), 0.0 if public is not None else share
    )
    run = fit(
        make_model(request, made.train.public, encoding, settings.seed),
        made.train,
        method=method,
        evaluation=None if public is None else _like(public, encoding, columns, made.train),
        callbacks=callbacks,
        not_covered=[PREPARED] if encoding.from_rows else [],
        out=out,
        config={**config, **_config(request, columns)},
        **settings.model_dump(),
    )
    _keep(run, request, encoding)
    if made.held_out is not None:
        measure_held_out(run, made.held_out)
    return run


def _train_images(
    request: Request,
    method: Method,
    settings: Settings,
    out: Path | None,
    callbacks: Sequence[Callback],
    config: Mapping[str, Any],
) -> Run:
    """A folder with one folder of images per class: the class is target and group. Rows are normalised one by one."""
    for name, given in (("--target", request.target), *(("--group", group) for group in request.groups)):
        require(given in (None, "class"), f"{name} is {given}: in a folder of images the class is target and group")
    images, labels = read_image_folder(request.data)
    rows, classes = normalise(torch.from_numpy(images), "per-row"), sorted(set(labels.tolist()))
    apart = set_rows_apart(request, len(rows))

    def problem(pixels: Tensor, of: NDArray[Any]) -> Problem:
        return Problem.from_arrays(pixels, of, of, classes=classes)

    training = problem(rows[torch.from_numpy(~apart)], labels[~apart])
    public = None
    if request.test is not None:
        test_images, test_labels = read_image_folder(request.test)
        public = problem(normalise(torch.from_numpy(test_images), "per-row"), test_labels)
    run = fit(
        make_model(request, training.public, None, settings.seed),
        training,
        method=method,
        evaluation=public,
        callbacks=callbacks,
        out=out,
        config={**config, "data": str(request.data), "target": "class", "group": ["class"], "model": request.model},
        **settings.model_dump(),
    )
    if apart.any():
        measure_held_out(run, problem(rows[torch.from_numpy(apart)], labels[apart]))
    return run


def _keep(run: Run, request: Request, encoding: Encoding) -> None:
    """Let the run's folder hold what turns a new table into predictions."""
    if run.folder is not None:
        options = model_options(request, encoding)
        save_preprocessing(run.folder, encoding, run.plan.facts, request.model, options)


def _declared(columns: Columns, found: private.Preprocessing | None) -> Mapping[str, int] | None:
    if found is not None and found.group_sizes is not None:
        return found.group_sizes
    return columns.schema.group_sizes if columns.schema is not None else None


def _like(table: pd.DataFrame, encoding: Encoding, columns: Columns, problem: Problem) -> Problem:
    """Rows to measure on, with the classes of the training rows and, where owners have budgets, the budgets too."""
    return table_problem(table, encoding, columns.target, columns.groups, like=problem.public, schema=columns.schema)


def _privately(
    request: Request,
    columns: Columns,
    table: pd.DataFrame,
    method: Method,
    settings: Settings,
    budgets: Mapping[str, float] | None,
    out: Path | None,
) -> private.Preprocessing:
    require(
        request.model not in SEQUENCE_MODELS,
        f"{request.model} reads one text column by fixed public rules: leave out --private-preprocessing",
    )
    names, group_of = group_names(table, columns)
    relation, fixed = private.relation_of(method, names)
    release_sizes = fixed and columns.owner is None and not (columns.schema and columns.schema.group_sizes)
    seed = Seed.from_system() if settings.seed is None else Seed.from_int(settings.seed)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    return private.find_encoding(
        table,
        open_schema(request, columns, table),
        groups=names,
        group_of=group_of if release_sizes else None,
        budget=settings.epsilon if budgets is None else min(budgets.values()),
        share=float(request.private_preprocessing or 0.0),
        delta=settings.delta if settings.delta is not None else 1.0 / (2 * len(table)),
        relation=relation,
        settings=settings,
        noise=GaussianNoise(seed, secure=settings.secure_noise),
        ledger_path=None if out is None else out / "preprocessing.jsonl",
    )


def measure_held_out(run: Run, apart: Problem) -> None:
    """Put figures on held-out rows into the run: a noisy release if the method is private."""
    plan = run.plan
    if plan.relation is None:
        run.metrics = evaluate(run.model, apart, plan.facts.groups)
    else:
        seed = Seed.from_system() if plan.settings.seed is None else Seed.from_int(plan.settings.seed)
        run.metrics = noisy_metrics(
            run.model,
            apart,
            epsilon=min((plan.settings.epsilon, *(plan.facts.budgets or ()))),
            delta=plan.delta,
            relation=Relation(plan.relation),
            accountant=plan.settings.accountant_for(),
            noise=GaussianNoise(seed, secure=plan.settings.secure_noise),
            groups=plan.facts.groups,
            ledger_path=None if run.folder is None else run.folder / "evaluation.jsonl",
        )
        run.certificate = replace(run.certificate, assumptions=(*run.certificate.assumptions, DISJOINT))
    if run.folder is not None:
        run.save(run.folder)


def _config(request: Request, columns: Columns) -> dict[str, Any]:
    """What `veil train --config` needs to do the same again."""
    paths = {"test": request.test, "schema": request.schema, "budgets": request.budgets, "init": request.init}
    return {
        "data": str(request.data),
        "target": columns.target,
        "group": list(columns.groups),
        "model": request.model,
        "owner": columns.owner,
        "holdout": request.holdout,
        "private_preprocessing": request.private_preprocessing,
        "ignore": sorted(request.ignore) or None,
        "train_only": list(request.train_only) or None,
        **{name: None if path is None else str(path) for name, path in paths.items()},
    }


def _say_columns(say: Say | None, encoding: Encoding, table: pd.DataFrame, columns: Columns) -> None:
    """Tell which columns the model does not see, so that nobody is surprised."""
    if say is None:
        return
    used = {column.name for column in encoding.columns}
    unused = [str(name) for name in table.columns if name not in used and name not in columns.left_out()]
    if unused:
        say(f"Not learned from: {', '.join(unused)}.")
