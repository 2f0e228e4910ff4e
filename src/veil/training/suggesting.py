"""Suggesting the next trial by the released scores of earlier ones, with Optuna; only where every score is charged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from veil.errors import InputError
from veil.foundation.randomness import Seed


def suggester(labels: Sequence[str], seed: Seed) -> tuple[Callable[[], int], Callable[[float], None]]:
    """Two functions: which candidate comes next, and what its released score was.

    Optuna's tree-structured Parzen estimator chooses; its own randomness follows from the seed, so that a resumed
    search asks for the same trials.

    Raises:
        InputError: Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise InputError("the sampler optuna needs the package optuna: pip install 'veil-dp[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    start = int(seed.generator("sampler", 0).integers(2**31))
    sampler = optuna.samplers.TPESampler(seed=start, n_startup_trials=min(5, 1 + len(labels) // 2))
    study: Any = optuna.create_study(direction="maximize", sampler=sampler)
    asked: list[Any] = []

    def ask() -> int:
        trial = study.ask()
        asked.append(trial)
        return labels.index(trial.suggest_categorical("candidate", list(labels)))

    def tell(score: float) -> None:
        study.tell(asked[-1], max(score, -1e9))

    return ask, tell
