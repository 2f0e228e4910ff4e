"""Duration: about how long the steps of a plan take on this machine, from synthetic rows. No private row is read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import nn

from veil.gradients import GradientEngine
from veil.gradients.model_state import untouched
from veil.models.calling import call
from veil.plans import Plan
from veil.plans.controllers import first_release
from veil.problem import Problem
from veil.training.losses import row_losses

TIMED_ROWS = 256
# Drawing rows, noise, update and records, beside the gradients of a step; and features beside the steps of a solver.
_BESIDE_GRADIENTS, _PASSES_OF_A_SOLVER = 1.4, 4.0
_FLOPS = 2e9


def estimated_seconds(model: nn.Module, problem: Problem, plan: Plan) -> float | None:
    """About how long training takes; None where model or rows do not let synthetic rows be timed.

    Args:
        model: The model to train, which is left as it is.
        problem: The rows: their shape and public number count, not what they say.
        plan: What will be done.

    Returns:
        Seconds, right to a factor of about two.
    """
    rows = min(TIMED_ROWS, max(plan.facts.rows, 1))
    try:
        batch = problem.made_up(rows)
        with untouched(model), torch.random.fork_rng(devices=[]):
            if plan.solver is not None:
                with torch.no_grad():
                    seconds = _timed(lambda: call(model, batch[0]))
                width = sum(parameter.numel() for parameter in model.parameters())
                steps = plan.steps * 4 * plan.facts.rows * width / _FLOPS
                return _PASSES_OF_A_SOLVER * seconds * plan.facts.rows / rows + steps
            engine = GradientEngine(model, row_losses)
            seconds = _timed(lambda: engine.norms_and_losses(batch))
    except Exception:  # an estimate is never a reason to fail: trials say what is wrong with a model
        return None
    return _BESIDE_GRADIENTS * plan.steps * seconds * max(_expected_batch(plan), 1.0) / rows


def duration_in_words(seconds: float) -> str:
    """A duration as people say it.

    >>> duration_in_words(0.4), duration_in_words(48), duration_in_words(500), duration_in_words(9000)
    ('a few seconds', 'about 50 seconds', 'about 8 minutes', 'about 2.5 hours')
    """
    if seconds < 5:
        return "a few seconds"
    if seconds < 90:
        return f"about {5 * math.ceil(seconds / 5)} seconds"
    return f"about {round(seconds / 60)} minutes" if seconds < 5400 else f"about {seconds / 3600:.2g} hours"


def _timed(work: Callable[[], object]) -> float:
    """Seconds of the second time: the first one prepares what later ones reuse."""
    work()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _expected_batch(plan: Plan) -> float:
    return float(first_release(plan.controller).divisor or plan.settings.batch_size)
