"""The convex solvers measured: the runner of `veil reproduce convex`.

Every finished figure is stored at once in the JSON file, so a stopped experiment goes on where it was. The page is
made by `experiments.convex_page`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import torch
from numpy.typing import NDArray

import veil
from experiments import convex_page
from experiments.runner import Asked
from experiments.runner.findings import open_findings, read_findings
from experiments.runner.problems import load_pair
from experiments.runner.running import constant_answer
from veil.foundation.randomness import Seed
from veil.methods.convex.inner import accelerated, by_best_response
from veil.methods.convex.losses import Logistic, Loss, SmoothedHinge, Squared
from veil.methods.convex.rows import LinearRows, into_ball
from veil.methods.convex.saddle import SaddleProblem, reach_of_one_row
from veil.models import build_model
from veil.noise import TreeNoise
from veil.problem import Problem
from veil.training import fit

Keep = Callable[[str, Callable[[], Any]], None]
Options = Mapping[str, Any]
METHODS = ("phased-erm", "dp-oco", "noisy-sgd-mgr", "noisy-sgd-ags")
RADIUS = 0.5
SIGNALS = (0.05, 0.2, 0.8)
# Steps of noisy SGD on made-up problems; the tables below leave the number to the plan.
STEPS = 400
BASE = {"p": 4, "d": 20, "K": 4000, "epsilon": 0.25}


@dataclass(frozen=True)
class Tilted:
    """Groups whose worst-group optimum is known in closed form.

    A row is a vector z = y·x of signs over √d. On the first half of the coordinates the sign is + with probability
    (1 + c)/2 in every group; on the second half groups of even and odd number lean to opposite sides. Within the ball
    of radius 1/2 the smoothed hinge is a straight line, so the worst-group risk of w is 3/4 − min_g ⟨θ_g, w⟩, and the
    best w is r times the direction of the common half.
    """

    groups: int
    dimension: int
    rows: int
    signal: float

    def means(self) -> NDArray[np.float64]:
        """θ_g, one line per group."""
        half = self.dimension // 2
        lean = np.full((self.groups, self.dimension), self.signal)
        lean[1::2, half:] *= -1.0
        if self.groups == 1:
            lean[:, half:] = 0.0
        return lean / np.sqrt(self.dimension)

    def problem(self, seed: int) -> Problem:
        """Fresh rows of every group."""
        generator = np.random.default_rng([seed, self.groups, self.dimension, self.rows])
        chances = (1 + self.means() * np.sqrt(self.dimension)) / 2
        signs = np.concatenate([generator.random((self.rows, self.dimension)) < chance for chance in chances])
        z = (2.0 * signs - 1.0) / np.sqrt(self.dimension)
        labels = generator.integers(0, 2, len(z))
        names = [f"g{group:02d}" for group in np.repeat(np.arange(self.groups), self.rows)]
        return Problem.from_arrays(z * (2 * labels[:, None] - 1), labels, names, classes=[0, 1])

    def excess(self, weights: NDArray[np.float64]) -> float:
        """Worst-group population risk less its smallest value over the ball."""
        half = self.dimension // 2
        best = RADIUS * float(np.linalg.norm(self.means()[0, :half]))
        return best - float((self.means() @ weights).min())


def measure(method: str, p: int, d: int, rows: int, epsilon: float, seeds: int) -> dict[str, float]:
    """The largest mean excess over the strengths of signal, over seeds, with the plan's upper bound."""
    worst, bound, seconds = [], 0.0, time.perf_counter()
    for signal in SIGNALS:
        tilted, found = Tilted(p, d, rows // p, signal), []
        for seed in range(seeds):
            model = torch.nn.Linear(d, 2, bias=False)
            chosen = veil.method(method, loss="smoothed-hinge", weight_radius=RADIUS)
            given = {"epsilon": epsilon, "delta": 1e-5, "seed": seed}
            given |= {"steps": STEPS} if method.startswith("noisy") else {}
            run = fit(model, tilted.problem(seed), method=chosen, **given)
            weight = model.weight.detach().double().numpy()
            found.append(tilted.excess(weight[1] - weight[0]))
            bound = float(run.plan.details["excess_risk_bound"])
        worst.append(float(np.mean(found)))
    return {"excess": max(worst), "bound": bound, "seconds": time.perf_counter() - seconds}


def rates(keep: Keep, options: Options) -> None:
    """Excess risk along K, ε, d and p, one at a time."""
    for axis, values in options["axes"].items():
        for value in values:
            at = {**BASE, axis: value}
            for method in METHODS:
                keep(
                    f"{axis}={value:g} {method}",
                    lambda at=at, method=method: measure(  # type: ignore[misc]
                        method, int(at["p"]), int(at["d"]), int(at["K"]), float(at["epsilon"]), options["seeds"]
                    ),
                )


def grid(axes: Mapping[str, list[float]]) -> Iterator[dict[str, float]]:
    """The points of the map."""
    for p in axes["p"]:
        for d in axes["d"]:
            for rows in axes["K"]:
                for epsilon in axes["epsilon"]:
                    yield {"p": p, "d": d, "K": rows, "epsilon": epsilon}


def over_map(keep: Keep, options: Options) -> None:
    """Every method at every point of the map."""
    for at in grid(options["axes"]):
        for method in METHODS:
            name = " ".join(f"{axis}={value:g}" for axis, value in at.items())
            keep(
                f"{name} {method}",
                lambda at=at, method=method: measure(  # type: ignore[misc]
                    method, int(at["p"]), int(at["d"]), int(at["K"]), float(at["epsilon"]), options["seeds"]
                ),
            )


ARMS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "erm": ("erm", {}, {"epochs": 20, "batch_size": 512, "learning_rate": 0.5, "schedule": "cosine"}),
    "asc": ("asc", {"neighbours": "replace-one"}, {"epochs": 20, "batch_size": 512, "learning_rate": 0.5}),
    **{method: (method, {}, {}) for method in METHODS},
    "phased-erm, add-remove": ("phased-erm", {"neighbours": "add-remove"}, {}),
    "phased-erm, paper's schedule": ("phased-erm", {"schedule": "paper"}, {}),
    "noisy-sgd-mgr, one group (the paper's)": ("noisy-sgd-mgr", {"gradient": "one-group"}, {}),
    "noisy-sgd-mgr, radius 20": ("noisy-sgd-mgr", {"weight_radius": 20.0}, {"steps": 400}),
    "noisy-sgd-mgr, hinge, radius 10": ("noisy-sgd-mgr", {"weight_radius": 10.0, "loss": "hinge"}, {"steps": 400}),
    "noisy-sgd-mgr, radius 30, add-remove": (
        "noisy-sgd-mgr",
        {"weight_radius": 30.0, "neighbours": "add-remove"},
        {"steps": 400},
    ),
    "noisy-sgd-mgr, hinge, radius 20, add-remove": (
        "noisy-sgd-mgr",
        {"weight_radius": 20.0, "loss": "hinge", "neighbours": "add-remove"},
        {"steps": 400},
    ),
}

# What the page is about: these have all seeds, `others` may have fewer.
HEADLINE = tuple(arm for arm in ARMS if "radius" in arm)


def tables(keep: Keep, options: Options) -> None:
    """All four beside asc and erm with a logistic model at ε = 1, replace-one; the split of Dutch is that of seed 0."""
    cut = options.get("data_options", {})
    for data in options["data"]:
        keep(f"{data}/constant answer/0", lambda data=data: _constant(data, cut))  # type: ignore[misc]
        for seed in range(options["seeds"]):
            for arm in options.get("arms", ARMS):
                if seed >= options.get("others", options["seeds"]) and arm not in HEADLINE:
                    continue
                keep(
                    f"{data}/{arm}/{seed}",
                    lambda data=data, arm=arm, seed=seed: _on_table(data, arm, seed, cut),  # type: ignore[misc]
                )


def _constant(data: str, cut: Options) -> dict[str, Any]:
    found = constant_answer(*load_pair(data, cut, 0))
    assert found is not None
    names = {"worst": "worst_group_accuracy", "average": "average_group_accuracy", "accuracy": "accuracy"}
    return {short: found["figures"][name] for short, name in names.items()}


def _on_table(data: str, arm: str, seed: int, cut: Options) -> dict[str, Any]:
    """One run: accuracies on test rows, the plan's bound, and what the run itself proves with what w = 0 has."""
    method, chosen, settings = ARMS[arm]
    train, test = load_pair(data, cut, 0)
    started = time.perf_counter()
    model = build_model("logistic", train.public, Seed.from_int(seed))
    asked = veil.method(method, **chosen)
    run = fit(model, train, method=asked, evaluation=test, epsilon=1.0, seed=seed, **settings)
    assert run.metrics is not None
    last = run.history.iloc[-1]
    realised = [float(value) for value in last["realised_excess_risk"]] if "realised_excess_risk" in last else None
    return {
        "worst": run.metrics.worst_group_accuracy,
        "average": run.metrics.average_group_accuracy,
        "accuracy": run.metrics.accuracy,
        "epsilon": run.certificate.epsilon,
        "bound": run.plan.details.get("excess_risk_bound"),
        "realised": realised,
        "steps": run.plan.steps,
        "seconds": time.perf_counter() - started,
    }


LOSSES: tuple[Loss, ...] = (Logistic(), SmoothedHinge(0.5), Squared(1.0))


def random_saddle(generator: np.random.Generator, loss: Loss, radius: float) -> SaddleProblem:
    """A small saddle problem with random rows, regularisers and centre."""
    groups, dimension = int(generator.integers(1, 5)), int(generator.integers(1, 6))
    sizes = generator.integers(1, 12, groups)
    total = int(sizes.sum())
    features = into_ball(generator.standard_normal((total, dimension)) * generator.choice([0.3, 3.0]), 1.0)
    targets = generator.choice([-1.0, 1.0], total)
    rows = LinearRows(features, targets, np.repeat(np.arange(groups), sizes))
    centre = generator.standard_normal((dimension, 1)) * 0.3
    mu_w, mu_lambda = np.exp(generator.uniform(-4, 2, 2))
    constants = loss.constants(1.0, radius)
    return SaddleProblem(rows, sizes.astype(float), loss, constants, centre, float(mu_w), float(mu_lambda), radius)


def moved(generator: np.random.Generator, saddle: SaddleProblem) -> tuple[float, float]:
    """How far the solution moves when one row is replaced, over the bound and over the paper's bound."""
    row, rows = int(generator.integers(len(saddle.rows))), saddle.rows
    features, targets = rows.features.copy(), rows.targets.copy()
    # Rows that pull hardest: turned round, or anywhere.
    features[row] = (
        -features[row]
        if generator.random() < 0.5
        else into_ball(generator.standard_normal((1, features.shape[1])) * 5, 1.0)[0]
    )
    targets[row] = generator.choice([-1.0, 1.0])
    other = SaddleProblem(
        LinearRows(features, targets, rows.groups),
        saddle.sizes,
        saddle.loss,
        saddle.constants,
        saddle.centre,
        saddle.mu_w,
        saddle.mu_lambda,
        saddle.radius,
    )
    rows_of_group = saddle.sizes[rows.groups[row]]
    bound = 2 * reach_of_one_row(saddle.constants, saddle.mu_w, saddle.mu_lambda) / rows_of_group
    steep, width = saddle.constants.lipschitz / saddle.mu_w, saddle.constants.range
    paper = 3 / rows_of_group * (steep + width / np.sqrt(saddle.mu_w * saddle.mu_lambda))
    tolerance = 1e-6 * bound
    gap = np.linalg.norm(accelerated(saddle, tolerance).weights - accelerated(other, tolerance).weights)
    return float(gap / bound), float(gap / paper)


def sensitivity(keep: Keep, options: Options) -> None:
    """The largest move over the bound, over thousands of random neighbouring problems, by loss."""
    for loss in LOSSES:

        def many(loss: Loss = loss) -> dict[str, float]:
            generator = np.random.default_rng(7)
            ratios = [moved(generator, random_saddle(generator, loss, 2.0)) for _ in range(options["pairs"])]
            ours, paper = np.array(ratios).T
            return {"pairs": len(ratios), "largest": float(ours.max()), "q99": float(np.quantile(ours, 0.99)),
                    "largest_of_paper": float(paper.max())}  # fmt: skip

        keep(loss.name, many)


def solver(keep: Keep, options: Options) -> None:
    """Certified and true gap of the paper's solver against its iterations, on a problem whose saddle is known."""
    generator = np.random.default_rng(1)
    features = into_ball(generator.standard_normal((400, 5)) * 3, 1.0)
    rows = LinearRows(features, np.sign(generator.standard_normal(400)), np.repeat(np.arange(4), 100))
    loss = Logistic()
    saddle = SaddleProblem(rows, np.full(4, 100.0), loss, loss.constants(1.0, 2.0), np.zeros((5, 1)), 0.05, 0.05, 2.0)
    exact = accelerated(saddle, 1e-9)
    for late in (False, True):
        for iterations in options["iterations"]:

            def gaps(late: bool = late, iterations: int = iterations) -> dict[str, float]:
                found = by_best_response(saddle, iterations, late=late)
                away = float(np.linalg.norm(found.weights - exact.weights))
                return {"gap": float(found.gap or 0.0), "distance": found.distance, "away": away}

            keep(f"{'late' if late else 'paper'} {iterations}", gaps)
    for tolerance in (1e-2, 1e-4, 1e-6, 1e-8):

        def fast(tolerance: float = tolerance) -> dict[str, float]:
            found = accelerated(saddle, tolerance)
            return {"iterations": found.iterations, "distance": found.distance}

        keep(f"fast {tolerance:g}", fast)


def tree(keep: Keep, options: Options) -> None:
    """The noise of all prefixes of a long run."""

    def prefixes() -> dict[str, float]:
        started = time.perf_counter()
        noise = TreeNoise(Seed.from_int(0), 1, 1.0, options["steps"]).prefixes(1, options["steps"] + 1)
        return {"steps": len(noise), "seconds": time.perf_counter() - started, "largest": float(np.abs(noise).max())}

    keep("prefixes", prefixes)


PARTS: dict[str, Callable[[Keep, Options], None]] = {
    "solver": solver,
    "sensitivity": sensitivity,
    "tree": tree,
    "tables": tables,
    "rates": rates,
    "map": over_map,
}


def settings_of(part: str, options: Options, seeds: int | None = None) -> dict[str, Any]:
    """What the figures of a part depend on."""
    chosen = dict(options[part])
    return chosen | {"seeds": seeds} if seeds is not None and "seeds" in chosen else chosen


def reproduce(asked: Asked) -> None:
    """Run what is missing and write the page; the options are those of each part."""
    findings = open_findings(asked)
    for part in asked.options:
        settings = settings_of(part, asked.options, asked.seeds)
        known: dict[str, Any] = findings.part(part, settings, {})["found"]

        def keep(name: str, find: Callable[[], Any], known: dict[str, Any] = known, part: str = part) -> None:
            if name not in known:
                known[name] = find()
                findings.keep(asked)
                print(part, name, known[name], flush=True)

        PARTS[part](keep, settings)
    rewrite(asked.name, asked.folder)


def rewrite(name: str, folder: Path) -> None:
    """The page from the JSON file alone."""
    findings = read_findings(folder / f"{name}.json")
    convex_page.write(findings.found, findings.made_by(), folder)
