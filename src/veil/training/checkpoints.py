"""Checkpoints: what a run needs to resume bit for bit, in one file of tensors and JSON; reading executes no code.

Draws are pure functions of the seed and the step, so no generator has a state to keep. What remains is the model, the
optimizer, averages and filters, the controller's state, what was reserved, and the history. The file is sealed with a
key that follows from the run's seed and identity, so a checkpoint of another run is rejected like a damaged one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from hmac import compare_digest
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
from veil.foundation.files import write_whole
from veil.foundation.randomness import Seed
from veil.plans import Plan
from veil.plans.controllers import State
from veil.training.identity import Identity
from veil.training.optimizer import Optimizer
from veil.training.reporting import Reporter
from veil.training.reservations import Reservations

# Counted up whenever the same plan would get other draws or updates, or a checkpoint other parts.
MEANING = 10

Tensors = Mapping[str, Tensor]
Reserved = Mapping[str, tuple[int, Mapping[int, Event]]]


@dataclass(frozen=True)
class Progress:
    """The state of a run after `step` whole steps."""

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


@dataclass
class Checkpointer:
    """Takes checkpoints of a run's parts; `keep` stores one and is None in a run without a folder."""

    model: nn.Module
    plan: Plan
    optimizer: Optimizer
    reservations: Reservations
    reporter: Reporter
    keep: Callable[[Progress], None] | None = None

    def due(self, done: int) -> bool:
        """Whether a checkpoint is kept after so many whole steps; the last one is, as the model is measured then."""
        every = self.plan.settings.checkpoint_every or max(1, self.plan.steps // 20)
        return done % every == 0 or done == self.plan.steps

    def keep_if_due(self, done: int, state: State) -> None:
        """Store a checkpoint after `done` whole steps if one is due."""
        if self.keep is not None and self.due(done):
            self.keep(self.take(done, state))

    def take(self, done: int, state: State) -> Progress:
        """The checkpoint after `done` whole steps; `state` is the controller's."""
        return Progress(
            step=done,
            weights=self.model.state_dict(),
            optimizer=self.optimizer.slots(),
            average=self.optimizer.average.state(),
            filter=self.optimizer.filter.state() if self.optimizer.filter else None,
            state=state,
            reserved=self.reservations.reserved,
            entries=self.reservations.entries,
            read=self.reporter.read,
            history=self.reporter.history,
            callbacks=[callback.state() for callback in self.reporter.steering()],
        )

    def put_back(self, progress: Progress) -> None:
        """Restore every part from a checkpoint."""
        self.model.load_state_dict(dict(progress.weights))
        self.optimizer.load_slots(progress.optimizer)
        self.optimizer.average.restore(progress.average)
        if self.optimizer.filter and progress.filter:
            self.optimizer.filter.restore((dict(progress.filter[0]), dict(progress.filter[1])))
        self.reservations.reserved, self.reservations.entries = dict(progress.reserved), progress.entries
        self.reporter.history.extend(dict(record) for record in progress.history)
        for callback, state in zip(self.reporter.steering(), progress.callbacks, strict=True):
            callback.restore(state)
        self.reporter.read = progress.read


class CheckpointDamaged(InputError):
    """A checkpoint that is invalid or does not match its checksum."""


def sealing_key(seed: Seed, identity: Identity) -> bytes:
    """The key of a run's checkpoints: no other run has it, nor a version of Veil that draws or updates differently."""
    return seed.key("checkpoint", MEANING, identity.summary())


def save_checkpoint(path: Path, progress: Progress, key: bytes) -> None:
    """Replace the checkpoint on disk, atomically."""
    write_whole(path, packed(progress, key))


def packed(progress: Progress, key: bytes) -> bytes:
    """A checkpoint as bytes: seal, length of the JSON part, JSON, tensors."""
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
    return _seal(text, body, key) + len(text).to_bytes(8, "little") + text + body


def unpacked(content: bytes, key: bytes) -> Progress:
    """Read a checkpoint of the run with this key; anything else raises `CheckpointDamaged`."""
    check, length, rest = content[:32], int.from_bytes(content[32:40], "little"), content[40:]
    text, body = rest[:length], rest[length:]
    if not compare_digest(_seal(text, body, key), check):
        raise CheckpointDamaged(
            "Cannot resume: the checkpoint is damaged or belongs to another run. What was reserved stays charged."
        )
    record = json.loads(text)
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


def _seal(text: bytes, body: bytes, key: bytes) -> bytes:
    """32 bytes that only the holder of the key can make; the length keeps text and body apart."""
    found = blake2b(len(text).to_bytes(8, "little"), digest_size=32, key=key)
    found.update(text)
    found.update(body)
    return found.digest()
