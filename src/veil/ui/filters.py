"""Filters: which runs a page lists, in which order, from its query string."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlencode

from veil.ui.runs import STATES, VERDICTS, RunSummary

PAGE = 100
LONGEST = 200
SORTS: Mapping[str, tuple[str, Callable[[RunSummary], Any]]] = {
    "newest": ("newest first", lambda run: -run.when),
    "name": ("name", lambda run: run.name.lower()),
    "epsilon": ("smallest ε first", lambda run: math.inf if run.epsilon is None else run.epsilon),
    "worst": ("best worst group first", lambda run: _best_first(run, run.worst)),
    "overall": ("best overall first", lambda run: _best_first(run, run.overall)),
}


def _best_first(run: RunSummary, figure: float | None) -> tuple[int, float]:
    """Accuracies from the highest, then errors from the lowest, then runs without a figure."""
    if figure is None:
        return 2, 0.0
    return (1, figure) if run.numbers else (0, -figure)


@dataclass(frozen=True)
class Filters:
    """What the list is narrowed to; an empty field takes every run."""

    q: str = ""
    method: str = ""
    data: str = ""
    state: str = ""
    verdict: str = ""
    sort: str = "newest"
    page: int = 1

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Filters:
        """What a query string asks for; what it gets wrong is left out."""
        given = {name: query.get(name, "")[:LONGEST] for name in ("q", "method", "data", "state", "verdict")}
        sort, page = query.get("sort", ""), query.get("page", "")
        number = int(page) if page.isascii() and page.isdigit() and len(page) < 7 else 1
        return cls(**given, sort=sort if sort in SORTS else "newest", page=max(1, number))

    @property
    def narrowed(self) -> bool:
        """Whether some runs may be left out."""
        return any((self.q, self.method, self.data, self.state, self.verdict))

    def query(self, **changed: Any) -> str:
        """The query string of these filters with some changed."""
        usual = asdict(Filters())
        return urlencode({name: value for name, value in {**asdict(self), **changed}.items() if value != usual[name]})

    def chosen(self, runs: Sequence[RunSummary]) -> list[RunSummary]:
        """The runs that fit, in order."""
        return sorted(filter(self._fits, runs), key=SORTS[self.sort][1])

    def _fits(self, run: RunSummary) -> bool:
        words = f"{run.name} {run.method} {run.data} {run.worst_group}".lower()
        wanted = ((self.method, run.method), (self.data, run.data), (self.state, run.state))
        fits = all(not asked or asked == own for asked, own in wanted)
        judged = not self.verdict or (self.verdict == run.verdict and run.state == STATES[0])
        return fits and judged and all(word in words for word in self.q.lower().split())


@dataclass(frozen=True)
class Listing:
    """One page of a list, and what it can be narrowed to."""

    filters: Filters
    runs: Sequence[RunSummary]
    fitting: int
    all: int
    pages: int
    choices: Mapping[str, Sequence[str]]


def listing(runs: Sequence[RunSummary], filters: Filters) -> Listing:
    """The page that the filters ask for; the last one where they ask for more."""
    fitting = filters.chosen(runs)
    pages = max(1, math.ceil(len(fitting) / PAGE))
    page = min(filters.page, pages)
    choices = {
        "method": sorted({run.method for run in runs if run.method}),
        "data": sorted({run.data for run in runs if run.data}),
        "state": STATES,
        "verdict": VERDICTS,
    }
    shown = fitting[(page - 1) * PAGE : page * PAGE]
    return Listing(Filters(**{**asdict(filters), "page": page}), shown, len(fitting), len(runs), pages, choices)
