"""Run: the result of training, its guarantee, and the folder it is stored in."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors.torch import load_file, save
from torch import nn

import veil
from veil import methods
from veil.accounting import Ledger
from veil.accounting.certificate import Certificate
from veil.accounting.model_digest import PREPROCESSING_FILE, WEIGHTS_FILE, model_hashes, stored_weights
from veil.errors import InputError, require
from veil.foundation.files import FOR_ALL, write_whole
from veil.foundation.toml import to_toml
from veil.metrics import GroupMetrics
from veil.metrics.score_counts import score_counts
from veil.plans import Plan
from veil.training.run_folder import under_way

SCORES_FILE = "scores.json"


@dataclass
class Run:
    """A trained model with its history, metrics and certificate; `effects` is what an additive model learned.

    `columns` has what became of each column of a table: its role, and how it is learned or why it is not. `who` is a
    digest of who is who in the rows, which only this process can compare; `held_out` has the ledgers of rows that took
    no part in training.
    `preprocessing` is how a model of tables turns columns into numbers. The certificate names the model by its hashes.

    Args:
        model: The trained model.
        plan: Every public constant of the run.
        history: One line per step: released and public values.
        metrics: Figures by group, or None if nothing was measured.
        certificate: What is promised, to whom, and under which assumptions.
        findings: What callbacks found.
        seconds: How long training took.
        stopped: Why the run ended early, or None.
        config: What was asked for on the command line.
        folder: Where the run is stored, or None.
        effects: What an additive model learned.
        columns: What became of each column of a table.
        remarks: Sentences for the report.
        who: Digest of who is who in the rows.
        held_out: Ledgers of rows that took no part in training.
        preprocessing: How columns become numbers.

    >>> import torch, veil
    >>> from veil.datasets import GroupSpec, generate
    >>> rows = generate([GroupSpec("large", 300), GroupSpec("small", 60)])
    >>> run = veil.fit(torch.nn.Linear(10, 2), rows, method="dp-sgd", steps=3, batch_size=50, evaluation=rows)
    >>> len(run.history), sorted(run.certificate.by_group), run.metrics.worst_group in ("large", "small")
    (3, ['large', 'small'], True)
    """

    model: nn.Module
    plan: Plan
    history: pd.DataFrame
    metrics: GroupMetrics | None
    certificate: Certificate
    findings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    stopped: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    effects: Mapping[str, Any] | None = None
    columns: tuple[Mapping[str, str], ...] = ()
    remarks: tuple[str, ...] = ()
    who: str = field(default="", repr=False, compare=False)
    held_out: Mapping[str, Ledger] = field(default_factory=dict, repr=False, compare=False)
    preprocessing: Mapping[str, Any] | None = None
    trained: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Remember which weights the run ended with: whatever continues it must begin with these."""
        self.trained = note_trained(self.model)
        hashes = model_hashes(stored_weights(_packed(self.model)), self.preprocessing)
        self.certificate = replace(self.certificate, model=hashes)

    def summary(self) -> dict[str, Any]:
        """What `veil train --json` prints.

        Returns:
            `run`, `method`, `metrics`, `privacy`, `seconds` and `stopped`.
        """
        certificate = self.certificate
        return {
            "run": str(self.folder) if self.folder else None,
            "method": self.plan.method,
            "metrics": self.metrics.as_json() if self.metrics else None,
            "privacy": {
                "epsilon": certificate.epsilon,
                "delta": certificate.delta,
                "relation": certificate.relation,
                "accountant": certificate.accountant,
                "by_group": dict(certificate.by_group),
                "by_owner": dict(certificate.by_owner),
                "unit": certificate.unit,
                "by_rows": dict(certificate.by_rows),
                "rows_together": self.plan.facts.rows_together,
            },
            "seconds": round(self.seconds, 3),
            "stopped": self.stopped,
        }

    def as_json(self) -> dict[str, Any]:
        """Everything that a report shows, as JSON values: public, released, or declared public.

        Returns:
            What `summary` returns, and plan, certificate, history and settings.
        """
        plan, facts = self.plan, self.plan.facts
        own = {"name": plan.method, "family": "your own", "private": plan.private, "relation": None, "summary": ""}
        task, classes = facts.task, facts.classes
        if facts.heads:  # what is said of one answer is said of the first head
            known = facts.heads[0][1]
            task, classes = "regression" if known is None else "classification", known or ()
        about = next((row for row in methods.table() if row["name"] == plan.method), own)
        return {
            **self.summary(),
            "about": about,
            "task": task,
            "classes": list(classes),
            "sizes": facts.sizes,
            "groups": [{"name": n, "rows": r} for n, r in zip(facts.groups, facts.group_sizes, strict=True)],
            "owners": [{"name": n, "rows": r} for n, r in zip(facts.owners, facts.owner_sizes, strict=True)],
            "certificate": self.certificate.as_json(),
            "history": {name: _plain(self.history[name]) for name in self.history.columns},
            "settings": plan.settings.model_dump(exclude={"seed"}),
            "seed_given": plan.settings.seed is not None,
            "steps": plan.steps,
            "details": dict(plan.details),
            "findings": dict(self.findings),
            "effects": None if self.effects is None else dict(self.effects),
            "columns": [dict(use) for use in self.columns],
            "remarks": list(self.remarks),
            "config": dict(self.config),
            "budget": self._budget(),
            "parameters": sum(p.numel() for p in self.model.parameters() if p.requires_grad),
            "versions": {"veil": veil.__version__, "torch": torch.__version__, "python": platform.python_version()},
        }

    def _budget(self) -> dict[str, Any] | None:
        """How the data set's budget stood, where the run was charged to one; where the store is stays out of it."""
        path = None if self.folder is None else self.folder / "budget.json"
        if path is None or not path.exists():
            return None
        record = json.loads(path.read_text(encoding="utf-8"))
        return {name: record[name] for name in ("dataset", "run", "charged", "limits") if name in record}

    def report(self, path: Path | str) -> Path:
        """Write the HTML report, with the audits of the run's folder if it has any.

        Args:
            path: The file to write.

        Returns:
            Its path.
        """
        from veil.report import read_audits, write_report

        return write_report([self.as_json()], Path(path), audits=read_audits([self.folder] if self.folder else []))

    def _repr_html_(self) -> str:
        from veil.report import render_summary

        return render_summary(self.as_json())

    def save(self, folder: Path | str) -> Path:
        """Write model, certificate, history, metrics, configuration, report and model card into a folder.

        Args:
            folder: The folder; it is made where it does not exist.

        Returns:
            The folder.

        Raises:
            InputError: The weights of the model were changed after the run.
        """
        from veil.report import read_audits, write_card

        require(
            weights_check(self.model) == self.trained,
            "Cannot save: the model was changed after the run, which the certificate does not cover. Load the run's "
            "final weights.",
        )
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        began_here = self.folder == folder and (folder / "config.toml").exists()
        self.folder = folder
        write_whole(folder / WEIGHTS_FILE, _packed(self.model), FOR_ALL)
        if self.preprocessing is not None:
            _write_json(folder / PREPROCESSING_FILE, dict(self.preprocessing))
        self.certificate.save(folder / "certificate.json")
        write_whole(folder / "history.parquet", self.history.to_parquet(None, index=False), FOR_ALL)
        _write_json(folder / "metrics.json", self.summary())
        if not began_here:  # else it says what the run was started with
            write_whole(folder / "config.toml", to_toml(self.configuration()).encode(), FOR_ALL)
        if self.effects is not None:
            _write_json(folder / "effects.json", dict(self.effects))
        outcomes = None if self.metrics is None else self.metrics.outcomes
        counts = getattr(self.metrics, "scores", None) if outcomes is None else score_counts(outcomes)
        if counts is not None:
            _write_json(folder / SCORES_FILE, counts)
        _write_json(folder / "run.json", self._record())
        self.report(folder / "report.html")
        write_card(self.as_json(), folder, read_audits([folder]))
        return folder

    def _record(self) -> dict[str, Any]:
        """`as_json` with as many steps of the history as a report draws; `history.parquet` has every step."""
        from veil.report.cleaning import MOST_POINTS, thin

        record = self.as_json()
        return {**record, "history": thin(record["history"], MOST_POINTS)}

    def configuration(self) -> dict[str, Any]:
        """What started the run, for `config.toml`; a seed is kept only where a person gave it.

        Returns:
            Method, command-line options and settings.
        """
        settings = self.plan.settings.model_dump(exclude_none=True)
        return {"method": self.plan.method, **dict(self.config), "settings": settings}


OWN_MODEL = (
    "the run trained a model of your own, and its folder holds weights alone: build the module and call "
    "veil.load(folder).load_weights(module)"
)


@dataclass(frozen=True)
class LoadedRun:
    """A run read back from its folder; reading executes no code.

    `record` is what `Run.as_json` gave, with a few hundred steps of a longer history; `history` has every step.
    """

    folder: Path
    record: Mapping[str, Any]
    certificate: Certificate
    history: pd.DataFrame

    def report(self, path: Path | str) -> Path:
        """Write the HTML page (with the audits of the run's folder, if it has any) and return its path."""
        from veil.report import read_audits, write_report

        return write_report([dict(self.record)], Path(path), audits=read_audits([self.folder]))

    def _repr_html_(self) -> str:
        from veil.report import render_summary

        return render_summary(self.record)

    @property
    def model(self) -> nn.Module:
        """The trained model; of a run of your own model this is an error that says how to get it."""
        raise InputError(OWN_MODEL)

    def predict(self, rows: Any) -> Any:
        """Predictions; of a run of your own model this is an error that says how to get them."""
        raise InputError(OWN_MODEL)

    def load_weights(self, model: nn.Module) -> nn.Module:
        """Put the run's weights into a module of the same shape."""
        model.load_state_dict(load_file(self.folder / WEIGHTS_FILE))
        return model


def _packed(model: nn.Module) -> bytes:
    """A model's weights as a safetensors file; tied weights share memory, so each gets a place of its own."""
    return save({name: value.detach().clone().contiguous() for name, value in model.state_dict().items()})


def weights_check(model: nn.Module) -> str:
    """A checksum of a model's weights."""
    check = hashlib.blake2b(digest_size=16)
    for name, value in model.state_dict().items():
        check.update(name.encode())
        if isinstance(value, torch.Tensor):
            check.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return check.hexdigest()


# Checksums of the weights that trainings of this process ended with, or were interrupted at.
_TRAINED: set[str] = set()


def note_trained(model: nn.Module) -> str:
    """Remember a model's weights as those of a training, so that another one which begins with them is noticed."""
    check = weights_check(model)
    _TRAINED.add(check)
    return check


def trained_before(model: nn.Module) -> bool:
    """Whether a training of this process left a model with these weights."""
    return weights_check(model) in _TRAINED


def load(folder: Path | str) -> LoadedRun:
    """Read a run folder. The module itself is yours to build: weights come by `load_weights`.

    Args:
        folder: What `out=` named.

    Returns:
        Certificate, metrics, history and configuration of the run.

    Raises:
        InputError: The folder holds no finished run.
    """
    folder = Path(folder)
    require((folder / "certificate.json").exists(), f"{folder} contains no finished run: certificate.json is missing")
    require(not under_way(folder), f"the run in {folder} is not finished: continue it with --resume")
    try:
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        history = pd.read_parquet(folder / "history.parquet")
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} is not a readable run: {error}") from error
    return LoadedRun(folder, record, Certificate.load(folder / "certificate.json"), history)


def _plain(column: pd.Series) -> list[Any]:
    """A column as JSON values; what is missing or not finite is None."""

    def clean(value: Any) -> Any:
        if isinstance(value, list):
            return [clean(item) for item in value]
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        return value

    return [clean(value) for value in column.tolist()]


def _write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_whole(path, text.encode(), FOR_ALL)
