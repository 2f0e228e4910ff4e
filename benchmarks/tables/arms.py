"""Arms: what is compared. All take the same rows, the same public facts and the same δ, and give probabilities."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables.data import Task
from benchmarks.tables.rows import group_weights, one_hot
from veil.errors import InputError, require

if TYPE_CHECKING:
    from veil.tables.schema import Schema

ROOT = Path(__file__).parents[2]
Family = Literal["not private", "peer", "veil"]
FitPredict = Callable[[Task, float, int], NDArray[np.float64]]


@dataclass(frozen=True)
class Arm:
    """One thing to compare. `fit` takes task, ε and seed; None means that the peers' environment does it.

    `by_group` says that a fit depends on the definition of groups, `random` that it depends on its seed.
    """

    name: str
    title: str
    family: Family
    fit: FitPredict | None = None
    by_group: bool = False
    random: bool = True

    @property
    def private(self) -> bool:
        """Whether ε means something here."""
        return self.family != "not private"

    def missing(self) -> str | None:
        """Why it cannot be measured with this version of the code, as one sentence."""
        if self.name.startswith("auto") and "auto" not in _methods():
            return "This version of Veil has no method `auto`: it is left out."
        return None


def constant(task: Task, epsilon: float, seed: int) -> NDArray[np.float64]:
    """The same answer for everybody: shares of the classes among training rows."""
    labels = task.train[task.target].to_numpy(dtype=str)
    shares = np.array([(labels == name).mean() for name in task.classes])
    return np.tile(shares, (len(task.test), 1))


def logistic(task: Task, epsilon: float, seed: int, *, weighted: bool = False) -> NDArray[np.float64]:
    """Standardised numbers and one column per word; scikit-learn's defaults."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    numbers = list(task.numeric)
    scaler = StandardScaler().fit(task.train[numbers].to_numpy(dtype=np.float64))
    rows, measured = (
        np.hstack([scaler.transform(frame[numbers].to_numpy(dtype=np.float64)), one_hot(frame, task.categories)])
        for frame in (task.train, task.test)
    )
    weights = group_weights(task.train, task.group_columns) if weighted else None
    model = LogisticRegression(max_iter=2000).fit(rows, task.train[task.target].to_numpy(dtype=str), weights)
    found = np.zeros((len(measured), len(task.classes)))
    found[:, np.searchsorted(task.classes, model.classes_)] = model.predict_proba(measured)
    return found


def veil_train(task: Task, epsilon: float, seed: int, *, options: tuple[str, ...]) -> NDArray[np.float64]:
    """`veil train TABLE --target … --group … --epsilon … --delta … --schema … --holdout 0`, then its predictor.

    What comes back are probabilities, or numbers where the target is a number. The command runs in this
    process, so that its time is not that of imports.
    """
    from veil.cli.app import app
    from veil.tables import load_predictor

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        task.train.to_parquet(folder / "train.parquet", index=False)
        (folder / "schema.toml").write_text(schema_of(task).to_toml(), encoding="utf-8")
        words = [
            "train",
            str(folder / "train.parquet"),
            "--target",
            task.target,
            "--group",
            ",".join(task.group_columns),
        ]
        words += ["--schema", str(folder / "schema.toml"), "--epsilon", str(epsilon), "--delta", str(task.delta)]
        words += ["--holdout", "0", "--seed", str(seed), "--out", str(folder / "run"), "--quiet", *options]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            app(words, standalone_mode=False)
        promised = json.loads((folder / "run" / "certificate.json").read_text(encoding="utf-8"))
        kept = promised["epsilon"] <= epsilon and promised["delta"] <= task.delta
        require(kept, f"the certificate has ε = {promised['epsilon']} and δ = {promised['delta']}: more than was asked")
        predictor = load_predictor(folder / "run")
        if task.target_bounds is not None:
            return np.asarray(predictor.predict(task.test), dtype=np.float64)
        order = [predictor.classes.index(name) for name in task.classes]
        return predictor.predict_proba(task.test)[:, order]


def dp_sgd_tuned(task: Task, epsilon: float, seed: int) -> NDArray[np.float64]:
    """dp-sgd with the learning rate, batch and epochs that were best on validation rows of the table."""
    from benchmarks.tables.tuned import tuned_dp_sgd

    return tuned_dp_sgd(task, epsilon, seed)


def schema_of(task: Task) -> Schema:
    """The public facts as a schema of Veil; columns that only make groups are no features."""
    from veil.tables.schema import Schema, SchemaColumn

    columns = []
    for name in map(str, task.train.columns):
        if name == task.target:
            low, high = task.target_bounds or (None, None)
            columns.append(SchemaColumn(name, "target", low, high, values=task.classes or None))
        elif name in task.numeric:
            columns.append(SchemaColumn(name, "numeric", *task.numeric[name], missing="refuse"))
        elif name in task.group_columns:
            words = tuple(sorted(set(task.train[name]) | set(task.test[name])))
            columns.append(SchemaColumn(name, "group", values=words, feature=name in task.categories))
        elif name in task.categories:
            columns.append(SchemaColumn(name, "category", values=task.categories[name]))
        else:
            columns.append(SchemaColumn(name, "ignore"))
    return Schema(tuple(columns))


def _veil(name: str, *options: str, by_group: bool = True) -> Arm:
    return Arm(name, f"Veil `{name}`", "veil", partial(veil_train, options=options), by_group=by_group)


_ARMS = (
    Arm("constant", "constant answer", "not private", constant, random=False),
    Arm("logistic", "logistic", "not private", logistic, random=False),
    Arm(
        "logistic-weighted",
        "logistic, group-weighted",
        "not private",
        partial(logistic, weighted=True),
        by_group=True,
        random=False,
    ),
    Arm("lightgbm", "LightGBM", "not private", random=False),
    Arm("lightgbm-weighted", "LightGBM, group-weighted", "not private", by_group=True, random=False),
    Arm("dp-ebm", "DP-EBM", "peer"),
    Arm("diffprivlib", "diffprivlib logistic", "peer"),
    Arm("opacus-logistic", "opacus logistic", "peer"),
    Arm("opacus-mlp", "opacus MLP", "peer"),
    Arm("jax-privacy", "JAX-Privacy MLP", "peer"),
    _veil("auto", "--method", "auto"),
    _veil("auto-overall", "--method", "auto", "--aim", "overall"),
    replace(
        _veil("auto-merged", "--method", "auto", "--merge-groups-below", "50"),
        title="Veil `auto`, groups below 50 rows merged",
    ),
    _veil("best", "--preset", "best"),
    _veil("asc", "--method", "asc"),
    # It does nothing with groups: one fit is measured with every definition of them.
    _veil("dp-sgd", "--method", "dp-sgd", by_group=False),
    Arm("dp-sgd-tuned", "Veil `dp-sgd`, tuned", "veil", dp_sgd_tuned),
)
ARMS: Mapping[str, Arm] = {arm.name: arm for arm in _ARMS}


def arms_named(names: tuple[str, ...], known: Mapping[str, Arm] = ARMS) -> list[Arm]:
    """Arms by their names; all of them where none is named."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f'unknown arm "{unknown[0]}": known are {", ".join(known)}')
    return [known[name] for name in names or known]


@cache
def _methods() -> list[str]:
    from veil.methods import names

    return names()


@cache
def version_of(arm: Arm) -> str:
    """What makes a stored figure out of date: the code of Veil, or the version of a package."""
    from importlib.metadata import version

    if arm.family != "veil":
        return f"scikit-learn {version('scikit-learn')}"
    import veil

    digest = hashlib.sha256()
    for file in sorted(Path(veil.__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return f"veil {veil.__version__}, code {digest.hexdigest()[:12]}"
