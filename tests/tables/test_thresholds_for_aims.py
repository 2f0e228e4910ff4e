"""`veil predict --threshold-for`, and rows without a group: the same by command line and estimator."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.people_cases import TRAIN, judged, write_people
from tests.program import Program
from veil.errors import InputError
from veil.estimators import FairPrivateClassifier
from veil.metrics.score_counts import Thresholds, thresholds_for
from veil.tables.predicting import GroupThresholds

SMALL = ("--method", "dp-sgd", "--model", "logistic", "--epsilon", "8", "--quiet")


@pytest.fixture
def run(tmp_path: Path, veil: Program) -> Path:
    code, _, err = veil("train", *judged(write_people(tmp_path)), *TRAIN, *SMALL, "--out", str(tmp_path / "run"))
    assert code == 0, err
    return tmp_path / "run"


def test_thresholds_follow_from_public_rows_and_are_said(run: Path, tmp_path: Path, veil: Program) -> None:
    new, record = str(tmp_path / "people.csv"), json.loads((run / "scores.json").read_text())
    plain = ("predict", str(run), new, "--probabilities", "--keep", "sex", "-o", str(tmp_path / "out.csv"), "--force")
    for aim in ("accuracy", "equal-recall=0.7"):
        code, _, err = veil(*plain, "--threshold-for", aim)
        assert code == 0, err
        assert "On the public rows of the run: " in err
        chosen, found = thresholds_for(aim, record), pd.read_csv(tmp_path / "out.csv")
        limit = found["sex"].map(lambda name, chosen=chosen: chosen.by_group.get(name, chosen.overall))
        assert ((found["predicted"] == "yes") == (found["probability of yes"] >= limit)).all()
    pd.read_csv(new).drop(columns="sex").to_csv(tmp_path / "no.csv", index=False)
    code, _, err = veil("predict", str(run), str(tmp_path / "no.csv"), "--threshold-for", "equal-recall=0.7")
    assert (code, 'has no column "sex"' in err) == (2, True)
    code, _, err = veil(*plain, "--threshold-for", "accuracy", "--threshold", "0.5")
    assert (code, "not both" in err) == (2, True)


def test_figures_on_held_out_rows_carry_no_threshold_and_say_so(tmp_path: Path, veil: Program) -> None:
    people, run = str(write_people(tmp_path)), str(tmp_path / "run")
    assert veil("train", people, *TRAIN, *SMALL, "--out", run)[0] == 0
    assert not (tmp_path / "run" / "scores.json").exists()
    code, _, err = veil("predict", run, people, "--threshold-for", "accuracy")
    assert code == 2
    assert "has no figures that carry a threshold" in " ".join(err.split())


def test_counts_by_probability_that_were_released_carry_a_threshold(tmp_path: Path, veil: Program) -> None:
    people, run, out = str(write_people(tmp_path)), tmp_path / "run", str(tmp_path / "out.csv")
    code, _, err = veil("train", people, *TRAIN, *SMALL, "--release-scores", "--holdout", "0.5", "--out", str(run))
    assert code == 0, err
    assert veil("verify", str(run))[0] == 0
    record = json.loads((run / "scores.json").read_text())
    assert record["noise"] > 0
    code, _, err = veil("predict", str(run), people, "--threshold-for", "recall=0.9", "--probabilities", "-o", out)
    assert code == 0, err
    assert "By noisy counts of held-out rows, which the certificate covers: recall" in " ".join(err.split())
    found, chosen = pd.read_csv(out), thresholds_for("recall=0.9", record)
    assert ((found["predicted"] == "yes") == (found["probability of yes"] >= chosen.overall)).all()
    with_truth = found[pd.read_csv(people)["rich"] == "yes"]
    assert (with_truth["predicted"] == "yes").mean() > 0.8
    words = ("train", *judged(Path(people)), *TRAIN, *SMALL, "--release-scores", "--out", str(tmp_path / "none"))
    code, _, err = veil(*words)
    assert (code, "--release-scores is for two classes and held-out rows" in " ".join(err.split())) == (2, True)


def test_rows_without_a_group_are_a_group_of_their_own_if_asked_alike_in_command_and_estimator(
    tmp_path: Path, veil: Program
) -> None:
    people = write_people(tmp_path)
    table = pd.read_csv(people)
    table.loc[::5, "sex"] = None
    table.to_csv(people, index=False)
    words = ("train", str(people), *TRAIN, *SMALL, "--out", str(tmp_path / "run"), "--json")
    code, _, err = veil(*words)
    assert code == 2
    assert "name a group for such rows with --missing-group" in " ".join(err.split())
    code, out, err = veil(*words, "--missing-group", "not said")
    assert code == 0, err
    found = set(json.loads(out)["privacy"]["by_group"])
    assert found == {"f", "m", "not said"}
    with pytest.raises(InputError, match="name a group for such rows with missing_group"):
        FairPrivateClassifier(epsilon=8).fit(table[["age", "town"]], table["rich"], sensitive_features=table["sex"])
    model = FairPrivateClassifier(epsilon=8, method="dp-sgd", missing_group="not said", random_state=1)
    model.fit(table[["age", "town"]], table["rich"], sensitive_features=table["sex"])
    assert set(model.certificate_.by_group) == found
    code, out, err = veil(
        "data", "check", str(people), "--target", "rich", "--group", "sex", "--missing-group", "other"
    )
    assert code == 0, err


def test_rows_without_a_group_take_the_threshold_of_the_group_named_for_them() -> None:
    chosen = Thresholds(0.5, {"f": 0.3, "not said": 0.2})
    rows = pd.DataFrame({"sex": ["f", None, "m"]})
    assert GroupThresholds(("sex",), chosen, "not said").of_rows(rows).tolist() == [0.3, 0.2, 0.5]
