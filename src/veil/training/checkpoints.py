"""Checkpoints: what a run needs to go on bit by bit, in one file of tensors and JSON; reading it executes no code.

Draws are pure functions of the seed and the step, so no generator has a state to keep. What remains is the model, the
optimizer, averages and filters, the controller's state, what was reserved, and the history. The file carries its own
checksum and the identity of the run: other settings, data, model or library would give other releases under the same
noise, so they are refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from veil.accounting import Event
from veil.accounting.events import from_json, to_json
from veil.errors import InputError
from veil.files import write_whole
from veil.plan import Plan

# Counted up whenever the same plan would get other draws or updates, or a checkpoint other parts.
MEANING = 4

Tensors = Mapping[str, Tensor]
Reserved = Mapping[str, tuple[int, Mapping[int, Event]]]


@dataclass(frozen=True)
class Progress:
    """Where a run stands after `step` whole steps."""

    step: int
    weights: Tensors
    optimizer: Mapping[int, Mapping[str, Any]]
    average: tuple[int, Tensors]
    filter: tuple[Tensors, Tensors] | None
    state: Mapping[str, NDArray[np.float64]]
    reserved: Reserved
    entries: int
    read: int | None
    history: Sequence[Mapping[str, Any]]
    callbacks: Sequence[Mapping[str, Any]] = field(default=())


class CheckpointDamaged(InputError):
    """A checkpoint that does not fit its checksum, or is none."""


def identity(plan: Plan, model: nn.Module, loss: Any = None) -> dict[str, str]:
    """What must be the same when a run goes on, by name; public facts only, never a digest of private rows."""
    layers = [[name, type(layer).__qualname__, layer.extra_repr()] for name, layer in model.named_modules()]
    shapes = {name: [list(value.shape), str(value.dtype)] for name, value in model.state_dict().items()}
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    settings = plan.settings.model_dump()
    parts: dict[str, Any] = {
        "settings": {"method": plan.method, "steps": plan.steps, **settings},
        "options": dict(plan.options),
        "plan": plan.terms().as_json() if plan.private else dict(plan.details),
        "data": asdict(plan.facts),
        "model": {"layers": layers, "shapes": shapes, "trained": trained},
        "loss": getattr(loss, "__qualname__", type(loss).__qualname__),
        "version of Veil or torch": {"meaning": MEANING, "torch": torch.__version__},
    }
    return {name: _digest(json.dumps(part, sort_keys=True, default=str).encode()) for name, part in parts.items()}


def save_checkpoint(path: Path, progress: Progress, of: Mapping[str, str]) -> None:
    """Replace the checkpoint on disk by this one, in one piece."""
    write_whole(path, packed(progress, of))


def packed(progress: Progress, of: Mapping[str, str]) -> bytes:
    """A checkpoint as bytes: checksum, length of the JSON part, JSON, tensors."""
    tensors: dict[str, Tensor] = {f"model/{name}": value for name, value in progress.weights.items()}
    tensors |= {f"average/{name}": value for name, value in progress.average[1].items()}
    plain: dict[str, dict[str, Any]] = {}
    for index, slots in progress.optimizer.items():
        for name, value in slots.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{index}/{name}"] = value
            else:
                plain.setdefault(str(index), {})[name] = value
    for part, values in zip(("mean", "before"), progress.filter or (), strict=False):
        tensors |= {f"filter/{part}/{name}": value for name, value in values.items()}
    tensors |= {f"state/{name}": torch.from_numpy(np.array(value)) for name, value in progress.state.items()}
    record = {
        "step": progress.step,
        "identity": dict(of),
        "optimizer": plain,
        "averaged": progress.average[0],
        "filtered": progress.filter is not None,
        "state": list(progress.state),
        "reserved": {
            purpose: [until, [[cell, to_json(event)] for cell, event in events.items()]]
            for purpose, (until, events) in progress.reserved.items()
        },
        "entries": progress.entries,
        "read": progress.read,
        "history": list(progress.history),
        "callbacks": list(progress.callbacks),
    }
    # Tied weights share memory: each gets a place of its own in the file.
    body = save({name: value.detach().clone().contiguous() for name, value in tensors.items()})
    text = json.dumps(record).encode()
    return _digest(text + body).encode() + len(text).to_bytes(8, "little") + text + body


def unpacked(content: bytes, of: Mapping[str, str]) -> Progress:
    """Read a checkpoint of the run with this identity; anything else raises with a sentence."""
    check, length, rest = content[:32], int.from_bytes(content[32:40], "little"), content[40:]
    text, body = rest[:length], rest[length:]
    if _digest(text + body).encode() != check:
        raise CheckpointDamaged("the checkpoint is damaged: this run cannot go on, and what it reserved stays charged")
    record = json.loads(text)
    for name, digest in record["identity"].items():
        if of.get(name) != digest:
            raise InputError(f"this run cannot go on with another {name}: give what it was started with, or start anew")
    try:
        tensors = load(body)
    except SafetensorError as error:
        raise CheckpointDamaged(f"the checkpoint is damaged: {error}") from error

    def under(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    optimizer: dict[int, dict[str, Any]] = {int(index): dict(slots) for index, slots in record["optimizer"].items()}
    for name, value in under("optimizer/").items():
        index, _, slot = name.partition("/")
        optimizer.setdefault(int(index), {})[slot] = value
    return Progress(
        step=record["step"],
        weights=under("model/"),
        optimizer=optimizer,
        average=(record["averaged"], under("average/")),
        filter=(under("filter/mean/"), under("filter/before/")) if record["filtered"] else None,
        state={name: tensors[f"state/{name}"].numpy() for name in record["state"]},
        reserved={
            purpose: (until, {cell: from_json(event) for cell, event in events})
            for purpose, (until, events) in record["reserved"].items()
        },
        entries=record["entries"],
        read=record["read"],
        history=record["history"],
        callbacks=record["callbacks"],
    )


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
