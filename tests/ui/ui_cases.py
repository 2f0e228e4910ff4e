"""Folders as `veil ui` finds them: finished, unfinished, broken and foreign ones, and one whose certificate is real."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.report.run_records import make_run
from veil.accounting import Account, Ledger, Pld, PoissonGaussian, Relation, Repeated, Terms, TokenBucket, certify
from veil.foundation.toml import to_toml

HOSTILE = "<img src=x onerror=alert(1)> & \"'{{ 7*7 }}"
SUMMARY = ("run", "method", "metrics", "privacy", "seconds", "stopped")


def write_run(folder: Path, method: str = "asc", seed: int = 0, **options: Any) -> Path:
    """A finished run, as `Run.save` leaves it."""
    record = make_run(method, seed, **{"extras": True, "steps": 20, **options})
    return write_record(folder, record)


def write_record(folder: Path, record: dict[str, Any]) -> Path:
    """The files of a record that the page reads."""
    folder.mkdir(parents=True)
    config = {"method": record["method"], **record["config"], "settings": {"epsilon": record["settings"]["epsilon"]}}
    (folder / "config.toml").write_text(to_toml(config))
    (folder / "metrics.json").write_text(json.dumps({name: record[name] for name in SUMMARY}))
    (folder / "certificate.json").write_text(json.dumps(record["certificate"]))
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def certified(folder: Path) -> Path:
    """Give a run a ledger, and the certificate that follows from it."""
    event = PoissonGaussian(2.0, 0.01)
    accounts = (Account("everyone", "everybody", 9.0, TokenBucket((Repeated(event, 20),))),)
    for name in ("certificate.json", "ledger.jsonl"):
        (folder / name).unlink(missing_ok=True)
    ledger = Ledger(Terms(Relation.ADD_REMOVE, 1e-5, "pld", accounts, {"method": "dp-sgd"}), folder / "ledger.jsonl")
    ledger.reserve("gradient", 0, 20, {0: event})
    certify(ledger, Pld()).save(folder / "certificate.json")
    record = json.loads((folder / "run.json").read_text())
    record["certificate"] = json.loads((folder / "certificate.json").read_text())
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def write_runs(root: Path) -> Path:
    """A folder with everything that can lie in one."""
    for method in ("asc", "erm"):
        for seed in (1, 2):
            write_run(root / "comparison" / f"{method}-{seed}", method, seed)
    certified(write_run(root / "first", "dp-sgd"))
    write_run(
        root / HOSTILE.replace("/", ""), "auto", groups=(f"{HOSTILE} × a", "</script><script>alert(2)</script> × b")
    )
    unfinished = write_run(root / "unfinished")
    for name in ("metrics.json", "run.json", "certificate.json"):
        (unfinished / name).unlink()
    (unfinished / "seed.key").write_text("{}")
    write_broken(root)
    return root


def write_broken(root: Path) -> None:
    """Runs that are none: each would break a page that trusts its folder."""
    for name, content in {
        "empty": b"",
        "cut": b'{"method": "asc", "metr',
        "deep": b"[" * 100_000,
        "nested": b'{"a":' * 300 + b"1" + b"}" * 300,
        "list": b"[1, 2]",
        "numbers": b'{"metrics": {"by_group": {"a": 3}}, "privacy": {"epsilon": "one"}}',
        "words": b'{"metrics": "none", "privacy": []}',
        "surrogate": b'{"method": "\\ud800", "metrics": {"worst_group": "\\udfff", "worst_group_accuracy": NaN}}',
        "huge": b'{"method": "' + b"x" * (5 * 2**20) + b'"}',
    }.items():
        (root / "broken" / name).mkdir(parents=True)
        for file in ("metrics.json", "run.json", "certificate.json"):
            (root / "broken" / name / file).write_bytes(content)
    vast = write_run(root / "broken" / "vast", groups=("a", "b"))
    number = "9" * 3000
    for name in ("metrics.json", "run.json", "certificate.json"):
        (vast / name).write_text((vast / name).read_text().replace("0.998", number))
    (vast / "config.toml").write_text(f"method = {number}\ndata = {number}\ntarget = {number}\ngroup = [[[1]]]\n")
    (root / "broken" / "pipe").mkdir()
    (root / "broken" / "pipe" / "run.json").touch()
    os.mkfifo(root / "broken" / "pipe" / "metrics.json")
    (root / "broken" / "record").mkdir()
    (root / "broken" / "record" / "run.json").write_text('{"method": {"a": 1}, "metrics": [], "groups": 7}')
    (root / "broken" / "record" / "metrics.json").write_text('{"method": "asc", "metrics": {"accuracy": 0.5}}')
    bytes_name = os.fsencode(root / "broken") + b"/not \xff text"
    os.mkdir(bytes_name)
    (Path(os.fsdecode(bytes_name)) / "run.json").write_text("{}")
    (root / "no run at all").mkdir()
    (root / "no run at all" / "notes.txt").write_text("nothing")
