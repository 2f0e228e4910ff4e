"""The command line as tests call it: words in; exit code, standard output and standard error out."""

from __future__ import annotations

from collections.abc import Callable

Program = Callable[..., tuple[int, str, str]]
