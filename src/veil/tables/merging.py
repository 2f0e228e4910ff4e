"""Merging groups: those of too few rows become one group, so that each can be learned from and measured.

Where group sizes are declared, merging follows from public knowledge and costs nothing. Where they are counted, it
reads the rows, and the certificate says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from veil.errors import require
from veil.problem import cross
from veil.request import Request
from veil.tables.table import Columns, group_labels, labels_of

MERGED = "Which groups were merged: their sizes were counted in the rows."


def with_merged_groups(request: Request, columns: Columns, table: pd.DataFrame) -> Columns:
    """The columns with the groups that stay on their own, if groups of few rows are to be merged.

    Raises:
        InputError: All groups would be merged, or their sizes are to be released with noise.
    """
    fewest = request.merge_groups_below
    if fewest is None:
        return columns
    require(fewest > 1, f"--merge-groups-below is {fewest}: give a number of rows above 1")
    declared = columns.group_sizes()
    require(
        declared is not None or request.private_preprocessing is None,
        "--merge-groups-below needs sizes that are public: declare [group_sizes] in --schema, or omit "
        "--private-preprocessing",
    )
    sizes = _counted(columns, table) if declared is None else declared
    kept = groups_kept(sizes, fewest)
    require(
        len(kept) > 0,
        f"every group would be merged: all have fewer than {fewest:,} rows, so choose a smaller --merge-groups-below",
    )
    return columns if len(kept) == len(sizes) else replace(columns, kept=frozenset(kept))


def groups_kept(sizes: Mapping[str, int], fewest: int) -> list[str]:
    """The groups that are not merged: the others together have at least `fewest` rows, if need be with the next one.

    >>> groups_kept({"a": 900, "b": 40, "c": 3}, 10)
    ['a']
    >>> groups_kept({"a": 900, "b": 40, "c": 3, "d": 8}, 10)
    ['a', 'b']
    """
    order = sorted(sizes, key=lambda name: (sizes[name], name))
    small = [name for name in order if sizes[name] < fewest]
    merged = sum(sizes[name] for name in small)
    while small and merged < fewest and len(small) < len(order):
        merged += sizes[order[len(small)]]
        small.append(order[len(small)])
    return [name for name in sizes if name not in small]


def _counted(columns: Columns, table: pd.DataFrame) -> dict[str, int]:
    """Rows of each group; where people are protected, the people in it."""
    ids, names = cross(group_labels(table, columns), len(table))
    frame = pd.DataFrame({"group": ids, "person": range(len(table))})
    if columns.person is not None:
        frame["person"] = labels_of(table, columns.person, "person")
    counted = frame.groupby("group")["person"].nunique().to_numpy()
    return {name: int(rows) for name, rows in zip(names, counted, strict=True)}
