"""`PrivateTrainer`: the Trainer of Hugging Face with private steps. Needs the package transformers.

trainer = PrivateTrainer(model, TrainingArguments("out", num_train_epochs=3), problem, epsilon=1.0)
run = trainer.train_privately()

Veil draws the batches, bounds each row and adds the noise; the optimizer, the schedule, the callbacks and the arguments
are the Trainer's. Losses on training rows are private and are not logged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from veil.errors import require
from veil.models.calling import device_of
from veil.plans import LossFunction
from veil.problem import Problem
from veil.training.losses import as_row_losses, row_losses
from veil.training.run import Run
from veil.training.sessions import Session, session

# What the arguments say in words of their own.
_TAKEN = ("epochs", "steps", "batch_size", "learning_rate", "optimizer", "schedule", "momentum", "l2", "ema", "out")


class PrivateTrainer(Trainer):  # type: ignore[misc]
    """The Trainer with `train_privately`, which returns Veil's run with its certificate.

    Of the arguments, `num_train_epochs` or `max_steps`, `learning_rate`, the optimizer and its schedule count.
    `per_device_train_batch_size` rows are in a pass and `gradient_accumulation_steps` passes in a step, in expectation.
    `max_grad_norm` does not: every row has its own bound.

    Args:
        model: Any model that a session takes.
        args: The Trainer's arguments.
        problem: The rows, in place of a training data set.
        method: A method of Veil; by default that of `veil.session`.
        loss: As for `veil.fit`; by default cross-entropy on the logits.
        callbacks: Callbacks of the Trainer. They see released values alone.
        settings: `epsilon`, `delta` and other settings of Veil that the arguments do not have.
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        problem: Problem,
        *,
        method: str | None = None,
        loss: LossFunction = row_losses,
        callbacks: list[TrainerCallback] | None = None,
        **settings: Any,
    ) -> None:
        twice = [name for name in _TAKEN if name in settings]
        require(not twice, f'"{next(iter(twice), "")}" is set by the TrainingArguments: set it there')
        require(not settings.get("public_steps"), "callbacks of a Trainer may end it by figures: omit public_steps")
        super().__init__(model=model, args=args, callbacks=callbacks)
        self._problem, self._method, self._loss, self._settings = problem, method, loss, settings

    def train(self, *_: Any, **__: Any) -> Any:
        """Refused: it would train without privacy.

        Args:
            _: Ignored.
            __: Ignored.

        Returns:
            Nothing.

        Raises:
            InputError: Always.
        """
        require(False, "train() is not private: call train_privately()")

    def train_privately(self) -> Run:
        """Train the model in place and return the run.

        Returns:
            The run, with its certificate.
        """
        args = self.args
        losses = as_row_losses(self._loss, self.model, self._problem.on(device_of(self.model)))
        opened = self._opened()
        self.create_optimizer_and_scheduler(len(opened))
        optimizer: Any = getattr(self.optimizer, "optimizer", self.optimizer)
        opened.use(optimizer)
        self.state.max_steps, self.state.num_train_epochs = len(opened), round(args.num_train_epochs)
        control = self.callback_handler.on_train_begin(args, self.state, self.control)
        for batch in opened:
            # A batch may be empty: it is a step of noise alone.
            opened.step(losses(self.model, batch) if len(batch[1]) else torch.zeros(0))
            if not opened.updated:
                continue
            self.lr_scheduler.step()
            self.state.global_step += 1
            control = self.callback_handler.on_step_end(args, self.state, control)
            if control.should_training_stop:
                break
        self.callback_handler.on_train_end(args, self.state, control)
        return opened.finish()

    def _opened(self) -> Session:
        args, given = self.args, dict(self._settings)
        rows = args.per_device_train_batch_size
        if args.gradient_accumulation_steps > 1:
            given["micro_batch"] = rows
        length = {"steps": args.max_steps} if args.max_steps > 0 else {"epochs": args.num_train_epochs}
        return session(
            self.model,
            self._problem,
            method=self._method,
            loss=self._loss,
            batch_size=rows * args.gradient_accumulation_steps,
            **length,
            **given,
        )
