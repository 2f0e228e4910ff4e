"""`veil verify`: whatever is changed in a run's certificate or in one of its ledgers is found and named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from tests.cli.people_cases import TRAIN, write_people
from tests.program import Program
from veil.accounting import Gaussian, Ledger, Repeated, TokenBucket
from veil.accounting.ledger import Account, Terms
from veil.accounting.model_digest import hashes_in
from veil.accounting.verify import verify
from veil.cli.app import app


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all three ledgers: preprocessing, training, evaluation."""
    folder = tmp_path_factory.mktemp("verified")
    table = write_people(folder)
    words = ["train", str(table), *TRAIN, "--method", "dp-sgd", "--model", "logistic", "--quiet"]
    outcome = CliRunner().invoke(app, [*words, "--private-preprocessing", "0.2", "--out", str(folder / "run")])
    assert outcome.exit_code == 0, outcome.output
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def change(run: Path, **fields: Any) -> None:
    path = run / "certificate.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def faults(run: Path) -> str:
    return "; ".join(verify(run / "certificate.json").faults)


def test_an_untouched_run_holds(run: Path) -> None:
    assert (run / "preprocessing.jsonl").exists()
    assert (run / "evaluation.jsonl").exists()
    assert faults(run) == ""


def test_verifying_never_cuts_a_line_that_is_being_written(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may begin its next line right after the ledger was read: that line is not ours to drop."""
    ledger, read = run / "ledger.jsonl", Path.read_bytes
    whole = ledger.read_bytes()

    def writing(path: Path) -> bytes:
        content = read(path)
        if path == ledger and content == whole:
            path.write_bytes(whole + b'{"record":')
        return content

    monkeypatch.setattr(Path, "read_bytes", writing)
    assert faults(run) == ""
    assert read(ledger) == whole + b'{"record":'


CHANGED: dict[str, Any] = {
    "method": "asc",
    "accountant": "rdp",
    "by_owner": {"everybody": 0.5},
    "budgets": {"everybody": 9.0},
    "spent_by_group": {"f": 0.1, "m": 0.1},
    "statement": "Nobody can learn anything.",
    "facts": {"method": "dp-sgd"},
    "assumptions": [],
    "not_covered": [],
}


@pytest.mark.parametrize("field", CHANGED)
def test_a_changed_field_of_the_certificate_is_named(run: Path, field: str) -> None:
    change(run, **{field: CHANGED[field]})
    assert faults(run).startswith((f"{field} does not follow from the ledger", f"{field} is empty"))


def test_an_assumption_that_was_taken_away_is_found_in_the_record_of_the_run(run: Path) -> None:
    said = json.loads((run / "certificate.json").read_text())["assumptions"]
    change(run, assumptions=said[1:])
    assert faults(run) == "assumptions is not what run.json says"


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def altered(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"count":', b'"count":1'))


@pytest.mark.parametrize("damage", [lambda path: path.write_text("garbage\n"), cut_short, altered])
@pytest.mark.parametrize("name", ["preprocessing.jsonl", "evaluation.jsonl"])
def test_a_damaged_ledger_beside_the_main_one_is_a_fault_and_is_left_as_it_is(
    run: Path, name: str, damage: Callable[[Path], object]
) -> None:
    damage(run / name)
    before = (run / name).read_bytes()
    assert faults(run).startswith(name)
    assert (run / name).read_bytes() == before


def rewritten(path: Path, budget: float, noise: float) -> None:
    """A ledger with a sound chain that says something else."""
    terms = Ledger.open(path).terms
    path.unlink()
    event = Gaussian(noise, terms.relation, one_sided=True)
    accounts = tuple(Account(a.group, a.owner, budget, TokenBucket((Repeated(event),))) for a in terms.accounts)
    ledger = Ledger(Terms(terms.relation, terms.delta, terms.accountant, accounts, terms.facts), path)
    ledger.reserve("again", 0, 1, dict.fromkeys(range(len(accounts)), event))


def test_spending_that_does_not_fit_is_a_fault_even_where_the_chain_is_sound(run: Path) -> None:
    rewritten(run / "evaluation.jsonl", 1.0, 0.1)
    assert "more than its budget of 1" in faults(run)
    (run / "evaluation.jsonl").unlink()
    shutil.copy(run / "preprocessing.jsonl", run / "evaluation.jsonl")
    rewritten(run / "evaluation.jsonl", 500.0, 0.1)
    assert "more than the smallest budget" in faults(run)
    (run / "evaluation.jsonl").unlink()
    rewritten(run / "preprocessing.jsonl", 500.0, 0.1)
    assert 'does not include what group "f" was charged' in faults(run)


def test_a_run_that_is_not_private_has_nothing_to_verify(people: Path, tmp_path: Path, veil: Program) -> None:
    out = str(tmp_path / "run")
    words = ("train", str(people), *TRAIN, "--method", "erm", "--model", "logistic", "--quiet", "--out", out)
    assert veil(*words)[0] == 0
    code, _, err = veil("verify", out)
    assert code == 2
    assert "erm is not private: there is no guarantee to verify" in err


def test_a_run_whose_seed_is_still_there_does_not_hold(run: Path) -> None:
    (run / "seed.key").write_text("{}")
    assert "seed.key still exists" in faults(run)


def test_a_changed_weight_is_noticed(run: Path) -> None:
    path = run / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert faults(run) == "the model is not the certified one: its weights have another hash"


def test_a_weight_of_another_name_or_shape_is_noticed(run: Path) -> None:
    weights = load_file(run / "model.safetensors")
    name = next(iter(weights))
    for others in ({"x": weights[name].clone()} | weights, weights | {name: weights[name].unsqueeze(0)}):
        save_file(others, run / "model.safetensors")
        assert "its weights have another hash" in faults(run)


def test_changed_preprocessing_is_noticed(run: Path) -> None:
    path = run / "preprocessing.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record, indent=None, sort_keys=True))
    assert faults(run) == "", "how the file is written does not matter"
    record["classes"] = record["classes"][::-1]
    path.write_text(json.dumps(record))
    assert faults(run) == "the model is not the certified one: its preprocessing has another hash"
    path.unlink()
    assert "its preprocessing has another hash" in faults(run)


def test_hashes_that_were_changed_along_with_the_model_are_noticed_by_the_record_of_the_run(run: Path) -> None:
    path = run / "model.safetensors"
    save_file({name: value + 1 for name, value in load_file(path).items()}, path)
    change(run, model=hashes_in(run))
    assert faults(run) == "model is not what run.json says"


def test_a_certificate_of_an_earlier_version_verifies_and_says_that_it_names_no_model(run: Path, veil: Program) -> None:
    record = json.loads((run / "run.json").read_text())
    del record["certificate"]["model"]
    (run / "run.json").write_text(json.dumps(record))
    (run / "certificate.json").write_text(json.dumps(record["certificate"]))
    code, out, _ = veil("verify", str(run))
    assert code == 0
    assert "The certificate has no hash of a model" in " ".join(out.split())
    assert "The certificate holds." in out


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 100])
def test_weights_that_cannot_be_read_are_a_sentence(run: Path, content: bytes, veil: Program) -> None:
    (run / "model.safetensors").write_bytes(content)
    code, _, err = veil("verify", str(run))
    assert code == 2
    assert "holds no readable weights" in err
