"""The loop's own overhead: everything of a step but the gradients, on the MLP workload, in processor time."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from benchmarks._timing import interleaved
from veil import methods
from veil.accounting import Ledger
from veil.datasets import GroupSpec, generate
from veil.foundation.randomness import Seed
from veil.gradients import GradientEngine
from veil.noise import GaussianNoise
from veil.plans import Settings
from veil.training.fitting import row_losses
from veil.training.loop import Loop

# A name for the row, the method, its options.
WORKLOADS: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("dp-sgd", "dp-sgd", {}),
    ("asc", "asc", {}),
    ("asc, losses of all rows", "asc", {"loss_rate": 1.0}),
)


def run(repeats: int, quick: bool) -> list[dict[str, Any]]:
    """A whole run of the loop against its gradients alone, on the same batches (MLP 60-256-256-2, batch 1000)."""
    steps = 10 if quick else 200
    groups = [GroupSpec(f"group {i}", 5000, angle=0.5 * i) for i in range(4)]
    problem = generate(groups, features=60)
    rows = []
    for row, name, options in WORKLOADS:
        settings = Settings.checked(epsilon=1.0, steps=steps, batch_size=1000, seed=1)
        plan = methods.create(name, options).plan(problem.public, settings)
        model = nn.Sequential(nn.Linear(60, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
        engine, seed = GradientEngine(model, row_losses), Seed.from_int(1)
        release = plan.controller.release(plan.controller.start(), 0)
        sampler = release.draw.sampler(problem.strata())
        batches = [problem.batch(sampler.draw(seed, step)) for step in range(steps)]
        noise = GaussianNoise(seed)
        shapes = dict(model.named_parameters())

        def gradients(engine: GradientEngine = engine, batches: list[Any] = batches) -> None:
            for batch in batches:
                engine.weighted_sum(batch, lambda per_row: 1.0 / per_row.norms.clamp_min(1.0))

        start = {name: value.clone() for name, value in model.state_dict().items()}

        def whole(plan: Any = plan, model: nn.Module = model, start: dict[str, torch.Tensor] = start) -> None:
            # From the same weights every time: after many runs they would have grown until gradients underflow.
            model.load_state_dict(start)
            Loop(model, problem, plan, row_losses, Seed.from_int(1), Ledger(plan.terms())).run()

        def noise_only(noise: GaussianNoise = noise, shapes: dict[str, torch.Tensor] = shapes) -> None:
            for step in range(steps):
                noise.draw(step, shapes, 1.0)

        candidates = {"gradients": gradients, "whole": whole, "noise": noise_only}
        seconds = interleaved(candidates, repeats, clock=time.process_time)
        per_step = {key: 1e3 * value / steps for key, value in seconds.items()}
        rows.append(
            {
                "workload": row,
                "gradients_ms": per_step["gradients"],
                "whole_step_ms": per_step["whole"],
                "noise_ms": per_step["noise"],
                "overhead_share": 1.0 - per_step["gradients"] / per_step["whole"],
            }
        )
    return rows
