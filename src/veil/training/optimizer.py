"""Optimizer: one update of the weights by a released gradient, and how to undo it.

Schedule, noise filter, torch's optimizer and the average of the weights: all of it is post-processing of releases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from veil.errors import require
from veil.noise.filters import put_weights
from veil.plans import Plan, Settings

_SGD_OPTIONS = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")
# Where torch has updates in one piece.
_FUSED = ("cpu", "cuda", "mps", "xpu")


class Optimizer:
    """Updates a model's weights as a plan's settings say."""

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self._model, self._plan = model, plan
        self._parameters = dict(model.named_parameters())
        assert plan.settings.learning_rate is not None, "the loop settles the learning rate"
        self._rate = plan.settings.learning_rate
        self.average = WeightAverage(model, plan.settings.ema)
        self.filter = plan.noise_filter()
        self._own = False

    @cached_property
    def _torch(self) -> torch.optim.Optimizer:
        """Made at the first update: what it imports takes longer than a whole solution by a method without steps."""
        return torch_optimizer(self._model, self._plan.settings, self._rate)

    @cached_property
    def _held(self) -> frozenset[int]:
        """What torch's optimizer was made over: weights that are unfrozen later are not its own."""
        return frozenset(id(parameter) for group in self._torch.param_groups for parameter in group["params"])

    def use(self, given: torch.optim.Optimizer) -> None:
        """Update by an optimizer of the user's, whose learning rates are then the user's too."""
        trained = {id(parameter) for parameter in self._parameters.values() if parameter.requires_grad}
        held = {id(parameter) for group in given.param_groups for parameter in group["params"]}
        require(
            bool(held & trained),
            "the optimizer holds none of the model's trained parameters: make it from model.parameters() of this model",
        )
        require(
            not held - {id(parameter) for parameter in self._parameters.values()},
            "the optimizer holds parameters that are not the model's: give it those of this model alone",
        )
        require(
            not isinstance(given, torch.optim.LBFGS),
            "LBFGS computes a gradient several times in a step, and each is a release: use SGD, Adam or another that "
            "takes one gradient",
        )
        require(
            not isinstance(given, torch.optim.SparseAdam),
            "SparseAdam takes sparse gradients, and with noise every value of a gradient is set: use Adam",
        )
        self.__dict__["_torch"], self._own = given, True

    @property
    def _fresh(self) -> bool:
        return "_torch" not in self.__dict__

    def look_ahead(self) -> AbstractContextManager[None]:
        """The model where the noise filter wants the gradient; without a filter where it stands."""
        return self.filter.ahead(self._model) if self.filter else nullcontext()

    def update(self, total: dict[str, Tensor], step: int, divisor: float = 1.0) -> None:
        """One step along a released sum of gradients over its divisor. Uses it up: `total` is empty afterwards."""
        settings = self._plan.settings
        rate = self._rate * schedule(settings.schedule, step, self._plan.steps)
        for group in () if self._own else self._torch.param_groups:
            group["lr"] = rate
        own_sgd = not self._own and type(self._torch) is torch.optim.SGD
        if self.filter or not own_sgd:
            torch._foreach_div_(list(total.values()), divisor)
            divisor = 1.0
        smooth = self.filter.smooth(total) if self.filter else total
        given = [
            (parameter, smooth[name])
            for name, parameter in self._parameters.items()
            if name in smooth and (self._own or id(parameter) in self._held)
        ]
        parameters: list[Tensor] = [parameter for parameter, _ in given]
        laid_out = [_laid_out_like(parameter, value) for parameter, value in given]
        if own_sgd:
            _sgd_step(self._torch, parameters, laid_out, divisor)
        else:
            # An optimizer of the user's may hold frozen weights, whose gradients were never released.
            for parameter in self._parameters.values():
                parameter.grad = None
            _step(self._torch, parameters, laid_out)
        total.clear()
        self.average.update()

    def snapshot(self) -> Callable[[], None]:
        """A function that undoes the updates since. Momentum is dropped, or the next attempt would be the same."""
        weights, average = weights_of(self._model), self.average.state()
        filtered = self.filter.state() if self.filter else None

        def take_back() -> None:
            put_weights(self._model, weights)
            self._torch.state.clear()
            self.average.restore(average)
            if self.filter and filtered:
                self.filter.restore(filtered)

        return take_back

    def slots(self) -> dict[int, dict[str, Any]]:
        """What torch's optimizer remembers of each parameter (momentum), as a checkpoint keeps it."""
        kept: dict[int, dict[str, Any]] = {} if self._fresh else self._torch.state_dict()["state"]
        return kept

    def load_slots(self, slots: Mapping[int, Mapping[str, Any]]) -> None:
        """Restore from a checkpoint."""
        if self._fresh and not slots:
            return
        whole = self._torch.state_dict()
        self._torch.load_state_dict({**whole, "state": {index: dict(kept) for index, kept in slots.items()}})
        for parameter, kept in self._torch.state.items():
            for name, value in kept.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    kept[name] = _laid_out_like(parameter, value)


class WeightAverage:
    """An exponential moving average of the weights; with `decay` 0 there is none, and the model keeps its own."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model, self._decay, self._count = model, decay, 0
        self._weights = weights_of(model) if decay > 0 else {}

    def update(self) -> None:
        """Move towards the model's weights by one step."""
        if not self._weights:
            return
        self._count += 1
        # Early on the average follows the weights closely, so that it does not remember the random start.
        decay = min(self._decay, (1 + self._count) / (10 + self._count))
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                self._weights[name].lerp_(parameter, 1.0 - decay)

    def state(self) -> tuple[int, dict[str, Tensor]]:
        """What a checkpoint keeps and a rejected step puts back."""
        return self._count, {name: value.clone() for name, value in self._weights.items()}

    def restore(self, state: tuple[int, Mapping[str, Tensor]]) -> None:
        """Restore an earlier state."""
        self._count, self._weights = state[0], {name: value.clone() for name, value in state[1].items()}

    def install(self) -> None:
        """Give the model the averaged weights, for good."""
        put_weights(self._model, self._weights)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The model with the averaged weights; its own come back afterwards."""
        own = weights_of(self._model) if self._weights else {}
        self.install()
        try:
            yield
        finally:
            put_weights(self._model, own)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter by its name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def torch_optimizer(model: nn.Module, settings: Settings, rate: float) -> torch.optim.Optimizer:
    """The optimizer of the settings over the trainable parameters."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=rate,
            momentum=settings.momentum,
            weight_decay=settings.l2,
            fused=all(p.is_floating_point() and p.device.type in _FUSED and _is_dense(p) for p in parameters),
        )
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=rate, weight_decay=settings.l2)


def _step(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """One update by any optimizer."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    for parameter in parameters:
        parameter.grad = None


def _sgd_step(optimizer: torch.optim.Optimizer, parameters: list[Tensor], totals: list[Tensor], divisor: float) -> None:
    """The same update by torch's function alone, without the hooks and the profiler around `step`: a third of the time.

    The optimizer is the SGD of the settings, which has one group of all trained parameters. Torch's update in one piece
    divides too: every pass over all weights has its price.
    """
    (group,) = optimizer.param_groups
    options = {name: group[name] for name in _SGD_OPTIONS}
    # What is asked for by brackets is made where it is missing, as torch does.
    slots = [optimizer.state[parameter] for parameter in parameters] if group["momentum"] else []
    momenta = [slot.get("momentum_buffer") for slot in slots]
    with torch.no_grad():
        if group["fused"] and all(one is not None for one in momenta) and _divided_alike(parameters):
            torch._fused_sgd_(parameters, totals, momenta, is_first_step=False, grad_scale=_held(divisor), **options)
            return
        torch._foreach_div_(totals, divisor)
        sgd(parameters, totals, momenta, foreach=group["foreach"], fused=group["fused"], **options)
    for slot, momentum in zip(slots, momenta, strict=True):
        slot["momentum_buffer"] = momentum


@lru_cache(maxsize=1)
def _held(divisor: float) -> Tensor:
    """The divisor as torch takes it: to make this tensor anew costs as much as an update."""
    return torch.tensor(divisor, dtype=torch.float32)


def _divided_alike(parameters: Sequence[Tensor]) -> bool:
    """Whether an update in one piece divides as torch does elsewhere: in single precision, on the CPU."""
    return bool(parameters) and all(one.dtype is torch.float32 and one.is_cpu for one in parameters)


def _is_dense(parameter: Tensor) -> bool:
    """Whether it fills its memory without gaps, in any order: updates in one piece walk through all of it."""
    reach = 1
    for stride, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size != 1 and stride != reach:
            return False
        reach *= size
    return True


def _laid_out_like(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient in the parameter's order of memory: fused optimizers walk through both side by side."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)


def schedule(kind: str, step: int, steps: int) -> float:
    """The factor on the learning rate: a pure function of the step.

    >>> schedule("linear", 5, 10), schedule("cosine", 0, 10), schedule("constant", 9, 10)
    (0.5, 1.0, 1.0)
    """
    progress = step / max(steps, 1)
    if kind == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0 - progress if kind == "linear" else 1.0
