"""`python -m benchmarks SUITE [--json] [--quick]`: measured in one process, interleaved, printed as ratios.

`python -m benchmarks tables`, `regression`, `growth`, `preprocessing`, `plan`, `tune`, `tuned`, `batches`, `people`
and `hard-classes` measure models, not only time; `predict` measures the command on files of up to ten million rows;
`thresholds` fails where a suite got slower. See their --help.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks._printing import print_table

# These have options of their own: they measure models, or judge other suites.
MODELS = {
    "tables": "benchmarks.tables.command",
    "regression": "benchmarks.tables.regression",
    "tuned": "benchmarks.tables.tuned",
    "growth": "benchmarks.tables.growth",
    "preprocessing": "benchmarks.tables.preprocessing",
    "plan": "benchmarks.tables.forecasting",
    "hard-classes": "benchmarks.images.hard_classes",
    "predict": "benchmarks.predict",
    "thresholds": "benchmarks.thresholds",
    "architectures": "benchmarks.architectures",
    "tune": "benchmarks.tables.tuning",
    "batches": "benchmarks.tables.batches",
    "people": "benchmarks.people.command",
}
SUITES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))
SUITES = [name for name in SUITES if name not in MODELS]


def main() -> None:
    """Run one suite or all of them."""
    if sys.argv[1:] and sys.argv[1] in MODELS:
        importlib.import_module(MODELS[sys.argv[1]]).main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", choices=[*SUITES, "all", *MODELS])
    parser.add_argument("--repeats", type=int, default=9, help="interleaved rounds; medians are printed")
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    parser.add_argument("--json", action="store_true", help="print one JSON list on standard output")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in SUITES if asked.suite == "all" else [asked.suite]:
        found = importlib.import_module(f"benchmarks.{name}").run(asked.repeats, asked.quick)
        rows += [row if asked.suite != "all" else {"suite": name, **row} for row in found]
        if not asked.json:
            print_table(name, found)
    if asked.json:
        json.dump(rows, sys.stdout)
        print()


if __name__ == "__main__":
    main()
