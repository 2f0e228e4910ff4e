"""Reproduction: every table and figure of the papers as a TOML file; `veil reproduce` runs it and writes its page."""

from experiments.runner.asking import Asked
from experiments.runner.running import reproduce, rewrite_page, run_study, runner_of, write_page
from experiments.runner.spec import Spec, Study, names, read_spec

__all__ = [
    "Asked",
    "Spec",
    "Study",
    "names",
    "read_spec",
    "reproduce",
    "rewrite_page",
    "run_study",
    "runner_of",
    "write_page",
]
