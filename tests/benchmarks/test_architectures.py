"""The benchmark of real architectures measures those whose weights are partly frozen too."""

from __future__ import annotations

import json

import pytest

from benchmarks.architectures import RESULTS, measured, page_of, workloads

for package in ("transformers", "peft"):
    pytest.importorskip(package, reason=f"{package} is not installed")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["DistilBERT", "DoRA"])
def test_an_architecture_is_measured_against_a_plain_step(name: str) -> None:
    workload = next(workload for workload in workloads(quick=True) if workload.name == name)
    row = measured(workload, repeats=1, seconds=0.0)
    assert row["ratio_to_sgd"] > 0


def test_the_page_follows_from_its_json_and_says_what_fails() -> None:
    row = {"architecture": "GPT-2", "ratio_to_sgd": 1.9, "best_opacus": None, "target": 1.8, "sgd_ms": 5.0}
    mean = {"architecture": "geometric mean", "ratio_to_sgd": 1.4, "best_opacus_ratio_to_sgd": 2.0, "target": 1.5}
    made = {"veil": "1", "torch": "2", "python": "3"}
    machine = {"cores": 2, "architecture": "x"}
    page = page_of({"rows": [row, mean], "version": made, "machine": machine, "repeats": 3})
    assert "**Holds:** geometric mean" in page
    assert "**Fails:** GPT-2" in page
    assert "| GPT-2 | 1.90 | – | – | 5.00 |" in page
    stored = RESULTS / "architectures.json"
    if stored.exists():
        assert page_of(json.loads(stored.read_text())) == (RESULTS / "architectures.md").read_text()
