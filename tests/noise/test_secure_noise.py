"""The secure generator is ChaCha20, and a secure release keeps no trace of the value's low-order bits."""

from concurrent.futures import ThreadPoolExecutor

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from veil.foundation.randomness import Seed
from veil.noise import GaussianNoise, secure

KEY = bytes(range(32))
REFUSE = 1e-6  # each statistical test raises a false alarm with at most this probability over seeds


# RFC 8439, appendix A.1, vectors 1 to 3.
@pytest.mark.parametrize(
    ("key", "counter", "stream"),
    [
        (
            bytes(32),
            0,
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
            "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
        ),
        (
            bytes(32),
            1,
            "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
            "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
        ),
        (
            bytes(31) + b"\x01",
            1,
            "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
            "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
        ),
    ],
)
def test_the_key_stream_is_that_of_the_standard(key, counter, stream):
    assert secure.secure_words(key, 8, start=counter).astype("<u8").tobytes().hex() == stream


def test_words_do_not_depend_on_how_the_stream_is_cut():
    whole, more = secure.secure_words(KEY, 1001), secure.word_stream(KEY)
    assert np.array_equal(np.concatenate([more(1), more(500), more(500)]), whole)
    assert np.array_equal(secure.secure_words(KEY, 3), whole[:3])
    assert np.array_equal(secure.secure_words(KEY, 9, start=2), whole[16:25])
    assert len(secure.secure_words(KEY, 0)) == 0


def test_normals_do_not_depend_on_how_the_stream_is_cut(monkeypatch):
    whole = secure.secure_normals(KEY, 101)
    monkeypatch.setattr(secure, "_AT_ONCE", 3)
    assert np.array_equal(secure.secure_normals(KEY, 101), whole)
    assert np.array_equal(secure.secure_normals(KEY, 5), whole[:5])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: secure.secure_words(b"short", 1),
        lambda: secure.secure_words(KEY, 9, start=(1 << 32) - 1),
        lambda: secure.add_secure_gaussian(np.zeros(1), 0.0, KEY),
        lambda: secure.add_secure_gaussian(np.zeros(1), float("nan"), KEY),
        lambda: secure.add_secure_gaussian(np.zeros(1), 1e-300, KEY),
    ],
)
def test_wrong_input_is_refused(wrong):
    with pytest.raises(ValueError):
        wrong()


def test_the_most_extreme_words_give_finite_noise(monkeypatch):
    top = (1 << 64) - 1
    words = np.array([0, 0, 0, top, top, 0, top, top, 1 << 63, 1 << 62], dtype=np.uint64)
    monkeypatch.setattr(secure, "word_stream", lambda key, start=0: lambda count: words[:count])
    normals = secure.secure_normals(KEY, 5)
    assert np.all(np.isfinite(normals))
    assert 16.8 < np.abs(normals).max() < 16.9
    uniforms = secure.secure_uniforms(KEY, 10)
    assert uniforms.min() > 0.0
    assert uniforms.max() < 1.0


@settings(derandomize=True, deadline=None, max_examples=80)
@given(
    std=st.floats(1e-6, 1e6),
    value=st.floats(-100, 100),
    steps=st.integers(-(10**9), 10**9),
)
def test_moving_the_value_by_grid_steps_moves_the_release_by_exactly_as_much(std, value, steps):
    """The noise law is the same for every value: what the privacy argument rests on, exact to the last bit."""
    grid = 2.0 ** (np.floor(np.log2(std)) - 20)
    base = np.rint(value / 100 * 2**20) * grid
    one = secure.add_secure_gaussian(np.full(50, base), std, KEY)
    other = secure.add_secure_gaussian(np.full(50, base + steps * grid), std, KEY)
    assert np.array_equal(other - one, np.full(50, steps * grid))
    assert np.array_equal(one / grid, np.rint(one / grid))


def pairs_of(count, value=0.0):
    """Releases of a value, two and two from the same bits."""
    return secure.add_secure_gaussian(np.full(2 * count, value), 1.0, KEY).reshape(-1, 2)


@pytest.mark.statistical
def test_both_normals_of_a_pair_are_normal_and_independent():
    pairs = pairs_of(200_000)
    cells = np.histogram2d(*stats.norm.cdf(pairs).T, bins=24, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(cells.ravel()).pvalue > REFUSE
    assert stats.pearsonr(pairs[1:, 0], pairs[:-1, 1]).pvalue > REFUSE
    assert stats.kstest(np.exp(-np.square(pairs).sum(1) / 2), "uniform").pvalue > REFUSE


@pytest.mark.statistical
@pytest.mark.parametrize("value", [0.0, 0.1, -1234.5678])
def test_the_low_order_bits_of_a_pair_say_nothing_about_each_other(value):
    low = (pairs_of(200_000, value) * 2**20).astype(np.int64) & 15
    assert stats.chisquare(np.bincount(16 * low[:, 0] + low[:, 1], minlength=256)).pvalue > REFUSE


def test_a_pair_lies_where_its_bits_say_to_the_last_digits_of_doubles():
    words = secure.secure_words(KEY, 2000)
    normals = secure.secure_normals(KEY, 2000)
    for place in range(0, 2000, 2):
        whole = (int(words[place]) << 11) + (int(words[place + 1]) & 2047)
        radius = mpmath.sqrt(-2 * mpmath.log((mpmath.mpf(whole) + 0.5) / 2**75))
        angle = 2 * mpmath.pi * (mpmath.mpf(int(words[place + 1]) >> 11) + 0.5) / 2**53
        wanted = radius * mpmath.cos(angle), radius * mpmath.sin(angle)
        assert abs(normals[place] - wanted[0]) < 2.0**-47
        assert abs(normals[place + 1] - wanted[1]) < 2.0**-47


@pytest.mark.statistical
@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, -12345.678901234567, 1e-9])
def test_the_low_order_bits_of_a_release_say_nothing_about_the_value(value):
    release = secure.add_secure_gaussian(np.full(100_000, value), 1.0, KEY) * 2**20
    assert stats.chisquare(np.bincount(release.astype(np.int64) & 255, minlength=256)).pvalue > REFUSE


@pytest.mark.statistical
@pytest.mark.parametrize("std", [1.0, 1.999, 3e-5])
def test_a_release_is_the_value_plus_normal_noise(std):
    values = np.linspace(-5, 5, 100_000)
    noise = (secure.add_secure_gaussian(values, std, KEY) - values) / std
    assert stats.kstest(noise, "norm").pvalue > REFUSE
    assert stats.pearsonr(noise, values).pvalue > REFUSE
    assert stats.pearsonr(noise[1:], noise[:-1]).pvalue > REFUSE


def test_bad_values_do_not_spread_and_huge_ones_are_limited():
    values = np.array([np.nan, 0.0, np.inf, -np.inf, 1e300])
    release = secure.add_secure_gaussian(values, 1.0, KEY)
    expected = secure.add_secure_gaussian(np.array([0.0, 0.0, 2.0**20, -(2.0**20), 2.0**20]), 1.0, KEY)
    assert np.array_equal(release, expected)


def test_rounding_to_the_grid_is_finer_than_a_millionth_of_the_noise():
    values = np.linspace(-1, 1, 1001)
    zeros = secure.add_secure_gaussian(np.zeros(1001), 1.0, KEY)
    assert np.abs(secure.add_secure_gaussian(values, 1.0, KEY) - zeros - values).max() <= 2.0**-20


@pytest.mark.parametrize("std", [1.0, 0.37, 3e-5, 2.0**600])
def test_sums_in_doubles_are_those_of_whole_numbers(std, monkeypatch):
    generator = np.random.default_rng(0)
    values = np.concatenate([generator.normal(size=3000) * 10.0**power for power in range(-12, 3)]) * std
    values[:10] = [
        2000.0 * std,
        -2000.0 * std,
        0.0,
        std / 2**41,
        -std / 2**41,
        std / 2**21,
        1e-300,
        0.5 * std,
        std,
        -std,
    ]
    short = secure.add_secure_gaussian(values, std, KEY)
    monkeypatch.setattr(secure, "_none_beyond", lambda *_: False)
    assert np.array_equal(secure.add_secure_gaussian(values, std, KEY), short)


def test_large_noise_is_not_summed_in_doubles():
    noise = np.full(4, 2.0**19 + 0.25)
    grid = secure.add_on_grid(np.array([0.0, 2.0**-20, 2.0**19, -(2.0**19)]), noise, 1.0)
    assert np.array_equal(grid, noise + np.array([0.0, 2.0**-20, 2.0**19, -(2.0**19)]))


def test_threads_and_draws_within_draws_share_no_memory():
    def drawn(seed):
        noise = GaussianNoise(Seed.from_int(seed), secure=seed % 2 == 1)
        return noise.add(0, {"w": torch.zeros(150_001)}, 1.0)["w"]

    alone = [drawn(seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(drawn, range(6)))
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))

    outer, pieces = secure.word_stream(KEY), []
    for piece in secure.drawn_in_pieces([(outer, 1000)], 300):
        secure.secure_normals(bytes(32), 1000)
        list(secure.drawn_in_pieces([(secure.word_stream(bytes(32)), 1000)], 300))
        pieces.append(piece.copy())
    assert np.array_equal(np.concatenate(pieces), secure.secure_words(KEY, 1000))
