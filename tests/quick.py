"""`--within SECONDS`, as `make quick` asks: the fastest tests that fit, by how long each took when it last ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

KEY = "veil/durations"


def fitting(names: Sequence[str], took: Mapping[str, float], seconds: float) -> set[str]:
    """The fastest of some tests that take no longer together. One that never ran takes no time, so that it runs.

    >>> sorted(fitting(["a", "b", "c", "new"], {"a": 3.0, "b": 0.5, "c": 1.0}, seconds=2.0))
    ['b', 'c', 'new']
    """
    kept, used = set(), 0.0
    for name in sorted(names, key=lambda name: took.get(name, 0.0)):
        used += took.get(name, 0.0)
        if used > seconds:
            break
        kept.add(name)
    return kept


class Quick:
    """Notes how long tests take, and leaves out the slowest where few seconds are given."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._took: Counter[str] = Counter()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """After tests were left out by their marks."""
        seconds = self._config.getoption("--within")
        if seconds is not None:
            kept = fitting([item.nodeid for item in items], self._known(), seconds)
            self._config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
            items[:] = [item for item in items if item.nodeid in kept]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for setup, call and teardown, with pytest-xdist in the process that starts the others too."""
        self._took[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """One process writes."""
        if self._took and not hasattr(self._config, "workerinput"):
            assert self._config.cache is not None
            self._config.cache.set(KEY, {**self._known(), **self._took})

    def _known(self) -> dict[str, float]:
        assert self._config.cache is not None
        found: dict[str, float] = self._config.cache.get(KEY, {})
        return found
