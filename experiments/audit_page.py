"""The page and the curves of the audits, made from their JSON file alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scipy import stats

from veil.auditing.curve_figure import roc_svg

NAMES = {"fdp-fit": "f-DP fit", "gdp-fit": "GDP fit", "clopper-pearson": "Clopper–Pearson", "one-run": "one run"}


def write_page(known: dict[str, Any], made_by: str, out: Path) -> None:
    """Write audit.md and one SVG per attacked method."""
    lines = ["# Audits: what an attacker can show", ""]
    lines += ["Every bound holds with 95 % confidence; docs/audits.md has what each assumes.", ""]
    for part, section in (("canaries", _canaries), ("groups", _groups), ("lira", _lira)):
        if part in known:
            lines += [*section(known[part], out), "", f"It took {known[part]['seconds']:.0f} s.", ""]
    (out / "audit.md").write_text("\n".join([*lines, made_by]) + "\n", encoding="utf-8")


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} … {max(values):.2f})"


def _canaries(part: dict[str, Any], out: Path) -> list[str]:
    repeats = len(part["found"][0]["bounds"]["fdp-fit"])
    lines = [
        "## Lower bounds on DP-SGD",
        "",
        f"q = 0.1, T = 200, δ = 1e-5, 20,000 canaries of which a fair coin puts each in or out; {repeats} repeats.",
        "Median (smallest … largest) bound, and how many of the repeats lay above the true ε by the f-DP fit.",
        f"At a risk of 5 % each, more than {_tolerated(repeats)} of {repeats} would be rarer than one in a thousand.",
        "",
        "| true ε | wanted | " + " | ".join(NAMES.values()) + " | above the true ε | seconds per audit |",
        "|--:|--:|" + "--:|" * (len(NAMES) + 2),
    ]
    for row in part["found"]:
        above = sum(value > row["epsilon"] for value in row["bounds"]["fdp-fit"])
        cells = [f"{row['epsilon']:g}", f"{row['wanted']:g}", *(_spread(row["bounds"][name]) for name in NAMES)]
        lines.append("| " + " | ".join([*cells, f"{above} of {repeats}", f"{row['seconds']:.1f}"]) + " |")
    return lines


def _tolerated(repeats: int) -> int:
    return int(stats.binom.isf(1e-3, repeats, 0.05))


def _groups(part: dict[str, Any], out: Path) -> list[str]:
    many, repeats = part["settings"]["canaries"], len(part["found"][0]["bounds"]["fdp-fit"])
    lines = [
        "## By group: ASC and aZB-weak",
        "",
        f"ε = 1 asked for, δ = 1e-5, 200 steps of 512 rows, {many:,} canaries in each group, {repeats} repeats: median",
        "(smallest … largest). Canaries see the gradients only, not the released losses, which take a tenth of ASC's",
        "budget; and aZB is charged as if each group were chosen at every step.",
        "",
        "| method | group | rows | ε on the certificate | f-DP fit | GDP fit | one run |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for row in part["found"]:
        bounds = [_spread(row["bounds"][name]) for name in ("fdp-fit", "gdp-fit", "one-run")]
        cells = [row["method"], row["group"], f"{row['rows']:,}", f"{row['epsilon']:.2f}", *bounds]
        lines.append("| " + " | ".join(cells) + " |")
    for method in ("asc", "azb-weak"):
        by_group = {
            r["group"]: statistics.median(r["bounds"]["fdp-fit"]) for r in part["found"] if r["method"] == method
        }
        ratio = by_group["minority"] / max(by_group["majority"], 1e-9)
        lines += ["", f"{method}: the minority's bound is {ratio:.2f} × the majority's."]
    return lines


def _lira(part: dict[str, Any], out: Path) -> list[str]:
    rows, shadows = part["settings"]["rows"], part["settings"]["shadows"]
    lines = [
        "## LiRA per owner on MNIST",
        "",
        f"{rows:,} rows of MNIST, digits 0–4 at ε = 0.1 and 5–9 at ε = 1 (δ = 1e-5, add-remove), the tanh CNN",
        f"of Papernot et al., {shadows} models, each on a random half of the rows; every model is the target",
        "once; INO-SGD has a straight tail of 30 %. The interval is Student's over target models. The ceiling is the",
        "area under the certificate's trade-off curve: no attack can have more. Models that were kept from an earlier "
        "call are not in the time below.",
        "",
        *_lira_claims({method: found["online"]["by_owner"] for method, found in part["found"].items()}),
        "",
        "| method | owner | ε | AUROC online [95 %] | AUROC offline | loss threshold (all) | ceiling "
        "| TPR at FPR 1 % | its ceiling |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for method, found in part["found"].items():
        online, offline = found["online"], found["offline"]
        for owner, one in online["by_owner"].items():
            low = one["tpr_at"]["0.01"]
            promised = one["epsilon"] is not None
            cells = [
                method,
                owner,
                f"{one['epsilon']:.2g}" if promised else "∞",
                f"{one['auroc']:.3f} [{one['auroc_low']:.3f}, {one['auroc_high']:.3f}]",
                f"{offline['by_owner'][owner]['auroc']:.3f}",
                f"{online['auroc_of_the_loss_threshold']:.3f}",
                f"{one['auroc_ceiling']:.3f}" if promised else "1",
                f"{low['tpr']:.4f}",
                f"{low['ceiling']:.4f}" if promised else "1",
            ]
            lines.append("| " + " | ".join(cells) + " |")
        (out / f"audit_{method}.svg").write_text(roc_svg(f"LiRA on {method}, by owner", online["by_owner"]), "utf-8")
    return [*lines, "", *(f"![ROC curves of {m}, log-log](audit_{m}.svg)" for m in part["found"])]


def _lira_claims(by_method: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What Fig. 22 of the INO-SGD paper claims, by the online attack, of methods with a budget for every owner."""
    private = {
        method: sorted(owners.values(), key=lambda one: float(one["epsilon"]))
        for method, owners in by_method.items()
        if all(one["epsilon"] is not None for one in owners.values())
    }
    each = [(method, one) for method, owners in private.items() for one in owners]
    lines = [
        _claim(
            all(one["auroc_low"] <= one["auroc_ceiling"] for _, one in each),
            "no owner is attacked better than its certificate allows (Fig. 22)",
            "; ".join(
                f"{m} ε = {one['epsilon']:.2g}: {one['auroc']:.3f} of {one['auroc_ceiling']:.3f}" for m, one in each
            ),
        ),
        _claim(
            all(owners[0]["auroc_low"] <= owners[-1]["auroc_high"] for owners in private.values()),
            "the owner with the smallest budget is attacked no better than the one with the largest",
            "; ".join(f"{m}: {own[0]['auroc']:.3f} against {own[-1]['auroc']:.3f}" for m, own in private.items()),
        ),
    ]
    if {"idp-sgd", "ino-sgd"} <= set(private):
        pairs = list(zip(private["ino-sgd"], private["idp-sgd"], strict=True))
        lines.append(
            _claim(
                all(own["auroc_low"] <= base["auroc_high"] for own, base in pairs),
                "the order of INO-SGD leaks no more about any owner than IDP-SGD does",
                "; ".join(f"ε = {o['epsilon']:.2g}: {o['auroc']:.3f} against {b['auroc']:.3f}" for o, b in pairs),
            )
        )
    return lines


def _claim(holds: bool, text: str, numbers: str) -> str:
    return f"- **{'Holds' if holds else 'Fails'}:** {text}. AUROC {numbers}."
