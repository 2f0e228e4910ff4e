"""ONNX files: every built-in model of tables, with every kind of column, predicts what Veil predicts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.handover.onnx_model import onnx_model
from veil.handover.serving.score import Scorer, WrongRows, days
from veil.handover.serving.serve import Handler
from veil.models import build_model
from veil.problem import PublicFacts
from veil.tables.encoding import Category, Codes, Column, Date, Encoding, HashedCategory, Numeric, Text
from veil.tables.predictor import predictor_of, preprocessing_record

ROWS = 200
COLUMNS: tuple[Column, ...] = (
    Category("town", ("Graz", "Wien", "5", "True")),
    Numeric("age", 17, 90),
    HashedCategory("code", 64, (3, 17, 40), 4),
    Numeric("income", 0, 1e6, missing="middle", missing_words=("?",)),
    Date("born", 0.0, 20000.0),
    Numeric("score", -1.0, -1.0, lenient=True),
    Text("words", "tokens", 16),
    HashedCategory("only", 16, (1, 2)),
    HashedCategory("pooled", 16, (), 3),
    Date("seen", -3000.0, 9000.0, missing="middle", day_first=True),
)


def rows() -> pd.DataFrame:
    """Missing and unseen values, values out of bounds, values of another type."""
    draw = np.random.default_rng(0)

    def some(*values: Any) -> Any:
        return pd.Series([values[place] for place in draw.integers(0, len(values), ROWS)], dtype=object)

    return pd.DataFrame(
        {
            "town": some("Graz", "Wien", "Linz", None, 5, 5.0, True, "5"),
            "age": np.where(draw.random(ROWS) < 0.1, np.nan, draw.normal(50, 40, ROWS)),
            "code": some("a", "b", None, 3, 3.0, "xyz", ""),
            "income": some(10, "12000.5", " ?", None, "?", -5.0, 1e9, ""),
            "born": some("1990-01-31", "3.4.2001", "3/4/2001", None, "3/4/69", "2001-02-03T04:05:06+02:00"),
            "score": some(1.0, np.inf, -np.inf, None, "many", -1.0),
            "words": some("It's fine", "", None, "Straße und Öl und Öl", "x"),
            "only": some("a", "b", "c", None),
            "pooled": some("a", "b", "c", None),
            "seen": some("13/4/1980", "4.5.1999", None, "1999-05-04"),
        }
    )


def record_of(model: str, columns: tuple[Column, ...], classes: tuple[str, ...], **options: Any) -> dict[str, Any]:
    encoding = Encoding(columns, from_rows=False)
    task: Any = "classification" if classes else "regression"
    facts = PublicFacts(("all",), ("all",), (), (encoding.width(),), task, classes)
    if model in ("additive", "wide-and-deep"):
        options = {"blocks": list(encoding.widths())} | options
    if model == "additive":
        options = {"numbers": encoding.numbers()} | options
    record = preprocessing_record(encoding, facts, model, options)
    return record if classes else record | {"target_range": [-50.0, 2000.0]}


def weights_for(record: dict[str, Any]) -> dict[str, Tensor]:
    """Random weights; knots in the order of places, two of them in one place."""
    classes = tuple(record["classes"])
    task: Any = "classification" if classes else "regression"
    facts = PublicFacts(("all",), ("all",), (), tuple(record["input_shape"]), task, classes)
    model = build_model(record["model"], facts, Seed.from_int(0), **record["model_options"])
    generator = torch.Generator().manual_seed(3)
    found = {}
    for name, value in model.state_dict().items():
        drawn = torch.randn(value.shape, generator=generator) / max(1, value.shape[-1] if value.ndim else 1) ** 0.5
        found[name] = drawn.clamp(-0.9, 0.9).sort(dim=1).values if name.endswith("places") else drawn
        if name.endswith("places"):
            found[name][0, 2] = found[name][0, 1]
    return found


def same(record: dict[str, Any], table: pd.DataFrame, folder: Path) -> None:
    weights = weights_for(record)
    path = folder / "model.onnx"
    path.write_bytes(onnx_model(record, weights, "{}").SerializeToString())
    found = Scorer(path).predict(table.astype(object).where(table.notna(), None).to_dict("records"))
    predictor = predictor_of(record, weights)
    expected = predictor.predict(table)
    if predictor.classes:
        chances = predictor.predict_proba(table)
        assert np.ptp(chances[:, 0]) > 0.05, "the rows must differ, else nothing is compared"
        assert np.abs(found["probabilities"] - chances).max() < 1e-6
        assert np.mean(found["predicted"] == expected) > 0.99
    else:
        assert np.abs(found["predicted"] - expected).max() / 2050 < 1e-6


MODELS: dict[str, dict[str, Any]] = {
    "logistic": {"feature_radius": 1.5},
    "additive": {"knots": 6, "crossed": 3},
    "mlp": {"activation": "relu", "depth": 1},
    "wide-and-deep": {"embedding": 3},
    "whitened": {"dimensions": 20},
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("classes", [("no", "yes"), ("a", "b", "c"), ()])
def test_a_model_in_onnx_predicts_what_veil_predicts(model: str, classes: tuple[str, ...], tmp_path: Path) -> None:
    same(record_of(model, COLUMNS, classes, **MODELS[model]), rows(), tmp_path)


def test_an_additive_model_of_very_many_numbers_is_projected_alike(tmp_path: Path) -> None:
    columns = (*COLUMNS, Text("more", "characters", 1100))
    same(record_of("additive", columns, ("no", "yes"), knots=4), rows().assign(more="many words"), tmp_path)


def test_a_table_of_one_column_or_of_numbers_alone_is_written_too(tmp_path: Path) -> None:
    for columns in (COLUMNS[:1], COLUMNS[1:2], (COLUMNS[1], COLUMNS[3]), COLUMNS[6:7]):
        same(record_of("logistic", columns, ("no", "yes")), rows(), tmp_path)


def test_a_model_that_reads_characters_predicts_alike(tmp_path: Path) -> None:
    record = record_of("char-lstm", (Codes("words", "characters", 9),), ("no", "yes"), embedding=5, hidden=7)
    same(record, rows(), tmp_path)


def test_the_same_model_gives_the_same_file() -> None:
    record = record_of("additive", COLUMNS, ("no", "yes"), knots=4)
    made = [onnx_model(record, weights_for(record), "{}").SerializeToString(deterministic=True) for _ in range(2)]
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("model", "column", "sentence"),
    [
        ("transformer", Codes("words", "characters", 8), "has a SmallTransformer layer"),
        ("mlp", Numeric("probabilities", 0, 1), "rename the column"),
        ("mlp", Numeric("veil/0", 0, 1), "rename the column"),
        ("char-lstm", Codes("words", "tokens", 8, tokenizer="folder"), "a tokenizer of another package"),
    ],
)
def test_what_onnx_cannot_hold_is_a_sentence(model: str, column: Column, sentence: str) -> None:
    record = record_of(model, (column,), ("no", "yes"))
    with pytest.raises(InputError, match=sentence):
        onnx_model(record, weights_for(record), "{}")


def test_a_model_of_the_users_own_is_a_sentence() -> None:
    with pytest.raises(InputError, match="is not one of Veil's"):
        onnx_model(record_of("mlp", COLUMNS, ("a", "b")) | {"model": "mine:factory"}, {}, "{}")


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("income", "Zwetschke", 'column "income" cannot be read in row 1'),
        ("income", float("inf"), 'column "income" cannot be read in row 1'),
        ("income", 10**400, 'column "income" cannot be read in row 1'),
        ("born", "some day", 'column "born" cannot be read in row 1'),
        ("born", "0001-01-01T00:00:00+23:00", 'column "born" cannot be read in row 1'),
    ],
)
def test_a_value_that_cannot_be_read_is_named_by_its_place_alone(
    column: str, value: Any, sentence: str, tmp_path: Path
) -> None:
    record = record_of("logistic", COLUMNS, ("no", "yes"))
    (tmp_path / "model.onnx").write_bytes(onnx_model(record, weights_for(record), "{}").SerializeToString())
    scorer, table = Scorer(tmp_path / "model.onnx"), rows().astype(object).where(rows().notna(), None)
    listed = table.head(2).to_dict("records")
    listed[1][column] = value
    with pytest.raises(WrongRows, match=sentence) as caught:
        scorer.predict(listed)
    assert str(value) not in str(caught.value)
    with pytest.raises(WrongRows, match='row 0 has no columns "'):
        scorer.predict([{"age": 3}])
    assert len(scorer.table([])["predicted"]) == 0


def test_a_date_that_cannot_be_read_is_missing_where_training_took_it_so() -> None:
    for text in ("some day", "9999-12-31T23:00:00-05:00"):
        assert math.isnan(days(text, {"day_first": None, "lenient": True}))
        assert math.isinf(days(text, {"day_first": None, "lenient": False}))


def test_a_silent_connection_does_not_hold_the_server() -> None:
    assert Handler.timeout == 30
