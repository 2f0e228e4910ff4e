"""Make the bundled copy of UCI Adult from the two original files.

    python scripts/bundle_adult.py FOLDER_WITH_adult.data_AND_adult.test

All 48,842 rows are kept in their order, the official split is a column, and "?" becomes a missing value. The result is
`src/veil/datasets/adult.parquet`; its sha256 goes into `src/veil/datasets/adult.py`.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pandas as pd

ORIGINALS = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
FIRST = "age workclass fnlwgt education education-num marital-status occupation relationship race sex"
COLUMNS = [*FIRST.split(), "capital-gain", "capital-loss", "hours-per-week", "native-country", "income"]
NUMERIC = {"age": "int8", "fnlwgt": "int32", "education-num": "int8"} | {
    "capital-gain": "int32",
    "capital-loss": "int16",
    "hours-per-week": "int8",
}
TARGET = Path(__file__).parents[1] / "src" / "veil" / "datasets" / "adult.parquet"


def read(folder: Path) -> pd.DataFrame:
    """Both original files as one table, checked against their published checksums."""
    parts = []
    for name, checksum in ORIGINALS.items():
        path = folder / name
        if hashlib.sha256(path.read_bytes()).hexdigest() != checksum:
            sys.exit(f"{path} is not the original file: its checksum differs")
        part = pd.read_csv(
            path, names=COLUMNS, skipinitialspace=True, na_values="?", comment="|", skip_blank_lines=True
        )
        part["income"] = part["income"].str.rstrip(".")
        part["split"] = "train" if name == "adult.data" else "test"
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def main(folder: Path) -> None:
    """Write the bundled file and print its checksum."""
    table = read(folder)
    for name in table.columns:
        table[name] = table[name].astype(NUMERIC.get(name, "category"))
    table.to_parquet(TARGET, index=False, compression="zstd", compression_level=22)
    content = TARGET.read_bytes()
    print(f"{TARGET.name}: {len(table):,} rows, {len(content):,} bytes, sha256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
