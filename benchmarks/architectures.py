"""Real architectures: a private step against a plain one and against every mode of opacus, interleaved.

Random weights, every weight trained (adapters: what the adapter trains), rows as long as `benchmarks/_zoo.py` says. A
step is forward, backward, bounding, noise and `optimizer.step()`, as in `python -m benchmarks gradients`. The last line
is the geometric mean. `--store` also writes `architectures.json` and the page that follows from it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import veil
from benchmarks._printing import print_table
from benchmarks._zoo import ARCHITECTURES, MEASURED, TINY, build, rows
from benchmarks.gradients import Workload, medians, steps_of
from veil.foundation.files import FOR_ALL, write_whole

RESULTS = Path(__file__).parent.parent / "docs" / "results"
ROWS = {"images": 32}
# What a step of full fine-tuning may cost at most; all others count in the mean alone.
TARGETS = {"GPT-2": 1.8, "GPT-2, language model": 1.8}
MEAN = "geometric mean"


def workloads(quick: bool = False) -> list[Workload]:
    """Each architecture with its rows."""
    size = TINY if quick else MEASURED
    found = []
    for name, (_, kind) in ARCHITECTURES.items():
        count = 4 if quick else ROWS.get(kind, 16)
        found.append(Workload(name, partial(build, name, size), partial(rows, name, size, count), TARGETS.get(name)))
    return found


def measured(workload: Workload, repeats: int, seconds: float) -> dict[str, Any]:
    """One row of the table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = medians(steps_of(workload), repeats, seconds)
    peers = {name: value for name, value in times.items() if name.startswith("opacus")}
    best = min(peers, key=lambda name: peers[name]) if peers else None
    return {
        "architecture": workload.name,
        "ratio_to_sgd": round(times["veil"] / times["sgd"], 3),
        "best_opacus": best,
        "best_opacus_ratio_to_sgd": round(peers[best] / times["sgd"], 3) if best else None,
        "ratio_to_best_opacus": round(times["veil"] / peers[best], 3) if best else None,
        "target": workload.target,
        "sgd_ms": round(1e3 * times["sgd"], 2),
    }


def run(repeats: int = 9, quick: bool = False) -> list[dict[str, Any]]:
    """Measure every architecture on one thread; `quick` takes tiny ones and few turns."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    found = []
    try:
        for workload in workloads(quick):
            found.append(measured(workload, 1 if quick else repeats, 0.0 if quick else 0.05))
            print(f"{workload.name}: {found[-1]['ratio_to_sgd']} of a plain step", file=sys.stderr, flush=True)
    finally:
        torch.set_num_threads(before)
    mean = {
        key: round(statistics.geometric_mean(row[key] for row in found if row[key] is not None), 3)
        for key in ("ratio_to_sgd", "best_opacus_ratio_to_sgd", "ratio_to_best_opacus")
    }
    return [*found, {"architecture": MEAN, **mean, "target": 1.5}]


def main(words: Sequence[str]) -> None:
    """Measure, and with `--store` write the page beside its JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks architectures", description=__doc__)
    parser.add_argument("--repeats", type=int, default=9, help="interleaved rounds; medians are printed")
    parser.add_argument("--quick", action="store_true", help="tiny models and one round: a check that all run")
    parser.add_argument("--json", action="store_true", help="print one JSON list on standard output")
    parser.add_argument("--store", action="store_true", help="write architectures.json and architectures.md")
    parser.add_argument("--page-only", action="store_true", help="measure nothing: write the page")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of architectures.json")
    given = parser.parse_args(words)
    path = given.results / "architectures.json"
    if not given.page_only:
        rows = run(given.repeats, given.quick)
        print(json.dumps(rows)) if given.json else print_table("architectures", rows)
        if given.store and not given.quick:
            made = {"veil": veil.__version__, "torch": torch.__version__, "python": platform.python_version()}
            machine = {"cores": os.cpu_count(), "architecture": platform.machine()}
            record = {"version": made, "machine": machine, "repeats": given.repeats, "rows": rows}
            write_whole(path, (json.dumps(record, indent=1) + "\n").encode(), FOR_ALL)
    if given.page_only or (given.store and not given.quick):
        text = page_of(json.loads(path.read_text(encoding="utf-8")))
        (given.results / "architectures.md").write_text(text, encoding="utf-8")


def page_of(record: Mapping[str, Any]) -> str:
    """The whole page as Markdown: what may be claimed first, then every figure."""
    rows, made, machine = record["rows"], record["version"], record["machine"]
    wanted = [row for row in rows if row.get("target") is not None]
    claims = [
        f"- **{'Holds' if row['ratio_to_sgd'] <= row['target'] else 'Fails'}:** {row['architecture']}: a private step "
        f"costs at most {row['target']} plain ones. Measured {row['ratio_to_sgd']:.2f}."
        for row in reversed(wanted)
    ]
    table = [
        f"| {row['architecture']} | {row['ratio_to_sgd']:.2f} | {_known(row.get('best_opacus_ratio_to_sgd'))} "
        f"| {row.get('best_opacus') or '–'} | {_known(row.get('sgd_ms'))} |"
        for row in rows
    ]
    return "\n".join(
        [
            "# Real architectures: what a private step costs",
            "",
            "Forward, backward, bounding, noise and update, as a multiple of a plain step of SGD; every mode of Opacus "
            "beside it. Random weights, every weight trained (adapters: the adapter's), one thread, medians of "
            "interleaved rounds. –: no mode of Opacus runs it, or it gives no figure; its mean is over those that run.",
            "",
            *claims,
            "",
            "| architecture | Veil | best mode of Opacus | which | plain step, ms |",
            "|---|--:|--:|---|--:|",
            *table,
            "",
            f"    python -m benchmarks architectures --store --repeats {record['repeats']}",
            "",
            f"veil {made['veil']}, torch {made['torch']}, python {made['python']}; {machine['cores']} cores, "
            f"{machine['architecture']}.",
            "",
        ]
    )


def _known(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
