"""Training: the loop that every SGD method shares, its callbacks and history, and the finished run."""

from veil.training.augmenting import Augmented
from veil.training.callbacks import Callback, EarlyStopping, StepReport
from veil.training.fitting import fit
from veil.training.heads import Head, Heads
from veil.training.run import Run, load
from veil.training.sessions import Session, session

__all__ = [
    "Augmented",
    "Callback",
    "EarlyStopping",
    "Head",
    "Heads",
    "Run",
    "Session",
    "StepReport",
    "fit",
    "load",
    "session",
]
