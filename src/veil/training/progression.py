"""Individualised privacy progression: go on with raised budgets, or back to where a lowered budget still held.

Both need plans whose steps are all the same release (`dp-sgd`, `auto-s`, `dp-is-sgd`, `idp-sgd`, `ino-sgd` on clip or
normalise) on rows drawn by Poisson sampling. Weights are a function of the releases made so far, so a checkpoint costs
nothing beyond what its steps cost.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from veil.accounting import AccountingError, Ledger, Repeated, TokenBucket
from veil.accounting.calibration import rate_for
from veil.accounting.certificate import certify
from veil.accounting.events import repeated
from veil.bounding import Bound, Ordered
from veil.controllers import Constant
from veil.draws import Poisson
from veil.errors import InputError, require
from veil.metrics import evaluate
from veil.metrics.owners import evaluate_owners
from veil.plan import METRICS, TUNING, LossFunction, Plan
from veil.problem import Problem, PublicFacts
from veil.randomness import Seed
from veil.release import GradientRelease
from veil.training.callbacks import Callback, StepReport
from veil.training.fitting import row_losses
from veil.training.loop import Loop
from veil.training.run import Run

CHOICE_IS_PUBLIC = (
    "Which budgets were raised, and to what, was decided without looking at private rows. If it looked at the first "
    "model, the ε of the owners who raised is a reading of what was spent, not a promise made beforehand."
)
LATER_IS_GONE = (
    "Weights, figures and reports of the steps after the checkpoint: the certificate holds for the checkpoint only if "
    "none of them was or will be shown to anybody."
)


@dataclass(frozen=True)
class Checkpoint:
    """The weights after `steps` steps."""

    steps: int
    weights: Mapping[str, Tensor] = field(repr=False)


class CheckpointEvery(Callback):
    """Keep the weights every `steps` steps: what `roll_back` goes back to."""

    def __init__(self, steps: int) -> None:
        require(steps >= 1, f"steps is {steps}: it must be at least 1")
        self.steps = steps
        self.kept: list[Checkpoint] = []

    def on_step(self, report: StepReport) -> None:
        """Copy the weights when it is time."""
        if (report.step + 1) % self.steps == 0:
            self.kept.append(Checkpoint(report.step + 1, _weights(report.model)))


class OwnerCurves(Callback):
    """Learning curves per owner, on rows that were declared public."""

    def __init__(self, evaluation: Problem, every: int) -> None:
        require(every >= 1, f"every is {every}: it must be at least 1")
        self.evaluation, self.every = evaluation, every
        self.curves: dict[str, list[float]] = {owner: [] for owner in evaluation.public.owners}
        self.steps: list[int] = []

    def on_step(self, report: StepReport) -> None:
        """Measure when it is time, after the first step and after the last."""
        if report.step and (report.step + 1) % self.every and report.step + 1 != report.plan.steps:
            return
        self.steps.append(report.step + 1)
        for owner, score in evaluate_owners(report.model, self.evaluation).by_group.items():
            self.curves[owner].append(score.accuracy)

    def findings(self) -> Mapping[str, Any]:
        """The curves by owner."""
        return {"steps": self.steps, "accuracy": self.curves}


def raised_plan(plan: Plan, budgets: Mapping[str, float], steps: int) -> Plan:
    """The plan of `steps` further steps in which only owners with raised budgets take part.

    Noise and thresholds stay; the rate of each such owner is the largest at which everything before and everything
    to come together cost at most its raised budget. An owner whose budget was not raised has spent it and rests.
    """
    release, old = _only_release(plan), _spent_rules(plan)
    require(steps >= 1, f"steps is {steps}: it must be at least 1")
    facts = _with_budgets(plan, budgets)
    raised = [new > before for new, before in zip(_budgets(facts), _budgets(_with_budgets(plan, {})), strict=True)]
    lowered = [new < before for new, before in zip(_budgets(facts), _budgets(_with_budgets(plan, {})), strict=True)]
    require(not any(lowered), "a budget is below the one that was spent: roll back to a checkpoint instead")
    require(any(raised), "no budget is above the one that was spent: there is nothing to go on with")
    rates = tuple(
        _rate_beside(plan, release, facts, cell, steps) if raised[facts.cells[cell].owner] else 0.0
        for cell in range(len(facts.cells))
    )
    draw = Poisson(rates)
    further = replace(
        release,
        draw=draw,
        divisor=draw.expected_batch(facts),
        bound=_rescaled(release.bound, _line(release, facts), _line(replace(release, draw=draw), facts)),
    )
    events = further.events(facts)
    rules = tuple(
        TokenBucket(repeated([*old[cell].tokens, *([Repeated(events[cell], steps)] if cell in events else [])]))
        for cell in range(len(facts.cells))
    )
    details = {
        **plan.details,
        "earlier_steps": plan.steps,
        "batch": further.divisor,
        "owner_rates": {name: max(rates[c] for c in _cells(facts, o)) for o, name in enumerate(facts.owners)},
    }
    return replace(
        plan,
        facts=facts,
        steps=steps,
        controller=Constant(further),
        rules=rules,
        assumptions=(*plan.assumptions, CHOICE_IS_PUBLIC),
        details=details,
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
    seed: Seed | None = None,
    out: Path | None = None,
) -> Run:
    """Continue a finished run, on a copy of its model, after some owners raised their budgets.

    The new ledger first records the releases of the earlier run, then those to come; each owner's ε is that of both
    parts together. The noise is fresh: a seed given here must not be the one of the earlier run. The optimizer
    starts anew. `out` is the path of the new ledger.
    """
    plan = raised_plan(run.plan, budgets, steps)
    earlier = _only_release(run.plan).events(run.plan.facts)
    # The first part used (seed, step) for its noise: the same again would let anybody subtract one from the other.
    require(
        seed is None or run.plan.settings.seed is None or seed.secret != Seed.from_int(run.plan.settings.seed).secret,
        "the seed is that of the earlier run: noise must never be used twice, give another or none",
    )
    chosen = Seed.from_system() if seed is None else seed
    ledger = Ledger(plan.terms(), out)
    ledger.reserve("earlier run", 0, run.plan.steps, earlier)
    model = copy.deepcopy(run.model)
    loop = Loop(model, problem, plan, loss, chosen, ledger, evaluation, callbacks)
    started = time.perf_counter()
    loop.run()
    return _finished(plan, model, ledger, chosen.given, loop.history, evaluation, (), time.perf_counter() - started)


def roll_back(
    run: Run,
    checkpoints: Sequence[Checkpoint],
    budgets: Mapping[str, float],
    *,
    evaluation: Problem | None = None,
    out: Path | None = None,
) -> Run:
    """The run as it stood at the last checkpoint at which the lowered budgets still held.

    The new ledger records the releases up to there. The earlier ledger stays as it is, a true record of what was
    computed; the certificate says that the later weights must not be shown.
    """
    plan, release = run.plan, _only_release(run.plan)
    facts = _with_budgets(plan, budgets)
    events, accountant = release.events(facts), plan.settings.accountant_for()

    def holds(steps: int) -> bool:
        return all(
            accountant.epsilon([Repeated(event, steps)], plan.delta) <= facts.budget_of(cell, plan.settings.epsilon)
            for cell, event in events.items()
        )

    fitting = [point for point in checkpoints if 0 < point.steps <= plan.steps and holds(point.steps)]
    if not fitting:
        raise InputError("the lowered budget held at no checkpoint: keep checkpoints more often, or train anew")
    point = max(fitting, key=lambda candidate: candidate.steps)
    rules = tuple(
        TokenBucket((Repeated(events[cell], point.steps),) if cell in events else ())
        for cell in range(len(facts.cells))
    )
    details = {**plan.details, "rolled_back_from": plan.steps, "earlier_ledger": run.certificate.ledger_check}
    back = replace(plan, facts=facts, steps=point.steps, rules=rules, details=details)
    ledger = Ledger(back.terms(), out)
    ledger.reserve("gradient", 0, point.steps, events)
    model = copy.deepcopy(run.model)
    model.load_state_dict(dict(point.weights))
    history = run.history[run.history["step"] < point.steps].to_dict("records")
    given = plan.settings.seed is not None
    return _finished(back, model, ledger, given, history, evaluation, (LATER_IS_GONE,), 0.0)


def _finished(
    plan: Plan,
    model: nn.Module,
    ledger: Ledger,
    seed_given: bool,
    history: Sequence[Mapping[Any, Any]],
    evaluation: Problem | None,
    not_covered: tuple[str, ...],
    seconds: float,
) -> Run:
    missing = (TUNING, *not_covered, *((METRICS,) if evaluation is not None else ()))
    certificate = certify(
        ledger,
        plan.settings.accountant_for(),
        assumptions=plan.all_assumptions(seed_given),
        not_covered=missing,
    )
    metrics = None if evaluation is None else evaluate(model, evaluation, plan.facts.groups)
    return Run(model, plan, pd.DataFrame(list(history)), metrics, certificate, seconds=seconds)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    with torch.no_grad():
        return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _only_release(plan: Plan) -> GradientRelease:
    """The one release that every step of the plan makes."""
    require(plan.private, f"{plan.method} is not private: it has no budgets to raise or lower")
    if not isinstance(plan.controller, Constant):
        raise InputError(f"the steps of this {plan.method} plan differ: progression needs steps that are all the same")
    release = plan.controller.gradient
    require(isinstance(release.draw, Poisson), "progression gives owners rates of their own: it needs Poisson sampling")
    return release


def _spent_rules(plan: Plan) -> tuple[TokenBucket, ...]:
    """What the earlier plan committed to; a run that stopped early has still promised all of it."""
    rules = plan.rules or ()
    found = tuple(rule for rule in rules if isinstance(rule, TokenBucket))
    if not rules or len(found) != len(rules):
        raise InputError(f"{plan.method} commits no fixed number of releases: progression needs one that does")
    return found


def _with_budgets(plan: Plan, changed: Mapping[str, float]) -> PublicFacts:
    from veil.budgets import read_budgets

    facts = plan.facts
    new = read_budgets(changed) if changed else {}
    for name in new:
        require(name in facts.owners, f'owner "{name}" is not one of the run: it has {", ".join(facts.owners)}')
    before = facts.budgets or (plan.settings.epsilon,) * len(facts.owners)
    return replace(facts, budgets=tuple(new.get(n, b) for n, b in zip(facts.owners, before, strict=True)))


def _budgets(facts: PublicFacts) -> tuple[float, ...]:
    return facts.budgets or ()


def _cells(facts: PublicFacts, owner: int) -> list[int]:
    return [index for index, cell in enumerate(facts.cells) if cell.owner == owner]


def _rate_beside(plan: Plan, release: GradientRelease, facts: PublicFacts, cell: int, steps: int) -> float:
    """The largest rate at which the cell's earlier releases and `steps` more cost at most its raised budget."""
    multiplier, relation = release.noise_multiplier(cell), plan.relation
    if multiplier is None or relation is None:
        return 0.0
    budget, earlier = facts.budget_of(cell, plan.settings.epsilon), _spent_rules(plan)[cell].tokens
    try:
        return rate_for(
            budget, plan.delta, multiplier, steps, relation, earlier, accountant=plan.settings.accountant_for()
        )
    except AccountingError as error:
        raise InputError(
            f'owner "{facts.owners[facts.cells[cell].owner]}" cannot go on at ε = {budget:g}: {error}'
        ) from error


def _line(release: GradientRelease, facts: PublicFacts) -> float:
    """The expected sum of thresholds of a batch."""
    rates = release.draw.rates if isinstance(release.draw, Poisson) else ()
    return sum(c.rows * rate * limit for c, rate, limit in zip(facts.cells, rates, release.bound.limits, strict=True))


def _rescaled(bound: Bound, before: float, after: float) -> Bound:
    """The same bound; a tail keeps its share of the expected line."""
    if not isinstance(bound, Ordered) or before == 0:
        return bound
    return replace(bound, tail=replace(bound.tail, length=bound.tail.length * after / before))  # type: ignore[type-var]
