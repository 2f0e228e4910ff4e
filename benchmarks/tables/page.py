"""The page docs/results/tables.md: a function of tables.json alone, with regret first."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from benchmarks.tables.scoring import METRICS, regret
from benchmarks.tables.targets import EPSILON, MERGED, lines_of
from veil.errors import require

HEADINGS = {
    "worst_group_accuracy": "worst group",
    "average_group_accuracy": "average of groups",
    "accuracy": "overall",
    "auc": "AUC",
}
SHOWN = 1.0
"""The ε of the tables by data set."""
NONE = "–"
OVERALL, TUNED = "auto-overall", "dp-sgd-tuned"
# Measured on a few tasks for a question of its own: no mean over tasks has it.
FEW = (OVERALL, MERGED, TUNED)
TaskKey = tuple[str, str]
Key = tuple[str, str, str, float | None]


@dataclass(frozen=True)
class Figures:
    """What tables.json says, with means over seeds."""

    about: Mapping[str, Any]
    versions: Mapping[str, Sequence[str]]
    failures: Sequence[Mapping[str, Any]]
    rows: Sequence[Mapping[str, Any]]
    headings: ClassVar[Mapping[str, str]] = HEADINGS

    @classmethod
    def read(cls, path: Path) -> Self:
        """From the file."""
        record = json.loads(path.read_text(encoding="utf-8"))
        rows = [dict(zip(record["columns"], row, strict=True)) for row in record["rows"]]
        require(len(rows) > 0, f"{path} holds no measured cell: run `python -m benchmarks tables` first.")
        return cls(record["about"], record["versions"], record["failures"], rows)

    @cached_property
    def cells(self) -> Mapping[Key, Sequence[Mapping[str, Any]]]:
        """All seeds of each table, groups, arm and ε."""
        found: dict[Key, list[Mapping[str, Any]]] = {}
        for row in self.rows:
            found.setdefault((row["table"], row["groups"], row["arm"], row["epsilon"]), []).append(row)
        return found

    def family(self, arm: str) -> str:
        """Not private, peer or veil."""
        return str(self.about["arms"][arm]["family"])

    def title(self, arm: str) -> str:
        """The arm's name on the page."""
        return str(self.about["arms"][arm]["title"])

    def arms(self, *families: str) -> list[str]:
        """Arms with figures, in the order of the benchmark."""
        measured = {row["arm"] for row in self.rows}
        return [arm for arm in self.about["arms"] if arm in measured and self.family(arm) in families]

    def tables(self) -> list[str]:
        """Tables with figures, in the order of the benchmark."""
        measured = {row["table"] for row in self.rows}
        return [table for table in self.about["tables"] if table in measured]

    def epsilons(self) -> list[float]:
        """Budgets with figures."""
        return sorted({row["epsilon"] for row in self.rows if row["epsilon"] is not None})

    def mean(self, task: TaskKey, arm: str, epsilon: float | None, metric: str) -> float | None:
        """The mean over seeds; None where nothing was measured."""
        budget = None if self.family(arm) == "not private" else epsilon
        return _mean(row[metric] for row in self.cells.get((*task, arm, budget), ()))

    def regret(self, task: TaskKey, arm: str, epsilon: float | None, metric: str) -> float | None:
        """Points below the best model without privacy on the same table, groups and metric."""
        own = self.mean(task, arm, epsilon, metric)
        others = [self.mean(task, other, None, metric) for other in self.arms("not private")]
        known = [value for value in others if value is not None]
        return None if own is None or not known else self.below_best(metric, own, known)

    def below_best(self, metric: str, own: float, others: Sequence[float]) -> float:
        """How much worse a figure is than the best of others, in points."""
        return regret(own, max(others))

    def common_tasks(self, arms: Iterable[str], epsilon: float) -> list[TaskKey]:
        """Table and groups for which every one of the arms has every figure."""
        named = list(arms)
        tasks = sorted({(row["table"], row["groups"]) for row in self.rows})
        return [
            task
            for task in tasks
            if all(self.regret(task, arm, epsilon, metric) is not None for arm in named for metric in self.headings)
        ]


def write(source: Path, target: Path) -> None:
    """The page beside its JSON."""
    target.write_text(page_of(Figures.read(source)), encoding="utf-8")


def page_of(figures: Figures) -> str:
    """The whole page as Markdown."""
    parts = [_opening(figures), regrets(figures), by_grouping(figures), _targets(figures), _overall(figures)]
    parts += [_by_table(figures), _method(figures)]
    return "\n".join(part for part in parts if part)


def _opening(figures: Figures) -> str:
    tables = len(figures.tables())
    return (
        f"# Tables: Veil beside its peers and models without privacy\n\n"
        f"Classifiers on {tables} tables with up to three definitions of groups each. Every private model has the same "
        f"rows, the same public facts and the same δ. Figures are on test rows, in percent, means over seeds. Worst "
        f"group and average count groups of at least {figures.about['least_rows']} test rows.\n"
    )


def regrets(figures: Figures) -> str:
    """By ε and arm, points below the best model without privacy; then the tasks that an arm has no figures for."""
    lines = [
        "## Regret to the best model without privacy",
        "",
        "Points below the best model without privacy on the same table, with the same groups and for the same metric: "
        "lower is better, below zero is better than without privacy. The best model is chosen on the test rows and may "
        "be another one for every column, so no single model has zeros everywhere. Means over the tasks (table and "
        "groups) that every arm of the list has figures for.",
        "",
    ]
    for epsilon in figures.epsilons():
        arms = [arm for arm in figures.arms("peer", "veil") if arm not in FEW and _measured(figures, arm, epsilon)]
        arms = [*figures.arms("not private"), *arms]
        tasks = figures.common_tasks(arms, epsilon)
        lines += [f"### ε = {epsilon:g} ({len(tasks)} task{'s' * (len(tasks) != 1)})", ""]
        rows = [
            [
                figures.title(arm),
                *(_points(_mean(figures.regret(t, arm, epsilon, m) for t in tasks)) for m in figures.headings),
            ]
            for arm in arms
        ]
        lines += table_lines(["arm", *figures.headings.values()], rows)
    return "\n".join(lines + _failures(figures))


def _failures(figures: Figures) -> list[str]:
    if not figures.failures:
        return []
    listed = [f"- {figures.title(f['arm'])}: {f['said']} ({'; '.join(f['tasks'])})" for f in figures.failures]
    return ["Tasks without figures:", "", *listed, ""]


def by_grouping(figures: Figures) -> str:
    """The worst group's regret, by where groups come from."""
    arms = [arm for arm in figures.arms("peer", "veil") if arm not in FEW and _measured(figures, arm, SHOWN)]
    arms = [*figures.arms("not private"), *arms]
    tasks = figures.common_tasks(arms, SHOWN)
    names = [name for name in figures.about["groupings"] if any(task[1] == name for task in tasks)]
    if not names:
        return ""
    worst = next(iter(figures.headings))
    rows = [
        [
            figures.title(arm),
            *(_points(_mean(figures.regret(t, arm, SHOWN, worst) for t in tasks if t[1] == name)) for name in names),
        ]
        for arm in arms
    ]
    heading = [f"## Regret of the worst group by definition of groups, ε = {SHOWN:g}", ""]
    said = "; ".join(f"*{name}*: {figures.about['groupings'][name]}" for name in names)
    return "\n".join([*heading, f"{said[0].upper()}{said[1:]}.", "", *table_lines(["arm", *names], rows)])


def _targets(figures: Figures) -> str:
    """What `auto` shall reach, and whether it does."""
    rows = lines_of(figures)
    if not rows:
        return ""
    heading = [f"## Targets of `auto`, ε = {EPSILON:g}", ""]
    said = "Points above the other model, the lowest over tables or the mean over them."
    return "\n".join([*heading, said, "", *table_lines(["what", "at least", "measured", "met"], rows)])


def _overall(figures: Figures) -> str:
    """`auto` with the aim `overall` beside dp-sgd, on the tasks that both have; and dp-sgd tuned, where it was."""
    arms, shown = ["dp-sgd", OVERALL], ("accuracy", "auc")
    if any(arm not in figures.arms("veil") for arm in arms):
        return ""
    tasks = figures.common_tasks(arms, SHOWN)
    if TUNED in figures.arms("veil"):
        arms.insert(1, TUNED)
    cells = [[_percent(figures.mean(t, arm, SHOWN, metric)) for metric in shown for arm in arms] for t in tasks]
    names = [f"{HEADINGS[metric]}: {figures.title(arm)}" for metric in shown for arm in arms]
    heading = [f"## The aim `overall` beside dp-sgd, ε = {SHOWN:g}", ""]
    lines = [[", ".join(task), *found] for task, found in zip(tasks, cells, strict=True)]
    said = [f"{figures.about['tuned']}", ""] if TUNED in arms else []
    return "\n".join([*heading, *said, *table_lines(["table and groups", *names], lines)])


def _by_table(figures: Figures) -> str:
    lines = [f"## Every table at ε = {SHOWN:g}", ""]
    lines += [f"Worst group ± standard deviation over seeds / {' / '.join(list(HEADINGS.values())[1:])}.", ""]
    for table in figures.tables():
        facts = figures.about["tables"][table]
        names = [n for n in figures.about["groupings"] if any((table, n) == key[:2] for key in figures.cells)]
        lines += [f"### {table}", ""]
        lines += [
            f"{facts['train']:,} training and {facts['test']:,} test rows, δ = {facts['delta']:g}, target "
            f"`{facts['target']}`.",
            "",
        ]
        arms = [a for a in figures.about["arms"] if any(_cell(figures, (table, n), a) != NONE for n in names)]
        rows = [[figures.title(arm), *(_cell(figures, (table, name), arm) for name in names)] for arm in arms]
        groups = [f"{name}: {' × '.join(facts['groups'][name])} ({_scored(figures, table, name)})" for name in names]
        lines += table_lines(["arm", *groups], rows)
    return "\n".join(lines)


def _scored(figures: Figures, table: str, groups: str) -> str:
    count = next(row["groups_scored"] for row in figures.rows if (row["table"], row["groups"]) == (table, groups))
    return f"{count} group{'s' * (count != 1)} counted"


def _cell(figures: Figures, task: TaskKey, arm: str) -> str:
    """Four figures of one arm on one task at the ε that is shown."""
    if figures.family(arm) == "not private":
        found = figures.cells.get((*task, arm, None), ())
    else:
        found = figures.cells.get((*task, arm, SHOWN), ())
    if not found:
        return NONE
    worst, *others = ([row[metric] for row in found if row[metric] is not None] for metric in METRICS)
    spread = f" ± {100 * statistics.stdev(worst):.1f}" if len(worst) > 1 else ""
    return " / ".join([_percent(_mean(worst)) + spread, *(_percent(_mean(values)) for values in others)])


def _method(figures: Figures) -> str:
    about = figures.about
    peers, opacus = figures.arms("peer"), about["opacus"]
    seeds = sorted({row["seed"] for row in figures.rows})
    lines = [
        "## How it was measured",
        "",
        "    make peers",
        "    python -m benchmarks tables",
        "",
        f"- **Rows.** Test rows are {100 * about['test_share']:g} % of a table, the same for every arm and seed; "
        "`benchmarks/tables/splits.json` fixes them by digests. Settings are chosen on validation rows, a part of the "
        "training rows (`--rows validation`), with other seeds.",
        f"- **Seeds.** {', '.join(map(str, seeds))}; arms without randomness are measured once.",
        "- **Budget.** ε as stated, δ = 1/(10 · training rows) with one digit, for one row, for every private arm; "
        "diffprivlib needs no δ. The neighbouring relation is that of each method, and how many rows train is public.",
        "- **Public facts.** Bounds of numbers (`benchmarks/tables/data.py`) and values of categories (those of the "
        "published table, as its code book) are taken as public and are the same for all arms: no library "
        "has to read them off the rows. Columns that only make groups are no features.",
        "- **Without privacy.** scikit-learn's logistic regression (standardised numbers, one column per category) and "
        "LightGBM (categories as categories) with their defaults; group-weighted: a row's weight is inverse to the "
        "size of its group. The constant answer is the most frequent class.",
    ]
    if peers:
        lines += [
            "- **Peers.** DP-EBM with its defaults, kinds and bounds of all columns declared. diffprivlib's logistic "
            "regression with its defaults; `data_norm` is √(number of columns), the largest norm that numbers within "
            "±1 and one 1 per category allow. opacus with the settings of its tutorial on image classifiers: "
            f"{opacus['epochs']} epochs, batches of {opacus['batch_size']}, RMSprop with learning rate "
            f"{opacus['learning_rate']:g}, clipping at {opacus['max_grad_norm']:g}, Poisson sampling, its default "
            f"accountant; a linear model and one hidden layer of {opacus['hidden']}. {_jax(figures)}"
            "None of them is told the groups.",
        ]
    if figures.arms("veil"):
        lines += [
            "- **Veil.** `veil train` with method or preset as named and no option of a method, on all training rows. "
            "It is told the groups; their sizes are counted and taken as public, as its certificate says.",
        ]
    known = sorted({name for arm in figures.arms("not private", "peer", "veil") for name in figures.versions[arm]})
    return "\n".join([*lines, f"- **Versions.** {'; '.join(known)}.", "", *seconds(figures)])


def _jax(figures: Figures) -> str:
    """What was done with JAX-Privacy, where it was measured."""
    if "jax-privacy" not in figures.arms("peer"):
        return ""
    jax = figures.about["jax_privacy"]
    return (
        "JAX-Privacy with the settings of its example on rows of numbers (dp_logistic_regression.py) and the plan that "
        f"it documents for standard DP-SGD: {jax['iterations']} steps, {jax['batch_size']} rows per step on average "
        f"(all, where there are fewer), SGD with learning rate {jax['learning_rate']:g}, clipping at "
        f"{jax['clip_norm']:g}, Poisson sampling, its default accountant; the same hidden layer. "
    )


def seconds(figures: Figures) -> list[str]:
    """Times as ratios, which depend less on the machine."""
    base = next((arm for arm in ("lightgbm", "logistic", "ridge") if arm in figures.arms("not private")), None)
    if base is None:
        return []
    tasks = sorted({key[:2] for key in figures.cells})
    rows = []
    for arm in figures.arms("not private", "peer", "veil"):
        pairs = [(figures.mean(t, arm, SHOWN, "seconds"), figures.mean(t, base, None, "seconds")) for t in tasks]
        ratios = [own / other for own, other in pairs if own is not None and other]
        if ratios:
            rows.append([figures.title(arm), f"{statistics.median(ratios):.2g}"])
    said = (
        f"Seconds of a fit with its predictions over those of {figures.title(base)} on the same task: median over tasks"
    )
    return [f"{said}, one thread, ε = {SHOWN:g}.", "", *table_lines(["arm", "time"], rows)]


def _measured(figures: Figures, arm: str, epsilon: float) -> bool:
    return any(key[2:] == (arm, epsilon) for key in figures.cells)


def table_lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown and an empty line behind it."""
    marks = "|---|" + "--:|" * (len(headings) - 1)
    return [f"| {' | '.join(headings)} |", marks, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.fmean(found) if found else None


def _points(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}".replace("-", "−")


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f}"
