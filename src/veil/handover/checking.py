"""Checking an exported model: whether it is the one that its certificate was made for. No code of it is run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from veil.handover.exporting import (
    CARD_HASH,
    ONNX_FILE,
    PICKLE_FILE,
    RECORD,
    TRAVELS,
    Format,
    around,
    card_hash,
)
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
from veil.report.model_card import NAME as CARD

CERTIFIED = "This is the certified model."
NO_MODEL = "No model was compared: there is none beside the certificate."
# What may differ between two exports of a run: time, name, and versions of known packages.
_VARIES = re.compile(
    r'(?<=utc_time_created: ")[0-9 :.-]+(?=")|(?<=model_uuid: ")[0-9a-f]{32}(?=")'
    r'|(?<=python: ")[0-9][0-9a-z.+]*(?=")|(?<=python_version: ")[0-9][0-9a-z.+]*(?=")'
    r'|(?<="python=)[0-9][0-9a-z.+]*(?=")|(?<=onnxruntime)[=>]=[0-9][0-9a-z.+]*(?=["\n])|(?<=numpy)[=>]=[0-9][0-9a-z.+]*(?=["\n])'
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
    faults = list[str]()
    record: dict[str, Any] | None = None
    if (folder / PICKLE_FILE).exists():
        preprocessing, weights = stored_in_pickle((folder / PICKLE_FILE).read_bytes())
        record = stored_preprocessing(preprocessing.encode())
        faults += faults_of_model(certificate.model, model_hashes(stored_weights(weights), record))
    if (folder / ONNX_FILE).exists():
        more, record = _check_onnx(folder / ONNX_FILE, certificate, text)
        faults += more
    if record is None:
        return Checked((), NO_MODEL)
    faults += [*_faults_around(folder, record), *_faults_of_card(folder)]
    return Checked(tuple(dict.fromkeys(faults)), "" if faults else CERTIFIED if certificate.model else NO_HASH)


def _check_onnx(path: Path, certificate: Certificate, text: str) -> tuple[list[str], dict[str, Any]]:
    """Faults of a file, and its preprocessing."""
    model = read_onnx(path)
    notes, weights = notes_of(model), weights_of(model)
    if PREPROCESSING not in notes:
        raise InputError(f"{path} was not written by veil export: it does not say how columns become numbers")
    record = stored_preprocessing(notes[PREPROCESSING].encode())
    faults = faults_of_model(certificate.model, model_hashes(as_stored(weights), record))
    if notes.get(CERTIFICATE) != text:
        faults.append(f"the certificate in {path.name} is another one than certificate.json")
    if len(notes) != len(model.metadata_props):
        faults.append(f"{path.name} has a note twice: programs may read either")
    if notes.get(FORM) != FORM_NOW:
        faults.append(
            f"{path.name} has another form than this version of Veil writes: export the run again to have it compared"
        )
    if faults or not certificate.model:
        return faults, record
    try:
        tensors = {name: torch.from_numpy(value.copy()) for name, value in weights.items()}
        remade = onnx_model(record, tensors, notes[CERTIFICATE])
    except Exception as error:  # a record that describes no model can raise anything
        raise InputError(f"{path} cannot be compared: its preprocessing does not describe a model") from error
    if not _same(model, remade):
        faults.append(f"{path.name} computes something else than the certified model: its graph was changed")
    return faults, record


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


def _faults_around(folder: Path, record: Mapping[str, Any]) -> list[str]:
    """Files beside the model that are not those that Veil writes: they run, or say what runs, before the graph does."""
    to = _format_of(folder)
    try:
        written = around(to, record)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder} cannot be compared: its preprocessing does not describe a model") from error
    known = {PICKLE_FILE if to == "sklearn" else ONNX_FILE, *written, *TRAVELS, RECORD}
    there = sorted(
        place.relative_to(folder).as_posix() for place in folder.rglob("*") if place.is_symlink() or not place.is_dir()
    )
    faults = [
        f"{name} is not {'the program' if name.endswith('.py') else 'the file'} that this version of Veil writes"
        for name, content in written.items()
        if name in there and not _as_written(name, (folder / name).read_bytes(), content)
    ]
    others = [name for name in there if name not in known]
    if others:
        more = f" and {len(others) - 5} more" if len(others) > 5 else ""
        faults.append(f"veil export does not write {', '.join(others[:5])}{more}: remove what is not of the export")
    return faults


def _faults_of_card(folder: Path) -> list[str]:
    """A card that is not the one that was exported: it may promise anything."""
    try:
        exported = json.loads((folder / RECORD).read_text(encoding="utf-8"))[CARD_HASH]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return [f"{RECORD} has no hash of {CARD}: export the run again to have the card compared"]
    there = (folder / CARD).read_bytes() if (folder / CARD).is_file() else None
    return [] if card_hash(there) == exported else [f"{CARD} is not the one that was exported"]


def _format_of(folder: Path) -> Format:
    if (folder / "MLmodel").exists():
        return "mlflow"
    if any((folder / name).exists() for name in ("Dockerfile", "serve.py")):
        return "container"
    return "onnx" if (folder / ONNX_FILE).exists() else "sklearn"


def _as_written(name: str, found: bytes, written: bytes) -> bool:
    if name.endswith(".py"):
        return found == written
    return _VARIES.sub("", found.decode(errors="replace")) == _VARIES.sub("", written.decode())
