"""Calling a model: inputs of any structure in, its scores out."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from veil.errors import InputError, require
from veil.foundation.nested import Nested

# What models of other packages call their scores.
_SCORES = "logits"


def call(model: nn.Module, inputs: Nested) -> Any:
    """What the model gives: a dict is passed by keywords if the model names them, a tuple as several arguments.

    >>> call(nn.Bilinear(2, 2, 1), (torch.ones(3, 2), torch.ones(3, 2))).shape
    torch.Size([3, 1])
    """
    if isinstance(inputs, Tensor):
        return model(inputs)
    names, at_most, anything = _parameters(model)
    if isinstance(inputs, dict):
        unknown = [key for key in inputs if key not in names]
        if anything or not unknown:
            return model(**inputs)
        if len(unknown) == len(inputs):
            return model(inputs)
        raise InputError(
            f'the model takes no "{unknown[0]}": it takes {", ".join(names)}; name what it is given with inputs=[…]'
        )
    if isinstance(inputs, tuple) and len(inputs) <= at_most:
        return model(*inputs)
    return model(inputs)


def scores(output: Any) -> Tensor:
    """The scores in what a model gives: the tensor itself, `.logits`, `["logits"]`, or the first tensor of a tuple.

    >>> scores({"logits": torch.zeros(2, 3), "loss": None}).shape
    torch.Size([2, 3])
    """
    if isinstance(output, Tensor):
        return output
    found = scores_or_none(output)
    if found is None:
        raise InputError(
            f"the model gives {type(output).__name__} without {_SCORES}: return a tensor, or something with .{_SCORES}"
        )
    return found


def scores_or_none(output: Any) -> Tensor | None:
    """The scores in what a model gives, if it has any."""
    if isinstance(output, Tensor):
        return output
    found = output.get(_SCORES) if isinstance(output, dict) else getattr(output, _SCORES, None)
    if isinstance(output, tuple | list) and found is None:
        found = next((part for part in output if isinstance(part, Tensor) and part.ndim), None)
    return found if isinstance(found, Tensor) else None


def device_of(model: nn.Module) -> torch.device:
    """Where a model lives; a model in several places is refused."""
    places = {parameter.device for parameter in model.parameters()}
    if len(places) > 1:
        named = " and ".join(sorted(map(str, places)))
        raise InputError(f"the model lives on {named}: move all of it to one device with model.to(…)")
    return next(iter(places), torch.device("cpu"))


def put_on(model: nn.Module, device: str | None) -> torch.device:
    """Move a model where it shall be trained: a device, `auto` for the fastest there is, None for where it is.

    >>> put_on(nn.Linear(1, 1), "cpu")
    device(type='cpu')
    """
    # A plain tensor: a package may have tensors of its own there, which hold values.
    empty = any(p.is_meta and type(p.data) is Tensor for p in model.parameters())
    require(
        not empty,
        "the model is on the meta device, so its weights have no values: create it on a real device, or use "
        'model.to_empty(device="cpu") and load weights',
    )
    if device is None:
        return device_of(model)
    try:
        place = _fastest() if device == "auto" else torch.device(device)
        model.to(place)
    except (RuntimeError, AssertionError) as error:  # torch without support for it says so by either
        sentence = str(error).strip().splitlines()[0]
        raise InputError(f'device is "{device}", which torch does not have here: {sentence}') from error
    return device_of(model)


def _fastest() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _parameters(model: nn.Module) -> tuple[tuple[str, ...], int, bool]:
    """Names of what the model's forward takes, how many by place, and whether it takes any keyword."""
    given = inspect.signature(model.forward).parameters.values()
    by_place = [p for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = tuple(p.name for p in given if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    several = any(p.kind == p.VAR_POSITIONAL for p in given)
    return names, 1_000_000 if several else len(by_place), any(p.kind == p.VAR_KEYWORD for p in given)
