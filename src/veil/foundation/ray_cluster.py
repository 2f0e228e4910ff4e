"""Ray: the cluster that this process has joined or RAY_ADDRESS names, else a small local one of its own."""

from __future__ import annotations

import os
import sys
from functools import wraps
from typing import Any

from veil.errors import InputError

# Local Ray: what is sent is small, and stays so.
OBJECT_STORE = 100_000_000


class RayCluster:
    """A cluster, and how to leave it. One that was started here is shut down; it has so many cores."""

    def __init__(self, cores: int) -> None:
        self.ray = _ray()
        self._own = not self.ray.is_initialized()
        if self._own:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # tell nobody
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of what is to come
            local = {"num_cpus": cores, "object_store_memory": OBJECT_STORE, "include_dashboard": False}
            named = bool(os.environ.get("RAY_ADDRESS"))
            self.ray.init(log_to_driver=False, logging_level="ERROR", **({} if named else local))
            _tell_on_standard_error(sys.modules.get("ray._private.worker"))

    @property
    def machines(self) -> int:
        """How many machines are alive."""
        return max(1, sum(1 for node in self.ray.nodes() if node["Alive"]))

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        if self._own:
            self.ray.shutdown()


def _tell_on_standard_error(worker: Any) -> None:
    """Have Ray report dead machines on standard error: standard output belongs to the command's result.

    Ray has no setting for it. Where it reports in another way, nothing is changed.
    """
    told = getattr(worker, "print_to_stdstream", None)
    if told is None or getattr(told, "on_standard_error", False):
        return

    @wraps(told)
    def tell(data: Any, *more: Any, **named: Any) -> Any:
        return told({**data, "is_err": True}, *more, **named)

    vars(tell)["on_standard_error"] = True
    worker.print_to_stdstream = tell


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise InputError("this needs the package ray: pip install 'veil-dp[ray]'") from error
    return ray
