"""What a model without privacy reaches is measured on rows that need no protection, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.program import Program
from veil.tables.without_privacy import right_answers

FINDING = "Without privacy"


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=1600).round(3), "sex": rng.choice(["f", "m"], 1600)})
    table["ill"] = np.where(table["a"] + rng.normal(size=1600) / 3 > 0, "yes", "no")
    table[:1000].to_csv(tmp_path / "people.csv", index=False)
    table[1000:].to_csv(tmp_path / "public.csv", index=False)
    roles = ("--target", "ill", "--group", "sex", "--epsilon", "1", "--seed", "1")
    return ("train", str(tmp_path / "people.csv"), *roles, "--out", str(tmp_path / "run"))


def finding(tmp_path: Path) -> dict[str, object] | None:
    found = json.loads((tmp_path / "run" / "run.json").read_text())["findings"].get(FINDING)
    assert found is None or isinstance(found, dict)
    return found


def test_public_rows_say_what_training_without_privacy_reaches(
    words: tuple[str, ...], tmp_path: Path, veil: Program
) -> None:
    code, said, error = veil(*words, "--test", str(tmp_path / "public.csv"))
    assert code == 0, error
    found = finding(tmp_path)
    assert found is not None
    assert found["rows"] == 600
    assert 0.8 < float(str(found["worst_group_accuracy"])) < 0.98
    assert "private" not in found
    sentence = "Without privacy, a logistic model trained on half of 600 rows has "
    assert sentence in said
    assert sentence in json.loads((tmp_path / "run" / "report.json").read_text())["verdict"]["headline"]
    assert sentence in (tmp_path / "run" / "MODEL_CARD.md").read_text()


def test_private_rows_are_not_looked_at_unless_asked_to(words: tuple[str, ...], tmp_path: Path, veil: Program) -> None:
    assert veil(*words)[0] == 0
    assert finding(tmp_path) is None


def test_what_was_read_off_private_rows_on_request_is_marked(
    words: tuple[str, ...], tmp_path: Path, veil: Program
) -> None:
    assert veil(*words, "--show-private")[0] == 0
    found = finding(tmp_path)
    assert found is not None
    assert found["private"] is True


def test_no_row_is_predicted_by_a_model_that_saw_it() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.eye(300)  # every row has a column of its own: whoever sees it knows its answer
    targets = torch.randint(2, (300,), generator=generator)
    right = right_answers(inputs, targets, np.array(["g"] * 300), 2)
    assert abs(right.mean() - 0.5) < 0.12


def test_groups_count_alike_however_large_they_are() -> None:
    rng = np.random.default_rng(0)
    rare = rng.random(4000) < 0.05
    inputs = torch.from_numpy(np.where(rare, 1.0, -1.0) + rng.normal(size=4000))[:, None]
    right = right_answers(inputs, torch.from_numpy(rare.astype(np.int64)), np.where(rare, "rare", "usual"), 2)
    assert right[rare].mean() > 0.75  # 0.4 if every row counted alike


@pytest.mark.parametrize("command", ["tune", "compare"])
def test_searches_and_comparisons_say_it_too_where_rows_are_public(
    command: str, words: tuple[str, ...], tmp_path: Path, veil: Program
) -> None:
    given = [*words[1:6], "--out", str(tmp_path / "run")]
    more = ("--epsilon", "2", "--test", str(tmp_path / "public.csv"))
    short = ("--methods", "erm,auto", "--seeds", "1", "--jobs", "1") if command == "compare" else ()
    code, said, error = veil(command, *given, *more, *short)
    assert code == 0, error
    sentence = "Without privacy, a logistic model trained on half of 600 rows has "
    assert sentence in said
    assert sentence in json.loads((tmp_path / "run" / "report.json").read_text())["verdict"]["headline"]
    shown = tmp_path / "again"
    again = [str(shown) if word == str(tmp_path / "run") else word for word in given]
    found = json.loads(veil(command, *again, *more, *short, "--json")[1])["without_privacy"]
    assert found["rows"] == 600
    assert 0.8 < found["worst_group_accuracy"] < 0.98


@pytest.mark.parametrize("command", ["tune", "compare"])
def test_searches_and_comparisons_look_at_private_rows_only_when_asked_to(
    command: str, words: tuple[str, ...], tmp_path: Path, veil: Program
) -> None:
    given = [*words[1:6], "--epsilon", "3", "--out", str(tmp_path / "run")]
    short = ("--methods", "auto", "--seeds", "1", "--jobs", "1") if command == "compare" else ()
    code, said, error = veil(command, *given, *short, "--json")
    assert code == 0, error
    assert json.loads(said)["without_privacy"] is None
    again = [str(tmp_path / "shown") if word == str(tmp_path / "run") else word for word in given]
    found = json.loads(veil(command, *again, *short, "--show-private", "--json")[1])["without_privacy"]
    assert found["private"] is True
    folder = tmp_path / "shown" / ("auto-eps3-seed1" if command == "compare" else "")
    assert any("--show-private" in s for s in json.loads((folder / "certificate.json").read_text())["not_covered"])
    assert "Training rows" in json.loads((folder / "run.json").read_text())["findings"]
