"""A PyTorch model of your own: by `veil.fit`, and in a training loop that you write.

python examples/own_model.py [--rows N]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import nn

import veil


def make_rows(rows: int, seed: int) -> veil.Problem:
    """Two groups; in the small one another feature decides."""
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(rows, 12)).astype(np.float32)
    small = generator.random(rows) < 0.15
    targets = (np.where(small, inputs[:, 1], inputs[:, 0]) + 0.3 * generator.normal(size=rows) > 0).astype(int)
    return veil.Problem.from_arrays(inputs, targets, np.where(small, "small", "large"))


def network() -> nn.Module:
    """Any module whose rows do not see each other; LayerNorm and GroupNorm are fine, BatchNorm is not."""
    return nn.Sequential(nn.Linear(12, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 2))


def main(rows: int) -> tuple[veil.Run, veil.Run]:
    """The same model twice: trained for you, then by your own loop."""
    private, public = make_rows(rows, 0), make_rows(2000, 1)

    run = veil.fit(network(), private, method="asc", epsilon=2.0, epochs=5, batch_size=256, evaluation=public)
    print("fit:    ", {group: round(score.accuracy, 3) for group, score in run.metrics.by_group.items()})

    model = network()
    session = veil.session(model, private, method="dp-sgd", epsilon=2.0, epochs=5, batch_size=256)
    for inputs, targets in session:  # the cost of a batch is in the ledger before you see it
        losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")  # one per row
        session.step(losses)  # bounded, noisy, applied
    own = session.finish()
    with torch.no_grad():
        inputs, targets = public.batch(np.arange(2000))
        print("session:", round(float((model(inputs).argmax(1) == targets).float().mean()), 3))
    print("ε by group:", {group: round(cost, 3) for group, cost in own.certificate.by_group.items()})
    return run, own


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8000)
    main(parser.parse_args().rows)
