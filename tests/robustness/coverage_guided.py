"""Coverage-guided fuzzing of one reader, where atheris is installed.

`python -m tests.robustness.coverage_guided NAME FOLDER -runs=20000`:
NAME is one of `hostile.READERS`. It ends with code 0 if every
input was read or refused with a sentence.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=["veil.accounting", "veil.tables", "veil.foundation.toml", "veil.problem.budgets"]
):
    from tests.robustness import hostile

NAME, FOLDER = sys.argv[1], Path(sys.argv[2])
PATH = FOLDER / NAME


def one_input(content: bytes) -> None:
    if NAME == "ledger.jsonl":
        # Lines of JSON, sealed: bytes alone would never get past the checksums.
        records = []
        for line in content.splitlines():
            try:
                records.append(hostile.json.loads(line))
            except (ValueError, RecursionError):
                continue
        content = hostile.sealed(records)
    PATH.write_bytes(content)
    fault = hostile.fault(hostile.READERS[NAME], PATH)
    if fault is not None:
        raise AssertionError(fault)


def main() -> None:
    seeds = FOLDER / f"seeds-{NAME}"
    seeds.mkdir(exist_ok=True)
    content = hostile.valid(NAME, FOLDER)
    if NAME == "ledger.jsonl":
        lines = [hostile.json.dumps(hostile.json.loads(line)["record"]) for line in content.splitlines()]
        content = "\n".join(lines).encode()
    (seeds / "valid").write_bytes(content)
    atheris.Setup([sys.argv[0], "-max_len=8000", "-timeout=300", *sys.argv[3:], str(seeds)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
