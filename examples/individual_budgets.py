"""People who set budgets of their own: a hospital that allows ε = 0.5, and one that allows ε = 4.

python examples/individual_budgets.py [--rows N]
"""

from __future__ import annotations

import argparse

import numpy as np
from torch import nn

import veil

BUDGETS = {"careful": 0.5, "open": 4.0}


def make_rows(rows: int, seed: int) -> veil.Problem:
    """Rows of two owners who see different patients; each owner's patients are a group too."""
    generator = np.random.default_rng(seed)
    owner = generator.choice(list(BUDGETS), rows)
    inputs = generator.normal(size=(rows, 10)).astype(np.float32)
    decides = np.where(owner == "careful", inputs[:, 0] + inputs[:, 1], inputs[:, 0] - inputs[:, 1])
    targets = (decides + 0.5 * generator.normal(size=rows) > 0).astype(int)
    return veil.Problem.from_arrays(inputs, targets, owner, owners=owner, budgets=BUDGETS)


def main(rows: int) -> dict[str, veil.Run]:
    """DP-SGD takes the smallest budget for everybody; the other two use each in full."""
    private, public = make_rows(rows, 0), make_rows(4000, 1)
    runs = {}
    for method in ("dp-sgd", "idp-sgd", "ino-sgd"):
        run = veil.fit(nn.Linear(10, 2), private, method=method, epochs=5, batch_size=256, evaluation=public)
        accuracy = {group: round(score.accuracy, 3) for group, score in run.metrics.by_group.items()}
        print(f"{method:8}", accuracy, {owner: round(cost, 2) for owner, cost in run.certificate.by_owner.items()})
        runs[method] = run
    return runs


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8000)
    main(parser.parse_args().rows)
