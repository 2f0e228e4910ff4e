"""Index: the first page of the results: all methods on the data sets of the overview; then every page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.runner.claims import judge
from experiments.runner.columns import TWIN, column
from experiments.runner.results import Key, Results
from experiments.runner.spec import Spec, Study, X, names, read_spec
from experiments.runner.store import read_store
from veil import methods

NAME = "README.md"
OVERVIEW = "overview-"
# A default that reaches less of the best known worst group is badly set.
HALF = 0.5
_FIGURES = ("worst_group_accuracy", "average_group_accuracy", TWIN, "seconds")
_INTRO = """# Results

Every number comes from a file of stored runs beside its page, written by `veil reproduce NAME`; `veil reproduce` lists
the experiments, and [docs/reproduction.md](../reproduction.md) says which table or figure of a paper each one shows.
This page is made from the same files by `veil reproduce index`, and so is [INO-SGD, figure by figure](ino-figures.md).
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
    return "\n".join([_INTRO, *_table(overviews), *_beside_best(overviews, found), *_pages(known, found)])


def _table(overviews: Mapping[str, Results]) -> list[str]:
    if not overviews:
        return []
    heads = [name.removeprefix(OVERVIEW) for name in overviews]
    lines = ["## All methods at ε = 1", ""]
    lines += [
        "Worst group / average of groups / π / seconds of a run: accuracies and the privacy-cost gap in percent, means",
        "over seeds. ε is the certificate's, δ = 1/(2n), for every group. Methods have their default options and the",
        "settings of the page; none was tuned for its data here. π is measured against `erm` of the same model (–:",
        "there is none): a method that shifts accuracy from large groups to small ones on purpose has a large π. The",
        "learning rate is the one that Veil takes from public constants. The last lines of each page say which version",
        "of the code made its runs.",
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


@dataclass(frozen=True)
class Best:
    """An arm of an overview, and the best arm of any page with the same method on the same rows at no larger ε."""

    data: str
    arm: str
    worst: float
    best: float
    page: str
    where: str
    doubtful: bool = False

    @property
    def share(self) -> float:
        """What the overview's arm reaches of the best."""
        return self.worst / self.best if self.best > 0 else 1.0

    @property
    def sentence(self) -> str:
        """The two figures and the page of the best one."""
        best = f"{100 * self.best:.1f} of {self.where} on [{self.page}]({self.page}.md)"
        doubt = ", within two standard errors of the seeds" if self.doubtful else ""
        return f"{self.arm} on {self.data}, {100 * self.worst:.1f} against {best}{doubt}"


def best_known(overviews: Mapping[str, Results], found: Mapping[str, Results]) -> list[Best]:
    """For every arm of an overview that another arm of some page can be compared with, the best of these."""
    bests = []
    for name, results in overviews.items():
        for label, x in results.runs:
            own, epsilon = _worst(results, label, x), _epsilon(results, label, x)
            if own is None:
                continue
            rivals = [
                (worst, page, other if value is None else f"{other} at {value}", _numbers(pages, other, value))
                for page, pages in found.items()
                for other, value in pages.runs
                if (page, other, value) != (name, label, x) and _alike(results, (label, x), pages, (other, value))
                if (worst := _worst(pages, other, value)) is not None and _epsilon(pages, other, value) <= epsilon
            ]
            if rivals:
                best, page, where, numbers = max(rivals, key=lambda rival: rival[0])
                doubtful = _within_noise(_numbers(results, label, x), numbers)
                bests.append(Best(name.removeprefix(OVERVIEW), label, own, best, page, where, doubtful))
    return bests


def _alike(results: Results, key: Key, others: Results, other: Key) -> bool:
    """Whether two arms have one method and the same training and test rows."""
    one, two = results.planned[key], others.planned[other]
    return (one.method, one.data, one.data_options) == (two.method, two.data, two.data_options)


def _numbers(results: Results, label: str, x: X | None) -> list[float]:
    return list(results.figure(label, x, "worst_group_accuracy").values())


def _worst(results: Results, label: str, x: X | None) -> float | None:
    numbers = _numbers(results, label, x)
    return statistics.mean(numbers) if numbers else None


def _within_noise(own: Sequence[float], best: Sequence[float]) -> bool:
    """Whether what is missing to half of the best is less than two standard errors; unknown with one seed."""
    if min(len(own), len(best)) < 2:
        return False
    errors = statistics.variance(own) / len(own) + HALF**2 * statistics.variance(best) / len(best)
    return HALF * statistics.mean(best) - statistics.mean(own) < 2 * math.sqrt(errors)


def _epsilon(results: Results, label: str, x: X | None) -> float:
    """The largest ε of the runs, in steps of 0.01, as calibration ends a little below what was asked for."""
    spent = [run["epsilon"] for run in results.at(label, x).values()]
    return math.inf if None in spent or not spent else round(max(spent), 2)


def _beside_best(overviews: Mapping[str, Results], found: Mapping[str, Results]) -> list[str]:
    """Whether default settings reach half of the best worst group that is known."""
    bests = sorted(best_known(overviews, found), key=lambda best: best.share)
    if not bests:
        return []
    below = [best for best in bests if best.share < HALF]
    arms = sum(bool(runs) for results in overviews.values() for runs in results.runs.values())
    high, left = _without_page(overviews, bests)
    lines = ["## Defaults beside the best that is known", ""]
    lines += [
        "Best known: the best worst group of the same method on the same training and test rows at no larger ε, with",
        f"any options and settings, on any page. {len(bests)} of {arms} arms of the table above have such a page;",
        f"{high} more have 50 % of the worst group right or more: nothing can be twice as good.{_left(left)}",
        "",
        f"- **{'Fails' if below else 'Holds'}:** no method with default settings has less than half of it.",
    ]
    below_or_least = below or [replace(bests[0], doubtful=False)]
    for best in below_or_least:
        lines.append(f"  {'Below half' if below else 'The smallest share'}: {best.sentence}.")
    return [*lines, ""]


def _without_page(overviews: Mapping[str, Results], bests: Sequence[Best]) -> tuple[int, dict[str, list[str]]]:
    """Of arms that no page has beside others: how many have at least half of the worst group right, and the rest."""
    known, high, left = {(best.data, best.arm) for best in bests}, 0, dict[str, list[str]]()
    for name, results in overviews.items():
        data = name.removeprefix(OVERVIEW)
        for label, x in results.runs:
            worst = _worst(results, label, x)
            if worst is None or (data, label) in known:
                continue
            if worst >= HALF:
                high += 1
            else:
                left.setdefault(data, []).append(label)
    return high, left


def _left(left: Mapping[str, Sequence[str]]) -> str:
    said = "; ".join(f"{', '.join(labels)} on {data}" for data, labels in left.items())
    return f" Not compared: {said}." if said else ""


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
