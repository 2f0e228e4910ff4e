"""Recomputed activations: a private pass keeps what torch's gradient checkpointing would compute a second time.

`torch.utils.checkpoint` drops activations and computes them again in the backward pass, where nobody records them. The
values are the same if they are kept. Memory is bounded by `micro_batch` or `max_memory` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from torch.utils import checkpoint


class _Called:
    """In place of torch's autograd function for reentrant checkpointing: calls what it is given."""

    @staticmethod
    def apply(function: Callable[..., Any], _: bool, *args: Any) -> Any:
        """The function's own result."""
        return function(*args)


def _around(*_: Any, **__: Any) -> Iterator[None]:
    """In place of what torch does before and after a function that is checkpointed without reentry: nothing."""
    yield


# What `torch.utils.checkpoint.checkpoint` looks up when it is called, whoever holds a reference to it. In a torch that
# has no such names, checkpointed models are rejected as before.
_PARTS = {
    "CheckpointFunction": _Called,
    "_checkpoint_without_reentrant_generator": _around,
    "_checkpoint_without_reentrant_generator_impl": _around,  # its name from torch 2.14 on
}


class _Openings:
    """How many passes are open, and torch's own parts while there are any: passes may end in any order."""

    count = 0
    own: ClassVar[dict[str, Any]] = {}


@contextmanager
def activations_kept() -> Iterator[None]:
    """Within it, functions under `torch.utils.checkpoint` run as if they were not."""
    if _Openings.count == 0:
        _Openings.own = {name: getattr(checkpoint, name) for name in _PARTS if hasattr(checkpoint, name)}
        for name in _Openings.own:
            setattr(checkpoint, name, _PARTS[name])
    _Openings.count += 1
    try:
        yield
    finally:
        _Openings.count -= 1
        if _Openings.count == 0:
            for name, part in _Openings.own.items():
                setattr(checkpoint, name, part)
