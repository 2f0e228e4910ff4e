"""`audit`: one call for every attack, on a plan or on a finished run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from veil.accounting import Repeated
from veil.auditing.attack_curves import AttackCurve, Ceiling, attack_curve, ceiling, ceiling_from_pairs, curves_by
from veil.auditing.canaries import MakeLoop, Scores, play
from veil.auditing.findings import Audit, Finding, shared_confidence
from veil.auditing.input_canaries import play_inputs
from veil.auditing.lira import lira
from veil.auditing.loss_attack import loss_scores
from veil.auditing.lower_bounds import LowerBound, clopper_pearson, fdp_fit, gdp_fit, one_run
from veil.auditing.shadow_models import BuildModel, ShadowTraining, train_shadows
from veil.auditing.solver_canaries import play_solver
from veil.errors import InputError, require
from veil.foundation.parallel import Workers
from veil.foundation.randomness import Seed
from veil.plans import LossFunction, Plan
from veil.problem import Problem, PublicFacts
from veil.request import AuditSettings
from veil.training.loop import Loop
from veil.training.losses import row_losses
from veil.training.run import Run

DEFAULTS = AuditSettings.checked()
Mask = NDArray[np.bool_]
NOT_COVERED = "These figures were computed from private rows without noise: the certificate does not cover them."


def audit(
    target: Plan | Run,
    *,
    problem: Problem | None = None,
    others: Problem | None = None,
    model: BuildModel | nn.Module | None = None,
    loss: LossFunction = row_losses,
    workers: int | Workers = 1,
    out: Path | str | None = None,
    **asked: Any,
) -> Audit:
    """Attack a run or a plan, and report what leaks about the rows of each group and owner.

    `target` is a run, or the plan of one (`veil.plan`). `asked` are the fields of `veil.request.AuditSettings`: attack,
    canaries, shadows, mode, confidence, seed. Attacks: "canary" and "one-run" run the plan once over `canaries`
    synthetic rows per group and need no data; their headlines are the f-DP fit and the bound without assumptions.
    "input" puts rows with a wrong target among those of `problem` and trains once. "lira" trains `shadows` models on
    halves of `problem`, by `workers`, kept in `out`. For both `model(problem, seed)` builds a model. "loss" compares
    the losses of `problem` and of `others` under the trained `model`.

    Args:
        target: A finished run, or a plan (`veil.plan`), which then runs on synthetic rows.
        problem: The rows of the run, for the attacks that train on rows ("input", "lira") or look at them ("loss").
        others: Rows that were not used in training, for the attack "loss".
        model: The trained model, or a function `model(problem, seed)` that builds a fresh one.
        loss: One loss per row; by default the one that fits the targets.
        workers: How many models are trained at the same time, or `veil.Workers` with a joblib backend.
        out: Folder for shadow models, so that an interrupted attack resumes.
        asked: Fields of `veil.request.AuditSettings`.

    Returns:
        Findings for each group and owner: lower bounds of ε with their confidence, and whether the certificate holds.

    Raises:
        InputError: The attack needs rows or a model that were not given, or an unknown setting.

    >>> import veil
    >>> from veil.datasets import GroupSpec, generate
    >>> small = generate([GroupSpec("a", 900), GroupSpec("b", 100)])
    >>> plan = veil.plan(small, "dp-sgd", epsilon=4.0, steps=20, batch_size=100)
    >>> found = veil.audit(plan, canaries=2000, seed=0)
    >>> 2.0 < found.epsilon_lower < 4.0, found.holds, sorted(found.by_group)
    (True, True, ['a', 'b'])
    """
    settings = AuditSettings.checked(**asked)
    if not isinstance(target, Plan | Run):
        raise InputError('an audit needs a run or a plan, such as veil.plan(problem, "dp-sgd", epsilon=1.0)')
    plan, attack = target if isinstance(target, Plan) else target.plan, settings.attack
    if isinstance(target, Run) and model is None:
        model = target.model
    if not settings.reads_rows:
        return canary_audit(plan, settings)
    require(problem is not None, f'the attack "{attack}" needs the rows: give problem')
    assert problem is not None
    if attack == "loss":
        require(isinstance(model, nn.Module), 'the attack "loss" needs the trained model: give model')
        require(others is not None, 'the attack "loss" needs rows that were not used in training: give others')
        assert isinstance(model, nn.Module)
        assert others is not None
        return loss_audit(plan, model, problem, others, settings, loss)
    require(
        model is not None and not isinstance(model, nn.Module),
        f'the attack "{attack}" trains models: give model as a function of problem and seed',
    )
    assert model is not None
    assert not isinstance(model, nn.Module)
    if attack == "input":
        return input_audit(plan, problem, model, settings, loss)
    with TemporaryDirectory() as fallback:
        training = ShadowTraining(plan, problem, model, Path(out or fallback), settings.seed or 0, loss)
        return lira_audit(training, settings, workers)


def _seed(settings: AuditSettings) -> Seed | None:
    return None if settings.seed is None else Seed.from_int(settings.seed)


def canary_audit(plan: Plan, settings: AuditSettings = DEFAULTS, make_loop: MakeLoop = Loop) -> Audit:
    """One run of the plan's own loop (or many solutions) over canaries, and lower bounds on ε for groups and owners."""
    started, confidence = time.perf_counter(), settings.confidence
    if plan.solver is None:
        scores = play(plan, per_group=settings.canaries, seed=_seed(settings), make_loop=make_loop)
    else:
        scores = play_solver(plan, settings.canaries, _seed(settings) or Seed.from_system())
    facts, cells = plan.facts, scores.canaries.cells
    promised, tests = promises(plan), 4 * _parts(facts)

    @cache
    def finding(chosen: tuple[int, ...]) -> Finding:  # a single group has what all have
        mask = np.isin(cells, chosen)
        bounds_at = partial(canary_bounds, scores, chosen, plan.delta)
        return judged(int(mask.sum()), max(promised[cell] for cell in chosen), bounds_at, confidence, tests)

    return Audit(
        attack=settings.attack,
        method=plan.method,
        delta=plan.delta,
        confidence=confidence,
        headline="fdp-fit" if settings.attack == "canary" else "one-run",
        **_by_cells(facts, finding),
        seconds=time.perf_counter() - started,
        details={"canaries": len(cells), "steps": plan.steps, "relation": str(plan.relation)},
        tests=tests,
    )


def _by_cells(facts: PublicFacts, finding: Callable[[tuple[int, ...]], Finding]) -> dict[str, Any]:
    """What was found of all cells, of those of each group and, where there are several, of each owner."""
    owners = enumerate(facts.owners) if len(facts.owners) > 1 else ()
    return {
        "overall": finding(tuple(range(len(facts.cells)))),
        "by_group": {name: finding(cells_of(facts, "group", g)) for g, name in enumerate(facts.groups)},
        "by_owner": {name: finding(cells_of(facts, "owner", o)) for o, name in owners},
    }


def _parts(facts: PublicFacts) -> int:
    """How many sets of rows an audit covers: all, each group, and each owner where there are several."""
    owners = len(facts.owners)
    return 1 + len(facts.groups) + (owners if owners > 1 else 0)


def judged(
    rows: int,
    promised: float,
    bounds_at: Callable[[float], tuple[LowerBound, ...]],
    confidence: float,
    tests: int,
    curve: AttackCurve | None = None,
) -> Finding:
    """Bounds at their own confidence; if one exceeds the guarantee, also at the confidence corrected for all."""
    bounds, above = bounds_at(confidence), tuple[str, ...]()
    if any(bound.epsilon > promised for bound in bounds):
        together = bounds_at(shared_confidence(confidence, tests))
        above = tuple(bound.name for bound in together if bound.epsilon > promised)
    return Finding(rows, promised, bounds, curve, above)


def canary_bounds(scores: Scores, chosen: Sequence[int], delta: float, confidence: float) -> tuple[LowerBound, ...]:
    """All four bounds for the canaries of some cells.

    The fit to the ledger's releases is made for cells that were charged alike; of several kinds the largest is taken,
    each at its part of the risk.
    """
    cells, coins, values = scores.canaries.cells, scores.canaries.coins, scores.values
    alike: dict[frozenset[Repeated], list[int]] = {}
    for cell in chosen:
        alike.setdefault(frozenset(scores.charged[cell]), []).append(cell)
    each = 1.0 - (1.0 - confidence) / len(alike)
    fits = []
    for events, members in alike.items():
        mask = np.isin(cells, members)
        fits.append(fdp_fit(values[mask], coins[mask], tuple(events), delta, each, scores.canaries.rows))
    best = max(fits, key=lambda bound: bound.epsilon)
    mask = np.isin(cells, list(chosen))
    mine, sides = values[mask], coins[mask]
    return (
        LowerBound(best.name, best.epsilon, confidence, best.assumption),
        gdp_fit(mine, sides, delta, confidence),
        clopper_pearson(mine, sides, delta, confidence),
        one_run(mine, sides, delta, confidence),
    )


def input_audit(
    plan: Plan, problem: Problem, model: BuildModel, settings: AuditSettings = DEFAULTS, loss: LossFunction = row_losses
) -> Audit:
    """One training with wrong rows among the real ones, and the bound that assumes nothing, as they share a model."""
    started, confidence = time.perf_counter(), settings.confidence
    scores = play_inputs(plan, problem, model, per_group=settings.canaries, seed=_seed(settings), loss=loss)
    facts, promised, tests = plan.facts, promises(plan), _parts(plan.facts)

    def finding(chosen: Sequence[int]) -> Finding:
        mask = np.isin(scores.cells, list(chosen))

        def bounds_at(asked: float) -> tuple[LowerBound, ...]:
            return (one_run(scores.values[mask], scores.coins[mask], plan.delta, asked),)

        return judged(int(mask.sum()), max(promised[cell] for cell in chosen), bounds_at, confidence, tests)

    return Audit(
        attack="input",
        method=plan.method,
        delta=plan.delta,
        confidence=confidence,
        headline="one-run",
        **_by_cells(facts, finding),
        seconds=time.perf_counter() - started,
        details={"canaries": len(scores.cells), "steps": plan.steps, "not_covered": NOT_COVERED},
        tests=tests,
    )


def lira_audit(training: ShadowTraining, settings: AuditSettings = DEFAULTS, workers: int | Workers = 1) -> Audit:
    """Shadow models, then LiRA and the loss threshold with every model as target once."""
    started, confidence = time.perf_counter(), settings.confidence
    plan, problem = training.plan, training.problem
    found = train_shadows(training, settings.shadows, workers)
    found, there = found.by_unit(problem)
    scores, inside = lira(found.scores, found.inside, settings.mode), found.inside
    by_loss = attack_curve(-found.losses, inside, None, confidence)
    details = {"shadows": settings.shadows, "mode": settings.mode, "auroc_of_the_loss_threshold": by_loss.auroc}
    return _curve_audit("lira", plan, scores, inside, problem.cell_of[there], confidence, started, details)


def loss_audit(
    plan: Plan,
    model: nn.Module,
    problem: Problem,
    others: Problem,
    settings: AuditSettings = DEFAULTS,
    loss: LossFunction = row_losses,
) -> Audit:
    """The loss threshold on one trained model: training rows against other rows.

    Rows of both must come from the same source, else the attack tells the sources apart instead of the members.
    """
    started = time.perf_counter()
    scores, inside = loss_scores(model, problem, others, loss)
    places = {(c.group, c.owner): index for index, c in enumerate(plan.facts.cells)}
    names = {name: index for index, name in enumerate(plan.facts.groups)}
    first_owner = {c.group: c.owner for c in reversed(plan.facts.cells)}
    # Rows outside may name no owner: each counts with the first owner that its group has.
    groups = [names.get(others.public.groups[group], -1) for group in others.group_of]
    outside = np.array([places.get((g, first_owner.get(g, -1)), -1) for g in groups], dtype=np.int64)
    cells = np.concatenate([problem.cell_of, outside])
    known = cells >= 0
    return _curve_audit("loss", plan, scores[known], inside[known], cells[known], settings.confidence, started, {})


def _curve_audit(
    attack: str,
    plan: Plan,
    scores: NDArray[np.float64],
    inside: Mask,
    cells: NDArray[np.int64],
    confidence: float,
    started: float,
    details: Mapping[str, Any],
) -> Audit:
    facts, promised, limits, tests = plan.facts, promises(plan), ceilings(plan), _parts(plan.facts)
    scores, inside = np.atleast_2d(scores), np.atleast_2d(inside)
    # Coins are fair and independent within one target only where shadows drew them: there one model is one run.
    tossed = attack == "lira"

    def finding(curve: AttackCurve, chosen: Sequence[int]) -> Finding:
        mask = np.isin(cells, list(chosen))

        def bounds_at(asked: float) -> tuple[LowerBound, ...]:
            return (one_run(scores[0, mask], inside[0, mask], plan.delta, asked),) if tossed else ()

        return judged(int(mask.sum()), max(promised[cell] for cell in chosen), bounds_at, confidence, tests, curve)

    def by(kind: Literal["group", "owner"], names: Sequence[str]) -> dict[str, Finding]:
        parts = {name: cells_of(facts, kind, index) for index, name in enumerate(names)}
        labels = np.array([getattr(cell, kind) for cell in facts.cells])[cells]
        bounds = {name: _highest([limits[cell] for cell in own]) for name, own in parts.items() if own}
        curves = curves_by(scores, inside, labels, names, bounds, confidence)
        return {name: finding(curve, parts[name]) for name, curve in curves.items()}

    everything = range(len(facts.cells))
    return Audit(
        attack=attack,
        method=plan.method,
        delta=plan.delta,
        confidence=confidence,
        headline="one-run",
        overall=finding(attack_curve(scores, inside, _highest(limits), confidence), everything),
        by_group=by("group", facts.groups),
        by_owner=by("owner", facts.owners) if len(facts.owners) > 1 else {},
        seconds=time.perf_counter() - started,
        details={**details, "not_covered": NOT_COVERED},
        tests=tests,
    )


def cells_of(facts: PublicFacts, kind: Literal["group", "owner"], index: int) -> tuple[int, ...]:
    """The cells of one group or one owner."""
    return tuple(number for number, cell in enumerate(facts.cells) if getattr(cell, kind) == index)


def promises(plan: Plan) -> list[float]:
    """The ε of every cell's rule; infinite where nothing is promised."""
    if plan.rules is None:
        return [float("inf")] * len(plan.facts.cells)
    accountant, known = plan.settings.accountant_for(plan.facts), {}
    for rule in plan.rules:
        if rule not in known:
            known[rule] = rule.guarantee(plan.delta, accountant)
    return [known[rule] for rule in plan.rules]


def ceilings(plan: Plan) -> list[Ceiling]:
    """The highest curve that every cell's rule allows; no limit where nothing is promised."""
    if plan.rules is None:
        return [ceiling_from_pairs([])] * len(plan.facts.cells)
    accountant, known = plan.settings.accountant_for(plan.facts), dict[Any, Ceiling]()
    for rule in plan.rules:
        if rule not in known:
            known[rule] = ceiling(rule, accountant)
    return [known[rule] for rule in plan.rules]


def _highest(limits: Sequence[Ceiling]) -> Ceiling:
    return Ceiling(np.max([limit.tpr for limit in limits], axis=0))
