"""The command line: one file per family of commands."""

from veil.cli.app import main

__all__ = ["main"]
