"""Columns of free text through `veil train` with no option: words are learned; names and codes are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.tables.test_new_gaps import trained

WORDS = [
    start + middle + end for start in ("ba", "ke", "lo", "mi", "nu") for middle in ("da", "fi", "go") for end in "nrsl"
]
GOOD, BAD = WORDS[10:14], WORDS[30:34]


def table_with_notes(rows: int, seed: int) -> pd.DataFrame:
    """A target that follows from eight of sixty words; names and codes say nothing."""
    rng = np.random.default_rng(seed)
    notes = [rng.choice(WORDS, rng.integers(4, 9)).tolist() for _ in range(rows)]
    score = [sum(word in GOOD for word in note) - sum(word in BAD for word in note) for note in notes]
    return pd.DataFrame(
        {
            "age": rng.integers(18, 80, rows),
            "notes": [" ".join(note) for note in notes],
            "name": [f"{rng.choice(WORDS).title()} {rng.choice(WORDS).title()}son{row}" for row in range(rows)],
            "code": [f"K{row:06d}" for row in rng.permutation(rows)],
            "sex": rng.choice(["f", "m"], rows),
            "y": np.where(np.array(score) + rng.logistic(0, 0.3, rows) > 0, "yes", "no"),
        }
    )


def test_words_of_free_text_are_learned_and_names_and_codes_are_not(train: Any, tmp_path: Path) -> None:
    table, asked = table_with_notes(6_000, 1), table_with_notes(3_000, 2)
    predictor = trained(train, table, tmp_path)
    assert [column.name for column in predictor.encoding.columns] == ["age", "notes", "sex"]
    guessed = max((asked["y"] == "yes").mean(), (asked["y"] == "no").mean())
    assert (predictor.predict(asked) == asked["y"]).mean() > guessed + 0.1
    kept = (tmp_path / "run" / "preprocessing.json").read_text(encoding="utf-8")
    assert not any(word in kept for word in WORDS), "a text is hashed by public rules: no word of it is stored"
