"""Two players against each other on fresh rows: a DP online learner for the weights, EXP3 for the groups.

    round t:  i ~ λ_t;   x⁻ and x⁺: the next rows of group i from two pools that share no row
              the learner sees ∇ℓ(w_t, x⁻);   EXP3 sees ℓ(w_t, x⁺) + noise for group i alone

Every row is used once, by one player. Upper bound on the expected excess worst-group population risk after T rounds of
m rows for each player, while no pool runs out (r: radius of W; s: noise of a tree node, h: levels, τ: noise of a
loss):

    weights:  r²/(2ηT) + (η/2)·L² + η·L·s·√(d·h)                        with s for a mean gradient
    groups:   2V·[2·√(2p·log p/T) + (√(2p/(T·log p)) + 1/T)·(1 + log 2)] + 2·τ·φ(z)/z²,   V = B/2 + zτ, z = √(2·log T)

The second line is EXP3 with implicit exploration (Neu 2015): released losses are cut at ±V and the estimate divides by
λ + γ. Plain EXP3, as in the paper, bounds the regret against each fixed group; here the weights answer to what the
group player did, and the worst group of the averaged weights is chosen afterwards, which needs a bound that holds for
all groups at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from veil.accounting import Event, Ledger
from veil.foundation.randomness import Seed
from veil.methods.convex.rows import LinearRows, install, project, weight_shape
from veil.methods.convex.saddle import bounded_slopes
from veil.methods.convex.setting import LinearSetting, LinearSolver
from veil.noise import GaussianNoise, TreeNoise
from veil.plans.controllers.solver import Report
from veil.problem import Problem

Floats = NDArray[np.float64]
PURPOSE = "one leaf or one loss"


class OnlineLearner(Protocol):
    """A DP online learner: it owns its noise. Each row it sees comes once; its weights may be shown at any time."""

    @property
    def weights(self) -> Floats:
        """The weights to play now."""
        ...

    def observe(self, gradient: Floats) -> None:
        """The exact mean gradient of this round's rows."""
        ...


class DpFtrl:
    """Follow the regularised leader on noisy prefix sums: w = Proj(−η·(g_1 + … + g_t + tree noise)).

    Formal guarantee: all weights it ever shows cost a row what `Tree(noise / bound, leaves)` says, where `bound` is the
    largest length of one row's part of a gradient. The next row may depend on what was shown: Gaussian noise on a tree
    is safe against that.
    """

    def __init__(self, shape: tuple[int, int], radius: float, step_size: float, noise: TreeNoise) -> None:
        self._shape, self._radius, self._step_size, self._noise = shape, radius, step_size, noise
        self._sum = np.zeros(shape)
        self._seen = 0
        self._walk: Iterator[Floats] = noise.walk()
        self._weights = np.zeros(shape)

    @property
    def weights(self) -> Floats:
        """The weights to play now."""
        return self._weights

    def observe(self, gradient: Floats) -> None:
        """Add the gradient, take the noise of the new prefix, project."""
        self._sum = self._sum + gradient
        self._seen += 1
        if self._noise.secure:
            noisy = self._noise.add(self._seen, self._sum.ravel()).reshape(self._shape)
        else:
            noisy = self._sum + next(self._walk).reshape(self._shape)
        self._weights = project(-self._step_size * noisy, self._radius)


@dataclass
class Exp3:
    """EXP3 with implicit exploration, looking for the group with the largest loss.

    A value v in [−V, V] becomes the loss (V − v)/(2V) of this player; only the group that was played is updated.

    >>> player = Exp3(groups=2, step_size=0.1, most=1.0)
    >>> player.hear(0, 0.9, np.array([True, True]))
    >>> player.hear(1, -0.9, np.array([True, True]))
    >>> bool(player.chances(np.array([True, True]))[0] > 0.5)
    True
    """

    groups: int
    step_size: float
    most: float
    losses: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.losses = np.zeros(self.groups)

    def chances(self, open_groups: NDArray[np.bool_]) -> Floats:
        """λ over the groups that still have rows."""
        lowest = self.losses[open_groups].min()
        raised = np.where(open_groups, np.exp(-self.step_size * (self.losses - lowest)), 0.0)
        return np.asarray(raised / raised.sum())

    def hear(self, group: int, value: float, open_groups: NDArray[np.bool_]) -> None:
        """The noisy centred loss of the group that was played."""
        loss = (self.most - float(np.clip(value, -self.most, self.most))) / (2 * self.most)
        self.losses[group] += loss / (self.chances(open_groups)[group] + self.step_size / 2)


@dataclass(frozen=True)
class Game(LinearSolver):
    """The rounds of the two players. A row is in one pool, at one place, whatever its values.

    With `go_on` a group without rows is played no more; otherwise the game ends there. The transcript decides both.
    """

    rounds: int
    rows_per_round: int
    step_size: float
    node_noise: float
    leaves: int
    loss_noise: float
    group_step: float
    most: float
    events: tuple[Event, ...]
    go_on: bool = False
    secure: bool = False

    def learner(self, shape: tuple[int, int], seed: Seed) -> OnlineLearner:
        """DP-FTRL with a tree that is filled up at each restart."""
        noise = TreeNoise(seed, math.prod(shape), self.node_noise, self.leaves, secure=self.secure, purpose="ftrl")
        return DpFtrl(shape, self.setting.weight_radius, self.step_size, noise)

    def solve(self, model: nn.Module, problem: Problem, seed: Seed, ledger: Ledger, report: Report) -> None:
        """A leaf and a loss release cost a row the same, and every row is in one of them: one reservation pays."""
        layer, setting = self.setting.layer(model), self.setting
        bias = layer.bias is not None
        ledger.reserve(PURPOSE, 0, 1, dict(enumerate(self.events)))
        pools = make_pools(problem, seed)
        rows = [[setting.read(problem, part, bias) for part in pool] for pool in pools]
        weights = np.zeros(weight_shape(setting.facts, bias))
        learner = self.learner((weights.shape[0], weights.shape[1]), seed)
        player = Exp3(len(pools), self.group_step, self.most)
        used, size = np.zeros(len(pools), dtype=np.int64), self.rows_per_round
        whole = np.array([min(len(first), len(second)) // size for first, second in pools])
        every = max(1, self.rounds // 50)
        for step in range(self.rounds):
            open_groups = used < whole
            if not (open_groups.any() if self.go_on else open_groups.all()):
                break
            weights += (learner.weights - weights) / (step + 1)
            chances = player.chances(open_groups)
            group = int(seed.generator("lottery", step).choice(len(pools), p=chances))
            taken = slice(int(used[group]) * size, (int(used[group]) + 1) * size)
            used[group] += 1
            now = learner.weights
            noisy = self.noisy_loss(_cut(rows[group][1], taken), now, seed, step)
            learner.observe(self.gradient_sum(_cut(rows[group][0], taken), now) / size)
            player.hear(group, noisy, open_groups)
            if step % every == every - 1 or step + 1 == self.rounds:
                install(layer, weights, bias)
                report(step, {"weights": chances, "rounds_played": used.astype(np.float64)})
        install(layer, weights, bias)

    def noisy_loss(self, rows: LinearRows, weights: Floats, seed: Seed, step: int) -> float:
        """The mean centred loss of this round's rows with noise: what the group player hears."""
        exact = self.centred_losses(rows, weights).sum() / self.rows_per_round
        noise = GaussianNoise(seed, secure=self.secure)
        value = {"loss": torch.tensor([exact], dtype=torch.float64)}
        return float(noise.add(step, value, self.loss_noise, "played group")["loss"][0])

    def centred_losses(self, rows: LinearRows, weights: Floats) -> Floats:
        """Each row's loss less the middle of its range; a row that was taken out holds 0."""
        constants = self.setting.constants
        values = self.setting.loss.values(rows.features @ weights, rows.targets) - constants.middle
        return np.clip(values, -constants.range / 2, constants.range / 2)

    def gradient_sum(self, rows: LinearRows, weights: Floats) -> Floats:
        """Σ ∇ℓ over this round's rows, each at most L long."""
        scores = rows.features @ weights
        slopes = bounded_slopes(self.setting.loss, self.setting.constants, rows, scores, np.ones(len(rows)))
        return np.asarray(rows.features.T @ slopes)


def make_pools(problem: Problem, seed: Seed) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Each group's rows in an order that depends on no row's values: one half for each player."""
    pools = []
    for group in range(len(problem.public.groups)):
        members = np.flatnonzero(problem.present & (problem.group_of == group))
        mixed = members[seed.generator("pool", 0, group).permutation(len(members))]
        pools.append((mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :]))
    return pools


def _cut(rows: LinearRows, part: slice) -> LinearRows:
    """Consecutive rows, without a copy."""
    return LinearRows(rows.features[part], rows.targets[part], rows.groups[part])


@dataclass(frozen=True)
class GameRates:
    """Step sizes, the cut V, and the upper bound of this module's docstring."""

    step_size: float
    group_step: float
    most: float
    bound: float


def game_rates(setting: LinearSetting, rounds: int, node_noise: float, levels: int, loss_noise: float) -> GameRates:
    """What minimises the upper bound for a number of rounds and the two noises."""
    constants, groups = setting.constants, len(setting.facts.groups)
    pull = constants.lipschitz**2 / 2 + constants.lipschitz * node_noise * math.sqrt(setting.dimension * levels)
    step_size = setting.weight_radius / math.sqrt(2 * rounds * pull)
    bound = setting.weight_radius * math.sqrt(2 * pull / rounds) + setting.bias_of_loss
    far = math.sqrt(2 * math.log(max(rounds, 3)))
    most = constants.range / 2 + far * loss_noise
    if groups == 1:
        return GameRates(step_size, 0.0, most, bound)
    logs = math.log(groups)
    regret = 2 * math.sqrt(2 * groups * logs / rounds)
    regret += (math.sqrt(2 * groups / (rounds * logs)) + 1 / rounds) * (1 + math.log(2))
    cut = 2 * loss_noise * math.exp(-(far**2) / 2) / math.sqrt(2 * math.pi) / far**2
    return GameRates(step_size, math.sqrt(2 * logs / (groups * rounds)), most, bound + 2 * most * regret + cut)
