"""Exporting a finished run: its model in a format of other programs, with certificate, ledgers and model card."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load

import veil.handover.serving
import veil.tables.text
from veil.accounting.model_digest import PREPROCESSING_FILE, WEIGHTS_FILE, faults_of_model, hashes_in
from veil.errors import InputError, require
from veil.handover.mlflow_folder import mlflow_files
from veil.handover.onnx_model import onnx_model
from veil.report.model_card import NAME as CARD
from veil.training.run import LoadedRun
from veil.training.run_folder import LEDGERS, LOCK

Format = Literal["onnx", "sklearn", "mlflow", "container"]
FORMATS: tuple[Format, ...] = ("onnx", "sklearn", "mlflow", "container")
ONNX_FILE, PICKLE_FILE = "model.onnx", "model.pkl"
RECORD = "run.json"
# What travels with every model, as far as a run has it.
TRAVELS = ("certificate.json", *LEDGERS, CARD)
# Where an export keeps the hash of its card.
CARD_HASH = "model_card_sha256"


@dataclass(frozen=True)
class Trained:
    """What is exported: preprocessing and weights of a run, as its folder holds them, and the certificate's text."""

    preprocessing: str
    weights: bytes
    certificate: str

    @property
    def record(self) -> dict[str, Any]:
        """The preprocessing, read."""
        found: dict[str, Any] = json.loads(self.preprocessing)
        return found

    def onnx(self) -> bytes:
        """The model as an ONNX file."""
        weights = dict(sorted(load(self.weights).items()))  # safetensors gives them in any order
        made: bytes = onnx_model(self.record, weights, self.certificate).SerializeToString(deterministic=True)
        return made

    def pickle(self) -> bytes:
        """The model as a pickled pipeline of scikit-learn."""
        from veil.handover.pipeline import pickled, pipeline_of

        return pickled(pipeline_of(self.preprocessing, self.weights))


def export_run(run: LoadedRun, to: str, out: Path | str, *, force: bool = False) -> Path:
    """Write the model of a run into a new folder, in a format of other programs.

    Args:
        run: A finished run on a table (`veil.load`).
        to: `onnx`, `sklearn`, `mlflow` or `container`.
        out: The folder to make.
        force: Replace `out` if it holds an exported model.

    Returns:
        The folder; `veil verify` says whether it holds the certified model.

    Raises:
        InputError: The run has no table model, its model is not the certified one, or cannot be written in this format.
    """
    out, folder = Path(out), run.folder
    if to not in FORMATS:
        raise InputError(f'the format is "{to}": use {", ".join(FORMATS[:-1])} or {FORMATS[-1]}')
    require((folder / PREPROCESSING_FILE).exists(), f"{folder} has no model of a table: export is for runs on tables")
    require(force or not out.exists(), f"{out} exists already: choose another folder, or add --force")
    require(out.resolve() not in (folder.resolve(), *folder.resolve().parents), f"{out} holds the run: choose another")
    require(
        not out.exists() or _is_exported(out), f"{out} is no exported model: choose a new folder, or remove it first"
    )
    require(
        not faults_of_model(run.certificate.model, hashes_in(folder) or {}),
        f"the model in {folder} is not the one its certificate was made for: veil verify {folder} says what differs",
    )
    texts = ((folder / name).read_text(encoding="utf-8") for name in (PREPROCESSING_FILE, "certificate.json"))
    preprocessing, certificate = texts
    trained = Trained(preprocessing, (folder / WEIGHTS_FILE).read_bytes(), certificate)
    model = {PICKLE_FILE: trained.pickle()} if to == "sklearn" else {ONNX_FILE: trained.onnx()}
    files = model | around(to, trained.record)
    files |= {name: (folder / name).read_bytes() for name in TRAVELS if (folder / name).exists()}
    # Of the run's record only the copy of the certificate, which its words are checked by: the rest stays at home.
    kept = {"certificate": run.record.get("certificate"), CARD_HASH: card_hash(files.get(CARD))}
    files[RECORD] = json.dumps(kept, ensure_ascii=False).encode()
    _write(out.resolve(), files)
    return out


def card_hash(content: bytes | None) -> str:
    """The hash of a model card; empty where there is none."""
    return "" if content is None else sha256(content).hexdigest()


def _is_exported(folder: Path) -> bool:
    """Whether a folder holds an exported model and no run: a run has a certificate too, and is never replaced."""
    of_a_run = (WEIGHTS_FILE, "config.toml", LOCK)
    return any((folder / name).is_file() for name in (ONNX_FILE, PICKLE_FILE)) and not any(
        (folder / name).exists() for name in of_a_run
    )


def _write(out: Path, files: Mapping[str, bytes]) -> None:
    """What is not whole gets no name."""
    partial = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        for name, content in files.items():
            place = partial / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        if out.exists():
            shutil.rmtree(out)
        partial.replace(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def around(to: Format, record: Mapping[str, Any]) -> dict[str, bytes]:
    """What a format has beside its model: the programs, and what says how they are run."""
    if to == "sklearn":
        return {}
    if to == "onnx":
        return scripts("score.py")
    if to == "mlflow":
        code = {f"code/{name}": content for name, content in scripts("score.py").items()}
        return {**code, **mlflow_files(record, needed())}
    listed = "".join(f"{package}\n" for package in needed())
    return {
        **scripts("score.py", "serve.py"),
        "requirements.txt": listed.encode(),
        "Dockerfile": DOCKERFILE.encode(),
    }


DOCKERFILE = """FROM python:3.12-slim
WORKDIR /model
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY . .
USER nobody
EXPOSE 8080
CMD ["python", "serve.py", "8080"]
"""


def needed() -> list[str]:
    """Packages that predict with an exported ONNX file, at the versions here if they are here."""
    try:
        return [f"onnxruntime=={version('onnxruntime')}", f"numpy=={version('numpy')}"]
    except PackageNotFoundError:
        return ["onnxruntime>=1.17", "numpy>=1.26"]


def scripts(*names: str) -> dict[str, bytes]:
    """Programs that travel with a model; the one file of Veil that they need travels as `veil_text.py`."""
    here = Path(str(veil.handover.serving.__file__)).parent
    found = {name: (here / name).read_text(encoding="utf-8") for name in names}
    found["veil_text.py"] = Path(veil.tables.text.__file__).read_text(encoding="utf-8")
    moved = {"veil.tables.text": "veil_text", "veil.handover.serving.score": "score"}
    for old, new in moved.items():
        found = {name: text.replace(f"from {old} import", f"from {new} import") for name, text in found.items()}
    return {name: text.encode() for name, text in found.items()}
