"""The site builds without a warning, has every public name, and works from its folder, on a desk and on a phone."""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING

import pydantic
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")
# What the Python reference has a page for: public, see docs/releasing.md.
PUBLIC = [
    *(
        "veil",
        "veil.accounting",
        "veil.auditing",
        "veil.bounding",
        "veil.budget_store",
        "veil.datasets",
        "veil.gradients",
    ),
    *("veil.estimators", "veil.methods", "veil.metrics", "veil.models", "veil.noise", "veil.plans", "veil.problem"),
    *("veil.releases", "veil.report", "veil.sampling", "veil.tables", "veil.training"),
]


def public_names() -> list[tuple[str, object]]:
    found = []
    for package in PUBLIC:
        module = importlib.import_module(package)
        for name in module.__all__:
            thing = getattr(module, name)
            ours = getattr(thing, "__module__", "").startswith("veil.")
            if ours and (inspect.isclass(thing) or inspect.isfunction(thing)):
                found.append((f"{package}.{name}", thing))
    return found


# Their examples need a finished run, raw data or weights from elsewhere: the guides have them, and run them.
SHOWN_IN_GUIDES = {
    *("compare", "load", "certify", "epsilon_of_person", "reserve_amount", "reserve_for", "check", "evaluate"),
    *(
        "load_cifar10",
        "load_cifar100",
        "load_ctg",
        "load_dutch",
        "load_mnist",
        "load_surnames",
        "load_unbalanced_mnist",
    ),
    *("efficientnet_lite0", "embed_texts", "build_twin", "render_card", "render_page", "render_summary", "write_card"),
    *("write_report", "load_predictor", "read_schema", "read_table"),
}


def missing_sections(function: FunctionType) -> list[str]:
    """What a reader of the reference would look for in vain."""
    text, signature = inspect.getdoc(function) or "", inspect.signature(function)
    source = inspect.getsource(function)
    given = set(signature.parameters) - {"self", "cls"}
    needed = {
        "Args:": bool(given),
        "Returns:": signature.return_annotation not in (None, "None") and "Yields:" not in text,
        "Raises:": re.search(r"^ +(raise|require)\b", source, re.MULTILINE) is not None,
        ">>>": "." not in function.__qualname__.rpartition("<locals>.")[2] and function.__name__ not in SHOWN_IN_GUIDES,
    }
    lacks = [section for section, applies in needed.items() if applies and section not in text]
    described = set(re.findall(r"^ +\*{0,2}(\w+): ", text.partition("Args:\n")[2].partition("\n\n")[0], re.MULTILINE))
    return lacks + ([] if "Args:" in lacks else sorted(given - described))


def public_methods() -> dict[str, FunctionType]:
    """Methods and properties that public classes define themselves."""
    found: dict[str, FunctionType] = {}
    for _, thing in public_names():
        for name, member in vars(thing).items() if inspect.isclass(thing) else ():
            inner = getattr(member, "__func__", member)  # class methods and static methods
            if not name.startswith("_") and isinstance(inner, FunctionType) and inner.__module__.startswith("veil."):
                found[f"{inner.__module__}.{inner.__qualname__}"] = inner
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages."""
    folder = tmp_path_factory.mktemp("site")
    words = [
        "--fail-on-warning",
        "--keep-going",
        "-q",
        "-d",
        str(folder / "trees"),
        str(ROOT / "docs"),
        str(folder / "site"),
    ]
    done = subprocess.run([sys.executable, "-m", "sphinx", *words], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr  # a broken link is a warning
    return folder / "site"


def test_every_public_name_has_a_docstring_and_is_in_a_list_of_names() -> None:
    undocumented = [name for name, thing in public_names() if not inspect.getdoc(thing)]
    assert undocumented == []
    assert len(public_names()) > 150


def test_every_public_function_says_what_it_takes_returns_and_raises_and_shows_an_example() -> None:
    functions = {thing: name for name, thing in public_names() if isinstance(thing, FunctionType)}
    assert len(functions) > 70
    incomplete = {name: lacks for thing, name in functions.items() if (lacks := missing_sections(thing))}
    assert incomplete == {}


def test_every_public_method_says_what_it_takes_returns_and_raises() -> None:
    methods = public_methods()
    assert len(methods) > 200
    assert {name: lacks for name, method in methods.items() if (lacks := missing_sections(method))} == {}


# Constants of a bound, which `Bound` describes.
OF_ALL_BOUNDS = {"row_local", "needs_norms"}


def unexplained(thing: type) -> list[str]:
    """What the constructor of a class takes and the class does not speak of."""
    text = inspect.getdoc(thing) or ""
    beside = set(re.findall(r'^    (\w+):.*\n    """', inspect.getsource(thing), re.MULTILINE))  # below the field
    given = {name for name in inspect.signature(thing).parameters if not name.startswith("_")} - beside - OF_ALL_BOUNDS
    return sorted(name for name in given if not re.search(rf"(?:`|^ +|`.*\b){name}\b(?:`|:|.*`)", text, re.MULTILINE))


def test_every_public_class_says_what_it_is_made_of() -> None:
    """Settings describe their fields one by one, exceptions and protocols are not made by users."""
    kinds = (BaseException, enum.Enum, pydantic.BaseModel)
    classes = {thing: name for name, thing in public_names() if inspect.isclass(thing) and not issubclass(thing, kinds)}
    made = {name: thing for thing, name in classes.items() if not getattr(thing, "_is_protocol", False)}
    assert len(made) > 70
    assert {name: lacks for name, thing in made.items() if (lacks := unexplained(thing))} == {}


def test_every_public_property_has_a_docstring() -> None:
    classes = {thing for _, thing in public_names() if inspect.isclass(thing)}
    members = {f"{one.__qualname__}.{name}": member for one in classes for name, member in vars(one).items()}
    properties = {name: one for name, one in members.items() if isinstance(one, property | functools.cached_property)}
    assert len(properties) > 20
    assert [name for name, one in properties.items() if "._" not in name and not one.__doc__] == []


def test_a_section_that_is_missing_is_found() -> None:
    def asked(name: str) -> str:
        """Says nothing about what it takes.

        >>> asked("a")
        'a'
        """
        return name

    def half(name: str, other: str) -> str:
        """Says something about one of two.

        Args:
            name: A name.

        Returns:
            The name.

        >>> half("a", "b")
        'a'
        """
        return name

    assert missing_sections(asked) == ["Args:", "Returns:"]
    assert missing_sections(half) == ["other"]
    assert {thing.__name__ for _, thing in public_names() if isinstance(thing, FunctionType)} >= SHOWN_IN_GUIDES


@pytest.mark.slow
def test_every_public_name_is_in_the_python_reference(site: Path) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    shown = set(re.findall(r'id="([\w.]+)"', pages))
    ends = {name.rpartition(".")[2] for name in shown if name.startswith("veil.")}
    missing = [name for name, thing in public_names() if getattr(thing, "__name__", "") not in ends]
    assert missing == []


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    """Links may lead away; scripts, styles, fonts and images may not."""
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|link)\b[^>]*?(?:src|href)=\"(https?:[^\"]+)\"", page.read_text(encoding="utf-8")
        )
        assert loaded == [], page.name


# What a reader of a phone can read without zooming.
SMALLEST_TEXT = 12
# Letters of a figure on the screen: their size in the drawing times the scale of the drawing.
LETTERS = """async image => {
  const text = await (await fetch(image.src)).text();
  const drawing = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  const sizes = [...drawing.querySelectorAll("[font-size]")].map(one => parseFloat(one.getAttribute("font-size")));
  const width = parseFloat(drawing.getAttribute("viewBox").split(" ")[2]);
  return Math.min(...sizes) * image.getBoundingClientRect().width / width;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, which may read files beside a page."""
    if CHROMIUM is None:
        pytest.skip("chromium is not on PATH: `make test` installs it where it may")
    from playwright.sync_api import sync_playwright

    from tests.report.test_report_browser import ARGUMENTS

    with sync_playwright() as play:
        started = play.chromium.launch(
            executable_path=CHROMIUM, args=[*ARGUMENTS.split(), "--allow-file-access-from-files"]
        )
        yield started
        started.close()


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_fits_the_screen(site: Path, browser: Browser, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    pages = [file for file in sorted(site.rglob("*.html")) if "_static" not in file.parts]
    assert len(pages) > 100
    wide = {}
    for file in pages:
        page.goto(file.as_uri(), wait_until="domcontentloaded")
        if (found := page.evaluate("document.documentElement.scrollWidth")) > width:
            wide[file.relative_to(site).as_posix()] = found
    page.close()
    assert wide == {}


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_the_letters_of_every_figure_can_be_read(site: Path, browser: Browser, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto((site / "how-it-works.html").as_uri())
    figures = page.locator("article img[src$='.svg']")
    assert figures.count() == 5
    for figure in figures.all():
        assert figure.evaluate(LETTERS) >= SMALLEST_TEXT, figure.get_attribute("src")
    page.close()


@pytest.mark.slow
@pytest.mark.browser
def test_the_search_finds_a_word(site: Path, browser: Browser) -> None:
    page = browser.new_page()
    page.goto((site / "search.html").as_uri() + "?q=certificate")
    page.wait_for_selector("#search-results li a", timeout=20_000)
    assert page.locator("#search-results li a").count() > 3
    page.close()
