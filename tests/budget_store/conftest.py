"""A PostgreSQL server for the tests that want one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.budget_store.postgres_server import Server, why_not


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    made = Server()
    yield made
    made.close()
