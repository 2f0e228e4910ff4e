"""Real architectures with random weights: one tensor in, scores out, at a size for tests or for the benchmark.

Text models, ViT, ConvNeXt and MobileNet come from transformers, adapters from peft, EfficientNet-Lite from
efficientnet_lite_pytorch. ResNet-18 and ResNet-50 with GroupNorm are defined here: timm and torchvision have them, but
torchvision does not load beside every build of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from veil.models.pretrained import with_fixed_statistics

CLASSES = 2


@dataclass(frozen=True)
class Size:
    """How large models and rows are."""

    width: int
    layers: int
    heads: int
    words: int
    length: int
    channels: int
    image: int


TINY = Size(width=16, layers=2, heads=2, words=60, length=7, channels=4, image=32)
MEASURED = Size(width=256, layers=2, heads=4, words=2000, length=64, channels=32, image=32)


class Logits(nn.Module):
    """The scores of a model of transformers, from token ids or pixels."""

    def __init__(self, network: nn.Module, name: str = "input_ids") -> None:
        super().__init__()
        self.network, self.name = network, name

    def forward(self, rows: Tensor) -> Tensor:
        """One row of scores per row; of a language model, the classes of its places second, as torch's losses want."""
        found: Tensor = self.network(**{self.name: rows}).logits
        return found if found.ndim == 2 else found.transpose(1, 2)


class Tagger(nn.Module):
    """An LSTM in both directions that names the class of every word."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(size.words, size.width)
        self.lstm = nn.LSTM(size.width, size.width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * size.width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores with the classes second."""
        scores: Tensor = self.head(self.lstm(self.words(tokens))[0])
        return scores.transpose(1, 2)


class ResidualBlock(nn.Module):
    """Two convolutions of 3 × 3, or with `expansion` a bottleneck of 1 × 1, 3 × 3 and 1 × 1, and a way around."""

    def __init__(self, ins: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        outs, groups = width * expansion, min(4, width)
        shapes = [(ins, width, 3, stride), (width, outs, 3, 1)]
        if expansion > 1:
            shapes = [(ins, width, 1, 1), (width, width, 3, stride), (width, outs, 1, 1)]
        layers: list[nn.Module] = []
        for before, after, kernel, step in shapes:
            layers += [nn.Conv2d(before, after, kernel, step, kernel // 2, bias=False), nn.GroupNorm(groups, after)]
            layers += [nn.ReLU(inplace=True)]
        self.layers, self.relu = nn.Sequential(*layers[:-1]), nn.ReLU(inplace=True)
        self.around: nn.Module = nn.Identity()
        if stride > 1 or ins != outs:
            self.around = nn.Sequential(nn.Conv2d(ins, outs, 1, stride, bias=False), nn.GroupNorm(groups, outs))

    def forward(self, images: Tensor) -> Tensor:
        """Added to what goes around."""
        found: Tensor = self.relu(self.layers(images) + self.around(images))
        return found


def resnet(size: Size, blocks: tuple[int, ...], expansion: int) -> nn.Module:
    """The residual network of He et al. for small images, with GroupNorm in place of BatchNorm."""
    width = size.channels
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.GroupNorm(min(4, width), width), nn.ReLU()]
    ins = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(ResidualBlock(ins, width << stage, stride, expansion))
            ins = (width << stage) * expansion
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, CLASSES))


def _package(name: str) -> Any:
    return import_module(name)


def _text(size: Size) -> dict[str, int]:
    return {
        "vocab_size": size.words,
        "max_position_embeddings": size.length + 8,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _layers(size: Size) -> dict[str, int]:
    return {
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "hidden_size": size.width,
        "intermediate_size": 2 * size.width,
        "num_labels": CLASSES,
        **_start(size),
    }


def _start(size: Size) -> dict[str, float]:
    """Weights at which signals keep their size on the way: the usual 0.02 suits wider layers than these."""
    return {"initializer_range": size.width**-0.5}


def _classifier(kind: str) -> Callable[[Size], nn.Module]:
    def build(size: Size) -> nn.Module:
        package = _package("transformers")
        config = getattr(package, f"{kind}Config")(**_layers(size), **_text(size))
        return Logits(getattr(package, f"{kind}ForSequenceClassification")(config))

    return build


def distilbert(size: Size) -> nn.Module:
    """DistilBERT with a head for classes."""
    package = _package("transformers")
    sizes = {"dim": size.width, "n_layers": size.layers, "n_heads": size.heads, "hidden_dim": 2 * size.width}
    config = package.DistilBertConfig(**sizes, **_start(size), **_text(size))
    return Logits(package.DistilBertForSequenceClassification(config))


def gpt2(size: Size, kind: str = "GPT2ForSequenceClassification") -> nn.Module:
    """GPT-2 with a head for classes, or as a language model whose output is tied to its words."""
    package = _package("transformers")
    sizes = {"n_layer": size.layers, "n_head": size.heads, "n_embd": size.width, "n_positions": size.length + 8}
    tokens = {name: value for name, value in _text(size).items() if name != "max_position_embeddings"}
    return Logits(getattr(package, kind)(package.GPT2Config(**sizes, **_start(size), **tokens, use_cache=False)))


def llama(size: Size) -> nn.Module:
    """Llama with a head for classes."""
    package = _package("transformers")
    config = package.LlamaConfig(**_layers(size), **_text(size), num_key_value_heads=size.heads, use_cache=False)
    return Logits(package.LlamaForSequenceClassification(config))


def vit(size: Size) -> nn.Module:
    """A vision transformer over patches of 8 × 8."""
    package = _package("transformers")
    config = package.ViTConfig(**_layers(size), image_size=size.image, patch_size=8)
    return Logits(package.ViTForImageClassification(config), "pixel_values")


def convnext(size: Size) -> nn.Module:
    """ConvNeXt of two stages."""
    package = _package("transformers")
    widths = [size.channels, 2 * size.channels]
    config = package.ConvNextConfig(
        hidden_sizes=widths, depths=[1, 1], num_stages=2, num_labels=CLASSES, layer_scale_init_value=1.0, **_start(size)
    )
    return Logits(package.ConvNextForImageClassification(config), "pixel_values")


def mobilenet(size: Size) -> nn.Module:
    """MobileNetV2."""
    package = _package("transformers")
    config = package.MobileNetV2Config(
        image_size=size.image,
        depth_multiplier=size.channels / 64,
        depth_divisible_by=4,
        min_depth=4,
        num_labels=CLASSES,
    )
    return Logits(package.MobileNetV2ForImageClassification(config), "pixel_values")


def efficientnet(size: Size) -> nn.Module:
    """EfficientNet-Lite."""
    package = _package("efficientnet_lite_pytorch")
    share = size.channels / 64
    made: nn.Module = package.EfficientNet.from_name(
        "efficientnet-lite0",
        width_coefficient=share,
        depth_coefficient=0.3,
        image_size=size.image,
        num_classes=CLASSES,
        dropout_rate=0.0,
        drop_connect_rate=0.0,
    )
    return made


def adapted(kind: str) -> Callable[[Size], nn.Module]:
    """BERT with an adapter of peft: all that is trained is the adapter and the head."""

    def build(size: Size) -> nn.Module:
        peft = _package("peft")
        base = _classifier("Bert")(size).network
        configs = {
            "lora": lambda: peft.LoraConfig(r=4, target_modules=["query", "value"], task_type="SEQ_CLS"),
            "dora": lambda: peft.LoraConfig(r=4, target_modules=["query", "value"], task_type="SEQ_CLS", use_dora=True),
            "ia3": lambda: peft.IA3Config(target_modules=["query"], feedforward_modules=[], task_type="SEQ_CLS"),
            "prompt": lambda: peft.PromptTuningConfig(num_virtual_tokens=3, task_type="SEQ_CLS"),
        }
        return Logits(peft.get_peft_model(base, configs[kind]()))

    return build


# The name of an architecture, how it is built, and what its rows are.
ARCHITECTURES: dict[str, tuple[Callable[[Size], nn.Module], str]] = {
    "BERT": (_classifier("Bert"), "tokens"),
    "DistilBERT": (distilbert, "tokens"),
    "RoBERTa": (_classifier("Roberta"), "tokens"),
    "GPT-2": (gpt2, "tokens"),
    "GPT-2, language model": (lambda size: gpt2(size, "GPT2LMHeadModel"), "words"),
    "Llama": (llama, "tokens"),
    "ViT": (vit, "images"),
    "ResNet-18, GroupNorm": (lambda size: resnet(size, (2, 2, 2, 2), 1), "images"),
    "ResNet-50, GroupNorm": (lambda size: resnet(size, (3, 4, 6, 3), 4), "images"),
    "ConvNeXt": (convnext, "images"),
    "MobileNetV2, fixed BatchNorm": (mobilenet, "images"),
    "EfficientNet-Lite, fixed BatchNorm": (efficientnet, "images"),
    "LoRA": (adapted("lora"), "tokens"),
    "DoRA": (adapted("dora"), "tokens"),
    "IA3": (adapted("ia3"), "tokens"),
    "prompt tuning": (adapted("prompt"), "tokens"),
    "LSTM tagger": (Tagger, "tags"),
}


def build(name: str, size: Size) -> nn.Module:
    """An architecture without dropout, in training mode but for BatchNorm, which has the statistics of random rows."""
    made = ARCHITECTURES[name][0](size)
    norms = [module for module in made.modules() if isinstance(module, nn.BatchNorm2d)]
    for module in made.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    if norms:
        with torch.no_grad():
            made(rows(name, size, 64)[0])
    return with_fixed_statistics(made)


def rows(name: str, size: Size, count: int) -> tuple[Tensor, Tensor]:
    """Random rows and targets of the kind that an architecture takes."""
    kind, generator = ARCHITECTURES[name][1], torch.Generator().manual_seed(0)
    if kind == "images":
        inputs = torch.rand(count, 3, size.image, size.image, generator=generator)
    else:
        inputs = torch.randint(5, size.words, (count, size.length), generator=generator)
    if kind == "words":
        return inputs, inputs.roll(-1, dims=1)
    shape = (count, size.length) if kind == "tags" else (count,)
    return inputs, torch.randint(0, CLASSES, shape, generator=generator)
