"""Rules: one file per kind of layer; importing this package registers them all."""

from veil.gradients.rules import attention, bare, convolution, embedding, linear, normalisation, recurrent

__all__ = ["attention", "bare", "convolution", "embedding", "linear", "normalisation", "recurrent"]
