"""dp-sgd tuned on validation rows: what is tried is kept, and the best of it counts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.tables import tuned
from benchmarks.tables.data import Table
from veil.errors import InputError


def test_the_highest_accuracy_counts_and_nothing_is_tried_twice(
    tiny_table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, task, fits = tmp_path / "tuned.json", tiny_table.task("protected", "validation"), []

    def fit(asked: object, epsilon: float, seed: int, settings: tuned.Settings) -> object:
        fits.append(settings)
        right = task.test["approved"].to_numpy() == "yes"
        likely = right if settings[1] == 2048 else ~right
        return [[1.0 - chance, chance] for chance in likely.astype(float)]

    monkeypatch.setattr(tuned, "dp_sgd_with", lambda *words: np.array(fit(*words)))
    for settings in (("auto", 512, 10), ("auto", 2048, 10), ("auto", 512, 10)):
        tuned.tried(task, settings, file)
    assert len(fits) == 2
    assert [one["accuracy"] for one in json.loads(file.read_text())["tiny"]] == [0.0, 1.0]
    assert tuned.chosen("tiny", file) == ("auto", 2048, 10)
    with pytest.raises(InputError, match='not tuned for table "other": run `python -m benchmarks tuned'):
        tuned.chosen("other", file)


def test_only_candidates_of_the_page_are_kept() -> None:
    if not tuned.FILE.exists():
        pytest.skip("nothing has been tuned")
    for table, tried in json.loads(tuned.FILE.read_text(encoding="utf-8")).items():
        found = [(one["learning_rate"], one["batch_size"], one["epochs"]) for one in tried]
        assert sorted(found) == sorted(tuned.CANDIDATES), table
