"""`veil compare` without public rows: every method is judged on rows that it held out, by figures with noise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.program import Program
from tests.tables.test_repeated_people import visits
from veil.accounting import Certificate
from veil.cli.compare import _advice


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    visits("word").to_csv(tmp_path / "visits.csv", index=False)
    roles = ("--target", "ill", "--group", "sex", "--ignore", "patient", "--epsilon", "2", "--epochs", "2")
    return ("compare", str(tmp_path / "visits.csv"), *roles, "--jobs", "1", "--out", str(tmp_path / "out"))


def test_methods_are_judged_on_rows_that_they_held_out(words: tuple[str, ...], tmp_path: Path, veil: Program) -> None:
    methods = ("--methods", "erm,dp-sgd,noisy-sgd-mgr,auto", "--seeds", "2")
    code, said, _ = veil(*words, *methods)
    assert code == 0
    assert "Best worst group: " in said
    assert "their ε add up" in said
    assert "auto: better than a constant answer in " in said
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert len(found["rows"]) == 8
    assert all(row["metrics"]["released"] for row in found["rows"])
    for label in ("dp-sgd-eps2-seed1", "auto-eps2-seed2"):
        certificate = Certificate.load(tmp_path / "out" / label / "certificate.json")
        assert certificate.epsilon == pytest.approx(2.0, rel=1e-3)
        assert any("their ε add up" in sentence for sentence in certificate.not_covered)
        assert any("the seeds 1, 2, … are public" in sentence for sentence in certificate.not_covered)
        # The seed was given and stands in the folder's record: what verify checks besides holds.
        assert (tmp_path / "out" / label / "evaluation.jsonl").exists()
    configs = {row["method"]: json.loads(Path(row["run"], "run.json").read_text())["config"] for row in found["rows"]}
    assert {name: config["model"] for name, config in configs.items()} == {
        "erm": "mlp",
        "dp-sgd": "mlp",
        "noisy-sgd-mgr": "logistic",
        "auto": "additive",
    }
    before = (tmp_path / "out" / "auto-eps2-seed1" / "ledger.jsonl").read_bytes()
    assert veil(*words, *methods)[0] == 0  # nothing is trained again
    assert (tmp_path / "out" / "auto-eps2-seed1" / "ledger.jsonl").read_bytes() == before
    for other in (("--group", "ill"), ("--epochs", "3"), ("--batch-size", "64"), ("--learning-rate", "0.01")):
        code, _, error = veil(*words, *methods, *other)
        assert code == 2, other
        assert "holds a run with other settings" in error


def test_a_preset_is_compared_by_its_name(words: tuple[str, ...], tmp_path: Path, veil: Program) -> None:
    code, _, error = veil(*words, "--methods", "best,auto", "--seeds", "1")
    assert code == 0, error
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [row["method"] for row in found["rows"]] == ["group-gd", "auto"]
    configs = [json.loads(Path(row["run"], "run.json").read_text())["config"] for row in found["rows"]]
    assert [config["model"] for config in configs] == ["whitened", "additive"]


def test_what_is_wrong_with_a_method_is_said_before_any_row_is_read(
    words: tuple[str, ...], tmp_path: Path, veil: Program
) -> None:
    code, _, error = veil(*words, "--methods", "auto,asc", "--option", "asc.zeta=-1")
    assert code == 2
    assert "asc" in error
    assert not list((tmp_path / "out").glob("*/ledger.jsonl"))


def test_people_are_compared_too(words: tuple[str, ...], tmp_path: Path, veil: Program) -> None:
    given = [word for word in words if word not in ("--ignore", "patient")]
    assert veil(*given, "--person", "patient", "--methods", "dp-sgd,auto", "--seeds", "1")[0] == 0
    certificate = Certificate.load(tmp_path / "out" / "auto-eps2-seed1" / "certificate.json")
    assert certificate.unit == "one person"


def test_three_runs_of_each_method_say_how_sure_the_order_is(
    words: tuple[str, ...], tmp_path: Path, veil: Program
) -> None:
    """A method that hardly trains is worse by more than chance explains; a method is not sure to be above its twin."""
    short = ("--methods", "auto,dp-sgd,asc", "--epochs", "0.05", "--json")
    code, said, error = veil(*words, *short, "--seeds", "3")
    assert code == 0, error
    found = json.loads(said)
    assert {row["name"]: row["best"] for row in found["summary"]} == {"auto": True, "dp-sgd": False, "asc": False}
    unsure = [row["name"] for row in found["summary"] if not row["best"] and row["p_value"] > 0.05]
    assert all(0 <= row["p_value"] <= 1 for row in found["summary"] if not row["best"])
    assert len(unsure) < 2, "no difference was found: the test shows nothing"
    assert ("worse by more than chance explains" in found["advice"]) is not bool(unsure)
    alone = json.loads(veil(*words, *short, "--seeds", "1")[1])
    assert [row["p_value"] for row in alone["summary"]] == [None] * 3
    assert "It may be chance that it is above dp-sgd, asc" in alone["advice"]


@pytest.mark.parametrize(
    ("p_values", "ending"),
    [
        ((0.001, 0.04), "All others are worse by more than chance explains."),
        ((0.001, 0.06), "It may be chance that it is above b: more seeds or rows would tell."),
        ((None, 0.06), "It may be chance that it is above a, b: more seeds or rows would tell."),
    ],
)
def test_the_words_of_the_advice_follow_the_p_values(p_values: tuple[float | None, ...], ending: str) -> None:
    means, names = (0.8, 0.7, 0.6), ("best", "a", "b")
    summary = [
        {"name": name, "private": True, "best": name == "best", "worst_group_accuracy": {"mean": mean}, "p_value": p}
        for name, mean, p in zip(names, means, (None, *p_values), strict=True)
    ]
    assert _advice(summary) == f"Best worst group: best, 80.0 %. {ending}"
