"""Runs on folders of images: what was trained predicts new files, by command and by `veil.load`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import veil as package
from tests.program import Program
from veil.errors import InputError
from veil.handover.loaded import LoadedImageRun
from veil.models import normalise
from veil.problem import Problem
from veil.request import Request
from veil.tables.images import read_images
from veil.tables.table_run import train_table

pillow = pytest.importorskip("PIL.Image")


def images(folder: Path, rows: int, seed: int, size: int = 8) -> Path:
    """Bright and dark squares on noise, one folder per class."""
    draw = np.random.default_rng(seed)
    for row in range(rows):
        name = ("left", "right")[row % 2]
        pixels = draw.integers(0, 60, (size, size, 3), dtype=np.uint8)
        half = slice(0, size // 2) if row % 2 == 0 else slice(size // 2, size)
        pixels[:, half] += 150
        (folder / name).mkdir(parents=True, exist_ok=True)
        pillow.fromarray(pixels).save(folder / name / f"{row:03}.png")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    request = Request.checked(
        data=images(folder / "train", 80, 0),
        method="dp-sgd",
        model="logistic",
        settings={"seed": 1, "epsilon": 50.0, "epochs": 10, "batch_size": 40},
        holdout=0.0,
    )
    train_table(request, out=folder / "run")
    return folder / "run"


def test_a_loaded_run_on_images_predicts_and_has_its_model(run: Path, tmp_path: Path) -> None:
    folder, loaded = images(tmp_path / "new", 20, 1), package.load(run)
    assert isinstance(loaded, LoadedImageRun)
    files = sorted(folder.glob("*/*.png"))
    pixels = read_images(files)
    with torch.no_grad():
        wanted = loaded.model(normalise(torch.from_numpy(pixels), "per-row")).softmax(dim=1).numpy()
    for given in (folder, str(folder), files, pixels):
        np.testing.assert_allclose(loaded.predict_proba(given), wanted, atol=1e-6)
    assert np.mean(loaded.predict(folder) == [path.parent.name for path in files]) > 0.9
    assert loaded.predict_proba(pixels[:0]).shape == (0, 2)
    for wrong in (pixels.astype(float), pixels[:, :, :4]):
        with pytest.raises(InputError, match=r"give bytes \(uint8\), rows × 3 × 8 × 8"):
            loaded.predict(wrong)


def test_the_command_writes_file_class_and_probabilities(
    run: Path, tmp_path: Path, veil: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = images(tmp_path / "new", 20, 1), tmp_path / "out.csv"
    pillow.new("RGB", (16, 12), "white").save(folder / "other_size.png")
    monkeypatch.setattr("veil.tables.image_predictor.AT_ONCE", 7)
    code, _, err = veil("predict", str(run), str(folder), "-o", str(out), "--probabilities")
    assert code == 0, err
    found = pd.read_csv(out)
    assert list(found.columns) == ["file", "predicted", "probability of left", "probability of right"]
    assert found["file"].tolist() == [*sorted(f"left/{row:03}.png" for row in range(0, 20, 2)), "other_size.png"] + [
        f"right/{row:03}.png" for row in range(1, 20, 2)
    ]
    loaded = package.load(run)
    assert (found["predicted"] == loaded.predict(folder)).all()
    code, said, _ = veil("predict", str(run), str(folder), "--threshold", "0.999999")
    assert (code, said.splitlines()[0]) == (0, "file,predicted")
    for words, sentence in (
        ((str(tmp_path / "none"),), "file not found"),
        ((str(run),), "contains no image"),
        ((str(folder), "--keep", "a"), "are for tables"),
        ((str(folder), "--threshold", "2"), "must be between 0 and 1"),
    ):
        code, _, err = veil("predict", str(run), *words)
        assert (code, sentence in err) == (2, True), err
    (folder / "broken.png").write_bytes(b"no image")
    code, _, err = veil("predict", str(run), str(folder))
    assert (code, "broken.png is not a readable image" in err) == (2, True)


def test_the_certificate_knows_classes_size_and_normalisation(run: Path, tmp_path: Path, veil: Program) -> None:
    assert veil("verify", str(run))[0] == 0
    code, _, err = veil("export", str(run), "--to", "onnx", "-o", str(tmp_path / "out"))
    assert (code, "export is for runs on tables" in err) == (2, True)
    path = run / "preprocessing.json"
    text = path.read_text()
    record = json.loads(text)
    assert record["images"] == {"size": [8, 8], "normalisation": "per-row"}
    try:
        path.write_text(json.dumps(record | {"classes": record["classes"][::-1]}))
        code, out, _ = veil("verify", str(run))
        assert (code, "its preprocessing has another hash" in out) == (1, True)
    finally:
        path.write_text(text)


def test_a_run_of_ones_own_model_says_how_to_get_it(tmp_path: Path, veil: Program) -> None:
    problem = Problem.from_arrays(np.eye(4, dtype=np.float32).repeat(10, 0), np.arange(40) % 2, ["a", "b"] * 20)
    model = nn.Linear(4, 2)
    package.fit(model, problem, method="dp-sgd", steps=2, batch_size=10, seed=1, out=tmp_path / "run")
    loaded = package.load(tmp_path / "run")
    for asked in (lambda: loaded.model, lambda: loaded.predict(None)):
        with pytest.raises(InputError, match=r"veil.load\(folder\).load_weights\(module\)"):
            asked()
    assert torch.equal(loaded.load_weights(nn.Linear(4, 2)).weight, model.weight)  # type: ignore[arg-type]
    code, _, err = veil("predict", str(tmp_path / "run"), str(tmp_path))
    assert (code, "load_weights(model)" in " ".join(err.split())) == (2, True)
