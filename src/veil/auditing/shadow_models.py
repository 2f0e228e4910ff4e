"""Shadow models: the same plan on random halves of the rows, in parallel, each kept on disk as soon as it is done.

A shadow leaves each row out by a fair coin. Rows that are left out are holes, so that every public constant (rates,
bounds, noise, divisor) is that of the plan and each row is in exactly the setting of the guarantee.
Shadow models are trained on private rows and nothing of them may be released: files are readable by their owner alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veil.accounting import Ledger
from veil.errors import InputError, require
from veil.foundation.files import OWNER_ONLY, write_whole
from veil.foundation.parallel import WORKER_DIED, Workers, in_order
from veil.foundation.randomness import Seed
from veil.models.applying import batches, evaluating
from veil.models.calling import call, scores
from veil.plans import LossFunction, Plan
from veil.problem import Problem
from veil.training.fitting import carry_out
from veil.training.loop import Loop
from veil.training.losses import row_losses

Floats = NDArray[np.float64]
BuildModel = Callable[[Problem, Seed], nn.Module]


@dataclass(frozen=True)
class Shadows:
    """Scores of every row under every shadow, (shadows, rows), and which rows each was trained on."""

    scores: Floats
    inside: NDArray[np.bool_]
    losses: Floats

    def by_unit(self, problem: Problem) -> tuple[Shadows, NDArray[np.int64]]:
        """Mean scores of each unit of privacy that is there, a row or a person, and the first row of each."""
        unit_of = problem.by_unit()
        firsts = np.flatnonzero(problem.present & (unit_of == np.arange(len(unit_of))))
        size = np.bincount(unit_of, minlength=len(unit_of))[firsts]

        def mean(of_rows: Floats) -> Floats:
            sums = np.stack([np.bincount(unit_of, weights=line, minlength=len(unit_of)) for line in of_rows])
            return np.asarray(sums[:, firsts] / size)

        return Shadows(mean(self.scores), self.inside[:, firsts], mean(self.losses)), firsts


@dataclass(frozen=True)
class ShadowTraining:
    """What all shadow models share: the plan, the rows, how a model is built, and the folder that keeps them.

    Shadow number i depends on the seed and i alone, so more of them can be added later.
    """

    plan: Plan
    problem: Problem
    model: BuildModel
    folder: Path
    seed: int = 0
    loss: LossFunction = row_losses

    def train(self, index: int) -> int:
        """Train one shadow model, score all rows, and write its file atomically."""
        torch.set_num_threads(1)
        plan, problem = self.plan, self.problem
        source = Seed(Seed.from_int(self.seed).key("shadow model", index))
        coins = source.generator("shadow rows", 0).random(len(problem.cell_of)) < 0.5
        inside = problem.present & coins[problem.by_unit()]
        trained = self.model(problem, source)
        ledger = Ledger(plan.terms()) if plan.private else None
        carry_out(Loop(trained, replace(problem, present=inside), plan, self.loss, source, ledger))
        scores, losses = score_rows(trained, problem, self.loss)
        target = _file(self.folder, index)
        partial = target.with_suffix(f".{os.getpid()}.part")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_ONLY), "wb") as file:
            np.savez_compressed(file, scores=scores, losses=losses, inside=inside)
        partial.replace(target)
        return index


def train_shadows(
    training: ShadowTraining,
    shadows: int = 16,
    workers: int | Workers = 1,
    finished: Callable[[int], None] | None = None,
) -> Shadows:
    """Train the shadow models missing in the folder and load all: an interrupted audit continues."""
    plan, folder = training.plan, training.folder
    require(shadows >= 3, f"{shadows} shadow models: an attack needs at least 3")
    folder.mkdir(parents=True, exist_ok=True)
    _check_same(folder, _description(plan, training.problem, training.seed), _rows_mark(training.problem))
    missing = [index for index in range(shadows) if not _file(folder, index).exists()]
    for index, outcome in in_order(training.train, missing, workers):
        require(outcome is not None, f"shadow model {index} failed: {WORKER_DIED}")
        if finished is not None:
            finished(index)
    return read_shadows(folder, shadows)


def read_shadows(folder: Path, shadows: int) -> Shadows:
    """The first `shadows` files of a folder."""
    found = []
    for index in range(shadows):
        path = _file(folder, index)
        require(path.exists(), f"shadow model {index} is missing in {folder}: run the audit again to train it")
        with np.load(path) as record:
            found.append((record["scores"], record["inside"], record["losses"]))
    scores, inside, losses = (np.stack(part) for part in zip(*found, strict=True))
    return Shadows(scores, inside, losses)


def score_rows(model: nn.Module, problem: Problem, loss: LossFunction = row_losses) -> tuple[Floats, Floats]:
    """How sure a model is of each row's target (the log-odds; for numbers minus the loss), and each row's loss."""
    sure, losses = [], []
    with evaluating(model):
        for batch in batches(problem, np.arange(len(problem.cell_of))):
            lost = loss(model, batch).double()
            losses.append(lost)
            sure.append(log_odds(scores(call(model, batch[0])).double(), batch[1]) if problem.public.classes else -lost)
    return torch.cat(sure).numpy(), torch.cat(losses).numpy()


def log_odds(outputs: Tensor, targets: Tensor) -> Tensor:
    """log p/(1 − p) of each row's own class, stable at both ends.

    >>> log_odds(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor([2.])
    """
    own = outputs.gather(1, targets[:, None])[:, 0]
    others = outputs.scatter(1, targets[:, None], float("-inf"))
    return own - torch.logsumexp(others, dim=1)


def _file(folder: Path, index: int) -> Path:
    return folder / f"shadow-{index:04d}.npz"


def _description(plan: Plan, problem: Problem, seed: int) -> dict[str, str]:
    """The public identity of shadow models: the plan, the facts about the rows, the seed."""
    constants = plan.terms().as_json() if plan.private else {"method": plan.method, **plan.details}
    terms = json.dumps(constants, sort_keys=True, default=str)
    training = plan.settings.model_dump_json(exclude={"seed"})
    plan_sum = hashlib.blake2b((terms + training + repr(problem.public)).encode(), digest_size=16).hexdigest()
    return {"method": plan.method, "plan": plan_sum, "seed": str(seed)}


# Which rows each folder was used with, for as long as this process lives: a digest on disk would tell about rows.
_SECRET = os.urandom(32)
_ROWS_OF: dict[Path, bytes] = {}


def _rows_mark(problem: Problem) -> bytes:
    rows = hashlib.blake2b(problem.targets.numpy().tobytes(), key=_SECRET, digest_size=16)
    rows.update(problem.cell_of.tobytes())
    rows.update(problem.present.tobytes())
    rows.update(problem.inputs.numpy().tobytes())
    rows.update(problem.by_unit().tobytes())
    if problem.several is not None:
        rows.update(problem.several.first.tobytes())
        rows.update(problem.several.targets.numpy().tobytes())
        rows.update(problem.several.inputs.numpy().tobytes())
    return rows.digest()


def _check_same(folder: Path, description: dict[str, str], rows: bytes) -> None:
    """Reject a folder of other shadow models. Rows are compared within this process only."""
    path = folder / "shadows.json"
    known = description
    if path.exists():
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{path} is not readable: choose another folder for the shadow models") from error
    same = known == description and (not path.exists() or _ROWS_OF.get(folder.resolve(), rows) == rows)
    require(same, f"{folder} holds shadow models of another plan, other rows or another seed: choose another folder")
    write_whole(path, (json.dumps(description, indent=2) + "\n").encode())
    _ROWS_OF[folder.resolve()] = rows
