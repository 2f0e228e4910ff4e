"""The disparate-impact family on Adult, Dutch and MNIST: the runner of `veil reproduce fdpg-tabular` and `fdpg-mnist`.

Runs that the JSON file holds already are not made again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import veil
from experiments import fdpg_page
from experiments.runner import Asked
from experiments.runner.findings import Findings, open_findings, read_findings
from experiments.runner.problems import load_pair
from experiments.runner.running import constant_answer
from veil.errors import require
from veil.gradients import GradientEngine
from veil.metrics.parity import evaluate_parity
from veil.problem import Problem
from veil.training.fitting import row_losses
from veil.training.gradient_variance import group_gradients

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
    """One block of a table: which rows, which model, how it is trained; some lines may have more seeds than others."""

    name: str
    title: str
    compared: tuple[str, ...] | None
    data: str
    model: Callable[[], nn.Module]
    settings: dict[str, Any]
    choices: tuple[Choice, ...]
    notes: str
    first_seed: int = 0
    more_seeds: Mapping[str, int] = field(default_factory=dict)
    data_options: Mapping[str, Any] = field(default_factory=dict)


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


def two_hidden(activation: Callable[[], nn.Module]) -> nn.Module:
    """The paper's network for Dutch: two hidden layers of 256."""
    return nn.Sequential(nn.Linear(74, 256), activation(), nn.Linear(256, 256), activation(), nn.Linear(256, 2))


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
    data="adult-balanced",
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
ADULT_FRESH = replace(
    ADULT,
    name="adult, fresh seeds",
    title="Adult on fresh seeds: the paper's settings, FDPG's options from validation rows",
    choices=(
        Choice("erm", "erm"),
        Choice("dp-sgd", "dp-sgd", {"clip": 0.5}),
        Choice("fdpg", "fdpg", {"clip": 0.5, "step_size": 0.2, "sustained": 1.5}),
    ),
    notes="logistic regression on 109 standardised columns, n = 23,512. `step_size` 0.2 was chosen on a fifth of the "
    "training rows (seed 101), where the default rule had π 14.9 and DP-SGD 15.6: at this learning rate nearly every "
    "row of either sex is clipped, and lengths do not tell who is behind; seeds 60 to 64 were run once",
    first_seed=60,
    more_seeds=dict.fromkeys(("erm", "dp-sgd", "fdpg"), 5),
)
ADULT_DEFAULT = replace(
    ADULT,
    name="adult, default options",
    title="Adult, today's code: the paper's settings, FDPG with its default options",
    choices=(
        Choice("erm", "erm"),
        Choice("dp-sgd", "dp-sgd", {"clip": 0.5}),
        Choice("fdpg", "fdpg", {"clip": 0.5}),
        Choice("fdpg, rates alone", "fdpg", {"clip": 0.5, "restore_length": False}),
    ),
    notes="logistic regression on 109 standardised columns, n = 23,512. Nearly every row of either sex is clipped: "
    "updates are far shorter than the twin's, and lengths differ too little between the sexes for rates alone to close "
    "the gap. That FDPG gives updates their length back, and what it sustains, were decided on a fifth of the training "
    "rows of Adult and Dutch (seeds 101 and 102); seeds 70 to 74 were run once",
    first_seed=70,
    more_seeds=dict.fromkeys(("erm", "dp-sgd", "fdpg", "fdpg, rates alone"), 5),
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
    data="dutch",
    model=partial(two_hidden, nn.Tanh),
    settings={"epsilon": 2.3, "delta": 1e-6, "epochs": 20.0, "batch_size": 256, "learning_rate": 0.8},
    choices=choices(
        0.1,
        {"norm_bound": 5.0, "step_size": 0.2, "sustained": 1.36, "cap": 1.55, "memory": 0.8},
        {"test_clip": 0.05},
    ),
    notes="two hidden layers of 256 with tanh on 74 columns of 0 and 1, n = 48,336. The paper does not say which "
    "activation; the code of Esipova et al., whom it follows here, has tanh. It seems to have the names of the two "
    "groups swapped. FDPG's rule does not stop where costs are equal: `sustained` and `cap` decide where it "
    "ends. This is the second attempt: they were set between 1.3 and 1.45, which fell short on seeds 10 to 15, and "
    "those of the first attempt below; seeds 30 to 37 were run once",
    first_seed=30,
    more_seeds={"erm": 8, "dp-sgd": 8, "fdpg": 8},
)
DUTCH_FRESH = replace(
    DUTCH,
    name="dutch, fresh seeds",
    title="Dutch on fresh seeds: the paper's settings, FDPG's options from validation rows",
    choices=(
        Choice("erm", "erm"),
        Choice("dp-sgd", "dp-sgd", {"clip": 0.1}),
        Choice("fdpg", "fdpg", {"clip": 0.1, "step_size": 0.2, "sustained": 1.35}),
        Choice("fdpg, default options", "fdpg", {"clip": 0.1}),
    ),
    notes="the network of the block below. `step_size` 0.2 and `sustained` 1.35 (with `cap` = `sustained`, PLD) were "
    "chosen among three on a fifth of the training rows, seeds 101 and 102; seeds 60 to 64 were run once. With C = 0.1 "
    "every row is clipped, and men's gradients are longer by less than a third: the default gives this length back and "
    "closes a part of the gap only. With `step_size` rates go on until the cap",
    first_seed=60,
    more_seeds=dict.fromkeys(("erm", "dp-sgd", "fdpg"), 5),
)
DUTCH_DEFAULT = replace(
    DUTCH,
    name="dutch, default options",
    title="Dutch, today's code: the paper's settings, FDPG with its default options",
    choices=(
        Choice("erm", "erm"),
        Choice("dp-sgd", "dp-sgd", {"clip": 0.1}),
        Choice("fdpg", "fdpg", {"clip": 0.1}),
    ),
    notes="the network of the paper's settings for Dutch below. Seeds from 70 on were run once",
    first_seed=70,
    more_seeds=dict.fromkeys(("erm", "dp-sgd", "fdpg"), 5),
)
DUTCH_FIRST = replace(
    DUTCH,
    name="dutch, first attempt",
    title="Dutch, the first attempt: other options of FDPG, other seeds",
    choices=choices(
        0.1,
        {"norm_bound": 5.0, "step_size": 0.2, "sustained": 1.4, "cap": 1.6, "memory": 0.8},
        {"test_clip": 0.05},
    ),
    notes="the same network; FDPG's options were chosen among six on seeds 10 to 12, after another of the six had "
    "overshot on seeds 0 to 4; seeds 20 to 27 were run once, and FDPG overshot on most of them",
    first_seed=20,
)
DUTCH_RELU = replace(
    DUTCH,
    name="dutch, with ReLU",
    title="Dutch again, with ReLU in place of tanh: then DP-SGD has no gap",
    model=partial(two_hidden, nn.ReLU),
    choices=choices(
        0.1,
        {"norm_bound": 5.0, "step_size": 0.2, "sustained": 1.3, "cap": 1.5, "memory": 0.8},
        {"test_clip": 0.05},
    ),
    notes="two hidden layers of 256 with ReLU on the same columns; options chosen on seeds 0 and 1",
    first_seed=0,
    more_seeds={},
)
MNIST_FDPG = {"norm_bound": 10.0, "step_size": 0.2, "sustained": 3.0, "cap": 6.0, "memory": 0.8, "statistic_noise": 5.0}
MNIST = Setting(
    name="mnist",
    title="MNIST with 500 eights: ε = 5.9, δ = 1e-6, batch 256, learning rate 0.05, C = 1",
    compared=("2", "8"),
    data="mnist-few-eights",
    model=small_cnn,
    settings={"epsilon": 5.9, "delta": 1e-6, "epochs": 15.0, "batch_size": 256, "learning_rate": 0.05},
    choices=(
        Choice("erm", "erm"),
        Choice("dp-sgd", "dp-sgd", {"clip": 1.0}),
        Choice("fdpg", "fdpg", {"clip": 1.0, **MNIST_FDPG}),
    ),
    notes="a network of 7,946 weights (two convolutions with tanh, one linear layer), n = 54,649; the paper trains a "
    "larger one for 60 epochs at learning rate 0.01",
)
CLEARER = "fdpg, less noise on statistics"
MNIST_SEVEN = replace(
    MNIST,
    name="mnist, seven methods",
    title="MNIST, all seven private methods, much reduced: a third of the rows, 3 epochs, ε = 5.9, δ = 1e-6, batch 256",
    settings={"epsilon": 5.9, "delta": 1e-6, "epochs": 3.0, "batch_size": 256, "momentum": 0.9},
    choices=(*(Choice(name, name) for name in ("erm", *METHODS)), Choice(CLEARER, "fdpg", {"statistic_noise": 3.0})),
    notes="the same network, momentum 0.9, every method with default options (C = 1) and the learning rate that Veil "
    "takes from public constants: nothing was chosen by looking at rows. About 165 eights are among the 18,000 rows. "
    "Seeds from 70 on were run once. FDPG does not beat DP-SGD here: where Veil chooses the learning rate FDPG "
    "lengthens no update, so that its rates alone could help. The remark has both, the rates it ended with and those "
    "that exact gradients of the last model would ask for: noise hides most of what clipping takes from eights. The "
    "last line, added to see why, has statistics with less than a third of the noise: eights are then drawn more often "
    "and learned no better than by DP-SGD, as the statistics and the higher rates cost noise (κ). What eights lose "
    "here is lost to noise and few steps, more than to clipping",
    first_seed=70,
    more_seeds=dict.fromkeys(("erm", *METHODS, CLEARER), 5),
    data_options={"rows": 18000},
)
MNIST_SEVEN_GIVEN = replace(
    MNIST_SEVEN,
    name="mnist, seven methods, learning rate 0.05",
    title="MNIST, all seven private methods again, with the same learning rate 0.05 for all",
    settings={**MNIST_SEVEN.settings, "learning_rate": 0.05},
    notes="as above, but for the learning rate: the same is given to every method and to the twin, as the paper does. "
    "This block was added after the one above had missed the claim, with the same seeds; the rate is that of the block "
    "below, and no other was tried. FDPG then restores the length that clipping took, "
    "but only in the last two of three epochs: its gap is smaller than DP-SGD's, and not by a third. The last line, "
    "with less noise on the statistics, was added to see why: rates follow eights further, and the gap is smaller",
)
PAGES = {
    "fdpg-tabular": (
        *(ADULT_DEFAULT, DUTCH_DEFAULT, ADULT_FRESH, DUTCH_FRESH),
        *(ADULT, ADULT_FASTER, DUTCH, DUTCH_FIRST, DUTCH_RELU),
    ),
    "fdpg-mnist": (MNIST_SEVEN, MNIST_SEVEN_GIVEN, MNIST),
}


def train(setting: Setting, choice: Choice, rows: tuple[Problem, Problem], seed: int) -> dict[str, Any]:
    """One run as a record: figures on test rows, the honest ε, and per-group gradients of the last model (private)."""
    train_rows, test_rows = rows
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = setting.model()
    run = veil.fit(
        model,
        train_rows,
        method=veil.method(choice.method, **choice.options),
        evaluation=test_rows,
        seed=seed,
        **({"momentum": 0.0} | setting.settings | choice.settings),
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
        "gradients": group_gradients(model, row_losses, train_rows).as_json(),
    }
    if len(train_rows.public.classes) == 2:
        record["parity"] = evaluate_parity(model, test_rows).as_json()
    if "rates" in last:
        record["rates"] = [float(rate) / run.plan.details["uniform_rate"] for rate in last["rates"]]
        record["cap_reached"] = [float(x) for x in sum(run.history["cap_reached"].map(torch.tensor)) / len(run.history)]
        record["exact_rates"] = exact_rates(run, train_rows)
    if "accepted" in last:
        record["accepted"] = float(run.history["accepted"].map(lambda value: value[0]).mean())
    return record


def exact_rates(run: veil.Run, rows: Problem, seen: int = 256) -> list[float]:
    """The rates over the uniform one that FDPG's rule would give the last model, from exact gradients (private)."""
    signal, engine, found = run.plan.controller.norms.signal, GradientEngine(run.model, row_losses), []
    for group in range(len(rows.public.groups)):
        batch = rows.batch(np.flatnonzero(rows.group_of == group)[:seen])
        flat = [value.flatten(1) for value in engine.gradients(batch).values()]
        above, below = signal.parts(torch.cat(flat, dim=1).norm(dim=1).double())
        found.append(signal.scale * float(above.mean() / below.mean().clamp(min=1e-9)))
    lost, sizes = np.array(found), np.array(rows.public.group_sizes)
    return (lost * sizes.sum() / (sizes @ lost)).tolist()


def identity(setting: Setting, data_options: Mapping[str, Any]) -> dict[str, Any]:
    """What all runs of a block have in common."""
    return {**setting.settings, **data_options}


def collect(
    setting: Setting,
    data_options: Mapping[str, Any],
    seeds: Mapping[str, int],
    findings: Findings,
    asked: Asked,
) -> None:
    """All lines of a block, each with its number of seeds, that are not there yet; each is kept at once."""
    empty: dict[str, Any] = {"groups": [], "options": {}, "runs": {}}
    block = findings.part(setting.name, identity(setting, data_options), empty)["found"]
    wanted = [choice for choice in setting.choices if choice.label in seeds]
    for choice in wanted:
        before = block["options"].setdefault(choice.label, choice.options)
        said = f"{findings.path} has {choice.label} with other options: move the file away or choose another folder"
        require(before == choice.options, said)
    for number in range(max(seeds.values())):
        seed = setting.first_seed + number
        for choice in wanted:
            runs = block["runs"].setdefault(choice.label, {})
            if str(seed) in runs or number >= seeds[choice.label]:
                continue
            rows = load_pair(setting.data, data_options, seed)
            block["groups"] = list(rows[0].public.groups)
            block.setdefault("constant", {})[str(seed)] = constant_answer(*rows)
            runs[str(seed)] = train(setting, choice, rows, seed)
            findings.keep(asked)
            figures = runs[str(seed)]["metrics"]
            print(f"{setting.name} {choice.label} seed {seed}: {figures['accuracy']:.4f}", flush=True)
    known = block.setdefault("constant", {})
    for seed in sorted({seed for runs in block["runs"].values() for seed in runs} - set(known), key=int):
        known[seed] = constant_answer(*load_pair(setting.data, data_options, int(seed)))
        findings.keep(asked, trained=False)


def reproduce(asked: Asked) -> None:
    """Run what is missing and write the page.

    Options: `seeds`; `lines` and `blocks`, by default all; `epochs` instead of the blocks' own; `data_options`.
    """
    options, findings = asked.options, open_findings(asked)
    for setting in PAGES[asked.name]:
        if setting.name not in options.get("blocks", [setting.name]):
            continue
        chosen = setting
        if "epochs" in options:
            chosen = replace(setting, settings={**setting.settings, "epochs": options["epochs"]})
        lines = options.get("lines", [choice.label for choice in setting.choices])
        seeds = {line: asked.seeds or setting.more_seeds.get(line, options["seeds"]) for line in lines}
        collect(chosen, {**setting.data_options, **options.get("data_options", {})}, seeds, findings, asked)
    rewrite(asked.name, asked.folder)


def rewrite(name: str, folder: Path) -> None:
    """The page and its figures from the JSON file alone."""
    findings = read_findings(folder / f"{name}.json")
    known = {
        setting.name: {
            "title": setting.title,
            "notes": setting.notes,
            "compared": setting.compared,
            "settings": findings.found[setting.name]["settings"],
            **findings.found[setting.name]["found"],
        }
        for setting in PAGES[name]
        if setting.name in findings.found
    }
    fdpg_page.write(name, known, findings.made_by(), folder)
