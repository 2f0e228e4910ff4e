"""What the model learned, on the page and the card; and groups that are too small to be heard."""

from __future__ import annotations

from typing import Any

import pytest

from tests.report.run_records import make_effects, make_run, make_runs
from tests.report.test_report_twin import Tree, unknown_numbers
from veil.report import build_twin, render_card, render_page
from veil.report.learned import READ_OFF

TWO = ("<=50K", ">50K")


def texts(page: str, part: str) -> str:
    return " ".join(Tree(page).text.get(part, []))


def test_the_ten_columns_and_four_pairs_that_matter_most_are_drawn() -> None:
    run = make_run("auto", effects=TWO)
    twin = build_twin([run])
    own = [one for one in run["effects"]["columns"] if one["kind"] != "text"][:10]
    drawn = {name: figure for name, figure in twin["figures"].items() if name.startswith("effect-")}
    assert [figure["title"] for figure in drawn.values()] == [one["column"] for one in own]
    assert [figure["kind"] for figure in drawn.values()][:5] == ["lines", "bars", "lines", "lines", "bars"]
    assert sum(name.startswith("pair-") for name in twin["figures"]) == 4
    first = drawn["effect-0-run0"]
    assert first["series"][0]["x"] == own[0]["at"]
    assert first["series"][0]["y"] == own[0]["effects"][0]
    assert drawn["effect-2-run0"]["x_format"] == "date"
    assert {tuple(figure["span"]) for figure in drawn.values()} == {tuple(first["span"])}


def by_group(group: list[str]) -> tuple[dict[str, Any], dict[str, Any], str]:
    """A run with these columns of groups, its figures, and what its page says of groups."""
    run = make_run("auto", effects=TWO)
    run = {**run, "config": {**run["config"], "group": group}}
    twin = build_twin([run])
    return run, twin["figures"], twin["learned"]["0"]["by_group"]


def test_what_changes_for_each_group_is_drawn_however_little_it_matters() -> None:
    run, figures, said = by_group(["column 5: category", "income"])
    weakest = run["effects"]["pairs"][-1]
    drawn = [figure for name, figure in figures.items() if name.startswith("by-group-")]
    assert [figure["title"] for figure in drawn] == [" × ".join(weakest["columns"])]
    assert drawn[0]["values"] == [line[:4] for line in weakest["effects"][0][:4]]
    assert "column 5: category" not in {f["title"] for name, f in figures.items() if name.startswith("pair-")}
    assert said.startswith("Beside the effect of column 5: category alone")


def test_a_column_of_groups_stands_down_the_side_of_its_figure() -> None:
    run, figures, _ = by_group(["column 0: number"])
    first = figures["by-group-0-run0"]
    assert first["row_label"] == "column 0: number"
    assert [list(line) for line in zip(*first["values"], strict=True)] == [
        line[:4] for line in run["effects"]["pairs"][0]["effects"][0][:4]
    ]


@pytest.mark.parametrize(
    ("group", "sentence"),
    [
        (["sex", "income"], "The model does not see sex: every column has the same effect in every group."),
        (
            ["column 3: number"],
            "Every column has the same effect in every group; column 3: number adds its own effect.",
        ),
    ],
)
def test_where_nothing_changes_from_group_to_group_the_page_says_so(group: list[str], sentence: str) -> None:
    run, figures, said = by_group(group)
    assert said.startswith(sentence)
    assert not [name for name in figures if name.startswith("by-group-")]
    assert sentence in texts(render_page([run]), "learned-0")


def test_of_many_values_those_with_the_largest_effects_are_drawn_and_the_note_says_so() -> None:
    run = make_run("auto", effects=TWO)
    figure = build_twin([run])["figures"]["effect-4-run0"]
    values = dict(zip(run["effects"]["columns"][4]["at"], run["effects"]["columns"][4]["effects"][0], strict=True))
    largest = sorted(values, key=lambda name: -abs(values[name]))[:10]
    assert {bar["name"] for bar in figure["bars"]} == set(largest)
    assert figure["note"].startswith("The 10 of 24 values with the largest effects. Missing or any other value: ")


def test_all_columns_and_pairs_are_listed_in_their_order() -> None:
    run = make_run("auto", effects=TWO)
    page = render_page([run])
    for one in (*run["effects"]["columns"], *run["effects"]["pairs"]):
        name = one["column"] if "column" in one else " × ".join(one["columns"])
        assert f"{name}</th>" in page
    assert "All 13 columns and 6 pairs" in page


@pytest.mark.parametrize(
    ("classes", "sentence"),
    [
        (TWO, "Up (+): “>50K” is more likely."),
        (("a", "b", "c"), "Up (+): the class is more likely than others."),
    ],
)
def test_the_page_says_how_to_read_it(classes: tuple[str, ...], sentence: str) -> None:
    run = make_run("auto", effects=classes)
    text = texts(render_page([run]), "learned-0")
    assert sentence in text
    assert "they read no rows" in text
    assert (READ_OFF in text) == run["effects"]["from_rows"]


def test_numbers_are_read_in_units_of_the_target() -> None:
    run = {**make_run("auto", effects=TWO), "effects": {**make_effects(TWO), "unit": "target", "curves": ["target"]}}
    twin = build_twin([run])
    assert twin["learned"]["0"]["reading"].startswith("Up (+): the predicted number is higher.")
    assert twin["figures"]["effect-0-run0"]["y_label"] == "Change of the predicted number"


def test_of_several_classes_each_has_a_line_and_a_column() -> None:
    names = ("a", "b", "c")
    figures = build_twin([make_run("auto", effects=names)])["figures"]
    assert [line["name"] for line in figures["effect-0-run0"]["series"]] == list(names)
    assert figures["effect-1-run0"]["kind"] == "heat"
    assert figures["effect-1-run0"]["columns"] == list(names)
    assert figures["pair-0-run0"]["note"].startswith("Class ")


@pytest.mark.parametrize("classes", [TWO, ("a", "b", "c")])
def test_every_number_of_what_was_learned_is_in_the_twin(classes: tuple[str, ...]) -> None:
    assert unknown_numbers([make_run("auto", effects=classes)]) == {}


def test_a_comparison_shows_it_for_the_runs_that_have_it() -> None:
    runs = [make_run("auto", effects=TWO), make_run("dp-sgd")]
    page = render_page(runs)
    assert "learned-0" in Tree(page).text
    assert "learned-1" not in Tree(page).text
    assert ["learned-0", "What it learned"] in build_twin(runs)["sections"]
    assert not [entry for entry in build_twin(runs[1:])["sections"] if entry[0].startswith("learned")]


def test_of_many_runs_those_shown_one_by_one_keep_what_they_learned() -> None:
    runs = [*make_runs(("auto",), seeds=14, effects=TWO), make_run("dp-sgd")]
    twin = build_twin(runs)
    shown = {one["run"] for one in twin["detailed"]}
    assert {index for index, run in enumerate(twin["runs"]) if run["effects"]} == shown - {14}
    assert build_twin([twin]) == twin


def test_the_card_lists_what_matters_most() -> None:
    card = render_card(make_run("auto", effects=TWO))
    rows = [line for line in card.splitlines() if line.startswith("| column ")]
    assert len(rows) == 10
    assert rows[0].startswith("| column 0: number | number | ")
    assert "Up (+): “&gt;50K” is more likely." in card
    assert "`effects.json` has all 13 columns and 6 pairs." in card
    assert "What it learned" not in render_card(make_run("dp-sgd"))


def small_groups(**details: Any) -> dict[str, Any]:
    run = make_run("auto", groups=("f × a", "f × b", "f × c", "m × a"))
    run["groups"] = [{"name": n, "rows": r} for n, r in (("f × a", 900), ("f × b", 1), ("f × c", 3), ("m × a", 800))]
    run["details"] |= {"aim": "worst-group", "rows_to_be_heard": 66, **details}
    return run


def test_groups_that_are_too_small_to_be_heard_are_named_with_their_kin() -> None:
    run = small_groups(heard_together={"f × c": "f × a"})
    sentence = (
        "Too few rows to be treated separately at this ε: 'f × c' (3 rows), treated together with 'f × a'. "
        "About 66 rows would be needed."
    )
    assert build_twin([run])["verdict"]["unheard"] == sentence
    assert sentence in texts(render_page([run]), "groups")
    assert sentence in render_card(run)


def test_groups_of_people_are_counted_in_people() -> None:
    run = small_groups(heard_together={"f × b": "m × a", "f × c": "f × a"})
    run["privacy"] |= {"unit": "one person"}
    said = build_twin([run])["verdict"]["unheard"]
    assert said.startswith("Too few people to be treated separately")
    assert "'f × b' (1 person)" in said
    assert "'f × c' (3 people)" in said
    assert said.endswith("About 66 people would be needed.")


def test_groups_with_other_kin_stand_apart() -> None:
    run = small_groups(heard_together={"f × b": "m × a", "f × c": "other small groups"})
    said = build_twin([run])["verdict"]["unheard"]
    assert "'f × b' (1 row), treated together with 'm × a'; " in said
    assert "'f × c' (3 rows), treated together with other small groups." in said


@pytest.mark.parametrize("details", [{"heard_together": {}}, {"heard_together": {"f × c": "f × a"}, "aim": "overall"}])
def test_nothing_is_said_where_all_are_heard_or_nobody_is_asked(details: dict[str, Any]) -> None:
    run = small_groups(**details)
    assert build_twin([run])["verdict"]["unheard"] is None
    assert "Too few rows to be treated" not in render_card(run)


def of_numbers(at: list[float], effects: list[float]) -> dict[str, Any]:
    """A run with one column of numbers."""
    run = make_run("auto", effects=TWO)
    column = {
        **run["effects"]["columns"][0],
        "kind": "number",
        "at": at,
        "effects": [effects],
        "noise": [[0.1] * len(at)],
    }
    return {**run, "effects": {**run["effects"], "columns": [column], "pairs": []}}


@pytest.mark.parametrize(
    ("at", "drawn"),
    [
        # Of two knots at the bound the last counts; the last of the crowd begins the line to the next knot.
        ([0.0, 0.0, 1e-5, 2e-5, 3e-5, 50.0, 90.0], [1, 4, 5, 6]),
        ([0.0, 50.0, 50.001, 50.002, 50.003, 50.004, 90.0], [0, 1, 3, 5, 6]),
        ([0.0, 10.0, 89.97, 89.98, 89.99, 90.0], [0, 1, 2, 5]),
        ([0.0, 10.0, 20.0, 90.0], [0, 1, 2, 3]),
        ([7.0, 7.0, 7.0, 7.0, 7.0], [0, 1, 2, 3, 4]),
    ],
)
def test_of_many_knots_in_almost_one_place_few_are_drawn_and_the_curve_beside_them_stays(
    at: list[float], drawn: list[int]
) -> None:
    effects = [float(place) for place in range(len(at))]
    figure = build_twin([of_numbers(at, effects)])["figures"]["effect-0-run0"]
    assert figure["series"][0]["y"] == [effects[place] for place in drawn]
    assert figure["series"][0]["x"] == [at[place] for place in drawn]
    assert ("few of them are drawn" in figure["note"]) == (len(drawn) < len(at))
