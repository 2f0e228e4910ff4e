"""Owners on the report: curves, the pull between owners and what the tail removes, with its sentence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.metrics.test_tail_activity import two_owners
from veil.report.owners import owner_figures
from veil.report.page import render_page
from veil.report.wording import NARROW
from veil.training import fit
from veil.training.run import Run


def finished(method: str, **settings: Any) -> Run:
    """A short run whose evaluation rows name their owners."""
    import torch

    torch.manual_seed(0)
    chosen: dict[str, Any] = {"steps": 8, "batch_size": 24, "delta": 1e-4, "seed": 3}
    return fit(torch.nn.Linear(1, 2), two_owners(), method=method, evaluation=two_owners(), **(chosen | settings))


def test_a_run_with_budgets_shows_its_owners_and_says_what_the_tail_does() -> None:
    record = finished("ino-sgd").as_json()
    figures = owner_figures(record)
    assert list(figures) == ["owners-accuracy", "owners-loss", "owners-pull", "owners-tail", "owners-part"]
    parts = [series.y for series in figures["owners-part"].series]
    assert all(sum(shares) == pytest.approx(1.0) for shares in zip(*parts, strict=True))
    sentence = record["findings"]["OwnerCurves"]["sentence"]
    what = "of the thresholds of a batch; it follows the gradients, counted every 10 steps."
    assert figures["owners-tail"].note == f"{sentence} Its length: 60{NARROW}%, {what}"
    page = render_page([record])
    assert page.count(sentence) >= 2  # beside the figure and at the head of the section
    assert "<h3>Findings</h3>" not in page


def test_idp_sgd_has_no_tail_to_speak_of() -> None:
    record = finished("idp-sgd").as_json()
    assert "sentence" not in record["findings"]["OwnerCurves"]
    assert owner_figures(record)["owners-tail"].title == "Rows whose gradients fill their thresholds"
    assert "INO" not in render_page([record])


def test_a_run_with_one_budget_for_all_has_no_owner_figures() -> None:
    record = finished("dp-sgd").as_json()
    assert "OwnerCurves" not in record["findings"]
    assert owner_figures(record) == {}


def test_owners_with_several_classes_have_their_recall_drawn() -> None:
    record = finished("idp-sgd").as_json()
    found = record["findings"]["OwnerCurves"]
    assert "owners-recall" not in owner_figures(record)
    found["recall"] = found["accuracy"]
    assert owner_figures(record)["owners-recall"].title == "Recall of each owner over the steps"
