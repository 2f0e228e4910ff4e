"""Speed and memory of a private step against plain SGD and against opacus, everything interleaved in one process.

A step is forward, backward, bounding, noise and `optimizer.step()`; plain SGD has no bounding and no noise. Times
are medians over interleaved repeats on two threads. Peak memory is read from the allocator: the largest sum of
live bytes during one step, as the profiler's allocation events tell it, plus parameters and batch. What it costs to
know in every pass where its rows stand is the step against one that believes the first pass. The last row is the
geometric mean of those workloads that count in it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # the profiler reports on its own start and stop otherwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks._printing import print_table
from veil.gradients import GradientEngine, PerRow, passes, replay
from veil.gradients.graphs import _KINDS, Graph, Kind, kind_of
from veil.gradients.recording import Recorder

THREADS = 2
BOUND = 1.0
NOISE_MULTIPLIER = 1.0
OPACUS_MODES = ("hooks", "ghost", "functorch", "ew")
# What is asked of every workload's peak memory and of the geometric mean, as multiples of plain SGD.
MEMORY_TARGET = 1.4
MEAN = "geometric mean"
MEAN_TARGET = 1.2

Step = Callable[[], None]


@dataclass(frozen=True)
class Workload:
    """A model, a batch of it, what is asked of its step as a multiple of plain SGD, and whether the mean has it."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    target: float | None
    in_mean: bool = True


class TokenMlp(nn.Module):
    """Blocks of norm, expansion by four and contraction over every token, with a skip connection."""

    def __init__(self, blocks: int = 4, width: int = 128) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Class scores from the mean token."""
        for block in self.blocks:
            tokens = tokens + block(tokens)
        return self.head(tokens.mean(1))


class CharLstm(nn.Module):
    """Characters to an origin: embedding of 64, LSTM of 128, the last state decides."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(80, 64)
        self.lstm = nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, 18)

    def forward(self, characters: Tensor) -> Tensor:
        """Class scores from the output at the last character."""
        return self.head(self.lstm(self.embedding(characters))[0][:, -1])


class Encoder(nn.Module):
    """A small transformer encoder over tokens: two layers, four heads, width 64."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Class scores from the mean token."""
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


def asc_cnn() -> nn.Module:
    """The network of the ASC paper for 28×28 digits."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 16, 3),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 10),
    )


def cifar_cnn() -> nn.Module:
    """The tanh network of Papernot et al. for 32×32 colour images."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, 10))


def mlp(*sizes: int) -> nn.Module:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for ins, outs in pairwise(sizes):
        layers += [nn.Linear(ins, outs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _real(classes: int, rows: int, *shape: int) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (torch.randn(rows, *shape), torch.randint(0, classes, (rows,)))


def _tokens(classes: int, rows: int, length: int, entries: int) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (torch.randint(0, entries, (rows, length)), torch.randint(0, classes, (rows,)))


WORKLOADS = (
    Workload("logistic 102-2, batch 256", lambda: nn.Linear(102, 2), _real(2, 256, 102), 1.5),
    Workload("MLP 60-256-256-2, batch 1000", lambda: mlp(60, 256, 256, 2), _real(2, 1000, 60), 1.3),
    Workload("ASC CNN, batch 256", asc_cnn, _real(10, 256, 1, 28, 28), 1.05),
    Workload("CIFAR CNN, batch 128", cifar_cnn, _real(10, 128, 3, 32, 32), 1.2),
    Workload("token MLP d 128 T 128, batch 32", TokenMlp, _real(10, 32, 128, 128), 1.15),
    Workload("transformer encoder, batch 32", Encoder, _tokens(2, 32, 64, 1000), 1.15),
    Workload("char-LSTM 64/128, batch 256", CharLstm, _tokens(18, 256, 15, 80), 1.5, in_mean=False),
)


def per_row_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross entropy of every row; the mean over its places, where it has several."""
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return losses if losses.ndim == 1 else losses.flatten(1).mean(1)


def clip(per_row: PerRow, rows: int) -> Tensor:
    """Weights that bound every row's gradient by `BOUND` and divide by the size of the batch."""
    return (BOUND / rows) / per_row.norms.clamp_min(BOUND)


def sgd_step(workload: Workload) -> Step:
    """An ordinary training step."""
    torch.manual_seed(0)
    model, batch = workload.model(), workload.batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

    return step


def veil_step(workload: Workload) -> Step:
    """A private step by Veil's engine."""
    return private_step(workload)[0]


def private_step(workload: Workload) -> tuple[Step, GradientEngine]:
    """A private step and the engine that makes it."""
    torch.manual_seed(0)
    model, batch = workload.model(), workload.batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    engine = GradientEngine(model, per_row_loss)
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    rows = batch[0].shape[0]

    def step() -> None:
        (sums,) = engine.weighted_sum(batch, lambda facts: clip(facts, rows)).sums
        for name, parameter in parameters.items():
            noise = torch.normal(0.0, NOISE_MULTIPLIER * BOUND / rows, parameter.shape)
            parameter.grad = noise.add_(sums[name])
        optimizer.step()

    step.held_bytes = lambda: engine.held_bytes  # type: ignore[attr-defined]
    return step, engine


def opacus_step(workload: Workload, mode: str) -> Step:
    """A private step by opacus in one of its modes."""
    from opacus import PrivacyEngine
    from opacus.validators import ModuleValidator
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    batch = workload.batch()
    model = ModuleValidator.fix(workload.model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    private = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(TensorDataset(*batch), batch_size=batch[0].shape[0]),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=BOUND,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    model, optimizer = private[0], private[1]
    criterion = private[2] if mode == "ghost" else nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        criterion(model(batch[0]), batch[1]).backward()
        optimizer.step()

    return step


def steps_of(workload: Workload) -> dict[str, Step]:
    """Every way to make one step of the workload that runs at all."""
    steps = {"sgd": sgd_step(workload), "veil": veil_step(workload)}
    for mode in OPACUS_MODES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                step = opacus_step(workload, mode)
                step()
            except Exception as error:
                # A mode that cannot run a layer is no competitor on this workload.
                print(f"opacus {mode} cannot run {workload.name}: {str(error)[:80]}", file=sys.stderr, flush=True)
                continue
        steps[f"opacus {mode}"] = step
    return steps


def medians(steps: dict[str, Step], repeats: int, seconds: float) -> dict[str, float]:
    """Median time of each step, all of them interleaved; short steps are repeated within one turn."""
    inner = {}
    for name, step in steps.items():
        step()
        started = time.perf_counter()
        step()
        inner[name] = max(1, min(50, int(seconds / max(time.perf_counter() - started, 1e-6))))
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            started = time.perf_counter()
            for _ in range(inner[name]):
                step()
            times[name].append((time.perf_counter() - started) / inner[name])
    return {name: statistics.median(values) for name, values in times.items()}


def peak_memory(step: Step) -> int:
    """The largest number of bytes that one step held at once, beyond parameters and batch."""
    from torch.profiler import ProfilerActivity, profile

    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = sorted(
        (event.start_ns(), event.nbytes())
        for event in profiler.profiler.kineto_results.events()
        if event.name() == "[memory]"
    )
    live = peak = 0
    for _, change in events:
        live += change
        peak = max(peak, live)
    held: Callable[[], int] = getattr(step, "held_bytes", lambda: 0)
    return peak + held()


def walk(losses: Tensor, rows: int, past_products: bool = True) -> Graph:
    """The graph of a pass without a look at where its rows stand: no shape, no constant, no key."""
    nodes: list[Any] = [losses.grad_fn]
    kinds: list[Kind] = []
    leaves: list[Tensor] = []
    seen = set(nodes)
    for node in nodes:  # grows on the way
        kind = _KINDS.get(type(node)) or kind_of(node)
        kinds.append(kind)
        if kind.leaf:
            leaves.append(node.variable)
            continue
        edges = node.next_functions[-2:-1] if kind.product and not past_products else node.next_functions
        for after, _ in edges:
            if after is not None and after not in seen:
                seen.add(after)
                nodes.append(after)
    return Graph(nodes, kinds, {}, leaves, 0, ())


def believing_step(workload: Workload) -> Step:
    """A private step that believes rows to stand where they stood in the first pass: what the check is measured by."""
    step, engine = private_step(workload)
    checked, read, layouts = Recorder.settle_layouts, passes.read_graph, list[Any]()

    def first(recorder: Recorder, *args: Any) -> None:
        checked(recorder, *args)
        layouts[:] = [use.layout for use in recorder.uses]

    def believe(recorder: Recorder, *_: Any) -> None:
        for use, layout in zip(recorder.uses, layouts, strict=True):
            use.layout, use.place = layout, 0

    Recorder.settle_layouts = first  # type: ignore[method-assign]
    step()
    Recorder.settle_layouts = checked  # type: ignore[method-assign]
    if engine._memory.plain is not None:
        engine._memory.plain.traced.update({(), ("any",)})  # the keys of what `walk` gives

    def believing() -> None:
        Recorder.settle_layouts, passes.read_graph, replay.read_graph = believe, walk, walk  # type: ignore
        step()
        Recorder.settle_layouts, passes.read_graph, replay.read_graph = checked, read, read  # type: ignore

    return believing


def measured(workload: Workload, repeats: int, seconds: float) -> dict[str, Any]:
    """One row of the table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps = steps_of(workload)
        times = medians(steps, repeats, seconds)
        model, batch = workload.model(), workload.batch()
        fixed = sum(t.numel() * t.element_size() for t in [*model.parameters(), *batch])
        pair = {"veil": steps["veil"], "believing": believing_step(workload)}
        turns = max(repeats, min(20 * repeats, int(250 * seconds / times["veil"])))
        check = medians(pair, turns, seconds)
        memory = {name: fixed + peak_memory(steps[name]) for name in ("sgd", "veil")}
    peers = {name: value for name, value in times.items() if name.startswith("opacus")}
    best = min(peers, key=lambda name: peers[name]) if peers else None
    ratio, memory_ratio = times["veil"] / times["sgd"], memory["veil"] / memory["sgd"]
    return {
        "workload": workload.name,
        "ratio_to_sgd": round(ratio, 3),
        "target": workload.target,
        "speed": verdict(ratio, workload.target),
        "ratio_to_best_opacus": round(times["veil"] / peers[best], 3) if best else None,
        "peak_memory_ratio": round(memory_ratio, 3),
        "memory": verdict(memory_ratio, MEMORY_TARGET),
        "row_check_percent": round(100 * (check["veil"] / check["believing"] - 1), 2),
        "sgd_ms": round(1e3 * times["sgd"], 3),
        "veil_ms": round(1e3 * times["veil"], 3),
        "best_opacus": best,
        "best_opacus_ratio_to_sgd": round(peers[best] / times["sgd"], 3) if best else None,
    }


def verdict(found: float, target: float | None) -> str | None:
    """Whether a target is met; None where there is none."""
    return None if target is None else "met" if found <= target else "missed"


def mean_of(rows: list[dict[str, Any]], chosen: list[Workload]) -> dict[str, Any]:
    """The row of the geometric mean over the workloads that count in it."""
    counted = {workload.name for workload in chosen if workload.in_mean}
    ratios = [row["ratio_to_sgd"] for row in rows if row["workload"] in counted]
    mean = statistics.geometric_mean(ratios)
    return {
        "workload": f"{MEAN} of {len(ratios)}",
        "ratio_to_sgd": round(mean, 3),
        "target": MEAN_TARGET,
        "speed": verdict(mean, MEAN_TARGET),
    }


def run(repeats: int = 15, quick: bool = False, only: str = "") -> list[dict[str, Any]]:
    """Measure every workload whose name contains `only`; `quick` takes few short turns. The mean needs all of them."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        chosen = [workload for workload in WORKLOADS if only in workload.name]
        rows = []
        for workload in chosen:
            rows.append(measured(workload, 3 if quick else repeats, 0.005 if quick else 0.02))
            print(f"{workload.name}: {rows[-1]['ratio_to_sgd']} of a plain step", file=sys.stderr, flush=True)
        return [*rows, mean_of(rows, chosen)] if len(chosen) == len(WORKLOADS) else rows
    finally:
        torch.set_num_threads(before)


def main(words: list[str]) -> None:
    """Print the table, or JSON with `--json`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gradients", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON list on standard output")
    parser.add_argument("--quick", action="store_true", help="few short turns")
    parser.add_argument("--repeats", type=int, default=15, help="interleaved rounds; medians are printed")
    parser.add_argument("--only", default="", help="part of a workload's name")
    options = parser.parse_args(words)
    rows = run(options.repeats, options.quick, options.only)
    if options.json:
        print(json.dumps(rows))
    else:
        print_table("gradients", rows)


if __name__ == "__main__":
    main(sys.argv[1:])
