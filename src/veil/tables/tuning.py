"""The search on a table, from request to finished run: open once, plan, charge, run trials, keep the best.

Of a search by selection only the best trial leaves: its model, its history and its score. The other trials live in a
folder that only its owner can read, which is deleted when the search is complete; how many there were is told nobody.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from veil.accounting import Ledger, certify
from veil.accounting.certificate import check_budgets
from veil.errors import InputError, require
from veil.foundation.parallel import WORKER_DIED, Workers, in_order
from veil.foundation.randomness import Seed
from veil.methods import create, relation_asked
from veil.metrics import evaluate
from veil.plans import Plan
from veil.plans.plan import METRICS
from veil.problem import Problem
from veil.request import Candidate, Request, TuneRequest
from veil.tables.charging import Charge
from veil.tables.effects import Learned
from veil.tables.identity import rows_identity
from veil.tables.mapped import is_large
from veil.tables.measuring import ExactFigures, HeldOutFigures, expected_rows
from veil.tables.opening import Opened, Opening, Say, open_rows
from veil.tables.preparing import holdout_of
from veil.tables.splitting import HOLDOUT_KEY, Split, holdout_key
from veil.tables.table_run import asked_columns, charge_of, configuration, preprocessing_of, seed_of
from veil.tables.without_privacy import WithoutPrivacy
from veil.training.fitting import Job, Measured, execute, tested
from veil.training.identity import Identity, settings_of
from veil.training.run import Run
from veil.training.run_folder import CHOOSING, LEDGER, RunFolder, finished_in, under_way
from veil.training.searching import NumberOfTrials, Search, plan_search
from veil.training.suggesting import suggester

TRIALS = "trials"
ENDED = "trials-ended"
SELECTED = (
    "One trial of the search is published: the best by its score. How many trials there were, and the models, figures "
    "and scores of all others, stay secret. Each trial drew its candidate and its noise by itself."
)
COMPOSED = "Every trial of the search is charged, so all their scores may be seen."
PARTS = (
    "Rows were split into three parts by a coin on what each row says: rows to train on, rows to choose by and rows to "
    "measure the chosen model on. Every row is in one part only, which it stays in when another row is removed or "
    "replaced, and each part pays for its own releases at the same (ε, δ)."
)
CHOSEN_BY_PUBLIC = "Trials were scored on one half of the public rows, and the chosen model was measured on the other."
CANDIDATES_CHOSEN = "The choice of the candidates and of the number of trials, if it was based on these rows."
TIME = (
    "How long the search took and what it used of the machine, the times in the budget store included: they tell the "
    "number of trials, which the guarantee needs to be secret. Do not publish them."
)


@dataclass(frozen=True)
class PublicFigures:
    """Exact figures on rows that were declared public."""

    rows: Problem

    def __call__(self, model: nn.Module, plan: Plan) -> Measured:
        """Measure the model of a plan that has been carried out."""
        return Measured(evaluate(model, self.rows, plan.facts.groups))


@dataclass(frozen=True)
class Parts:
    """The rows of a search: opened once; those to choose by and those to measure the chosen model on."""

    opened: Opened
    split: Split
    choosing: Problem
    measuring: Problem

    @property
    def public(self) -> bool:
        """Whether trials are scored on public rows."""
        return self.opened.test is not None

    def figures(self, rows: Problem, seed: Seed, folder: RunFolder) -> HeldOutFigures | PublicFigures:
        """What measures a model on rows to choose by, or on rows to measure the chosen model on: half of them each."""
        if self.public:
            return PublicFigures(rows)
        share = self.split.holdout.share
        expected = expected_rows(self.opened.problem.public, share / 2, share)
        return HeldOutFigures(rows, seed, self.split.relation, folder, expected=expected)

    def model(self, request: Request, seed: Seed) -> nn.Module:
        """The model that a trial's request asks for, at its start."""
        return replace(self.opened.factory, request=request)(self.opened.problem, seed)


@dataclass(frozen=True)
class Trials:
    """What all trials share."""

    request: TuneRequest
    parts: Parts
    search: Search
    seed: Seed
    folder: Path

    def run(self, number: int, choice: int) -> float:
        """One trial in its folder, unless it is there already; returns its score, larger is better."""
        target = self.place(number)
        if not finished_in(target):
            torch.set_num_threads(1)
            seed, plan = Seed(self.seed.key("trial", number), self.seed.given), self.search.plans[choice]
            folder = (
                RunFolder.resume(target) if under_way(target) else RunFolder.start(target, plan.settings, seed=seed)
            )
            try:
                measure = self.parts.figures(self.parts.choosing, seed, folder)
                model = self.parts.model(request_of(self.request, self.search, choice), seed)
                execute(Job(model, self.parts.opened.problem, measures=[measure]), plan, folder)
                folder.complete()
            finally:
                folder.close()
        return score_in(target)

    def place(self, number: int) -> Path:
        """The folder of a trial."""
        return self.folder / f"{number:06d}"

    def drawn(self, number: int) -> tuple[int, int]:
        """A trial's number and candidate, by a draw that looks at no other trial."""
        return number, self.search.drawn(self.seed, number)


def request_of(request: TuneRequest, search: Search, choice: int) -> Request:
    """The request of a trial: its candidate with the share of a trial, on which the model's size may depend."""
    return request.of_run(search.candidates[choice]).model_copy(update={"settings": search.plans[choice].settings})


def score_in(folder: Path) -> float:
    """The released worst-group figure of a trial, larger is better; −inf where there is none."""
    metrics = _record_of(folder).get("metrics") or {}
    error = metrics.get("worst_group_error")
    found = metrics.get("worst_group_accuracy") if error is None else -error
    return -math.inf if found is None or not math.isfinite(found) else float(found)


def _record_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return found


def _history_in(folder: Path) -> pd.DataFrame:
    """The history of a trial as it was: Parquet reads lists back as arrays."""
    found = pd.read_parquet(folder / "history.parquet")
    for name in [name for name in found.columns if found[name].dtype == object]:
        found[name] = [value.tolist() if isinstance(value, np.ndarray) else value for value in found[name]]
    return found


def plan_of_search(request: TuneRequest) -> Search:
    """The search that `veil tune` would make: rows are read for their public facts, and nothing is released."""
    parts = _open(request, seed_of(request.settings), None)
    return _planned(request, parts)


def tune(
    request: TuneRequest,
    out: Path,
    *,
    resume: bool = False,
    workers: Workers | None = None,
    config: Mapping[str, Any] | None = None,
    say: Say | None = None,
) -> Run:
    """Search among the candidates; the folder then holds the run of the best one, with one certificate for all of it.

    Args:
        request: The table, the candidates, ε and δ of the whole.
        out: The folder of the run.
        resume: Continue an interrupted search: the same trials, with the same noise.
        workers: How many trials run at the same time, and the joblib backend.
        config: What else the run's configuration says.
        say: Where sentences go.

    Returns:
        The run of the chosen candidate.

    Raises:
        InputError: Something asked for cannot be done; nothing was spent if no row was read.

    >>> import pandas as pd, tempfile
    >>> people = pd.DataFrame({"sex": ["f", "m"] * 300, "age": list(range(20, 70)) * 12})
    >>> people["bought"] = ["yes" if age > 45 else "no" for age in people["age"]]
    >>> with tempfile.TemporaryDirectory() as place:
    ...     people.to_csv(place + "/people.csv", index=False)
    ...     asked = {"data": place + "/people.csv", "target": "bought", "group": "sex", "settings": {"epsilon": 4.0}}
    ...     run = tune(TuneRequest.checked(**asked, candidate=["auto", "group-gd"]), Path(place) / "run")
    >>> run.plan.method in ("auto", "group-gd"), run.certificate.epsilon <= 4.0
    (True, True)
    """
    first = request.of_run(request.candidates()[0])
    columns = asked_columns(first)
    record = {**(config or {}), **request.record(), "settings": request.settings.model_dump(exclude_none=True)}
    folder = RunFolder.open(out, request.settings, resume, record)
    shutil.rmtree(folder.path / ENDED, ignore_errors=True)
    charge = charge_of(first, columns, folder)
    try:
        require(
            folder.resumed or not (folder.path / TRIALS).exists(),
            f"{out} has a folder {TRIALS}, which a search makes anew: choose another --out",
        )
        folder.hold_to("request", Identity(settings_of(record)))
        parts = _open(request, folder.seed, say)
        # Roles may stand in the schema alone.
        request = request.model_copy(update={"group": parts.opened.request.group})
        search = _planned(request, parts)
        folder.hold_to("search", Identity({"search": json.dumps(search.as_json(), sort_keys=True)}))
        rows = rows_identity(
            {
                "training rows": parts.opened.problem,
                "held-out rows": parts.opened.held_out,
                "public rows": parts.opened.test,
            },
            folder.seed,
        )
        folder.hold_to("rows", rows, before=LEDGER)
        untested = _tested(request, parts, search)
        best = _searched(request, parts, search, folder, charge, workers or Workers())
        shown = {**configuration(first, columns), **(config or {}), HOLDOUT_KEY: parts.split.holdout.key.secret.hex()}
        run = _finished(best, shown, parts, folder, untested)
        if charge is not None:
            charge.finish()
        # Renamed first: what a kill leaves of a folder half deleted is no trial of a resumed search.
        shutil.rmtree((folder.path / TRIALS).rename(folder.path / ENDED))
        now = time.time()
        for path in folder.path.iterdir():  # when each file was written tells how long the search took
            os.utime(path, (now, now))
        folder.complete()
        return run
    except BaseException:
        if charge is not None:
            charge.give_back()
        folder.abandon()
        raise
    finally:
        folder.close()


def _open(request: TuneRequest, seed: Seed, say: Say | None) -> Parts:
    """Rows to train on, to choose by and to measure; all trials have the same."""
    first = request.of_run(request.candidates()[0])
    columns = asked_columns(first)
    require(columns is not None, "veil tune needs a table: for a folder of images compare methods with veil compare")
    assert columns is not None
    require(columns.owner is None, "veil tune supports one ε for all rows: omit the owner column")
    require(not is_large(request.data), "veil tune needs a table that fits into memory: search on a part of the rows")
    holdout = holdout_of(first, holdout_key(seed))
    require(request.test is not None or holdout.share > 0, "a search needs rows to choose by: set --holdout above 0")
    method = create(first.method, first.option)
    split = Split(seed, holdout, relation_asked(method), holdout.share / 2)
    opened = open_rows(first, columns, Opening(method, first.settings, split, say=say))
    if opened.test is not None:  # public rows: any rule may split them
        rows = np.arange(len(opened.test.targets))
        return Parts(opened, split, *(_some(opened.test, rows[rows % 2 == half]) for half in (0, 1)))
    held, chosen = opened.held_out, opened.choosing
    require(held is not None, "too few rows to hold any out, so there is nothing to choose by: use veil train")
    assert held is not None
    assert chosen is not None
    parts = [replace(held, present=held.present & which) for which in (chosen, ~chosen)]
    return Parts(opened, split, *parts)


def _some(rows: Problem, which: NDArray[np.int64]) -> Problem:
    """Some of the public rows of a table."""
    assert isinstance(rows.inputs, Tensor)
    return rows.with_rows(rows.inputs[which], rows.targets[which], rows.cell_of[which])


def _planned(request: TuneRequest, parts: Parts) -> Search:
    whole, asked = request.charge == "composition", request.trials_asked
    require(
        not whole or (asked == int(asked) and asked >= 2),
        f"trials is {asked:g}: with --charge composition it must be a whole number from 2",
    )
    require(
        whole or request.sampler == "random",
        "optuna looks at the scores of earlier trials, which selection keeps secret: add --charge composition",
    )

    def parameters(candidate: Candidate) -> int:
        model = parts.model(request.of_run(candidate), Seed.from_int(0))
        return sum(weights.numel() for weights in model.parameters() if weights.requires_grad)

    trials = int(asked) if whole else NumberOfTrials.expecting(asked)
    search = plan_search(request.candidates(), parts.opened.problem.public, request.settings, trials, parameters)
    require(
        parts.public or search.relation is parts.split.relation,
        f"the first candidate has the relation {parts.split.relation or 'none'}, the search {search.relation}: give a "
        "candidate of that relation first",
    )
    return search


def _tested(request: TuneRequest, parts: Parts, search: Search) -> list[str]:
    """Test every candidate on synthetic rows before anything is charged; what cannot be tested is not covered."""
    said: list[str] = []
    for choice, plan in enumerate(search.plans):
        model = parts.model(request_of(request, search, choice), Seed.from_int(0))
        said += tested(Job(model, parts.opened.problem), plan)
    return list(dict.fromkeys(said))


@dataclass(frozen=True)
class _Best:
    """The best trial: its number, its candidate, the ledger of the whole; the scores that may be seen."""

    number: int
    choice: int
    ledger: Ledger
    search: Search
    shown: Sequence[Mapping[str, Any]]
    folder: Path
    request: TuneRequest
    held_out: dict[str, Ledger]


def _searched(
    request: TuneRequest, parts: Parts, search: Search, folder: RunFolder, charge: Charge | None, workers: Workers
) -> _Best:
    """Reserve, run the trials, find the best."""
    plan = search.whole()
    if charge is not None:
        charge.reserve(plan)
    terms = {LEDGER: plan.terms()}
    if not parts.public:
        terms[CHOOSING] = search.scoring_terms(parts.choosing.public)
    for each in terms.values():
        check_budgets(Ledger(each), search.settings.accountant_for())
    ledgers = [folder.ledger(each, name) for name, each in terms.items()]
    private = folder.path / TRIALS
    private.mkdir(mode=0o700, exist_ok=folder.resumed)
    trials = Trials(request, parts, search, folder.seed, private)
    if charge is not None:
        charge.on_start()
    if isinstance(search.trials, NumberOfTrials):
        _reserve(ledgers, 0)
        numbers = range(search.trials.draw(folder.seed))
        done = _in_parallel(trials, [trials.drawn(number) for number in numbers], workers)
    elif request.sampler == "optuna":
        done = _one_by_one(trials, search.trials, partial(_reserve, ledgers))
    else:
        for number in range(search.trials):
            _reserve(ledgers, number)
        done = _in_parallel(trials, [trials.drawn(number) for number in range(search.trials)], workers)
    # Equal scores are ordered by a coin of each trial's own.
    coins = {number: folder.seed.generator("order of equals", number).random() for number, _, _ in done}
    number, choice, _ = max(done, key=lambda trial: (trial[2], coins[trial[0]]))
    shown = []
    if search.charge == "composition":
        labels = [candidate.label for candidate in search.candidates]
        shown = [{"trial": n + 1, "candidate": labels[c], "score": s if math.isfinite(s) else None} for n, c, s in done]
    held_out = {name: ledger for name, ledger in zip(terms, ledgers, strict=True) if name != LEDGER}
    return _Best(number, choice, ledgers[0], search, shown, trials.place(number), request, held_out)


def _reserve(ledgers: Sequence[Ledger], number: int) -> None:
    """One token of each account: all trials of a selection, or one trial of a composition."""
    for ledger in ledgers:
        events = {cell: account.rule.tokens[0].event for cell, account in enumerate(ledger.terms.accounts)}  # type: ignore[attr-defined]
        ledger.reserve("search", number, 1, events)


def _in_parallel(trials: Trials, drawn: Sequence[tuple[int, int]], workers: Workers) -> list[tuple[int, int, float]]:
    """All trials with their scores. Nothing is said on the way: how many there are is a secret."""
    found = []
    for (number, choice), score in in_order(partial(_run, trials), drawn, workers):
        if score is None:
            raise InputError(f"a trial failed: {WORKER_DIED} with --resume")
        found.append((number, choice, score))
    return found


def _run(trials: Trials, drawn: tuple[int, int]) -> float:
    """One trial. No error names its folder: the number of it says that there were so many trials."""
    number, choice = drawn
    try:
        return trials.run(number, choice)
    except Exception as error:
        said, name = str(error), trials.place(number).name
        if name not in said:
            raise
        raise InputError("a trial failed: " + re.sub(rf"\S*{name}\S*", "its folder", said)) from None


def _one_by_one(trials: Trials, count: int, reserve: Callable[[int], None]) -> list[tuple[int, int, float]]:
    """Trials that a sampler chooses by the scores released so far; a resumed search asks it the same questions."""
    ask, tell = suggester([candidate.label for candidate in trials.search.candidates], trials.seed)
    found = []
    for number in range(count):
        choice = ask()
        reserve(number)
        score = _run(trials, (number, choice))
        tell(score)
        found.append((number, choice, score))
    return found


def _finished(best: _Best, config: dict[str, Any], parts: Parts, folder: RunFolder, untested: Sequence[str]) -> Run:
    """The run of the best trial: measured on rows that had no part in the choice, certified for the whole search."""
    search, opened = best.search, parts.opened
    candidate, whole = search.candidates[best.choice], search.whole()
    plan = replace(whole, method=search.plans[best.choice].method, options=search.plans[best.choice].options)
    plan = replace(
        plan, details={**search.plans[best.choice].details, **whole.details}, steps=search.plans[best.choice].steps
    )
    request = request_of(best.request, search, best.choice)
    model = parts.model(request, Seed.from_int(0))
    model.load_state_dict(load_file(best.folder / "model.safetensors"))
    measured = [parts.figures(parts.measuring, folder.seed, folder)(model, plan)]
    if opened.encoding is not None:
        measured.append(Learned(opened.encoding)(model, plan))
        if parts.public or request.show_private:
            rows = opened.problem if opened.test is None else opened.test
            measured.append(WithoutPrivacy(rows, parts.public)(model, plan))
    if request.show_private:
        measured.append(ExactFigures(opened.problem)(model, plan))
    not_covered = [
        CANDIDATES_CHOSEN,
        *opened.not_covered,
        *untested,
        *(sentence for one in measured for sentence in one.not_covered),
    ]
    not_covered += [TIME] if search.charge == "selection" else []
    not_covered += [METRICS] if parts.public else []
    said = [SELECTED if search.charge == "selection" else COMPOSED, CHOSEN_BY_PUBLIC if parts.public else PARTS]
    score = score_in(best.folder)
    finding = {"chosen": candidate.label, "score on the rows chosen by": score if math.isfinite(score) else None}
    finding |= search_words(search)
    run = Run(
        model=model,
        plan=plan,
        history=_history_in(best.folder),
        metrics=measured[0].metrics,
        certificate=certify(
            best.ledger,
            search.settings.accountant_for(),
            assumptions=(
                *plan.all_assumptions(folder.seed.given),
                *said,
                *(s for one in measured for s in one.assumptions),
            ),
            not_covered=tuple(dict.fromkeys(not_covered)),
            held_out=best.held_out | dict(measured[0].held_out),
        ),
        findings={name: value for one in measured for name, value in one.findings.items()}
        | {"Search": {name: value for name, value in finding.items() if value is not None}}
        | ({"Trials": list(best.shown)} if best.shown else {}),
        seconds=float(_record_of(best.folder)["seconds"]),  # of this trial: that of the search tells the number
        config={**config, "method": request.method, "model": request.model, "option": request.record()["option"]},
        folder=folder.path,
        effects=next((one.effects for one in measured if one.effects is not None), None),
        preprocessing=None if opened.encoding is None else preprocessing_of(request, plan.facts, opened.encoding),
    )
    run.save(folder.path)
    return run


def search_words(search: Search) -> dict[str, Any]:
    """The constants of a search as a report shows them."""
    found = search.as_json()
    names = {
        "charge": "paid by",
        "expected_trials": "expected trials",
        "trials": "trials",
        "trial_epsilon": "a trial's ε",
        "trial_delta": "a trial's δ",
    }
    return {words: found[name] for name, words in names.items() if name in found}
