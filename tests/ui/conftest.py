"""The application over a folder of runs, and somebody who has its cookie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ui.ui_cases import write_runs

pytest.importorskip("flask", reason="flask is not installed")
PORT = 8000
HOST = f"127.0.0.1:{PORT}"
Ask = Callable[..., Any]


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that no test changes."""
    return write_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def root(written: Path) -> Path:
    """The folder of runs; a test that wants its own overrides it."""
    return written


@pytest.fixture
def guard() -> Any:
    from veil.ui.guard import Guard

    return Guard(PORT)


@pytest.fixture
def client(root: Path, guard: Any, tmp_path: Path) -> Any:
    """Somebody with a browser and no token."""
    from veil.ui.app import create_app

    return create_app(root, str(tmp_path / "budget.sqlite"), guard).test_client()


@pytest.fixture
def ask(client: Any, guard: Any) -> Ask:
    """Ask for a page with the cookie: `ask("/plans")`."""
    client.get(f"/{guard.place}/enter?token={guard.token}", headers={"Host": HOST})

    def get(path: str = "/", **headers: str) -> Any:
        return client.get(f"/{guard.place}{path}", headers={"Host": HOST, **headers})

    return get


@pytest.fixture
def ids(root: Path) -> dict[str, str]:
    """The id of every run by its name."""
    from veil.ui.runs import Shelf

    return {run.name: run.id for run in Shelf(root).runs()}
