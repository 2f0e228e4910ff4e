"""Building models: by a built-in name or from the user's module, with weights that follow from the seed alone."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from veil.errors import InputError, require
from veil.foundation.randomness import Seed
from veil.models.images import asc_cnn, papernot_cifar, papernot_mnist, resnet9, resnet18
from veil.models.pretrained import EFFICIENTNET, KINDS, efficientnet, from_disk
from veil.models.tables import additive, logistic, mlp, wide_and_deep
from veil.models.text import char_lstm, transformer
from veil.models.whitened import whitened
from veil.problem import PublicFacts

MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "logistic": logistic,
    "additive": additive,
    "mlp": mlp,
    "wide-and-deep": wide_and_deep,
    "whitened": whitened,
    "asc-cnn": asc_cnn,
    "papernot-mnist": papernot_mnist,
    "papernot-cifar": papernot_cifar,
    "resnet9": resnet9,
    "resnet18": resnet18,
    "char-lstm": char_lstm,
    "transformer": transformer,
    EFFICIENTNET: efficientnet,
}
SEQUENCE_MODELS = frozenset({"char-lstm", "transformer"})


def reads_text(name: str) -> bool:
    """Whether a model of this name takes the codes of one text where rows are a table.

    Args:
        name: A model as `build_model` takes it.

    Returns:
        Whether it does.

    >>> reads_text("char-lstm"), reads_text("logistic")
    (True, False)
    """
    return name in SEQUENCE_MODELS or name.startswith("hf:")


def build_model(name: str, facts: PublicFacts, seed: Seed, **options: Any) -> nn.Module:
    """A built-in model, `hf:FOLDER`, `timm:NAME`, or `my_module:factory` of the user's own.

    Starting weights follow from the seed alone, or are those on disk.

    A factory is called with the public facts of the problem (`input_shape`, `outputs`, `classes`, …) and the options.

    Args:
        name: A built-in model (`veil train --help` lists them), `hf:FOLDER`, `timm:NAME`, or `my_module:factory`.
        facts: What is public about the rows: shapes and classes.
        seed: Gives the starting weights.
        options: Options of the model, such as `hidden`.

    Returns:
        The module, not yet trained.

    Raises:
        InputError: The name or an option is unknown, or a package or file that the model needs is missing.

    >>> facts = PublicFacts(("all",), ("all",), (), (3,), classes=("no", "yes"))
    >>> sum(weights.numel() for weights in build_model("logistic", facts, Seed.from_int(1)).parameters())
    8
    """
    kind, _, where = name.partition(":")
    factory: Callable[..., nn.Module] | None
    if kind in KINDS and where:
        factory = partial(from_disk, kind, where)
    else:
        factory = _own_factory(name) if ":" in name else MODELS.get(name)
    if factory is None:
        raise InputError(
            f'unknown model "{name}": known are {", ".join(MODELS)}, hf:FOLDER, timm:NAME, or my_module:factory'
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(seed.generator("model", 0).integers(2**62)))
        try:
            model = factory(facts, **options)
        except TypeError as error:
            raise InputError(f'model "{name}": {error}') from error
    require(isinstance(model, nn.Module), f'model "{name}" returned a {type(model).__name__}, not a torch module')
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            # Convolution and pooling are several times faster where the channels of a pixel lie side by side.
            layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
    return model


def _own_factory(name: str) -> Callable[..., nn.Module]:
    module, _, function = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        factory: Callable[..., nn.Module] = getattr(import_module(module), function)
    except ImportError as error:
        raise InputError(f'model "{name}": module "{module}" cannot be imported: {error}') from error
    except AttributeError as error:
        raise InputError(f'model "{name}": module "{module}" has no "{function}"') from error
    return factory


def load_public_weights(model: nn.Module, path: Path) -> list[str]:
    """Put weights from a safetensors file into the model and say which; they must be public.

    Weights of other names or shapes are left as they are (a new last layer, for instance); none at all is an error.

    Args:
        model: Gets the weights, in place.
        path: A safetensors file.

    Returns:
        The names of the weights that were put in.

    Raises:
        InputError: The file is missing or damaged, or has no weight that fits.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> model = nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"bias": torch.ones(1)}, Path(folder) / "public.safetensors")
    ...     load_public_weights(model, Path(folder) / "public.safetensors")
    ['bias']
    """
    require(path.exists(), f"file not found: {path}")
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a safetensors file: {error}") from error
    own = model.state_dict()
    fitting = {name: value for name, value in weights.items() if name in own and own[name].shape == value.shape}
    require(len(fitting) > 0, f"{path} has no weight that matches the model by name and shape")
    model.load_state_dict(fitting, strict=False)
    return sorted(fitting)


def train_only(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Train the parameters whose names fit a pattern and keep all others as they are; say which are trained.

    Args:
        model: The model; `requires_grad` of its parameters is set.
        patterns: As in file names: `head.*`, `*.lora_*`.

    Returns:
        Names of the parameters that are trained.

    Raises:
        InputError: A pattern fits no parameter.

    >>> train_only(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), ["1.*"])
    ['1.weight', '1.bias']
    """
    chosen = []
    for name, parameter in model.named_parameters():
        parameter.requires_grad = any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        if parameter.requires_grad:
            chosen.append(name)
    known = ", ".join(name for name, _ in model.named_parameters())
    require(len(chosen) > 0, f"no parameter matches {', '.join(patterns)}: the model has {known}")
    return chosen
