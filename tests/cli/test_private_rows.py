"""Contract rule 10 on the command line: nothing exact about a private row is in any file unless someone asks for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.cli.people_cases import TRAIN
from tests.program import Program

MARKS = (b"8675309", b"Zanzibar", b"xylograph")
SHOWN = b"requested with --show-private"


@pytest.fixture
def marked(people: Path) -> Path:
    """One row holds an extreme number, a category of its own, and a word in a column of numbers."""
    table = pd.read_csv(people)
    table["height"] = [f"{160 + i % 30}" for i in range(len(table))]
    table["wealth"] = np.linspace(10.0, 20.0, len(table))
    row = 17
    table.loc[row, "wealth"] = 8675309.25
    table.loc[row, "town"] = "Zanzibar"
    table.loc[row, "height"] = "xylograph"
    table.to_csv(people, index=False)
    return people


def holding(folder: Path, mark: bytes) -> list[str]:
    return [path.name for path in sorted(folder.rglob("*")) if path.is_file() and mark in path.read_bytes()]


@pytest.mark.parametrize(("method", "more"), [("asc", ()), ("erm", ()), ("asc", ("--private-preprocessing", "0.2"))])
def test_no_file_of_a_run_repeats_a_private_row(
    method: str, more: tuple[str, ...], marked: Path, tmp_path: Path, veil: Program
) -> None:
    out = tmp_path / "run"
    words = ("train", str(marked), *TRAIN, "--method", method, "--out", str(out), "--quiet", *more)
    code, text, err = veil(*words)
    assert code == 0, err
    for mark in (*MARKS, np.float32(8675309.25).tobytes(), np.float64(8675309.25).tobytes()):
        assert holding(out, mark) == []
        assert mark.decode("latin-1") not in text
    assert holding(out, SHOWN) == []
    assert len(list(out.iterdir())) >= 8


def test_the_screen_warns_of_exact_figures_also_where_nothing_was_measured(
    people: Path, tmp_path: Path, veil: Program
) -> None:
    words = ("train", str(people), *TRAIN, "--holdout", "0", "--show-private", "--out", str(tmp_path / "run"))
    code, text, _ = veil(*words)
    assert code == 0
    assert "exact figures on private rows, not covered" in " ".join(text.split())


def test_exact_figures_are_there_only_when_asked_for_and_are_marked(
    marked: Path, tmp_path: Path, veil: Program
) -> None:
    out = tmp_path / "run"
    code, text, _ = veil("train", str(marked), *TRAIN, "--out", str(out), "--quiet", "--show-private")
    assert code == 0
    assert {"certificate.json", "report.html", "run.json", "MODEL_CARD.md"} <= set(holding(out, SHOWN))
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "from private rows: not covered by the certificate" in page
    assert "exact figures on private rows, not covered by the certificate" in " ".join(text.split())


def test_figures_on_held_out_rows_carry_noise_for_every_method(marked: Path, tmp_path: Path, veil: Program) -> None:
    import json

    for method in ("erm", "dp-sgd"):
        words = ("train", str(marked), *TRAIN, "--method", method, "--out", str(tmp_path / method), "--json")
        metrics = json.loads(veil(*words)[1])["metrics"]
        assert metrics["released"] is True
        assert metrics["noise"] > 1
        assert set(metrics["parity"]) == {"demographic_parity", "equal_opportunity", "equalised_odds"}
