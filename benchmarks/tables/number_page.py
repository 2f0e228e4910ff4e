"""The page docs/results/regression.md: a function of regression.json alone, with regret first."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.tables.number_scoring import HIGHER, METRICS
from benchmarks.tables.page import NONE, SHOWN, Figures, TaskKey, by_grouping, regrets, seconds, table_lines

HEADINGS = {
    "worst_group_error": "worst group",
    "average_group_error": "average of groups",
    "error": "overall",
    "worst_group_absolute": "worst group, mean absolute",
    "r2": "R²",
}
BY_EPSILON = ("dp-ebm", "diffprivlib", "auto", "dp-sgd")


@dataclass(frozen=True)
class Errors(Figures):
    """What regression.json says: of errors, less is better."""

    headings: ClassVar[Mapping[str, str]] = HEADINGS

    def below_best(self, metric: str, own: float, others: Sequence[float]) -> float:
        """How much worse a figure is than the best of others, in points."""
        return 100 * (max(others) - own if metric in HIGHER else own - min(others))


def write(source: Path, target: Path) -> None:
    """The page beside its JSON."""
    target.write_text(page_of(Errors.read(source)), encoding="utf-8")


def page_of(figures: Errors) -> str:
    """The whole page as Markdown."""
    parts = [_opening(figures), regrets(figures), by_grouping(figures), _budgets(figures), _by_table(figures)]
    return "\n".join(part for part in [*parts, _method(figures)] if part)


def _opening(figures: Errors) -> str:
    return (
        "# Numbers to predict: Veil beside its peers and models without privacy\n\n"
        f"{len(figures.tables())} tables with up to {len(figures.about['groupings'])} definitions of groups each. "
        "Every private model has the same rows, the same public facts and the same δ. Errors are root mean squared "
        "errors on test rows in percent of the target's standard deviation: 100 is the best constant answer for all "
        f"rows. Worst group and average count groups of at least {figures.about['least_rows']} test rows. Means over "
        "seeds.\n"
    )


def _budgets(figures: Errors) -> str:
    """The worst group's error by ε."""
    lines = ["## Error of the worst group by ε", ""]
    epsilons, metric = figures.epsilons(), METRICS[0]
    rows = [
        [", ".join(task), figures.title(arm), *(_percent(figures.mean(task, arm, e, metric)) for e in epsilons)]
        for task in sorted({key[:2] for key in figures.cells})
        for arm in figures.arms("peer", "veil")
        if arm in BY_EPSILON
    ]
    return "\n".join([*lines, *table_lines(["table and groups", "arm", *(f"ε = {e:g}" for e in epsilons)], rows)])


def _by_table(figures: Errors) -> str:
    lines = [f"## Every table at ε = {SHOWN:g}", ""]
    lines += [f"Worst group ± standard deviation over seeds / {' / '.join(list(HEADINGS.values())[1:])}.", ""]
    for table in figures.tables():
        facts = figures.about["tables"][table]
        low, high = facts["bounds"]
        names = [n for n in figures.about["groupings"] if any((table, n) == key[:2] for key in figures.cells)]
        lines += [f"### {table}", ""]
        lines += [
            f"{facts['train']:,} training and {facts['test']:,} test rows, δ = {facts['delta']:g}, target "
            f"`{facts['target']}` between {low:,g} and {high:,g}.",
            "",
        ]
        arms = [a for a in figures.about["arms"] if any(_cell(figures, (table, n), a) != NONE for n in names)]
        rows = [[figures.title(arm), *(_cell(figures, (table, name), arm) for name in names)] for arm in arms]
        groups = [f"{name}: {' × '.join(facts['groups'][name])} ({_scored(figures, table, name)})" for name in names]
        lines += table_lines(["arm", *groups], rows)
    return "\n".join(lines)


def _scored(figures: Errors, table: str, groups: str) -> str:
    count = next(row["groups_scored"] for row in figures.rows if (row["table"], row["groups"]) == (table, groups))
    return f"{count} group{'s' * (count != 1)} counted"


def _cell(figures: Errors, task: TaskKey, arm: str) -> str:
    """All figures of one arm on one task at the ε that is shown."""
    budget = None if figures.family(arm) == "not private" else SHOWN
    found = figures.cells.get((*task, arm, budget), ())
    if not found:
        return NONE
    worst = [row[METRICS[0]] for row in found if row[METRICS[0]] is not None]
    spread = f" ± {100 * statistics.stdev(worst):.1f}" if len(worst) > 1 else ""
    rest = (_percent(figures.mean(task, arm, SHOWN, metric)) for metric in METRICS[1:])
    return " / ".join([_percent(figures.mean(task, arm, SHOWN, METRICS[0])) + spread, *rest])


def _method(figures: Errors) -> str:
    about = figures.about
    seeds = sorted({row["seed"] for row in figures.rows})
    lines = [
        "## How it was measured",
        "",
        "    make peers",
        "    python -m benchmarks regression",
        "",
        f"- **Rows.** Test rows are {100 * about['test_share']:g} % of a table, the same for every arm and seed; "
        "`benchmarks/tables/splits.json` fixes them by digests. No setting was chosen for these tables.",
        f"- **Seeds.** {', '.join(map(str, seeds))}; arms without randomness are measured once.",
        "- **Budget.** ε as stated, δ = 1/(10 · training rows) with one digit, for one row, for every private arm; "
        "diffprivlib needs no δ.",
        "- **Public facts.** Bounds of numbers, the target among them (`benchmarks/tables/numbers.py`), and values of "
        "categories are the same for all arms. Predictions of every arm are cut to the bounds of the target. Columns "
        "that nearly repeat the target are left out.",
        "- **Without privacy.** scikit-learn's ridge regression (standardised numbers, one column per category) and "
        "LightGBM with their defaults; group-weighted: a row's weight is inverse to the size of its group. The "
        "constant answer is the mean of the training rows.",
        "- **Peers.** DP-EBM and diffprivlib's linear regression with their defaults, bounds of columns and target "
        "declared. None of them is told the groups.",
        "- **Veil.** `veil train --task regression` with the method as named and no option of it, on all training "
        "rows. `dp-sgd` does nothing with groups, so that one fit is measured with both definitions.",
    ]
    known = sorted({name for arm in figures.arms("not private", "peer", "veil") for name in figures.versions[arm]})
    return "\n".join([*lines, f"- **Versions.** {'; '.join(known)}.", "", *seconds(figures)])


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f}"
