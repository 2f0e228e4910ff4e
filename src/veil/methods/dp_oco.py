"""DP online convex optimisation: DP-FTRL for the weights against EXP3 for the groups (Zhou & Bassily, algorithm 2).

    round t:  i ~ λ_t;   the next m rows x⁻ and the next m rows x⁺ of group i, from pools that share no row
              w_{t+1} = Proj_W(−η·(Σ_{s ≤ t} mean ∇ℓ(w_s, x⁻_s) + tree noise));   EXP3 hears mean ℓ(w_t, x⁺) + noise
    the run's weights are the average of all w_t

Guarantee: every row is used at most once and by one player. A row of the first pool stands in one leaf of the tree:
that is the event in the ledger. A row of the second pool stands in one noisy loss, whose noise is chosen such that it
costs the same. Which row comes next follows from the transcript and from public places, never from a row. Replace-one
only: a row that came or went would move the places of all others. Pools are finite: when a group has no rows left the
game ends (`go_on=True`: that group is played no more), which the transcript decides. The excess worst-group population
risk has an upper bound with its constants (`veil.methods.convex.online`), in the plan's details, while
no pool runs out.

Corrections: rows are never shared by the players; losses have Gaussian noise and rounds of m rows (by default the m
with the smallest bound); EXP3 has implicit exploration, without which the bound does not hold for the group that turns
out worst; the tree is filled up at a restart, so that a finished tree carries the noise of one node.
"""

from __future__ import annotations

import math

from veil.accounting import Relation, Repeated, TokenBucket, Tree
from veil.bounding import Clip
from veil.errors import require
from veil.methods.convex.limits import risk_details
from veil.methods.convex.online import Game, GameRates, game_rates
from veil.methods.convex.setting import LinearMethod, LinearSetting, noise_for_cell, tightest_cells
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.plans.controllers.solver import Described
from veil.problem import PublicFacts
from veil.releases import GradientRelease
from veil.sampling.draws import Poisson

RELATION = Relation.REPLACE_ONE


@known_as("dp-oco", "DP-FTRL for the weights plays against EXP3 for the groups, every row used once")
class DpOco(LinearMethod):
    """Two players on fresh rows: DP-FTRL and EXP3."""

    rows_per_round: int | None = None
    trees: int = 1
    go_on: bool = False

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Rounds, noise and step sizes from public sizes, before any row is read."""
        smallest = min(facts.group_sizes)
        require(smallest >= 2, "dp-oco needs at least two rows in every group, one for each player")
        given = self.rows_per_round
        require(
            given is None or 1 <= given <= smallest // 2,
            f"rows_per_round is {given}: it must be between 1 and half of the smallest group",
        )
        require(self.trees >= 1, f"trees is {self.trees}: it must be at least 1")
        setting = self.setting(facts, settings)
        sizes = [given] if given else [2**k for k in range(11) if 2**k <= smallest // 2]
        tightest = min(tightest_cells(facts, settings).values(), key=lambda c: facts.budget_of(c, settings.epsilon))
        plain = noise_for_cell(lambda kappa: [Repeated(Tree(kappa, 1, RELATION))], tightest, facts, settings)
        size = min(sizes, key=lambda m: self._rates(setting, settings, m, plain)[1].bound)
        game, rates = self._game(setting, settings, size, tightest)
        event = game.events[0]
        assert isinstance(event, Tree)
        release = GradientRelease(
            Poisson((1.0,) * len(facts.cells)),
            Clip((1.0 / event.as_gaussian().noise_multiplier,) * len(facts.cells)),
            1.0,
            1.0,
            RELATION,
        )
        sure = smallest // 2 // size
        of = "population"
        if game.rounds > sure:
            of += f", while no group's rows run out: for sure up to {sure:,} rounds"
        details = {
            **risk_details(setting, settings, RELATION, rates.bound, of),
            "noise_multiplier": event.noise_multiplier,
            "tree_levels": event.levels,
            "tree_leaves": event.leaves,
            "rows_per_round": size,
            "step_size": rates.step_size,
            "group_step": rates.group_step,
            "loss_noise": game.loss_noise,
            **setting.details(),
            "sampling": "every row once",
        }
        rule = TokenBucket((Repeated(event),))
        return Plan(
            self.name,
            facts,
            settings,
            game.rounds,
            Described(release, self.name),
            RELATION,
            (rule,) * len(facts.cells),
            details=details,
            solver=game,
        )

    def _rounds(self, setting: LinearSetting, settings: Settings, size: int) -> int:
        wholes = [rows // 2 // size for rows in setting.facts.group_sizes]
        # When all groups are played alike, the smallest runs out after this many rounds.
        most = sum(wholes) if self.go_on else min(wholes) * len(wholes)
        return min(settings.steps, most) if settings.steps else most

    def _rates(
        self, setting: LinearSetting, settings: Settings, size: int, plain: float
    ) -> tuple[tuple[int, int, float, float], GameRates]:
        """Rounds, leaves and the two noises from the noise multiplier of a tree with one level, and what they allow."""
        rounds = self._rounds(setting, settings, size)
        leaves = math.ceil(rounds / self.trees)
        levels = Tree(1.0, leaves, RELATION).levels
        node = plain * math.sqrt(levels) * setting.constants.lipschitz / size
        loss = plain * setting.constants.range / 2 / size
        # A prefix holds at most one node per level of the present tree, and one for every finished tree.
        return (rounds, leaves, node, loss), game_rates(setting, rounds, node, levels + self.trees - 1, loss)

    def _game(self, setting: LinearSetting, settings: Settings, size: int, tightest: int) -> tuple[Game, GameRates]:
        """Calibrate on the tree itself; the noise of a loss is that of the one Gaussian that costs the same."""
        leaves = math.ceil(self._rounds(setting, settings, size) / self.trees)
        kappa = noise_for_cell(
            lambda kappa: [Repeated(Tree(kappa, leaves, RELATION))], tightest, setting.facts, settings
        )
        event = Tree(kappa, leaves, RELATION)
        (rounds, leaves, node, loss), rates = self._rates(setting, settings, size, event.as_gaussian().noise_multiplier)
        game = Game(
            setting,
            rounds,
            size,
            rates.step_size,
            max(node, kappa * setting.constants.lipschitz / size),
            leaves,
            loss,
            rates.group_step,
            rates.most,
            (event,) * len(setting.facts.cells),
            self.go_on,
            settings.secure_noise,
        )
        return game, rates
