"""Tree noise: every prefix carries the noise of its dyadic intervals, however it is asked for."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veil.accounting.events import Tree
from veil.foundation.randomness import Seed
from veil.noise import TreeNoise

SEED = Seed.from_int(13)


def dyadic(steps):
    """The intervals [start, start + 2^level) that make up [0, steps), the largest first, by greedy search."""
    intervals, start = [], 0
    while start < steps:
        level = max(level for level in range(64) if start % 2**level == 0 and start + 2**level <= steps)
        intervals.append((level, start // 2**level))
        start += 2**level
    return intervals


def naive_prefix(noise, steps):
    """One node at a time, one tree after the other."""
    total, tree = np.zeros(noise.dimension), 0
    while steps >= noise.leaves:
        nodes = [(noise.levels - 1, 0)] if noise.completion else dyadic(noise.leaves)
        total = total + sum((noise._nodes(tree, level, at, at + 1)[0] for level, at in nodes), np.zeros(()))
        steps, tree = steps - noise.leaves, tree + 1
    for level, at in dyadic(steps):
        total = total + noise._nodes(tree, level, at, at + 1)[0]
    return total


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    leaves=st.integers(1, 40),
    dimension=st.sampled_from([1, 3, 5000]),
    completion=st.booleans(),
    secure=st.booleans(),
    start=st.integers(1, 90),
    length=st.integers(1, 12),
)
def test_prefixes_equal_the_sum_of_their_nodes(leaves, dimension, completion, secure, start, length):
    if secure and dimension > 3:
        length = 1
    noise = TreeNoise(SEED, dimension, 1.5, leaves, completion, secure)
    block = noise.prefixes(start, start + length)
    walked = list(islice(noise.walk(start), length))
    for place, line in enumerate(block):
        assert np.allclose(line, naive_prefix(noise, start + place), rtol=0, atol=1e-12)
        assert np.array_equal(line, noise.prefix(start + place))
        assert np.array_equal(line, walked[place])


@pytest.mark.statistical
@pytest.mark.parametrize("secure", [False, True])
def test_prefixes_share_exactly_the_variance_of_their_common_nodes(secure):
    dimension, steps, std = 20_000, 13, 2.0
    table = TreeNoise(SEED, dimension, std, leaves=16, secure=secure).prefixes(1, steps + 1)
    shared = np.array([[len(set(dyadic(a)) & set(dyadic(b))) for b in range(1, 14)] for a in range(1, 14)])
    measured = table @ table.T / dimension / std**2
    # The variance of a mean product is (σ_a² σ_b² + σ_ab²)/n; 6 deviations over 91 pairs: a false alarm of 2e-7.
    size = np.diag(shared)
    error = np.sqrt((np.outer(size, size) + shared**2) / dimension)
    assert np.all(np.abs(measured - shared) < 6 * error)


@pytest.mark.statistical
@pytest.mark.parametrize(("completion", "nodes"), [(True, 1), (False, 2)])
def test_a_finished_tree_carries_one_node_if_completed_and_all_of_them_if_not(completion, nodes):
    noise = TreeNoise(SEED, 20_000, 1.0, leaves=5, completion=completion)
    variances = noise.prefixes(1, 16).var(axis=1)
    # Relative error of a variance from 20,000 numbers is 1 %: 6 of them is a false alarm of 2e-9 each.
    assert variances[4] == pytest.approx(nodes, rel=0.06)
    assert variances[9] == pytest.approx(2 * nodes, rel=0.06)
    assert variances[14] == pytest.approx(3 * nodes, rel=0.06)
    assert variances[12] == pytest.approx(2 * nodes + 2, rel=0.06)


@pytest.mark.statistical
def test_a_long_stream_has_the_variance_of_its_binary_digits():
    prefixes = TreeNoise(SEED, 1, 1.0, leaves=1 << 17).prefixes(1, 100_001).ravel()
    digits = np.array([steps.bit_count() for steps in range(1, 100_001)])
    # High nodes are shared by thousands of prefixes; a low-order digit pattern has about 50,000 fresh ones. The
    # change from t to t + 1 (t even) is a fresh leaf: variance 1 within 6 × √(2/50,000).
    leaves = prefixes[2::2] - prefixes[1:-1:2]
    assert leaves.var() == pytest.approx(1.0, abs=6 * np.sqrt(2 / 50_000))
    assert np.abs(prefixes / np.sqrt(digits)).max() < 7


def test_the_first_prefix_is_empty_and_wrong_ranges_are_refused():
    noise = TreeNoise(SEED, 3, 1.0, leaves=4)
    assert np.array_equal(noise.prefix(0), np.zeros(3))
    assert noise.prefixes(5, 5).shape == (0, 3)
    for wrong in (lambda: noise.prefix(-1), lambda: noise.prefixes(0, 3), lambda: noise.prefixes(4, 3)):
        with pytest.raises(ValueError, match="prefixes start at 1"):
            wrong()
    with pytest.raises(ValueError, match="prefixes start at 1"):
        next(noise.walk(0))


@pytest.mark.parametrize(("dimension", "std", "leaves"), [(0, 1.0, 4), (1, -1.0, 4), (1, 1.0, 0)])
def test_a_tree_that_cannot_be_is_refused(dimension, std, leaves):
    with pytest.raises(ValueError):
        TreeNoise(SEED, dimension, std, leaves)


def test_other_purposes_and_trees_have_other_noise():
    one = TreeNoise(SEED, 3, 1.0, leaves=4)
    other = TreeNoise(SEED, 3, 1.0, leaves=4, purpose="other")
    assert not np.any(one.prefix(3) == other.prefix(3))
    assert not np.any(one.prefix(5) - one.prefix(4) == one.prefix(1))


@pytest.mark.parametrize("secure", [False, True])
def test_adding_releases_the_sum_plus_its_noise(secure):
    noise = TreeNoise(SEED, 2, 1.0, leaves=4, secure=secure)
    release = noise.add(6, [0.3, -0.7])
    assert np.allclose(release, np.array([0.3, -0.7]) + noise.prefix(6), atol=2e-6)
    assert np.array_equal(release * 2**20, np.rint(release * 2**20)) == secure


def test_levels_agree_with_what_the_accountant_charges():
    for leaves in (1, 2, 3, 4, 5, 8, 9, 1000):
        assert TreeNoise(SEED, 1, 1.0, leaves).levels == Tree(1.0, leaves).levels


@settings(derandomize=True, deadline=None, max_examples=30)
@given(leaves=st.integers(1, 70))
def test_a_leaf_moves_no_more_nodes_than_there_are_levels(leaves):
    """What the accountant charges for: over all prefixes a row stands in at most one node per level."""
    noise = TreeNoise(SEED, 1, 1.0, leaves)
    used = {node for steps in range(1, leaves) for node in dyadic(steps)} | {(noise.levels - 1, 0)}
    for leaf in range(leaves):
        above = [level for level, at in used if at << level <= leaf < (at + 1) << level]
        assert len(above) == len(set(above)) <= noise.levels
