"""`veil audit`: attack a run and compare with its guarantee; and the self-test of a method."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from veil.cli.console import epsilon, print_json, stderr, stdout
from veil.cli.fields import asks, values_of
from veil.cli.options import Json
from veil.errors import require
from veil.foundation.words import named_values
from veil.request import AuditRequest

if TYPE_CHECKING:
    from veil.auditing import Audit


@asks(AuditRequest)
def audit(context: typer.Context, json: Json = False) -> None:
    """Attack a run (or test a method) and compare with its guarantee. Exit code 1 if it is exceeded."""
    request = AuditRequest.checked(**values_of(AuditRequest, context))
    if request.self_test is not None:
        require(request.run is None, "give either a run or --self-test, not both")
        _self_test(request.self_test, request.option, request.seed, json)
        return
    run = request.run
    require(run is not None, "give the folder of a run, or a method with --self-test")
    assert run is not None
    require(
        request.show_private or not request.reads_rows,
        f"the attack {request.attack} reads private rows, and the certificate does not cover its figures: add "
        "--show-private to allow this",
    )
    found = _attack(run, request, json)
    page = _keep(run, found)
    if json:
        print_json({**found.as_json(), "run": str(run), "report": str(page)})
    else:
        _show(found)
        stdout.print(f"\nReport: {page.resolve().as_uri()}", soft_wrap=True, highlight=False)
    if not found.holds:
        raise typer.Exit(1)


def _attack(folder: Path, request: AuditRequest, json: bool) -> Audit:
    """Attack the run in a folder, reading its rows again if needed."""
    from veil.auditing import audit as run_audit
    from veil.auditing.rebuilding import rebuild_plan, rebuild_rows, reload
    from veil.auditing.solver_canaries import MOST_SOLUTIONS, FullBatch
    from veil.foundation.parallel import Workers

    workers, settings = Workers(request.jobs, request.backend), request.settings().model_dump()
    loaded = reload(folder)
    config = loaded.record.get("config") or {}
    options = named_values(config.get("option") or []) | request.option
    needs_rows = request.reads_rows or len(loaded.record["owners"]) > 1
    rows = rebuild_rows(loaded, named_values(config.get("model_option") or [])) if needs_rows else None
    plan = rebuild_plan(loaded, options, rows.problem if rows else None)
    if rows is None or not request.reads_rows:
        solver: object = plan.solver
        if isinstance(solver, FullBatch) and not json:
            each = min(request.canaries, MOST_SOLUTIONS)
            stderr.print(
                f"Training {each * len(plan.facts.groups):,} times with one canary row, {each} times per group: this "
                "takes minutes where there are many groups. --canaries makes it fewer.",
                soft_wrap=True,
                highlight=False,
            )
        return run_audit(plan, **settings)
    if request.attack == "loss":
        require(rows.others is not None, "the run held out no rows: the attack needs rows outside of training")
        return run_audit(plan, problem=rows.problem, others=rows.others, model=rows.trained(loaded), **settings)
    place = request.shadow_folder or folder.with_name(folder.name + "-shadows")
    if request.attack == "lira" and not json:
        stderr.print(
            f"Shadow models are kept in {place}: they may reveal private rows.", soft_wrap=True, highlight=False
        )
    return run_audit(plan, problem=rows.problem, model=rows.build, workers=workers, out=place, **settings)


def _keep(folder: Path, found: Audit) -> Path:
    """audit.json, the curves, and the report with the audit panel."""
    from veil.auditing import read_audits
    from veil.auditing.curve_figure import roc_svg
    from veil.report import write_report
    from veil.training import load

    found.save(folder)
    record = found.as_json()
    parts = record["by_owner"] or record["by_group"]
    if found.overall.curve is not None and parts:
        text = roc_svg(f"{found.attack} on {found.method}", parts)
        (folder / f"audit_{found.attack}.svg").write_text(text, encoding="utf-8")
    return write_report([dict(load(folder).record)], folder / "report.html", audits=read_audits(folder))


def _show(found: Audit) -> None:
    page = Table(
        title=f"{found.attack} on {found.method}, each bound at {100 * found.confidence:g} %", title_justify="left"
    )
    curves = found.overall.curve is not None
    names = [bound.name for bound in found.overall.bounds]
    for heading in ("rows", "ε promised", *names, *(("AUROC", "ceiling", "TPR at 1 %") if curves else ())):
        page.add_column(heading, justify="left" if heading == "rows" else "right")
    lines = [("all", found.overall), *found.by_group.items()]
    lines += [(f"owner {name}", one) for name, one in found.by_owner.items()]
    for name, one in lines:
        cells = [epsilon(one.epsilon), *(epsilon(bound.epsilon) for bound in one.bounds)]
        if one.curve is not None:
            limit = one.curve.ceiling
            share = one.curve.tpr_low_rates[1][1]
            cells += [f"{one.curve.auroc:.3f}", f"{limit.auroc:.3f}" if limit else "–", f"{100 * share:.2f} %"]
        page.add_row(name, *cells)
    stdout.print(page)
    for bound in found.overall.bounds:
        stdout.print(f"{bound.name}: {bound.assumption}", soft_wrap=True, highlight=False)
    if "not_covered" in found.details:
        stdout.print(str(found.details["not_covered"]), soft_wrap=True, highlight=False)
    stdout.print(found.verdict, soft_wrap=True, highlight=False)


def _self_test(method: str, options: dict[str, Any], seed: int | None, json: bool) -> None:
    from veil.auditing import self_test

    verdict = self_test(method, options, seed=seed)
    if json:
        print_json(verdict.as_json())
    else:
        page = Table(title=f"Self-test of {method}", title_justify="left")
        for heading in ("check", "passed", "p", "finding"):
            page.add_column(heading)
        for check in verdict.checks:
            p = "–" if check.p_value is None else f"{check.p_value:.2g}"
            page.add_row(check.name, "yes" if check.passed else "NO", p, check.finding)
        stdout.print(page)
        alarm = f"a sound method fails with a probability of at most {verdict.false_alarms:g}"
        stdout.print(f"{'Passed' if verdict.passed else 'FAILED'} ({alarm}).", highlight=False)
    if not verdict.passed:
        raise typer.Exit(1)
