"""Randomness is a pure function of seed, purpose, step and stream, and is as random as it claims."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from veil.foundation.randomness import Seed

SEED = Seed.from_int(20240607)
REFUSE = 1e-6  # each statistical test raises a false alarm with at most this probability over seeds


def test_same_arguments_give_the_same_draws_in_any_order():
    later = SEED.generator("batch", 9, "a").random(5)
    SEED.generator("batch", 8, "a").random(1000)
    assert np.array_equal(SEED.generator("batch", 9, "a").random(5), later)


@pytest.mark.parametrize(
    ("purpose", "step", "stream"),
    [("noise", 1, 1), ("batch", 2, 1), ("batch", 1, 2), ("batch", 1, "1"), ("batch", 1, -1), ("batc", 1, "h1")],
)
def test_every_part_of_the_description_changes_the_stream(purpose, step, stream):
    one = SEED.generator("batch", 1, 1).integers(1 << 62, size=4)
    other = SEED.generator(purpose, step, stream).integers(1 << 62, size=4)
    assert not np.any(one == other)


def test_a_generator_is_philox_keyed_by_the_hash():
    words = np.frombuffer(SEED.key("batch", 1, 1), dtype=np.uint64)
    counter = np.array([0, 0, 0, words[2]], dtype=np.uint64)
    philox = np.random.Philox(key=words[:2], counter=counter)
    assert np.array_equal(philox.random_raw(9), SEED.generator("batch", 1, 1).bit_generator.random_raw(9))


def test_a_generator_survives_being_sent_to_another_process():
    sent = pickle.loads(pickle.dumps(SEED.generator("batch", 1)))
    assert sent.integers(1 << 62) == SEED.generator("batch", 1).integers(1 << 62)
    assert pickle.loads(pickle.dumps(SEED)) == SEED


def test_another_seed_gives_another_stream():
    assert SEED.key("batch", 0) != Seed.from_int(1).key("batch", 0)


def test_streams_do_not_change_between_versions():
    seed = Seed.from_int(1)
    assert seed.key("batch", 3, "group").hex() == KEY
    assert seed.generator("batch", 3, "group").bit_generator.random_raw(2).tolist() == RAW
    assert seed.uniforms("batch", 3, [0, 7]).tolist() == UNIFORMS


KEY = "4cd10467d17ee6cab95201e7fdb351f3f670df6fb66cda0774066f4b8ddaa504"
RAW = [5869140987253240757, 8775862556918151993]
UNIFORMS = [0.8216287603039035, 0.49820201548303644]


def test_a_seed_never_shows_its_value():
    seed = Seed.from_int(123456789)
    for text in (repr(seed), str(seed), f"{seed}", repr([seed])):
        assert "123456789" not in text
        assert "secret" not in text
        assert repr(seed.secret)[2:8] not in text


def test_a_seed_knows_whether_a_person_gave_it():
    assert SEED.given
    fresh = Seed.from_system()
    assert not fresh.given
    assert fresh.secret != Seed.from_system().secret


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Seed(b"short"),
        lambda: Seed.from_int(-1),
        lambda: Seed.from_int(1 << 256),
        lambda: SEED.generator("batch", -1),
        lambda: SEED.uniforms("batch", 0, [0.5]),
    ],
)
def test_wrong_input_is_refused(wrong):
    with pytest.raises(ValueError):
        wrong()


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_the_uniform_of_a_row_depends_on_that_row_alone(rows, random):
    together = dict(zip(rows, SEED.uniforms("order", 4, rows), strict=True))
    shuffled = random.sample(rows, len(rows))
    assert [together[row] for row in shuffled] == SEED.uniforms("order", 4, shuffled).tolist()
    assert all(SEED.uniforms("order", 4, row).item() == together[row] for row in rows)


@pytest.mark.statistical
@pytest.mark.parametrize("stride", [1, 2, 1 << 20, 1 << 40])
def test_uniforms_by_row_are_uniform_for_any_pattern_of_ids(stride):
    uniforms = SEED.uniforms("order", 0, np.arange(200_000) * stride)
    assert uniforms.min() >= 0.0
    assert uniforms.max() < 1.0
    assert stats.kstest(uniforms, "uniform").pvalue > REFUSE
    low_bits = (uniforms * 2**53).astype(np.int64) & 255
    assert stats.chisquare(np.bincount(low_bits, minlength=256)).pvalue > REFUSE


@pytest.mark.statistical
def test_uniforms_of_neighbouring_rows_and_steps_are_independent():
    steps = np.stack([SEED.uniforms("order", step, np.arange(100_000)) for step in range(4)])
    pairs = [(steps[0], steps[1]), (steps[2], steps[3]), (steps[0, :-1], steps[0, 1:]), (steps[1, :-2], steps[1, 2:])]
    for one, other in pairs:
        cells = np.histogram2d(one, other, bins=16, range=[[0, 1], [0, 1]])[0]
        assert stats.chisquare(cells.ravel()).pvalue > REFUSE


@pytest.mark.statistical
def test_one_flipped_bit_of_a_row_id_flips_half_of_the_bits():
    ids = np.arange(4096)
    base = (SEED.uniforms("order", 0, ids) * 2**53).astype(np.int64)
    for bit in range(0, 62, 7):
        moved = (SEED.uniforms("order", 0, ids ^ (1 << bit)) * 2**53).astype(np.int64)
        flips = np.array([int(word).bit_count() for word in base ^ moved])
        # 53 fair bits each; 5.5 standard deviations of the mean is a false alarm of 4e-8 per bit. Where ids pair up
        # (bits below 12) every value counts twice, which widens the mean by √2.
        assert abs(flips.mean() - 26.5) < 5.5 * np.sqrt(2 * 53 / 4 / len(ids))


@pytest.mark.statistical
def test_streams_of_neighbouring_steps_are_uncorrelated():
    draws = np.stack([SEED.generator("noise", step).standard_normal(2000) for step in range(40)])
    products = (draws @ draws.T / np.sqrt(2000))[np.triu_indices(40, 1)]
    # 780 products, each nearly N(0, 1): beyond 6.5 with probability 780 × 8e-11.
    assert np.abs(products).max() < 6.5
