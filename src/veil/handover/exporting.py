"""Exporting a finished run: its model in a format of other programs, with certificate, ledgers and model card."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from veil.training.run import LoadedRun
from veil.training.run_folder import LEDGERS

Format = Literal["onnx", "sklearn", "mlflow", "container"]
FORMATS: tuple[Format, ...] = ("onnx", "sklearn", "mlflow", "container")
ONNX_FILE, PICKLE_FILE = "model.onnx", "model.pkl"
RECORD = "run.json"
# What travels with every model, as far as a run has it.
TRAVELS = ("certificate.json", *LEDGERS, "MODEL_CARD.md")


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
        made: bytes = onnx_model(self.record, load(self.weights), self.certificate).SerializeToString(
            deterministic=True
        )
        return made


def export_run(run: LoadedRun, to: str, out: Path | str, *, force: bool = False) -> Path:
    """Write the model of a run into a new folder, in a format of other programs.

    Args:
        run: A finished run on a table (`veil.load`).
        to: `onnx`, `sklearn`, `mlflow` or `container`.
        out: The folder to make.
        force: Replace `out` if it is there.

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
        not faults_of_model(run.certificate.model, hashes_in(folder) or {}),
        f"the model in {folder} is not the one its certificate was made for: veil verify {folder} says what differs",
    )
    texts = ((folder / name).read_text(encoding="utf-8") for name in (PREPROCESSING_FILE, "certificate.json"))
    preprocessing, certificate = texts
    files = _FORMATS[to](Trained(preprocessing, (folder / WEIGHTS_FILE).read_bytes(), certificate))
    files |= {name: (folder / name).read_bytes() for name in TRAVELS if (folder / name).exists()}
    # Of the run's record only the copy of the certificate, which its words are checked by: the rest stays at home.
    files[RECORD] = json.dumps({"certificate": run.record.get("certificate")}, ensure_ascii=False).encode()
    _write(out, files)
    return out


def _write(out: Path, files: Mapping[str, bytes]) -> None:
    """What is not whole gets no name."""
    partial = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        for name, content in files.items():
            place = partial / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        if out.exists():
            require(
                out.is_dir() and (out / "certificate.json").exists(), f"{out} is no exported model: remove it first"
            )
            shutil.rmtree(out)
        partial.replace(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _onnx(trained: Trained) -> dict[str, bytes]:
    return {ONNX_FILE: trained.onnx(), **scripts("score.py")}


def _sklearn(trained: Trained) -> dict[str, bytes]:
    from veil.handover.pipeline import pickled, pipeline_of

    return {PICKLE_FILE: pickled(pipeline_of(trained.preprocessing, trained.weights))}


def _mlflow(trained: Trained) -> dict[str, bytes]:
    code = {f"code/{name}": content for name, content in scripts("score.py").items()}
    return {ONNX_FILE: trained.onnx(), **code, **mlflow_files(trained.record, needed())}


def _container(trained: Trained) -> dict[str, bytes]:
    listed = "".join(f"{package}\n" for package in needed())
    return {
        ONNX_FILE: trained.onnx(),
        **scripts("score.py", "serve.py"),
        "requirements.txt": listed.encode(),
        "Dockerfile": DOCKERFILE.encode(),
    }


_FORMATS: dict[str, Callable[[Trained], dict[str, bytes]]] = {
    "onnx": _onnx,
    "sklearn": _sklearn,
    "mlflow": _mlflow,
    "container": _container,
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
