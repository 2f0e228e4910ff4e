"""A small comparison with the backend named: `python -m tests.training.ray_worker OUT BACKEND`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tests.methods.method_cases import small_problem
from veil.foundation.parallel import Workers
from veil.foundation.randomness import Seed
from veil.problem import Problem
from veil.training.comparing import compare


def linear(problem: Problem, seed: Seed) -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Linear(4, 2)


if __name__ == "__main__":
    out, backend = Path(sys.argv[1]), sys.argv[2]
    problem = small_problem()
    found = compare(
        problem,
        problem,
        methods=["dp-sgd", "asc"],
        out=out,
        model=linear,
        seeds=2,
        workers=Workers(2, backend),
        steps=5,
        batch_size=24,
    )
    assert not found.failures, found.failures
