"""Measuring: how a run's model does on rows that it was not trained on, by a noisy release; or, if asked, exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pandas as pd

from veil.accounting import Ledger, Relation
from veil.errors import require
from veil.foundation.randomness import Seed
from veil.metrics import evaluate
from veil.metrics.noisy_confusion import DISJOINT, noisy_metrics
from veil.noise import GaussianNoise
from veil.problem import Problem
from veil.tables.encoding import Encoding
from veil.tables.identity import measured_identity
from veil.tables.preparing import Columns
from veil.tables.splitting import FEW_ROWS
from veil.tables.table import table_problem
from veil.training import Run
from veil.training.run_folder import EVALUATION, RunFolder


def rows_like(
    table: pd.DataFrame,
    encoding: Encoding,
    columns: Columns,
    problem: Problem,
    group_sizes: Mapping[str, int] | None = None,
) -> Problem:
    """Rows to measure on, with the classes of the training rows."""
    target, groups, schema = columns.target, columns.groups, columns.schema
    return table_problem(table, encoding, target, groups, like=problem.public, schema=schema, group_sizes=group_sizes)


def held_out_problem(
    held: pd.DataFrame, table: pd.DataFrame, encoding: Encoding, columns: Columns, problem: Problem
) -> Problem | None:
    """Held-out rows; None where there are none and everybody may know that."""
    facts = problem.public
    if facts.sizes == "counted" or (facts.sizes == "declared" and facts.rows < FEW_ROWS):
        return None if held.empty else rows_like(held, encoding, columns, problem)
    # Which groups are among these rows, and whether there are any, is not public: all groups get noisy counts.
    sizes = dict(zip(facts.groups, facts.group_sizes, strict=True))
    if held.empty:
        return rows_like(table.iloc[:1], encoding, columns, problem, sizes).without(0)
    return rows_like(held, encoding, columns, problem, sizes)


def measure_held_out(run: Run, apart: Problem, seed: Seed, folder: RunFolder | None, allowed: float = math.inf) -> None:
    """Put figures on held-out rows into the run, by a noisy release: also where the method itself is not private.

    `allowed` is the smallest ε that one of these rows allows.
    """
    plan = run.plan
    require(
        not set(DISJOINT.values()) & set(run.certificate.assumptions),
        "Cannot measure: held-out rows were measured before, for this run or the one that it continues, and pay once.",
    )
    if folder is not None:
        folder.hold_to("measured", measured_identity(run.model, seed), before=EVALUATION)
    run.metrics = noisy_metrics(
        run.model,
        apart,
        epsilon=min((allowed, plan.settings.epsilon, *(plan.facts.budgets or ()))),
        delta=plan.delta,
        relation=plan.relation or Relation.ADD_REMOVE,
        accountant=plan.settings.accountant_for(),
        noise=GaussianNoise(seed, secure=plan.settings.secure_noise),
        groups=plan.facts.groups,
        open_ledger=Ledger if folder is None else partial(folder.ledger, name=EVALUATION),
    )
    if plan.relation is not None:
        sentence = DISJOINT[Relation(plan.relation)]
        run.certificate = replace(run.certificate, assumptions=(*run.certificate.assumptions, sentence))
    if run.folder is not None:
        run.save(run.folder)


SHOWN = "Exact figures on the training rows: someone asked for them by --show-private. Do not publish this folder."


def measure_exactly(run: Run, problem: Problem) -> None:
    """Add exact figures on the training rows, marked as not covered: someone asked for them."""
    shown = evaluate(run.model, problem, run.plan.facts.groups).as_json()
    names = ("worst_group_accuracy", "average_group_accuracy", "accuracy", "loss")
    found = {"private": True, **{name: shown.get(name) for name in names}}
    found |= {f"accuracy of {name}": score["accuracy"] for name, score in shown["by_group"].items()}
    run.findings = {**run.findings, "Training rows": found}
    run.certificate = replace(run.certificate, not_covered=(*run.certificate.not_covered, SHOWN))
    if run.folder is not None:
        run.save(run.folder)
