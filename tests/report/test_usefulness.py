"""A model that does no better than a constant answer is not presented as a success."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.program import Program
from tests.report.run_records import make_run
from veil.report import build_twin, parse_requirement, render_card, render_page
from veil.report.usefulness import usefulness


def judged(noise: float = 0.0, **tables: list[list[int]]) -> dict[str, Any]:
    found = usefulness({"noise": noise, "by_group": {name: {"confusion": table} for name, table in tables.items()}})
    assert found is not None
    return found


@pytest.mark.parametrize("skewed", [[[0, 400], [0, 600]], [[3, 397], [2, 598]], [[590, 10], [395, 5]]])
def test_a_group_whose_answers_do_not_follow_the_truth_is_named_whatever_its_accuracy(skewed: list[list[int]]) -> None:
    found = judged(good=[[450, 50], [60, 440]], bad=skewed)
    assert found["no_better"] == ["bad"]
    assert found["useful"] is False
    assert found["sentence"] == "No better than a constant answer for bad."


def test_a_skewed_group_with_a_low_accuracy_may_be_served_well() -> None:
    """82 % where a constant answer has 90 %: and still most of both classes are recognised."""
    assert judged(only=[[740, 160], [20, 80]])["useful"] is True


def test_few_rows_are_no_verdict_and_much_noise_is_none_either() -> None:
    assert judged(many=[[450, 50], [60, 440]], few=[[4, 3], [2, 5]])["unsure"] == ["few"]
    assert judged(noise=15.0, many=[[450, 50], [60, 440]], few=[[40, 25], [25, 40]])["unsure"] == ["few"]
    assert judged(noise=15.0, many=[[450, 50], [60, 440]], few=[[40, 25], [25, 40]])["useful"] is True


def test_groups_of_one_class_are_judged_together() -> None:
    good = judged(a=[[90, 10], [0, 0]], b=[[0, 0], [12, 88]])
    assert (good["useful"], good["no_better"]) == (True, [])
    bad = judged(a=[[5, 95], [0, 0]], b=[[0, 0], [4, 96]])
    assert bad["sentence"] == "No better than a constant answer: do not use this model."


def test_where_every_group_is_too_small_all_rows_are_judged_together() -> None:
    one = [[380, 5], [15, 7]]
    assert judged(noise=4.0, a=one)["unsure"] == ["a", "all rows"]
    several = judged(noise=4.0, **dict.fromkeys("abcdefgh", one))
    assert (several["useful"], several["unsure"]) == (True, list("abcdefgh"))
    assert several["sentence"].startswith("Useful: better than a constant answer over all rows together. Too few rows")
    nothing = judged(noise=4.0, **{name: [[380, 20], [12, 1]] for name in "abcdefgh"})
    assert (nothing["useful"], "all rows" in nothing["no_better"]) == (False, True)
    assert nothing["sentence"] == "No better than a constant answer: do not use this model."


def test_more_than_two_classes_with_noise_are_judged_over_all_rows_and_said_so() -> None:
    figures = {"by_group": {"f": {"n": 300, "accuracy": 0.8}}, "class_noise": 3.0}
    good = usefulness({**figures, "by_class": {"a": [20, 80], "b": [25, 75], "c": [20, 80]}})
    assert good is not None
    assert good["sentence"] == "Useful: better than a constant answer over all rows together."
    assert good["constant"] == {"all rows": pytest.approx(1 / 3)}
    bad = usefulness({**figures, "by_class": {"a": [0, 280], "b": [14, 0], "c": [6, 0]}})
    assert bad is None or not bad["useful"]


def test_accuracy_of_skewed_labels_is_shown_beside_balanced_accuracy_and_the_best_constant_answer(
    tmp_path: Path, veil: Program
) -> None:
    generator = np.random.default_rng(0)
    table = pd.DataFrame({"a": generator.normal(size=3000), "sex": generator.choice(["f", "m"], 3000)})
    table["y"] = np.where(generator.random(3000) < 0.9, "pass", "fail")
    table.to_csv(tmp_path / "skewed.csv", index=False)
    words = ("train", str(tmp_path / "skewed.csv"), "--target", "y", "--group", "sex", "--seed", "1")
    code, said, _ = veil(*words, "--out", str(tmp_path / "run"))
    assert code == 0
    assert "balanced over classes" in said
    assert "best constant answer" in said
    assert "--group sex,y" in said
    card = (tmp_path / "run" / "MODEL_CARD.md").read_text()
    assert "| Balanced over classes | " in card
    constant = next(line for line in card.splitlines() if line.startswith("| Best constant answer | "))
    assert 0.85 < float(constant.split("|")[2].strip().split()[0]) / 100 < 0.95
    assert json.loads((tmp_path / "run" / "report.json").read_text())["verdict"]["skewed"] is True


def test_three_classes_and_figures_without_counts() -> None:
    assert judged(g=[[80, 10, 10], [10, 80, 10], [10, 10, 80]])["useful"] is True
    assert judged(g=[[90, 5, 5], [88, 6, 6], [91, 5, 4]])["useful"] is False
    assert usefulness({"by_group": {"a": {"accuracy": 0.9}}}) is None
    assert usefulness({}) is None


def test_a_card_of_rows_of_one_class_has_no_verdict_and_no_constant_answer() -> None:
    run = make_run("asc", extras=True)
    for score in run["metrics"]["by_group"].values():
        score["confusion"] = [[0, 0], [0, 40]]
    assert "Best constant answer" not in render_card(run)


def test_numbers_are_judged_by_what_they_explain() -> None:
    def numbers(**r2: float | None) -> dict[str, Any] | None:
        return usefulness(
            {"root_mean_squared_error": 1.0, "by_group": {n: {"r2": v} for n, v in r2.items()}, "r2": 0.3}
        )

    assert numbers(a=0.4, b=0.2) == {
        "useful": True,
        "no_better": [],
        "unsure": [],
        "constant": {},
        "sentence": "Useful: better than a constant answer in every measured group.",
    }
    assert (numbers(a=0.4, b=-0.1) or {})["no_better"] == ["b"]
    assert (numbers(a=None) or {})["useful"] is True


@pytest.fixture
def coins(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    table = pd.DataFrame({"a": generator.normal(size=3000), "sex": generator.choice(["f", "m"], 3000)})
    table["y"] = np.where(generator.random(3000) < 0.7, "pass", "fail")
    table["n"] = generator.normal(size=3000).round(3)
    path = tmp_path / "coins.csv"
    table.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("roles", [("--target", "y"), ("--target", "n", "--target-bounds=-4,4")])
def test_a_model_of_coins_is_called_useless_everywhere(
    coins: Path, tmp_path: Path, veil: Program, roles: tuple[str, ...]
) -> None:
    run = tmp_path / "run"
    words = ("train", str(coins), *roles, "--group", "sex", "--seed", "1", "--out", str(run))
    code, said, _ = veil(*words, "--require", "useful")
    assert code == 1
    assert "No better than a constant answer" in said
    assert "✕ not met: Useful:" in said
    twin = json.loads((run / "report.json").read_text())
    assert "No better than a constant answer" in twin["verdict"]["headline"]
    assert "No better than a constant answer" in (run / "MODEL_CARD.md").read_text()
    assert "No better than a constant answer" in (run / "report.html").read_text()
    code, said, _ = veil("report", str(run), "-o", str(tmp_path / "page.html"), "--require", "useful", "--json")
    assert code == 1


def test_a_useful_model_is_called_so_in_the_headline_of_report_card_and_twin() -> None:
    run = make_run("asc", extras=True)
    said = "Useful: better than a constant answer in every measured group."
    headline = build_twin([run])["verdict"]["headline"]
    assert headline.endswith(said)
    assert render_page([run]).count(said) >= 2  # in words, and in the facts inside the page
    assert said in render_card(run).split("## Overview")[0]
    (check,) = build_twin([run], requirements=[parse_requirement("useful").as_json()])["verdict"]["requirements"]
    assert (check["met"], check["shown"]) == (True, "better than a constant answer in every measured group")
