"""A run is made once: what is stored is not run again, what has changed is, and pages follow from the store alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.runner import Asked, Spec, index, read_spec, reproduce, running
from experiments.runner.claims import judge
from experiments.runner.page import page_of, svg_of
from experiments.runner.problems import load_pair, taken
from experiments.runner.results import Results
from experiments.runner.spec import Task, tasks
from experiments.runner.store import code_digest
from tests.experiments.test_experiment_specs import GOOD, written
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.metrics import evaluate
from veil.models import build_model
from veil.problem import Problem


def spec_of(folder: Path, text: str = GOOD) -> Spec:
    spec = read_spec("trial", written(folder, text))
    assert isinstance(spec, Spec)
    return spec


def silent(line: str) -> None:
    pass


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that were really made."""
    made: list[str] = []
    whole = running.run_task

    def run_task(task: Any, figures: Any = (), moments: Any = ()) -> dict[str, Any]:
        made.append(task.label)
        return whole(task, figures, moments)

    monkeypatch.setattr(running, "run_task", run_task)
    return made


def test_a_stored_run_is_not_run_again_and_a_changed_option_is(tmp_path: Path, counted: list[str]) -> None:
    asked = Asked("trial", "small", tmp_path / "out")
    assert reproduce(spec_of(tmp_path), asked, silent) == {}
    assert counted == ["one, seed 1", "two, seed 1"]
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert reproduce(spec_of(tmp_path), asked, silent) == {}
    assert len(counted) == 2
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    changed = GOOD.replace('method = "dp-sgd"', 'method = "dp-sgd"\noptions = { clip = 0.5 }')
    reproduce(spec_of(tmp_path, changed), asked, silent)
    assert counted[2:] == ["one, seed 1"]
    stored = json.loads((tmp_path / "out" / "trial.json").read_text(encoding="utf-8"))
    assert [(run["arm"], run["options"]) for run in stored["runs"]] == [("two", {}), ("one", {"clip": 0.5})]


def test_the_page_says_when_runs_of_different_versions_of_the_code_stand_side_by_side(
    tmp_path: Path,
) -> None:
    asked, spec = Asked("trial", "small", tmp_path / "out"), spec_of(tmp_path)
    reproduce(spec, asked, silent)
    path = tmp_path / "out" / "trial.json"
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert {run["code"] for run in stored["runs"]} == {code_digest()}
    assert f"All runs are of one version of the code, {code_digest()}" in page_of(spec, stored)
    assert "different versions" not in page_of(spec, stored)
    stored["runs"][0]["code"] = "0123456789abcdef"
    page = page_of(spec, stored)
    assert "Runs of different versions of the code stand side by side" in page
    assert "0123456789abcdef: one" in page
    del stored["runs"][0]["code"]
    assert "an unknown version: one" in page_of(spec, stored)
    unknown = {**stored, "runs": [{**run, "code": None} for run in stored["runs"]]}
    assert "an earlier version of the code, which was not recorded" in page_of(spec, unknown)


def test_the_digest_of_the_code_follows_what_is_computed_and_not_how_it_is_worded(tmp_path: Path) -> None:
    (tmp_path / "cli").mkdir()
    texts = ['"""Says."""\nx = 1\n', "x = 1  # said otherwise\n", "x = 2\n"]
    digests = []
    for text in texts:
        (tmp_path / "part.py").write_text(text, encoding="utf-8")
        (tmp_path / "cli" / "shown.py").write_text(f"y = {len(digests)}\n", encoding="utf-8")
        digests.append(code_digest.__wrapped__(tmp_path))
    assert digests[0] == digests[1] != digests[2]


def test_a_run_that_lacks_a_figure_which_is_asked_for_now_is_made_again(tmp_path: Path, counted: list[str]) -> None:
    asked = Asked("trial", "small", tmp_path / "out")
    reproduce(spec_of(tmp_path), asked, silent)
    more = GOOD.replace('["worst_group_accuracy"]', '["worst_group_accuracy", "train_test_gap"]')
    reproduce(spec_of(tmp_path, more), asked, silent)
    assert len(counted) == 4
    assert "no ε covers them" in (tmp_path / "out" / "trial.md").read_text(encoding="utf-8")


def test_groups_too_small_to_be_measured_leave_a_gap_in_the_table_and_no_broken_file(tmp_path: Path) -> None:
    text = GOOD.replace('["worst_group_accuracy"]', '["worst_group_gap", "group:small", "group:nobody"]')
    text = text.replace('model = "logistic"', 'model = "logistic"\ntwin = "two"')
    text = text.replace('{ name = "small", rows = 30 }', '{ name = "small", rows = 2 }')
    spec = spec_of(tmp_path, text.replace("data_options = {", "data_options = { test_share = 0.01,"))
    assert reproduce(spec, Asked("trial", "small", tmp_path / "out"), silent) == {}
    stored = json.loads((tmp_path / "out" / "trial.json").read_text(encoding="utf-8"))
    assert all("worst_group_gap" in run["figures"] for run in stored["runs"])
    assert "| – |" in (tmp_path / "out" / "trial.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_runs_at_the_same_time_are_all_stored(tmp_path: Path) -> None:
    asked = Asked("trial", "small", tmp_path / "out", seeds=2, jobs=2)
    assert reproduce(spec_of(tmp_path), asked, silent) == {}
    stored = json.loads((tmp_path / "out" / "trial.json").read_text(encoding="utf-8"))
    assert sorted((run["arm"], run["seed"]) for run in stored["runs"]) == [
        ("one", 1),
        ("one", 2),
        ("two", 1),
        ("two", 2),
    ]
    assert (tmp_path / "out" / "trial.md").read_text(encoding="utf-8") == page_of(spec_of(tmp_path), stored)


def test_a_failing_run_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    text = GOOD.replace('method = "dp-sgd"', 'method = "dp-is-sgd"').replace("batch_size = 10", "batch_size = 100")
    failures = reproduce(spec_of(tmp_path, text), Asked("trial", "small", tmp_path / "out"), silent)
    assert list(failures) == ["one, seed 1"]
    page = (tmp_path / "out" / "trial.md").read_text(encoding="utf-8")
    assert "Not run: one." in page
    assert "**Not run:** x." in page


def test_runs_of_another_scale_are_not_mixed_in(tmp_path: Path) -> None:
    asked = Asked("trial", "small", tmp_path / "out")
    reproduce(spec_of(tmp_path), asked, silent)
    with pytest.raises(InputError, match="at scale small: choose another folder by --out"):
        reproduce(spec_of(tmp_path), Asked("trial", "paper", tmp_path / "out"), silent)


def record(spec: Spec, arm: str, seed: int, worst: float, average: float, x: float | None = None) -> dict[str, Any]:
    task = next(task for task in tasks(spec, "paper", seeds=1) if (task.arm, task.x) == (arm, x))
    return {
        "arm": arm,
        "x": x,
        "seed": seed,
        "fingerprint": task.fingerprint,
        "settings": task.settings,
        "options": task.options,
        "steps": 3,
        "seconds": 60.0,
        "noise_multiplier": 1.5,
        "epsilon": 1.0,
        "epsilon_by_group": {"large": 1.0, "small": 0.75},
        "figures": {"worst_group_accuracy": worst, "average_group_accuracy": average},
        "by_group": {"large": {"n": 9, "accuracy": average}, "small": {"n": 9, "accuracy": worst}},
        "curve": [[0.0, worst / 2, average / 2], [2.0, worst, average]],
    }


def stored_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "experiment": "trial",
        "scale": "paper",
        "command": "veil reproduce trial",
        "version": {"veil": "9"},
        "machine": {"cores": 2, "architecture": "z80"},
        "runs": runs,
    }


SECOND = """
[[claims]]
figure = "average_group_accuracy"
above = "one"
below = "two"
margin = 6.0
text = "y"
"""


def test_claims_are_computed_from_the_seeds_both_have_and_failing_ones_come_first(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, GOOD + SECOND)
    runs = [record(spec, "one", 1, 0.50, 0.64), record(spec, "one", 2, 0.60, 0.66), record(spec, "one", 3, 0.99, 0.99)]
    runs += [record(spec, "two", 1, 0.40, 0.60), record(spec, "two", 2, 0.45, 0.60)]
    fails, holds = judge(Results.of(spec, stored_of(runs)))
    assert (fails.claim.text, fails.holds) == ("y", False)
    assert (holds.claim.text, holds.holds) == ("x", True)
    assert holds.compared[0].difference == pytest.approx(0.125)
    assert holds.compared[0].differences == pytest.approx((0.1, 0.15))
    page = page_of(spec, stored_of(runs))
    assert "1 fails, 1 holds" in page
    doubtful = page.index("**Fails, within two standard errors of the seeds:** y.")
    assert doubtful < page.index("**Holds:** x.") < page.index("| arm |")
    assert "Worst group 55.0 against 42.5, +12.5 ± 3.5 points, 2 seeds" in page
    assert "one is not above two by more than 6" in page


@pytest.mark.parametrize(("below", "holds"), [(0.32, True), (0.36, False)])
def test_a_claim_of_a_share_is_judged_by_that_share_of_the_arm_above(tmp_path: Path, below: float, holds: bool) -> None:
    spec = spec_of(tmp_path, GOOD + "times = 0.667\n")
    runs = [record(spec, "one", 1, 0.51, 0.9), record(spec, "two", 1, below, 0.9)]
    (verdict,) = judge(Results.of(spec, stored_of(runs)))
    assert verdict.holds is holds
    assert f"0.667 × 51.0 against {100 * below:.1f}" in verdict.line()


def test_a_claim_must_hold_at_every_value_it_is_made_for(tmp_path: Path) -> None:
    vary = '[vary]\nof = "settings"\nname = "epsilon"\nvalues = [1.0, 2.0]\n'
    text = GOOD + 'at = [2.0]\n[[claims]]\nfigure = "worst_group_accuracy"\nabove = "one"\nbelow = "two"\ntext = "z"\n'
    spec = spec_of(tmp_path, text + vary)
    levels = {("one", 1.0): 0.3, ("one", 2.0): 0.6, ("two", 1.0): 0.4, ("two", 2.0): 0.5}
    runs = [record(spec, arm, 1, worst, worst, x) for (arm, x), worst in levels.items()]
    verdicts = judge(Results.of(spec, stored_of(runs)))
    assert [(verdict.claim.text, verdict.holds) for verdict in verdicts] == [("z", False), ("x", True)]
    assert "**Fails (at 1 of 2 values), with one seed:** z." in verdicts[0].line()


def test_the_page_puts_the_papers_figure_beside_ours_and_says_why_they_differ(tmp_path: Path) -> None:
    printed = 'method = "dp-sgd"\npaper = { worst_group_accuracy = 60.0 }\nwhy = "Fewer rows."'
    spec = spec_of(tmp_path, GOOD.replace('method = "dp-sgd"', printed))
    page = page_of(spec, stored_of([record(spec, "one", 1, 0.5, 0.6)]))
    assert "| one | 60 | 50.0 | -10.0 | 1.000 | 1.50 | 1 | 60 |" in page
    assert "- one (worst group -10.0): Fewer rows." in page
    near = page_of(spec, stored_of([record(spec, "one", 1, 0.59, 0.6)]))
    assert "Fewer rows." not in near
    unknown = spec_of(tmp_path, GOOD.replace('method = "dp-sgd"', printed.replace("Fewer rows.", "")))
    assert "why is not known" in page_of(unknown, stored_of([record(unknown, "one", 1, 0.5, 0.6)]))


def stored_pages(
    folder: Path, elsewhere: float, epsilon: float = 1.0, rows: int = 90, alone: float | None = None
) -> str:
    """The first page beside an overview whose `one` has a worst group of 0.3, and a page that has its method too.

    With `alone` the overview has `two`, whose method no other page has.
    """
    for name, worst in (("overview-trial", 0.3), ("trial", elsewhere)):
        text = GOOD if name == "overview-trial" else GOOD.replace("rows = 90", f"rows = {rows}")
        spec = read_spec(name, written(folder, text, name))
        assert isinstance(spec, Spec)
        run = record(spec, "one", 1, worst, 0.9) | {"epsilon": 1.0 if name == "overview-trial" else epsilon}
        runs = [run] if name == "trial" or alone is None else [run, record(spec, "two", 1, alone, 0.9)]
        (folder / f"{name}.json").write_text(json.dumps(stored_of(runs) | {"experiment": name}), encoding="utf-8")
    return index.index_of(folder, folder)


def test_a_default_below_half_of_what_another_page_has_on_the_same_rows_is_said_to_fail(tmp_path: Path) -> None:
    said = "no method with default settings has less than half of it"
    page = stored_pages(tmp_path, 0.61)
    assert f"**Fails:** {said}" in page
    assert "one on trial, 30.0 against 61.0 of one on [trial](trial.md)" in page
    assert f"**Holds:** {said}" in stored_pages(tmp_path, 0.59)


@pytest.mark.parametrize(
    ("own", "best", "doubtful"),
    [((0.05, 0.05), (0.5, 0.5), False), ((0.0, 0.15), (0.0, 0.5), True), ((0.05,), (0.0, 0.5), False)],
)
def test_less_than_half_of_the_best_is_in_doubt_where_the_seeds_differ_by_more(
    own: tuple[float, ...], best: tuple[float, ...], doubtful: bool
) -> None:
    assert index._within_noise(own, best) is doubtful


@pytest.mark.parametrize(("alone", "said"), [(0.5, "1 more have 50 %"), (0.49, "Not compared: two on trial.")])
def test_a_default_that_no_page_has_is_named_unless_nothing_can_be_twice_as_good(
    tmp_path: Path, alone: float, said: str
) -> None:
    page = " ".join(stored_pages(tmp_path, 0.5, alone=alone).split())
    assert "1 of 2 arms" in page
    assert said in page
    assert ("Not compared" in page) == (alone < 0.5)


@pytest.mark.parametrize("other", [{"epsilon": 2.0}, {"rows": 80}])
def test_a_better_run_with_a_larger_budget_or_on_other_rows_is_not_held_against_a_default(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    assert "less than half" not in stored_pages(tmp_path, 0.9, **other)


def test_a_run_with_another_fingerprint_is_not_on_the_page(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    stale = record(spec, "one", 1, 0.5, 0.6) | {"fingerprint": "0"}
    assert "Not run: one; two." in page_of(spec, stored_of([stale]))


def test_the_privacy_cost_gap_is_that_of_means_over_seeds_that_the_twin_has_too(tmp_path: Path) -> None:
    text = GOOD.replace('figures = ["worst_group_accuracy"]', 'figures = ["privacy_cost_gap"]\ntwin = "two"')
    spec = spec_of(tmp_path, text)
    runs = [record(spec, "two", seed, 0.8, 0.8) for seed in (1, 2)]
    runs += [record(spec, "one", 1, 0.5, 0.6), record(spec, "one", 2, 0.7, 0.4), record(spec, "one", 3, 0.0, 1.0)]
    results = Results.of(spec, stored_of(runs))
    found = results.figure("one", None, "privacy_cost_gap")
    assert found == pytest.approx({1: -0.1, 2: 0.3})  # the mean is π = 0.1; that of each seed's own range is 0.2
    assert results.figure("two", None, "privacy_cost_gap") == {}
    assert "| one | 10.0 ± 28.3 |" in page_of(spec, stored_of(runs))


def test_the_bias_of_clipping_is_measured_where_a_column_asks_for_it(tmp_path: Path) -> None:
    text = GOOD.replace('figures = ["worst_group_accuracy"]', 'figures = ["clipped_cosine", "clipped_length"]')
    asked = Asked("trial", "small", tmp_path / "out")
    assert reproduce(spec_of(tmp_path, text), asked, silent) == {}
    stored = json.loads((tmp_path / "out" / "trial.json").read_text(encoding="utf-8"))
    found = {run["arm"]: run["figures"] for run in stored["runs"]}
    assert -1 <= found["one"]["clipped_cosine"] <= 1
    assert 0 < found["one"]["clipped_length"] < 1  # dp-sgd clips
    plain = Asked("trial", "small", tmp_path / "plain")
    assert reproduce(spec_of(tmp_path), plain, silent) == {}
    kept = json.loads((tmp_path / "plain" / "trial.json").read_text(encoding="utf-8"))
    assert "clipped_cosine" not in kept["runs"][0]["figures"]


def test_an_arm_with_a_model_of_its_own_has_no_privacy_cost_against_another_model(tmp_path: Path) -> None:
    text = GOOD.replace('figures = ["worst_group_accuracy"]', 'figures = ["privacy_cost_gap"]\ntwin = "two"')
    own = text.replace('label = "one"', 'label = "one"\nmodel = "mlp"')
    spec = spec_of(tmp_path, own)
    runs = [record(spec, "one", 1, 0.5, 0.6), record(spec, "two", 1, 0.8, 0.7)]
    assert Results.of(spec, stored_of(runs)).figure("one", None, "privacy_cost_gap") == {}
    arm = '\n[[arms]]\nlabel = "three"\nmethod = "erm"\nmodel = "mlp"\n'
    spec = spec_of(tmp_path, own.replace("[[claims]]", f"{arm}[[claims]]", 1))
    results = Results.of(spec, stored_of([*runs, record(spec, "three", 1, 0.9, 0.8)]))
    assert results.twin_of("one") == "three"
    assert results.figure("one", None, "privacy_cost_gap") == pytest.approx({1: 0.2})


@pytest.mark.parametrize("kind", ["curve", "bars", "vary"])
def test_every_kind_of_plot_draws_every_arm(kind: str, tmp_path: Path) -> None:
    plot = f'[plot]\nkind = "{kind}"\nfigure = ["worst_group_accuracy", "average_group_accuracy"]\n'
    vary = '[vary]\nof = "settings"\nname = "epsilon"\nvalues = [1.0, 2.0]\n' if kind == "vary" else ""
    spec = spec_of(tmp_path, GOOD + plot + vary)
    at = (1.0, 2.0) if vary else (None,)
    runs = [record(spec, arm, seed, 0.1 * seed, 0.5, x) for arm in ("one", "two") for seed in (1, 2) for x in at]
    drawn = svg_of(spec, stored_of(runs))
    assert drawn is not None
    assert drawn.startswith("<svg")
    assert "nan" not in drawn
    assert [f">{arm}<" in drawn for arm in ("one", "two")] == [True, True]
    assert svg_of(spec_of(tmp_path), stored_of(runs)) is None


MOMENTS = GOOD.replace(
    'figures = ["worst_group_accuracy"', 'figures = ["group:large@50%", "accuracy@50%", "worst_group_accuracy"'
)


def test_a_figure_along_the_run_is_that_of_the_first_evaluation_at_or_after_its_moment(tmp_path: Path) -> None:
    text = MOMENTS.replace("[small]", "[small]\nsettings = { steps = 5, evaluate_every = 2 }", 1)
    assert text != GOOD
    spec = spec_of(tmp_path, text)
    task = tasks(spec, "small", seeds=1)[0]
    found = running.run_task(task, running.measured(spec))
    groups = list(found["by_group"])
    assert set(found["figures"]) >= {"group:large@50%", "accuracy@50%", "group_spread"}
    assert groups
    # Evaluations are after steps 2, 4 and 5: half of 5 steps is the one after step 4, which is no longer the first.
    again = running.run_task(task, [f"accuracy@{share}%" for share in (40, 50, 80, 90)])["figures"]
    assert again["accuracy@50%"] == again["accuracy@80%"] == found["figures"]["accuracy@50%"]
    assert again["accuracy@90%"] == again["accuracy"]


@pytest.mark.parametrize("name", ["accuracy@0%", "accuracy@100%", "accuracy@x", "seconds@50%", "group:@50%"])
def test_figures_that_no_run_has_along_the_way_are_rejected(name: str) -> None:
    from experiments.runner.columns import column

    with pytest.raises(InputError, match="unknown figure"):
        column(name)


def test_what_the_tail_does_is_measured_at_its_moment_and_only_where_there_is_a_tail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    classes = ["a", "b"] * 150
    owners, budgets = [{"a": "careful", "b": "open"}[name] for name in classes], {"careful": 0.5, "open": 2.0}
    inputs = [[float(name == "a"), 1.0] for name in classes]
    train = Problem.from_arrays(inputs, classes, classes, owners=owners, budgets=budgets)
    test = Problem.from_arrays(inputs, classes, classes)
    assert running.rows_of_owners(test, train).public.owner_sizes == (150, 150)
    monkeypatch.setattr(running, "load_pair", lambda *_: (train, test))
    names, found = ["filled@50%", "tail_removed", "tail_idle@50%"], {}
    for method, options in (("ino-sgd", {"tail": 40.0, "alpha": 1.0, "beta": 1.0}), ("idp-sgd", {}), ("dp-sgd", {})):
        settings = {"steps": 4, "batch_size": 30, "delta": 1e-3, "accountant": "rdp"}
        task = Task(method, None, 1, method, "any", "logistic", settings=settings, options={"clip": 0.01, **options})
        figures = running.run_task(task, names)["figures"]
        found[method] = [figures[name] for name in names]
    # At a clip of 0.01 every gradient is as long as its threshold, and a straight tail of 40 % removes 20 %.
    assert found["ino-sgd"] == pytest.approx([1.0, 0.2, 0.0], abs=0.02)
    assert found["idp-sgd"] == [pytest.approx(1.0), None, None]
    assert found["dp-sgd"] == [None, None, None]


def test_a_failing_claim_says_why_and_one_that_holds_does_not(tmp_path: Path) -> None:
    claim = '[[claims]]\nfigure = "worst_group_accuracy"\nabove = "{}"\nbelow = "{}"\ntext = "{}"\nwhy = "{}."\n'
    spec = spec_of(tmp_path, GOOD + claim.format("one", "two", "up", "not up") + claim.format("two", "one", "on", "no"))
    page = page_of(spec, stored_of([record(spec, "one", 1, 0.5, 0.5), record(spec, "two", 1, 0.7, 0.7)]))
    assert "Why: not up." in page
    assert "Why: no." not in page


TREND = """
[[trends]]
above = "one"
below = "two"
text = "the smaller, the more"
[trends.against]
"group:large" = 3.0
"group:small" = 1.0
"worst_group_accuracy" = 0.5
"""


def test_the_page_has_a_line_through_changes_with_its_p_value(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, GOOD + TREND)
    runs = [record(spec, "one", 1, 0.50, 0.64), record(spec, "two", 1, 0.40, 0.60)]
    page = page_of(spec, stored_of(runs))
    assert "## Change against the budget" in page
    assert "the smaller, the more. -2.6 points per unit of ε, Pearson's r = -0.98, p = 0.12, 3 owners" in page
    assert page.index("**Not shown:** the smaller") > 0
    assert "Change against" not in page_of(spec, stored_of(runs[:1]))
    more = [record(spec, "one", 2, 0.53, 0.60), record(spec, "two", 2, 0.41, 0.61)]
    assert "Why: the seeds alone turn the line by " in page_of(spec, stored_of([*runs, *more]))
    noisy = [record(spec, "one", 2, 0.30, 0.70), record(spec, "two", 2, 0.70, 0.50)]
    assert "Why: from seed to seed an owner's change differs by " in page_of(spec, stored_of([*runs, *noisy]))


def test_seeds_start_where_the_scale_says(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, GOOD.replace("[small]", "[small]\nfirst_seed = 41"))
    assert {task.seed for task in tasks(spec, "small", seeds=3)} == {41, 42, 43}


def test_the_page_has_what_a_constant_answer_would_score(tmp_path: Path) -> None:
    spec, asked = spec_of(tmp_path), Asked("trial", "small", tmp_path / "out")
    reproduce(spec, asked, silent)
    stored = json.loads((tmp_path / "out" / "trial.json").read_text(encoding="utf-8"))
    task = tasks(spec, "small")[0]
    train, test = load_pair(task.data, task.data_options, task.seed)
    most = int(train.targets.bincount().argmax())
    known = stored["runs"][0]["constant"]["figures"]["accuracy"]
    assert known == pytest.approx(float((test.targets == most).double().mean()))
    line = next(line for line in page_of(spec, stored).splitlines() if line.startswith("| constant answer |"))
    assert f"{100 * stored['runs'][0]['constant']['figures']['worst_group_accuracy']:.1f}" in line
    other = next(line for line in page_of(spec, stored).splitlines() if line.startswith("| one |"))
    assert line.count("|") == other.count("|")


def test_overall_accuracy_can_have_the_groups_in_their_training_shares(tmp_path: Path) -> None:
    """Test rows with other shares of the groups must not decide what a method costs on average."""
    spec = spec_of(tmp_path, GOOD)
    task = tasks(spec, "small", seeds=1)[0]
    train, test = load_pair(task.data, task.data_options, task.seed)
    model = build_model(task.model, train.public, Seed.from_int(1))
    some = taken(test, np.flatnonzero(test.cell_of == 0))
    scored = [evaluate(model, rows, train.public.groups) for rows in (test, some)]
    shares = [size / train.public.rows for size in train.public.group_sizes]
    found = running._figures(scored[0], train)["accuracy_as_trained"]
    of_groups = [score.accuracy for score in scored[0].by_group.values()]
    assert found == pytest.approx(sum(share * own for share, own in zip(shares, of_groups, strict=True)))
    assert running._figures(scored[1], train)["accuracy_as_trained"] is None, (
        "a group without test rows has no accuracy"
    )


def test_runs_stored_before_training_shares_were_known_get_them_without_training(
    tmp_path: Path, counted: list[str]
) -> None:
    text = GOOD.replace('figures = ["worst_group_accuracy"', 'figures = ["accuracy_as_trained", "worst_group_accuracy"')
    assert text != GOOD
    spec, asked, path = (
        spec_of(tmp_path, text),
        Asked("trial", "small", tmp_path / "out"),
        tmp_path / "out" / "trial.json",
    )
    reproduce(spec, asked, silent)
    whole = json.loads(path.read_text(encoding="utf-8"))
    for run in whole["runs"]:
        assert run["figures"].pop("accuracy_as_trained") > 0
    path.write_text(json.dumps(whole), encoding="utf-8")
    before = list(counted)
    reproduce(spec, asked, silent)
    assert counted == before
    for run in json.loads(path.read_text(encoding="utf-8"))["runs"]:
        train, _ = load_pair(spec.data, tasks(spec, "small")[0].data_options, run["seed"])
        sizes = dict(zip(train.public.groups, train.public.group_sizes, strict=True))
        right = sum(sizes[name] * score["accuracy"] for name, score in run["by_group"].items())
        assert run["figures"]["accuracy_as_trained"] == pytest.approx(right / train.public.rows)


def test_runs_stored_without_a_constant_answer_get_it_and_are_not_run_again(tmp_path: Path, counted: list[str]) -> None:
    spec, asked, path = spec_of(tmp_path), Asked("trial", "small", tmp_path / "out"), tmp_path / "out" / "trial.json"
    reproduce(spec, asked, silent)
    whole = json.loads(path.read_text(encoding="utf-8"))
    old = [{key: value for key, value in run.items() if key != "constant"} for run in whole["runs"]]
    old[0]["code"] = "0123456789abcdef"
    path.write_text(json.dumps({**whole, "runs": old}), encoding="utf-8")
    before = list(counted)
    reproduce(spec, asked, silent)
    assert counted == before
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    assert [run["constant"] for run in runs] == [run["constant"] for run in whole["runs"]]
    assert runs[0]["code"] == "0123456789abcdef"
