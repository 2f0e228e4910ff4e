"""`python -m benchmarks preprocessing [--json]`: what it costs to find bounds and categories in private.

German credit (VEIL_DATA) is cut once into 750 training rows and 250 that stand for public ones; `auto` trains at ε = 1,
with and without a tenth of ε for private preprocessing, three seeds each.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from veil.request import Request
from veil.tables.table_run import train_table

SHARES, SEEDS, TRAINED = (None, 0.1), (1, 2, 3), 750
TABLE = Path("german_credit", "german_data_credit.csv")


def measured(folder: Path, share: float | None, seed: int) -> dict[str, Any]:
    """One run: figures on the public rows, and how many columns were learned."""
    asked = Request.checked(
        data=folder / "private.csv",
        test=folder / "public.csv",
        target="class-label",
        group=("sex",),
        private_preprocessing=share,
        settings={"epsilon": 1.0, "seed": seed},
    )
    run = train_table(asked, out=folder / f"run-{share}-{seed}")
    assert run.metrics is not None, "there are public rows"
    columns = list(run.certificate.columns.values())
    return {
        "share": share or 0.0,
        "seed": seed,
        "worst_group_accuracy": run.metrics.worst_group_accuracy,
        "accuracy": run.metrics.accuracy,
        "columns": sum(use.startswith(("feature", "group: a")) for use in columns),
        "epsilon": run.certificate.epsilon,
    }


def main(words: list[str]) -> None:
    """Cut the table, train, print."""
    table = pd.read_csv(Path(os.environ["VEIL_DATA"]) / TABLE).sample(frac=1.0, random_state=0)
    with TemporaryDirectory() as made:
        folder = Path(made)
        table.iloc[:TRAINED].to_csv(folder / "private.csv", index=False)
        table.iloc[TRAINED:].to_csv(folder / "public.csv", index=False)
        rows = [measured(folder, share, seed) for share in SHARES for seed in SEEDS]
    if "--json" in words:
        print(json.dumps(rows))
        return
    for share in SHARES:
        own = [row for row in rows if row["share"] == (share or 0.0)]
        worst, overall = (100 * mean(row[name] for row in own) for name in ("worst_group_accuracy", "accuracy"))
        shown = ", ".join(f"{100 * row['worst_group_accuracy']:.1f}" for row in own)
        columns = ", ".join(str(row["columns"]) for row in own)
        print(f"share {share or 0:g}: worst group {worst:.1f} ({shown}), overall {overall:.1f}, columns {columns}")
