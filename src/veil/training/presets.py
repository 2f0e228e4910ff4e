"""Presets: good defaults without a comparison. `best` has a method, a model and its features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.methods import method
from veil.models import build_model
from veil.problem import Problem
from veil.training import Run, fit


@dataclass(frozen=True)
class Preset:
    """A method with its options, and a model that fits it."""

    method: str
    model: str
    options: Mapping[str, Any] = field(default_factory=dict)


# Searched on unbalanced MNIST and Adult alone (docs/results/README.md); one recipe for images and tables.
PRESETS: Mapping[str, Preset] = {"best": Preset("group-gd", "whitened")}


def preset(name: str) -> Preset:
    """A preset by its name.

    >>> preset("best").method
    'group-gd'
    """
    if name not in PRESETS:
        raise InputError(f'preset is "{name}": known is {", ".join(PRESETS)}')
    return PRESETS[name]


def fit_preset(
    problem: Problem,
    name: str = "best",
    *,
    evaluation: Problem | None = None,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """Train with a preset: images as they are, or rows of numbers. `options` of the method override the preset's.

    Args:
        problem: Rows of numbers, or images.
        name: The preset.
        evaluation: Rows that were declared public.
        options: Options of the method that override the preset's.
        settings: Fields of `veil.plans.Settings`.

    Returns:
        The finished run.

    Raises:
        InputError: There is no such preset, or it does not fit the rows.

    >>> import torch
    >>> from veil.datasets import GroupSpec, generate
    >>> rows = generate([GroupSpec("large", 900), GroupSpec("small", 100)], features=4)
    >>> run = fit_preset(rows, epsilon=1.0, steps=10, seed=1)
    >>> {group: epsilon <= 1.0 for group, epsilon in run.certificate.by_group.items()}
    {'large': True, 'small': True}
    """
    chosen = preset(name)
    number = settings.get("seed")
    seed = Seed.from_system() if number is None else Seed.from_int(number)
    return fit(
        build_model(chosen.model, problem.public, seed),
        problem,
        method=method(chosen.method, **{**chosen.options, **(options or {})}),
        evaluation=evaluation,
        **settings,
    )
