"""The run on a table, from request to finished run: open, plan, charge, execute, in its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from veil.errors import require
from veil.foundation.randomness import Seed
from veil.methods import Method, create, planned, relation_asked
from veil.plans import Plan
from veil.plans.budget_remarks import budget_remarks
from veil.problem import PublicFacts
from veil.request import Request, Settings
from veil.tables.charging import Charge, budgeted_run
from veil.tables.effects import Learned
from veil.tables.encoding import Encoding
from veil.tables.identity import held_out_identity, request_identity
from veil.tables.image_predictor import image_record
from veil.tables.images import holds_images, scaling_for
from veil.tables.measuring import ExactFigures, HeldOutFigures, expected_rows
from veil.tables.opening import Opened, Opening, Say, open_rows
from veil.tables.predictor import preprocessing_record
from veil.tables.preparing import columns_of, holdout_of, model_options
from veil.tables.splitting import HOLDOUT_KEY, Split, holdout_key
from veil.tables.table import Columns
from veil.tables.without_privacy import WithoutPrivacy
from veil.training import Callback, Run
from veil.training.duration import duration_in_words, estimated_seconds
from veil.training.fitting import Job, Measure, execute
from veil.training.run_folder import LEDGER, RunFolder

# A shorter training is over before anybody has read how long it takes.
WORTH_SAYING = 5.0
# Where the record of a run that is a part of a comparison keeps its number.
REPETITION = "repetition"


@dataclass(frozen=True)
class PartOf:
    """The comparison that a run is a part of: its number there, and what its certificate does not cover.

    Runs of one number hold the same rows out, whatever their seeds: then two methods are measured on the same rows.
    """

    repetition: int
    not_covered: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """What the run's configuration says of it."""
        return {REPETITION: self.repetition}


def train_table(
    request: Request,
    *,
    method: Method | None = None,
    out: Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    config: Mapping[str, Any] | None = None,
    part: PartOf | None = None,
    say: Say | None = None,
) -> Run:
    """Read, set rows apart, preprocess, train, measure; the run's folder holds what each of these cost.

    With `resume`, the same call resumes a run that was interrupted at any of these. `method` is one of your own, in the
    place of the one that the request names.

    Args:
        request: What to train on, how, and with which ε and δ.
        method: A method of your own, in the place of the one that the request names.
        out: Folder of the run; without one nothing is stored.
        resume: Resume the interrupted run in `out`.
        callbacks: What looks at each step.
        config: What else the run's configuration says.
        part: The comparison that this run is a part of.
        say: Where sentences on the way go.

    Returns:
        The finished run.

    Raises:
        InputError: Something asked for cannot be done; the sentence says what to change.

    >>> import pandas as pd, tempfile
    >>> people = pd.DataFrame({"sex": ["f", "m"] * 300, "age": list(range(20, 70)) * 12})
    >>> people["bought"] = ["yes" if age > 45 else "no" for age in people["age"]]
    >>> with tempfile.TemporaryDirectory() as place:
    ...     people.to_csv(place + "/people.csv", index=False)
    ...     asked = {"data": place + "/people.csv", "target": "bought", "group": "sex"}
    ...     run = train_table(Request.checked(**asked, settings=Settings(epsilon=2.0)))
    >>> sorted(run.certificate.by_group), run.certificate.epsilon <= 2.0
    (['f', 'm'], True)
    """
    method = create(request.method, request.options()) if method is None else method
    columns, settings = asked_columns(request), request.settings
    whole = {**(config or {}), **configuration(request, columns), **({} if part is None else part.record())}
    not_covered = () if part is None else part.not_covered
    if out is None:
        by = Opening(method, settings, _split(request, method, seed_of(settings), part), say=say, look=True)
        with closing_rows(_opened(request, columns, by, not_covered)) as opened:
            return _train(opened, by, callbacks, whole)
    record = {**whole, "method": method.name, "settings": settings.model_dump(exclude_none=True)}
    folder = RunFolder.open(out, settings, resume, record)
    charge = charge_of(request, columns, folder)
    try:
        folder.hold_to("request", request_identity(request, columns, method, record, folder.seed))
        by = Opening(method, settings, _split(request, method, folder.seed, part), folder, charge, say, look=True)
        with closing_rows(_opened(request, columns, by, not_covered)) as opened:
            run = _train(opened, by, callbacks, whole)
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


def _opened(request: Request, columns: Columns | None, by: Opening, not_covered: Sequence[str]) -> Opened:
    opened = open_rows(request, columns, by)
    return replace(opened, not_covered=(*opened.not_covered, *not_covered))


@contextmanager
def closing_rows(opened: Opened) -> Iterator[Opened]:
    """Let go of rows that workers hold when they are needed no more."""
    try:
        yield opened
    finally:
        if opened.problem.elsewhere is not None:
            opened.problem.elsewhere.close()


@dataclass(frozen=True)
class Rehearsal:
    """What a run would do: its plan, about how many seconds training would take, if known, and the opened rows."""

    plan: Plan
    seconds: float | None
    opened: Opened


def plan_of(request: Request, part: PartOf | None = None) -> Plan:
    """The plan that a training run would have: rows are read for their public facts, and nothing is released."""
    with closing_rows(_rehearsed(request, None, look=False, part=part)[0]) as opened:
        return planned(opened.method, opened.problem.public, opened.settings)


def opened_to_plan(request: Request) -> Opened:
    """The rows of a request, opened as a training run would open them; nothing is charged or released."""
    return _rehearsed(request, None, look=False)[0]


def rehearse(request: Request, say: Say | None = None) -> Rehearsal:
    """The plan and how long training would take; what a run would say of its table is said too."""
    opened, by = _rehearsed(request, say, look=True)
    plan = planned(opened.method, opened.problem.public, opened.settings)
    _remark(by.say, plan)
    seconds = estimated_seconds(opened.factory(opened.problem, by.split.seed), opened.problem, plan)
    return Rehearsal(plan, seconds, opened)


def _rehearsed(request: Request, say: Say | None, look: bool, part: PartOf | None = None) -> tuple[Opened, Opening]:
    columns, settings = asked_columns(request), request.settings
    method = create(request.method, request.options())
    configuration(request, columns)
    by = Opening(method, settings, _split(request, method, seed_of(settings), part), say=say, look=look)
    return open_rows(request, columns, by), by


def _remark(say: Say | None, plan: Plan) -> None:
    if say is not None:
        for sentence in budget_remarks(plan):
            say(sentence)


def asked_columns(request: Request) -> Columns | None:
    """The roles of the columns; None for a folder of images."""
    return None if holds_images(request.data) else columns_of(request)


def _split(request: Request, method: Method, seed: Seed, part: PartOf | None = None) -> Split:
    coin = seed if part is None else Seed.from_int(part.repetition)
    return Split(seed, holdout_of(request, holdout_key(coin)), relation_asked(method))


def _train(opened: Opened, by: Opening, callbacks: Sequence[Callback], config: Mapping[str, Any]) -> Run:
    """Plan, charge, execute."""
    _check_scores(opened)
    plan = planned(opened.method, opened.problem.public, opened.settings)
    _remark(by.say, plan)
    if by.charge is not None:
        by.charge.reserve(plan)
    job = _job(opened, by, callbacks, config)
    seconds = None if by.say is None else estimated_seconds(job.model, job.problem, plan)
    if by.say is not None and seconds is not None and seconds >= WORTH_SAYING:
        by.say(f"Training takes {duration_in_words(seconds)}.")
    job = replace(job, preprocessing=preprocessing_of(opened.request, plan.facts, opened.encoding))
    return execute(job, plan, by.folder)


def _check_scores(opened: Opened) -> None:
    """Reject a release of counts by probability that cannot be made, before anything is spent."""
    two = len(opened.problem.public.classes) == 2 and opened.held_out is not None
    require(
        two or not opened.request.release_scores,
        "--release-scores is for two classes and held-out rows: leave it out (with --test, --threshold-for needs no "
        "release)",
    )


def preprocessing_of(request: Request, facts: PublicFacts, encoding: Encoding | None) -> dict[str, Any]:
    """What turns a new table, or images where there is no encoding, into predictions, besides the weights."""
    options = model_options(request, facts, encoding)
    if encoding is None:
        return image_record(facts, scaling_for(request.model), request.model, options)
    return preprocessing_record(encoding, facts, request.model, options)


def _job(opened: Opened, by: Opening, callbacks: Sequence[Callback], config: Mapping[str, Any]) -> Job:
    """What the run works on, and what is measured at its end."""
    split, folder, measures = by.split, by.folder, list[Measure]()
    if folder is not None:  # other held-out rows than the run began with would be measured with the same noise
        held = held_out_identity(opened.held_out, opened.allowed, folder.seed)
        folder.hold_to("held-out rows", held, before=LEDGER)
    if opened.held_out is not None:
        scores = opened.request.release_scores
        expected = expected_rows(opened.problem.public, opened.share, opened.share)
        measures.append(
            HeldOutFigures(opened.held_out, split.seed, split.relation, folder, opened.allowed, scores, expected)
        )
    if opened.request.show_private:
        measures.append(ExactFigures(opened.problem))
    if opened.encoding is not None:
        measures.append(Learned(opened.encoding))
        if opened.test is not None or opened.request.show_private:
            rows, public = (opened.problem, False) if opened.test is None else (opened.test, True)
            measures.append(WithoutPrivacy(rows, public))
    if split.holdout.share > 0:
        config = {**config, HOLDOUT_KEY: split.holdout.key.secret.hex()}
    return Job(
        opened.factory(opened.problem, split.seed),
        opened.problem,
        opened.test,
        callbacks=callbacks if by.charge is None else [*callbacks, by.charge],
        not_covered=opened.not_covered,
        config=config,
        measures=measures,
        columns=tuple(asdict(use) for use in opened.uses),
        remarks=tuple(remark.sentence for remark in opened.remarks),
    )


def seed_of(settings: Settings) -> Seed:
    """The seed that was given, or a fresh one."""
    return Seed.from_system() if settings.seed is None else Seed.from_int(settings.seed)


def charge_of(request: Request, columns: Columns | None, folder: RunFolder) -> Charge | None:
    """The data set's budget, where the user named one; in a process group the first process is charged."""
    if request.dataset is None or not folder.leads:
        return None
    run = budgeted_run(request.store, request.dataset, columns, folder.path, folder.path.name)
    more = reads_more(request, columns)
    return Charge(run, resumed=folder.resumed, held_out=request.test is None, reads_more=more)


def reads_more(request: Request, columns: Columns | None) -> list[str]:
    """What a run reads from the rows without noise, so that no ε covers it."""
    schema = None if columns is None else columns.schema
    open_ = columns is not None and (schema is None or schema.from_rows)
    found = ["bounds and categories taken from the rows"] if open_ and request.private_preprocessing is None else []
    own = columns is not None and columns.person is not None and columns.owner == columns.person
    found += ["levels of the per-row budgets"] if request.row_budgets or (own and request.budgets is not None) else []
    return found + (["exact figures on training rows"] if request.show_private else [])


def configuration(request: Request, columns: Columns | None) -> dict[str, Any]:
    """What `veil train --config` needs to repeat the run."""
    if columns is None:
        for name, given in (("--target", request.target), *(("--group", group) for group in request.group)):
            require(given in (None, "class"), f"{name} is {given}: in a folder of images the class is target and group")
        for_tables = {
            "--owner": request.owner,
            "--person": request.person,
            "--budgets": request.budgets,
            "--row-budgets": request.row_budgets,
            "--private-preprocessing": request.private_preprocessing,
        }
        for option, value in for_tables.items():
            require(value is None, f"{option} is for tables: a folder of images has neither owners nor columns")
        return request.record() | {"target": "class", "group": ["class"], "store": None}
    server = "://" in request.store
    return request.record() | {
        "target": columns.target,
        "group": list(columns.groups),
        "owner": None if request.row_budgets is not None else columns.owner,
        "person": columns.person,
        # The address of a server may hold a password: it is given anew.
        "store": None if server or request.dataset is None else request.store,
    }
