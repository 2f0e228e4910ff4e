"""DP-FTRL against a naive oracle and against dp-accounting's tree event; EXP3 against its formula."""

from __future__ import annotations

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp as peer

from veil.accounting import Rdp, Relation, Tree
from veil.foundation.randomness import Seed
from veil.methods.convex.online import DpFtrl, Exp3
from veil.methods.convex.rows import project
from veil.noise import TreeNoise


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("leaves", [5, 8, 30])
def test_ftrl_plays_what_a_naive_tree_gives(leaves: int, secure: bool) -> None:
    """The naive tree adds up values and noise node by node, in the order in which the prefix is cut into nodes."""
    noise = TreeNoise(Seed.from_int(4), 3, 0.7, leaves, secure=secure, purpose="ftrl")
    learner = DpFtrl((3, 1), 1.5, 0.2, noise)
    gradients = np.random.default_rng(0).standard_normal((20, 3, 1))
    for t, gradient in enumerate(gradients, start=1):
        learner.observe(gradient)
        total, trees, left = np.zeros(3), (t - 1) // leaves, (t - 1) % leaves + 1
        for tree in range(trees + (left == leaves)):
            total += noise._nodes(tree, noise.levels - 1, 0, 1)[0]
        if left < leaves:
            start = 0
            for level in range(left.bit_length() - 1, -1, -1):
                if left >> level & 1:
                    total += noise._nodes(trees, level, start >> level, (start >> level) + 1)[0]
                    start += 1 << level
        exact = gradients[:t].sum(axis=0) + total[:, None]
        assert np.allclose(learner.weights, project(-0.2 * exact, 1.5), atol=1e-6)


@pytest.mark.parametrize("leaves", [1, 2, 7, 64, 1000])
def test_a_tree_costs_what_dp_accounting_says(leaves: int) -> None:
    """A tree that is filled up releases its root too: it is the peer's tree of the next power of two."""

    def theirs(steps: int) -> float:
        accountant = peer.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
        accountant.compose(dp_accounting.SingleEpochTreeAggregationDpEvent(6.0, steps))
        return float(accountant.get_epsilon(1e-5))

    ours = Rdp().epsilon([Tree(6.0, leaves)], 1e-5)
    assert ours == pytest.approx(theirs(1 << (leaves - 1).bit_length()), rel=0.01)
    assert ours >= theirs(leaves) * (1 - 0.01)
    replaced = Rdp().epsilon([Tree(6.0, leaves, Relation.REPLACE_ONE)], 1e-5)
    assert replaced == pytest.approx(Rdp().epsilon([Tree(3.0, leaves)], 1e-5), rel=1e-6)


@pytest.mark.parametrize("secure", [False, True])
def test_the_learner_without_noise_is_plain_ftrl(secure: bool) -> None:
    learner = DpFtrl((2, 1), 1.0, 0.1, TreeNoise(Seed.from_int(0), 2, 0.0, 4, secure=secure))
    for _ in range(3):
        learner.observe(np.array([[1.0], [-2.0]]))
    assert learner.weights.ravel() == pytest.approx([-0.3, 0.6])


def test_exp3_follows_its_formula() -> None:
    player, everybody = Exp3(3, 0.5, 2.0), np.ones(3, dtype=bool)
    losses = np.zeros(3)
    for group, value in [(0, 1.0), (1, -1.5), (0, 9.0), (2, 0.0)]:
        chances = np.exp(-0.5 * losses) / np.exp(-0.5 * losses).sum()
        assert player.chances(everybody) == pytest.approx(chances)
        player.hear(group, value, everybody)
        losses[group] += (2.0 - min(max(value, -2.0), 2.0)) / 4.0 / (chances[group] + 0.25)


def test_a_group_without_rows_is_never_played() -> None:
    player = Exp3(3, 0.5, 1.0)
    chances = player.chances(np.array([True, False, True]))
    assert chances[1] == 0.0
    assert chances.sum() == pytest.approx(1.0)


@pytest.mark.statistical
def test_exp3_finds_the_group_that_loses_most() -> None:
    """The regret bound is a third of the gap: fewer than one run in thousands would play the worst group so rarely."""
    generator = np.random.default_rng(1)
    player, everybody, played = Exp3(4, float(np.sqrt(2 * np.log(4) / (4 * 2000))), 1.5), np.ones(4, dtype=bool), []
    for _ in range(2000):
        group = int(generator.choice(4, p=player.chances(everybody)))
        played.append(group)
        player.hear(group, (0.5 if group == 2 else -0.5) + 0.3 * generator.standard_normal(), everybody)
    assert np.mean(np.array(played[1000:]) == 2) > 0.6
