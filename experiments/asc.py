"""ASC on unbalanced MNIST and Adult: `python -m experiments.asc umnist|adult` writes docs/results/asc-*.md.

Every finished run is stored at once in the JSON file beside the page, so a stopped experiment goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import veil
from veil.datasets import load_adult
from veil.datasets.mnist import load_unbalanced_mnist
from veil.models import build_model
from veil.problem import Problem
from veil.randomness import Seed
from veil.tabular import fit_encoding, table_problem
from veil.training import fit

RESULTS = Path(__file__).parents[1] / "docs" / "results"


@dataclass(frozen=True)
class Arm:
    """One line of the table: a method with its options and settings, and the paper's figures where it has them."""

    label: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    paper: str = "–"


PAPER_ASC = {"sampling": "wor", "paper_losses": True, "loss_noise": 25.0}
RDP = {"accountant": "rdp"}
REPLACE = {"neighbours": "replace-one"}
UMNIST = (
    Arm("dp-sgd, as the paper", "dp-sgd", {"sampling": "wor"}, RDP, "20.4 / 84.8"),
    *(
        Arm(f"asc, as the paper, step size {size:g}", "asc", PAPER_ASC | {"step_size": size}, RDP, "59.2 / 84.5")
        for size in (1.0, 0.5, 0.2)
    ),
    Arm("dp-sgd, wor by PLD", "dp-sgd", {"sampling": "wor"}),
    Arm("asc, wor by PLD", "asc", {"sampling": "wor"}),
    Arm("dp-sgd, poisson", "dp-sgd", REPLACE),
    Arm("asc, poisson", "asc", REPLACE),
    Arm("asc, poisson, batch 1024", "asc", REPLACE, {"batch_size": 1024}),
    Arm("azb, as the paper", "azb", {"sampling": "wor"}, RDP, "0.8 / 11.6"),
    Arm("azb-prop, as the paper", "azb-prop", {"sampling": "wor"}, RDP, "3.6 / 17.0"),
)
ADULT = (
    Arm("erm", "erm"),
    Arm("dp-sgd", "dp-sgd"),
    Arm("dp-is-sgd", "dp-is-sgd"),
    Arm("azb-prop", "azb-prop"),
    Arm("asc", "asc"),
)


@dataclass(frozen=True)
class Experiment:
    """Data, model, arms and the settings that all arms share."""

    name: str
    title: str
    about: str
    arms: tuple[Arm, ...]
    settings: dict[str, Any]
    model: str

    def data(self) -> tuple[Problem, Problem]:
        """Training rows and public test rows."""
        if self.name == "umnist":
            split = load_unbalanced_mnist()
            return split.train, split.test
        train, test = load_adult()
        encoding = fit_encoding(train, {"income", "fnlwgt"})
        problem = table_problem(train, encoding, "income", ["sex", "income"])
        return problem, table_problem(test, encoding, "income", ["sex", "income"], like=problem.public)


EXPERIMENTS = {
    "umnist": Experiment(
        "umnist",
        "Unbalanced MNIST: ASC beside DP-SGD and aZB",
        "Digit 8 cut to 474 rows (n = 49,208), groups are digits, CNN of the paper (8,954 parameters with pooling), "
        "ε = 1, δ = 1/(2n), replace-one. Worst-group / average-group accuracy on the 10,000 test images.",
        UMNIST,
        {"epsilon": 1.0, "batch_size": 256, "epochs": 60, "learning_rate": 0.1, "momentum": 0.0},
        "asc-cnn",
    ),
    "adult": Experiment(
        "adult",
        "Adult: ASC beside DP-SGD, groups sex × income",
        "UCI Adult, official split, groups sex × income, MLP 2 × 64, ε = 1, δ = 1/(2n), add-remove.",
        ADULT,
        {"epsilon": 1.0, "batch_size": 512, "epochs": 20, "learning_rate": 0.5, "momentum": 0.9},
        "mlp",
    ),
}


def run_arm(experiment: Experiment, arm: Arm, seed: int, data: tuple[Problem, Problem], changes: dict[str, Any]) -> Any:
    """Train once and return what the page needs."""
    train, test = data
    settings = experiment.settings | arm.settings | changes
    model = build_model(experiment.model, train.public, Seed.from_int(seed))
    started = time.perf_counter()
    run = fit(model, train, method=arm.method, options=arm.options, evaluation=test, seed=seed, **settings)
    assert run.metrics is not None
    curve = run.history[run.history["worst_group_accuracy"].notna()]
    return {
        "arm": arm.label,
        "seed": seed,
        "settings": settings,
        "steps": run.plan.steps,
        "seconds": round(time.perf_counter() - started, 1),
        "noise_multiplier": run.plan.details.get("noise_multiplier"),
        "epsilon": run.certificate.epsilon,
        "epsilon_by_group": dict(run.certificate.by_group),
        "metrics": run.metrics.as_json(),
        "curve": curve[["step", "worst_group_accuracy", "average_group_accuracy"]].values.tolist(),
    }


def write_page(experiment: Experiment, known: list[dict[str, Any]], command: str) -> None:
    """The Markdown page from the stored runs alone."""
    lines = [f"# {experiment.title}", "", experiment.about, ""]
    lines += ["| arm | paper WGA / AVG | worst group | average | overall | noise σ/C | ε | seeds | steps | s per run |"]
    lines += ["|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for arm in experiment.arms:
        runs = [run for run in known if run["arm"] == arm.label]
        if not runs:
            continue
        noise = runs[0]["noise_multiplier"]
        epsilon = runs[0]["epsilon"]
        figures = (spread([r["metrics"][k] for r in runs]) for k in FIGURES)
        lines.append(
            f"| {arm.label} | {arm.paper} | {' | '.join(figures)} | {'–' if noise is None else f'{noise:.2f}'} | "
            f"{'∞' if epsilon is None else f'{epsilon:.3f}'} | {len(runs)} | {runs[0]['steps']:,} | "
            f"{statistics.mean(r['seconds'] for r in runs):.0f} |"
        )
    lines += ["", "Figures are percentages, mean ± standard deviation over seeds. Settings shared by all arms:", ""]
    lines += [f"    {json.dumps(experiment.settings)}", "", "Written by:", "", f"    {command}", ""]
    lines += [f"Veil {veil.__version__}, torch {torch.__version__}, {platform.machine()}, one thread per run.", ""]
    (RESULTS / f"asc-{experiment.name}.md").write_text("\n".join(lines), encoding="utf-8")


FIGURES = ("worst_group_accuracy", "average_group_accuracy", "accuracy")


def spread(values: list[float]) -> str:
    """mean ± standard deviation in percent."""
    mean = 100 * statistics.mean(values)
    return f"{mean:.1f} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else f"{mean:.1f}"


def main() -> None:
    """Run what is missing, page by page."""
    parser = argparse.ArgumentParser(prog="python -m experiments.asc")
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--only", default="", help="arms, separated by semicolons")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    experiment = EXPERIMENTS[asked.experiment]
    store = RESULTS / f"asc-{experiment.name}.json"
    data = experiment.data()
    chosen = [arm.strip() for arm in asked.only.split(";") if arm.strip()]
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        for arm in experiment.arms:
            known = json.loads(store.read_text()) if store.exists() else []
            if (chosen and arm.label not in chosen) or any(r["arm"] == arm.label and r["seed"] == seed for r in known):
                continue
            found = run_arm(experiment, arm, seed, data, {})
            # Another process may have stored a run meanwhile: read again before writing.
            known = [*(json.loads(store.read_text()) if store.exists() else []), found]
            part = store.with_suffix(f".{os.getpid()}.tmp")
            part.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
            part.replace(store)
            write_page(experiment, known, f"python -m experiments.asc {experiment.name} --seeds {asked.seeds}")
            print(arm.label, seed, found["metrics"]["worst_group_accuracy"], found["seconds"], flush=True)


if __name__ == "__main__":
    main()
