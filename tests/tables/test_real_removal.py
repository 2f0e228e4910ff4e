"""A row is really deleted from the table, not its place left empty: what moves, and what must not move at all.

Both tables are run with the same randomness: every release on the shorter table returns what was released on the whole
one (the same transcript), and each remaining row has the same coins. Then every exact sum may move by what was charged
for it, and every file of the two folders must be the same, byte by byte: nothing else depends on the row.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from veil.accounting import Event, Ledger
from veil.foundation.randomness import Seed
from veil.noise import GaussianNoise
from veil.plans import Settings
from veil.request import Request
from veil.sampling import PoissonSampler
from veil.tables import opening, table_run
from veil.tables.splitting import Holdout, holdout_key, row_identities

ROWS = 100
SCHEMA = """
[columns.age]
kind = "numeric"
[columns.town]
kind = "category"
[columns.sex]
kind = "group"
[columns.loan]
kind = "target"
values = ["no", "yes"]
"""
SIZES = """
[group_sizes]
f = 40
m = 70
x = 12
"""
KEY = Holdout(0.2, holdout_key(Seed.from_int(1)))


def people() -> pd.DataFrame:
    """Equal rows, and a group of two rows of which one is held out. With one row less, a small table by its size."""
    generator = np.random.default_rng(2)
    age = generator.integers(20, 24, ROWS)
    table = pd.DataFrame(
        {
            "age": age,
            "town": generator.choice(["Graz", "Wien"], ROWS),
            "sex": generator.choice(["f", "m"], ROWS, p=[0.4, 0.6]),
            "loan": np.where(age + generator.random(ROWS) > 22, "yes", "no"),
        }
    )
    for first, second in ((a, b) for a in range(20, 60) for b in range(20, 60)):
        table.loc[ROWS - 2 :, "sex"] = "x"
        table.loc[ROWS - 2 :, "age"] = (first, second)
        if KEY.chosen(row_identities(table))[-2:].tolist() == [False, True]:
            break
    return table


def rows_to_delete() -> dict[str, int]:
    table = people()
    apart, equal = KEY.chosen(row_identities(table)), table.duplicated(keep=False).to_numpy()
    assert set(apart[equal].tolist()) == {True, False}
    return {
        "trained on": int(np.flatnonzero(~apart)[0]),
        "held out": int(np.flatnonzero(apart)[0]),
        "the first of equal rows": int(np.flatnonzero(table.duplicated(keep="last") & ~table.duplicated())[0]),
        "the only one of its group that is trained on": ROWS - 2,
        "the only one of its group that is held out": ROWS - 1,
    }


@dataclass
class Transcript:
    """What was released, from which exact sums, and what was reserved for it."""

    answers: Sequence[dict[str, Tensor]] | None = None
    identities: Any = None
    sums: list[tuple[str, int, float, Tensor]] = field(default_factory=list)
    released: list[dict[str, Tensor]] = field(default_factory=list)
    reserved: list[tuple[str, int, int, Mapping[int, Event]]] = field(default_factory=list)

    def add(self, step: int, values: Mapping[str, Tensor], std: float, purpose: str, noisy: Any) -> dict[str, Tensor]:
        exact = torch.cat([value.detach().to(torch.float64).flatten() for value in values.values()])
        self.sums.append((purpose, step, std, exact))
        made = noisy() if self.answers is None else self.answers[len(self.released)]
        self.released.append({name: value.clone() for name, value in made.items()})
        return {name: value.clone() for name, value in made.items()}


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Noise, reservations and coins go through `current`, a transcript."""
    here = SimpleNamespace(current=Transcript())
    add, reserve, apart = GaussianNoise.add, Ledger.reserve, opening.set_rows_apart

    def noisy_sum(self: Any, step: int, values: Any, std: float, purpose: str = "gradient") -> dict[str, Tensor]:
        return here.current.add(step, values, std, purpose, lambda: add(self, step, values, std, purpose))

    def reserved(self: Ledger, purpose: str, first: int, count: int, events: Mapping[int, Event]) -> int:
        here.current.reserved.append((purpose, first, count, events))
        return reserve(self, purpose, first, count, events)

    def set_apart(holdout: Holdout, columns: Any, table: pd.DataFrame, *others: Any, **more: Any) -> Any:
        held = apart(holdout, columns, table, *others, **more)
        here.current.identities = row_identities(table)[~held].view(np.int64)
        return held

    def slots(self: PoissonSampler, seed: Seed, step: int, stratum: int) -> Any:
        """A coin per row that goes by what the row is, so that both tables draw the same rows."""
        rows = here.current.identities[self.strata.members[stratum]]
        return np.flatnonzero(seed.uniforms(self.purpose, step, rows) < self.rates[stratum])

    monkeypatch.setattr(GaussianNoise, "add", noisy_sum)
    monkeypatch.setattr(Ledger, "reserve", reserved)
    monkeypatch.setattr(opening, "set_rows_apart", set_apart)
    monkeypatch.setattr(PoissonSampler, "slots", slots)
    monkeypatch.setattr("veil.training.fitting.time", SimpleNamespace(perf_counter=lambda: 0.0))
    return here


def train(table: pd.DataFrame, place: Path, method: str, schema: str) -> Path:
    """A run on the table, always at the same address; its folder."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    table.to_csv(place / "people.csv", index=False)
    (place / "schema.toml").write_text(schema)
    model = "whitened" if method == "group-gd" else "logistic"
    batch = 3 if method == "dp-is-sgd" else 20
    request = Request.checked(
        data=place / "people.csv",
        target="loan",
        group="sex",
        schema=place / "schema.toml",
        private_preprocessing=0.4,
        method=method,
        model=model,
        settings=Settings.checked(epsilon=60.0, steps=3, batch_size=batch, accountant="rdp", seed=1),
    )
    table_run.train_table(request, out=place / "run")
    return place / "run"


def compare(first: Transcript, second: Transcript, group: int) -> dict[str, float]:
    """How far the sums moved, as a part of what was charged for them; by purpose, the largest."""
    assert first.reserved == second.reserved, "what is charged depends on the row"
    assert [entry[:3] for entry in first.sums] == [entry[:3] for entry in second.sums]
    moved: dict[tuple[str, int], float] = {}
    for (purpose, step, std, mine), (_, _, _, yours) in zip(first.sums, second.sums, strict=True):
        key = ("gradient" if purpose == "statistic" else purpose, step)
        moved[key] = moved.get(key, 0.0) + float(torch.linalg.vector_norm(mine - yours)) ** 2 / std**2
    found: dict[str, float] = {}
    for (purpose, step), squared in moved.items():
        [event] = {
            events[group]
            for name, start, count, events in first.reserved
            if name == purpose and start <= step < start + count
        }
        found[purpose] = max(found.get(purpose, 0.0), squared**0.5 * event.noise_multiplier)  # type: ignore[union-attr]
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


TRAINED, LAST = "trained on", "the only one of its group that is trained on"
CASES = [
    *(("dp-sgd", SCHEMA, which) for which in rows_to_delete()),
    *((name, SCHEMA, which) for name in ("dp-is-sgd", "dpsgd-f", "group-gd") for which in (TRAINED, LAST)),
    *((name, SCHEMA + SIZES, LAST) for name in ("dp-sgd", "asc", "group-gd")),
    ("azb", SCHEMA + SIZES, TRAINED),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all runs are: their files name the table's address."""
    return tmp_path_factory.mktemp("removal") / "here"


@pytest.fixture(scope="module")
def on_whole_table() -> dict[tuple[str, str], tuple[dict[str, bytes], Transcript]]:
    """Runs on the whole table, by method and schema: files and transcript. Each serves every row that is deleted."""
    return {}


@pytest.mark.parametrize(
    ("method", "schema", "which"),
    CASES,
    ids=[f"{name}, sizes {'released' if schema == SCHEMA else 'declared'}, {which}" for name, schema, which in CASES],
)
def test_deleting_a_row_moves_each_release_by_its_charge_and_nothing_else_at_all(
    method: str,
    schema: str,
    which: str,
    recorded: SimpleNamespace,
    place: Path,
    on_whole_table: dict[tuple[str, str], tuple[dict[str, bytes], Transcript]],
) -> None:
    table, row = people(), rows_to_delete()[which]
    if (method, schema) not in on_whole_table:
        made = contents(train(table, place, method, schema))
        on_whole_table[method, schema] = made, recorded.current
    whole, first = on_whole_table[method, schema]
    recorded.current = Transcript(answers=first.released)
    shorter = contents(train(table.drop(index=row), place, method, schema))
    moved = compare(first, recorded.current, ["f", "m", "x"].index(table["sex"][row]))
    assert max(moved.values()) <= 1 + 1e-6, moved
    assert max(moved.values()) > 0.3, "nothing moved: the test shows nothing"
    assert set(moved) >= {"preprocessing", "gradient", "evaluation"}
    assert list(whole) == list(shorter)
    for name, content in whole.items():
        assert content == shorter[name], f"{name} depends on the row"
