"""Experiments as files: every one loads and plans, and a wrong one is refused by a sentence that names the mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.runner import Spec, read_spec
from experiments.runner.features import scattered
from experiments.runner.problems import cut_down, dropped, load_pair, lowered
from experiments.runner.spec import Task, tasks
from tests.experiments.experiment_cases import NAMES, ROOT, SPECS, needs_data
from veil import methods
from veil.errors import InputError
from veil.problem import Problem, PublicFacts

GOOD = """
title = "t"
shows = "s"
about = "a"
data = "generated"
data_options = { groups = [{ name = "large", rows = 90 }, { name = "small", rows = 30 }] }
model = "logistic"
figures = ["worst_group_accuracy"]
[settings]
steps = 3
batch_size = 10
[small]
seeds = 1
[full]
seeds = 2
[[arms]]
label = "one"
method = "dp-sgd"
[[arms]]
label = "two"
method = "erm"
[[claims]]
figure = "worst_group_accuracy"
above = "one"
below = "two"
text = "x"
"""


def written(folder: Path, text: str, name: str = "trial") -> Path:
    (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(("best-", "overview-"))])
def test_every_experiment_of_a_paper_stands_in_the_list_of_its_tables_and_figures(name: str):
    assert f"`{name}`" in (listed := (ROOT / "docs/reproduction.md").read_text()) or f"reproduce {name}`" in listed


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_loads_and_says_what_it_shows(name: str) -> None:
    spec = read_spec(name, SPECS)
    assert spec.title
    assert spec.shows
    assert spec.about


@pytest.mark.parametrize("name", NAMES)
def test_every_page_has_a_twin_without_privacy_at_every_scale_of_results(name: str) -> None:
    spec = read_spec(name, SPECS)
    if not isinstance(spec, Spec):
        pytest.skip("a study chooses its own lines")
    private = {row["name"]: row["private"] for row in methods.table()}
    assert {task.arm for task in tasks(spec, "paper", seeds=1) if not private[task.method]}


@cache
def public_facts(data: str, options: str, seed: int) -> tuple[PublicFacts, PublicFacts]:
    """What a plan knows of the rows; many arms of many experiments have the same ones."""
    train, test = load_pair(data, json.loads(options), seed)
    return train.public, test.public


@pytest.mark.parametrize("name", NAMES)
def test_every_arm_of_every_experiment_can_be_planned(name: str) -> None:
    spec = read_spec(name, SPECS)
    if not isinstance(spec, Spec):
        pytest.skip("a study plans by itself")
    needs_data(name)
    planned = tasks(spec, "small", seeds=1)
    assert planned
    for task in planned:
        try:
            train, test = public_facts(task.data, json.dumps(task.data_options), task.seed)
        except InputError as error:
            if "veil-dp[features]" in str(error):
                pytest.skip("the extra features is not installed")
            raise
        plan = methods.create(task.method, task.options).plan(train, task.checked_settings())
        assert plan.steps > 0
        assert set(test.groups) <= set(train.groups)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ('title = "t"', 'titel = "t"', 'unknown key "titel"'),
        ("[settings]\n", "[settings]\nlearning = 1\n", "learning"),
        ('label = "one"', 'label = "one"\nlearning = 1', 'unknown key "arms.0.learning"'),
        ("[small]\n", "[small]\nepochs = 1\n", 'unknown key "small.epochs"'),
        ('method = "dp-sgd"', 'method = "dp-sdg"', 'unknown method "dp-sdg": did you mean "dp-sgd"'),
        ('method = "dp-sgd"', 'method = "dp-sgd"\noptions = { clib = 1 }', 'no option "clib"'),
        ('data = "generated"', 'data = "genrated"', 'unknown data "genrated": did you mean "generated"'),
        ('model = "logistic"', 'model = "logstic"', 'unknown model "logstic"'),
        ('below = "two"', 'below = "three"', 'claim 1 names the arm "three"'),
        ('figures = ["worst_group_accuracy"]', 'figures = ["worst"]', 'unknown figure "worst"'),
        ('figures = ["worst_group_accuracy"]', 'figures = ["privacy_cost_gap"]', "say by twin"),
        ('label = "two"', 'label = "one"', "same label"),
        ("[small]\n", '[small]\narms = ["ten"]\n', 'small.arms names the arm "ten"'),
        ("[small]\n", "[small]\nvalues = [1.0]\n", "must be one of vary.values"),
        ("[settings]\n", "[settings]\nseed = 1\n", "a scale has seeds and first_seed"),
        ('title = "t"\n', "", 'the key "title" is missing'),
        ('method = "dp-sgd"', 'method = "dp-sgd"\npaper = { accuracy = 1.0 }', "not one of figures"),
        ("[settings]\n", '[plot]\nkind = "vary"\nfigure = "accuracy"\n[settings]\n', "there is no vary"),
    ],
)
def test_a_wrong_file_is_refused_by_a_sentence_that_names_the_mistake(
    before: str, after: str, sentence: str, tmp_path: Path
) -> None:
    assert GOOD.count(before) >= 1
    folder = written(tmp_path, GOOD.replace(before, after, 1))
    with pytest.raises(InputError) as refused:
        read_spec("trial", folder)
    assert sentence in str(refused.value)
    assert "trial.toml" in str(refused.value)


def test_a_missing_experiment_or_folder_is_named_with_a_way_out(tmp_path: Path) -> None:
    folder = written(tmp_path, GOOD)
    with pytest.raises(InputError, match=r'there is no experiment "trail".*did you mean "trial"'):
        read_spec("trail", folder)
    with pytest.raises(InputError, match="--specs"):
        read_spec("trial", tmp_path / "nowhere")


def test_values_reach_the_table_they_vary_and_arms_that_do_not_vary_run_once(tmp_path: Path) -> None:
    text = GOOD.replace('method = "erm"', 'method = "erm"\nvaries = false')
    text += '[vary]\nof = "settings"\nname = "epsilon"\nvalues = [1.0, 2.0]\n'
    spec = read_spec("trial", written(tmp_path, text))
    assert isinstance(spec, Spec)
    found = [(task.arm, task.x, task.settings.get("epsilon")) for task in tasks(spec, "paper", seeds=1)]
    assert sorted(found, key=str) == [("one", 1.0, 1.0), ("one", 2.0, 2.0), ("two", None, None)]


@pytest.mark.parametrize(
    "changed",
    [
        {"method": "erm"},
        {"data": "adult"},
        {"model": "mlp"},
        {"data_options": {"rows": 2}},
        {"model_options": {"width": 2}},
        {"settings": {"epochs": 2}},
        {"options": {"clip": 2}},
    ],
)
def test_a_fingerprint_changes_with_whatever_changes_a_run(changed: dict[str, Any]) -> None:
    base: dict[str, Any] = {"arm": "a", "x": None, "seed": 1, "method": "dp-sgd", "data": "dutch", "model": "logistic"}
    assert Task(**base).fingerprint != Task(**(base | changed)).fingerprint


def test_rows_that_are_cut_down_keep_every_group_and_its_share() -> None:
    groups = [{"name": "large", "rows": 9000}, {"name": "small", "rows": 1000}, {"name": "tiny", "rows": 25}]
    whole, _ = load_pair("generated", {"groups": groups}, 1)
    part = cut_down(whole, 1000)
    assert part.public.group_sizes == (898, 100, 20)
    assert np.bincount(part.group_of).tolist() == [898, 100, 20]
    assert len(part.inputs) == len(part.targets) == len(part) == 1018


def test_the_stand_in_for_bank_fraud_has_the_groups_of_the_paper_and_one_percent_fraud() -> None:
    train, test = load_pair("bank-fraud-like", {"size": 20_000, "test_size": 5000}, 1)
    assert set(train.public.groups) == {
        f"{label} × {age}" for label in ("fraud", "legitimate") for age in ("over 50", "50 or under")
    }
    assert train.targets.float().mean() == pytest.approx(0.011, abs=0.001)
    assert test.public.groups == train.public.groups


def owned(budgets: dict[str, float]) -> Problem:
    """Two groups of 400 and 200 rows; each is an owner."""
    groups = np.repeat(["a", "b"], [400, 200])
    return Problem.from_arrays(np.zeros((600, 2)), groups, groups, owners=groups, budgets=budgets, classes=["a", "b"])


def test_dropping_takes_rows_of_owners_above_the_mean_budget_alone() -> None:
    fewer = dropped(owned({"a": 3.0, "b": 1.0}), 25)
    assert dict(zip(fewer.public.owners, fewer.public.owner_sizes, strict=True)) == {"a": 300, "b": 200}
    assert len(fewer) == 500
    assert fewer.public.budgets == (3.0, 1.0)


def test_lowering_brings_budgets_towards_the_smallest_one() -> None:
    assert lowered(owned({"a": 3.0, "b": 1.0}), 25).public.budgets == (2.5, 1.0)


@pytest.mark.parametrize("change", [dropped, lowered])
def test_owners_change_only_with_budgets_and_by_a_percentage(
    change: Callable[[Problem, float], Problem],
) -> None:
    with pytest.raises(InputError, match="between 0 and 100"):
        change(owned({"a": 3.0, "b": 1.0}), 100)
    with pytest.raises(InputError, match="needs owners with budgets"):
        change(load_pair("generated", {"groups": [{"name": "all", "rows": 40}]}, 1)[0], 10)


def test_validation_rows_are_training_rows_that_no_run_is_trained_on() -> None:
    needs_data("asc-power")
    (train, held), (whole, _) = load_pair("adult-validation", {}, 3), load_pair("adult", {}, 0)
    assert len(train) + len(held) == len(whole)
    assert train.public.classes == whole.public.classes
    other, _ = load_pair("adult-validation", {}, 4)
    assert not torch.equal(train.inputs[:100], other.inputs[:100])
    together = torch.cat([train.inputs, held.inputs]).double().sum(dim=0)
    assert torch.allclose(together, whole.inputs.double().sum(dim=0))


@pytest.mark.parametrize(("name", "whole"), [("dutch-validation", "dutch"), ("umnist-validation", "umnist")])
def test_no_test_row_is_a_validation_row(name: str, whole: str) -> None:
    needs_data("asc-umnist" if whole == "umnist" else "overview-dutch")
    (train, held), (known, _) = load_pair(name, {}, 3), load_pair(whole, {}, 3)
    assert train.public.groups == held.public.groups == known.public.groups
    assert train.public.group_sizes == tuple(np.bincount(train.group_of))
    places = {row.numpy().tobytes() for row in known.inputs}
    if whole == "dutch":
        assert len(train) + len(held) == len(known)
        assert all(row.numpy().tobytes() in places for row in held.inputs[:500])
    else:
        assert torch.equal(train.inputs, known.inputs)
        assert not any(row.numpy().tobytes() in places for row in held.inputs[:500])
    assert len(held) < len(train)


def test_scattering_features_of_a_row_follow_from_that_row_alone_and_have_length_one() -> None:
    generator = torch.Generator().manual_seed(5)
    images, labels = torch.rand(9, 1, 28, 28, generator=generator), np.array(["a", "b", "c"] * 3)
    whole = scattered(Problem.from_arrays(images, labels, labels), keep=False)
    other = torch.cat([images[:4], torch.rand(5, 1, 28, 28, generator=generator) * 9])
    changed = scattered(Problem.from_arrays(other, labels, labels), keep=False)
    assert torch.equal(whole.inputs[:4], changed.inputs[:4])
    assert not torch.equal(whole.inputs[4:], changed.inputs[4:])
    assert torch.allclose(whole.inputs.norm(dim=1), torch.ones(9), atol=1e-2)
    assert whole.public.input_shape == (512,)


def test_rows_to_choose_settings_by_are_neither_trained_on_nor_tested() -> None:
    """Names of the seven largest languages: a fifth is for testing, and of the others a fifth for choosing."""
    needs_data("surnames-hashed")
    whole, test = load_pair("surnames-hashed", {}, 3)
    train, validation = load_pair("surnames-hashed", {"validation": True}, 3)
    assert whole.public.groups == validation.public.groups
    assert len(whole.public.groups) == 7
    assert len(train) + len(validation) == len(whole)

    def alike(problem: Problem) -> set[tuple[float, ...]]:
        return {tuple(row) for row in problem.inputs.round(decimals=4).tolist()}

    assert alike(train) | alike(validation) == alike(whole)
    assert len(whole) + len(test) == 18_019
