"""Callers: which libraries are around a fit, as the stack of the process shows."""

from __future__ import annotations

import sys
from multiprocessing import current_process
from types import FrameType

SELECTION = ("sklearn.model_selection._validation", "sklearn.model_selection._search")
_LIBRARIES = ("sklearn.", "fairlearn.", "imblearn.")
_STEPS = ("sklearn.pipeline", "sklearn.compose", "imblearn.pipeline")
_PASSED_THROUGH = ("sklearn.base", "sklearn.utils", "sklearn.frozen", "imblearn.base", "imblearn.utils")


def callers() -> tuple[list[str], bool]:
    """Modules of libraries that fit estimators, among the callers of this fit, and whether a pipeline is one of them.

    A library that fits once and reads nothing from the rows itself is not listed.
    """
    found, steps = [], False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith(_STEPS):
            steps = steps or len(getattr(frame.f_locals.get("self"), "steps", ((), ()))) > 1
        elif name.startswith(_LIBRARIES) and not name.startswith(_PASSED_THROUGH):
            found.append(name)
        frame = frame.f_back
    return found, steps


def in_worker() -> bool:
    """Whether this is a process that joblib started, which does not share its parent's memory."""
    return "Loky" in type(current_process()).__name__
