"""The report in a real browser: it draws, asks for nothing, reacts, fits a phone, and can be used without a mouse."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.advice.advice_cases import ROWS, asked, people
from tests.report.run_records import make_audit, make_run, make_runs
from veil.advice.noise_tables import EPSILON_STOPS, noise_tables
from veil.advice.planning import advise
from veil.methods.auto import Auto
from veil.methods.convex.steering import rows_to_be_heard
from veil.report import write_report
from veil.report.plan_page import write_plan_page

sync_api = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH: `make test` installs it where it may"),
]
ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-background-networking "
    "--disable-component-update --disable-sync --no-first-run"
)
HOSTILE = (
    '<script>alert(1)</script> × "a"',
    "</script><img src=x onerror=alert(1)> × 'b'",
    "{{ 7*7 }} × &amp;",
    "× × ×",
)
LONG = tuple(
    f"{a} × {b} × {c}" for a in ("Female", "Male") for b in ("Amer-Indian-Eskimo", "White") for c in ("<=50K", ">50K")
)
ACCESSIBILITY = Path(__file__).with_name("accessibility.js").read_text(encoding="utf-8")


@dataclass
class Visit:
    """A page that is open, and what went wrong on it."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


Open = Callable[..., Visit]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS.split())
        yield chromium
        chromium.close()


def make_learned() -> dict[str, Any]:
    """A run with effects of two classes, whose first columns have names that are far too long for an axis."""
    run = make_run(
        "auto", effects=("<=50K", "more than 50 thousand a year, before taxes, with all that is paid in kind")
    )
    for column in run["effects"]["columns"][:2]:
        column["column"] = "what somebody was asked in a survey and could not put into fewer words: " * 2
    return run


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    required = [{"metric": "worst_group_accuracy", "op": ">=", "threshold": 0.99}]
    owners = {"patients": 1.0, "staff": 3.0}
    rich = make_run("asc", extras=True, owners=owners)
    return {
        "one": write_report([rich], folder / "one.html", requirements=required, audits=[make_audit()]),
        "many": write_report(make_runs(seeds=2), folder / "many.html", requirements=required),
        "long": write_report([make_run("asc", groups=LONG)], folder / "long.html"),
        "bare": write_report([make_run("erm", evaluated=False)], folder / "bare.html"),
        "learned": write_report([make_learned()], folder / "learned.html"),
        "classes": write_report([make_run("auto", effects=("a", *HOSTILE)), make_run()], folder / "classes.html"),
        "hostile": write_report([make_run("asc", groups=HOSTILE, extras=True)], folder / "hostile.html"),
        "plan": make_plan(folder),
    }


def make_plan(folder: Path) -> Path:
    """The page of a plan whose groups have names that no page should have to show."""
    table = people()
    table["sex"] = [HOSTILE[index % len(HOSTILE)].replace(" × ", " ") for index in range(len(table))]
    advice = advise(asked(folder / "table.csv", table))
    return write_plan_page(advice.record, advice.page_tables(), folder / "plan.html")


@pytest.fixture
def visit(browser: Any, reports: dict[str, Path]) -> Iterator[Open]:
    pages = []

    def open_report(name: str, width: int = 1280, scheme: str = "light") -> Visit:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
        pages.append(page)
        found = Visit(page)
        page.on("console", lambda message: found.complaints.append(message.text))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (found.complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: found.requests.append(request.url))
        page.route(lambda url: not url.startswith("file://"), lambda route: route.abort())
        page.goto(reports[name].as_uri())
        page.wait_for_function(
            "document.querySelectorAll('.run:not([hidden]) .chart svg, #groups .chart svg').length > 0"
            " || !document.querySelector('.chart')"
        )
        return found

    yield open_report
    for page in pages:
        page.close()


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["one", "many", "long", "bare", "hostile", "learned", "classes", "plan"])
def test_the_page_renders_without_complaint_request_or_sideways_scrolling(visit: Open, name: str, width: int) -> None:
    found = visit(name, width)
    found.page.mouse.wheel(0, 20_000)
    outside = [url for url in found.requests if not url.startswith(("file://", "data:"))]
    overflow = found.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert found.complaints == []
    assert outside == []
    assert len([url for url in found.requests if url.startswith("file://")]) == 1
    assert overflow <= 0
    assert found.page.locator("h1").count() == 1


@pytest.mark.parametrize("name", ["one", "many", "learned", "classes"])
def test_every_visible_chart_is_drawn_and_has_its_table(visit: Open, name: str) -> None:
    page = visit(name).page
    panels = page.locator("figure.panel:visible")
    assert panels.count() >= 6
    for index in range(panels.count()):
        panel = panels.nth(index)
        title = panel.locator("h3, h4").first.inner_text()
        assert panel.locator(".plot > svg *").count() > 3, title
        panel.locator("summary").click()
        assert panel.locator("details table tbody tr:visible").count() > 0, title
        assert panel.locator("details table caption").inner_text() == title


def test_no_drawing_contains_a_broken_coordinate(visit: Open) -> None:
    for name in ("one", "many", "long", "bare", "learned", "classes"):
        drawn = visit(name, 390).page.evaluate(
            "[...document.querySelectorAll('.plot svg')].map((s) => s.outerHTML).join('')"
        )
        assert "NaN" not in drawn
        assert "Infinity" not in drawn
        assert "undefined" not in drawn


def test_toggling_a_group_removes_and_returns_its_curve(visit: Open) -> None:
    page = visit("one").page
    panel = page.locator("figure.panel", has=page.get_by_role("heading", name="Accuracy of each group over the steps"))
    lines = "els => els.map(e => e.dataset.series)"
    before = panel.locator("path.line").evaluate_all(lines)
    box = panel.get_by_role("checkbox", name="Male × >50K", exact=True)
    box.uncheck()
    after = panel.locator("path.line").evaluate_all(lines)
    assert set(before) - set(after) == {"Male × >50K"}
    box.focus()
    page.keyboard.press("Space")
    assert panel.locator("path.line").evaluate_all(lines) == before


def test_a_header_sorts_by_number_both_ways_and_says_so(visit: Open) -> None:
    page = visit("many").page
    table = page.locator("#table-groups")
    header = table.get_by_role("columnheader", name="Accuracy")
    values = "rows => rows.map(row => Number(row.cells[1].dataset.sort))"
    header.get_by_role("button").click()
    ascending = table.locator("tbody tr").evaluate_all(values)
    assert ascending == sorted(ascending)
    assert header.get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Enter")
    assert table.locator("tbody tr").evaluate_all(values) == sorted(ascending, reverse=True)
    assert header.get_attribute("aria-sort") == "descending"
    assert len(set(ascending)) > 1


def test_hovering_and_arrow_keys_read_values(visit: Open) -> None:
    page = visit("one").page
    plot = page.locator("#figure-curves-run0 .plot")
    plot.scroll_into_view_if_needed()
    plot.hover()
    tip = plot.locator(".tip")
    assert tip.is_visible()
    assert "Male × >50K" in tip.inner_text()
    page.mouse.move(0, 0)
    assert not tip.is_visible()
    plot.focus()
    page.keyboard.press("ArrowRight")
    first = tip.inner_text()
    page.keyboard.press("ArrowRight")
    assert tip.is_visible()
    assert tip.inner_text() != first


def test_choosing_a_run_shows_it_and_moves_the_links(visit: Open) -> None:
    page = visit("many").page
    shown = page.locator(".run:visible")
    first = shown.get_attribute("data-run")
    page.get_by_label("One run in detail").select_option(label="erm, seed 1")
    assert shown.count() == 1
    assert shown.get_attribute("data-run") != first
    assert "not private" in shown.inner_text()
    target = page.get_by_role("link", name="Privacy").get_attribute("href") or ""
    assert page.locator(target).is_visible()


@pytest.mark.parametrize("width", [390, 1280])
def test_what_the_model_learned_is_drawn_and_stays_in_its_panels(visit: Open, width: int) -> None:
    page = visit("learned", width).page
    section = page.locator("#learned-0")
    assert "Up (+): “more than 50 thousand a year" in section.inner_text()
    panels = section.locator("figure.panel")
    assert panels.count() == 14
    inside = """
    panels => panels.flatMap(panel => {
        const box = panel.getBoundingClientRect();
        return [...panel.querySelectorAll(".plot > svg *, figcaption *")]
            .map(one => [one.textContent, one.getBoundingClientRect()])
            .filter(([, own]) => own.left < box.left - 1 || own.right > box.right + 1)
            .map(([text]) => text);
    })
    """
    assert panels.evaluate_all(inside) == []
    plot = section.locator(".chart[data-kind=bars] .plot").first
    plot.focus()
    page.keyboard.press("ArrowRight")
    assert "Exec" in plot.locator(".tip").inner_text() or "Sales" in plot.locator(".tip").inner_text()
    assert page.get_by_role("link", name="What it learned").get_attribute("href") == "#learned-0"


def test_headings_of_heat_maps_break_into_lines_and_numbers_stay_in_their_tiles_on_a_phone(visit: Open) -> None:
    section = visit("learned", 390).page.locator("#learned-0")
    heats = section.locator(".chart[data-kind=heat] .plot > svg")
    assert heats.count() >= 4
    wrong = """
    svgs => svgs.flatMap(svg => {
        const wide = Math.min(...[...svg.querySelectorAll("rect")].map(one => one.getBoundingClientRect().width));
        const texts = [...svg.querySelectorAll("text")];
        const cut = texts.filter(one => one.textContent.endsWith("…"));
        const over = texts.filter(one => one.classList.contains("heat") && one.getBoundingClientRect().width > wide);
        return [...cut, ...over].map(one => one.textContent);
    })
    """
    assert heats.evaluate_all(wrong) == []


def test_the_link_to_what_was_learned_is_there_for_runs_that_have_it(visit: Open) -> None:
    page = visit("classes").page
    link = page.locator("nav a", has_text="What it learned")
    seen = {}
    for label in ("auto", "asc"):
        page.get_by_label("One run in detail").select_option(label=label)
        seen[label] = (link.is_visible(), page.locator(".run:visible h2", has_text="What the model learned").count())
    assert seen == {"auto": (True, 1), "asc": (False, 0)}


def test_hostile_names_are_shown_as_they_are(visit: Open) -> None:
    found = visit("hostile")
    assert found.complaints == []
    assert found.page.locator("main img").count() == 0
    names = found.page.locator("#table-groups tbody th").evaluate_all("cells => cells.map(c => c.dataset.sort)")
    assert names == list(HOSTILE)
    assert found.page.get_by_role("checkbox", name=HOSTILE[0], exact=True).count() > 0


def test_numbers_stay_readable_without_scripts(browser: Any, reports: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(reports["one"].as_uri())
    assert page.locator("#table-groups tbody tr").count() == 4
    assert page.locator("figure.panel details table").count() == page.locator("figure.panel").count()
    context.close()


def test_printing_is_on_white_without_controls(visit: Open) -> None:
    page = visit("one", scheme="dark").page
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator("nav").is_visible() is False
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(page.pdf()) > 10_000


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        ("one", 390, "dark"),
        ("one", 1280, "light"),
        ("many", 390, "light"),
        ("many", 1280, "dark"),
        ("learned", 390, "light"),
        ("learned", 1280, "dark"),
        ("classes", 390, "dark"),
        ("plan", 390, "light"),
        ("plan", 1280, "dark"),
    ],
)
def test_no_accessibility_fault_is_found(visit: Open, name: str, width: int, scheme: str) -> None:
    page = visit(name, width, scheme).page
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.evaluate(ACCESSIBILITY) == []


@pytest.mark.parametrize(
    ("fault", "damage"),
    [
        ("contrast", "document.querySelector('.headline').style.color = '#999a9b'"),
        ("name", "document.querySelector('nav a').textContent = ''"),
        ("heading", "document.querySelector('#groups h2').outerHTML = '<h5>Groups</h5>'"),
        ("table", "document.querySelector('#table-groups caption').remove()"),
        ("language", "document.documentElement.removeAttribute('lang')"),
        ("id", "document.querySelector('#groups h2').id = 'page-title'"),
    ],
)
def test_the_accessibility_check_finds_what_it_looks_for(visit: Open, fault: str, damage: str) -> None:
    page = visit("bare").page
    page.evaluate(f"() => {{ {damage} }}")
    assert [line for line in page.evaluate(ACCESSIBILITY) if line.startswith(fault)]


@pytest.mark.parametrize("width", [390, 1280])
def test_sliders_of_a_plan_recompute_noise_by_keyboard_and_never_show_too_little(visit: Open, width: int) -> None:
    page, tables = visit("plan", width).page, noise_tables(ROWS)

    def shown(name: str) -> str:
        return str(page.locator(f"#show-{name}").inner_text())

    page.locator("#slide-epsilon").focus()
    seen = {}
    for _ in range(4):
        page.keyboard.press("ArrowRight")
        epsilon, noise = float(shown("epsilon")), float(shown("noise"))
        steps = max(1, round(20 * ROWS / 512))
        assert epsilon in EPSILON_STOPS
        assert noise == pytest.approx(tables.noise(512, steps, 1 / (2 * ROWS), epsilon), rel=1e-3)
        assert float(shown("promised")) <= epsilon
        kappa, heard = ROWS / float(shown("kappa").replace(",", "")), float(shown("heard").replace(",", ""))
        assert heard == pytest.approx(rows_to_be_heard(Auto().noise_of_errors(kappa)), rel=0.02)
        seen[epsilon] = noise
    assert list(seen.values()) == sorted(seen.values(), reverse=True)
    assert len(set(seen.values())) > 1
    assert page.locator("#slide-epsilon").get_attribute("aria-valuetext") == shown("epsilon")
    for name in ("delta", "epochs"):  # a smaller δ and more epochs need more noise
        before = float(shown("noise"))
        page.locator(f"#slide-{name}").focus()
        page.keyboard.press("End")
        assert float(shown("noise")) > before, name
    before = shown("steps")
    page.locator("#slide-batch").focus()
    page.keyboard.press("Home")
    assert shown("steps") != before
    assert shown("batch") == "32"
    page.locator("#slide-epsilon").focus()
    page.keyboard.press("Home")
    assert "of 4 groups have fewer" in shown("unheard")
