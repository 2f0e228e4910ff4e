"""The default model of a table follows from public facts: knots, crosses, and the columns of the groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from veil.foundation.randomness import Seed
from veil.methods import create, relation_asked
from veil.models.crosses import Crosses
from veil.models.knots import Knots
from veil.request import Request
from veil.tables.opening import Opening, open_rows
from veil.tables.preparing import columns_of, holdout_of, model_options
from veil.tables.schema import Schema, SchemaColumn
from veil.tables.splitting import Split

SCHEMA = Schema(
    (
        SchemaColumn("age", "numeric", 0, 100),
        SchemaColumn("town", "category", values=("A", "B")),
        SchemaColumn("sex", "group", values=("f", "m"), feature=True),
        SchemaColumn("rich", "target", values=("no", "yes")),
    )
)


def people(rows: int) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    age = generator.integers(18, 90, rows)
    words = {name: generator.choice(values, rows) for name, values in (("town", ["A", "B"]), ("sex", ["f", "m"]))}
    return pd.DataFrame({"age": age, **words, "rich": np.where(age > 50, "yes", "no")})


@pytest.mark.parametrize(("rows", "crossed"), [(400, 0), (40_000, 6)])
@pytest.mark.parametrize("declared", [False, True])
def test_knots_and_crosses_follow_from_rows_and_groups_are_crossed_first(
    rows: int, crossed: int, declared: bool, tmp_path: Path
) -> None:
    (tmp_path / "schema.toml").write_text(SCHEMA.to_toml())
    roles = {"schema": tmp_path / "schema.toml"} if declared else {"target": "rich", "group": ("sex",)}
    request = Request.checked(data=tmp_path / "none", **roles)
    method, seed = create(request.method, request.options()), Seed.from_int(1)
    split = Split(seed, holdout_of(request, seed), relation_asked(method))
    opened = open_rows(
        request, columns_of(request), Opening(method, request.settings, split, tables=(people(rows), None))
    )
    options = model_options(opened.request, opened.problem.public, opened.encoding)
    assert options["crossed"] == crossed
    assert options["numbers"] == [0]
    assert options["first"] == [2]
    parts = list(opened.factory(opened.problem, seed))  # type: ignore[call-overload]
    curves, crosses = parts[1], parts[2]
    assert isinstance(curves, Knots)
    assert isinstance(crosses, Crosses)
    assert curves.places.shape == (1, options["knots"])
    assert crosses.first == (2,)[:crossed]
