"""Effects: they add up to the model's scores exactly, are centred, and are made of weights and encoding alone."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from veil.accounting import Relation
from veil.foundation.randomness import Seed
from veil.methods.convex.cross_choice import CrossRelease
from veil.models import build_model
from veil.models.crosses import Crosses
from veil.models.knots import Knots
from veil.noise import GaussianNoise
from veil.problem import Problem, PublicFacts
from veil.problem.sums import sums_of
from veil.request import Request, Settings
from veil.tables.effects import UNKNOWN, Effects, effects_of
from veil.tables.encoding import Category, Codes, Date, Encoding, HashedCategory, Numeric, Text, hashed_words
from veil.tables.predictor import load_predictor
from veil.tables.table_run import train_table

TOWNS = ("Aachen", "Bonn", "Cologne", "Dortmund", "Essen", "Fulda")
ENCODING = Encoding(
    (
        Numeric("age", 17.0, 90.0),
        Category("sex", ("f", "m")),
        Date("joined", 16000.0, 19000.0),
        Category("town", TOWNS),
        Numeric("hours", 0.0, 60.0, "middle"),
        HashedCategory("job", 8, (1, 4, 6)),
        Category("only", ("yes",)),
        Text("remark", buckets=6),
    ),
    from_rows=False,
)
CLASSES = {"two": ("no", "yes"), "three": ("a", "b", "c"), "numbers": ()}


def a_table(rows: int = 300, seed: int = 0) -> pd.DataFrame:
    """Rows with values that are missing, unknown, out of bounds and between knots."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": np.where(rng.random(rows) < 0.1, np.nan, rng.uniform(0, 110, rows)),
            "sex": rng.choice(["f", "m", "x"], rows),
            "joined": pd.Timestamp(0) + pd.to_timedelta(rng.integers(15800, 19200, rows), unit="D"),
            "town": rng.choice([*TOWNS, "Ghent"], rows),
            "hours": np.where(rng.random(rows) < 0.1, np.nan, rng.uniform(-5, 70, rows)),
            "job": rng.choice(["cook", "nurse", "clerk", "smith", ""], rows),
            "only": rng.choice(["yes", "no"], rows),
            "remark": rng.choice(["came late", "no remark at all", ""], rows),
        }
    )


def trained(classes: tuple[str, ...], crossed: int = 8, knots: int = 7, inside: bool = False) -> nn.Module:
    """An additive model with random weights, knots that are not even, and crosses that a release chose."""
    facts = PublicFacts(("all",), ("all",), (), (ENCODING.width(),))
    facts = replace(facts, classes=classes, task="classification" if classes else "regression")
    first = ENCODING.columns.index(next(column for column in ENCODING.columns if column.name == "sex"))
    options = {"blocks": ENCODING.widths(), "numbers": ENCODING.numbers(), "knots": knots, "crossed": crossed}
    model = build_model("additive", facts, Seed.from_int(0), **options, first=[first])
    assert isinstance(model, nn.Sequential)
    curves, crosses, head = model[1], model[2], model[4]
    assert isinstance(curves, Knots)
    assert isinstance(crosses, Crosses)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        places = torch.rand(curves.places.shape, generator=generator).mul(1.8).sub(0.9).sort(dim=1).values
        if not inside:
            places[:, 0], places[:, -1] = -1.0, 1.0
        curves.places.copy_(places)
        if crossed:
            rows = torch.from_numpy(ENCODING.encode(a_table(seed=1)))
            targets = torch.randint(0, 2, (len(rows),), generator=generator)
            noise, sums = GaussianNoise(Seed.from_int(0)), sums_of(Problem.from_arrays(rows, targets))
            CrossRelease(0.1, Relation.ADD_REMOVE).make(crosses, curves, sums, 2, noise)
        for weight in head.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return model


def found(model: nn.Module, classes: tuple[str, ...]) -> Effects:
    effects = effects_of(model, ENCODING, classes)
    assert effects is not None
    return effects


def outputs(model: nn.Module, table: pd.DataFrame) -> NDArray[np.float64]:
    """What the model itself says of rows, as curves: log-odds, scores less their mean, or numbers."""
    with torch.no_grad():
        scores = copy.deepcopy(model).double()(torch.from_numpy(encoded(table))).numpy()
    if scores.shape[1] == 2:
        return np.asarray(scores[:, 1:] - scores[:, :1])
    return np.asarray(scores - scores.mean(axis=1, keepdims=True) if scores.shape[1] > 1 else scores)


def encoded(table: pd.DataFrame) -> NDArray[np.float64]:
    """Encoded rows; numbers in double precision."""
    rows = ENCODING.encode(table).astype(np.float64)
    for place, name, low, high in (
        (0, "age", 17.0, 90.0),
        (4, "joined", 16000.0, 19000.0),
        (12, "hours", 0.0, 60.0),
    ):
        values = days(table) if name == "joined" else table[name].to_numpy(dtype=float)
        rows[:, place] = np.where(np.isnan(values), 0.0, np.clip(2 * (values - low) / (high - low) - 1, -1, 1))
    return rows


def days(table: pd.DataFrame) -> NDArray[np.float64]:
    return np.asarray((table["joined"] - pd.Timestamp(0)) / pd.Timedelta(days=1), dtype=np.float64)


def parts(record: dict[str, Any], table: pd.DataFrame) -> tuple[dict[str, Any], dict[str, Any]]:
    """By column, what `effects.json` gives each row: its effect [rows, curves], and its levels where it is crossed."""
    effects, levels = {}, {}
    for one in record["columns"]:
        name, at, lines = one["column"], one["at"], np.array(one["effects"])
        maps = None if one["levels"] is None else np.array(one["levels"]["shares"])
        if one["kind"] in ("number", "date"):
            values = days(table) if one["kind"] == "date" else table[name].to_numpy(dtype=float)
            absent = np.isnan(values)
            values = np.where(absent, (at[0] + at[-1]) / 2, values)
            own = np.array([np.interp(values, at, line) for line in lines]).T
            if one["missing"] is not None:
                own[absent] = one["missing"]
            effects[name] = own
            if maps is not None:
                levels[name] = np.array([np.interp(values, at, line) for line in maps.T]).T
            continue
        if one["kind"] == "text":
            shares = ENCODING.columns[-1].encode(table[name]).astype(np.float64)
            effects[name] = shares @ lines.T
            if maps is not None:
                own = shares @ maps[:, :-1]
                levels[name] = np.column_stack([own, 1 - own.sum(axis=1)])
            continue
        words = table[name].tolist()
        if one["kind"] == "hashed category":
            words = [f"hash {value}" for value in hashed_words(table[name], name, 8)]
        place = {value: index for index, value in enumerate(at)}
        effects[name] = np.array([lines[:, place[w]] if w in place else one["unknown"] for w in words])
        if maps is not None:
            none = [0.0] * (maps.shape[1] - 1) + [1.0]
            levels[name] = np.array([maps[place[w]] if w in place else none for w in words])
    return effects, levels


def added_up(record: dict[str, Any], table: pd.DataFrame) -> NDArray[np.float64]:
    effects, levels = parts(record, table)
    total = np.array(record["constant"]) + sum(effects.values())
    for pair in record["pairs"]:
        a, b = pair["columns"]
        total = total + np.einsum("nl,clm,nm->nc", levels[a], np.array(pair["effects"]), levels[b])
    return np.asarray(total)


@pytest.mark.parametrize("crossed", [0, 2, 8])
@pytest.mark.parametrize("kind", CLASSES)
def test_effects_and_pairs_add_up_to_the_scores_of_the_model(kind: str, crossed: int) -> None:
    model, table = trained(CLASSES[kind], crossed), a_table()
    effects = found(model, CLASSES[kind])
    record = json.loads(json.dumps(effects.as_json()))
    assert len(record["pairs"]) == crossed * (crossed - 1) // 2
    np.testing.assert_allclose(added_up(record, table), outputs(model, table), rtol=0, atol=1e-9)


@pytest.mark.parametrize("knots", [2, 3, 4])
def test_few_knots_and_knots_inside_the_bounds_change_nothing_of_that(knots: int) -> None:
    model, table = trained(CLASSES["two"], knots=knots, inside=True), a_table()
    record = found(model, CLASSES["two"]).as_json()
    age = next(one for one in record["columns"] if one["column"] == "age")
    assert (age["at"][0], age["at"][-1], len(age["at"])) == (17.0, 90.0, knots + 2)
    np.testing.assert_allclose(added_up(record, table), outputs(model, table), rtol=0, atol=1e-9)


def test_two_knots_in_one_place_are_a_step_and_the_last_one_counts() -> None:
    model = trained(CLASSES["two"])
    with torch.no_grad():
        model[1].places[0, 3] = model[1].places[0, 2]  # type: ignore[index, union-attr, operator]
    table = a_table(400)
    place = float(model[1].places[0, 2])  # type: ignore[index, union-attr, arg-type]
    table.loc[:50, "age"] = 17.0 + (place + 1) / 2 * 73.0
    np.testing.assert_allclose(
        added_up(found(model, CLASSES["two"]).as_json(), table), outputs(model, table), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("kind", CLASSES)
def test_effects_are_zero_on_average_over_knots_or_values(kind: str) -> None:
    effects = found(trained(CLASSES[kind]), CLASSES[kind])
    for one in effects.columns:
        lines = np.array(one.effects)
        if one.column == "only":  # one value alone is told from all others
            assert one.unknown is not None
            lines = np.column_stack([lines, one.unknown])
        if one.kind != "text":
            np.testing.assert_allclose(lines.mean(axis=1), 0.0, atol=1e-9)
        assert one.spread == pytest.approx(np.sqrt(lines.var(axis=1).mean()))
    for pair in effects.pairs:
        real = [[name != UNKNOWN for name in names] for names in pair.levels]
        table = np.array(pair.effects)[:, real[0]][:, :, real[1]]
        np.testing.assert_allclose(table.mean(axis=1), 0.0, atol=1e-9)
        np.testing.assert_allclose(table.mean(axis=2), 0.0, atol=1e-9)
        assert pair.spread == pytest.approx(np.sqrt(np.square(table).mean()))


def test_what_matters_most_stands_first() -> None:
    effects = found(trained(CLASSES["two"]), CLASSES["two"])
    for listed in (effects.columns, effects.pairs):
        spreads = [one.spread for one in listed]
        assert spreads == sorted(spreads, reverse=True)
    assert {one.column for one in effects.columns} == {column.name for column in ENCODING.columns}


def test_of_more_classes_the_curves_add_up_to_nothing() -> None:
    effects = found(trained(CLASSES["three"]), CLASSES["three"])
    assert effects.curves == ("a", "b", "c")
    for one in effects.columns:
        np.testing.assert_allclose(np.array(one.effects).sum(axis=0), 0.0, atol=1e-9)


def test_levels_are_named_by_values_knots_and_the_rest() -> None:
    effects = found(trained(CLASSES["two"]), CLASSES["two"])
    names = {one.column: one.levels.names for one in effects.columns if one.levels is not None}
    assert set(names["sex"]) == {"f", "m", UNKNOWN}
    assert names["town"][-1] == UNKNOWN
    assert sorted(", ".join(names["town"][:-1]).split(", ")) == sorted(TOWNS), "levels have values with similar targets"
    assert (names["age"][0], names["age"][-1]) == ("near 17", "near 90")
    assert (names["joined"][0], names["joined"][-1]) == ("near 2013-10-22", "near 2022-01-08")
    pair = next(pair for pair in effects.pairs if set(pair.columns) == {"age", "sex"})
    assert pair.levels == (names[pair.columns[0]], names[pair.columns[1]])


def test_a_number_without_a_flag_has_no_effect_of_its_own_where_it_is_missing() -> None:
    columns = {one.column: one for one in found(trained(CLASSES["two"]), CLASSES["two"]).columns}
    assert columns["age"].missing is not None
    assert columns["hours"].missing is None
    assert columns["sex"].unknown is not None
    assert columns["age"].unknown is None


def test_models_that_are_not_additive_have_no_effects() -> None:
    classes = CLASSES["two"]
    facts = PublicFacts(("all",), ("all",), (), (ENCODING.width(),), classes=classes)
    for name in ("logistic", "mlp"):
        assert effects_of(build_model(name, facts, Seed.from_int(0)), ENCODING, classes) is None
    other = Encoding((Numeric("age", 0.0, 1.0), *ENCODING.columns[2:]), False)
    assert effects_of(trained(classes), other, classes) is None
    wide = Encoding((Category("code", tuple(map(str, range(1100)))),), False)
    facts = PublicFacts(("all",), ("all",), (), (1100,), classes=classes)
    projecting = build_model("additive", facts, Seed.from_int(0), blocks=[1100])
    assert effects_of(projecting, wide, classes) is None
    codes = Encoding((Codes("text", length=4),), False)
    facts = PublicFacts(("all",), ("all",), (), (4,), classes=classes)
    assert effects_of(build_model("additive", facts, Seed.from_int(0), blocks=[4]), codes, classes) is None
    broken = trained(classes)
    with torch.no_grad():
        broken[4].bias[0] = float("nan")  # type: ignore[index, union-attr, operator]
    assert effects_of(broken, ENCODING, classes) is None


def a_csv(folder: Path, rows: int = 1500) -> Path:
    rng = np.random.default_rng(3)
    table = a_table(rows, 5)[["age", "sex", "town", "hours"]].assign(age=rng.integers(17, 90, rows))
    table["sex"] = rng.choice(["f", "m"], rows)
    table["pay"] = np.where(table["age"] + 20 * (table["sex"] == "m") + rng.normal(0, 8, rows) > 60, "high", "low")
    table.to_csv(folder / "people.csv", index=False)
    return folder / "people.csv"


def train(folder: Path, **asked: Any) -> Path:
    settings = Settings.checked(epsilon=3.0, seed=1, steps=20)
    request = Request.checked(data=a_csv(folder), target="pay", group=("sex",), settings=settings, **asked)
    train_table(request, out=folder / "run")
    return folder / "run"


def test_a_run_keeps_what_it_learned_and_its_model_gives_the_same(tmp_path: Path) -> None:
    run = train(tmp_path)
    record = json.loads((run / "effects.json").read_text(encoding="utf-8"))
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["effects"] == record
    assert (record["unit"], record["curves"], record["from_rows"]) == ("log-odds", ["low"], True)
    assert record["columns"][0]["column"] == "age"
    predictor = load_predictor(run)
    again = effects_of(predictor.model, predictor.encoding, predictor.classes)
    assert again is not None
    # The model that was saved does not know its noise.
    for part in (*record["columns"], *record["pairs"]):
        assert part.pop("noise") is not None
        part["noise"] = None
    assert json.loads(json.dumps(again.as_json())) == record


def test_a_run_of_another_model_keeps_no_effects(tmp_path: Path) -> None:
    run = train(tmp_path, method="dp-sgd", model="logistic")
    assert not (run / "effects.json").exists()
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["effects"] is None
