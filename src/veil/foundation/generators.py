"""Generators: the random numbers of forward passes, on the CPU and on the device that a model lives on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def set_seed(device: torch.device, seed: int) -> None:
    """Begin the random numbers of forward passes anew."""
    torch.default_generator.manual_seed(seed)
    module = _module(device)
    if module is not None:
        module.manual_seed(seed)


def random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Where the random numbers stand."""
    module = _module(device)
    return torch.get_rng_state(), None if module is None else module.get_rng_state()


def set_random_state(device: torch.device, state: tuple[Tensor, Tensor | None]) -> None:
    """Go back to where the random numbers stood."""
    torch.set_rng_state(state[0])
    module = _module(device)
    if module is not None and state[1] is not None:
        module.set_rng_state(state[1])


def _module(device: torch.device) -> Any:
    """What torch has for a device besides the CPU, if it draws random numbers of its own there."""
    if device.type == "cpu":
        return None
    module = getattr(torch, device.type, None)
    return module if hasattr(module, "get_rng_state") else None
