"""The settings of an audit, in Python and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from veil.errors import require
from veil.request.request import Pairs
from veil.request.settings import Argument, Asked


class AuditSettings(Asked):
    """Which attack, how large, and how sure its bounds are.

    >>> AuditSettings.checked(attack="one-run").canaries
    20000
    """

    attack: Literal["canary", "one-run", "input", "lira", "loss"] = Field(
        "canary", description="canary, one-run, input, lira or loss."
    )
    canaries: int = Field(20_000, description="Synthetic rows per group, included or not at random.")
    shadows: int = Field(16, description="lira: how many models to train.")
    mode: Literal["online", "offline"] = Field(
        "online", description="lira: online, or offline (fits models without the row only)."
    )
    confidence: float = Field(0.95, description="Confidence of each bound and of the overall verdict.")
    seed: int | None = Field(None, ge=0, description="For tests: the seed of canaries and shadow models.")

    @model_validator(mode="after")
    def _in_range(self) -> AuditSettings:
        require(0.5 <= self.confidence < 1, f"confidence is {self.confidence}: it must be at least 0.5 and below 1")
        return self

    @property
    def reads_rows(self) -> bool:
        """Whether the attack reads private rows: what it finds is then not covered by any certificate."""
        return self.attack in ("input", "lira", "loss")


class AuditRequest(AuditSettings):
    """The request of `veil audit`.

    >>> AuditRequest.checked(run="run", canaries=500).settings().canaries
    500
    """

    run: Path | None = Argument(None, description="The folder of a finished run.")
    self_test: str | None = Field(None, description="Name of a method: test its parts instead of a run.")
    jobs: int = Field(1, description="lira: models trained in parallel.")
    backend: str = Field("loky", description="lira: joblib backend (loky, ray, dask, …).")
    shadow_folder: Path | None = Field(
        None, description="lira: where models' scores are kept. [default: beside the run]"
    )
    option: Pairs = Field({}, description="An option of the method, as name=value.")
    show_private: bool = Field(
        False, description="input, lira, loss: show figures of private rows, which no certificate covers."
    )

    def settings(self) -> AuditSettings:
        """The settings of the attack itself.

        Returns:
            The settings alone.
        """
        return AuditSettings(**{name: getattr(self, name) for name in AuditSettings.model_fields})
