"""Comparing on one's own rows: every method holds rows out and is judged by figures on them, released with noise.

Nobody needs public rows for this. Each run is a whole run of `veil train` with its own certificate and its own secret
seed; what all of them cost together is worked out at the end and, if a data set's budget is named, charged before the
first of them reads a row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from veil.accounting import Certificate, Ledger
from veil.accounting.together import RunTerms, cost_together
from veil.errors import InputError, about, require
from veil.foundation.files import FOR_ALL, write_whole
from veil.foundation.parallel import Workers
from veil.plans import Plan
from veil.request import SUITED, CompareRequest, Request
from veil.tables.charging import budgeted_run
from veil.tables.table_run import REPETITION, PartOf, asked_columns, plan_of, reads_more, train_table
from veil.training.comparing import OTHER_RUNS, SEEDS_PUBLIC, Comparison, Finished, Trial, all_trials, error_sentence
from veil.training.run_folder import EVALUATION, LEDGER, finished_in, under_way

if TYPE_CHECKING:  # a store is loaded where a comparison is charged, and few are
    from veil.budget_store import RunReservation

UNLIMITED = "{} is not private: no ε limits what all runs together tell about a row."
# Folders of the charges of a comparison, what each of them pays for, and marks of the runs that were begun.
CHARGE, PAID, BEGUN = "charge-", "runs.json", "begun"


def compare_held_out(
    request: CompareRequest,
    trials: Sequence[Trial],
    options: Mapping[str, Mapping[str, Any]],
    out: Path,
    workers: Workers,
    finished: Finished,
) -> Comparison:
    """Train every trial on the table, without the rows that its split holds out, and measure it on these."""
    asked = {trial.label: _request(request, trial, options.get(trial.method.name, {})) for trial in trials}
    for trial in trials:
        _check_stored(out / trial.label, asked[trial.label])
    charges = _charged(request, trials, asked, out)
    unplanned = [] if charges else list({trial.method.name: trial for trial in reversed(trials)}.values())
    for trial in unplanned:  # what is wrong with a method is found before any of them reads a row
        _plan(trial, asked)
    for charge in charges:
        if charge.state == "reserved":
            charge.begin()
    run = partial(_run, requests=asked, out=out, public=request.public_seeds, charged=bool(charges))
    found = all_trials(trials, run, out, workers, finished)
    found = replace(found, together=together(out, each_row=request.person_rows == "each"))
    found.write(out)
    for charge in charges if not found.failures else []:
        if charge.state != "finished":
            charge.finish()
    return found


def _plan(trial: Trial, asked: Mapping[str, Request]) -> Plan:
    with about(trial.method.name):
        return plan_of(asked[trial.label], PartOf(trial.seed))


def _request(request: CompareRequest, trial: Trial, options: Mapping[str, Any]) -> Request:
    """The request of one run: each method with the model that suits it, unless one is named."""
    name, seed = trial.method.name, trial.seed if request.public_seeds else None
    settings = request.settings.model_copy(update={"epsilon": trial.epsilon, "seed": seed})
    model = request.model or SUITED.get(name, "")
    shown = request.show_private
    return request.of_table(method=name, model=model, option=dict(options), settings=settings, show_private=shown)


def _run(trial: Trial, requests: Mapping[str, Request], out: Path, public: bool, charged: bool) -> str:
    """One run into its folder, unless it is there already; returns the error message, "" if there is none."""
    target, request = out / trial.label, requests[trial.label]
    if finished_in(target):
        return ""
    torch.set_num_threads(1)
    mark = out / BEGUN / trial.label
    try:
        if charged:  # the folder first: a mark without one says that somebody took it away
            target.mkdir(parents=True, exist_ok=True)
            mark.parent.mkdir(exist_ok=True)
            mark.touch()
        part = PartOf(trial.seed, (OTHER_RUNS, SEEDS_PUBLIC) if public else (OTHER_RUNS,))
        train_table(request, out=target, resume=under_way(target), part=part)
    except Exception as error:  # whatever it is, it is this run's: it is told at the end, and the others go on
        return error_sentence(error)
    return ""


def together(out: Path, *, each_row: bool = False) -> dict[str, Any] | None:
    """What all runs in a comparison's folder cost together, finished or not; None where none has read a row."""
    found, unlimited = [], []
    for path in sorted(out.glob(f"*/{LEDGER}")):
        training = _ledger(path)
        if training is None:
            continue
        held, certificate = path.with_name(EVALUATION), path.with_name("certificate.json")
        known = Certificate.load(certificate).epsilon if certificate.exists() else None
        epsilon = max(account.budget for account in training.terms.accounts) if known is None else known
        measured = _ledger(held) if held.exists() else None
        terms = None if measured is None else measured.terms
        found.append(RunTerms(_number(path.parent), training.terms, terms, epsilon, each_row))
    for path in sorted(out.glob("*/certificate.json")):
        certificate_of = Certificate.load(path)
        unlimited += [] if certificate_of.private else [certificate_of.method]
    if unlimited:
        named = ", ".join(dict.fromkeys(unlimited))
        return {"epsilon": None, "runs": len(found) + len(unlimited), "sentence": UNLIMITED.format(named)}
    return cost_together(found).as_json() if found else None


def _number(folder: Path) -> int:
    """The number of a run in its comparison; runs of other origin stand alone."""
    try:
        config = json.loads((folder / "run.json").read_text(encoding="utf-8"))["config"]
        return int(config[REPETITION])
    except (OSError, ValueError, KeyError):
        # A run that is not finished: its folder's name ends with its number.
        return int(folder.name.rpartition("seed")[2] or 0)


def _ledger(path: Path) -> Ledger | None:
    """A ledger as it stands; None if a crash left it without a whole line, so that no row was read."""
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    return Ledger.read(whole) if whole else None


@dataclass(frozen=True)
class _Charging:
    """Whom a comparison charges, and where the marks of its charges are kept."""

    request: CompareRequest
    first: Request
    folder: Path

    def reserve(self, plans: Sequence[Plan]) -> RunReservation:
        """Reserve what these runs may cost; a repeated call costs nothing more."""
        from veil.budget_store import NOT_CHARGED, reserve_together

        columns = asked_columns(self.first)
        assert self.request.dataset is not None
        run = budgeted_run(self.request.store, self.request.dataset, columns, self.folder, self.folder.parent.name)
        found = reserve_together(plans, run)
        if found.state == "reserved" and (more := reads_more(self.first, columns)):
            found.store.remark(self.request.dataset, found.claim, NOT_CHARGED + ", ".join(more))
        return found


def _charged(
    request: CompareRequest, trials: Sequence[Trial], asked: Mapping[str, Request], out: Path
) -> list[RunReservation]:
    """The charges that pay for all trials: those of earlier calls in this folder, and one for what is new."""
    if request.dataset is None:
        return []
    known, found = {trial.label: trial for trial in trials}, []
    folders = sorted(out.glob(f"{CHARGE}*/{PAID}"))
    paid = [json.loads(path.read_text(encoding="utf-8")) for path in folders]
    covered = {label for labels in paid for label in labels}
    more = [label for label in covered if label not in known]
    require(
        not more,
        f"{out} is charged for further runs ({', '.join(sorted(more)[:3])}): ask for these too, or choose another "
        "folder with --out",
    )
    gone = [label for label in known if (out / BEGUN / label).exists() and not (out / label).exists()]
    require(
        not gone,
        f"the run {gone[0] if gone else ''} was begun and is not in {out} any more: what it released is paid for once, "
        "so choose another folder with --out",
    )
    new = [label for label in known if label not in covered]
    plans = {label: _plan(known[label], asked) for label in known}  # all errors come before any charge
    places = [path.parent for path in folders] + ([out / f"{CHARGE}{len(folders) + 1}"] if new else [])
    for place, labels in zip(places, [*paid, *([new] if new else [])], strict=True):
        place.mkdir(parents=True, exist_ok=True)
        found.append(_Charging(request, asked[labels[0]], place).reserve([plans[label] for label in labels]))
        # Only what is reserved is paid for: a refused charge leaves no word that it was.
        write_whole(place / PAID, json.dumps(labels).encode(), FOR_ALL)
    return found


def _check_stored(target: Path, request: Request) -> None:
    """Reject a folder whose run was asked for otherwise: neither mix nor overwrite."""
    if not finished_in(target):
        return
    try:
        run = json.loads((target / "run.json").read_text(encoding="utf-8"))
        record, settings = run["config"], run["settings"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{target} is not a readable run: choose another folder with --out") from error
    wanted = {name: value for name, value in request.record().items() if name not in ("require", "store")}
    other = [name for name, value in wanted.items() if name in record and _plain(record[name]) != _plain(value)]
    # A learning rate may have been set by rule; of the seed it counts whether everybody knows it.
    asked = request.settings.model_dump(exclude={"seed", "learning_rate"})
    other += [name for name, value in asked.items() if _plain(settings.get(name)) != _plain(value)]
    if request.settings.learning_rate not in (None, settings.get("learning_rate")):
        other.append("learning_rate")
    if bool(run.get("seed_given")) is not (request.settings.seed is not None):
        other.append("public_seeds")
    require(
        not other,
        f"{target} holds a run with other settings ({other[0] if other else ''} differs): choose another folder with "
        "--out",
    )


def _plain(value: Any) -> Any:
    return None if value in (None, [], {}, "") else json.loads(json.dumps(value, default=str))
