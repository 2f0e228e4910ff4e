"""Robust generalisation under gradient noise on CIFAR-10: the runner of `veil reproduce dp-is-adversarial`."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import veil
from experiments.runner import Asked
from experiments.runner.figure import Line, Panel, line_chart
from experiments.runner.findings import open_findings, read_findings
from experiments.runner.problems import load_pair
from experiments.runner.running import constant_answer
from experiments.runner.store import FOR_ALL
from veil.foundation.files import write_whole
from veil.foundation.randomness import Seed
from veil.methods.adversarial import Adversarial
from veil.metrics.generalisation import correct, property_gap
from veil.models import build_model
from veil.training.fitting import row_losses

TITLE = "CIFAR-10: gradient noise in adversarial training"
ABOUT = """PGD training (Madry et al. 2018) with noise added to the mean gradient; nothing here is private. The gap is
robust accuracy on training rows minus that on test rows, under the same attack as in training. The paper trains a
ResNet on 50,000 rows; here are few rows and a small tanh CNN (settings below), so gaps and accuracies are not the
paper's: what can be compared is what noise does to them. The two largest noises were added after
a look at the others."""
FIGURES = ("robust_train", "robust_test", "clean_train", "clean_test")


def robust(model: nn.Module, batch: tuple[Tensor, Tensor], attack: Adversarial) -> Tensor:
    """Whether a row is still classified rightly at the attacked input."""
    return correct(model, (attack.attack(model, batch, row_losses), batch[1]))


def train(noise: float, seed: int, asked: Mapping[str, Any]) -> dict[str, float]:
    """One run: robust and clean accuracy on training and test rows."""
    train_rows, test_rows = load_pair("cifar10", asked["data"], seed)
    model = build_model("papernot-cifar", train_rows.public, Seed.from_int(seed), **asked["model"])
    method = veil.method("adversarial", **asked["attack"], gradient_noise=noise)
    run = veil.fit(model, train_rows, method=method, seed=seed, **asked["settings"])
    held = partial(robust, attack=Adversarial(**asked["attack"]))
    attacked = property_gap("robust", run.model, train_rows, test_rows, held, None)
    clean = property_gap("clean", run.model, train_rows, test_rows, correct, None)
    figures = (attacked.train, attacked.test, clean.train, clean.test)
    return dict(zip(FIGURES, figures, strict=True)) | {"seconds": round(run.seconds, 1)}


def reproduce(asked: Asked) -> None:
    """Run what is asked for and not in the JSON file yet.

    Options: `noise` and `seeds`; `data`, `model`, `attack` and `settings` are tables.
    """
    torch.set_num_threads(1)
    findings, wanted = open_findings(asked), asked.options
    same = {key: wanted[key] for key in ("data", "model", "attack", "settings")}
    runs = findings.part("cifar10", same, {})["found"]
    for seed in range(1, (asked.seeds or wanted["seeds"]) + 1):
        for noise in wanted["noise"]:
            kept = runs.setdefault(f"{noise:g}", {})
            if str(seed) not in kept:
                kept[str(seed)] = train(float(noise), seed, wanted)
                findings.keep(asked)
                print(f"noise {noise:g}, seed {seed}: {kept[str(seed)]['seconds']:.0f} s", flush=True)
    if not (known := findings.part("constant", wanted["data"], {})["found"]):
        train_rows, test_rows = load_pair("cifar10", wanted["data"], 1)
        for name, rows in (("train", train_rows), ("test", test_rows)):
            known[name] = constant_answer(train_rows, rows)["figures"]["accuracy"]
        findings.keep(asked, trained=False)
    rewrite(asked.name, asked.folder)


def rewrite(name: str, folder: Path) -> None:
    """The page and its figure from the JSON file alone."""
    findings = read_findings(folder / f"{name}.json")
    part = findings.found["cifar10"]
    runs, constant = part["found"], findings.found["constant"]["found"]
    lines = [f"# {TITLE}", "", *claims(runs), "", f"WYSIWYG, Fig. 5. {ABOUT}", "", *table(runs, constant), ""]
    lines += [
        f"![robust accuracy and its gap]({name}.svg)",
        "",
        f"Settings: {part['settings']}. {findings.made_by()}",
        "",
    ]
    write_whole(folder / f"{name}.md", "\n".join(lines).encode(), FOR_ALL)
    write_whole(folder / f"{name}.svg", line_chart(TITLE, panels(runs)).encode(), FOR_ALL)


def values(kept: Mapping[str, Mapping[str, float]], figure: str) -> list[float]:
    """A figure of every seed in percent; `gap` is robust accuracy in training minus in test."""
    if figure == "gap":
        return [100 * (run["robust_train"] - run["robust_test"]) for run in kept.values()]
    return [100 * run[figure] for run in kept.values()]


def claims(runs: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[str]:
    """What the paper says of Fig. 5, beside what came out."""
    gaps = {noise: statistics.mean(values(kept, "gap")) for noise, kept in runs.items()}
    tests = {noise: statistics.mean(values(kept, "robust_test")) for noise, kept in runs.items()}
    noisy = [noise for noise in runs if float(noise) > 0]
    if "0" not in runs or not noisy:
        return
    word = "Holds" if all(3 * gaps[noise] < gaps["0"] for noise in noisy) else "Fails"
    said = ", ".join(f"{gaps[noise]:.1f} at {noise}" for noise in noisy)
    yield f"- **{word}:** every noise lowers the gap of robust accuracy by more than a factor of 3 (paper: from about"
    yield f"  30 points to less than 10). Here {gaps['0']:.1f} points without noise, {said}."
    if few := [noise for noise in noisy if 3 * gaps[noise] >= gaps["0"]]:
        known = ", ".join(f"{statistics.mean(values(runs[noise], 'robust_train')):.1f} %" for noise in ["0", *few])
        yield f"  Why: noise of {' and '.join(few)} is too small here to keep the model from learning its training rows"
        yield f"  (robust accuracy on them without noise and with these: {known})."
    word = "Holds" if max(tests[noise] for noise in noisy) > tests["0"] else "Fails"
    best = max(noisy, key=lambda noise: tests[noise])
    yield f"- **{word}:** some noise improves robust accuracy on test rows. Here {tests['0']:.1f} % without noise,"
    yield f"  {tests[best]:.1f} % at best (noise {best})."
    word = "Holds" if tests[noisy[-1]] < tests[best] or len(noisy) == 1 else "Fails"
    yield f"- **{word}:** more noise costs robust accuracy. Here {tests[noisy[-1]]:.1f} % at {noisy[-1]}."


def table(runs: Mapping[str, Mapping[str, Mapping[str, float]]], constant: Mapping[str, float]) -> Iterator[str]:
    """Accuracies by noise, and those of the most frequent class for every row."""
    heads = ("gradient noise", "robust, training", "robust, test", "gap", "clean, training", "clean, test", "seeds")
    yield f"| {' | '.join(heads)} | s per run |"
    yield "|--:|--:|--:|--:|--:|--:|--:|--:|"
    for noise, kept in runs.items():
        shown = [
            f"{statistics.mean(values(kept, figure)):.1f}"
            for figure in ("robust_train", "robust_test", "gap", "clean_train", "clean_test")
        ]
        seconds = statistics.mean(run["seconds"] for run in kept.values())
        yield f"| {noise} | {' | '.join(shown)} | {len(kept)} | {seconds:.0f} |"
    train, test = (100 * constant[part] for part in ("train", "test"))
    yield f"| constant answer | {train:.1f} | {test:.1f} | {train - test:.1f} | {train:.1f} | {test:.1f} | – | – |"


def panels(runs: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[Panel]:
    """The gap, and robust accuracy on test rows; noises at equal distances."""
    made = []
    for figure, title in (("gap", "gap of robust accuracy, points"), ("robust_test", "robust accuracy, test, percent")):
        points = []
        for place, kept in enumerate(runs.values()):
            found = values(kept, figure)
            spread = statistics.stdev(found) if len(found) > 1 else 0.0
            points.append((float(place), statistics.mean(found), spread))
        ticks = tuple((float(place), noise) for place, noise in enumerate(runs))
        made.append(Panel(title, "gradient noise", (Line("adversarial training", tuple(points)),), ticks))
    return made
