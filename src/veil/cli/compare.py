"""`veil compare`: methods × seeds × budgets on one table."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from veil.cli.console import epsilon as shown_epsilon
from veil.cli.console import percent, print_json, stderr, stdout
from veil.errors import InputError, require

if TYPE_CHECKING:
    from torch import nn

    from veil.problem import Problem
    from veil.randomness import Seed


def compare(
    data: Annotated[str, typer.Argument(help="The table to train on (CSV or Parquet), or adult for the bundled one.")],
    methods: Annotated[str, typer.Option(help="Methods, separated by commas; see `veil methods`.")],
    target: Annotated[str, typer.Option(help="Column to predict.")] = "income",
    group: Annotated[str, typer.Option(help="Column or columns that make the groups.")] = "sex,income",
    test: Annotated[Path | None, typer.Option(help="A table whose rows are public, for evaluation.")] = None,
    seeds: Annotated[int, typer.Option(help="Runs per method, with seeds 1, 2, …")] = 3,
    epsilon: Annotated[str, typer.Option(help="Budget ε, or several: 0.5,1,2.")] = "1",
    epochs: Annotated[float, typer.Option(help="Expected passes over the rows.")] = 20.0,
    batch_size: Annotated[int, typer.Option(help="Expected rows per step.")] = 512,
    learning_rate: Annotated[float, typer.Option(help="Step size.")] = 0.5,
    model: Annotated[str, typer.Option(help="A built-in model.")] = "mlp",
    jobs: Annotated[int, typer.Option(help="Runs at the same time.")] = 2,
    backend: Annotated[str, typer.Option(help="joblib backend: loky, threading, ray or dask.")] = "loky",
    out: Annotated[Path, typer.Option(help="Folder for runs and report; an unfinished comparison goes on.")] = Path(
        "veil-compare"
    ),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing on the way.")] = False,
) -> None:
    """Compare methods over seeds; one failing run does not stop the others. Exit code 1 if any failed."""
    from veil.comparing import compare as run_comparison
    from veil.datasets import load_adult
    from veil.report import write_report
    from veil.tabular import fit_encoding, read_table, table_problem

    groups = [name.strip() for name in group.split(",") if name.strip()]
    if data == "adult":
        table, public = load_adult()
    else:
        require(test is not None, "comparing needs rows to judge by: give a table of public rows with --test")
        table, public = read_table(Path(data)), read_table(Path(str(test)))
    for name in (target, *groups):
        require(
            name in table.columns, f'column "{name}" is missing: the table has {", ".join(map(str, table.columns))}'
        )
    encoding = fit_encoding(table, {target})
    problem = table_problem(table, encoding, target, groups)
    evaluation = table_problem(public, encoding, target, groups, like=problem.public)
    found = run_comparison(
        problem,
        evaluation,
        methods=[name.strip() for name in methods.split(",") if name.strip()],
        out=out,
        model=partial(_model, model),
        seeds=seeds,
        epsilons=_budgets(epsilon),
        jobs=jobs,
        backend=backend,
        config={"command": "veil compare", "data": data, "target": target, "group": groups, "model": model},
        finished=None if json or quiet else lambda label: stderr.print(f"finished {label}", highlight=False),
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
    )
    page = write_report(found.facts, out / "report.html") if found.facts else None
    if json:
        print_json({**found.as_json(), "report": str(page) if page else None})
    else:
        stdout.print(_table(found.summary()))
        for label, sentence in found.failures.items():
            stdout.print(f"failed: {label}: {sentence}", soft_wrap=True, highlight=False, markup=False)
        if page:
            stdout.print(f"\nReport: {page.resolve().as_uri()}", soft_wrap=True, highlight=False)
    if found.failures:
        raise typer.Exit(1)


def _model(name: str, problem: Problem, seed: Seed) -> nn.Module:
    from veil.models import build_model

    return build_model(name, problem.public, seed)


def _budgets(text: str) -> list[float]:
    from veil.plan import Settings

    try:
        values = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f'epsilon is "{text}": give a number, or several separated by commas') from error
    for value in values:
        Settings.checked(epsilon=value)
    return values


def _table(summary: list[dict[str, Any]]) -> Table:
    page = Table(
        title="Accuracy, %: mean ± standard deviation over seeds", title_justify="left", caption_justify="left"
    )
    for heading in ("method", "seeds", "worst group", "average of groups", "overall", "ε", "p against best"):
        page.add_column(heading, justify="left" if heading == "method" else "right")
    for row in summary:
        mark = " ★" if row["best"] else " ·" if row["within_one_std"] else ""
        figures = [_spread(row[key]) for key in ("worst_group_accuracy", "average_group_accuracy", "accuracy")]
        p_value = "–" if row["p_value"] is None else f"{row['p_value']:.2g}"
        style = "bold" if row["best"] else ""
        name = row["method"] + mark
        page.add_row(name, str(row["seeds"]), *figures, shown_epsilon(row["epsilon"]), p_value, style=style)
    page.caption = "★ best worst group, · within one standard deviation of it; p: paired t-test on the worst group"
    return page


def _spread(figure: dict[str, float | None]) -> str:
    if figure["std"] is None:
        return percent(figure["mean"])
    return f"{percent(figure['mean'])} ± {percent(figure['std'])}"
