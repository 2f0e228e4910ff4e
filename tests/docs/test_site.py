"""The site builds without a warning, has every public name, and works from its folder, on a desk and on a phone."""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import json
import re
import runpy
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING

import pydantic
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")
# Modules that need a package which may be missing; the extra `packages` has them.
NEEDS = {"veil.adapters.hugging_face": "transformers", "veil.adapters.lightning": "pytorch_lightning"}


def listed() -> list[tuple[str, str]]:
    """Module and name of everything that the pages of the Python reference list: that is what is public."""
    found: list[tuple[str, str]] = []
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for module, options in re.findall(r"automodule:: (\S+)\n((?:   :.*\n)*)", text):
            members = re.search(r":members:(.*)", options)
            names = [name.strip() for name in members[1].split(",")] if members and members[1].strip() else None
            if members and "no-members" not in options:
                found += [(module, name) for name in names or importlib.import_module(module).__all__]
        for whole in re.findall(r"auto(?:function|class):: (\S+)", text):
            module, _, name = whole.rpartition(".")
            found.append((module, name))
    return found


LISTED = listed()
# Classes whose methods are those of the class that they derive from, described there.
ALONE = set(
    re.findall(
        r"autoclass:: (\S+)\n   :no-members:",
        "".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs" / "api").glob("*.md")),
    )
)


def public_names() -> list[tuple[str, object]]:
    """Public classes and functions of Veil, each under the name that the reference has for it."""
    found = []
    for module, name in LISTED:
        if module in NEEDS and find_spec(NEEDS[module]) is None:
            continue
        thing = getattr(importlib.import_module(module), name)
        ours = getattr(thing, "__module__", "").startswith("veil.")
        if ours and (inspect.isclass(thing) or inspect.isfunction(thing)):
            found.append((f"{module}.{name}", thing))
    return found


# Their examples need a finished run or weights from elsewhere: the guides have them, and run them.
SHOWN_IN_GUIDES = {
    "compare",
    "efficientnet_lite0",
    "load",
    "load_predictor",
    "raise_budgets",
    "read_schema",
    "roll_back",
    "thresholds_of",
    "write_report",
}
# They read raw data, or weights of another package, which need not be there.
NEED_FILES = {
    f"load_{name}" for name in ("cifar10", "cifar100", "ctg", "dutch", "mnist", "surnames", "unbalanced_mnist")
}
NEED_FILES |= {"embed_texts", "image_problem", "partitioned_problem"}
# Classes that a user does not make, or not without another package, and whose example shows or names them.
SHOWN_BY = {
    "veil.adapters.hugging_face.PrivateTrainer": "docs/your-own-model.md",
    "veil.adapters.lightning.PrivateModule": "docs/your-own-model.md",
    "veil.auditing.SelfTest": "veil.auditing.self_test",
    "veil.budget_store.Entry": "veil.budget_store.BudgetStore",
    "veil.budget_store.RunReservation": "veil.budget_store.reserve_amount",
    "veil.gradients.GradientSum": "veil.gradients.GradientEngine",
    "veil.handover.loaded.LoadedTableRun": "docs/hand-over.md",
    "veil.handover.serving.score.Scorer": "docs/hand-over.md",
    "veil.releases.PrivateView": "veil.training.Callback",
    "veil.releases.Released": "veil.releases.GradientRelease",
    "veil.tables.effects.ColumnEffect": "veil.tables.effects.effects_of",
    "veil.tables.effects.Effects": "veil.tables.effects.effects_of",
    "veil.tables.effects.PairEffect": "veil.tables.effects.effects_of",
    "veil.training.StepReport": "veil.training.Callback",
    "veil.training.progression.CheckpointEvery": "docs/methods/idp-sgd.md",
    "veil.training.trackers.MLflow": "docs/command-line.md",
    "veil.training.trackers.TensorBoard": "docs/command-line.md",
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
        ">>>": "." not in function.__qualname__.rpartition("<locals>.")[2]
        and function.__name__ not in SHOWN_IN_GUIDES | NEED_FILES,
    }
    lacks = [section for section, applies in needed.items() if applies and section not in text]
    described = set(re.findall(r"^ +\*{0,2}(\w+): ", text.partition("Args:\n")[2].partition("\n\n")[0], re.MULTILINE))
    return lacks + ([] if "Args:" in lacks else sorted(given - described))


def public_methods() -> dict[str, FunctionType]:
    """Methods and properties that public classes define themselves."""
    found: dict[str, FunctionType] = {}
    for whole, thing in public_names():
        for name, member in vars(thing).items() if inspect.isclass(thing) and whole not in ALONE else ():
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


def guides() -> dict[str, str]:
    """The code that readers are shown, by page: guides, pages of methods, README and examples."""
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "methods").glob("*.md"), ROOT / "README.md"]
    found = {}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        blocks += [textwrap.dedent(block) for block in re.findall(r"(?:^    .*\n)+", prose, re.MULTILINE)]
        found[page.relative_to(ROOT).as_posix()] = "\n".join(blocks)
    for script in (ROOT / "examples").glob("*.py"):
        found[f"examples/{script.name}"] = script.read_text(encoding="utf-8")
    for notebook in (ROOT / "examples").glob("*.ipynb"):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        found[f"examples/{notebook.name}"] = "\n".join(code)
    return found


def test_what_is_left_to_guides_is_called_there() -> None:
    functions = {thing.__name__: thing for _, thing in public_names() if isinstance(thing, FunctionType)}
    assert set(functions) >= SHOWN_IN_GUIDES | NEED_FILES
    shown = "\n".join(guides().values())
    assert [name for name in SHOWN_IN_GUIDES if not re.search(rf"\b{name}\(", shown)] == []
    needless = [name for name in SHOWN_IN_GUIDES | NEED_FILES if ">>>" in (inspect.getdoc(functions[name]) or "")]
    assert needless == [], "they have examples: take them off the list"


def imports_of(code: str) -> list[tuple[str, str]]:
    """Module and name of what a piece of code takes from Veil; a module that is imported whole has no name."""
    found = re.findall(r"^ *from (veil[\w.]*) import (?:\(([^)]*)\)|([^#\n]*))", code, re.MULTILINE)
    names = [
        (module, name.split(" as ")[0].strip()) for module, many, few in found for name in (many or few).split(",")
    ]
    return [(module, name) for module, name in names if name]


def test_every_import_that_guides_and_examples_show_is_in_the_python_reference() -> None:
    known = {*LISTED, *(("veil", module.partition("veil.")[2]) for module, _ in LISTED)}
    known |= {("veil", name) for name in importlib.import_module("veil").__all__}
    shown = {page: imports_of(code) for page, code in guides().items()}
    assert sum(map(len, shown.values())) > 40
    assert {page: lacks for page, names in shown.items() if (lacks := sorted(set(names) - known))} == {}


def named_in(text: str) -> set[str]:
    """Functions and classes of Veil that a page calls by their module.

    >>> sorted(named_in("`veil.training.progression` has `veil.plans.levels.level_table(plan)`, `veil.fit`."))
    ['veil.plans.levels.level_table']
    """
    return set(re.findall(r"`(veil(?:\.[a-z_]+)+\.\w+)\(", text))


def test_every_function_that_a_guide_calls_by_its_module_is_in_the_python_reference() -> None:
    known = {f"{module}.{name}" for module, name in LISTED}
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "methods").glob("*.md"), ROOT / "README.md"]
    named = set().union(*(named_in(page.read_text(encoding="utf-8")) for page in pages))
    assert len(named) > 5
    assert sorted(named - known) == []


def test_an_import_is_found_in_every_form() -> None:
    code = "from veil.a import (\n    b,\n    c,\n)\n    from veil import d as e  # why\nimport veil\n"
    assert imports_of(code) == [("veil.a", "b"), ("veil.a", "c"), ("veil", "d")]


def examples_of(thing: type) -> list[str]:
    """Docstrings of a class and of what it defines that have an example."""
    members = [getattr(member, "__func__", getattr(member, "fget", member)) for member in vars(thing).values()]
    # A number among the members has the docstring of `int`.
    own = [member.__doc__ for member in members if member.__doc__ != type(member).__doc__]
    return [text for text in (thing.__doc__, *own) if isinstance(text, str) and ">>>" in text]


def test_every_public_class_has_an_example_that_runs() -> None:
    """Exceptions and protocols are not made by users."""
    classes = {name: thing for name, thing in public_names() if inspect.isclass(thing)}
    made = {
        name: thing
        for name, thing in classes.items()
        if not issubclass(thing, BaseException) and not getattr(thing, "_is_protocol", False)
    }
    assert len(made) > 110
    homes = {thing for name, thing in made.items() if name in SHOWN_BY}
    assert [name for name, thing in made.items() if not examples_of(thing) and thing not in homes] == []
    assert [name for name in SHOWN_BY if name in made and examples_of(made[name])] == [], "they have one by now"


def test_what_shows_a_class_has_an_example() -> None:
    public, shown = dict(public_names()), guides()
    for name, by in SHOWN_BY.items():
        if by in public:
            thing = public[by]
            assert ">>>" in (inspect.getdoc(thing) or "") or examples_of(thing), f"{by}, for {name}"  # type: ignore[arg-type]
        else:
            code = shown[by]
            assert name.rpartition(".")[2] in code or "veil.load(" in code, f"{by}, for {name}"


@pytest.mark.slow
def test_every_public_name_is_in_the_python_reference(site: Path) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    shown = set(re.findall(r'id="([\w.]+)"', pages))
    ends = {name.rpartition(".")[2] for name in shown if name.startswith("veil.")}
    missing = [name for name, thing in public_names() if getattr(thing, "__name__", "") not in ends]
    assert missing == []


def test_examples_of_docstrings_are_shown_as_they_are() -> None:
    """A backslash before a star or an underscore would be pasted with the example."""
    example = [
        ">>> class Twice(Base):",
        "...     def __init__(self):",
        "...         print(*self.all_, 2 * 3)",
        "a_ * b",
    ]
    lines = ["A * star, `name_`:", "", *example, "", "And a | bar."]
    runpy.run_path(str(ROOT / "docs" / "conf.py"))["_from_markdown"](None, "function", "name", None, None, lines)
    assert lines == ["A \\* star, ``name_``:", "", *example, "", "And a \\| bar."]


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
def test_every_page_fits_the_screen(site: Path, browser: Browser) -> None:
    """On a desk and on a phone: a page is loaded once, and laid out at both widths."""
    page = browser.new_page()
    pages = [file for file in sorted(site.rglob("*.html")) if "_static" not in file.parts]
    assert len(pages) > 100
    wide = {}
    for file in pages:
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto(file.as_uri(), wait_until="domcontentloaded")
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            if (found := page.evaluate("document.documentElement.scrollWidth")) > width:
                wide[file.relative_to(site).as_posix(), width] = found
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
        box = figure.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width, f"{figure.get_attribute('src')} is cut off"
    page.close()


@pytest.mark.slow
@pytest.mark.browser
def test_the_search_finds_a_word(site: Path, browser: Browser) -> None:
    page = browser.new_page()
    page.goto((site / "search.html").as_uri() + "?q=certificate")
    page.wait_for_selector("#search-results li a", timeout=20_000)
    assert page.locator("#search-results li a").count() > 3
    page.close()
