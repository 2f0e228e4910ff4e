"""Why a claim between owners fails: each cause is named where the runs measured it, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.runner import figure_index, running
from experiments.runner.causes import NONE
from experiments.runner.owner_looks import rows_of_owners
from experiments.runner.page import page_of
from experiments.runner.spec import Spec, Task
from tests.experiments.test_experiment_specs import GOOD
from tests.experiments.test_stored_runs import record, spec_of, stored_of
from veil.problem import Problem

TEXT = (
    GOOD.replace('"dp-sgd"', '"ino-sgd"')
    .replace('"erm"', '"idp-sgd"')
    .replace('model = "logistic"', 'model = "logistic"\nlook_at_owners = true')
)


def seen(**changed: Any) -> dict[str, Any]:
    """What a run of two owners kept, at the end alone."""
    owners = ("careful", "open")
    found: dict[str, Any] = {
        "moments": [1.0],
        "groups": {"careful": ["small"], "open": ["large"]},
        "accuracy": {"careful": [0.2], "open": [0.8]},
        "loss": {owner: [1.0] for owner in owners},
        "condition": {"careful": [0.5], "open": [0.9]},
        "removed_by_owner": {"careful": [0.0], "open": [0.4]},
        "pull_by_owner": {"careful": [0.4], "open": [0.6]},
        "mistaken": {"small": [["large", 0.2]], "large": [["small", 0.1]]},
        "removed": [0.2],
        "clipped": [1.0],
        "idle": [0.0],
    }
    return found | changed


WITHOUT = {"removed": [0.0], "removed_by_owner": {"careful": [0.0], "open": [0.0]}}
WITHOUT |= {"pull_by_owner": {"careful": [0.2], "open": [0.8]}}


def page(folder: Path, figure: str, own: dict[str, Any], other: dict[str, Any] | None = None) -> str:
    """The page of a claim that fails: INO-SGD's arm is no better than the other."""
    spec = spec_of(folder, TEXT.replace('figure = "worst_group_accuracy"', f'figure = "{figure}"'))
    runs = []
    for arm, kept in (("one", own), ("two", other or seen(**WITHOUT))):
        run = record(spec, arm, 1, 0.5, 0.5)
        run["figures"] |= {"owner:careful": 0.2, "accuracy": 0.5}
        runs.append({**run, "owners": kept})
    text = page_of(spec, stored_of(runs))
    assert "**Fails" in text
    return text.partition(" Why: ")[2].partition("\n")[0]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"idle": [0.86], "removed": [0.01]}, "86 % of the tail has no gradient left, and it removes 1 % of all"),
        (
            {"removed_by_owner": {"careful": [0.3], "open": [0.1]}},
            "the tail takes no less from careful than from all, 30 % and 20 % of the clipped gradients",
        ),
        (
            {"pull_by_owner": {"careful": [0.21], "open": [0.79]}},
            "careful has 21 % of a step's length, 20 % with two",
        ),
        (
            {"condition": {"careful": [-1.5], "open": [0.9]}},
            "Cond. (2) of careful is -1.5 (+0.5 with two): its loss may still rise while others learn",
        ),
    ],
)
def test_each_cause_is_said_where_it_was_measured_and_alone(
    tmp_path: Path, changed: dict[str, Any], sentence: str
) -> None:
    assert page(tmp_path, "owner:careful", seen(**changed)) == f"{sentence}."


def test_an_owner_that_is_not_behind_without_the_tail_is_said_so(tmp_path: Path) -> None:
    ahead = seen(**WITHOUT, accuracy={"careful": [0.9], "open": [0.3]})
    said = page(tmp_path, "owner:careful", seen(), ahead)
    assert said == "careful is not behind with two, 90.0 % where all owners have 60.0 %."


def test_where_nothing_was_measured_that_explains_it_the_page_says_so(tmp_path: Path) -> None:
    assert page(tmp_path, "owner:careful", seen()) == f"{NONE}."


def test_a_class_that_is_taken_for_another_owners_is_said_so(tmp_path: Path) -> None:
    said = page(tmp_path, "group:small", seen(mistaken={"small": [["large", 0.9]], "large": [["small", 0.0]]}))
    assert said == "90 % of the rows of small are taken for large of open, which has 60 % of a step's length."


def test_overall_the_owners_that_lose_and_gain_are_named(tmp_path: Path) -> None:
    said = page(tmp_path, "accuracy", seen(accuracy={"careful": [0.25], "open": [0.7]}, removed=[0.45]))
    assert said.startswith("the tail removes 45 % of the clipped gradients, so updates are that much shorter; ")
    assert "most lose: open -10.0 points (80 % → 60 % of a step's length; 40 % removed)" in said
    assert "most gain: careful +5.0 points (20 % → 40 % of a step's length; 0 % removed)" in said


def test_runs_that_did_not_look_at_their_owners_leave_the_reason_of_the_spec(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, TEXT + 'why = "as written."\n')
    runs = [record(spec, arm, 1, 0.5, 0.5) for arm in ("one", "two")]
    assert "Why: as written." in page_of(spec, stored_of(runs))


def test_without_looks_the_figures_of_the_page_say_what_the_tail_removes(tmp_path: Path) -> None:
    figures = '["worst_group_accuracy", "tail_removed@50%", "tail_removed"]'
    spec = spec_of(tmp_path, TEXT.replace('["worst_group_accuracy"]', figures))
    runs = [record(spec, arm, 1, 0.5, 0.5) for arm in ("one", "two")]
    runs[0]["figures"] |= {"tail_removed@50%": 0.5, "tail_removed": 0.4}
    said = "at the end the tail removes 40 % of the clipped gradients, so updates are that much shorter"
    assert f"Why: {said}." in page_of(spec, stored_of(runs))
    runs[0]["figures"] |= {"tail_removed": 0.01}
    assert "Why: at the end the tail removes 1 % of the clipped gradients, so it hardly changes them." in page_of(
        spec, stored_of(runs)
    )
    runs[0]["figures"] |= {"tail_removed": 0.1}
    assert "Why:" not in page_of(spec, stored_of(runs))


def test_where_not_all_seeds_were_looked_at_it_is_said(tmp_path: Path) -> None:
    spec, runs = spec_of(tmp_path, TEXT.replace('figure = "worst_group_accuracy"', 'figure = "owner:careful"')), []
    for seed in (1, 2):
        for arm, kept in (("one", seen()), ("two", seen(**WITHOUT))):
            run = record(spec, arm, seed, 0.5, 0.5)
            run["figures"] |= {"owner:careful": 0.2}
            runs.append(run | ({"owners": kept} if seed == 1 else {}))
    assert f"Why: {NONE} (looked at in 1 of 2 seeds)." in page_of(spec, stored_of(runs))


def test_a_run_keeps_what_it_did_for_every_owner_at_each_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    classes = ["a", "b"] * 150
    owners, budgets = [{"a": "careful", "b": "open"}[name] for name in classes], {"careful": 0.5, "open": 2.0}
    inputs = [[float(name == "a"), 1.0] for name in classes]
    train = Problem.from_arrays(inputs, classes, classes, owners=owners, budgets=budgets)
    test = Problem.from_arrays(inputs, classes, classes)
    monkeypatch.setattr(running, "load_pair", lambda *_: (train, test))
    settings = {"steps": 4, "batch_size": 30, "delta": 1e-3, "accountant": "rdp"}
    options = {"clip": 0.01, "tail": 40.0, "alpha": 1.0, "beta": 1.0}
    task = Task("ino-sgd", None, 1, "ino-sgd", "any", "logistic", settings=settings, options=options)
    kept = running.run_task(task, (), (0.5, 1.0))["owners"]
    assert kept["moments"] == [0.5, 1.0]
    assert kept["groups"] == {"careful": ["a"], "open": ["b"]}
    assert kept["removed"] == pytest.approx([0.2, 0.2], abs=0.02)
    assert [sum(shares) for shares in zip(*kept["pull_by_owner"].values(), strict=True)] == pytest.approx([1.0, 1.0])
    assert {name: [wrong for wrong, _ in own] for name, own in kept["mistaken"].items()} == {
        "a": ["b", "b"],
        "b": ["a", "a"],
    }
    assert "owners" not in running.run_task(task)
    assert rows_of_owners(test, train).public.owners == ("careful", "open")
    assert torch.equal(rows_of_owners(test, train).targets, test.targets)


def test_verdicts_and_causes_are_read_off_a_page() -> None:
    text = "- **Holds:** it grows (Fig. 5). A 2 against 1.\n- **Fails, with one seed:** it falls. A. Why: it stays."
    holds, fails = figure_index.claims_of(text)
    assert (holds.text, holds.verdict, holds.why) == ("it grows (Fig. 5)", "holds", "")
    assert (fails.text, fails.verdict, fails.why) == ("it falls", "**fails, with one seed**", "it stays.")


def test_a_spec_without_looks_asks_for_none(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, GOOD)
    assert isinstance(spec, Spec)
    assert running.looked_at(spec) == []
    assert running.looked_at(spec_of(tmp_path, TEXT)) == [0.25, 0.5, 1.0]


def test_a_trend_that_is_not_shown_says_what_changes_go_with(tmp_path: Path) -> None:
    """Six owners in two seeds: changes follow what the tail removes, not ε."""
    owners = [f"o{index}" for index in range(6)]
    places = "\n".join(f'"owner:{owner}" = {index + 1}' for index, owner in enumerate(owners))
    trend = f'[[trends]]\nabove = "one"\nbelow = "two"\ntext = "the smaller, the more"\n[trends.against]\n{places}\n'
    spec, runs = spec_of(tmp_path, TEXT + trend), []
    removed = [0.1, 0.5, 0.3, 0.3, 0.5, 0.1]
    for seed in (1, 2):
        for arm, sign in (("one", -1.0), ("two", 0.0)):
            gained = {
                owner: 0.5 + sign * share / 10 + 0.001 * seed for owner, share in zip(owners, removed, strict=True)
            }
            kept = seen(accuracy={owner: [value] for owner, value in gained.items()})
            kept |= {"removed_by_owner": {owner: [share] for owner, share in zip(owners, removed, strict=True)}}
            run = record(spec, arm, seed, 0.5, 0.5)
            run["figures"] |= {f"owner:{owner}": value for owner, value in gained.items()}
            runs.append({**run, "owners": kept})
    text = page_of(spec, stored_of(runs))
    assert "**Not shown:** the smaller, the more." in text
    said = text.partition("Measured over 12 owners and seeds: ")[2]
    assert said.startswith("the change correlates with ε (r = ")
    assert "the tail removes (r = -1.00, p = " in said
