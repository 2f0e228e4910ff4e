"""The disparate-impact family on Adult, Dutch and MNIST: `python -m experiments.fdpg tabular|mnist|accounting`.

`tabular` writes docs/results/fdpg-tabular.{json,md} with figures, `mnist` docs/results/fdpg-mnist.{json,md}; runs that
the JSON file holds already are not made again. `accounting` writes the table of ε in docs/methods/fdpg.md.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import veil
from experiments import fdpg_accounting, fdpg_page
from veil.datasets.adult import load_adult_split
from veil.datasets.dutch import load_dutch
from veil.datasets.mnist import load_unbalanced_mnist
from veil.datasets.split import Split
from veil.metrics.gradient_variance import group_gradients
from veil.metrics.parity import evaluate_parity
from veil.problem import Problem
from veil.training.fitting import row_losses

METHODS = ("dp-sgd", "dpsur", "dpsgd-f", "dp-is-sgd", "global-adapt", "disk", "fdpg")


@dataclass(frozen=True)
class Choice:
    """One line of a table: a method, its options, and settings that differ from the experiment's."""

    label: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """One block of a table: which rows, which model, how it is trained."""

    name: str
    title: str
    compared: tuple[str, ...] | None
    load: Callable[[int], Split]
    model: Callable[[], nn.Module]
    settings: dict[str, Any]
    choices: tuple[Choice, ...]
    notes: str


def standardised(split: Split) -> Split:
    """Every column with mean 0 and variance 1 over the training rows. Not private: the page says so."""
    mean, spread = split.train.inputs.mean(dim=0), split.train.inputs.std(dim=0)
    spread[spread < 1e-6] = 1.0

    def scaled(problem: Problem) -> Problem:
        return replace(problem, inputs=(problem.inputs - mean) / spread)

    return Split(scaled(split.train), scaled(split.test))


def choices(clip: float, fdpg: dict[str, Any], dpsur: dict[str, Any]) -> tuple[Choice, ...]:
    """The twin and the methods of the paper's Table 1."""
    own = {"fdpg": fdpg, "dpsur": dpsur}
    return (Choice("erm", "erm"), *(Choice(m, m, {"clip": clip, **own.get(m, {})}) for m in METHODS))


def logistic() -> nn.Module:
    """Logistic regression from zero weights."""
    layer = nn.Linear(109, 2)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def two_hidden() -> nn.Module:
    """The paper's network for Dutch: two hidden layers of 256."""
    return nn.Sequential(nn.Linear(74, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))


def small_cnn() -> nn.Module:
    """A small network for 28 × 28 pixels, 7,946 weights: halved pixels, two convolutions, one linear layer."""
    return nn.Sequential(
        nn.AvgPool2d(2),
        nn.Conv2d(1, 16, 5, stride=2),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(288, 10),
    )


ADULT_FDPG = {"norm_bound": 10.0, "step_size": 0.2, "sustained": 1.5, "cap": 1.8, "memory": 0.8}
ADULT = Setting(
    name="adult",
    title="Adult, balanced by sex: ε = 3.4, δ = 1e-6, 20 epochs, batch 256, learning rate 0.01, C = 0.5 (the paper's)",
    compared=None,
    load=lambda seed: standardised(load_adult_split(variant="fdpg", seed=seed)),
    model=logistic,
    settings={"epsilon": 3.4, "delta": 1e-6, "epochs": 20.0, "batch_size": 256, "learning_rate": 0.01},
    choices=(
        *choices(0.5, ADULT_FDPG, {"test_clip": 0.02}),
        Choice("auto-s", "auto-s"),
        Choice("fdpg, normalise", "fdpg", {**ADULT_FDPG, "bounding": "normalise"}),
        *(
            Choice(f"fdpg, {notion}", "fdpg", {**ADULT_FDPG, "clip": 0.5, "step_size": 2.0, "notion": notion})
            for notion in ("demographic-parity", "equal-opportunity", "equalised-odds")
        ),
        Choice("dp-sgd, C = 0.1", "dp-sgd", {"clip": 0.1}),
        Choice("dp-sgd, C = 1", "dp-sgd", {"clip": 1.0}),
    ),
    notes="logistic regression on 109 standardised columns, n = 23,512",
)
ADULT_FASTER = replace(
    ADULT,
    name="adult, learning rate 0.1",
    title="Adult again, every method with learning rate 0.1",
    settings={**ADULT.settings, "learning_rate": 0.1},
    choices=choices(0.5, ADULT_FDPG, {"test_clip": 0.02}),
)
DUTCH = Setting(
    name="dutch",
    title="Dutch: ε = 2.3, δ = 1e-6, 20 epochs, batch 256, learning rate 0.8, C = 0.1 (the paper's)",
    compared=None,
    load=lambda seed: load_dutch(seed=seed),
    model=two_hidden,
    settings={"epsilon": 2.3, "delta": 1e-6, "epochs": 20.0, "batch_size": 256, "learning_rate": 0.8},
    choices=choices(
        0.1,
        {"norm_bound": 5.0, "step_size": 0.2, "sustained": 1.3, "cap": 1.5, "memory": 0.8},
        {"test_clip": 0.05},
    ),
    notes="two hidden layers of 256 on 74 columns of 0 and 1, n = 48,336",
)
DUTCH_SLOWER = replace(
    DUTCH,
    name="dutch, learning rate 0.08",
    title="Dutch again, with learning rate 0.08: DP-SGD trained as little as in the paper",
    settings={**DUTCH.settings, "learning_rate": 0.08},
    choices=tuple(choice for choice in DUTCH.choices if choice.label in ("erm", "dp-sgd", "fdpg")),
)
MNIST = Setting(
    name="mnist",
    title="MNIST with 500 eights: ε = 5.9, δ = 1e-6, batch 256, learning rate 0.05, C = 1",
    compared=("2", "8"),
    load=lambda seed: load_unbalanced_mnist(variant="fdpg", seed=seed),
    model=small_cnn,
    settings={"epsilon": 5.9, "delta": 1e-6, "epochs": 15.0, "batch_size": 256, "learning_rate": 0.05},
    choices=choices(
        1.0,
        {"norm_bound": 10.0, "step_size": 0.2, "sustained": 3.0, "cap": 6.0, "memory": 0.8, "statistic_noise": 5.0},
        {"test_clip": 0.05},
    ),
    notes="a network of 7,946 weights (two convolutions with tanh, one linear layer), n = 54,649; the paper trains a "
    "larger one for 60 epochs at learning rate 0.01",
)
PAGES = {"tabular": (ADULT, ADULT_FASTER, DUTCH, DUTCH_SLOWER), "mnist": (MNIST,)}


def train(setting: Setting, choice: Choice, split: Split, seed: int) -> dict[str, Any]:
    """One run as a record: figures on test rows, the honest ε, and per-group gradients of the last model (private)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = setting.model()
    run = veil.fit(
        model,
        split.train,
        method=choice.method,
        options=choice.options,
        evaluation=split.test,
        seed=seed,
        momentum=0.0,
        **(setting.settings | choice.settings),
    )
    assert run.metrics is not None
    last = run.history.iloc[-1]
    record: dict[str, Any] = {
        "metrics": run.metrics.as_json(),
        "epsilon": run.certificate.epsilon,
        "by_group": dict(run.certificate.by_group),
        "details": dict(run.plan.details),
        "steps": run.plan.steps,
        "seconds": run.seconds,
        "gradients": group_gradients(model, row_losses, split.train).as_json(),
    }
    if len(split.train.public.classes) == 2:
        record["parity"] = evaluate_parity(model, split.test).as_json()
    if "rates" in last:
        record["rates"] = [float(rate) / run.plan.details["uniform_rate"] for rate in last["rates"]]
        record["cap_reached"] = [float(x) for x in sum(run.history["cap_reached"].map(torch.tensor)) / len(run.history)]
    if "accepted" in last:
        record["accepted"] = float(run.history["accepted"].map(lambda value: value[0]).mean())
    return record


def collect(
    setting: Setting, seeds: Iterable[int], known: dict[str, Any], keep: Callable[[], None], only: str | None
) -> None:
    """All lines and seeds of a block, seed by seed; `keep` stores what is there after every run."""
    block = known.setdefault(setting.name, {"runs": {}})
    block.update(
        title=setting.title,
        notes=setting.notes,
        settings=setting.settings,
        compared=setting.compared,
        options={choice.label: choice.options for choice in setting.choices},
    )
    wanted = [choice for choice in setting.choices if only is None or choice.label in only.split(",")]
    for seed in seeds:
        split: Split | None = None
        for choice in wanted:
            runs = block["runs"].setdefault(choice.label, {})
            if str(seed) in runs:
                continue
            split = split or setting.load(seed)
            block["groups"] = list(split.train.public.groups)
            runs[str(seed)] = train(setting, choice, split, seed)
            figures = runs[str(seed)]["metrics"]
            print(f"{setting.name} {choice.label} seed {seed}: {figures['accuracy']:.4f}", flush=True)
            keep()


def main() -> None:
    """Run what is asked for and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", choices=(*PAGES, "accounting"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="leave out the seeds before this one")
    parser.add_argument("--blocks", help="only these blocks, separated by semicolons")
    parser.add_argument("--only", help="only these lines, separated by commas")
    parser.add_argument("--epochs", type=float, help="another number of epochs")
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.page == "accounting":
        fdpg_accounting.write(given.docs / "methods" / "fdpg.md")
        return
    folder = given.docs / "results"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"fdpg-{given.page}.json"
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    versions = {"veil": veil.__version__, "torch": torch.__version__, "python": platform.python_version()}

    def keep() -> None:
        content = {**known, "versions": versions}
        file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    for setting in PAGES[given.page]:
        if given.blocks is None or setting.name in given.blocks.split(";"):
            chosen = setting
            if given.epochs is not None:
                chosen = replace(setting, settings={**setting.settings, "epochs": given.epochs})
            collect(chosen, range(given.first_seed, given.seeds), known, keep, given.only)
    keep()
    fdpg_page.write(given.page, known, folder)


if __name__ == "__main__":
    main()
