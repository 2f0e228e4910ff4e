"""`veil compare`: methods × seeds × budgets on one table."""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from veil.cli.config_file import config_text, further_settings
from veil.cli.console import epsilon as shown_epsilon
from veil.cli.console import percent, print_json, stderr, stdout
from veil.cli.options import (
    BatchSize,
    Config,
    Epochs,
    Group,
    Ignore,
    Json,
    LearningRate,
    Methods,
    Model,
    NoiseFilter,
    PrintConfig,
    Quiet,
    Require,
    SchemaFile,
    Target,
    Test,
)
from veil.cli.parsing import checked_backend, checked_jobs, listed, named_values, numbers
from veil.cli.requiring import Checks, checked_requirements, judge, print_verdict
from veil.errors import InputError, about, require

if TYPE_CHECKING:
    from torch import nn

    from veil.foundation.randomness import Seed
    from veil.problem import Problem
    from veil.training.comparing import Comparison

ADULT = {"target": "income", "group": "sex,income", "ignore": "fnlwgt"}
Data = Annotated[str, typer.Argument(help="The table to train on (CSV or Parquet), or adult for the bundled one.")]
Seeds = Annotated[int, typer.Option(help="Runs per method, with seeds 1, 2, …")]
Epsilons = Annotated[str, typer.Option(help="Budget ε, or several: 0.5,1,2.")]
MethodOptions = Annotated[
    list[str] | None, typer.Option(help="An option of one of the methods, as method.name=value. Repeatable.")
]
Jobs = Annotated[int, typer.Option(help="Runs at the same time.", callback=checked_jobs)]
Backend = Annotated[str, typer.Option(help="joblib backend: loky, threading, ray or dask.", callback=checked_backend)]
Out = Annotated[Path, typer.Option(help="Folder for runs and report; an unfinished comparison goes on.")]


def compare(
    context: typer.Context,
    data: Data = "adult",
    methods: Methods = "erm,dp-sgd,dp-is-sgd,asc",
    config: Config = None,
    target: Target = None,
    group: Group = None,
    test: Test = None,
    schema: SchemaFile = None,
    ignore: Ignore = "",
    seeds: Seeds = 3,
    epsilon: Epsilons = "1",
    epochs: Epochs = 20.0,
    batch_size: BatchSize = 512,
    learning_rate: LearningRate = 0.5,
    noise_filter: NoiseFilter = "none",
    model: Model = "mlp",
    option: MethodOptions = None,
    jobs: Jobs = 2,
    backend: Backend = "loky",
    require: Require = None,
    out: Out = Path("veil-compare"),
    json: Json = False,
    quiet: Quiet = False,
    print_config: PrintConfig = False,
) -> None:
    """Compare methods over seeds; one failing run does not stop the others.

    Exit code 1 if any run failed or a requirement is not met by the best private method (the best of all, if none is).
    """
    if print_config:
        typer.echo(config_text(context), nl=False)
        return
    wanted = checked_requirements(require)
    rows = _rows(context.params)
    found = _compare(context.params, rows, further_settings(context), silent=json or quiet)
    _show(found, rows.not_covered, out, json, wanted)


def _compare(asked: Mapping[str, Any], rows: _Rows, further: Mapping[str, Any], *, silent: bool) -> Comparison:
    from veil.training.comparing import compare as run_comparison

    chosen = listed(asked["methods"])
    budgets, options = _budgets(asked["epsilon"]), _options(asked["option"] or [], chosen)
    config = dict(rows.config)
    same = ("epochs", "batch_size", "learning_rate", "noise_filter")
    config |= {"command": shlex.join(["veil", *sys.argv[1:]]), "require": asked["require"] or None}
    with _Watch(silent) as watch:
        return run_comparison(
            rows.problem,
            rows.evaluation,
            methods=chosen,
            out=asked["out"],
            model=partial(_model, asked["model"]),
            seeds=asked["seeds"],
            epsilons=budgets,
            options=options,
            jobs=asked["jobs"],
            backend=asked["backend"],
            config=config,
            not_covered=rows.not_covered,
            finished=watch.finished,
            **({name: asked[name] for name in same} | dict(further)),
        )


@dataclass(frozen=True)
class _Rows:
    """Training rows, public rows, what was asked for, and what no certificate covers."""

    problem: Problem
    evaluation: Problem
    config: dict[str, Any]
    not_covered: list[str]


def _rows(asked: Mapping[str, Any]) -> _Rows:
    from veil.datasets import load_adult
    from veil.tables import table_problem
    from veil.tables.preparing import (
        Request,
        check_columns,
        check_ignored,
        columns_of,
        plain_encoding,
        read_and_check,
        read_off_rows,
    )

    data, bundled = asked["data"], asked["data"] == "adult"
    usual = ADULT if bundled else {}
    ignore = listed(asked["ignore"] or usual.get("ignore", ""))
    _require_data(data)
    require(bundled or asked["test"] is not None, "comparing needs rows to judge by: give public ones with --test")
    request = Request(
        data=Path(data),
        target=asked["target"] or usual.get("target"),
        groups=listed(asked["group"] or usual.get("group", "")),
        test=asked["test"],
        schema=asked["schema"],
        ignore=frozenset(ignore),
        model=asked["model"],
    )
    columns = columns_of(request)
    table, public = load_adult() if bundled else read_and_check(request, columns)
    assert public is not None
    if bundled:
        check_columns(table, columns)
        check_ignored(table, request.ignore)
    target, groups, schema = columns.target, columns.groups, columns.schema
    encoding = plain_encoding(request, columns, table)
    sizes = None if schema is None else schema.group_sizes
    problem = table_problem(table, encoding, target, groups, schema=schema, group_sizes=sizes)
    with about("--test"):
        evaluation = table_problem(public, encoding, target, groups, like=problem.public, schema=schema)
    config = {"data": data, "target": target, "group": list(groups), "model": asked["model"], "ignore": list(ignore)}
    if asked["schema"] is not None:
        config["schema"] = str(asked["schema"])
    return _Rows(problem, evaluation, config, read_off_rows(schema, encoding))


def _require_data(data: str) -> None:
    if data == "adult" or Path(data).exists():
        return
    near = difflib.get_close_matches(data, ["adult", *(path.name for path in Path().iterdir())], 1)
    hint = f'did you mean "{near[0]}"' if near else "give a table, or adult for the bundled one"
    raise InputError(f'there is no file or data set "{data}": {hint}')


def _show(found: Comparison, not_covered: list[str], out: Path, json: bool, wanted: list[Any]) -> None:
    from veil.report import write_report
    from veil.training.comparing import OTHER_RUNS, SEEDS_PUBLIC

    page = write_report(found.facts, out / "report.html", requirements=wanted) if found.facts else None
    checks = judge(found.facts, wanted) if found.facts else Checks("no run")
    if json:
        print_json({**found.as_json(), **checks.as_json(), "report": str(page) if page else None})
    else:
        stdout.print(_table(found.summary()))
        for label, sentence in found.failures.items():
            stdout.print(f"failed: {label}: {sentence}", soft_wrap=True, highlight=False, markup=False)
        print_verdict(checks)
        if any(row["private"] for row in found.summary()):
            stdout.print("\nNo certificate here covers:")
            for sentence in (*not_covered, OTHER_RUNS, SEEDS_PUBLIC):
                stdout.print(f"- {sentence}", soft_wrap=True, highlight=False)
        if page:
            stdout.print(f"\nReport: {page.resolve().as_uri()}", soft_wrap=True, highlight=False)
    if found.failures or not checks.met:
        raise typer.Exit(1)


def _model(name: str, problem: Problem, seed: Seed) -> nn.Module:
    from veil.models import build_model

    return build_model(name, problem.public, seed)


def _budgets(text: str) -> list[float]:
    from veil.plans import Settings

    values = numbers(str(text), "epsilon")
    for value in values:
        Settings.checked(epsilon=value)
    return values


def _options(pairs: list[str], methods: tuple[str, ...]) -> dict[str, dict[str, object]]:
    """method.name=value pairs, by method; each is for a method that takes part."""
    found: dict[str, dict[str, object]] = {}
    for pair in pairs:
        method, dot, rest = pair.partition(".")
        if not dot or "=" in method:
            raise InputError(f'option "{pair}" is not of the form method.name=value, as in asc.clip=0.5')
        require(method in methods, f'option "{pair}": {method} is not among the methods: {", ".join(methods)}')
        found.setdefault(method, {}).update(named_values([rest]))
    return found


class _Watch:
    """A bar on standard error: how many runs are done, and how much time is left."""

    def __init__(self, silent: bool) -> None:
        columns = (BarColumn(bar_width=24), TextColumn("run {task.completed}/{task.total}"))
        times = (TextColumn("after"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(compact=True))
        self._bar = Progress(*columns, *times, console=stderr, disable=silent)
        self._task: TaskID | None = None

    def __enter__(self) -> _Watch:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def finished(self, label: str, done: int, total: int) -> None:
        """Say which run is done."""
        if self._task is None:
            self._task = self._bar.add_task("", total=total)
        self._bar.update(self._task, completed=done)
        if not self._bar.disable:
            stderr.print(f"finished {label}", highlight=False, markup=False)


def _table(summary: list[dict[str, Any]]) -> Table:
    page = Table(
        title="Accuracy, %: mean ± standard deviation over seeds", title_justify="left", caption_justify="left"
    )
    for heading in ("method", "seeds", "worst group", "average of groups", "overall", "largest ε", "p against best"):
        page.add_column(heading, justify="left" if heading == "method" else "right")
    for row in summary:
        mark = " ★" if row["best"] else " ·" if row["within_one_std"] else ""
        front = " ◇" if row["front"] else ""
        figures = [_spread(row[key]) for key in ("worst_group_accuracy", "average_group_accuracy", "accuracy")]
        p_value = "–" if row["p_value"] is None else f"{row['p_value']:.2g}"
        style = "bold" if row["best"] else ""
        page.add_row(
            f"{row['name']}{mark}{front}",
            str(row["seeds"]),
            *figures,
            shown_epsilon(row["epsilon"]),
            p_value,
            style=style,
        )
    page.caption = (
        "★ best worst group among private (and among other) methods, · within one standard deviation of it;\n"
        "◇ on the Pareto front of worst group and average; p: paired t-test on the worst group, seed by seed"
    )
    return page


def _spread(figure: dict[str, float | None]) -> str:
    if figure["std"] is None:
        return percent(figure["mean"])
    return f"{percent(figure['mean'])} ± {percent(figure['std'])}"
