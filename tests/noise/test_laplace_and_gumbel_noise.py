"""Laplace and Gumbel noise have their laws, and the noisy maximum is the exponential mechanism."""

import numpy as np
import pytest
from scipy import special, stats

from veil.foundation.randomness import Seed
from veil.noise import GumbelNoise, LaplaceNoise, TreeNoise

SEED = Seed.from_int(31)
REFUSE = 1e-6  # each statistical test raises a false alarm with at most this probability over seeds
BOTH = pytest.mark.parametrize("secure", [False, True])
KINDS = pytest.mark.parametrize("kind", [LaplaceNoise, GumbelNoise])


@BOTH
@KINDS
@pytest.mark.statistical
def test_noise_has_its_law_at_the_stated_scale(kind, secure):
    noise = kind(SEED, secure).draw(1, (200, 300), 2.5).ravel()
    law = {LaplaceNoise: "laplace", GumbelNoise: "gumbel_r"}[kind]
    assert stats.kstest(noise / 2.5, law).pvalue > REFUSE
    assert stats.pearsonr(noise[1:], noise[:-1]).pvalue > REFUSE


@BOTH
@KINDS
def test_noise_is_a_pure_function_of_its_description(kind, secure):
    source = kind(SEED, secure)
    one = source.draw(4, (8,), 1.0)
    assert np.array_equal(one, source.draw(4, (8,), 1.0))
    assert not np.any(one == source.draw(5, (8,), 1.0))
    assert not np.any(one == source.draw(4, (8,), 1.0, purpose="other"))


@BOTH
@KINDS
def test_no_noise_only_when_zero_is_asked_for(kind, secure):
    source = kind(SEED, secure)
    assert np.array_equal(source.draw(0, (3,), 0.0), np.zeros(3))
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="scale"):
            source.draw(0, (3,), wrong)


@BOTH
def test_laplace_release_is_the_value_plus_the_noise_of_that_step(secure):
    source, values = LaplaceNoise(SEED, secure), np.array([1.0, -2.0, 0.1])
    assert np.allclose(source.add(0, values, 0.5), values + source.draw(0, (3,), 0.5), atol=1e-6)
    assert source.add(0, 3.0, 0.5).shape == ()
    assert np.array_equal(source.add(0, values, 0.0), values)


def test_secure_laplace_release_lies_on_the_grid():
    release = LaplaceNoise(SEED, secure=True).add(0, np.linspace(0, 1, 1000), 1.0) * 2**20
    assert np.array_equal(release, np.rint(release))


@BOTH
@pytest.mark.statistical
def test_the_noisy_maximum_chooses_by_the_exponential_of_the_score(secure):
    source, scores, scale = GumbelNoise(SEED, secure), np.array([0.0, 1.0, 2.5, 2.0]), 0.8
    chosen = [source.largest(step, scores, scale) for step in range(2000)]
    expected = special.softmax(scores / scale) * len(chosen)
    assert stats.chisquare(np.bincount(chosen, minlength=4), expected).pvalue > REFUSE


def test_a_score_that_is_not_a_number_is_never_chosen():
    source = GumbelNoise(SEED)
    assert {source.largest(step, [float("nan"), 0.0], 1.0) for step in range(50)} == {1}


@pytest.mark.parametrize("scores", [[], [[1.0]]])
def test_a_noisy_maximum_of_nothing_is_refused(scores):
    with pytest.raises(ValueError, match="at least one score"):
        GumbelNoise(SEED).largest(0, scores, 1.0)


@BOTH
def test_complex_values_are_refused(secure):
    values = np.array([1.0 + 2.0j, 0.0])
    for release in (
        lambda: LaplaceNoise(SEED, secure).add(0, values, 1.0),
        lambda: GumbelNoise(SEED, secure).largest(0, values, 1.0),
        lambda: TreeNoise(SEED, 2, 1.0, 4, secure=secure).add(1, values),
    ):
        with pytest.raises(ValueError, match="real and imaginary parts as two"):
            release()
