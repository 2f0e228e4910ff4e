"""Index: the first page of the results: all methods on the data sets of the overview; then every page."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.runner.claims import judge
from experiments.runner.columns import TWIN, column
from experiments.runner.results import Results
from experiments.runner.spec import Spec, Study, names, read_spec
from experiments.runner.store import read_store
from veil import methods

NAME = "README.md"
OVERVIEW = "overview-"
_FIGURES = ("worst_group_accuracy", "average_group_accuracy", TWIN, "seconds")
_INTRO = """# Results

Every number comes from a file of stored runs beside its page, written by `veil reproduce NAME`; `veil reproduce` lists
the experiments, and [docs/reproduction.md](../reproduction.md) says which table or figure of a paper each one shows.
This page is made from the same files by `veil reproduce index`.
"""


def index_of(specs: Path, folder: Path) -> str:
    """The page from the stored runs of a folder."""
    known = [read_spec(name, specs) for name in names(specs) if (folder / f"{name}.json").exists()]
    found = {
        spec.name: Results.of(spec, read_store(folder / f"{spec.name}.json", spec.name, "paper"))
        for spec in known
        if isinstance(spec, Spec)
    }
    overviews = {name: results for name, results in found.items() if name.startswith(OVERVIEW)}
    return "\n".join([_INTRO, *_table(overviews), *_pages(known, found)])


def _table(overviews: Mapping[str, Results]) -> list[str]:
    if not overviews:
        return []
    heads = [name.removeprefix(OVERVIEW) for name in overviews]
    lines = ["## All methods at ε = 1", ""]
    lines += [
        "Worst group / average of groups / π / seconds of a run: accuracies and the privacy-cost gap in percent, means",
        "over seeds. ε is the certificate's, δ = 1/(2n), for every group. Methods have their default options and the",
        "settings of the page; none was tuned for its data here. π is measured against `erm` of the same model (–:",
        "there is none): a method that shifts accuracy from large groups to small ones on purpose has a large π. Adult",
        "has today's defaults, with a learning rate from public constants; Dutch and MNIST were run by earlier code,",
        "with learning rate 0.5 for all methods and weights that noise could bias: see the last lines of their pages.",
        "",
        f"| method | relation | {' | '.join(f'[{head}]({OVERVIEW}{head}.md)' for head in heads)} |",
        "|---|---|" + "--:|" * len(heads),
    ]
    relations = {row["name"]: row["relation"] for row in methods.table()}
    labels = dict.fromkeys(arm.label for results in overviews.values() for arm in results.spec.arms)
    for label in labels:
        arm = next(a for results in overviews.values() for a in results.spec.arms if a.label == label)
        cells = [_cell(results, label) for results in overviews.values()]
        lines.append(f"| {label} | {relations[arm.method] or 'not private'} | {' | '.join(cells)} |")
    return [*lines, ""]


def _cell(results: Results, label: str) -> str:
    if all(arm.label != label for arm in results.spec.arms) or not results.at(label, None):
        return "–"
    parts = []
    for name in _FIGURES:
        numbers = list(results.figure(label, None, name).values())
        digits = 0 if name == "seconds" else 1
        parts.append("–" if not numbers else f"{column(name).scaled(statistics.mean(numbers)):.{digits}f}")
    return " / ".join(parts)


def _pages(known: Sequence[Spec | Study], found: Mapping[str, Results]) -> list[str]:
    lines = ["## Every page", "", "| page | shows | claims |", "|---|---|---|"]
    for spec in known:
        verdicts = judge(found[spec.name]) if spec.name in found else []
        counts = {words: sum(verdict.holds is wanted for verdict in verdicts) for words, wanted in _WORDS.items()}
        said = ", ".join(f"{count} {words[count > 1]}" for words, count in counts.items() if count)
        lines.append(f"| [{spec.name}]({spec.name}.md) | {spec.shows} | {said or 'on the page'} |")
    return [*lines, ""]


# For one claim and for several.
_WORDS = {("fails", "fail"): False, ("holds", "hold"): True, ("not run", "not run"): None}
