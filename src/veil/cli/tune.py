"""`veil tune`: the best of several methods, models and settings, with the search paid for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from veil.cli.compare import Backend, Jobs
from veil.cli.config_file import config_text
from veil.cli.console import NOT_PRIVATE, percent, print_json, print_usefulness, results_table, stderr, stdout
from veil.cli.fields import asks, values_of
from veil.cli.options import Config, Json, PrintConfig, Quiet
from veil.cli.requiring import checked_requirements, judge, print_verdict
from veil.cli.train import DryRun, Out, Resume, typed_command
from veil.errors import require
from veil.request import TuneRequest

if TYPE_CHECKING:
    from veil.training import Run


@asks(TuneRequest)
def tune(
    context: typer.Context,
    config: Config = None,
    out: Out = Path("veil-run"),
    jobs: Jobs = 1,
    backend: Backend = "loky",
    json: Json = False,
    quiet: Quiet = False,
    resume: Resume = False,
    dry_run: DryRun = False,
    print_config: PrintConfig = False,
) -> None:
    """Choose method, model and settings in private: all trials together cost ε. Exit code 1: a requirement failed."""
    if print_config:
        typer.echo(config_text(context), nl=False)
        return
    asked = values_of(TuneRequest, context)
    require("data" in asked, "no data given: name a table, as in veil tune people.csv --target …")
    request = TuneRequest.checked(**asked)
    wanted = checked_requirements(request.require)
    if dry_run:
        _show_plan(request, json)
        return
    from veil.foundation.parallel import Workers
    from veil.tables.tuning import tune as search

    silent = json or quiet
    run = search(
        request,
        out,
        resume=resume,
        workers=Workers(jobs, backend),
        config={"command": typed_command()},
        say=None if silent else lambda sentence: stderr.print(sentence, soft_wrap=True, highlight=False),
    )
    _show(run, out, json, wanted)


def _show_plan(request: TuneRequest, json: bool) -> None:
    """What the search costs, before anything is released."""
    from veil.tables.tuning import plan_of_search

    search = plan_of_search(request)
    found = search.as_json()
    found |= {"epsilon": search.settings.epsilon, "delta": search.settings.delta}
    if json:
        print_json(found)
        return
    page = Table(title="Candidates of the search", title_justify="left")
    page.add_column("candidate")
    page.add_column("chance", justify="right")
    for one in found["candidates"]:
        page.add_row(one["candidate"], percent(one["chance"]) + " %")
    stdout.print(page)
    for label, reason in found["left_out"].items():
        stdout.print(f"left out: {label}: {reason}", soft_wrap=True, highlight=False, markup=False)
    stdout.print(cost_sentence(found), soft_wrap=True, highlight=False, markup=False)


def cost_sentence(found: dict[str, Any]) -> str:
    """What a trial gets and what the whole costs, in words."""
    share = f"Each trial trains with ε = {found['trial_epsilon']:.3g}, δ = {found['trial_delta']:.2g}"
    whole = f"all of them together cost ε = {found['epsilon']:.3g}, δ = {found['delta']:.2g}"
    if found["charge"] == "composition":
        return f"{share}; {found['trials']} trials, {whole}, and all their scores are shown."
    quantiles = found["quantiles"]
    return (
        f"{share}; {whole}. The number of trials is random and secret: {found['expected_trials']:.3g} in expectation, "
        f"1 with a chance of {percent(found['one_trial'])} %, at most {quantiles['0.9']} with 90 % and "
        f"{quantiles['0.99']} with 99 %. Only the best model is shown."
    )


def _show(run: Run, out: Path, json: bool, wanted: list[Any]) -> None:
    from veil.report.usefulness import FINDING, usefulness

    checks, summary = judge([run.as_json()], wanted), run.summary()
    search = {"chosen": run.findings["Search"]["chosen"], **run.plan.details["search"]}
    trials = run.findings.get("Trials")
    if json:
        more = {"scores": trials} if trials else {}
        verdict = {"usefulness": usefulness(summary["metrics"] or {}), NOT_PRIVATE: run.findings.get(FINDING)}
        verdict |= checks.as_json()
        print_json({**summary, "search": {**search, **more}, **verdict})
    else:
        for trial in trials or ():
            score = "–" if trial["score"] is None else f"{trial['score']:.3f}"
            stdout.print(f"trial {trial['trial']}: {trial['candidate']}: {score}", highlight=False, markup=False)
        sizes = dict(zip(run.plan.facts.groups, run.plan.facts.group_sizes, strict=True))
        stdout.print(results_table([summary], sizes))
        stdout.print(f"Chosen: {search['chosen']}.", highlight=False, markup=False)
        costs = {**search, "epsilon": run.certificate.epsilon, "delta": run.certificate.delta}
        stdout.print(cost_sentence(costs), soft_wrap=True, highlight=False, markup=False)
        print_usefulness(summary["metrics"] or {}, run.config, run.findings)
        stdout.print(f"\n{run.certificate.statement}", soft_wrap=True, highlight=False)
        print_verdict(checks)
        stdout.print(f"\nReport: {(out / 'report.html').resolve().as_uri()}", soft_wrap=True, highlight=False)
    if not checks.met:
        raise typer.Exit(1)
