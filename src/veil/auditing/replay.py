"""Replay: the same step with and without one row, without noise, beside what the ledger is charged for that row.

Two neighbours with the same draws must release sums no farther apart than the row's bound, and gradient and statistics
together, each in units of its noise, no farther than the reciprocal of the charged noise multiplier. These checks are
exact: they raise no false alarm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from veil.accounting import Ledger, Relation, Repeated
from veil.accounting.events import AccountingError, Event, Mixture
from veil.accounting.ledger import BudgetExceeded
from veil.auditing.canaries import CanaryModel, canary_loss, of_unit
from veil.auditing.goodness_of_fit import Check
from veil.foundation.randomness import Seed
from veil.gradients import GradientEngine
from veil.noise import GaussianNoise
from veil.plans import LossFunction, Plan
from veil.plans.controllers import first_release
from veil.problem import Problem
from veil.releases import GradientRelease, Released
from veil.training.person_losses import by_person

TOLERANCE = 2e-4


class NoNoise(GaussianNoise):
    """Replaces the noise: a release made with it is the exact bounded sum."""

    def add(self, step: int, values: Mapping[str, Tensor], std: float, purpose: str = "gradient") -> dict[str, Tensor]:
        """The values as they are."""
        return {name: value.detach().clone() for name, value in values.items()}


@dataclass(frozen=True)
class Scene:
    """Rows or people, and a model to replay steps on."""

    name: str
    problem: Problem
    engine: GradientEngine


def tied_scene(plan: Plan) -> Scene:
    """Rows with the same loss and different directions: every order of rows has only ties."""
    cell_of = _cells(plan)
    count = len(cell_of)
    problem = Problem(torch.arange(count)[:, None], torch.ones(count), cell_of, plan.facts, np.ones(count, dtype=bool))
    return _scene("rows with equal losses", problem, CanaryModel(count), canary_loss)


def random_scene(plan: Plan, features: int = 6) -> Scene:
    """Random rows of very different length and a small network."""
    cell_of = _cells(plan)
    generator = torch.Generator().manual_seed(11)
    count = len(cell_of)
    x = torch.randn(count, features, generator=generator) * torch.logspace(-1, 1.5, count)[:, None]
    y = (x[:, 0] + torch.randn(count, generator=generator) > 0).long()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(features, 5), nn.Tanh(), nn.Linear(5, 2))
    problem = Problem(x, y, cell_of, plan.facts, np.ones(count, dtype=bool))
    return _scene("random rows", problem, model, _cross_entropy)


def _scene(name: str, problem: Problem, model: nn.Module, loss: LossFunction) -> Scene:
    """Where people are protected by their mean, every row is a person who has it several times."""
    people = of_unit(problem)
    return Scene(name, people, GradientEngine(model, by_person(people, loss)[1]))


def _cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def _cells(plan: Plan) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The declared number of rows in each cell: subsets need them all."""
    declared = [cell.rows for cell in plan.facts.cells]
    return np.repeat(np.arange(len(declared)), declared).astype(np.int64)


def replay_checks(plan: Plan, scene: Scene, steps: int = 4, rows_per_step: int = 10) -> list[Check]:
    """Remove (or replace) rows one at a time, in several steps of the plan's first release."""
    assert plan.relation is not None
    release = first_release(plan.controller)
    events = release.events(plan.facts)
    farthest, dearest, strangers = 0.0, 0.0, 0.0
    for step in range(steps):
        whole = _make(release, scene, scene.problem, step)
        drawn = whole.view.rows
        stride = max(1, len(drawn) // rows_per_step)
        absent = np.setdiff1d(np.arange(len(scene.problem.cell_of)), drawn)[:2]
        for row in [*drawn[::stride].tolist(), *absent.tolist()]:
            other = _make(release, scene, _neighbour(scene.problem, row, plan.relation), step)
            cell = int(scene.problem.cell_of[row])
            moved, joint = _distance(release, whole, other)
            if row in absent:
                strangers = max(strangers, moved)
                continue
            reach = 1 if plan.relation is Relation.ADD_REMOVE else 2
            farthest = max(farthest, moved / (reach * release.bound.limits[cell]))
            dearest = max(dearest, joint * charged_noise(events.get(cell)) / reach)
    where = scene.name
    return [
        Check(
            f"no row moves the sum by more than its bound ({where})",
            farthest <= 1 + TOLERANCE,
            f"at most {farthest:.4f} × the bound",
        ),
        Check(
            f"what a row moves is what the ledger is charged ({where})",
            dearest <= 1 + TOLERANCE,
            f"at most {dearest:.4f} × what is charged",
        ),
        Check(f"a row that was not drawn moves nothing ({where})", strangers == 0.0, f"at most {strangers:.2g}"),
    ]


def _make(release: GradientRelease, scene: Scene, problem: Problem, step: int) -> Released:
    seed, problem = Seed.from_int(9), problem.together()
    return release.make(scene.engine, problem, release.draw.sampler(problem.strata()), seed, step, NoNoise(seed))


def _neighbour(problem: Problem, row: int, relation: Relation) -> Problem:
    if relation is Relation.ADD_REMOVE:
        return problem.without(row)
    if problem.targets.is_floating_point():
        return problem.replacing(row, problem.inputs[row], -problem.targets[row])
    return problem.replacing(row, -100.0 * problem.inputs[row], 1 - problem.targets[row])


def _distance(release: GradientRelease, one: Released, other: Released) -> tuple[float, float]:
    """How far the sums are apart, and gradient and statistics together in units of their noise.

    The divisor is the public one of the release: a divisor that moves with the rows is part of what a row moves.
    """
    divisor = one.divisor if release.divisor is None else release.divisor
    gaps = [(one.gradient[name] - other.gradient[name]).double().flatten() for name in one.gradient]
    moved = float(torch.cat(gaps).norm()) * divisor
    joint = (moved / release.sigma) ** 2
    for statistic in (one for one in release.statistics if one.due):
        change = one.statistics[statistic.name] - other.statistics[statistic.name]
        joint += float(np.square(change / statistic.sigma).sum())
    return moved, math.sqrt(joint)


def charged_noise(event: Event | None) -> float:
    """The noise multiplier of an event; infinite where nothing is charged.

    >>> from veil.accounting import PoissonGaussian
    >>> charged_noise(PoissonGaussian(2.0, 0.1)), charged_noise(None)
    (2.0, inf)
    """
    if event is None:
        return math.inf
    inner = event.event if isinstance(event, Mixture) else event
    return float(getattr(inner, "noise_multiplier"))  # noqa: B009


def ledger_check(plan: Plan, reopen: Callable[[Path], Ledger] = Ledger.open) -> Check:
    """A ledger that is full, closed and opened again remembers every cost and rejects one more."""
    name = "a ledger that is opened again remembers what was spent"
    events = first_release(plan.controller).events(plan.facts)
    with TemporaryDirectory() as folder:
        ledger = Ledger(plan.terms(), Path(folder) / "ledger.jsonl")
        most = _most_admitted(plan, events)
        ledger.reserve("gradient", 0, most, events)
        again = reopen(Path(folder) / "ledger.jsonl")
        cells = range(len(plan.facts.cells))
        same = all(set(again.spent(cell)) == set(ledger.spent(cell)) for cell in cells)
        try:
            again.reserve("gradient", most, 1, events)
            refused = False
        except BudgetExceeded:
            refused = True
        except AccountingError as error:
            return Check(name, False, str(error))
    finding = f"{'all' if same else 'NOT all'} costs are there; more is {'refused' if refused else 'ADMITTED'}"
    return Check(name, same and refused, finding)


def _most_admitted(plan: Plan, events: Mapping[int, Event]) -> int:
    """How often the first release may happen until some cell's rule rejects it."""
    assert plan.rules is not None
    rules = plan.rules

    def admitted(times: int) -> bool:
        return all(rules[cell].refusal({}, Repeated(event, times)) is None for cell, event in events.items())

    low, high = 1, 2
    while admitted(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if admitted(middle) else (low, middle)
    return low


def fresh_seed_check(level: float, fresh: Callable[[], Seed] = Seed.from_system, values: int = 20_000) -> Check:
    """Two processes that take their seeds from the system draw independent noise for the same step and tensor."""
    one, other = (GaussianNoise(fresh()).draw(0, {"w": (values,)}, 1.0)["w"].double() for _ in range(2))
    z = float(one @ other) / math.sqrt(values)
    p = math.erfc(abs(z) / math.sqrt(2.0))
    return Check("processes have independent noise", p >= level, f"correlation {z / math.sqrt(values):+.3f}", p)
