"""Noise that is drawn for coming steps too is the noise that each step would have drawn by itself."""

import random

import pytest
import torch

from veil.foundation.randomness import Seed
from veil.noise import GaussianNoise, NoiseAhead, ahead

SEED = Seed.from_int(5)
SHAPES = ({"w": (40, 7), "b": (7,)}, {"b": (7,), "w": (40, 7)}, {"w": (280,), "b": (7,)}, {"w": (3,)})


def assert_same(noise, step, shapes, std, purpose="gradient"):
    found, wanted = noise.draw(step, shapes, std, purpose), GaussianNoise(SEED).draw(step, shapes, std, purpose)
    assert list(found) == list(wanted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted), (step, std, purpose)


@pytest.mark.parametrize("most", [1, 300, 1 << 20])
def test_steps_drawn_together_are_those_drawn_alone(most, monkeypatch):
    monkeypatch.setattr(ahead, "_MOST_VALUES", most)
    noise = NoiseAhead(SEED)
    for step in range(70):
        assert_same(noise, step, SHAPES[0], 0.5)


def test_no_order_of_steps_names_deviations_and_purposes_gives_other_noise():
    noise, choice, step = NoiseAhead(SEED), random.Random(1), 0
    for _ in range(400):
        step = step + 1 if choice.random() < 0.9 else choice.randrange(60)
        shapes = SHAPES[choice.randrange(4)] if choice.random() < 0.1 else SHAPES[0]
        assert_same(noise, step, shapes, choice.choice([1.0] * 9 + [2.0]), choice.choice(["gradient"] * 9 + ["losses"]))


def test_a_release_holds_no_noise_of_coming_steps():
    noise, values = NoiseAhead(SEED), {"w": torch.zeros(50), "b": torch.zeros(3)}
    for step in range(20):
        for value in noise.add(step, values, 1.0).values():
            assert value.untyped_storage().nbytes() == 4 * value.numel()


def test_a_release_that_is_changed_changes_no_other():
    noise = NoiseAhead(SEED)
    for step in range(20):
        assert_same(noise, step, SHAPES[0], 1.0)
        for value in noise.draw(step, SHAPES[0], 1.0).values():
            value.zero_()


def test_secure_and_double_precision_noise_are_as_without():
    values = {"w": torch.zeros(9, dtype=torch.float64), "b": torch.zeros(4)}
    for secure in (False, True):
        noise, plain = NoiseAhead(SEED, secure=secure), GaussianNoise(SEED, secure=secure)
        for step in range(9):
            found, wanted = noise.add(step, values, 1.5), plain.add(step, values, 1.5)
            assert all(torch.equal(found[name], wanted[name]) for name in values)


@pytest.mark.parametrize("interrupted", [0, 1, 3, 7, 15, 31, 47, 63])
@pytest.mark.parametrize("begun", [False, True])
def test_an_interrupt_while_drawing_leaves_no_used_nor_missing_noise(interrupted, begun, monkeypatch):
    """A block that was not drawn to its end is not served, and steps of the one before are as they were."""
    noise, real = NoiseAhead(SEED), ahead.drawn_steps

    def interrupt(seed, steps, sizes, std, purpose):
        if begun:
            real(seed, range(steps.start, steps.start + 1), sizes, std, purpose)
        raise KeyboardInterrupt

    for step in range(interrupted):
        assert_same(noise, step, SHAPES[0], 1.0)
    with monkeypatch.context() as patched:
        patched.setattr(ahead, "drawn_steps", interrupt)
        with pytest.raises(KeyboardInterrupt):
            noise.add(interrupted, {"w": torch.zeros(40, 7), "b": torch.zeros(7)}, 1.0)
    for step in (*range(interrupted, interrupted + 40), *range(max(0, interrupted - 20), interrupted)):
        assert_same(noise, step, SHAPES[0], 1.0)


def test_noise_is_handed_out_once_and_a_step_that_is_asked_for_again_draws_it_anew():
    noise = NoiseAhead(SEED)
    for step in range(20):
        first, again = noise.draw(step, SHAPES[0], 1.0), noise.draw(step, SHAPES[0], 1.0)
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert all(first[name].data_ptr() != again[name].data_ptr() for name in first)
