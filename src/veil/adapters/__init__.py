"""Adapters: a private session inside the training loops of other packages, each of which is imported by name."""
