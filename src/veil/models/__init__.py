"""Built-in models for tables, images and text, features that help under privacy, and the user's own models."""

from veil.models.building import MODELS, SEQUENCE_MODELS, build_model, load_public_weights, reads_text, train_only
from veil.models.embedding import embed
from veil.models.normalise import normalise, per_row
from veil.models.pretrained import efficientnet_lite0, embed_texts, with_head
from veil.models.scattering import scattering

__all__ = [
    "MODELS",
    "SEQUENCE_MODELS",
    "build_model",
    "efficientnet_lite0",
    "embed",
    "embed_texts",
    "load_public_weights",
    "normalise",
    "per_row",
    "reads_text",
    "scattering",
    "train_only",
    "with_head",
]
