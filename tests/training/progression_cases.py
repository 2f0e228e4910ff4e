"""Runs to continue, and a witness of what they really released."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from veil import methods
from veil.accounting import Event, Gaussian, Relation, Repeated
from veil.accounting.calibration import noise_multiplier
from veil.noise import GaussianNoise
from veil.plans import Plan, Settings
from veil.plans.controllers.gate import Gate
from veil.problem import Problem, PublicFacts
from veil.releases import Allowance, GradientRelease
from veil.tables.private import WithPreprocessing, _ledger
from veil.training.callbacks import Callback
from veil.training.fitting import Job, execute, row_losses
from veil.training.run import Run
from veil.training.run_folder import RunFolder

Releases = list[tuple[str, dict[int, Event]]]
DELTA = 1e-4
LOWERED = {"careful": 0.47, "open": 1.8}
SMALLEST = 0.5  # the budget of "careful"; "open" has 2


def settings(**changes: object) -> Settings:
    given = {"epsilon": 1.0, "delta": DELTA, "steps": 12, "batch_size": 24, "seed": 5, "accountant": "rdp"}
    return Settings.checked(**(given | changes))


def preprocessing(share: float, chosen: Settings, budget: float = SMALLEST) -> tuple[Repeated, ...]:
    """Two noisy releases that together cost `share` of the budget."""

    def events(kappa: float) -> list[Repeated]:
        return [Repeated(Gaussian(kappa, Relation.ADD_REMOVE, one_sided=True), 2)]

    return tuple(events(noise_multiplier(events, share * budget, DELTA, chosen.accountant_for())))


def plan_of(name: str, problem: Problem, share: float = 0.0, **changes: object) -> Plan:
    chosen, method = settings(**changes), methods.create(name)
    if share:
        method = WithPreprocessing(method, preprocessing(share, chosen), share)  # type: ignore[assignment]
    return methods.planned(method, problem.public, chosen)


def trained(plan: Plan, problem: Problem, *callbacks: Callback, out: Path | None = None) -> Run:
    """A finished run; with a folder, preprocessing has a ledger of its own beside the run's, as `veil train` keeps."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    if out is None or not plan.earlier:
        return execute(Job(model, problem, None, row_losses, callbacks, ()), plan, out)
    folder = RunFolder.start(out, plan.settings)
    event = plan.earlier[0].events[0]
    allowance = Allowance(
        SMALLEST,
        DELTA,
        Relation.ADD_REMOVE,
        plan.settings.accountant_for(),
        GaussianNoise(folder.seed),
        lambda terms: folder.ledger(terms, "preprocessing.jsonl"),
    )
    groups = plan.facts.groups
    _ledger(groups, allowance, event, 2).reserve("preprocessing", 0, 2, dict.fromkeys(range(len(groups)), event))
    run = execute(Job(model, problem, None, row_losses, callbacks, ()), plan, folder)
    folder.complete()
    return run


@dataclass
class Witness:
    """What was really released, step by step, and with which seeds: written down where the noise is added."""

    steps: Releases = field(default_factory=list)
    seeds: list[set[bytes]] = field(default_factory=list)

    @contextmanager
    def part(self) -> Iterator[Releases]:
        """The releases made in this block."""
        begun = len(self.steps)
        self.seeds.append(set())
        found: Releases = []
        yield found
        found.extend(self.steps[begun:])

    def saw(self, kind: str, events: dict[int, Event], noise: GaussianNoise) -> None:
        self.steps.append((kind, events))
        if self.seeds:
            self.seeds[-1].add(noise.seed.secret)


def watched(monkeypatch: pytest.MonkeyPatch) -> Witness:
    """A witness of every gradient and gate that is released from now on."""
    seen = Witness()
    complete, judge = GradientRelease.complete, Gate.judge

    def completed(self: GradientRelease, result: Any, problem: Problem, *rest: Any) -> Any:
        seen.saw("gradient", self.events(problem.public), rest[-1])
        return complete(self, result, problem, *rest)

    def judged(self: Gate, before: Tensor, after: Tensor, facts: PublicFacts, step: int, noise: GaussianNoise) -> Any:
        seen.saw("gate", self.events(facts), noise)
        return judge(self, before, after, facts, step, noise)

    monkeypatch.setattr(GradientRelease, "complete", completed)
    monkeypatch.setattr(Gate, "judge", judged)
    return seen


def first(releases: Releases, steps: int) -> Releases:
    """Those of the first steps: a step may have a gradient and a gate."""
    per_step = len({kind for kind, _ in releases})
    return releases[: steps * per_step]


def costs(plan: Plan, share: float, *parts: Releases) -> dict[str, float]:
    """ε of each owner: the largest of its cells, of preprocessing and every release that was made."""
    before = preprocessing(share, plan.settings) if share else ()
    accountant, found = plan.settings.accountant_for(), {}
    for index, cell in enumerate(plan.facts.cells):
        own = [Repeated(events[index]) for part in parts for _, events in part if index in events]
        epsilon = accountant.epsilon([*before, *own], DELTA)
        name = plan.facts.owners[cell.owner]
        found[name] = max(found.get(name, 0.0), epsilon)
    return found
