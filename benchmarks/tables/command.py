"""`python -m benchmarks tables`: measure what is missing, collect it, write the page."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed

from benchmarks.tables import exchange, page
from benchmarks.tables.arms import ARMS, ROOT, arms_named
from benchmarks.tables.data import GROUPING_WORDS, GROUPINGS, TABLES
from benchmarks.tables.jax_peer import JAX_PRIVACY
from benchmarks.tables.measuring import Asked, measure
from benchmarks.tables.peers import HIDDEN, OPACUS
from benchmarks.tables.scoring import LEAST
from benchmarks.tables.splits import SHARE, fixed_sizes
from benchmarks.tables.store import COLUMNS, all_stored, collect, with_published
from benchmarks.tables.tuned import TUNED
from veil.errors import InputError, require

STORE = ROOT / ".benchmarks" / "tables"
RESULTS = ROOT / "docs" / "results"
EPSILONS = (0.3, 1.0, 3.0, 8.0)
SEEDS = {"test": (1, 2, 3, 4, 5), "validation": (101, 102, 103)}


def main(words: Sequence[str]) -> None:
    """Run the command; wrong input is one sentence and exit code 2."""
    given = _parser().parse_args(words)
    try:
        if not given.page_only:
            _measure(_asked(given), given.jobs)
        if given.rows == "test":
            _publish(given.store, given.results)
        if given.json:
            shown = [{k: r[k] for k in COLUMNS} for r in all_stored(given.store, given.rows) if "failed" not in r]
            json.dump({"rows": shown}, sys.stdout, ensure_ascii=False)
            print()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks tables", description=__doc__)
    parser.add_argument("--tables", type=_names, default=(), help="comma-separated; all by default")
    parser.add_argument("--groups", type=_names, default=(), help=", ".join(GROUPINGS))
    parser.add_argument("--epsilons", type=_names, default=tuple(map(str, EPSILONS)), help="budgets, comma-separated")
    parser.add_argument("--arms", type=_names, default=(), help=", ".join(ARMS))
    parser.add_argument(
        "--seeds", type=_names, default=(), help="1,2,3,4,5 on test rows, 101,102,103 on validation rows"
    )
    parser.add_argument("--rows", choices=list(SEEDS), default="test", help="choose settings on validation rows")
    parser.add_argument("--jobs", type=int, default=1, help="tables that are measured at the same time")
    parser.add_argument("--any-version", action="store_true", help="keep figures of Veil that other code made")
    parser.add_argument("--page-only", action="store_true", help="measure nothing: collect and write the page")
    parser.add_argument("--json", action="store_true", help="print the stored cells as one JSON object")
    parser.add_argument("--store", type=Path, default=STORE, help="folder of the stored cells")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of tables.json and tables.md")
    return parser


def _asked(given: argparse.Namespace) -> Asked:
    """What was typed, checked before anything is measured."""
    for names, known, what in ((given.tables, TABLES, "table"), (given.groups, GROUPINGS, "groups")):
        unknown = [name for name in names if name not in known]
        require(not unknown, f'unknown {what} "{"".join(unknown[:1])}": known are {", ".join(known)}')
    arms = []
    for arm in arms_named(given.arms):
        if reason := arm.missing():
            print(reason, file=sys.stderr)
        else:
            arms.append(arm)
    if any(arm.fit is None for arm in arms):
        exchange.check_peers()
    try:
        epsilons = tuple(float(word) for word in given.epsilons)
        seeds = tuple(int(word) for word in given.seeds) or SEEDS[given.rows]
    except ValueError as error:
        raise InputError(f"--epsilons and --seeds take numbers: {error}") from error
    tables, groups = given.tables or tuple(TABLES), given.groups or GROUPINGS
    return Asked(tables, groups, epsilons, tuple(arms), seeds, given.rows, given.store, given.any_version)


def _measure(asked: Asked, jobs: int) -> None:
    Parallel(n_jobs=jobs)(delayed(measure)(asked, name) for name in asked.tables)


def _publish(store: Path, results: Path) -> None:
    """Collect the cells on test rows, beside those that were published before, and write the page from them alone."""
    records = with_published(all_stored(store, "test"), results / "tables.json")
    require(len(records) > 0, f"Nothing is stored in {store}: measure first, without --page-only.")
    collect(records, _about(), results / "tables.json")
    page.write(results / "tables.json", results / "tables.md")


def _about() -> dict[str, Any]:
    """What the page says besides figures: it is written from the JSON alone."""
    return {
        "test_share": SHARE,
        "least_rows": LEAST,
        "groupings": GROUPING_WORDS,
        "opacus": {**OPACUS, "hidden": HIDDEN},
        "jax_privacy": JAX_PRIVACY,
        "tables": {
            name: {**fixed_sizes(name), "target": spec.target, "groups": spec.groups} for name, spec in TABLES.items()
        },
        "tuned": TUNED,
        "arms": {arm.name: {"title": arm.title, "family": arm.family} for arm in ARMS.values()},
    }


def _names(words: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in words.split(",") if word.strip())
