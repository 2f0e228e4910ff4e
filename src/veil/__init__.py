"""Veil: train models with differential privacy that leave no group behind.

>>> import veil
>>> run = veil.fit(model, problem, method="dp-sgd", epsilon=1.0)  # doctest: +SKIP

Names are imported when they are first used, so that `veil.accounting` works without loading torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from veil import accounting, methods
    from veil.auditing import audit
    from veil.foundation.parallel import Workers
    from veil.handover.loaded import load
    from veil.methods import method, plan
    from veil.problem import Problem
    from veil.training import Run, fit, session
    from veil.training.comparing import compare
    from veil.training.presets import fit_preset

_HOMES = {
    "Problem": "veil.problem",
    "Run": "veil.training",
    "Workers": "veil.foundation.parallel",
    "fit": "veil.training",
    "load": "veil.handover.loaded",
    "session": "veil.training",
    "compare": "veil.training.comparing",
    "fit_preset": "veil.training.presets",
    "audit": "veil.auditing",
    "accounting": "veil.accounting",
    "method": "veil.methods",
    "methods": "veil.methods",
    "plan": "veil.methods",
}

__all__ = [
    "Problem",
    "Run",
    "Workers",
    "__version__",
    "accounting",
    "audit",
    "compare",
    "fit",
    "fit_preset",
    "load",
    "method",
    "methods",
    "plan",
    "session",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'veil' has no attribute {name!r}")
    module = import_module(home)
    return module if home.rpartition(".")[2] == name else getattr(module, name)


def _version() -> str:
    """The version of the installed distribution; a source tree that was never installed has none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("veil-dp")
    except PackageNotFoundError:
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted(__all__)
