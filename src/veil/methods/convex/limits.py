"""What bounds on the training rows mean for new rows, and what no private method can do better than.

**New rows.** For weights in the ball of radius r, with w̄ the run's weights and w* the best ones for new rows, the
excess on new rows, max_i L_Di(w̄) − max_i L_Di(w*), is at most the excess on the training rows plus

    max_i sup_w (L_Di − L_Si)(w) + max_i (L_Si − L_Di)(w*)

The mean of sup_w is at most c·L·r/√n_i by Rademacher averages (c = 2; 2·√(2k) for k scores), that of the last term 0.
One row moves both by at most B/n_i: they are sub-Gaussian with variance B²/(4·n_i) around their means, and

    E max_i X_i ≤ (1/θ)·log Σ_i e^(θ·m_i + θ²·v_i/2)   for every θ > 0.

**Lower bound.** Take a group of n rows, a method that moves by at most τ in total variation when one of them is
replaced, k features and signs v in {±1}^k. A row of the group has one of the k features, at length R (long enough
before it is shortened that nothing is left of the 1 behind it), and label 1; the feature's sign is v_j with probability
(1 + a)/2. Every other group has a feature of its own with a known sign. Let
f(s) = (1 + a)/2·ℓ(s) + (1 − a)/2·ℓ(−s), lowest at s*: all groups reach f(s*) at once if s*·√(k + p − 1) ≤ r·R. A weight
that scores s on feature j costs the group (f(v_j·s) − f(s*))/k, and whatever s is, f(s) + f(−s) ≥ 2·f(0), as f is
convex. Two v that differ in feature j alone give tables that differ in n·a/k rows on average, so no method tells them
apart better than with TV = min(n·a·τ/k, √(n·KL/2)), where KL = (a/k)·log((1 + a)/(1 − a)). On what both laws of the
weights share, 1 − TV, the costs of the two v add up to 2·(f(0) − f(s*))/k at least. So, on average over all v (the
argument of Assouad's lemma), for every k and a,

    sup over distributions of E[excess worst-group risk on new rows] ≥ (f(0) − f(s*))·(1 − TV).

τ of an (ε, δ)-private method is at most (e^ε − 1 + 2δ)/(e^ε + 1), twice that if rows come or go.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veil.accounting import Relation
from veil.accounting.generalisation import tv_from_privacy
from veil.methods.convex.losses import Hinge, Logistic, SmoothedHinge
from veil.methods.convex.rows import weight_shape
from veil.methods.convex.setting import LinearSetting
from veil.plans import Settings

Floats = NDArray[np.float64]
LEANINGS = np.geomspace(1e-4, 0.99, 60)
_PLACES = 400


def risk_details(
    setting: LinearSetting,
    settings: Settings,
    relation: Relation,
    bound: float,
    of: str,
    *,
    training_rows: bool = False,
) -> dict[str, Any]:
    """What a plan says about its risk: the bound, what follows for new rows, and what no private method can beat."""
    population = bound + gap_to_new_rows(setting) if training_rows else bound
    least = lower_bound(setting, settings, relation)
    shown = {**setting.excess_risk(bound, of), "population": None, "at_least": least}
    if training_rows:
        shown["population"] = setting.excess_risk(population, "on new rows")
    return {
        "expected_excess_risk": shown,
        "excess_risk_bound": bound,
        "population_excess_risk_bound": population,
        "excess_risk_lower_bound": least,
    }


def gap_to_new_rows(setting: LinearSetting) -> float:
    """How much larger the expected excess worst-group risk can be on new rows than on the training rows."""
    scores, constants, sizes = weight_shape(setting.facts, bias=True)[1], setting.constants, setting.sizes
    factor = 2.0 if scores == 1 else 2.0 * math.sqrt(2.0 * scores)
    means = factor * constants.lipschitz * setting.weight_radius / np.sqrt(sizes)
    variances = constants.range**2 / (4 * sizes)
    return largest_on_average(means, variances) + largest_on_average(np.zeros_like(means), variances)


def largest_on_average(means: Floats, variances: Floats) -> float:
    """An upper bound on E max_i X_i where X_i is sub-Gaussian around its mean.

    >>> round(largest_on_average(np.zeros(1), np.ones(1)), 3), round(largest_on_average(np.zeros(2), np.ones(2)), 3)
    (0.0, 1.177)
    """
    if len(means) == 1:
        return float(means[0])
    paces = np.geomspace(1e-2, 1e2, 400)[:, None] / math.sqrt(float(variances.max()))
    raised = paces * means + paces**2 * variances / 2
    top = raised.max(axis=1)
    return float(((top + np.log(np.exp(raised - top[:, None]).sum(axis=1))) / paces[:, 0]).min())


def lower_bound(setting: LinearSetting, settings: Settings, relation: Relation) -> float | None:
    """What no method with these budgets can promise less than, for two classes; None where nothing is proved here."""
    facts = setting.facts
    if not isinstance(setting.loss, Logistic | SmoothedHinge | Hinge) or setting.bias_of_loss:
        return None
    features, others = math.prod(facts.input_shape), len(facts.groups) - 1
    counts = sorted({int(k) for k in np.geomspace(1, features - others, 20)}) if features > others else []
    delta, twice = settings.delta_for(facts), 1 if relation is Relation.REPLACE_ONE else 2
    best = 0.0
    for group, rows in enumerate(facts.group_sizes):
        cells = [cell for cell, own in enumerate(facts.cells) if own.group == group]
        epsilon = max(facts.budget_of(cell, settings.epsilon) for cell in cells)
        moved = min(1.0, twice * tv_from_privacy(epsilon, delta))
        best = max([best, *(float(by_leaning(setting, rows, moved, k, k + others).max()) for k in counts)])
    return best if best > 0 else None


def by_leaning(setting: LinearSetting, rows: int, moved: float, count: int, shared: int) -> Floats:
    """The lower bound of this module's docstring for k = `count` and each a in `LEANINGS`; `shared` is k + p − 1."""
    farthest = setting.feature_radius * setting.weight_radius / math.sqrt(shared)
    places = np.linspace(0.0, farthest, _PLACES)
    right, wrong = (setting.loss.values(sign * places[:, None], np.ones(_PLACES)) for sign in (1.0, -1.0))
    a = LEANINGS[:, None]
    risks = (1 + a) / 2 * right + (1 - a) / 2 * wrong
    # A lowest risk at the farthest place may lie beyond it: then not all groups reach it.
    gains = np.where(risks.argmin(axis=1) < _PLACES - 1, risks[:, 0] - risks.min(axis=1), 0.0)
    divergence = LEANINGS / count * np.log((1 + LEANINGS) / (1 - LEANINGS))
    apart = np.minimum(rows * LEANINGS * moved / count, np.sqrt(rows * divergence / 2))
    return np.asarray(gains * np.maximum(0.0, 1 - apart))
