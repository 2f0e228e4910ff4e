"""Broken copies of the parts of methods: each is a mistake that people make, and each must be caught."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from veil.accounting import Event, Ledger, PoissonGaussian, Repeated, TokenBucket
from veil.auditing.self_test import SelfTest, self_test, small_plan
from veil.bounding import ordered
from veil.foundation.randomness import Seed
from veil.gradients import GradientSum
from veil.noise import GaussianNoise
from veil.plans import Plan
from veil.plans.controllers import Controller
from veil.plans.controllers.following_tail import FollowingTail
from veil.problem import Problem, PublicFacts
from veil.releases import GradientRelease, Released
from veil.sampling import ShuffledSampler
from veil.training.loop import Loop

SEED = 5


@dataclass(frozen=True)
class Mutant:
    """A mistake, the self-test of the method that makes it, and the check that must find it."""

    name: str
    caught_by: str
    test: Callable[[], SelfTest]


class _Wrapped:
    """A controller whose releases are changed on the way out."""

    def __init__(self, inner: Controller, change: Callable[[GradientRelease], GradientRelease]) -> None:
        self._inner, self._change = inner, change

    def release(self, state: Any, step: int) -> GradientRelease:
        return self._change(self._inner.release(state, step))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def with_release(
    kind: type[GradientRelease], method: str, options: Mapping[str, Any] | None = None, recharge: bool = False
) -> SelfTest:
    """The self-test of a method whose every release is of a broken kind; its rules follow what it charges."""

    def change(release: GradientRelease) -> GradientRelease:
        return kind(release.draw, release.bound, release.sigma, release.divisor, release.relation, release.statistics)

    plan = small_plan(method, options)
    broken = replace(plan, controller=_Wrapped(plan.controller, change))  # type: ignore[arg-type]
    if recharge:
        events = broken.controller.release(broken.controller.start(), 0).events(plan.facts)
        rules = tuple(TokenBucket((Repeated(events[c], plan.steps),)) for c in range(len(plan.facts.cells)))
        broken = replace(broken, rules=rules)
    return self_test(broken, seed=SEED)


def with_loop(change: Callable[[Loop], None], method: str = "dp-sgd", plan: Plan | None = None) -> SelfTest:
    """The self-test of a method whose loop has a broken part."""

    def make(*args: Any) -> Loop:
        loop = Loop(*args)
        change(loop)
        return loop

    return self_test(plan or method, seed=SEED, make_loop=make)


class ScaledNoise(GaussianNoise):
    """Noise that is too small."""

    factor = 1.0

    def add(
        self, step: int, values: Any, std: float, purpose: str = "gradient", ready: Any = None
    ) -> dict[str, Tensor]:
        return super().add(step, values, std * self.factor, purpose)


def scaled_noise(factor: float) -> SelfTest:
    kind = type("Scaled", (ScaledNoise,), {"factor": factor, "__slots__": ()})

    def change(loop: Loop) -> None:
        loop.noise = kind(loop.seed)

    return with_loop(change)


class QuietStatistics(GaussianNoise):
    """Statistics that leave without noise."""

    def add(
        self, step: int, values: Any, std: float, purpose: str = "gradient", ready: Any = None
    ) -> dict[str, Tensor]:
        return super().add(step, values, 0.0 if purpose == "statistic" else std, purpose)


class HalfOnStatistics(GaussianNoise):
    """Statistics with half of the noise that is charged."""

    def add(
        self, step: int, values: Any, std: float, purpose: str = "gradient", ready: Any = None
    ) -> dict[str, Tensor]:
        return super().add(step, values, std / 2 if purpose == "statistic" else std, purpose)


class OneStreamForAll(GaussianNoise):
    """The same noise for every tensor of a step."""

    def add(
        self, step: int, values: Any, std: float, purpose: str = "gradient", ready: Any = None
    ) -> dict[str, Tensor]:
        one = super().add
        return {name: one(step, {"w": value}, std, purpose)["w"] for name, value in values.items()}


class EveryOtherStep(GaussianNoise):
    """Noise that two steps share."""

    def add(
        self, step: int, values: Any, std: float, purpose: str = "gradient", ready: Any = None
    ) -> dict[str, Tensor]:
        return super().add(step // 2, values, std, purpose)


class FirstStepAgain(GaussianNoise):
    """Noise that comes back after half of the run."""

    def add(
        self, step: int, values: Any, std: float, purpose: str = "gradient", ready: Any = None
    ) -> dict[str, Tensor]:
        return super().add(step % 20, values, std, purpose)


class RanksAlike(GaussianNoise):
    """Two processes each add half of the variance, from the same stream instead of streams of their own."""

    def add(
        self, step: int, values: Any, std: float, purpose: str = "gradient", ready: Any = None
    ) -> dict[str, Tensor]:
        once = super().add(step, values, std / 2**0.5, purpose)
        return super().add(step, once, std / 2**0.5, purpose)


def with_noise(kind: type[GaussianNoise], method: str = "dp-sgd", plan: Plan | None = None) -> SelfTest:
    def change(loop: Loop) -> None:
        loop.noise = kind(loop.seed)

    return with_loop(change, method, plan)


def half_on_the_count() -> SelfTest:
    """With a count at every step of 40 there are enough to see it."""
    plan = small_plan("ino-sgd")
    assert isinstance(plan.controller, FollowingTail)
    often = replace(plan, controller=replace(plan.controller, every=1))
    return with_noise(HalfOnStatistics, plan=often)


class NoClip(GradientRelease):
    """Rows count in full, however long their gradients are."""

    def weigh(self, problem: Problem, rows: Any) -> Any:
        return lambda per_row: torch.ones_like(per_row.norms)


class ClipPerLayer(GradientRelease):
    """Every layer has the whole bound for itself."""

    def bounded_sum(self, engine: Any, problem: Problem, rows: Any, *rest: Any) -> GradientSum:
        result: GradientSum = engine.weighted_sum(problem.batch(rows), self.weigh(problem, rows), rows=len(rows))
        limits = torch.tensor(self.bound.limits)[torch.from_numpy(problem.cell_of[rows])]
        for name, gradients in engine.gradients(problem.batch(rows)).items():
            flat = gradients.flatten(1)
            factor = torch.clamp(limits / flat.norm(dim=1).clamp_min(1e-30), max=1.0)
            result.sums[0][name] = (flat * factor[:, None]).sum(0).view(gradients.shape[1:])
        return result


class ClipAfterAveraging(GradientRelease):
    """The mean is clipped instead of every row."""

    def weigh(self, problem: Problem, rows: Any) -> Any:
        return lambda per_row: torch.ones_like(per_row.norms)

    def complete(self, result: Any, problem: Problem, rows: Any, *rest: Any) -> Released:
        total = torch.cat([value.flatten() for value in result.sums[0].values()]).norm()
        factor = min(1.0, self.bound.limits[0] * len(rows) / max(float(total), 1e-30))
        result.sums[0].update({name: value * factor for name, value in result.sums[0].items()})
        return super().complete(result, problem, rows, *rest)


class ActualBatch(GradientRelease):
    """The sum is divided by the rows that happened to be drawn."""

    def complete(self, result: Any, problem: Problem, rows: Any, *rest: Any) -> Released:
        released = super().complete(result, problem, rows, *rest)
        return replace(released, divisor=float(max(len(rows), 1)))


class WrongGroupsClip(GradientRelease):
    """Rows are bounded by the limit of the next cell."""

    def weigh(self, problem: Problem, rows: Any) -> Any:
        cells = torch.from_numpy(problem.cell_of[rows])
        limits = torch.tensor(self.bound.limits).roll(1)[cells]
        return lambda per_row: torch.clamp(limits / per_row.norms.clamp_min(1e-30), max=1.0)


class StatisticsForFree(GradientRelease):
    """Only the gradient is charged."""

    def noise_multiplier(self, cell: int) -> float | None:
        return self.sigma / self.bound.limits[cell]


class MeanRate(GradientRelease):
    """Every cell is charged for the mean rate instead of its own."""

    def events(self, facts: PublicFacts) -> dict[int, Event]:
        found = super().events(facts)
        mean = self.draw.expected_batch(facts) / facts.rows
        return {c: PoissonGaussian(e.noise_multiplier, mean) for c, e in found.items()}  # type: ignore[union-attr]


def shuffled_batches() -> SelfTest:
    def change(loop: Loop) -> None:
        rows = round(loop.plan.controller.release({}, 0).draw.sampler(loop._strata).expected_batch())
        loop._sampler = lambda draw: ShuffledSampler(loop._strata, rows)  # type: ignore[method-assign]

    return with_loop(change)


def unstable_ties() -> SelfTest:
    healthy, generator = ordered.descending, np.random.default_rng(0)

    def broken(scores: Any) -> Any:
        return np.lexsort((generator.random(len(scores)), -scores))

    ordered.descending = broken
    try:
        return self_test("ino-sgd", seed=SEED)
    finally:
        ordered.descending = healthy


def forgetful_ledger() -> SelfTest:
    def reopen(path: Path) -> Ledger:
        ledger = Ledger.open(path)
        ledger._spent = [{} for _ in ledger.terms.accounts]
        ledger._made.clear()
        return ledger

    return self_test("dp-sgd", seed=SEED, reopen=reopen)


def shared_seed() -> SelfTest:
    return self_test("dp-sgd", seed=SEED, fresh=lambda: Seed.from_int(123))


MUTANTS = (
    Mutant("noise × 0.95", "noise has its size", lambda: scaled_noise(0.95)),
    Mutant("noise × 0.8", "noise has its size", lambda: scaled_noise(0.8)),
    Mutant("noise × 0", "canaries give away no more than ε", lambda: scaled_noise(0.0)),
    Mutant("no clip", "no row moves the sum by more", lambda: with_release(NoClip, "dp-sgd")),
    Mutant("clip per layer", "no row moves the sum by more", lambda: with_release(ClipPerLayer, "dp-sgd")),
    Mutant("clip after averaging", "no row moves the sum by more", lambda: with_release(ClipAfterAveraging, "dp-sgd")),
    Mutant("division by the actual batch", "no row moves the sum", lambda: with_release(ActualBatch, "dp-sgd")),
    Mutant("shuffled batches accounted as Poisson", "participation has the spread", shuffled_batches),
    Mutant("same noise twice", "halves of the parameters", lambda: with_noise(OneStreamForAll)),
    Mutant("noise shared by two steps", "steps have independent noise, one", lambda: with_noise(EveryOtherStep)),
    Mutant("noise reused later in the run", "steps have independent noise, over", lambda: with_noise(FirstStepAgain)),
    Mutant(
        "clip of the wrong group",
        "a row moves the sum by its bound",
        lambda: with_release(WrongGroupsClip, "idp-sgd", {"variant": "scale"}),
    ),
    Mutant(
        "statistics not charged",
        "what a row moves is what the ledger is charged",
        lambda: with_release(StatisticsForFree, "adaptive-clip", recharge=True),
    ),
    Mutant("statistics without noise", "statistics have", lambda: with_noise(QuietStatistics, "adaptive-clip")),
    Mutant(
        "count of the tail not charged",
        "what a row moves is what the ledger is charged",
        lambda: with_release(StatisticsForFree, "ino-sgd", recharge=True),
    ),
    Mutant("count of the tail without noise", "statistics have", lambda: with_noise(QuietStatistics, "ino-sgd")),
    Mutant("count of the tail with half of its noise", "statistics have", half_on_the_count),
    Mutant(
        "rate ignored in the ledger",
        "rows take part at their rate",
        lambda: with_release(MeanRate, "dp-is-sgd", recharge=True),
    ),
    Mutant("INO ties unstable", "no row moves the sum by more", unstable_ties),
    Mutant("checkpoint that forgets spent budget", "a ledger that is opened again", forgetful_ledger),
    Mutant("seed shared between processes", "processes have independent noise", shared_seed),
    Mutant("ranks that draw from one stream", "noise has its size", lambda: with_noise(RanksAlike)),
)
