"""The local page in a real browser: two widths, by keyboard, and nothing leaves the machine."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cli.people_cases import write_people
from tests.report.test_report_browser import ARGUMENTS
from tests.ui.ui_cases import HOSTILE, certified, write_run, write_runs
from veil.budget_store import BudgetStore, Cost, DataSet, Spending

sync_api = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed")
server_module = pytest.importorskip("veil.ui.server", reason="flask and waitress are not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH: `make test` installs it where it may"),
]
# Each test opens one width in CI; the other width is a matter of `make long`.
NARROW_FIRST = (390, pytest.param(1280, marks=pytest.mark.long))
WIDE_FIRST = (1280, pytest.param(390, marks=pytest.mark.long))
# Every frame is looked at by itself: waiting for frames to answer each other is of no use.
AXE, ALONE = axe.Axe(), {"resultTypes": ["violations"], "iframes": False}


@dataclass
class Visit:
    """A page that is open, and what went wrong on it."""

    page: Any
    home: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


Open = Callable[..., Visit]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server over a folder of runs of every kind, with a budget store and a table to plan for."""
    folder = tmp_path_factory.mktemp("served")
    root = write_runs(folder / "runs")
    table = write_people(folder)
    plannable = certified(write_run(root / "people"))
    (plannable / "config.toml").write_text(f'data = "{table}"\ntarget = "rich"\ngroup = ["sex"]\nmethod = "auto"\n')
    store = BudgetStore.create(folder / "budget.sqlite")
    store.add_dataset(DataSet(HOSTILE), epsilon=4.0, delta=1e-5)
    store.reserve(HOSTILE, Spending("a run", Cost(1.5, 1e-6), note=HOSTILE))
    made = server_module.make_server(root, str(folder / "budget.sqlite"))
    threading.Thread(target=made.run, daemon=True).start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS.split())
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any, served: Any) -> Iterator[Open]:
    contexts = []

    def come(width: int = 1280, scheme: str = "light") -> Visit:
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        contexts.append(context)
        found = Visit(context.new_page(), f"http://127.0.0.1:{served.guard.port}/{served.guard.place}/")
        context.on("request", lambda request: found.requests.append(request.url))
        found.page.on("console", lambda message: found.complaints.append(message.text))
        found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.page.on("dialog", lambda dialog: (found.complaints.append(dialog.message), dialog.dismiss()))
        found.page.goto(served.guard.address)
        found.page.wait_for_url(found.home)
        return found

    yield come
    for context in contexts:
        context.close()


def serious(page: Any) -> list[str]:
    """What axe-core finds, in the page and in its frames, of serious or critical impact."""
    found = [one for frame in page.frames for one in AXE.run(frame, options=ALONE).response["violations"]]
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:120]}" for one in found if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("name", ["broken/record", pytest.param("first", marks=pytest.mark.long)])
def test_axe_core_finds_what_it_is_asked_to_find_also_in_frames(visit: Open, name: str) -> None:
    page = visit().page
    page.get_by_role("link", name=name, exact=True).click()
    page.frame_locator("iframe").locator("h1").wait_for()
    assert serious(page) == []
    page.frames[1].evaluate("document.querySelector('h1').style.color = '#bbb'")
    page.evaluate("document.documentElement.removeAttribute('lang')")
    assert sorted(line.split(":")[0] for line in serious(page)) == ["color-contrast", "html-has-lang"]


def overflow(page: Any) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@pytest.mark.parametrize("width", NARROW_FIRST)
def test_every_page_is_whole_accessible_and_asks_this_machine_alone(visit: Open, width: int) -> None:
    found = visit(width, "dark" if width == 390 else "light")
    page, faults = found.page, dict[str, list[str]]()

    def look(name: str) -> None:
        faults[name] = [*serious(page), *(["scrolls sideways"] if overflow(page) > 0 else [])]
        assert page.locator("h1").count() == 1, name

    look("runs")
    page.get_by_role("link", name=HOSTILE).click()
    assert page.frame_locator("iframe").locator("#table-groups tbody tr").count() == 2
    look("run")
    page.goto(found.home)
    page.get_by_role("link", name="first", exact=True).click()
    page.get_by_role("link", name="Certificate").click()
    look("certificate")
    page.get_by_role("button", name="Verify this certificate").click()
    assert page.locator("#outcome .big").inner_text() == "holds"
    look("verified")
    for name in ("unfinished", "broken/deep"):
        page.goto(found.home)
        page.get_by_role("link", name=name, exact=True).click()
        look(name)
    page.get_by_role("link", name="Budgets").click()
    page.locator("summary").click()
    look("budgets")
    page.goto(f"{found.home}nowhere")
    look("nowhere")
    assert {name: found for name, found in faults.items() if found} == {}
    assert {url.split("/")[2] for url in found.requests if not url.startswith("data:")} == {found.home.split("/")[2]}
    assert [line for line in found.complaints if "404" not in line] == []


@pytest.mark.parametrize("width", WIDE_FIRST)
def test_runs_are_filtered_ticked_and_compared_by_keyboard_alone(visit: Open, width: int) -> None:
    found = visit(width)
    page, keys = found.page, found.page.keyboard
    keys.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(30):
        keys.press("Tab")
        if page.evaluate("document.activeElement.id") == "q":
            break
    keys.type("comparison")
    keys.press("Enter")
    page.wait_for_url("**/?q=comparison*")
    assert page.locator("tbody tr").count() == 4
    ticked = 0
    for _ in range(40):
        keys.press("Tab")
        if page.evaluate("document.activeElement.type") == "checkbox" and ticked < 2:
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            keys.press("Space")
            ticked += 1
    assert page.locator("tbody input:checked").count() == 2
    button = page.get_by_role("button", name="Compare the ticked runs")
    button.focus()
    keys.press("Enter")
    page.wait_for_url("**/compare?*")
    assert page.locator("h1").inner_text() == "2 runs side by side"
    assert page.frame_locator("iframe").locator("#comparison").count() == 1
    assert serious(page) == []
    assert overflow(page) <= 0


@pytest.mark.parametrize("width", NARROW_FIRST)
def test_a_plan_has_sliders_that_work_inside_its_frame(
    visit: Open, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if width == NARROW_FIRST[0]:  # a process of its own loads torch again: the other width has one
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.setattr("veil.ui.app.apart", lambda work, given: work(given))
    page = visit(width).page
    page.get_by_role("link", name="Plan", exact=True).click()
    assert serious(page) == []
    page.get_by_role("row", name="rich").get_by_role("link").click()
    inside = page.frame_locator("iframe")
    slider = inside.locator("#slide-epsilon")
    slider.focus(timeout=120_000)
    before = inside.locator("#show-noise").inner_text()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert float(inside.locator("#show-noise").inner_text()) < float(before)
    assert serious(page) == []
    assert overflow(page) <= 0


def test_a_report_cannot_reach_the_pages_around_it(visit: Open) -> None:
    found = visit()
    page = found.page
    page.get_by_role("link", name="first", exact=True).click()
    page.frame_locator("iframe").locator("h1").wait_for()
    frame = page.frames[1]
    tried = """async (home) => {
      const said = [];
      for (const act of [
        () => document.cookie, () => localStorage.length, () => parent.document.title, () => fetch(home),
        () => { top.location = "http://127.0.0.1:1/"; },
      ]) {
        try { await act(); said.push("done"); } catch (error) { said.push(error.name); }
      }
      return said;
    }"""
    said = frame.evaluate(tried, found.home)
    assert said == ["SecurityError", "SecurityError", "SecurityError", "TypeError", "SecurityError"]
    frame.evaluate("() => { location.href = 'http://localhost:1/gone'; }")
    page.wait_for_timeout(300)
    assert not [url for url in found.requests if "gone" in url]
    assert page.url.startswith(found.home)


def test_a_page_of_another_port_gets_neither_the_cookie_nor_a_run(visit: Open, served: Any) -> None:
    """A browser sends cookies of 127.0.0.1 to all its ports: a server of another user must not see ours."""
    seen = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Cookie") or "")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>other</title>")

        def log_message(self, *words: Any) -> None:
            pass

    other = http.server.HTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    found = visit()
    for path in ("", "enter", "runs/x"):
        found.page.goto(f"http://127.0.0.1:{other.server_port}/{path}")
    framed = """(url) => new Promise((done) => {
      const frame = document.createElement("iframe");
      frame.onload = () => { try { done(frame.contentDocument ? "read" : "shut"); } catch (e) { done("shut"); } };
      frame.src = url;
      document.body.append(frame);
    })"""
    assert found.page.evaluate(framed, found.home) == "shut"
    fetched = "(url) => fetch(url, {credentials: 'include'}).then(() => 'read', () => 'shut')"
    assert found.page.evaluate(fetched, found.home) == "shut"
    other.shutdown()
    other.server_close()
    assert seen
    assert not any(seen)


def test_the_command_prints_the_address_serves_only_loopback_and_ends_quietly(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "one")
    words = [sys.executable, "-m", "veil.cli", "ui", str(tmp_path / "runs"), "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stdout is not None
    try:
        said = json.loads(process.stdout.readline())
        command = Path(f"/proc/{process.pid}/cmdline")
        assert said["address"].startswith(f"http://127.0.0.1:{said['port']}/")
        assert not command.exists() or said["address"].split("=")[1] not in command.read_text()
        with urllib.request.urlopen(said["address"]) as answer:
            assert answer.headers["Set-Cookie"]
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"http://127.0.0.1:{said['port']}/")
        if Path("/proc/net/tcp").exists():
            own = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            assert {place.split(":")[0] for place in own if int(place.split(":")[1], 16) == said["port"]} == {
                "0100007F"
            }
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(20) == 0
        assert process.communicate() == ("", "")
    finally:
        process.kill()
        process.wait()
