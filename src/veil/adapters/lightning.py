"""`PrivateModule`: a LightningModule whose training is private. Needs the package pytorch-lightning.

private = PrivateModule(network, problem, AdamW(network.parameters()), epsilon=1.0, epochs=3, batch_size=256)
Trainer(max_epochs=1).fit(private)
run = private.finish()

Lightning's Trainer drives callbacks, loggers and validation; Veil draws batches, bounds each row and adds the noise.
The epochs are those of the session, so the Trainer has one.
"""

from __future__ import annotations

from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from veil.errors import require
from veil.models.calling import device_of
from veil.plans import LossFunction
from veil.problem import Problem
from veil.training.losses import as_row_losses, row_losses
from veil.training.run import Run
from veil.training.sessions import Session, session


class PrivateModule(LightningModule):  # type: ignore[misc]
    """A module around a network, which Lightning's Trainer trains with privacy.

    Derive from it to add a `validation_step` on public rows or other hooks. Losses of training rows are private: none
    is logged.

    Args:
        network: The network to train, in place; move it to its device before.
        problem: The rows.
        optimizer: Over the network's parameters; without one, that of the settings.
        loss: As for `veil.fit`; by default that of the task.
        settings: As for `veil.session`: `method`, `epsilon`, `epochs`, `batch_size`, …

    Raises:
        InputError: If the network is itself a LightningModule, or if batches shall come in parts.
    """

    def __init__(
        self,
        network: nn.Module,
        problem: Problem,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        loss: LossFunction = row_losses,
        **settings: Any,
    ) -> None:
        super().__init__()
        # Lightning hangs its trainer into such modules, and what passes write into a model is undone.
        require(
            not any(isinstance(module, LightningModule) for module in network.modules()),
            "the network is a LightningModule: give the torch module inside; hooks go into a class derived from this",
        )
        require("micro_batch" not in settings, "Lightning counts batches, so none comes in parts: omit micro_batch")
        require(not settings.get("public_steps"), "callbacks of a Trainer may end it by figures: omit public_steps")
        self.network = network
        self.automatic_optimization = False
        self._session: Session = session(network, problem, loss=loss, **settings)
        self._losses = as_row_losses(loss, network, problem.on(device_of(network)))
        if optimizer is not None:
            self._session.use(optimizer)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """That of the network.

        Args:
            inputs: What the network takes.
            named: What the network takes by name.

        Returns:
            What the network returns.
        """
        return self.network(*inputs, **named)

    def configure_optimizers(self) -> None:
        """None for Lightning: the session updates the weights."""
        return

    def train_dataloader(self) -> Session:
        """Veil draws the batches.

        Returns:
            The session, which yields each batch once.
        """
        return self._session

    def training_step(self, batch: tuple[Any, Tensor], number: int) -> None:
        """One private update.

        Args:
            batch: Inputs and targets of the rows that were drawn.
            number: Number of the batch.
        """
        # A batch may be empty: it is a step of noise alone.
        self._session.step(self._losses(self.network, batch) if len(batch[1]) else torch.zeros(0))

    def finish(self) -> Run:
        """The run with its certificate, after the Trainer's `fit`.

        Returns:
            The run.
        """
        return self._session.finish()
