"""Open passes: per-row gradients for a forward pass that the user writes."""

from __future__ import annotations

from types import TracebackType

import torch
from torch import Tensor, nn

from veil.gradients.passes import Memory, Outcome, begin, conclude, in_words
from veil.gradients.recomputing import activations_kept
from veil.gradients.records import GradientError


class OpenPass:
    """Records what the model computes until `finish` receives the losses; always exit the context.

    The pass runs once, so a model that needs the generic fallback is rejected: pass the loss as a function
    instead.
    """

    def __init__(self, model: nn.Module, rows: int, parameters: dict[str, Tensor], memory: Memory) -> None:
        self._model, self._rows, self._parameters = model, rows, parameters
        self._gathering, self._recorder = begin(model, rows, parameters, memory)
        self._grad, self._kept = torch.enable_grad(), activations_kept()
        self._open = False

    def __enter__(self) -> OpenPass:
        """Start watching."""
        self._kept.__enter__()
        self._grad.__enter__()
        self._recorder.__enter__()  # type: ignore[no-untyped-call]
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching; safe to call twice."""
        if self._open:
            self._open = False
            self._recorder.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
            self._grad.__exit__(kind, error, trace)
            self._kept.__exit__(None, None, None)

    def finish(self, losses: Tensor) -> Outcome:
        """Norms and losses of the rows and what sums are made of, from one backward pass."""
        ended = not self._open
        self.__exit__(None, None, None)
        try:
            with torch.enable_grad():
                outcome, left = conclude(losses, self._rows, self._recorder, self._gathering)
        except (RuntimeError, IndexError) as error:
            said = in_words(error)
            if said is None:
                raise
            raise said from error
        finally:
            self._recorder.close()
        if left and ended:
            raise GradientError(
                f"the pass through {', '.join(left)} was not seen: the loop over the batches had ended. Run the model "
                "inside the loop (`batches = iter(session)` keeps it open where you call next yourself)"
            )
        if left:
            raise GradientError(
                f"no layer rule covers how the model uses {', '.join(left)}: pass the loss as a function, "
                "step(lambda model, batch: …), so that the pass can be repeated"
            )
        return outcome
