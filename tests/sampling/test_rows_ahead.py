"""Rows that are drawn for coming steps too are those that each step would have drawn by itself."""

import random
import sys

import numpy as np
import pytest

from veil.foundation.randomness import Seed
from veil.problem import Strata
from veil.sampling import OneGroupSampler, PoissonSampler, RowsAhead, ShuffledSampler, SubsetSampler, ahead

SEED = Seed.from_int(3)
STRATA = Strata.from_labels(np.arange(200) % 3)
SAMPLERS = [
    PoissonSampler(STRATA, (0.1, 0.5, 0.0)),
    SubsetSampler(STRATA, (3, 4, 5)),
    OneGroupSampler(PoissonSampler(STRATA, (0.1, 0.5, 0.3)), (0.2, 0.3, 0.5)),
    ShuffledSampler(STRATA, 30),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
@pytest.mark.parametrize("most", [1, 200, 1 << 18])
def test_steps_drawn_together_are_those_drawn_alone(sampler, most, monkeypatch):
    monkeypatch.setattr(ahead, "_MOST_ROWS", most)
    rows = RowsAhead(SEED)
    for step in range(50):
        assert np.array_equal(rows.draw(sampler, step), sampler.draw(SEED, step)), step


def test_no_order_of_steps_and_samplers_gives_other_rows():
    rows, choice, step, sampler = RowsAhead(SEED), random.Random(0), 0, SAMPLERS[0]
    for _ in range(300):
        step = step + 1 if choice.random() < 0.9 else choice.randrange(60)
        sampler = choice.choice(SAMPLERS) if choice.random() < 0.1 else sampler
        assert np.array_equal(rows.draw(sampler, step), sampler.draw(SEED, step))


def test_an_interrupt_anywhere_changes_no_rows():
    """Blocks change at steps 1, 3, 7, …: an interrupt before any line must not part rows from the steps they are of."""
    for lines in range(12):
        rows, sampler, left = RowsAhead(SEED), SAMPLERS[0], lines
        for step in range(3):
            rows.draw(sampler, step)

        def interrupt(frame, event, _):
            nonlocal left
            if frame.f_code is not RowsAhead.draw.__code__:
                return None
            left -= event == "line"
            if left < 0:
                raise KeyboardInterrupt
            return interrupt

        before = sys.gettrace()
        sys.settrace(interrupt)
        try:
            rows.draw(sampler, 3)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        for step in range(3, 20):
            assert np.array_equal(rows.draw(sampler, step), sampler.draw(SEED, step)), (lines, step)
