"""A device that is none: tensors that say they live elsewhere, computed on the CPU, and never mixed with others.

There is no GPU in the tests. Under `Elsewhere`, tensors on the device "meta" hold real values, and an operation on a
tensor from there together with one of the CPU fails, as it does on a real device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
_RESHAPING = ("squeeze_", "unsqueeze_", "t_", "transpose_")


class There(Tensor):
    """A tensor elsewhere; `here` holds its values."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> There:
        made: There = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, here.shape, here.stride(), here.storage_offset(), dtype=here.dtype, device=DEVICE
        )
        made.here = here
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {}, set())

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class Elsewhere(TorchDispatchMode):
    """While it is active, the device "meta" is a place that computes; `moved` counts what was brought to the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {}, self.moved)


def run(func: Any, args: Any, kwargs: dict[str, Any], moved: set[int]) -> Any:
    leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    there = [leaf for leaf in leaves if isinstance(leaf, There)]
    wanted = kwargs.get("device")
    wanted = None if wanted is None else torch.device(wanted)
    copying = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
    strangers = [leaf for leaf in leaves if not isinstance(leaf, There) and leaf.ndim]
    indexing = "aten.index" in str(func) and all(leaf.dtype in (torch.int64, torch.bool) for leaf in strangers)
    if there and strangers and not copying and not indexing:
        raise RuntimeError(f"{func}: tensors of the CPU ({[tuple(s.shape) for s in strangers]}) meet tensors elsewhere")
    plain_args, plain_kwargs = tree_map(lambda x: x.here if isinstance(x, There) else x, (args, kwargs))
    if wanted is not None:
        plain_kwargs["device"] = torch.device("cpu")
    result = func(*plain_args, **plain_kwargs)
    if there and str(func).split(".")[1] in _RESHAPING:
        with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
            func(*args, **kwargs)  # the shape that it says it has
    goes_there = wanted == DEVICE if wanted is not None else bool(there)
    if func is torch.ops.aten.copy_.default:
        goes_there = isinstance(args[0], There)
    if there and not goes_there and wanted is not None:
        moved.update(leaf.numel() for leaf in there)
    written = {id(leaf.here): leaf for leaf in there}

    def wrapped(value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, There):
            return value
        if not goes_there:
            return value
        return written[id(value)] if id(value) in written else There(value)

    return tree_map(wrapped, result)
