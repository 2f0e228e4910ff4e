"""Noise has all of its tail: what cannot be drawn is too little to charge, and what was right before is unchanged."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from veil.foundation.randomness import Seed
from veil.noise import GaussianNoise, GumbelNoise, LaplaceNoise, gaussian, gumbel, laplace, secure
from veil.noise.gaussian import fast_normals
from veil.noise.secure import word_stream

SEED = Seed.from_int(7)
REFUSE = 1e-6  # each statistical test raises a false alarm with at most this probability over seeds
RADII = 1 << 31
END = 1 << 12  # radii that get further bits, at either end


def words_with(radii, angles):
    """Words whose first half says a radius (31 bits) and whose second half an angle."""
    return np.asarray(radii, dtype=np.uint64) << np.uint64(1) | np.asarray(angles, dtype=np.uint64) << np.uint64(32)


def stream_of(first, after=None):
    """First these words, then those of `after`: random ones if it is not given."""
    parts = [np.asarray(first, dtype=np.uint64)]
    after = word_stream(SEED.key("after", 0)) if after is None else after

    def more(count):
        own = parts[0][:count]
        parts[0] = parts[0][count:]
        return np.concatenate([own, after(count - len(own))])

    return more


def all_zeros(count):
    return np.zeros(count, dtype=np.uint64)


def all_ones(count):
    return np.full(count, (1 << 64) - 1, dtype=np.uint64)


def angles(count):
    return SEED.generator("angles", 0).integers(0, 1 << 32, count)


def pairs_at(radii):
    """Both normals of words with these radii and random angles."""
    return fast_normals(stream_of(words_with(radii, angles(len(radii)))), len(radii)).astype(np.float64)


def in_single_precision(words, std):
    """Box and Muller without further bits: what every word but those near an end of the radius must give."""
    halves = words.view(np.uint32).reshape(-1, 2)
    radius = (halves[:, 0] >> np.uint32(1)).view(np.int32).astype(np.float32)
    radius = np.log((radius + np.float32(0.5)) * np.float32(2.0**-31)) * np.float32(-2.0)
    radius = np.sqrt(np.maximum(radius, np.float32(0.0))) * np.float32(std)
    angle = halves[:, 1].view(np.int32).astype(np.float32) * np.float32(2.0 * math.pi * 2.0**-32)
    return np.stack([np.cos(angle) * radius, np.sin(angle) * radius])


def radius_at(edge):
    """The exact radius at a number between 0 and 2³¹."""
    edge = np.asarray(edge, dtype=np.float64)
    with np.errstate(divide="ignore"):
        below, above = np.log(edge / RADII), np.log1p(-(RADII - edge) / RADII)
    return np.sqrt(-2.0 * np.where(edge < RADII / 2, below, above))


@pytest.mark.statistical
def test_the_tail_of_fast_normals_does_not_end_where_31_bits_end():
    normals = np.abs(pairs_at(np.zeros(400_000))).ravel()
    start = float(radius_at(1))
    tail = normals[normals > start]
    # Given the smallest radius word, a normal is beyond `start` with probability 2·sf(start)·2³¹.
    assert stats.binomtest(len(tail), len(normals), 2 * stats.norm.sf(start) * RADII).pvalue > REFUSE
    assert stats.kstest(stats.norm.sf(tail) / stats.norm.sf(start), "uniform").pvalue > REFUSE
    assert tail.max() > 7.5


@pytest.mark.statistical
@pytest.mark.parametrize("count", [1, 4, END])
def test_radii_far_out_and_near_zero_have_no_gaps(count):
    drawn = SEED.generator("radii", count).integers(0, count, 100_000)
    far = np.hypot(*pairs_at(drawn))
    assert stats.kstest(np.exp(-(far**2) / 2) * RADII / count, "uniform").pvalue > REFUSE
    near = np.hypot(*pairs_at(RADII - 1 - drawn))
    assert np.all(near > 0)
    assert stats.kstest(-np.expm1(-(near**2) / 2) * RADII / count, "uniform").pvalue > REFUSE


def test_every_pair_in_single_precision_is_near_an_exactly_normal_pair():
    """A word stands for the exact pairs of a small cell of radius and angle: all of it is within 3·10⁻⁵."""
    near = np.arange(END, 1 << 17)
    middle = SEED.generator("middle", 0).integers(END, RADII - END, 200_000)
    radii = np.concatenate([near, RADII - 1 - near, middle])
    turns = angles(len(radii))
    normals = fast_normals(stream_of(words_with(radii, turns)), len(radii)).astype(np.float64)
    for radius in (radius_at(radii), radius_at(radii + 1)):
        for angle in (2 * np.pi * (turns - 0.5) / 2**32, 2 * np.pi * (turns + 0.5) / 2**32):
            assert np.hypot(normals[0] - radius * np.cos(angle), normals[1] - radius * np.sin(angle)).max() < 3e-5


@pytest.mark.parametrize("after", [all_zeros, all_ones])
def test_pairs_with_further_bits_fill_their_cell_from_end_to_end(after):
    radii = np.concatenate([np.arange(1, END), RADII - 1 - np.arange(1, END)])
    words = words_with(radii, angles(len(radii)))
    drawn = np.hypot(*fast_normals(stream_of(words, after), len(radii)).astype(np.float64))
    # All bits 0 is the far end below and the near end above; two roundings to single precision remain.
    at_whole = (radii < END) == (after is all_zeros)
    assert np.allclose(drawn, radius_at(np.where(at_whole, radii, radii + 1)), rtol=2e-7, atol=0)


@pytest.mark.parametrize("std", [1.0, 0.37])
def test_words_away_from_the_ends_give_the_same_bits_as_single_precision_alone(std):
    words = secure.secure_words(SEED.key("bulk", 0), 2_000_000)
    edges = words_with([0, END - 1, END, RADII - END - 1, RADII - END, RADII - 1], angles(6))
    words = np.concatenate([words, edges])
    normals, plain = fast_normals(stream_of(words), len(words), std), in_single_precision(words, std)
    radii = (words & np.uint64(0xFFFFFFFF)) >> np.uint64(1)
    kept = (radii >= END) & (radii < RADII - END)
    assert np.array_equal(normals[:, kept].view(np.uint32), plain[:, kept].view(np.uint32))
    assert 3 <= np.sum(~kept) < 60  # 2,000,000 words: about 15 near an end
    others = ~kept & (radii > 1)
    assert np.abs(normals[:, others] - plain[:, others]).max() < 0.1


def often_near_an_end(key, start=0):
    """Key streams of which every third word has a radius near an end."""
    more = word_stream(key, start)

    def often(count):
        words = more(count).copy()
        small = words & np.uint64(~0xFFFFFFFF & (1 << 64) - 1 | 0xFFF)
        kind = words >> np.uint64(40) & np.uint64(7)
        return np.where(kind == 0, small, np.where(kind == 1, small | np.uint64(0xFFFFF000), words))

    return often


@pytest.mark.parametrize("at_once", [1, 7, 100, 10_000])
def test_further_bits_do_not_depend_on_how_words_are_cut_or_worked_on_together(at_once, monkeypatch):
    monkeypatch.setattr(gaussian, "word_stream", often_near_an_end)
    shapes = {"a": (33,), "b": (5, 11), "c": (2,), "d": (0,), "e": (2100,)}
    usual = GaussianNoise(SEED).draw(3, shapes, 1.3)
    monkeypatch.setattr(gaussian, "_AT_ONCE", at_once)
    cut = GaussianNoise(SEED).draw(3, shapes, 1.3)
    alone = {name: GaussianNoise(SEED).draw(3, {name: shape}, 1.3)[name] for name, shape in reversed(shapes.items())}
    for name in shapes:
        assert torch.equal(usual[name], cut[name])
        assert torch.equal(usual[name], alone[name])
    assert usual["e"].abs().max() > 1.3 * float(radius_at(END))


def test_further_bits_are_used_for_one_pair_only():
    normals = fast_normals(stream_of(words_with(np.zeros(50_000), np.zeros(50_000))), 50_000)
    # Rounding to single precision leaves about 10⁶ values between 6.6 and 8: some meet, most do not.
    assert len(np.unique(normals[0])) > 45_000


def test_the_mass_that_noise_cannot_reach_is_far_below_any_delta(monkeypatch):
    """10⁹ parameters, 10⁶ steps, ε up to 10: noise that misses a mass t adds at most (1 + e^ε)·t to δ."""
    normals, factor, limit = mpmath.mpf(10) ** 15, 1 + mpmath.exp(10), mpmath.mpf("1e-13")

    def beyond(radius):
        return mpmath.exp(-(mpmath.mpf(float(radius)) ** 2) / 2)

    # The largest radius stands for a cell of twice the mass that lies beyond it.
    zero = np.zeros(1, dtype=np.uint64)
    fast = np.hypot(*fast_normals(stream_of(zero, all_zeros), 1).astype(np.float64))[0]
    assert factor * normals / 2 * 2 * beyond(fast) < limit

    monkeypatch.setattr(secure, "word_stream", lambda key, start=0: all_zeros)
    assert factor * normals * 2 * beyond(secure.secure_normals(bytes(32), 1)[0]) < limit

    # numpy's ziggurat for double precision: beyond its edge it accepts x if 2y > x², and y ends at 53 bits.
    largest = mpmath.mpf("3.6541528853610088") + mpmath.sqrt(2 * 53 * mpmath.log(2))
    assert factor * normals * mpmath.erfc(largest / mpmath.sqrt(2)) < limit


@pytest.mark.statistical
def test_secure_normals_with_few_bits_get_further_ones(monkeypatch):
    first = np.zeros(2000, dtype=np.uint64)
    first[1::2] = angles(1000).astype(np.uint64) << np.uint64(32)
    monkeypatch.setattr(secure, "word_stream", lambda key, start=0: stream_of(first))
    normals = secure.secure_normals(bytes(32), 2000)
    monkeypatch.setattr(secure, "_AT_ONCE", 7)
    assert np.array_equal(secure.secure_normals(bytes(32), 2000), normals)
    turns = 2 * np.pi * ((first[1::2] >> np.uint64(11)) + 0.5) * 2.0**-53
    radius = np.hypot(normals[0::2], normals[1::2])
    assert np.allclose(normals[0::2], radius * np.cos(turns), atol=1e-12)
    assert np.allclose(normals[1::2], radius * np.sin(turns), atol=1e-12)
    assert radius.min() > 10.19
    # u is uniform below 2⁻⁷⁵.
    assert stats.kstest(np.exp(75 * np.log(2) - radius**2 / 2), "uniform").pvalue > REFUSE


class Extremes:
    """A seed whose generators give noise at the edge of what they can; its keys are true."""

    def __init__(self, size):
        self.size, self.key = size, SEED.key

    def generator(self, purpose, step):
        return self

    def laplace(self, centre, scale, count):
        return np.full(count, centre + scale * self.size)

    gumbel = laplace


@pytest.mark.statistical
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_laplace_noise_beyond_twenty_scales_has_no_memory(side):
    noise = LaplaceNoise(Extremes(36.04 * side)).draw(0, (20_000,), 3.0) / 3.0
    assert np.all(np.sign(noise) == side)
    assert stats.kstest(np.abs(noise) - 20.0, "expon").pvalue > REFUSE
    near = LaplaceNoise(Extremes(19.9 * side)).draw(0, (3,), 3.0)
    assert np.array_equal(near, np.full(3, 3.0 * 19.9 * side))


@pytest.mark.statistical
@pytest.mark.parametrize(("size", "tail"), [(36.7, "right"), (-3.6, "left")])
def test_gumbel_noise_has_its_law_in_both_tails(size, tail):
    noise = GumbelNoise(Extremes(size)).draw(0, (20_000,), 2.0) / 2.0
    waits = np.exp(-noise)  # exponential
    if tail == "right":
        assert stats.kstest(np.expm1(-waits) / np.expm1(-np.exp(-20.0)), "uniform").pvalue > REFUSE
    else:
        assert stats.kstest(waits - 20.0, "expon").pvalue > REFUSE


@pytest.mark.parametrize("word", [0, (1 << 64) - 1])
def test_the_most_extreme_words_give_finite_laplace_and_gumbel_noise(word, monkeypatch):
    constant = {0: all_zeros, (1 << 64) - 1: all_ones}[word]
    for module in (laplace, gumbel, secure):
        monkeypatch.setattr(module, "word_stream", lambda key, start=0: constant)
    sizes = [
        LaplaceNoise(SEED, secure=True).draw(0, (1,), 1.0),
        GumbelNoise(SEED, secure=True).draw(0, (1,), 1.0),
        *(LaplaceNoise(Extremes(size)).draw(0, (1,), 1.0) for size in (-30.0, 30.0)),
        *(GumbelNoise(Extremes(size)).draw(0, (1,), 1.0) for size in (-3.5, 30.0)),
    ]
    assert np.all(np.isfinite(sizes))
    if word == 0:
        # Nothing is missed below e⁻¹⁰⁹: 10⁶ steps of 1,000 groups at ε = 10 miss less than 10⁻³³.
        assert abs(sizes[0][0]) > 109
        assert abs(sizes[2][0]) > 109
        assert sizes[5][0] > 109
        assert (1 + mpmath.exp(10)) * mpmath.mpf(10) ** 9 * mpmath.exp(-109) < mpmath.mpf("1e-33")


@pytest.mark.parametrize("std", [1e-46, 1e-31, 1e31, 1e39])
def test_single_precision_noise_that_would_vanish_or_overflow_is_refused(std):
    with pytest.raises(ValueError, match="single precision"):
        GaussianNoise(SEED).draw(0, {"w": (3,)}, std)
    assert GaussianNoise(SEED).draw(0, {"w": torch.zeros(3, dtype=torch.float64)}, std)["w"].abs().min() > 0


@pytest.mark.parametrize("std", [1e-30, 1e30])
def test_noise_of_extreme_but_allowed_size_is_what_was_asked_for(std):
    noise = GaussianNoise(SEED).draw(0, {"w": (1000,)}, std)["w"].double() / std
    assert torch.allclose(noise, GaussianNoise(SEED).draw(0, {"w": (1000,)}, 1.0)["w"].double(), rtol=1e-5, atol=0)
