"""The scikit-learn front: `FairPrivateClassifier` and `FairPrivateRegressor`.

They train as `veil train` does and keep the certificate. Groups and owners are needed at fit only. Without a schema,
bounds and categories are taken from the training rows, and the certificate states that this is not covered.
"""

from veil.estimators.classifier import FairPrivateClassifier
from veil.estimators.regressor import FairPrivateRegressor
from veil.estimators.surroundings import (
    COPIES,
    SEARCH,
    STEPS,
    WORKER,
    WRAPPED,
    NoGroupsWarning,
    NotCoveredWarning,
)

__all__ = [
    "COPIES",
    "SEARCH",
    "STEPS",
    "WORKER",
    "WRAPPED",
    "FairPrivateClassifier",
    "FairPrivateRegressor",
    "NoGroupsWarning",
    "NotCoveredWarning",
]
