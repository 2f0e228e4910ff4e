"""Runs on Ray are those of local workers, bit by bit, also where an actor or a whole machine dies in the middle."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.tables.partition_cases import folder_at

ROOT = Path(__file__).parents[2]
COMPARED = ("model.safetensors", "ledger.jsonl", "certificate.json")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'veil-dp[ray]'"),
]


def ran(module: str, *arguments: str | Path) -> str:
    """Standard output of a program that ends well."""
    found = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return found.stdout


def assert_same_runs(ours: Path, theirs: Path, count: int) -> None:
    names = sorted(path.relative_to(theirs) for path in theirs.rglob("model.safetensors"))
    assert len(names) == count
    for name in names:
        for file in COMPARED:
            assert (ours / name.with_name(file)).read_bytes() == (theirs / name.with_name(file)).read_bytes()


def test_actors_that_hold_partitions_give_the_same_model_also_when_one_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VEIL_CACHE", str(tmp_path / "cache"))
    ran("tests.tables.ray_partitions", tmp_path)


@pytest.mark.long
def test_a_comparison_on_two_machines_of_which_one_dies_gives_the_same_runs(tmp_path: Path) -> None:
    ran("tests.training.ray_worker", tmp_path / "loky", "loky")
    own = [sys.executable, "-m", "tests.training.ray_worker", tmp_path / "ray", "ray"]
    ran("tests.training.two_nodes", tmp_path / "ray" / "*" / "ledger.jsonl", *own)
    assert_same_runs(tmp_path / "ray", tmp_path / "loky", 4)


@pytest.mark.long
def test_partitions_on_two_machines_of_which_one_dies_give_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VEIL_CACHE", str(tmp_path / "cache"))
    folder = folder_at(tmp_path)
    train = ["train", folder, "--schema", tmp_path / "schema.toml", "--epsilon", "3", "--seed", "5"]
    ran("veil.cli", *train, "--test", tmp_path / "test.csv", "--workers", "1", "--out", tmp_path / "alone")
    both = [sys.executable, "-m", "veil.cli", *train, "--test", tmp_path / "test.csv", "--workers", "2"]
    ran("tests.training.two_nodes", tmp_path / "both" / "ledger.jsonl", *both, "--out", tmp_path / "both")
    assert_same_runs(tmp_path / "both", tmp_path / "alone", 1)


def people_at(path: Path) -> Path:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=800).round(3), "sex": rng.choice(["f", "m"], 800)})
    table["ill"] = np.where(table["a"] + rng.normal(size=800) / 2 > 0, "yes", "no")
    table.to_csv(path, index=False)
    return path


def search_at(place: Path, backend: str) -> list[str | Path]:
    """The words of a search that runs two trials at a time."""
    tune = ["tune", people_at(place / "people.csv"), "--target", "ill", "--group", "sex", "--epsilon", "2"]
    tune += ["--candidate", "auto steps=5", "--candidate", "group-gd steps=5", "--trials", "3", "--seed", "6"]
    return [*tune, "--jobs", "2", "--backend", backend, "--out", place / backend]


def assert_same_search(ours: Path, theirs: Path) -> None:
    for file in (*COMPARED, "selection.jsonl", "evaluation.jsonl"):
        assert (ours / file).read_bytes() == (theirs / file).read_bytes(), file
    assert not (ours / "trials").exists()


def test_a_search_on_ray_publishes_what_local_workers_do_and_nothing_of_its_trials(tmp_path: Path) -> None:
    for backend in ("loky", "ray"):
        ran("veil.cli", *search_at(tmp_path, backend))
    assert_same_search(tmp_path / "ray", tmp_path / "loky")


@pytest.mark.long
def test_a_search_on_two_machines_of_which_one_dies_publishes_the_same(tmp_path: Path) -> None:
    ran("veil.cli", *search_at(tmp_path, "loky"))
    own = [sys.executable, "-m", "veil.cli", *search_at(tmp_path, "ray")]
    ran("tests.training.two_nodes", tmp_path / "ray" / "trials" / "*" / "ledger.jsonl", *own)
    assert_same_search(tmp_path / "ray", tmp_path / "loky")


@pytest.mark.long
def test_an_audit_on_two_machines_of_which_one_dies_finds_the_same(tmp_path: Path) -> None:
    train = ["train", people_at(tmp_path / "people.csv"), "--target", "ill", "--group", "sex", "--epsilon", "2"]
    ran("veil.cli", *train, "--method", "dp-sgd", "--epochs", "2", "--seed", "5", "--out", tmp_path / "loky")
    shutil.copytree(tmp_path / "loky", tmp_path / "ray")
    audit = ["--attack", "lira", "--show-private", "--shadows", "4", "--jobs", "2", "--json", "--backend"]
    ran("veil.cli", "audit", tmp_path / "loky", *audit, "loky")
    own = [sys.executable, "-m", "veil.cli", "audit", tmp_path / "ray", *audit, "ray"]
    told = ran("tests.training.two_nodes", tmp_path / "ray-shadows" / "shadow-*.npz", *own)
    assert json.loads(told), "what Ray says of the dead machine belongs on standard error"
    (ours,), (theirs,) = (json.loads((tmp_path / n / "audit.json").read_text())["audits"] for n in ("ray", "loky"))
    assert [key for key in ours | theirs if ours.get(key) != theirs.get(key)] == ["seconds"]
    assert len(list((tmp_path / "ray-shadows").glob("shadow-*.npz"))) == 4
    for path in (tmp_path / "loky-shadows").glob("shadow-*.npz"):
        with np.load(path) as expected, np.load(tmp_path / "ray-shadows" / path.name) as found:
            assert all(np.array_equal(found[name], expected[name]) for name in expected.files)
