"""Individualised privacy progression: continue with raised budgets, or roll back to where a lowered budget held.

Both need plans whose steps are all the same releases (`dp-sgd`, `auto-s`, `dp-is-sgd`, `dpsur`, `idp-sgd`, `ino-sgd` on
clip or normalise) on rows drawn by Poisson sampling. Weights are a function of the releases made so far, so a
checkpoint costs what was released up to it: its steps, and everything that was released before the first step.
"""

from __future__ import annotations

import copy
import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from veil.accounting import AccountingError, Ledger
from veil.accounting.calibration import rate_for
from veil.accounting.certificate import certify, check_budgets
from veil.bounding import Bound, Ordered
from veil.budget_store.runs import SNAPSHOT
from veil.errors import InputError, require
from veil.foundation.files import FOR_ALL, write_whole
from veil.foundation.randomness import Seed
from veil.metrics import evaluate
from veil.metrics.noisy_confusion import MEASURED
from veil.plans import Earlier, LossFunction, Plan
from veil.plans.controllers import Constant, Controller, first_release
from veil.plans.controllers.following_tail import FollowingTail
from veil.plans.plan import METRICS
from veil.problem import Problem, PublicFacts
from veil.problem.budgets import read_budgets
from veil.releases import GradientRelease
from veil.sampling.draws import Poisson
from veil.training.callbacks import Callback, StepReport
from veil.training.carrying import GRADIENT, StepReleases
from veil.training.fitting import Job, Measured, execute
from veil.training.identity import who_is_who
from veil.training.losses import row_losses
from veil.training.process_group import ProcessGroup
from veil.training.run import Run, weights_check
from veil.training.run_folder import EVALUATION, LEDGER, LEDGERS, RunFolder

CHOICE_IS_PUBLIC = (
    "Which budgets were raised, and to what, was decided without looking at private rows. If it looked at the first "
    "model, the ε of the owners who raised is a reading of what was spent, not a promise made beforehand."
)
SAME_ROWS = "The rows are those of the earlier run, and every row has the group, owner and person that it had there."
LATER_IS_GONE = (
    "Weights, figures and reports of the steps after the checkpoint, and figures on held-out rows: the certificate "
    "holds for the checkpoint only if none of them was or will be shown to anybody."
)
OTHER_BRANCHES = "Other runs that continue the same earlier run: what they release costs the same rows more."
CHARGED = "charged_to_a_budget"


@dataclass(frozen=True)
class Checkpoint:
    """The weights after `steps` steps of the run of this plan."""

    steps: int
    weights: Mapping[str, Tensor] = field(repr=False)
    plan: Plan = field(repr=False)


class CheckpointEvery(Callback):
    """Keep the weights every `steps` steps: what `roll_back` goes back to."""

    def __init__(self, steps: int) -> None:
        require(steps >= 1, f"steps is {steps}: it must be at least 1")
        self.steps = steps
        self.kept: list[Checkpoint] = []

    def on_step(self, report: StepReport) -> None:
        """Copy the weights when it is time."""
        if (report.step + 1) % self.steps == 0:
            self.kept.append(Checkpoint(report.step + 1, _weights(report.model), report.plan))


def raised_plan(plan: Plan, budgets: Mapping[str, float], steps: int) -> Plan:
    """The plan of `steps` further steps in which only owners with raised budgets take part.

    Noise and thresholds stay; the rate of each such owner is the largest at which everything before and everything
    to come together cost at most its raised budget. An owner whose budget was not raised is left out.
    """
    old = StepReleases.of(plan)
    require(steps >= 1, f"steps is {steps}: it must be at least 1")
    facts, before = _with_budgets(plan, budgets), _budgets(plan)
    raised = [new > spent for new, spent in zip(_given(facts), before, strict=True)]
    lowered = [new < spent for new, spent in zip(_given(facts), before, strict=True)]
    require(not any(lowered), "a budget is below what was already spent: roll back to a checkpoint instead")
    require(any(raised), "no budget is above what was already spent: raise at least one")
    require(
        plan.gate is None or all(raised),
        f"{plan.method} tests every update on rows of all owners: raise the budget of every owner",
    )
    rates = _rates(old, facts, raised, steps)
    draw, release = Poisson(rates), old.gradient
    require(draw.expected_batch(facts) > 0, "no row of the owners who raised takes part: raise others too")
    batch, lines = draw.expected_batch(facts), (_line(release, facts), _line(replace(release, draw=draw), facts))
    controller: Controller
    if isinstance(plan.controller, FollowingTail):
        controller = plan.controller.drawn_by(draw, batch, lines[1], steps)
    else:
        bound = _rescaled(release.bound, *lines)
        controller = Constant(replace(release, draw=draw, divisor=batch, bound=bound))
    further = first_release(controller)
    new = replace(old, events={**old.events, GRADIENT: further.events(facts)})
    details = {
        **plan.details,
        "earlier_steps": old.steps_before + plan.steps,
        **({"tail": controller.in_words} if isinstance(controller, FollowingTail) else {}),
        "batch": batch,
        "owner_rates": {name: max(rates[c] for c in _cells(facts, o)) for o, name in enumerate(facts.owners)},
    }
    return replace(
        plan,
        facts=facts,
        steps=steps,
        controller=controller,
        rules=tuple(
            old.rule(cell, facts, [*old.promised(cell), *new.own(cell, steps)]) for cell in range(len(facts.cells))
        ),
        assumptions=tuple(dict.fromkeys((*plan.assumptions, CHOICE_IS_PUBLIC, SAME_ROWS))),
        details=details,
        over_budget=False,
        earlier=old.as_earlier(),
    )


def raise_budgets(
    run: Run,
    problem: Problem,
    budgets: Mapping[str, float],
    steps: int,
    *,
    evaluation: Problem | None = None,
    loss: LossFunction = row_losses,
    callbacks: Sequence[Callback] = (),
    out: Path | str | None = None,
) -> Run:
    """Continue a finished run, on a copy of its model, after some owners raised their budgets.

    The new ledger first records all releases of the earlier run, then those to come; each owner's ε is that of both
    parts together. The optimizer is reset. The noise is new: the seed is fresh or, where a person gave the earlier one,
    derived from that one and the new plan.

    Args:
        run: The finished run; its model must have the weights that the run ended with.
        problem: The rows of the run, each with the group and owner that it had.
        budgets: The new ε of each owner who raised it.
        steps: Number of further steps.
        evaluation: Rows that were declared public, to measure on.
        loss: As in `veil.fit`.
        callbacks: As in `veil.fit`.
        out: Folder of the new run.

    Returns:
        The continued run; its certificate covers both parts.

    Raises:
        InputError: If the earlier run has releases that cannot be carried over, or the rows are not those of the run.
    """
    _check_alone()
    require(
        not _charged(run),
        "Cannot raise budgets: this run was charged to the budget of a data set, and further steps would not be. Train "
        "a new run on that data set instead.",
    )
    require(
        replace(problem.public, budgets=None) == replace(run.plan.facts, budgets=None),
        "`problem` is not that of the earlier run: groups, owners, sizes, classes and shape must be the same.",
    )
    require(
        who_is_who(problem) == run.who,
        "Cannot raise budgets: who is who in `problem` differs from the earlier run. Give the same rows in the same "
        "order, each with the group, owner and person that it had there.",
    )
    require(
        weights_check(run.model) == run.trained,
        "The model of this run was changed after the run: load its final weights, or train a new run.",
    )
    plan = _continued(raised_plan(run.plan, budgets, steps), run)
    missing = (*run.certificate.not_covered, OTHER_BRANCHES)
    job = Job(
        copy.deepcopy(run.model),
        problem,
        evaluation,
        loss,
        callbacks,
        missing,
        run.config,
        measures=[lambda model, plan: Measured(held_out=run.held_out)],
    )
    with _folder(out, plan, run) as folder:
        more = execute(job, plan, folder)
        _copy_ledgers(run, folder, LEDGERS)
    return more


def roll_back(
    run: Run,
    checkpoints: Sequence[Checkpoint],
    budgets: Mapping[str, float],
    *,
    evaluation: Problem | None = None,
    out: Path | str | None = None,
) -> Run:
    """The run as it stood at the last of its checkpoints at which the lowered budgets still held.

    The new ledger records the releases up to there. The earlier ledger stays as it is, a true record of what was
    computed; the certificate says that the later weights must not be shown. A run that stopped early may have stopped
    because of what it had released: its checkpoint keeps the ε of all steps that the lowered budgets allow.

    Args:
        run: The finished run.
        checkpoints: What a `CheckpointEvery` of this run has kept.
        budgets: The new ε of each owner who lowered it.
        evaluation: Rows that were declared public, to measure on.
        out: Folder of the new run.

    Returns:
        The run at the checkpoint, with the certificate of what was released up to it.

    Raises:
        InputError: If the budgets held at no checkpoint, or the run has releases that cannot be taken apart.
    """
    _check_alone()
    plan, releases = run.plan, StepReleases.of(run.plan)
    require(
        not plan.settings.public_steps,
        "a run with public_steps cannot be rolled back: which of its checkpoints is taken is no public fact",
    )
    facts = _with_budgets(plan, budgets)
    require(
        all(new <= old for new, old in zip(_given(facts), _budgets(plan), strict=True)),
        "a budget is above the run's budget: use raise_budgets instead",
    )
    own = {point.steps: point for point in checkpoints if point.plan is plan and 0 < point.steps <= plan.steps}
    require(bool(own), "none of the checkpoints belongs to this run: give those that its CheckpointEvery has kept")
    holds = partial(releases.hold, facts)
    require(
        holds(0),
        "Cannot roll back: what was released before the first step (preprocessing, or the run that this one continues) "
        "costs more than the lowered budget. Train a new run, or roll back the earlier run.",
    )
    found = _last(sorted(own), holds)
    if found is None:
        raise InputError("every checkpoint exceeds the lowered budget: keep checkpoints more often, or retrain")
    whole = run.stopped is None and len(run.history) >= plan.steps
    committed = found if whole else _last(range(found, plan.steps + 1), holds) or found
    rules = tuple(
        releases.rule(cell, facts, [*releases.others(cell), *releases.own(cell, committed)])
        for cell in range(len(facts.cells))
    )
    details = {**plan.details, "rolled_back_from": plan.steps, "earlier_ledger": run.certificate.ledger_check}
    if _charged(run):
        details[CHARGED] = True
    back = replace(plan, facts=facts, steps=found, rules=rules, details=details, over_budget=False)
    # Figures on held-out rows were of this run's last weights, unless they were carried over from an earlier run.
    back = _continued(back, run, gone=tuple(MEASURED))
    measured_before = bool(MEASURED & set(plan.assumptions))
    kept = [name for name in LEDGERS if name != EVALUATION or measured_before]
    check_budgets(Ledger(back.terms()), back.settings.accountant_for(back.facts))
    with _folder(out, back, run) as folder:
        ledger = Ledger(back.terms()) if folder is None else folder.ledger(back.terms())
        made = (Earlier(purpose, 0, found, events) for purpose, events in releases.events.items())
        for part in (*plan.earlier, *made):
            ledger.reserve(part.purpose, part.first, part.count, part.events)
        held_out = run.held_out if measured_before else {}
        ended = _at(run, back, own[found], ledger, evaluation, held_out)
        if folder is not None:
            ended.save(folder.path)
            _copy_ledgers(run, folder, kept)
    return ended


def _at(
    run: Run,
    plan: Plan,
    point: Checkpoint,
    ledger: Ledger,
    evaluation: Problem | None,
    held_out: Mapping[str, Ledger],
) -> Run:
    """The run as it stood at a checkpoint."""
    missing = (*run.certificate.not_covered, LATER_IS_GONE, *((METRICS,) if evaluation is not None else ()))
    certificate = certify(
        ledger,
        plan.settings.accountant_for(plan.facts),
        assumptions=plan.all_assumptions(plan.settings.seed is not None),
        not_covered=tuple(dict.fromkeys(missing)),
        held_out=held_out,
    )
    model = copy.deepcopy(run.model)
    model.load_state_dict(dict(point.weights))
    metrics = None if evaluation is None else evaluate(model, evaluation, plan.facts.groups)
    history = run.history[run.history["step"] < point.steps].reset_index(drop=True)
    return Run(model, plan, history, metrics, certificate, config=run.config, who=run.who, held_out=held_out)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    with torch.no_grad():
        return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _last(counts: Sequence[int], holds: Callable[[int], bool]) -> int | None:
    """The last of growing numbers of steps for which it holds."""
    found = bisect_left(counts, True, key=lambda steps: not holds(steps))
    return counts[found - 1] if found else None


def _rates(old: StepReleases, facts: PublicFacts, raised: Sequence[bool], steps: int) -> tuple[float, ...]:
    """For each cell the largest rate at which all its releases together cost at most the raised budget."""
    plan = old.plan
    known: dict[Any, float] = {}
    tests = replace(old, events={name: events for name, events in old.events.items() if name != GRADIENT})

    def rate(cell: int) -> float:
        multiplier, relation = old.gradient.noise_multiplier(cell), plan.relation
        if multiplier is None or relation is None or not raised[facts.cells[cell].owner]:
            return 0.0
        budget = facts.budget_of(cell, plan.settings.epsilon)
        others = (*old.promised(cell), *tests.own(cell, steps))
        key = old.rules[cell], budget, multiplier, others
        if key not in known:
            judge = old.accountant(cell)
            known[key] = rate_for(budget, plan.delta, multiplier, steps, relation, others, accountant=judge)
        return known[key]

    found = []
    for cell, own in enumerate(facts.cells):
        try:
            found.append(rate(cell))
        except AccountingError as error:
            owner, budget = facts.owners[own.owner], facts.budget_of(cell, plan.settings.epsilon)
            raise InputError(f'owner "{owner}" cannot continue at ε = {budget:g}: {error}') from error
    return tuple(found)


def _continued(plan: Plan, run: Run, gone: Sequence[str] = ()) -> Plan:
    """The plan with what the earlier certificate rested on, and with a seed of its own.

    The noise of the earlier run must not be reused: differences would reveal values. A seed that a
    person gave is replaced by one that follows from it and the plan; otherwise the system draws another.
    """
    given = plan.settings.seed
    if given is not None:
        what = json.dumps(plan.terms().as_json(), sort_keys=True)
        key = Seed.from_int(given).key("continued", 0, what)
        settings = plan.settings.model_copy(update={"seed": int.from_bytes(key[:8], "little") >> 1})
        plan = replace(plan, settings=settings)
    said = plan.all_assumptions(given is not None)
    rest = [text for text in run.certificate.assumptions if text not in said and text not in gone]
    return replace(plan, assumptions=(*plan.assumptions, *rest))


def _check_alone() -> None:
    require(ProcessGroup.joined().alone, "budgets are raised and lowered in one process: start it without torchrun")


def _charged(run: Run) -> bool:
    """Whether the run, or one that it continues, was charged to the budget of a data set: its folder says so."""
    require(
        run.folder is None or run.folder.is_dir(),
        f"Cannot continue: {run.folder}, the folder of the earlier run, is missing. Restore it, or work in the folder "
        "where the run was started.",
    )
    return CHARGED in run.plan.details or (run.folder is not None and (run.folder / SNAPSHOT).exists())


@contextmanager
def _folder(out: Path | str | None, plan: Plan, run: Run) -> Iterator[RunFolder | None]:
    """The folder of the new run, if it has one."""
    if out is None:
        yield None
        return
    record = {"method": plan.method, **run.config, "settings": plan.settings.model_dump(exclude_none=True)}
    folder = RunFolder.open(out, plan.settings, False, record)
    try:
        yield folder
        folder.complete()
    except BaseException:
        folder.abandon()
        raise
    finally:
        folder.close()


def _copy_ledgers(run: Run, folder: RunFolder | None, names: Sequence[str]) -> None:
    """Copy the earlier run's other ledgers into the new folder."""
    if folder is None or run.folder is None:
        return
    for name in names:
        if name != LEDGER and (run.folder / name).exists():
            write_whole(folder.path / name, (run.folder / name).read_bytes(), FOR_ALL)


def _with_budgets(plan: Plan, changed: Mapping[str, float]) -> PublicFacts:
    facts = plan.facts
    new = read_budgets(changed) if changed else {}
    for name in new:
        require(name in facts.owners, f'owner "{name}" does not exist in this run: it has {", ".join(facts.owners)}')
    return replace(facts, budgets=tuple(new.get(n, b) for n, b in zip(facts.owners, _budgets(plan), strict=True)))


def _budgets(plan: Plan) -> tuple[float, ...]:
    """The ε of each owner."""
    return plan.facts.budgets or (plan.settings.epsilon,) * len(plan.facts.owners)


def _given(facts: PublicFacts) -> tuple[float, ...]:
    return facts.budgets or ()


def _cells(facts: PublicFacts, owner: int) -> list[int]:
    return [index for index, cell in enumerate(facts.cells) if cell.owner == owner]


def _line(release: GradientRelease, facts: PublicFacts) -> float:
    """The expected sum of thresholds of a batch."""
    rates = release.draw.rates if isinstance(release.draw, Poisson) else ()
    return sum(c.rows * rate * limit for c, rate, limit in zip(facts.cells, rates, release.bound.limits, strict=True))


def _rescaled(bound: Bound, before: float, after: float) -> Bound:
    """The same bound; a tail keeps its share of the expected line."""
    if not isinstance(bound, Ordered) or before == 0:
        return bound
    return replace(bound, tail=replace(bound.tail, length=bound.tail.length * after / before))  # type: ignore[type-var]
