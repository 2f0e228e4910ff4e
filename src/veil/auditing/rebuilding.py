"""Rebuilding: the plan, the rows and the model of a finished run, from its folder and the table it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from veil import methods
from veil.accounting import Ledger, Relation
from veil.accounting.certificate import PERSON
from veil.auditing.shadow_models import BuildModel
from veil.errors import require
from veil.foundation.randomness import Seed
from veil.plans import Plan
from veil.problem import Cell, Problem, PublicFacts
from veil.request import Request, Settings
from veil.tables.images import holds_images
from veil.tables.mapped import is_large
from veil.tables.opening import Opening, open_rows
from veil.tables.preparing import columns_of, holdout_of
from veil.tables.splitting import HOLDOUT_KEY, Holdout, Split
from veil.training.run import LoadedRun, load


@dataclass(frozen=True)
class RunRows:
    """Training rows of a run, rows that took no part, and how to build its model."""

    problem: Problem
    others: Problem | None
    build: BuildModel

    def trained(self, run: LoadedRun) -> nn.Module:
        """The run's model with its weights."""
        return run.load_weights(self.build(self.problem, Seed.from_int(0)))


def rebuild_rows(run: LoadedRun, model_values: Mapping[str, Any] | None = None) -> RunRows:
    """Read the table again and split it as the run did: for runs of `veil train` without private preprocessing."""
    config = run.record.get("config") or {}
    require(
        bool(config.get("data")) and Path(str(config.get("data"))).exists(),
        "the rows of this run cannot be read: this attack needs a run of `veil train` whose table still exists",
    )
    request = Request.recorded(config, **({"model_option": model_values} if model_values else {}))
    plain = not holds_images(request.data) and not is_large(request.data)
    require(
        plain and request.private_preprocessing is None,
        "this attack needs an in-memory table without private preprocessing: call veil.audit with your own problem",
    )
    relation = Relation(run.certificate.relation) if run.certificate.relation else None
    split = Split(Seed.from_int(0), _holdout(request, config), relation)
    by = Opening(methods.create(str(run.record["method"])), Settings.checked(), split)
    opened = open_rows(request, columns_of(request), by)
    others = opened.held_out if opened.test is None else opened.test
    return RunRows(opened.problem, others, opened.factory)


def _holdout(request: Request, config: Mapping[str, Any]) -> Holdout:
    """The coin that chose the run's held-out rows."""
    key = str(config.get(HOLDOUT_KEY) or "")
    require(
        bool(key) or request.test is not None or request.holdout == 0,
        "the folder of this run does not record which rows were held out: train again with this version of veil",
    )
    return holdout_of(request, Seed(bytes.fromhex(key)) if key else Seed.from_int(0))


def rebuild_plan(run: LoadedRun, options: Mapping[str, Any] | None = None, problem: Problem | None = None) -> Plan:
    """The run's plan, rebuilt from public facts and checked against the rules in its ledger.

    `options` are those of the method. Where a group has rows of several owners, only the table has their numbers: give
    `problem`.
    """
    record, name = run.record, str(run.record["method"])
    require(bool(run.certificate.private), f"{name} is not private: there is no guarantee to audit")
    public = problem.public if problem is not None else facts_from(record)
    given = {key: value for key, value in record["settings"].items() if key in Settings.model_fields}
    known = {field.name for field in fields(methods.create(name))}  # type: ignore[arg-type]
    config = {key: value for key, value in (record.get("config") or {}).items() if key in known and value is not None}
    chosen = methods.create(name, config | dict(options or {}))
    plan = chosen.plan(public, Settings.checked(**given))
    ledger = Ledger.open(run.folder / "ledger.jsonl")
    require(
        (record.get("config") or {}).get("private_preprocessing") is None,
        "a run with private preprocessing cannot be audited from its folder: audit a run with a schema instead",
    )
    require(
        plan.terms().accounts == ledger.terms.accounts,
        "the plan of this run cannot be rebuilt from its folder: give the method's options with --option, or call "
        "veil.audit(run) in the program that trained it",
    )
    return plan


def facts_from(record: Mapping[str, Any]) -> PublicFacts:
    """Public facts of a run with one owner, from its folder."""
    require(
        len(record["owners"]) == 1,
        "the folder of a run with several owners does not record how many rows each has in a group: give its table",
    )
    groups = record["groups"]
    cells = tuple(Cell(index, 0, int(group["rows"])) for index, group in enumerate(groups))
    names = tuple(str(group["name"]) for group in groups)
    owners = (str(record["owners"][0]["name"]),)
    classes, sizes = tuple(record["classes"]), record.get("sizes", "counted")
    facts = PublicFacts(names, owners, cells, (1,), record["task"], classes, None, sizes)
    privacy = record.get("privacy") or {}
    if privacy.get("unit") != PERSON:
        return facts
    together = int(privacy.get("rows_together", 1))
    return replace(facts, unit="person", rows_per_unit=together, person_rows="mean" if together == 1 else "each")


def reload(folder: Path) -> LoadedRun:
    """Load a finished run that has a ledger."""
    run = load(folder)
    require(
        not run.certificate.private or (folder / "ledger.jsonl").exists(),
        f"{folder} has no ledger.jsonl: the guarantee of this run cannot be checked",
    )
    return run
