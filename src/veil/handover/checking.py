"""Checking an exported model: whether it is the one that its certificate was made for. No code of it is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from veil.accounting.certificate import Certificate
from veil.accounting.model_digest import (
    NO_HASH,
    faults_of_model,
    model_hashes,
    stored_preprocessing,
    stored_weights,
)
from veil.errors import InputError
from veil.handover.exporting import ONNX_FILE, PICKLE_FILE, scripts
from veil.handover.onnx_model import (
    CERTIFICATE,
    FORM,
    FORM_NOW,
    PREPROCESSING,
    as_stored,
    notes_of,
    onnx_model,
    read_onnx,
    weights_of,
)
from veil.handover.pipeline import stored_in_pickle

CERTIFIED = "This is the certified model."
OTHER_FORM = (
    "Weights and preprocessing are those of the certificate. The file was written by another version of Veil: whether "
    "it computes what the certified model computes was not compared."
)


@dataclass(frozen=True)
class Checked:
    """What a look at an exported model found: faults, and a sentence that says what was compared."""

    faults: tuple[str, ...]
    sentence: str


def check_exported(folder: Path, certificate: Certificate, text: str) -> Checked:
    """Compare an exported model with its certificate, whose `text` is that of the file.

    Raises:
        InputError: A file cannot be read.
    """
    if (folder / PICKLE_FILE).exists():
        preprocessing, weights = stored_in_pickle((folder / PICKLE_FILE).read_bytes())
        found = model_hashes(stored_weights(weights), stored_preprocessing(preprocessing.encode()))
        return _checked(faults_of_model(certificate.model, found), certificate)
    checked = _check_onnx(folder / ONNX_FILE, certificate, text)
    more = _other_programs(folder)
    return Checked((*checked.faults, *more), "" if more else checked.sentence)


def _check_onnx(path: Path, certificate: Certificate, text: str) -> Checked:
    model = read_onnx(path)
    notes, weights = notes_of(model), weights_of(model)
    if PREPROCESSING not in notes:
        raise InputError(f"{path} was not written by veil export: it does not say how columns become numbers")
    record = stored_preprocessing(notes[PREPROCESSING].encode())
    faults = faults_of_model(certificate.model, model_hashes(as_stored(weights), record))
    if notes.get(CERTIFICATE) != text:
        faults.append(f"the certificate in {path.name} is another one than certificate.json")
    if faults or not certificate.model:
        return _checked(faults, certificate)
    if notes.get(FORM) != FORM_NOW:
        return Checked((), OTHER_FORM)
    try:
        tensors = {name: torch.from_numpy(value.copy()) for name, value in weights.items()}
        remade = onnx_model(record, tensors, notes[CERTIFICATE])
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} cannot be compared: its preprocessing does not describe a model") from error
    if _same(model, remade):
        return Checked((), CERTIFIED)
    return Checked((f"{path.name} computes something else than the certified model: its graph was changed",), "")


def _same(one: object, other: object) -> bool:
    """Whether two files say the same, whatever the order of notes."""
    packed = []
    for model in (one, other):
        notes = notes_of(model)
        copy = type(model)()
        copy.CopyFrom(model)  # type: ignore[attr-defined]
        copy.ClearField("metadata_props")  # type: ignore[attr-defined]
        packed.append((notes, copy.SerializeToString(deterministic=True)))  # type: ignore[attr-defined]
    return bool(packed[0] == packed[1])


def _checked(faults: Sequence[str], certificate: Certificate) -> Checked:
    return Checked(tuple(faults), "" if faults else CERTIFIED if certificate.model else NO_HASH)


def _other_programs(folder: Path) -> list[str]:
    """Programs beside the model that are not those that Veil writes: they make the inputs of the graph."""
    places = (
        (place, text) for name, text in scripts("score.py", "serve.py").items() for place in (name, f"code/{name}")
    )
    return [
        f"{place} is not the program that this version of Veil writes"
        for place, text in places
        if (folder / place).exists() and (folder / place).read_bytes() != text
    ]
