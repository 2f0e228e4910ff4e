"""`veil reproduce`: the list, wrong names, and every experiment from start to end at its small scale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.runner import Spec, read_spec
from experiments.runner.spec import tasks
from tests.experiments.experiment_cases import NAMES, ROOT, SPECS, needs_data
from tests.experiments.test_experiment_specs import GOOD, written
from tests.program import Program


def test_without_a_name_the_experiments_are_listed(tmp_path: Path, veil: Program) -> None:
    written(tmp_path, GOOD, "first")
    written(tmp_path, GOOD, "second")
    code, out, _ = veil("reproduce", "--specs", str(tmp_path))
    assert code == 0
    assert "first" in out
    assert "second" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("frist",), 'did you mean "first"?'),
        (("first", "--seeds", "0"), "seeds is 0"),
        (("first", "--jobs", "0"), "jobs is 0"),
        (("first", "--specs", "nowhere"), 'there is no folder "nowhere"'),
    ],
)
def test_wrong_input_is_one_sentence_and_code_2(
    words: tuple[str, ...], sentence: str, tmp_path: Path, veil: Program
) -> None:
    written(tmp_path, GOOD, "first")
    given = words if "--specs" in words else (*words, "--specs", str(tmp_path))
    code, _, err = veil("reproduce", *given, "--out", str(tmp_path / "out"))
    assert code == 2
    assert sentence in " ".join(err.split())


def test_a_run_that_fails_gives_code_1_and_a_page_all_the_same(tmp_path: Path, veil: Program) -> None:
    text = GOOD.replace('method = "dp-sgd"', 'method = "dp-is-sgd"').replace("batch_size = 10", "batch_size = 100")
    written(tmp_path, text, "first")
    words = ("first", "--specs", str(tmp_path), "--out", str(tmp_path / "out"), "--scale", "small", "--quiet")
    code, out, err = veil("reproduce", *words)
    assert code == 1
    assert "failed: one, seed 1" in err
    assert str(tmp_path / "out" / "first.md") in out.replace("\n", "")


def test_page_only_runs_nothing_and_writes_the_same_page(tmp_path: Path, veil: Program) -> None:
    written(tmp_path, GOOD, "first")
    words = ("reproduce", "first", "--specs", str(tmp_path), "--out", str(tmp_path / "out"), "--scale", "small")
    code, _, err = veil(*words, "--page-only")
    assert code == 2
    assert "run the experiment first" in " ".join(err.split())
    assert veil(*words)[0] == 0
    page, store = (tmp_path / "out" / f"first.{ending}" for ending in ("md", "json"))
    text, kept = page.read_text(encoding="utf-8"), store.read_bytes()
    page.unlink()
    assert veil(*words, "--page-only", "--seeds", "5")[0] == 0
    assert (page.read_text(encoding="utf-8"), store.read_bytes()) == (text, kept)


# Experiments of the common runner differ in their numbers alone, which other tests plan and read: of these CI runs one
# for each kind of data. Studies have code of their own, so that all of them run.
OFTEN = {"asc-adult", "best-ctg", "dp-is-gap", "fdpg-normalise", "ino-cifar10", "ino-follow", "overview-dutch"}


def _now_or_long(name: str) -> object:
    often = name in OFTEN or not isinstance(read_spec(name, SPECS), Spec)
    return name if often else pytest.param(name, marks=pytest.mark.long)


@pytest.mark.slow
@pytest.mark.parametrize("name", [_now_or_long(name) for name in NAMES])
def test_every_experiment_runs_from_start_to_end_at_its_small_scale(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, veil: Program
) -> None:
    needs_data(name)
    monkeypatch.chdir(ROOT)
    code, _, err = veil("reproduce", name, "--scale", "small", "--out", str(tmp_path))
    assert code == 0, err
    page = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
    assert f"veil reproduce {name} --scale small" in page
    assert "Not run" not in page.replace("**Not run:**", "")
    spec = read_spec(name, SPECS)
    if isinstance(spec, Spec):
        stored = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
        assert len(stored["runs"]) == len(tasks(spec, "small"))
