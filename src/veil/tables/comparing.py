"""Comparing on one's own rows: every method holds rows out and is judged by figures on them, released with noise.

Nobody needs public rows for this. Each run is a whole run of `veil train` with its own certificate; their ε add up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from veil.errors import InputError, about, require
from veil.foundation.parallel import Workers
from veil.request import SUITED, CompareRequest, Request
from veil.tables.table_run import PartOf, plan_of, train_table
from veil.training.comparing import OTHER_RUNS, SEEDS_PUBLIC, Comparison, Finished, Trial, all_trials, error_sentence
from veil.training.run_folder import CHECKPOINT, finished_in


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
    # What is wrong with a method is found before any of them reads a row.
    for name, trial in {trial.method.name: trial for trial in reversed(trials)}.items():
        with about(name):
            plan_of(asked[trial.label])
    return all_trials(trials, partial(_run, requests=asked, out=out), out, workers, finished)


def _request(request: CompareRequest, trial: Trial, options: Mapping[str, Any]) -> Request:
    """The request of one run: each method with the model that suits it, unless one is named."""
    name = trial.method.name
    settings = request.settings.model_copy(update={"epsilon": trial.epsilon, "seed": trial.seed})
    model = request.model or SUITED.get(name, "")
    return request.of_table(method=name, model=model, option=dict(options), settings=settings)


def _run(trial: Trial, requests: Mapping[str, Request], out: Path) -> str:
    """One run into its folder, unless it is there already; returns the error message, "" if there is none."""
    target, request = out / trial.label, requests[trial.label]
    if finished_in(target):
        return ""
    torch.set_num_threads(1)
    try:
        resume = (target / CHECKPOINT).exists()
        train_table(request, out=target, resume=resume, part=PartOf(trial.seed, (OTHER_RUNS, SEEDS_PUBLIC)))
    except Exception as error:  # whatever it is, it is this run's: it is told at the end, and the others go on
        return error_sentence(error)
    return ""


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
    # A learning rate may have been set by rule, and the seed is the folder's own.
    asked = request.settings.model_dump(exclude={"seed", "learning_rate"})
    other += [name for name, value in asked.items() if _plain(settings.get(name)) != _plain(value)]
    if request.settings.learning_rate not in (None, settings.get("learning_rate")):
        other.append("learning_rate")
    require(
        not other,
        f"{target} holds a run with other settings ({other[0] if other else ''} differs): choose another folder with "
        "--out",
    )


def _plain(value: Any) -> Any:
    return None if value in (None, [], {}, "") else json.loads(json.dumps(value, default=str))
