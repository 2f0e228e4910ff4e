"""`veil compare`: methods × seeds × budgets on one table."""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from veil.cli.config_file import config_text
from veil.cli.console import NOT_PRIVATE, percent, print_json, stderr, stdout
from veil.cli.console import epsilon as shown_epsilon
from veil.cli.fields import asks, values_of
from veil.cli.options import Config, Json, PrintConfig, Quiet
from veil.cli.requiring import Checks, checked_requirements, judge, print_verdict
from veil.errors import InputError, require
from veil.foundation.words import named_values, numbers
from veil.request import COMPARED, CompareRequest, Settings

if TYPE_CHECKING:
    from veil.foundation.parallel import Workers
    from veil.tables.opening import Opened
    from veil.training.comparing import Comparison
    from veil.training.fitting import Measure

BUNDLED = Path("adult")
ADULT: dict[str, Any] = {"target": "income", "group": ("sex", "income"), "ignore": ("fnlwgt",)}
Jobs = Annotated[int, typer.Option(help="Runs at the same time.")]
Backend = Annotated[str, typer.Option(help="joblib backend: loky, threading, ray or dask.")]
Out = Annotated[Path, typer.Option(help="Folder for runs and report; an unfinished comparison is continued.")]


@asks(CompareRequest)
def compare(
    context: typer.Context,
    config: Config = None,
    jobs: Jobs = 2,
    backend: Backend = "loky",
    out: Out = Path("veil-compare"),
    json: Json = False,
    quiet: Quiet = False,
    print_config: PrintConfig = False,
) -> None:
    """Compare methods over seeds; one failing run does not stop the others.

    Exit code 1 if any run failed or a requirement is not met by the best private method (the best of all, if none is).
    """
    from veil.foundation.parallel import Workers
    from veil.training.comparing import SEEDS_PUBLIC

    if print_config:
        typer.echo(config_text(context), nl=False)
        return
    request = CompareRequest.checked(**values_of(CompareRequest, context))
    if request.data == BUNDLED:
        given = {name: value for name, value in ADULT.items() if not getattr(request, name)}
        request = request.model_copy(update=given)
    private = request.data != BUNDLED and request.test is None
    methods = request.methods or (COMPARED if private else ("erm", *COMPARED))
    request = request.model_copy(update={"methods": _with_presets(methods)})
    wanted, workers = checked_requirements(request.require), Workers(jobs, backend)
    if private:
        _require_data(str(request.data))
        found = _compare_held_out(request, out, workers, silent=json or quiet)
        _show(found, [SEEDS_PUBLIC] if request.public_seeds else [], out, json, wanted)
        return
    require(
        request.dataset is None,
        "--dataset charges a comparison with secret seeds, and with public rows its seeds are public: omit --test",
    )
    opened = _opened(request)
    found = _compare(request, opened, out, workers, silent=json or quiet)
    _show(found, [*opened.not_covered, SEEDS_PUBLIC], out, json, wanted)


def _with_presets(names: Sequence[str]) -> tuple[str, ...]:
    """Methods, each once; a preset stands for its method, which has the preset's model here anyway."""
    if "best" not in names:
        return tuple(names)
    from veil.training.presets import PRESETS

    return tuple(dict.fromkeys(PRESETS[name].method if name in PRESETS else name for name in names))


def _compare_held_out(request: CompareRequest, out: Path, workers: Workers, *, silent: bool) -> Comparison:
    """Without public rows: every method is measured on rows that it held out, with noise."""
    from veil.methods import create
    from veil.tables.comparing import compare_held_out
    from veil.training.comparing import trials_of

    options = _options(request.option, request.methods)
    methods = [create(name, options.get(name)) for name in request.methods]
    trials = trials_of(methods, request.seeds, _budgets(request.epsilon))
    with _Watch(silent) as watch:
        return compare_held_out(request, trials, options, out, workers, watch.finished)


def _compare(request: CompareRequest, opened: Opened, out: Path, workers: Workers, *, silent: bool) -> Comparison:
    from veil.methods import create
    from veil.tables.effects import Learned
    from veil.tables.without_privacy import KnownWithoutPrivacy, WithoutPrivacy
    from veil.training.comparing import Work, run_trials, trials_of

    assert opened.test is not None
    of_runs = {"methods", "seeds", "epsilon", "option", "public_seeds", "dataset", "store", "show_private"}
    config = {name: value for name, value in request.record().items() if name not in of_runs}
    config["command"] = shlex.join(["veil", *sys.argv[1:]])
    settings = request.settings.model_dump(exclude={"epsilon", "seed"})
    options = _options(request.option, request.methods)
    model = {n: opened.factory.suiting(n, options.get(n), model=request.model) for n in request.methods}
    measures: list[Measure] = []
    if opened.encoding is not None:
        beside = WithoutPrivacy(opened.test).found(len(opened.problem.public.classes))
        measures = [Learned(opened.encoding), *([] if beside is None else [KnownWithoutPrivacy(beside)])]
    work = Work(opened.problem, opened.test, model, out, settings, config, opened.not_covered, measures)
    methods = [create(name, options.get(name)) for name in request.methods]
    trials = trials_of(methods, request.seeds, _budgets(request.epsilon))
    with _Watch(silent) as watch:
        return run_trials(trials, work, workers, watch.finished)


def _opened(request: CompareRequest) -> Opened:
    """The table and the public rows to evaluate on."""
    from veil.datasets import load_adult
    from veil.tables.opening import open_to_compare

    _require_data(str(request.data))
    return open_to_compare(request.of_table(), load_adult() if request.data == BUNDLED else None)


def _require_data(data: str) -> None:
    if data == "adult" or Path(data).exists():
        return
    near = difflib.get_close_matches(data, ["adult", *(path.name for path in Path().iterdir())], 1)
    hint = f'did you mean "{near[0]}"' if near else "give a table, or adult for the bundled one"
    raise InputError(f'there is no file or data set "{data}": {hint}')


def _show(found: Comparison, not_covered: Sequence[str], out: Path, json: bool, wanted: list[Any]) -> None:
    from veil.report import write_report
    from veil.report.usefulness import FINDING, beside_no_privacy
    from veil.training.comparing import OTHER_RUNS

    page = None
    if found.records:
        page = write_report(found.records, out / "report.html", requirements=wanted, together=found.together)
    checks = judge(found.records, wanted) if found.records else Checks("no run")
    if json:
        said: dict[str, Any] = {"advice": _advice(found.summary()), "report": str(page) if page else None}
        said[NOT_PRIVATE] = _not_private(found)
        print_json({**found.as_json(), **checks.as_json(), **said, "usefulness": _usefulness(found.rows)})
    else:
        stdout.print(_table(found.summary()))
        if (advice := _advice(found.summary())) is not None:
            stdout.print(advice, soft_wrap=True, highlight=False, markup=False)
        for method, judged in _usefulness(found.rows).items():
            stdout.print(f"{method}: {judged['sentence']}", soft_wrap=True, highlight=False, markup=False)
        if sentence := beside_no_privacy({FINDING: _not_private(found)}):
            stdout.print(sentence, soft_wrap=True, highlight=False, markup=False)
        for label, sentence in found.failures.items():
            stdout.print(f"failed: {label}: {sentence}", soft_wrap=True, highlight=False, markup=False)
        print_verdict(checks)
        if found.together is not None:
            stdout.print(f"\n{found.together['sentence']}", soft_wrap=True, highlight=False, markup=False)
        if any(row["private"] for row in found.summary()):
            stdout.print("\nNo certificate here covers:")
            for sentence in (*not_covered, OTHER_RUNS):
                stdout.print(f"- {sentence}", soft_wrap=True, highlight=False)
        if page:
            stdout.print(f"\nReport: {page.resolve().as_uri()}", soft_wrap=True, highlight=False)
    if found.failures or not checks.met:
        raise typer.Exit(1)


def _not_private(found: Comparison) -> dict[str, Any] | None:
    """What a model without privacy reaches, as the best private method's run has it; None if nobody may know."""
    from veil.report.usefulness import FINDING

    best = [row["name"] for row in found.summary() if row["best"] and row["private"]]
    records = sorted(found.records, key=lambda record: record["method"] not in best)
    return next((record["findings"][FINDING] for record in records if FINDING in record["findings"]), None)


def _advice(summary: list[dict[str, Any]]) -> str | None:
    """Which private method to take, in words, and how sure that is."""
    rivals = [row for row in summary if row["private"] and row["worst_group_accuracy"]["mean"] is not None]
    best = next((row for row in rivals if row["best"]), None)
    if best is None or len(rivals) < 2:
        return None
    others = [row for row in rivals if row is not best]
    unclear = [row["name"] for row in others if row["p_value"] is None or row["p_value"] > _SURE]
    said = f"Best worst group: {best['name']}, {percent(best['worst_group_accuracy']['mean'])} %."
    if not unclear:
        return f"{said} All others are worse by more than chance explains."
    return f"{said} It may be chance that it is above {', '.join(unclear)}: more seeds or rows would tell."


_SURE = 0.05


def _usefulness(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """In how many of its runs each method is better than a constant answer; with skewed labels, by how much."""
    from veil.report.usefulness import ALL, skewed, usefulness

    found: dict[str, dict[str, Any]] = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row["metrics"] for row in rows if row["method"] == method and row["metrics"]]
        judged = [one for one in map(usefulness, own) if one is not None]
        if not judged:
            continue
        useful = sum(one["useful"] for one in judged)
        said = f"better than a constant answer in {useful} of {len(judged)} runs."
        balanced = [m["balanced_accuracy"] for m in own if m.get("balanced_accuracy") is not None]
        if any(map(skewed, own)) and balanced:
            constant = sum(one["constant"][ALL] for one in judged) / len(judged)
            said += f" Balanced over classes {percent(sum(balanced) / len(balanced))} %"
            said += f"; the best constant answer has an accuracy of {percent(constant)} %."
        found[method] = {"runs": len(judged), "useful": useful, "sentence": said}
    return found


def _budgets(text: str) -> list[float]:
    values = numbers(text, "epsilon")
    for value in values:
        Settings.checked(epsilon=value)
    return values


def _options(pairs: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, object]]:
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
        "◇ on the Pareto front of worst group and average; p: paired t-test on the worst group, run by run"
    )
    return page


def _spread(figure: dict[str, float | None]) -> str:
    if figure["std"] is None:
        return percent(figure["mean"])
    return f"{percent(figure['mean'])} ± {percent(figure['std'])}"
