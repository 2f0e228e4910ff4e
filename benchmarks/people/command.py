"""`python -m benchmarks people [accuracy|scale] [--json] [--quick]`: what protecting people costs.

`accuracy` trains both ways to protect people, and row-level runs beside them; `scale` measures time and memory of a
million people with 20 million rows, and of a million people who are their own owners. Without a name both are run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from benchmarks._printing import print_table
from benchmarks.people import accuracy, scale

PARTS = {"accuracy": accuracy.run, "scale": scale.run}


def main(words: Sequence[str]) -> None:
    """Run one part or both."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks people", description=__doc__)
    parser.add_argument("part", nargs="?", choices=list(PARTS), help="by default both")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, one seed")
    parser.add_argument("--json", action="store_true", help="print one JSON list on standard output")
    asked = parser.parse_args(words)
    rows = []
    for name, run in PARTS.items():
        if asked.part in (None, name):
            found = run(asked.quick)
            rows += [{"part": name, **row} for row in found]
            if not asked.json:
                print_table(name, found)
    if asked.json:
        json.dump(rows, sys.stdout)
        print()
