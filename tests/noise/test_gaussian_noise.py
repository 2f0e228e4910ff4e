"""Gaussian noise: normal, independent over names and steps, and a pure function of its description."""

import numpy as np
import pytest
import torch
from scipy import stats

from veil.foundation.randomness import Seed
from veil.noise import GaussianNoise, NoiseAhead, gaussian, secure
from veil.noise.gaussian import fast_normals

SEED = Seed.from_int(99)
REFUSE = 1e-6  # each statistical test raises a false alarm with at most this probability over seeds
BOTH = pytest.mark.parametrize("secure", [False, True])


@BOTH
@pytest.mark.statistical
@pytest.mark.parametrize("std", [1e-3, 0.7, 40.0])
def test_noise_is_normal_with_the_stated_deviation(secure, std):
    noise = GaussianNoise(SEED, secure).draw(3, {"w": (300, 500)}, std)["w"].double().numpy().ravel()
    assert stats.kstest(noise / std, "norm").pvalue > REFUSE
    # Mean, variance and kurtosis of 150,000 normals: 5 standard errors each, a false alarm of 6e-7.
    size = noise.size
    assert abs(noise.mean()) < 5 * std / np.sqrt(size)
    assert abs(noise.var() / std**2 - 1) < 5 * np.sqrt(2 / size)
    assert abs(stats.kurtosis(noise)) < 5 * np.sqrt(24 / size)


@BOTH
@pytest.mark.statistical
def test_names_steps_and_purposes_have_independent_noise(secure):
    source = GaussianNoise(SEED, secure)
    shapes = {"a": (4000,), "b": (4000,)}
    draws = [source.draw(step, shapes, 1.0, purpose) for step in range(4) for purpose in ("gradient", "losses")]
    table = torch.stack([draw[name] for draw in draws for name in shapes]).double()
    products = (table @ table.T / 4000**0.5)[torch.triu(torch.ones(16, 16), 1).bool()]
    # 120 products, each nearly N(0, 1): beyond 6.3 with probability 120 × 3e-10.
    assert products.abs().max() < 6.3


@BOTH
def test_noise_of_a_name_does_not_depend_on_company_or_order(secure):
    source = GaussianNoise(SEED, secure)
    together = source.draw(7, {"a": (5, 2), "b": (3,), "c": ()}, 1.0)
    source.draw(8, {"a": (5, 2)}, 1.0)
    apart = {name: source.draw(7, {name: together[name].shape}, 1.0)[name] for name in ("c", "b", "a")}
    assert all(torch.equal(together[name], apart[name]) for name in together)
    assert together["c"].shape == ()


@BOTH
def test_another_step_purpose_or_seed_gives_other_noise(secure):
    source = GaussianNoise(SEED, secure)
    one = source.draw(1, {"a": (6,)}, 1.0)["a"]
    for other in (
        source.draw(2, {"a": (6,)}, 1.0),
        source.draw(1, {"a": (6,)}, 1.0, purpose="losses"),
        GaussianNoise(Seed.from_int(98), secure).draw(1, {"a": (6,)}, 1.0),
        GaussianNoise(SEED, not secure).draw(1, {"a": (6,)}, 1.0),
    ):
        assert not torch.any(one == other["a"])


@BOTH
def test_the_deviation_only_scales_the_noise(secure):
    source = GaussianNoise(SEED, secure)
    one, eight = (source.draw(0, {"a": (100,)}, std)["a"] for std in (1.0, 8.0))
    assert torch.equal(one * 8, eight)


@BOTH
def test_a_tensor_as_shape_sets_the_dtype(secure):
    source = GaussianNoise(SEED, secure)
    like = {"wide": torch.zeros(3, dtype=torch.float64), "half": torch.zeros(3, dtype=torch.bfloat16)}
    drawn, added = source.draw(0, like, 1.0), source.add(0, like, 1.0)
    assert drawn["wide"].dtype == added["wide"].dtype == torch.float64
    assert drawn["half"].dtype == added["half"].dtype == torch.float32


@BOTH
def test_adding_releases_the_values_plus_the_noise_of_that_step(secure):
    source = GaussianNoise(SEED, secure)
    values = {"a": torch.linspace(-1, 1, 50), "b": torch.tensor(3.0)}
    kept = {name: value.clone() for name, value in values.items()}
    release, noise = source.add(2, values, 0.5), source.draw(2, values, 0.5)
    for name, value in values.items():
        assert torch.allclose(release[name], value + noise[name], atol=1e-6)
        assert torch.equal(value, kept[name])


@BOTH
def test_no_noise_only_when_zero_is_asked_for(secure):
    source = GaussianNoise(SEED, secure)
    assert torch.equal(source.draw(0, {"a": (3,)}, 0.0)["a"], torch.zeros(3))
    assert torch.equal(source.add(0, {"a": torch.ones(3)}, std=0.0)["a"], torch.ones(3))
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="standard deviation"):
            source.draw(0, {"a": (3,)}, wrong)
        with pytest.raises(ValueError, match="standard deviation"):
            source.add(0, {"a": torch.ones(3)}, wrong)


def test_secure_releases_lie_on_the_grid_whatever_the_values():
    source = GaussianNoise(SEED, secure=True)
    values = {"a": torch.rand(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}
    release = source.add(0, values, 1.5)["a"] * 2**20
    assert torch.equal(release, release.round())


def random_words(step=0):
    return secure.word_stream(SEED.key("test", step))


@pytest.mark.statistical
def test_both_normals_of_a_word_are_normal_and_independent():
    pairs = fast_normals(random_words(), 100_000).astype(np.float64).T
    assert stats.kstest(pairs[:, 0], "norm").pvalue > REFUSE
    assert stats.kstest(pairs[:, 1], "norm").pvalue > REFUSE
    cells = np.histogram2d(*stats.norm.cdf(pairs).T, bins=16, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(cells.ravel()).pvalue > REFUSE
    assert stats.pearsonr(pairs[1:, 0], pairs[:-1, 1]).pvalue > REFUSE


def test_noise_lies_in_memory_as_a_new_tensor_would():
    noise = GaussianNoise(SEED).draw(0, {"one": (1,), "two": (2,), "odd": (3, 5), "long": (70, 70)}, 1.0)
    assert all(values.is_contiguous() for values in noise.values())


def test_fast_normals_do_not_depend_on_how_the_words_are_cut(monkeypatch):
    whole = fast_normals(random_words(step=1), 1001)
    monkeypatch.setattr(gaussian, "_AT_ONCE", 13)
    assert np.array_equal(fast_normals(random_words(step=1), 1001), whole)
    assert fast_normals(random_words(), 0).shape == (2, 0)


def test_the_most_extreme_words_give_finite_fast_normals():
    top = (1 << 32) - 1
    words = np.array([low | high << 32 for low in (0, 1, top - 1, top) for high in (0, 1 << 31, top)], dtype=np.uint64)
    for further in (0, top | top << 32):
        streams = iter([words, np.full(2 * len(words), further, dtype=np.uint64)])
        normals = fast_normals(lambda count, streams=streams: next(streams)[:count], len(words))
        assert np.all(np.isfinite(normals))
        assert 6.5 < np.abs(normals).max() < 14.9


@pytest.mark.statistical
def test_fast_normals_have_the_right_tail():
    normals = fast_normals(random_words(step=2), 1_000_000)
    for edge in (3.0, 4.0, 4.5):
        beyond = int(np.sum(np.abs(normals) > edge))
        assert stats.binomtest(beyond, normals.size, 2 * stats.norm.sf(edge)).pvalue > REFUSE


@pytest.mark.parametrize("at_once", [1, 7, 100, 10_000])
def test_noise_does_not_depend_on_which_tensors_are_worked_on_together(at_once, monkeypatch):
    shapes = {"a": (33,), "b": (5, 11), "c": (2,), "d": (0,), "e": (200,)}
    usual = GaussianNoise(SEED).draw(3, shapes, 1.3)
    monkeypatch.setattr(gaussian, "_AT_ONCE", at_once)
    cut = GaussianNoise(SEED).draw(3, shapes, 1.3)
    assert all(torch.equal(usual[name], cut[name]) for name in shapes)
    assert {name: tuple(value.shape) for name, value in usual.items()} == shapes


@pytest.mark.parametrize("at_once", [1, 7, 10_000])
def test_secure_noise_does_not_depend_on_which_tensors_are_worked_on_together(at_once, monkeypatch):
    noise = GaussianNoise(SEED, secure=True)
    values = {
        "a": torch.ones(33),
        "b": torch.ones(5, 11, dtype=torch.float64),
        "c": torch.ones(0),
        "d": torch.ones(200),
    }
    usual = noise.add(3, values, 1.3)
    monkeypatch.setattr(secure, "_AT_ONCE", at_once)
    for name, value in reversed(values.items()):
        alone = noise.add(3, {name: value}, 1.3)[name]
        assert torch.equal(usual[name], alone)
        assert alone.dtype == value.dtype
    assert {name: value.shape for name, value in usual.items()} == {name: value.shape for name, value in values.items()}


def test_tensors_of_noise_do_not_share_memory_that_matters():
    noise = GaussianNoise(SEED).draw(0, {"a": (3,), "b": (4,)}, 1.0)
    kept = noise["b"].clone()
    noise["a"].fill_(7.0)
    assert torch.equal(noise["b"], kept)


@BOTH
def test_nothing_to_release_is_a_normal_release(secure):
    assert GaussianNoise(SEED, secure).add(0, {}, 1.0) == {}
    assert GaussianNoise(SEED, secure).draw(0, {"a": (0, 3)}, 1.0)["a"].shape == (0, 3)


@BOTH
@pytest.mark.parametrize("std", [0.0, 1.0])
def test_a_release_carries_no_gradient_of_the_values(secure, std):
    values = {"a": torch.ones(3, requires_grad=True)}
    assert not GaussianNoise(SEED, secure).add(0, values, std)["a"].requires_grad


@pytest.mark.parametrize("kind", [torch.complex64, torch.complex128, torch.int64, torch.bool])
@pytest.mark.parametrize("std", [0.0, 1.0])
@pytest.mark.parametrize("made", [GaussianNoise, NoiseAhead])
@BOTH
def test_what_is_not_a_real_floating_point_number_is_never_released(secure, made, std, kind):
    """Noise on a complex number is real: the imaginary part would be released as it is."""
    noise, values = made(SEED, secure), {"b": torch.zeros(2), "w": torch.ones(3).to(kind)}
    for release in (noise.add, noise.draw):
        with pytest.raises(ValueError, match=r'"w" is .*: noise is for real floating-point numbers'):
            release(0, values, std)


@pytest.mark.parametrize("kind", [GaussianNoise, NoiseAhead])
def test_a_default_of_half_precision_makes_no_noise_coarse(kind):
    noise, shapes = kind(SEED), {"w": (1000,)}
    expected = noise.draw(3, shapes, 1.0)["w"]
    torch.set_default_dtype(torch.float16)
    try:
        drawn = kind(SEED).draw(3, shapes, 1.0)["w"]
    finally:
        torch.set_default_dtype(torch.float32)
    assert drawn.dtype == torch.float32
    assert torch.equal(drawn, expected)


def test_noise_drawn_in_inference_mode_can_be_used_outside():
    noise, value = NoiseAhead(SEED), {"w": torch.zeros(3)}
    with torch.inference_mode():
        for step in range(2):
            noise.add(step, value, 1.0)  # draws step 2 too
    assert torch.equal(noise.add(2, value, 1.0)["w"], GaussianNoise(SEED).add(2, value, 1.0)["w"])
