"""The report's data: averages, intervals, who is compared with whom, the JSON twin and the safety of the page."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from tests.report.run_records import SEX_INCOME, make_audit, make_effects, make_run, make_runs
from veil.errors import InputError
from veil.report import build_twin, group_table, render_page, render_summary, summary_table, write_report
from veil.report.cleaning import clean, thin
from veil.report.intervals import pareto, spread, wilson
from veil.report.wording import date, number, percent, points, spelled, value

HOSTILE = (
    '<script>alert(1)</script> × "a"',
    "</script><img src=x onerror=alert(1)> × 'b'",
    "{{ 7*7 }} × & \u2028",
    "× × ×",
)
REQUIRED = {"metric": "worst_group_accuracy", "op": ">=", "threshold": 0.6}


VOID = {"meta", "link", "br", "img", "input"}


class Tree(HTMLParser):
    """Text outside scripts and styles by the id of the nearest ancestor, and every start tag with its attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self._open: list[tuple[str, str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            nearest = self._open[-1][1] if self._open else ""
            self._open.append((tag, dict(attrs).get("id") or nearest))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][0] not in ("script", "style") and data.strip():
            self.text.setdefault(self._open[-1][1], []).append(data.strip())


def numbers_in(value: Any) -> list[float]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return []
    if isinstance(value, (int, float)):
        return [float(value)]
    return [n for part in (value.values() if isinstance(value, dict) else value) for n in numbers_in(part)]


def strings_in(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [*value, *(s for part in value.values() for s in strings_in(part))]
    return [s for part in value for s in strings_in(part)] if isinstance(value, list) else []


def missing_numbers(texts: list[str], twin: Any) -> list[str]:
    """Numbers of the texts that no number of the twin, shown as the page shows numbers, gives."""
    values = numbers_in(twin)
    known = {number(abs(v), digits) for v in values for digits in (3, 4)} | {f"{abs(100 * v):.1f}" for v in values}
    words = set(strings_in(twin))
    known |= {value(abs(v)) for v in values}
    dates = {date(v) for v in values if abs(v) < 1e5}
    known |= {word for word in words if word.isdigit()}  # a class may be called 0
    words |= {spelled(word) for word in words}
    names = sorted(
        {s for s in words if re.search(r"\d", s) and (len(s) > 4 or re.search("[A-Za-z]", s))},
        key=len,
        reverse=True,
    )
    missing = []
    for text in texts:
        for name in names:
            text = text.replace(name, " ")
        text = re.sub(r"\d{4}-\d\d-\d\d", lambda found: " " if found[0] in dates else found[0], text)
        tokens = re.findall(r"\d[\d\u202f]*(?:\.\d+)?(?:e-?\d+)?", text)
        missing += [token for token in tokens if token.rstrip("\u202f") not in known]
    return missing


def test_the_interval_of_an_accuracy_is_wilsons() -> None:
    for hits, n in [(0, 5), (3, 10), (57, 100), (40, 40)]:
        expected = binomtest(hits, n).proportion_ci(confidence_level=0.95, method="wilson")
        low, high = wilson(hits / n, n) or (math.nan, math.nan)
        assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_a_group_without_rows_has_no_interval_and_no_accuracy_of_zero() -> None:
    run = make_run("dp-sgd")
    run["metrics"]["by_group"]["Male × >50K"] = {"n": 0, "accuracy": None}
    entry = next(group for group in group_table([run]) if group["name"] == "Male × >50K")
    assert entry["accuracy"] is None
    assert entry["low"] is None
    assert wilson(0.5, 0) is None


@settings(deadline=None, derandomize=True)
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20))
def test_the_std_over_seeds_is_the_sample_std(values: list[float]) -> None:
    found = spread([*values, None])
    assert found["n"] == len(values)
    assert found["mean"] == pytest.approx(np.mean(values), abs=1e-9)
    assert found["std"] == pytest.approx(np.std(values, ddof=1), abs=1e-9)


def test_one_seed_has_no_std() -> None:
    assert spread([0.5])["std"] is None
    assert summary_table([make_run("asc")])[0]["worst_group_accuracy"]["std"] is None


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8))
def test_a_point_is_on_the_front_exactly_if_none_dominates_it(points_: list[tuple[int, int]]) -> None:
    for point, on_front in zip(points_, pareto(points_), strict=True):
        dominated = any(o[0] >= point[0] and o[1] >= point[1] and (o[0] > point[0] or o[1] > point[1]) for o in points_)
        assert on_front is not dominated


def test_the_front_is_among_private_methods_when_there_are_any() -> None:
    table = {row["name"]: row for row in summary_table(make_runs())}
    assert not table["erm"]["front"]
    assert table["asc"]["front"]


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 400), st.integers(2, 30))
def test_thinning_keeps_first_last_and_alignment(steps: int, most: int) -> None:
    history = {"step": list(range(steps)), "weights": [[s] for s in range(steps)], "accuracy": [None] * steps}
    history["accuracy"][steps // 2] = 0.5
    thinned = thin(history, most)
    assert thinned["step"][0] == 0
    assert thinned["step"][-1] == steps - 1
    assert [w[0] for w in thinned["weights"]] == thinned["step"]
    assert len(thinned["step"]) <= 2 * most
    assert thin(thinned, most) == thinned
    assert 0.5 in thinned["accuracy"]


def test_what_is_not_finite_becomes_null_in_the_twin() -> None:
    assert clean({"a": [math.nan, math.inf, np.float64(1.5), np.array([1, 2])]}) == {"a": [None, None, 1.5, [1, 2]]}


def test_numbers_are_shown_with_their_sign_and_nothing_as_a_dash() -> None:
    assert points(-0.0312) == "−3.1"
    assert percent(None) == number(None) == "–"
    assert number(-1.5e-7) == "−1.5e-7"
    assert number(-0.25) == "−0.25"


def test_runs_are_put_together_by_method_and_by_epsilon_where_it_differs() -> None:
    runs = [make_run("dp-sgd", 0), make_run("dp-sgd", 1), make_run("dp-sgd", 0, epsilon=4.0), make_run("erm")]
    table = summary_table(runs)
    assert [row["name"] for row in table] == ["dp-sgd, ε = 1", "dp-sgd, ε = 4", "erm"]
    assert [row["seeds"] for row in table] == [2, 1, 1]


def test_the_page_is_about_the_private_method_with_the_best_worst_group() -> None:
    twin = build_twin(make_runs())
    assert twin["verdict"]["subject"] == "asc"
    assert twin["baselines"] == ["dp-sgd", "erm"]
    means = {row["name"]: row["worst_group_accuracy"]["mean"] for row in twin["summary"]}
    assert twin["verdict"]["worst_group_accuracy"]["mean"] == means["asc"]


def test_differences_to_a_baseline_are_those_of_the_means() -> None:
    runs = make_runs(("asc", "dp-sgd"), seeds=2)
    means = [
        np.mean([r["metrics"]["by_group"][SEX_INCOME[3]]["accuracy"] for r in part]) for part in (runs[:2], runs[2:])
    ]
    assert group_table(runs)[3]["against"]["dp-sgd"] == pytest.approx(means[0] - means[1])


@pytest.mark.parametrize(("threshold", "met"), [(0.3, True), (0.99, False)])
def test_a_requirement_is_judged_by_what_was_measured(threshold: float, met: bool) -> None:
    verdict = build_twin([make_run("asc")], requirements=[{**REQUIRED, "threshold": threshold}])["verdict"]
    assert verdict["met"] is met
    page = render_page([make_run("asc")], requirements=[{**REQUIRED, "threshold": threshold}])
    assert ("Pass" in page, "Fail" in page) == (met, not met)


def test_a_requirement_that_cannot_be_measured_is_not_met() -> None:
    assert build_twin([make_run(evaluated=False)], requirements=[REQUIRED])["verdict"]["met"] is False


def test_a_comparison_sign_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InputError, match="=>"):
        build_twin([make_run()], requirements=[{**REQUIRED, "op": "=>"}])


def test_a_report_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="at least one run"):
        build_twin([])


def test_a_panel_appears_only_with_its_data() -> None:
    plain, rich = build_twin([make_run("dp-sgd")]), build_twin([make_run("asc", extras=True)], audits=[make_audit()])
    only_rich = {"parity-run0", "calibration-run0", "roc-run0", "confusion-0-run0", "state-weights-run0", "audit-0"}
    assert only_rich <= set(rich["figures"])
    assert not only_rich & set(plain["figures"])
    assert "pareto" not in plain["figures"]
    assert {"pareto", "gap"} <= set(build_twin(make_runs())["figures"])
    assert "epsilon-owners-run0" in build_twin([make_run(owners={"a": 1.0, "b": 2.0})])["figures"]
    assert "heat" not in build_twin([make_run(groups=("one", "two", "three", "four"))])["figures"]


def test_a_method_without_privacy_shows_no_epsilon_and_says_so() -> None:
    twin = build_twin([make_run("erm")])
    assert twin["verdict"]["epsilon"] is None
    assert not [name for name in twin["figures"] if name.startswith("epsilon")]
    assert "not private" in render_page([make_run("erm")])


def test_a_run_without_evaluation_still_has_a_page() -> None:
    page = render_page([make_run("dp-sgd", evaluated=False)])
    assert "No row was declared public" in page


@pytest.mark.parametrize("figures", [(), ("root_mean_squared_error", "mean_absolute_error", "error_of_the_mean", "r2")])
def test_groups_that_are_too_small_to_be_measured_are_not_called_undeclared(figures: tuple[str, ...]) -> None:
    scores = {name: {"n": 9, "accuracy": None, **dict.fromkeys(figures)} for name in ("a", "b")}
    twin = build_twin([{"method": "auto", "metrics": {"by_group": scores, "worst_group_accuracy": None}}])
    assert "No group has enough evaluation rows" in twin["verdict"]["headline"]
    assert "declared public" not in twin["verdict"]["headline"]


def test_the_least_that_a_run_may_say_is_enough() -> None:
    assert "<h1" in render_page([{"method": "dp-sgd"}])
    assert "dp-sgd" in render_summary({"method": "dp-sgd"})


def test_what_was_computed_on_private_rows_is_marked() -> None:
    covered, seen = make_run(extras=True), make_run(extras=True)
    seen["metrics"]["private"] = True
    seen["findings"]["Gradients"] = {"private": True, "angle": 0.5}
    marks = ("computed exactly on private rows", "from private rows: not covered by the certificate")
    assert [mark in render_page([covered]) for mark in marks] == [False, False]
    assert [mark in render_page([seen]) for mark in marks] == [True, True]


def test_with_several_owners_the_strip_says_that_its_epsilon_is_the_largest() -> None:
    owners = build_twin([make_run(owners={"a": 0.5, "b": 2.0, "c": 1.0})])["verdict"]["owners"]
    assert owners == {"count": 3, "smallest": pytest.approx(0.499)}
    assert build_twin([make_run()])["verdict"]["owners"] is None


def test_a_twin_of_an_earlier_report_stands_for_its_runs() -> None:
    twin = build_twin(make_runs(("asc", "erm"), seeds=1))
    assert build_twin([twin]) == twin


def test_the_page_and_its_twin_are_all_that_is_written(tmp_path: Path) -> None:
    path = write_report([make_run()], tmp_path / "report.html")
    assert path == tmp_path / "report.html"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["report.html", "report.json"]
    embedded = re.search(r'id="facts">(.*?)</script>', path.read_text(encoding="utf-8"), re.S)
    assert embedded is not None
    assert json.loads(embedded[1]) == json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))


def test_the_same_records_give_the_same_bytes() -> None:
    assert render_page(make_runs(seeds=1)) == render_page(make_runs(seeds=1))


def test_a_comparison_of_many_long_runs_stays_below_five_megabytes() -> None:
    groups = tuple(f"{a} × {b}" for a in ("Female", "Male") for b in ("Asian", "Black", "Other", "White", "Native"))
    runs = make_runs(("erm", "dp-sgd", "asc"), seeds=1, groups=groups, steps=2000, extras=True) * 7
    assert sum(len(run["history"]["step"]) for run in runs) == 42_000
    assert len(render_page(runs).encode("utf-8")) < 5_000_000


def test_the_script_is_allowed_by_its_hash_and_nothing_else_may_run() -> None:
    page = render_page([make_run()])
    script = page.rsplit("<script>", 1)[1].split("</script>", 1)[0]
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode()
    policy = next(a["content"] or "" for tag, a in Tree(page).tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy
    assert page.count("<script") == 2


@pytest.mark.parametrize("make", [lambda: [make_run(extras=True)], make_runs])
def test_nothing_on_the_page_points_outside_it_and_no_handler_is_inline(make: Any) -> None:
    for tag, attributes in Tree(render_page(make(), audits=[make_audit()])).tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href", "action", "srcset"):
            target = attributes.get(name) or ""
            assert target.startswith(("#", "data:")) or not target, (tag, target)


def test_hostile_names_stay_text_in_page_twin_and_notebook() -> None:
    run = make_run("asc", groups=HOSTILE, owners={HOSTILE[0]: 1.0, HOSTILE[1]: 2.0}, extras=True)
    run["config"] |= {"data": HOSTILE[1], "label": HOSTILE[0]}
    page, fragment = render_page([run, make_run("erm", groups=HOSTILE)]), render_summary(run)
    assert not [tag for tag, _ in Tree(page).tags if tag == "img"]
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert "<script" not in fragment
    assert "<img" not in fragment
    embedded = page.split('id="facts">', 1)[1].split("</script>", 1)[0]
    assert not set("<>&\u2028\u2029") & set(embedded)
    assert [group["name"] for group in json.loads(embedded)["groups"]] == list(HOSTILE)
    assert "49" not in "".join(
        Tree(render_page([make_run("erm", groups=HOSTILE, evaluated=False)])).text["table-groups"]
    )


@pytest.mark.parametrize("several", [False, True])
def test_every_number_on_the_page_is_in_the_twin(several: bool) -> None:
    rich = make_run("asc", extras=True, owners={"a": 1.0, "b": 3.0})
    rich |= {"effects": make_effects(("<=50K", ">50K"))}
    runs = make_runs(("erm", "dp-sgd", "asc"), seeds=2, steps=60) if several else [rich]
    assert unknown_numbers(runs, requirements=[REQUIRED], audits=[make_audit()]) == {}


def unknown_numbers(runs: list[dict[str, Any]], **given_: Any) -> dict[str, list[str]]:
    """The numbers of each part of the page that the twin's part does not have."""
    twin = json.loads(json.dumps(build_twin(runs, **given_)))
    text = Tree(render_page(runs, **given_)).text
    assert {"verdict", "table-groups", "data", "figure-forest"} <= set(text)
    parts = {
        "verdict": [twin["verdict"], twin["interval"], twin["kicker"]],
        "table-groups": [twin["groups"], twin["interval"], twin["verdict"]["seeds"]],
        "table-summary": twin["summary"],
        "data": [twin["data"], twin["runs"][0]["config"], twin["runs"][0]["classes"]],
        **{f"figure-{name}": [figure, twin["interval"]] for name, figure in twin["figures"].items()},
    }
    for index, run in enumerate(twin["runs"]):
        own = [{**run, "history": None}, twin["even_odds"], twin["names"], twin["further"]]
        parts |= {f"{section}-{index}": own for section in ("privacy", "training", "quality", "configuration")}
    found = {name: missing_numbers(texts, parts.get(name, twin)) for name, texts in text.items()}
    return {name: numbers for name, numbers in found.items() if numbers}


def run_with_gap(bound: float, train: float | None, test: float) -> dict[str, Any]:
    """A run whose first group has this bound and these accuracies."""
    run = make_run("asc")
    first = SEX_INCOME[0]
    run["certificate"]["generalisation"] = dict.fromkeys(SEX_INCOME, bound)
    run["certificate"]["generalisation_statement"] = "Said of training rows and new rows."
    run["metrics"]["by_group"][first]["accuracy"] = test
    if train is not None:
        run["findings"] = {"Training rows": {"private": True, f"accuracy of {first}": train}}
    return run


def test_a_measured_gap_stands_beside_its_bound() -> None:
    run = run_with_gap(0.2375, 0.81, 0.7)
    own = build_twin([run])["generalisation"]["0"]
    assert own["groups"][0] == {
        "name": SEX_INCOME[0],
        "bound": 0.2375,
        "says": True,
        "train": 0.81,
        "test": 0.7,
        "gap": pytest.approx(0.11),
    }
    text = " ".join(Tree(render_page([run])).text["privacy-0"])
    for shown in ("Said of training rows and new rows.", "23.8", percent(0.81), "+11.0", "does not cover them"):
        assert shown in text
    silent = " ".join(Tree(render_page([run_with_gap(0.2375, None, 0.7)])).text["privacy-0"])
    assert "--show-private" in silent
    assert build_twin([make_run("asc")])["generalisation"]["0"] is None


@pytest.mark.parametrize(
    ("bound", "test", "says"), [(1.0, 0.5, False), (0.8, 0.5, False), (0.8, 0.85, True), (0.85, 0.8, False)]
)
def test_a_bound_farther_than_any_accuracy_can_be_says_nothing(bound: float, test: float, says: bool) -> None:
    run = run_with_gap(bound, None, test)
    assert build_twin([run])["generalisation"]["0"]["groups"][0]["says"] is says
    assert says or "says nothing" in " ".join(Tree(render_page([run])).text["privacy-0"])


def test_every_key_of_the_twin_is_documented() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "report.md").read_text(encoding="utf-8")
    twin = build_twin([run_with_gap(0.2, 0.8, 0.7), *make_runs(seeds=2)], requirements=[REQUIRED])
    told = next(own for own in twin["generalisation"].values() if own is not None)
    keys = {
        *twin,
        *told,
        *told["groups"][0],
        *twin["verdict"],
        *twin["verdict"]["requirements"][0],
        *twin["groups"][0],
        *twin["summary"][0],
        *twin["data"],
    }
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


def test_the_search_for_missing_numbers_does_find_one() -> None:
    assert missing_numbers(["61.3\u202f% of 12\u202f345"], {"a": 0.613, "b": 999}) == ["12\u202f345"]
