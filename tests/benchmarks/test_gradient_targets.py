"""A workload that costs more than is asked of it is printed as missed, and the mean has those that count alone."""

from __future__ import annotations

import pytest

from benchmarks.gradients import MEAN_TARGET, WORKLOADS, mean_of, verdict


@pytest.mark.parametrize(("found", "said"), [(1.1, "met"), (1.15, "met"), (1.151, "missed"), (float("nan"), "missed")])
def test_a_ratio_above_its_target_is_missed(found: float, said: str) -> None:
    assert verdict(found, 1.15) == said


@pytest.mark.parametrize(("ratio", "said"), [(MEAN_TARGET - 0.001, "met"), (MEAN_TARGET + 0.001, "missed")])
def test_the_mean_leaves_out_the_lstm(ratio: float, said: str) -> None:
    rows = [{"workload": each.name, "ratio_to_sgd": ratio if each.in_mean else 100.0} for each in WORKLOADS]
    found = mean_of(rows, list(WORKLOADS))
    assert found["workload"] == "geometric mean of 6"
    assert found["ratio_to_sgd"] == pytest.approx(ratio)
    assert found["speed"] == said
