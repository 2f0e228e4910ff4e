"""`veil train`: a table in, a model with certificate and report out."""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veil.cli.config_file import config_text
from veil.cli.console import NOT_PRIVATE, people_sentence, print_json, print_usefulness, results_table, stderr, stdout
from veil.cli.fields import asks, values_of
from veil.cli.options import Config, Json, PrintConfig, Quiet
from veil.cli.requiring import checked_requirements, judge, print_verdict
from veil.errors import require
from veil.request import LOOP_SETTINGS, SUITED, Request, default_method

if TYPE_CHECKING:
    from veil.methods import Method
    from veil.training import Run

SMALL_MODELS = ("logistic", "mlp", "wide-and-deep", "whitened", "additive")
Out = Annotated[Path, typer.Option(help="Folder for the run.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the interrupted run in --out.")]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Show the plan per group (rates, clips, noise, cost) and exit. Like training, it reads the table.",
    ),
]


@asks(Request)
def train(
    context: typer.Context,
    config: Config = None,
    out: Out = Path("veil-run"),
    json: Json = False,
    quiet: Quiet = False,
    resume: Resume = False,
    dry_run: DryRun = False,
    print_config: PrintConfig = False,
) -> None:
    """Train on a table with privacy for every row; show accuracy and ε by group. Exit code 1: a requirement failed."""
    if print_config:
        typer.echo(config_text(context), nl=False)
        return
    request = request_of(context, "train")
    wanted = checked_requirements(request.require)
    method = _method(request)
    _check(context, request, method, wanted, dry_run)
    if dry_run:
        _show_plan(request, json)
        return
    leads = _leads()
    run = _train(request, out, resume, silent=json or quiet or not leads)
    if leads:
        _show(run, out, json, wanted)


def request_of(context: typer.Context, command: str) -> Request:
    """What was asked for, with the preset's method and model where one is named."""
    asked = values_of(Request, context)
    require("data" in asked, f"no data given: name a table, as in veil {command} people.csv --target …")
    if "preset" in asked:
        from veil.training.presets import preset

        typed = _typed(context, "method", "model")
        require(not typed, f"--preset {asked['preset']} sets method and model: omit {typed}")
        chosen = preset(asked["preset"])
        asked |= {"method": chosen.method, "model": chosen.model}
    elif not _given(context, "method"):
        linear = asked.get("model") in (None, "", SUITED["auto"])
        asked["method"] = default_method(linear=linear, given=_given(context, *LOOP_SETTINGS))
    return Request.checked(**asked)


def _method(request: Request) -> Method:
    from veil import methods

    return methods.create(request.method, request.options())


def _typed(context: typer.Context, *names: str) -> str:
    """The given options, as typed on the command line."""
    return " and ".join("--" + name.replace("_", "-") for name in _given(context, *names, also=()))


def _given(context: typer.Context, *names: str, also: tuple[str, ...] = ("DEFAULT_MAP",)) -> list[str]:
    """The options given on the command line or, with `also`, in its configuration file."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return [name for name, source in sources.items() if source is not None and source.name in ("COMMANDLINE", *also)]


def _check(context: typer.Context, request: Request, method: Method, wanted: list[Any], dry_run: bool) -> None:
    """Reject options that a run would ignore: ε with budgets, steps with a solver, requirements without rows."""
    if getattr(method, "whole", False):
        typed = _typed(context, *LOOP_SETTINGS)
        require(
            not typed,
            f"{method.name} is not trained in steps that you set: omit {typed}, or choose another --method",
        )
    if request.budgets is not None or request.row_budgets is not None:
        given = "--budgets" if request.budgets is not None else "--row-budgets"
        require(not _typed(context, "epsilon"), f"{given} sets the ε of every owner or row: omit --epsilon")
    measured = request.test is not None or request.holdout != 0
    require(measured or not wanted, "--require needs rows to evaluate on: give --test, or hold out rows with --holdout")
    require(
        not dry_run or request.private_preprocessing is None,
        "a dry run releases nothing: omit --private-preprocessing",
    )


def _leads() -> bool:
    """Whether this process prints: under torchrun only the first one does."""
    return os.environ.get("RANK", "0") == "0"


def _train(request: Request, out: Path, resume: bool, *, silent: bool) -> Run:
    import torch

    from veil.cli.progress import ProgressBar
    from veil.tables.table_run import train_table

    if request.model in SMALL_MODELS:
        torch.set_num_threads(1)  # a second thread costs a small model more than it gives
    with ProgressBar(quiet=silent) as progress:
        return train_table(
            request,
            out=out,
            resume=resume,
            callbacks=[progress],
            config={"command": typed_command()},
            say=None if silent else lambda sentence: stderr.print(sentence, soft_wrap=True, highlight=False),
        )


def typed_command() -> str:
    """What was typed, without the password that a server's address may hold."""
    typed = re.sub(r"(://[^:/@\s]*):[^@\s]*@", r"\1:…@", shlex.join(["veil", *sys.argv[1:]]))
    return re.sub(r"([?&](?:ssl)?password=)[^&\s']*", r"\1…", typed)


def _show_plan(request: Request, json: bool) -> None:
    from veil.cli.plan_table import plan_json, plan_table
    from veil.methods.budget_advice import advice_on
    from veil.plans.budget_remarks import budget_remarks
    from veil.tables.table_run import rehearse
    from veil.training.duration import duration_in_words

    found = rehearse(request, None if json else lambda line: stderr.print(line, soft_wrap=True, highlight=False))
    advice = advice_on(found.plan)
    if json:
        about = None if found.seconds is None else duration_in_words(found.seconds)
        said = {"remarks": budget_remarks(found.plan), "estimated_time": about}
        more = {} if advice is None else {"budget_advice": asdict(advice)}
        print_json({**plan_json(found.plan), **said, **more})
        return
    stdout.print(plan_table(found.plan))
    for sentence in () if advice is None else advice.sentences:
        stdout.print(sentence, soft_wrap=True, highlight=False)
    if found.seconds is not None:
        stdout.print(f"Training takes {duration_in_words(found.seconds)} on this machine.", highlight=False)


def _show(run: Run, out: Path, json: bool, wanted: list[Any]) -> None:
    from veil.report.usefulness import FINDING, usefulness

    checks = judge([run.as_json()], wanted)
    if json:
        summary = run.summary()
        verdict = {"usefulness": usefulness(summary["metrics"] or {}), NOT_PRIVATE: run.findings.get(FINDING)}
        print_json({**summary, **verdict, **checks.as_json()})
    else:
        if run.metrics is not None:
            sizes = dict(zip(run.plan.facts.groups, run.plan.facts.group_sizes, strict=True))
            summary = run.summary()
            stdout.print(results_table([summary], sizes))
            if summary["metrics"].get("released"):
                covered = ", which the certificate covers" if run.plan.private else ""
                what = "Accuracy is" if run.plan.facts.task == "classification" else "Errors are"
                of = "people (one row each)" if run.plan.facts.unit == "person" else "rows"
                stdout.print(f"{what} from held-out {of}, released with noise{covered}.")
            print_usefulness(summary["metrics"], run.config, run.findings)
        if "Training rows" in run.findings:
            stdout.print("The folder also holds exact figures on private rows, not covered by the certificate.")
        stdout.print(f"\n{run.certificate.statement}", soft_wrap=True, highlight=False)
        if run.certificate.by_rows:
            stdout.print(people_sentence(run.certificate.by_rows), soft_wrap=True, highlight=False)
        print_verdict(checks)
        stdout.print(f"\nReport: {(out / 'report.html').resolve().as_uri()}", soft_wrap=True, highlight=False)
    if not checks.met:
        raise typer.Exit(1)
