"""Rows in partitions: the model and the certificate of the whole table, whoever holds the files and whoever dies."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.tables.partition_cases import declare_sizes, folder_at, request_for, table
from veil.errors import InputError
from veil.foundation import holders
from veil.foundation.holders import Answer, HeldByWorkers, Question, Worker
from veil.foundation.randomness import Seed
from veil.noise import GaussianNoise
from veil.problem.sums import Part, sums_of
from veil.tables import mapped, opening, partitions
from veil.tables.mapped import Converted
from veil.tables.partitions import partitioned_problem
from veil.tables.preparing import columns_of, plain_encoding
from veil.tables.splitting import Holdout
from veil.tables.table_run import train_table
from veil.training import Callback, Run, StepReport


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VEIL_CACHE", str(tmp_path / "cache"))
    return folder_at(tmp_path)


@pytest.fixture
def in_partitions(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it to have this small table taken for one that does not fit into memory."""
    return lambda: monkeypatch.setattr(mapped, "LARGE", 10)


def weights_of(run: Run) -> dict[str, torch.Tensor]:
    return {name: value.double() for name, value in run.model.state_dict().items()}


def assert_same(ours: Run, theirs: Run, tolerance: float) -> None:
    for name, value in weights_of(theirs).items():
        assert torch.allclose(weights_of(ours)[name], value, rtol=0, atol=tolerance), name
    assert ours.certificate.as_json() == theirs.certificate.as_json()


@pytest.mark.parametrize("method", ["auto", "group-gd"])
def test_the_model_and_the_certificate_are_those_of_the_whole_table(
    method: str, folder: Path, in_partitions: Callable[[], None]
) -> None:
    whole = train_table(request_for(folder, method=method))
    in_partitions()
    apart = train_table(request_for(folder, method=method))
    assert apart.plan.facts == whole.plan.facts
    assert_same(apart, whole, 1e-6)


@pytest.mark.parametrize("declared", [False, True])
def test_rows_are_held_out_as_in_the_whole_table(
    declared: bool, folder: Path, in_partitions: Callable[[], None]
) -> None:
    if declared:
        declare_sizes(folder)
    whole = train_table(request_for(folder, test=None, holdout=0.2))
    in_partitions()
    apart = train_table(request_for(folder, test=None, holdout=0.2))
    assert_same(apart, whole, 1e-6)
    assert apart.metrics is not None
    assert whole.metrics is not None
    assert apart.metrics.as_json() == whole.metrics.as_json()


def opened(folder: Path, **more: Any) -> Converted:
    request = request_for(folder)
    encoding = plain_encoding(request, columns_of(request), table())
    return partitioned_problem(folder, encoding, "y", ["sex"], **more)


def rows_by_class(part: Part) -> torch.Tensor:
    return torch.bincount(part.targets, minlength=2).double()


def test_no_part_adds_noise_and_every_row_is_counted_once(folder: Path) -> None:
    found = sums_of(opened(folder).train).total(rows_by_class)
    assert found.tolist() == table()["y"].value_counts().sort_index().tolist()


def test_noise_is_drawn_once_for_all_parts(
    folder: Path, in_partitions: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[str, int, float]] = []
    add = GaussianNoise.add

    def noted(noise: GaussianNoise, step: int, values: Any, std: float, purpose: str = "gradient") -> Any:
        drawn.append((purpose, step, std))
        return add(noise, step, values, std, purpose)

    monkeypatch.setattr(GaussianNoise, "add", noted)
    train_table(request_for(folder))
    whole, drawn[:] = list(drawn), []
    in_partitions()
    train_table(request_for(folder))
    assert drawn == whole


def test_a_removed_row_moves_the_sum_of_its_own_part_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "less").mkdir()
    less = folder_at(tmp_path / "less")
    rows = table().iloc[1000:1100]
    rows.drop(index=1042).to_parquet(less / "part-1.parquet", index=False)
    given = [opened(place).train.elsewhere for place in (folder, less)]
    asked = [one.holders.ask(partitions.Summed(rows_by_class), one.given) for one in given]  # type: ignore[union-attr]
    moved = [float((a - b).abs().sum()) for a, b in zip(*asked, strict=True)]
    assert moved == [0.0, 1.0, 0.0, 0.0]


def test_another_partition_is_another_run(folder: Path) -> None:
    def identity() -> dict[str, str]:
        rows = opened(folder).train.elsewhere
        assert rows is not None
        return rows.identity(b"key")

    before = identity()
    assert identity() == before
    rows = table().iloc[1000:1100].copy()
    rows.loc[1042, "a"] += 0.25
    rows.to_parquet(folder / "part-1.parquet", index=False)
    changed = identity()
    assert {name for name in before if changed[name] != before[name]} == {"rows"}


class Killed(Callback):
    def on_step(self, report: StepReport) -> None:
        if report.step == 5:
            raise KeyboardInterrupt


def test_a_resumed_run_does_not_take_other_partitions(
    folder: Path, tmp_path: Path, in_partitions: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_partitions()

    for out in ("run", "same"):
        with pytest.raises(KeyboardInterrupt):
            train_table(request_for(folder), out=tmp_path / out, callbacks=[Killed()])
    faulty(monkeypatch, lambda *_: "answers")
    resumed = train_table(request_for(folder, workers=2), out=tmp_path / "same", resume=True)
    assert_same(resumed, train_table(request_for(folder)), 0.0)
    rows = table().iloc[1000:1100].copy()
    rows.loc[1042, "a"] += 0.25
    rows.to_parquet(folder / "part-1.parquet", index=False)
    with pytest.raises(InputError, match="Cannot resume: the rows differ"):
        train_table(request_for(folder), out=tmp_path / "run", resume=True)


def test_a_file_that_changes_in_the_middle_is_noticed(folder: Path) -> None:
    rows = opened(folder).train.elsewhere
    assert isinstance(rows, partitions.PartitionedRows)
    rows.holders.close()
    table().iloc[1000:1099].to_parquet(folder / "part-1.parquet", index=False)
    with pytest.raises(InputError, match=r"part-1.parquet was changed while it was in use"):
        rows.total(rows_by_class)


class Faulty:
    """Workers in this process. `fate` says of each question to a worker: answer, die, answer twice, or speak late."""

    def __init__(self, makers: Sequence[holders.Maker], fate: Callable[[int, int], str]) -> None:
        self._makers, self._fate = makers, fate
        self.hired = 0
        self._said: dict[int, tuple[list[Answer] | None, list[Answer]]] = {}
        self._before: list[Answer] = []

    def hire(self, again: bool = False) -> tuple[int, Worker]:
        self.hired += 1
        return self.hired - 1, Worker(self._makers)

    def ask(self, worker: tuple[int, Worker], asked: int, parts: Sequence[int], question: Question, given: Any) -> int:
        number, own = worker
        answers = own.answer(asked, parts, question, given)
        fate = self._fate(number, asked)
        said = {"dies": None, "twice": [*answers, *answers], "late": [*self._before, *answers]}.get(fate, answers)
        self._said[len(self._said)] = (said, answers)
        return len(self._said) - 1

    def heard(self, tickets: Sequence[int]) -> tuple[int, list[Answer] | None]:
        ticket = max(tickets)
        said, answers = self._said[ticket]
        # What a dead worker still says comes with what the next one says.
        self._before += answers
        return ticket, said

    def close(self) -> None:
        """Nothing to close."""


def faulty(monkeypatch: pytest.MonkeyPatch, fate: Callable[[int, int], str], workers: int = 2) -> list[Faulty]:
    made: list[Faulty] = []

    def held(makers: Sequence[holders.Maker], asked_for: int) -> HeldByWorkers:
        made.append(Faulty(makers, fate))
        return HeldByWorkers(made[-1], len(makers), asked_for, 0.25)

    monkeypatch.setattr(partitions, "held_by_actors", held)
    return made


@pytest.mark.parametrize("fate", ["answers", "twice", "late", "dies"])
def test_whoever_answers_twice_or_late_or_dies_the_model_is_the_same_bit_by_bit(
    fate: str, folder: Path, in_partitions: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = faulty(monkeypatch, lambda worker, asked: fate if asked % 3 == 0 and worker % 2 == 0 else "answers")
    apart = train_table(request_for(folder, workers=2))
    in_partitions()
    assert_same(apart, train_table(request_for(folder)), 0.0)
    if fate == "dies":
        assert made[0].hired > 2, "those who died were replaced"


def test_a_tally_that_counts_every_answer_is_caught(
    folder: Path, in_partitions: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hears_all(tally: holders.Tally, answer: Answer) -> None:
        old = tally.answers.get(answer.part)
        both = (
            isinstance(old, torch.Tensor) and isinstance(answer.value, torch.Tensor) and old.shape == answer.value.shape
        )
        tally.answers[answer.part] = old + answer.value if both else answer.value

    monkeypatch.setattr(holders.Tally, "hear", hears_all)
    faulty(monkeypatch, lambda worker, asked: "twice")
    apart = train_table(request_for(folder, workers=2))
    in_partitions()
    with pytest.raises(AssertionError):
        assert_same(apart, train_table(request_for(folder)), 1e-6)


def test_workers_that_always_die_end_the_run_with_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty(monkeypatch, lambda *_: "dies")
    with pytest.raises(InputError, match="workers died repeatedly"):
        opened(folder, workers=2)


def test_what_needs_single_rows_is_refused(folder: Path) -> None:
    for more, said in (
        ({"method": "dp-sgd"}, "auto and group-gd, not dp-sgd"),
        ({"person": "a"}, "rows of a person may lie in several files"),
        ({"show_private": True}, "--show-private reads single rows"),
        ({"workers": 0}, "workers is 0"),
        ({"data": folder / "part-0.parquet"}, "is a file: give a folder"),
    ):
        with pytest.raises(InputError, match=said):
            train_table(request_for(folder, **({"workers": 2} | more)))
    problem = opened(folder).train
    with pytest.raises(InputError, match="only sums over them"):
        problem.batch(np.arange(3))


def test_replaced_rows_are_held_out_by_their_place_in_the_whole_table(folder: Path) -> None:
    from veil.accounting import Relation

    holdout = Holdout(0.3, Seed.from_int(3))
    found = opened(folder, holdout=holdout, relation=Relation.REPLACE_ONE)
    whole = table()
    apart = holdout.sparing(np.arange(len(whole), dtype=np.uint64), whole["sex"])
    assert found.held_out is not None
    assert len(found.held_out) == apart.sum()
    trained = sums_of(found.train).total(rows_by_class)
    assert trained.tolist() == whole["y"][~apart].value_counts().sort_index().tolist()


def test_a_group_and_a_class_that_some_files_lack_keep_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VEIL_CACHE", str(tmp_path / "cache"))
    folder = folder_at(tmp_path)
    pd.DataFrame(table().query("sex == 'm' and y == 'yes'")).to_parquet(folder / "part-0.parquet", index=False)
    problem = opened(folder).train
    sizes = sums_of(problem).total(lambda part: torch.bincount(part.cells, minlength=2).double())
    assert tuple(int(size) for size in sizes) == problem.public.group_sizes
    assert problem.public.groups == ("f", "m")
    assert json.loads(json.dumps(problem.public.classes)) == ["no", "yes"]
    assert replace(problem.public, sizes="declared").rows == problem.public.rows


def test_the_code_on_the_page_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "distributed.md"
    place = folder.parent
    for file in folder.iterdir():
        pd.read_parquet(file).rename(columns={"y": "income"}).to_parquet(file, index=False)
    folder.rename(place / "people")
    schema = (place / "schema.toml").read_text(encoding="utf-8").replace("columns.y", "columns.income")
    (place / "schema.toml").write_text(schema, encoding="utf-8")
    monkeypatch.chdir(place)
    monkeypatch.setattr(partitions, "held_by_actors", lambda makers, _: holders.HeldHere(makers))
    space: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block, "distributed.md", "exec"), space)
    assert space["run"].certificate.epsilon == pytest.approx(1.0, abs=0.01)


def test_files_of_one_name_size_and_age_in_several_folders_are_each_counted_once(tmp_path: Path, folder: Path) -> None:
    """As `part-0.parquet` in a folder for every year: kept by name, one would count twice and the other never."""
    rows, request = table(), request_for(folder)
    numbers = rows.select_dtypes("float").columns
    assert len(numbers) > 0
    for year, sign in (("year=2023", 1.0), ("year=2024", -1.0)):
        part = tmp_path / "years" / year / "part-0.parquet"
        part.parent.mkdir(parents=True)
        turned = pa.Table.from_pandas(
            rows.assign(**{name: sign * rows[name] for name in numbers}), preserve_index=False
        )
        pq.write_table(turned, part, compression="none", use_dictionary=False, write_statistics=False)
        os.utime(part, ns=(1_700_000_000 * 10**9,) * 2)
    assert len({part.stat().st_size for part in (tmp_path / "years").rglob("*.parquet")}) == 1
    encoding = plain_encoding(request, columns_of(request), rows)

    def summed(where: Path) -> torch.Tensor:
        return sums_of(partitioned_problem(where, encoding, "y", ["sex"]).train).total(lambda part: part.inputs.sum(0))

    first, both = summed(tmp_path / "years" / "year=2023"), summed(tmp_path / "years")
    assert not torch.allclose(both, 2 * first)


def test_the_share_held_out_of_a_table_with_declared_sizes_does_not_follow_its_rows(
    folder: Path, in_partitions: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a row that goes would move others between training and measuring."""
    declare_sizes(folder)
    in_partitions()
    monkeypatch.setattr(opening, "MEASURED_ROWS", 10)

    def counted(_: object) -> int:
        raise AssertionError("the number of rows is not public where sizes are declared")

    monkeypatch.setattr(opening, "table_rows", counted)
    assert train_table(request_for(folder, test=None)).metrics is not None
