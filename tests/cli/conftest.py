"""The table that most commands are tried on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.people_cases import write_people


@pytest.fixture
def people(tmp_path: Path) -> Path:
    return write_people(tmp_path)
