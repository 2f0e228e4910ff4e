"""The INO-SGD regimes: settings are chosen by several seeds on validation rows, and the page names edges of grids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from experiments import ino_regimes
from experiments.ino_regimes import Choice, mapped_choices, reproduce, tuned_choices
from experiments.ino_regimes_page import edges, finalists, part, straight, without_tail
from experiments.runner import Asked
from experiments.runner.findings import read_findings

LENGTH = {
    "steps": 4,
    "reach": 2.0,
    "clips": [0.1],
    "tails": [[90.0], [60.0, 4.0, 0.5]],
    "idp": {"clips": [0.1, 1.0, 4.0], "reaches": [1.0, 2.0, 4.0]},
    "ino": {"clips": [1.0], "reaches": [2.0], "tails": [[90.0], [60.0, 4.0, 0.5]]},
}
OPTIONS = {
    "batch_size": 8,
    "curve_rows": 100,
    "activity_rows": 20,
    "seeds": 2,
    "finalists": 2,
    "long_steps": 8,
    "lengths": [LENGTH],
}


def test_the_label_of_every_choice_gives_its_numbers_back() -> None:
    for choice in (*tuned_choices(LENGTH, ordered=True), *tuned_choices(LENGTH, ordered=False)):
        names = ("steps", "clip", "reach", "tail", "alpha", "beta")
        assert [part(choice.label, name) for name in names] == [getattr(choice, name) for name in names]
        assert straight(choice.label) is (choice.alpha == 1.0)
        assert without_tail(choice.label) == Choice(choice.steps, choice.clip, choice.reach, 0.0).label


def test_the_map_has_idp_sgd_and_every_tail_with_its_shape() -> None:
    found = [(one.tail, one.alpha, one.beta) for one in mapped_choices(LENGTH)]
    assert found == [(0.0, 1.0, 1.0), (90.0, 1.0, 1.0), (60.0, 4.0, 0.5)]


def test_a_choice_that_was_lucky_with_one_seed_is_not_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lucky, steady = Choice(4, 0.1, 1.0, 0.0), Choice(4, 1.0, 2.0, 0.0)
    tried: list[tuple[Choice, int]] = []

    def run_one(choice: Choice, seed: int, rows: Any, test: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        tried.append((choice, seed))
        own = {lucky: 0.9 if seed == 100 else 0.1, steady: 0.8}.get(choice, 0.2)
        end = {"0–4": own, "5–9": own, "all": own}
        return {"end": end, "seconds": 0.0}

    class Facts:
        public = None

    monkeypatch.setattr(ino_regimes, "run_one", run_one)
    beside = {"end": {"0–4": 0.9, "5–9": 0.9, "all": 0.9}}
    monkeypatch.setattr(ino_regimes, "run_without_privacy", lambda *_: beside)
    monkeypatch.setattr(ino_regimes, "constant_end", lambda *_: beside)
    monkeypatch.setattr(ino_regimes, "_rows", lambda *_: (Facts, Facts))
    monkeypatch.setattr(ino_regimes, "long_choices", lambda *_: [])
    monkeypatch.setattr(ino_regimes, "rewrite", lambda *_: None)
    reproduce(Asked("ino-regimes", "paper", tmp_path, options=OPTIONS))
    found = {name: kept["found"] for name, kept in read_findings(tmp_path / "ino-regimes.json").found.items()}
    assert set(found["tuning"][lucky.label]) == {"100", "101", "102"}  # it was among the best two with the first seed
    assert sorted(finalists(found["tuning"], 4, ordered=False)) == sorted([lucky.label, steady.label])
    bests = [label for label in found["best"] if part(label, "tail") == 0]
    assert bests == [steady.label]
    assert set(found["best"][steady.label]) == {"2", "3"}  # fresh seeds: the map has 0 and 1
    assert {seed for choice, seed in tried if choice == mapped_choices(LENGTH)[1]} == {0, 1}
    assert {label: set(by_seed) for label, by_seed in found["beside"].items()} == {
        "constant answer": {"0"},
        "steps 4": {"0", "1"},
    }
    assert edges(found["tuning"], steady.label) == []
    assert edges(found["tuning"], lucky.label) == ["clip", "reach"]
