"""Built-in models for tables, images and text, features that help under privacy, and the user's own models."""

from veil.models.building import MODELS, SEQUENCE_MODELS, build_model, load_public_weights, train_only
from veil.models.normalise import normalise, per_row
from veil.models.scattering import scattering

__all__ = [
    "MODELS",
    "SEQUENCE_MODELS",
    "build_model",
    "load_public_weights",
    "normalise",
    "per_row",
    "scattering",
    "train_only",
]
