"""What is said of held-out rows whose counts were released with noise agrees with itself."""

from __future__ import annotations

import numpy as np

from veil.metrics.noisy_confusion import figures
from veil.report.usefulness import constant_answers


def test_rows_of_a_class_within_the_noise_still_count_in_what_speaks_of_all_rows() -> None:
    """A model that answers "no" to everybody: 41 of 56 rows of a group are right, and 13 are of the other class."""
    counts = np.array([[[41.0, 2.0], [13.0, 0.0]], [[30.0, 1.0], [12.0, 1.0]]])
    found = figures(counts, ["a", "b"], [], 2.7).as_json()
    for name, own in found["by_group"].items():
        low, high = own["accuracy_interval"]
        assert low <= own["accuracy"] <= high
        assert own["balanced_accuracy"] is None
        assert name not in constant_answers(found)
    assert found["balanced_accuracy"] < 0.6
    assert 0.6 < constant_answers(found)["all rows"] < 0.8
    low, high = found["intervals"]["worst_group_accuracy"]
    assert low <= found["worst_group_accuracy"] <= high
