"""Built-in models: every one trains row by row exactly, starts from the seed alone, and mixes no rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.gradients import GradientEngine, check
from veil.models import MODELS, SEQUENCE_MODELS, build_model, load_public_weights, per_row, scattering, train_only
from veil.problem import Cell, PublicFacts
from veil.training.fitting import row_losses

SMALL: dict[str, dict[str, object]] = {
    "wide-and-deep": {"blocks": (2, 2, 12, 4), "embedding": 3, "width": 5},
    "papernot-cifar": {"channels": (3, 4, 5), "hidden": 6},
    "resnet9": {"width": 4},
    "resnet18": {"width": 4},
    "char-lstm": {"embedding": 5, "hidden": 6},
    "transformer": {"width": 8, "heads": 2, "layers": 1},
}
SHAPES = {"asc-cnn": (1, 28, 28), "papernot-mnist": (1, 28, 28), "papernot-cifar": (3, 32, 32)}
SHAPES |= {"resnet9": (3, 32, 32), "resnet18": (3, 32, 32)}

# Pretrained weights of its own, with a head that trains: tests/models/test_pretrained.py.
BUILT = [name for name in MODELS if name != "efficientnet-lite0"]


def facts_of(shape: tuple[int, ...], classes: int = 3) -> PublicFacts:
    return PublicFacts(
        ("everybody",), ("everybody",), (Cell(0, 0, 100),), shape, classes=tuple(map(str, range(classes)))
    )


def small(name: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    shape = SHAPES.get(name, (20,))
    model = build_model(name, facts_of(shape), Seed.from_int(1), **SMALL.get(name, {}))
    generator = torch.Generator().manual_seed(2)
    if name in SEQUENCE_MODELS:
        inputs = torch.randint(0, 59, (4, *shape), generator=generator)
        inputs[1, :12] = 0
        inputs[2] = 0
    else:
        inputs = torch.randn(4, *shape, generator=generator)
    return model, (inputs, torch.tensor([0, 1, 2, 1]))


@pytest.mark.parametrize("name", BUILT)
def test_the_row_gradients_of_a_model_are_those_of_one_row_at_a_time(name: str) -> None:
    model, batch = small(name)
    model.double()
    inputs = batch[0] if name in SEQUENCE_MODELS else batch[0].double()
    found = GradientEngine(model, row_losses).gradients((inputs, batch[1]))
    for row in range(4):
        loss = row_losses(model, (inputs[row : row + 1], batch[1][row : row + 1])).sum()
        wanted = torch.autograd.grad(loss, list(model.parameters()))
        for (key, _), gradient in zip(model.named_parameters(), wanted, strict=True):
            assert torch.allclose(found[key][row], gradient, rtol=1e-7, atol=1e-10), f"{name}: {key}"


@pytest.mark.parametrize("name", BUILT)
def test_no_model_mixes_rows(name: str) -> None:
    model, batch = small(name)
    check(model, batch, row_losses)


@pytest.mark.parametrize("name", BUILT)
def test_starting_weights_follow_from_the_seed_alone(name: str) -> None:
    torch.manual_seed(99)
    one, _ = small(name)
    torch.rand(7)
    other, _ = small(name)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def count(name: str, shape: tuple[int, ...], classes: int) -> int:
    model = build_model(name, facts_of(shape, classes), Seed.from_int(1))
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_papers_networks_have_the_papers_sizes() -> None:
    assert count("papernot-mnist", (1, 28, 28), 10) == 26_010
    assert count("papernot-cifar", (3, 32, 32), 10) == 550_570
    assert count("asc-cnn", (1, 28, 28), 10) == 320 + 4_624 + 16 * 25 * 10 + 10
    lstm = 4 * 128 * (64 + 128) + 2 * 4 * 128
    assert count("char-lstm", (20,), 18) == 59 * 64 + lstm + 128 * 18 + 18


def test_a_model_of_the_user_is_found_by_module_and_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_models.py").write_text(
        "from torch import nn\ndef tiny(facts, width=2):\n    return nn.Linear(facts.input_shape[0], facts.outputs)\n"
    )
    monkeypatch.chdir(tmp_path)
    model = build_model("my_own_models:tiny", facts_of((7,)), Seed.from_int(0), width=3)
    assert model(torch.zeros(2, 7)).shape == (2, 3)
    with pytest.raises(InputError, match='has no "huge"'):
        build_model("my_own_models:huge", facts_of((7,)), Seed.from_int(0))
    with pytest.raises(InputError, match="cannot be imported"):
        build_model("no_such_module:tiny", facts_of((7,)), Seed.from_int(0))


def test_public_weights_are_loaded_where_they_fit_and_chosen_layers_trained(tmp_path: Path) -> None:
    source = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 9))
    save_file(source.state_dict(), tmp_path / "public.safetensors")
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    assert load_public_weights(model, tmp_path / "public.safetensors") == ["0.bias", "0.weight"]
    assert torch.equal(model[0].weight, source[0].weight)
    assert train_only(model, ["2.*"]) == ["2.weight", "2.bias"]
    assert [p.requires_grad for p in model.parameters()] == [False, False, True, True]
    with pytest.raises(InputError, match="no parameter matches"):
        train_only(model, ["9.*"])
    (tmp_path / "broken.safetensors").write_text("no weights")
    with pytest.raises(InputError, match="is not a safetensors file"):
        load_public_weights(model, tmp_path / "broken.safetensors")


def test_normalising_a_row_uses_no_other_row() -> None:
    rows = torch.rand(5, 3, 8, 8) * 100
    alone = torch.cat([per_row(rows[i : i + 1]) for i in range(5)])
    assert torch.equal(per_row(rows), alone)
    assert torch.allclose(per_row(rows).flatten(1).std(dim=1, unbiased=False), torch.ones(5), atol=1e-4)


def test_scattering_of_a_row_uses_no_other_row_and_hardly_feels_a_shift() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.zeros(3, 1, 28, 28)
    images[:, :, 8:20, 8:20] = torch.rand(3, 1, 12, 12, generator=generator)
    whole = scattering(images)
    assert whole.shape == (3, 81, 7, 7)
    assert torch.allclose(whole, torch.cat([scattering(images[i : i + 1]) for i in range(3)]), atol=1e-6)
    moved = scattering(images.roll(1, dims=3))
    change = (moved - whole).norm() / whole.norm()
    assert change < 0.5 * (images.roll(1, dims=3) - images).norm() / images.norm()


def test_scattering_keeps_energy_and_wavelets_have_no_mean() -> None:
    flat = scattering(torch.ones(1, 1, 32, 32))
    assert torch.allclose(flat[:, 0], torch.ones(1, 8, 8), atol=1e-4)
    assert float(flat[:, 1:].abs().max()) < 1e-3
    wave = torch.cos(torch.arange(32) * 0.75 * torch.pi).expand(32, 32)[None, None]
    first = scattering(wave)[0, 1:17].mean(dim=(1, 2))
    assert int(first.argmax()) in range(8), "a fast wave must answer in the finest scale"
    assert float(first.max()) > 5 * float(first[8:].max())


def test_scattering_refuses_sizes_it_cannot_sample() -> None:
    with pytest.raises(InputError, match="are not divisible by 4"):
        scattering(torch.zeros(1, 1, 30, 30))
