"""`veil tune`: one certificate for the whole search, nothing of the other trials stays, a killed search goes on."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from torch import nn

from tests.program import Program
from veil.accounting import Certificate, Ledger, Pld
from veil.accounting.verify import verify
from veil.budget_store import BudgetStore
from veil.errors import InputError
from veil.gradients import GradientError
from veil.plans.plan import UNTRIED
from veil.request import TuneRequest
from veil.tables import tuning
from veil.training import fitting
from veil.training.run_folder import CHOOSING, EVALUATION, LEDGER

FEW = ["auto", "group-gd steps=10 weight=0.5"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    rows = 1500
    sex = rng.choice(["f", "m"], rows, p=[0.3, 0.7])
    x = rng.normal(size=(rows, 3))
    label = (x[:, 0] + np.where(sex == "f", -1, 1) * x[:, 1] / 2 + rng.normal(size=rows) / 2 > 0).astype(int)
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "sex": sex, "ill": label})
    path = tmp_path_factory.mktemp("tune") / "people.csv"
    frame.round(4).to_csv(path, index=False)
    return path


def asked(table: Path, **more: object) -> TuneRequest:
    settings = {"epsilon": 2.0, "seed": 7} | dict(more.pop("settings", {}))  # type: ignore[call-overload]
    given = {"data": table, "target": "ill", "group": ("sex",), "candidate": FEW, "trials": 2.0} | more
    return TuneRequest.checked(**given, settings=settings)


@pytest.fixture(scope="module")
def searched(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search of several trials, finished."""
    out = tmp_path_factory.mktemp("searched") / "run"
    request = asked(table)
    search = tuning.plan_of_search(request)
    seed = next(s for s in range(99) if search.trials.draw(tuning.Seed.from_int(s)) == 3)  # type: ignore[union-attr]
    tuning.tune(asked(table, settings={"seed": seed}), out)
    (out / "seed.txt").write_text(str(seed))
    return out


def test_a_search_has_one_certificate_that_a_second_accountant_confirms(searched: Path) -> None:
    certificate = Certificate.load(searched / "certificate.json")
    assert certificate.method == "tune"
    assert certificate.epsilon == pytest.approx(2.0, rel=2e-3)
    assert certificate.epsilon <= 2.0 * (1 + 1e-6)
    verdict = verify(searched / "certificate.json")
    assert verdict.holds, (verdict.faults, verdict.opinions)
    assert all("selection" in opinion.remark for opinion in verdict.opinions)
    ledger = Ledger.open(searched / LEDGER)
    assert [entry["purpose"] for entry in ledger.entries] == ["search"]
    for name in (CHOOSING, EVALUATION):  # rows to choose by and to measure on pay for themselves, no more than ε
        held = Ledger.open(searched / name)
        assert all(a.rule.guarantee(held.terms.delta, Pld()) <= 2.0 * (1 + 1e-6) for a in held.terms.accounts)
        assert len(held.entries) == 1


def test_a_certificate_that_claims_less_than_the_trials_cost_is_refuted(searched: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(searched, folder)
    record = json.loads((folder / "certificate.json").read_text())
    share = record["facts"]["search"]["trial_epsilon"]
    record |= {"epsilon": share, "by_group": dict.fromkeys(record["by_group"], share)}
    (folder / "certificate.json").write_text(json.dumps(record))
    verdict = verify(folder / "certificate.json")
    assert not verdict.holds
    assert not any(opinion.agrees for opinion in verdict.opinions)


def test_nothing_of_the_other_trials_stays(searched: Path) -> None:
    assert not (searched / tuning.TRIALS).exists()
    assert not (searched / "seed.key").exists()
    texts = "\n".join(
        path.read_text(encoding="utf-8")
        for path in searched.iterdir()
        if path.suffix in (".json", ".jsonl", ".md", ".html")
    )
    assert "000001" not in texts
    assert len({path.stat().st_mtime for path in searched.iterdir() if path.name != "seed.txt"}) == 1
    assert not re.search(r"\b3 trials", texts)
    record = json.loads((searched / "run.json").read_text())
    assert "Trials" not in record["findings"]
    assert any("How many trials there were" in sentence for sentence in record["certificate"]["assumptions"])
    assert any("How long the search took" in sentence for sentence in record["certificate"]["not_covered"])
    assert "if it was based on these rows" in " ".join(record["certificate"]["not_covered"])


def test_a_killed_search_continues_with_the_same_trials_and_ends_alike(
    table: Path, searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = asked(table, settings={"seed": int((searched / "seed.txt").read_text())})
    real, made = tuning.Trials.run, []

    def killed(self: tuning.Trials, number: int, choice: int) -> float:
        made.append((number, choice))
        if len(made) == 2:
            raise KeyboardInterrupt
        return real(self, number, choice)

    with monkeypatch.context() as patch:
        patch.setattr(tuning.Trials, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            tuning.tune(request, tmp_path / "run", workers=tuning.Workers(1, "threading"))
    assert len(Ledger.open(tmp_path / "run" / LEDGER).entries) == 1  # charged as a whole, whatever was done
    with pytest.raises(InputError, match="--resume"):
        tuning.tune(request, tmp_path / "run")
    other = request.model_copy(update={"trials": 4.0})
    with pytest.raises(InputError, match="trials"):
        tuning.tune(other, tmp_path / "run", resume=True)
    tuning.tune(request, tmp_path / "run", resume=True)
    for name in ("model.safetensors", LEDGER, CHOOSING, EVALUATION):
        assert (tmp_path / "run" / name).read_bytes() == (searched / name).read_bytes(), name


def test_parts_of_the_rows_are_disjoint_and_no_row_moves_when_another_goes(table: Path, tmp_path: Path) -> None:
    request = asked(table)
    parts = tuning._open(request, tuning.Seed.from_int(1), None)
    assert not (parts.choosing.present & parts.measuring.present).any()
    assert 90 < parts.choosing.present.sum() < 210
    assert parts.choosing.present.sum() + parts.measuring.present.sum() + len(parts.opened.problem.targets) == 1500
    frame = pd.read_csv(table)
    frame.drop(index=frame.index[700]).to_csv(tmp_path / "fewer.csv", index=False)
    fewer = tuning._open(request.model_copy(update={"data": tmp_path / "fewer.csv"}), tuning.Seed.from_int(1), None)
    counts = [
        (len(p.opened.problem.targets), int(p.choosing.present.sum()), int(p.measuring.present.sum()))
        for p in (parts, fewer)
    ]
    assert sorted(a - b for a, b in zip(*counts, strict=True)) == [0, 0, 1]


def test_the_command_shows_what_a_search_costs_before_it_reads_a_row(
    table: Path, tmp_path: Path, veil: Program
) -> None:
    words = ("tune", str(table), "--target", "ill", "--group", "sex", "--epsilon", "1", "--out", str(tmp_path / "run"))
    code, said, _ = veil(*words, "--dry-run", "--json")
    found = json.loads(said)
    assert code == 0
    assert found["epsilon"] == 1
    assert 0.8 < found["trial_epsilon"] < 0.95
    assert found["expected_trials"] == pytest.approx(1.5)
    assert not (tmp_path / "run").exists()
    for more, reason in (
        (("--trials", "1"), "use veil train"),
        (("--sampler", "optuna"), "add --charge composition"),
        (("--candidate", "no-such-method"), "unknown method"),
        (("--candidate", "auto weight=0"), "weight is 0"),
        (("--candidate", "auto", "--candidate", "auto weight=2"), "given twice"),
        (("--charge", "composition", "--trials", "2.5"), "whole number"),
        (("--holdout", "0"), "rows to choose by"),
    ):
        code, _, error = veil(*words, *more)
        assert (code, reason in error) == (2, True), error
        assert not (tmp_path / "run").exists()


def test_trials_that_are_all_charged_are_all_shown(table: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    request = asked(table, charge="composition", sampler="optuna", trials=2)
    run = tuning.tune(request, tmp_path / "run")
    assert [trial["trial"] for trial in run.findings["Trials"]] == [1, 2]
    assert len(Ledger.open(tmp_path / "run" / LEDGER).entries) == 2
    assert run.certificate.epsilon <= 2.0 * (1 + 1e-6)
    assert run.certificate.epsilon == pytest.approx(2.0, rel=0.01)
    assert verify(tmp_path / "run" / "certificate.json").holds
    by_selection = tuning.plan_of_search(asked(table, trials=2.0)).share.epsilon
    assert run.plan.details["search"]["trial_epsilon"] < by_selection


def test_a_data_set_is_charged_once_for_the_whole_search(table: Path, tmp_path: Path, veil: Program) -> None:
    store = str(tmp_path / "store.sqlite")
    assert veil("budget", "create", "people", "--epsilon", "2.5", "--delta", "0.01", "--store", store)[0] == 0
    words = ("tune", str(table), "--target", "ill", "--group", "sex", "--epsilon", "2", "--candidate", "auto steps=5")
    words = (*words, "--candidate", "auto steps=8", "--trials", "1.5", "--dataset", "people", "--store", store)
    code, _, error = veil(*words, "--out", str(tmp_path / "one"))
    assert code == 0, error
    code, _, error = veil(*words, "--out", str(tmp_path / "two"))
    assert code == 2
    assert "budget" in error
    assert not (tmp_path / "two" / LEDGER).exists()


def test_a_search_says_nothing_of_several_rows_of_a_person(searched: Path) -> None:
    """Some of them may choose and measure, at costs that the trials' rule does not have."""
    assert Certificate.load(searched / "certificate.json").by_rows == {}


def test_trials_that_lie_there_already_are_not_taken_and_not_deleted(table: Path, tmp_path: Path) -> None:
    mine = tmp_path / "run" / "trials" / "000000"
    mine.mkdir(parents=True)
    with pytest.raises(InputError, match="choose another --out"):
        tuning.tune(asked(table), tmp_path / "run")
    assert mine.exists()


def test_public_rows_choose_or_measure_never_both(table: Path, tmp_path: Path) -> None:
    public = pd.read_csv(table).head(300)
    public.to_csv(tmp_path / "public.csv", index=False)
    run = tuning.tune(asked(table, test=tmp_path / "public.csv", trials=1.1), tmp_path / "run")
    assert run.metrics is not None
    assert sum(score.n for score in run.metrics.by_group.values()) == 150


def test_a_first_candidate_of_another_relation_is_rejected_before_anything_is_charged(
    table: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="relation"):
        tuning.tune(asked(table, candidate=["erm", "auto"]), tmp_path / "run")
    assert not (tmp_path / "run" / LEDGER).exists()


def test_the_ledger_of_the_rows_chosen_by_is_missed_when_it_is_gone(searched: Path, tmp_path: Path) -> None:
    shutil.copytree(searched, tmp_path / "copy")
    (tmp_path / "copy" / CHOOSING).unlink()
    faults = verify(tmp_path / "copy" / "certificate.json").faults
    assert any(fault.startswith(f"{CHOOSING} is missing") for fault in faults), faults


def test_a_model_that_mixes_rows_is_found_before_the_data_set_is_charged(
    table: Path, tmp_path: Path, veil: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mixing(self: tuning.Parts, request: object, seed: object) -> nn.Module:
        inputs = self.opened.problem.public.input_shape[0]
        return nn.Sequential(nn.Linear(inputs, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    store = str(tmp_path / "store.sqlite")
    assert veil("budget", "create", "people", "--epsilon", "2.5", "--delta", "0.01", "--store", store)[0] == 0
    monkeypatch.setattr(tuning.Parts, "model", mixing)
    request = asked(table, candidate=["dp-sgd steps=2"], dataset="people", store=store)
    with pytest.raises(GradientError, match="BatchNorm"):
        tuning.tune(request, tmp_path / "run")
    assert not (tmp_path / "run" / LEDGER).exists()
    assert BudgetStore.open(store).history("people") == []


def test_what_could_not_be_tested_of_a_candidate_is_said(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "check_rows_apart", lambda *_: [UNTRIED])
    run = tuning.tune(asked(table, candidate=["auto steps=5"], trials=1.1), tmp_path / "run")
    assert UNTRIED in run.certificate.not_covered


def test_a_charged_search_keeps_no_time_of_its_start(table: Path, tmp_path: Path, veil: Program) -> None:
    store = str(tmp_path / "store.sqlite")
    assert veil("budget", "create", "people", "--epsilon", "2.5", "--delta", "0.01", "--store", store)[0] == 0
    request = asked(table, candidate=["auto steps=5"], trials=1.1, dataset="people", store=store)
    tuning.tune(request, tmp_path / "run")
    for path in (tmp_path / "run").iterdir():
        times = re.findall(rb"\d\d:\d\d:\d\d", path.read_bytes()) if path.suffix in (".json", ".toml", ".md") else []
        assert len(times) == (1 if path.name == "budget.json" else 0), path.name  # of the end


def test_a_search_does_not_continue_with_other_public_rows(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public, rows = tmp_path / "public.csv", pd.read_csv(table).head(200)
    rows.to_csv(public, index=False)
    request = asked(table, candidate=["auto steps=5"], test=public, trials=1.1)

    def killed(self: tuning.Trials, number: int, choice: int) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tuning.Trials, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            tuning.tune(request, tmp_path / "run", workers=tuning.Workers(1, "threading"))
    rows.assign(a=rows["a"] + 1).to_csv(public, index=False)
    with pytest.raises(InputError, match="the public rows differ"):
        tuning.tune(request, tmp_path / "run", resume=True)


def test_an_error_of_a_trial_does_not_say_which_one_it_is(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: tuning.Trials, number: int, choice: int) -> float:
        raise OSError(28, "No space left on device", str(self.place(number) / "ledger.jsonl"))

    monkeypatch.setattr(tuning.Trials, "run", full)
    with pytest.raises(InputError, match="No space left on device: its folder") as error:
        tuning.tune(asked(table, trials=1.1), tmp_path / "run", workers=tuning.Workers(1, "threading"))
    assert "00000" not in str(error.value)
