"""`veil compare` without public rows: every method is judged on rows that it held out, by figures with noise."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.program import Program
from tests.tables.test_repeated_people import visits
from veil.accounting import Certificate
from veil.budget_store import BudgetStore, DataSet
from veil.cli.compare import _advice
from veil.plans import Plan
from veil.request import COMPARED
from veil.tables import comparing
from veil.tables.measuring import HeldOutFigures
from veil.training.comparing import SEEDS_PUBLIC
from veil.training.fitting import Measured


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
    assert "erm is not private: no ε limits what all runs together tell about a row." in said
    assert "auto: better than a constant answer in " in said
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert len(found["rows"]) == 8
    assert all(row["metrics"]["released"] for row in found["rows"])
    for label in ("dp-sgd-eps2-seed1", "auto-eps2-seed2"):
        certificate = Certificate.load(tmp_path / "out" / label / "certificate.json")
        assert certificate.epsilon == pytest.approx(2.0, rel=1e-3)
        assert any("their ε add up" in sentence for sentence in certificate.not_covered)
        assert not any("seed" in sentence for sentence in (*certificate.not_covered, *certificate.assumptions))
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
    short = ("--methods", "auto,dp-sgd,asc", "--epochs", "0.05", "--json", "--public-seeds")
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


def record_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def test_seeds_are_secret_and_runs_of_one_number_hold_the_same_rows_out(
    words: tuple[str, ...], tmp_path: Path, veil: Program
) -> None:
    assert veil(*words, "--methods", "dp-sgd,auto", "--seeds", "2")[0] == 0
    folders = {name: tmp_path / "out" / name for name in ("dp-sgd-eps2-seed1", "auto-eps2-seed1", "auto-eps2-seed2")}
    records = {name: record_of(folder) for name, folder in folders.items()}
    keys = [record["config"]["holdout_key"] for record in records.values()]
    assert keys[0] == keys[1] != keys[2]
    assert [record["config"]["repetition"] for record in records.values()] == [1, 1, 2]
    assert not any(record["seed_given"] for record in records.values())
    assert not list((tmp_path / "out").glob("*/seed.key"))
    other = [word if word != str(tmp_path / "out") else str(tmp_path / "other") for word in words]
    assert veil(*other, "--methods", "auto", "--seeds", "1")[0] == 0
    again = record_of(tmp_path / "other" / "auto-eps2-seed1")
    assert again["metrics"] != records["auto-eps2-seed1"]["metrics"]  # the noise is drawn anew
    code, _, error = veil(*words, "--methods", "auto", "--seeds", "2", "--public-seeds")
    assert code == 2
    assert "public_seeds differs" in error


def test_public_seeds_are_named_by_certificate_and_terminal(
    words: tuple[str, ...], tmp_path: Path, veil: Program
) -> None:
    code, said, _ = veil(*words, "--methods", "dp-sgd,auto", "--seeds", "1", "--public-seeds")
    assert code == 0
    assert SEEDS_PUBLIC in said
    certificate = Certificate.load(tmp_path / "out" / "auto-eps2-seed1" / "certificate.json")
    assert SEEDS_PUBLIC in certificate.not_covered


def test_what_all_runs_cost_together_is_on_terminal_report_and_json(
    words: tuple[str, ...], tmp_path: Path, veil: Program
) -> None:
    code, said, error = veil(*words, "--methods", "dp-sgd,auto", "--seeds", "2", "--json")
    assert code == 0, error
    found = json.loads(said)["together"]
    deltas = [Certificate.load(path).delta or 0 for path in (tmp_path / "out").glob("*/certificate.json")]
    assert found["runs"] == 4
    assert found["delta"] == pytest.approx(sum(deltas))
    assert found["added_up"] == pytest.approx(8.0, rel=1e-3)
    # More than two runs, less than four: both methods are nearly Gaussian, where ε grows like the square root.
    assert 3.5 < found["epsilon"] < 6.0
    sentence = f"All 4 runs together cost ε = {found['epsilon']:.3g}"
    assert sentence in veil(*words, "--methods", "dp-sgd,auto", "--seeds", "2")[1]
    assert sentence in (tmp_path / "out" / "report.html").read_text()
    assert json.loads((tmp_path / "out" / "report.json").read_text())["together"] == found
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["together"] == found


def test_runs_without_privacy_are_no_part_of_the_usual_comparison_of_private_rows(
    words: tuple[str, ...], tmp_path: Path, veil: Program
) -> None:
    assert veil(*words, "--seeds", "1", "--epochs", "0.1")[0] == 0
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [row["method"] for row in found["rows"]] == list(COMPARED)
    assert found["together"]["runs"] == 4


class Stopped(BaseException):
    """Like a power cut: nothing may catch it."""


def store_of(tmp_path: Path, epsilon: float) -> tuple[BudgetStore, tuple[str, ...]]:
    store = BudgetStore.create(tmp_path / "budget.sqlite")
    store.add_dataset(DataSet("visits", groups=("sex",)), epsilon=epsilon, delta=0.01)
    return store, ("--dataset", "visits", "--store", str(tmp_path / "budget.sqlite"))


def test_the_whole_comparison_is_charged_before_its_first_run_and_once(
    words: tuple[str, ...], tmp_path: Path, veil: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, charged = store_of(tmp_path, 12.5)
    methods = ("--methods", "dp-sgd,auto", "--seeds", "2")
    left = []

    def stopping(*args: Any, **more: Any) -> Any:
        left.append(store.balances("visits")[0].left_epsilon)
        raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(comparing, "train_table", stopping)
        with pytest.raises(Stopped):
            veil(*words, *methods, *charged)
    assert left[0] == pytest.approx(12.5 - 8.0, abs=0.01)  # four runs of ε = 2
    assert [entry.state for entry in store.history("visits")] == ["running"]
    assert veil(*words, *methods, *charged)[0] == 0
    assert store.balances("visits")[0].left_epsilon == left[0]
    [entry] = store.history("visits")
    assert (entry.state, entry.method) == ("finished", "dp-sgd, auto")
    assert "bounds and categories taken from the rows" in entry.note
    # The same again is free; one more method is charged by itself; more than is left is rejected as a whole.
    assert veil(*words, *methods, *charged)[0] == 0
    assert veil(*words, "--methods", "dp-sgd,auto,group-gd", "--seeds", "2", *charged)[0] == 0
    assert store.balances("visits")[0].left_epsilon == pytest.approx(0.5, abs=0.01)
    assert [entry.state for entry in store.history("visits")] == ["finished"] * 2
    code, _, error = veil(*words, "--methods", "dp-sgd,auto,group-gd,auto-s", "--seeds", "2", *charged)
    assert code == 2
    assert "visits" in error
    assert not (tmp_path / "out" / "auto-s-eps2-seed1").exists()


def test_a_comparison_that_was_refused_pays_for_no_smaller_one(
    words: tuple[str, ...], tmp_path: Path, veil: Program
) -> None:
    store, charged = store_of(tmp_path, 5.0)
    assert veil(*words, "--methods", "auto", "--seeds", "3", *charged)[0] == 2  # three runs of ε = 2
    assert store.balances("visits")[0].left_epsilon == 5.0
    assert veil(*words, "--methods", "auto", "--seeds", "2", *charged)[0] == 0
    assert store.balances("visits")[0].left_epsilon == pytest.approx(1.0, abs=0.01)
    # A part of what was charged would leave the rest of the charge to be given back.
    code, _, error = veil(*words, "--methods", "auto", "--seeds", "1", *charged)
    assert code == 2
    assert "ask for these too" in error


def test_a_run_that_was_paid_for_and_deleted_is_not_made_again_for_free(
    words: tuple[str, ...], tmp_path: Path, veil: Program
) -> None:
    _, charged = store_of(tmp_path, 5.0)
    assert veil(*words, "--methods", "auto", "--seeds", "2", *charged)[0] == 0
    shutil.rmtree(tmp_path / "out" / "auto-eps2-seed2")
    code, _, error = veil(*words, "--methods", "auto", "--seeds", "2", *charged)
    assert code == 2
    assert "auto-eps2-seed2 was begun and is not in" in error
    assert not (tmp_path / "out" / "auto-eps2-seed2").exists()


def test_a_method_without_privacy_is_in_no_budget(words: tuple[str, ...], tmp_path: Path, veil: Program) -> None:
    store, charged = store_of(tmp_path, 100.0)
    code, _, error = veil(*words, "--methods", "erm,auto", "--seeds", "1", *charged)
    assert code == 2
    assert "erm is not private" in error
    assert store.history("visits") == []
    assert not list((tmp_path / "out").glob("*/run.json"))


def test_a_comparison_with_public_rows_cannot_be_charged(words: tuple[str, ...], tmp_path: Path, veil: Program) -> None:
    visits("word", seed=1).to_csv(tmp_path / "public.csv", index=False)
    code, _, error = veil(*words, "--test", str(tmp_path / "public.csv"), *store_of(tmp_path, 9.0)[1])
    assert code == 2
    assert "omit --test" in error


def test_a_run_that_was_interrupted_anywhere_is_resumed_with_its_own_seed(
    words: tuple[str, ...], tmp_path: Path, veil: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` has no checkpoint: what says that it is under way is its seed."""

    def stopping(self: HeldOutFigures, model: nn.Module, plan: Plan) -> Measured:
        raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(HeldOutFigures, "__call__", stopping)
        with pytest.raises(Stopped):
            veil(*words, "--methods", "auto", "--seeds", "1")
    folder = tmp_path / "out" / "auto-eps2-seed1"
    seed, ledger = (folder / "seed.key").read_bytes(), (folder / "ledger.jsonl").read_bytes()
    assert veil(*words, "--methods", "auto", "--seeds", "1")[0] == 0
    assert (folder / "ledger.jsonl").read_bytes() == ledger
    assert json.loads(seed)["given"] is False
    assert not (folder / "seed.key").exists()
