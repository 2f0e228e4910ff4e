"""`veil verify`: recompute a certificate with a second accountant."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from veil.cli.console import print_json, stdout
from veil.errors import require


def verify(
    certificate: Annotated[
        Path, typer.Argument(help="certificate.json, the run folder that holds it, or an exported model.")
    ],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Check a certificate against its ledgers, its model and with dp-accounting. Exit code 1 if they disagree."""
    from veil.handover.verifying import MODELS, verify_with_export
    from veil.training.run_folder import under_way

    folder = certificate if certificate.is_dir() else certificate.parent
    path = certificate if certificate.suffix == ".json" else folder / "certificate.json"
    require(certificate.exists(), f"there is no certificate at {certificate}")
    require(
        certificate in (folder, path) or certificate.name in MODELS,
        f"{certificate} is neither a certificate nor a model under the name it was given ({', '.join(MODELS)}): a "
        "model of another name is not compared",
    )
    unfinished = not path.exists() and under_way(folder)
    require(not unfinished, f"the run in {folder} is not finished: continue it with --resume")
    require(path.exists(), f"there is no certificate at {path}")
    verdict = verify_with_export(path)
    if json:
        opinions = [asdict(opinion) for opinion in verdict.opinions]
        found = {"holds": verdict.holds, "faults": list(verdict.faults), "remarks": list(verdict.remarks)}
        print_json({**found, "opinions": opinions})
    else:
        page = Table(title=f"ε of {verdict.unit}, by account", title_justify="left")
        for heading in ("group", "owner", "certificate", "second accountant", "agrees", "how"):
            page.add_column(heading)
        for opinion in verdict.opinions:
            second = "–" if opinion.second is None else f"{opinion.second:.4f}"
            agrees = "yes" if opinion.agrees else "NO"
            page.add_row(opinion.group, opinion.owner, f"{opinion.claimed:.4f}", second, agrees, opinion.remark)
        stdout.print(page)
        for remark in verdict.remarks:
            stdout.print(remark, soft_wrap=True, highlight=False, markup=False)
        for fault in verdict.faults:
            stdout.print(f"fault: {fault}", soft_wrap=True, highlight=False, markup=False)
        stdout.print("The certificate holds." if verdict.holds else "The certificate does NOT hold.")
    if not verdict.holds:
        raise typer.Exit(1)
