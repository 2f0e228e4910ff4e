"""Problems of people: the rows of a problem, each with companions that pull the same way."""

from __future__ import annotations

import numpy as np

from veil.problem import Problem
from veil.problem.people import Several


def in_people(problem: Problem) -> Problem:
    """Every row is a person with one, two or three rows like it: who counts them apart is moved three times as far."""
    sizes = 1 + np.arange(len(problem.cell_of)) % 3
    rows = np.repeat(np.arange(len(sizes)), sizes)
    first = np.concatenate([[0], np.cumsum(sizes)])
    return problem.with_people(Several(problem.inputs[rows], problem.targets[rows], first), 3)
