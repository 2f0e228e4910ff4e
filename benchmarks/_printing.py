"""Printing: the rows of a suite as aligned columns."""

from __future__ import annotations

from typing import Any


def print_table(name: str, rows: list[dict[str, Any]]) -> None:
    """One suite as aligned columns."""
    print(f"\n{name}")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns, *([_shown(row.get(key)) for key in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
