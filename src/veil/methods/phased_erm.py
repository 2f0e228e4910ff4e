"""Phased ERM: the worst group's risk by regularised saddle problems on disjoint folds (Zhou & Bassily, algorithm 1).

    phase t:  (ŵ_t, λ̂_t) = min_w max_λ Σ_i λ_i·L_i(w) + (μ_t/2)·‖w − w_{t−1}‖² − μ_λt·Σ_i λ_i·log λ_i   on fold t
              w_t = Proj_W(ŵ_t + N(0, σ_t²·I))

Guarantee: a row stands in one fold, folds do not depend on rows, so a run costs a row one Gaussian release (parallel
composition): noise σ_t over the reach of one row, the same ratio in every phase. A group of n_i rows is moved by 1/n_i
of that reach, so larger groups have a smaller ε on the certificate. For the risk there is an upper bound with its
constants (`veil.methods.convex.phased`), in the plan's details.

Corrections: the reach of one row is (1/n_i)·[L/μ_w + √(L²/μ_w² + B²/(16·μ_w·μ_λ))] under replace-one instead of
(3/n)·(L/μ_w + B/√(μ_w·μ_λ)), and half of it under add-remove; the inner solver is certified by ‖∇P‖/μ_w and its error
is added to the reach; noise comes from the exact Gaussian mechanism (√(2·ln(1/δ))/ε fails from ε ≈ 8 on, and the
printed N(0, σ_t·I) is ambiguous); what is released is projected onto W. The schedule minimises the upper bound;
`schedule="paper"` has theirs.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from veil.accounting import Gaussian, Relation, Repeated, TokenBucket
from veil.bounding import Clip
from veil.errors import require
from veil.methods.calibrating import relation_for
from veil.methods.convex.limits import risk_details
from veil.methods.convex.phased import PhasedErm, best_regularisers, excess_risk, make_phases, paper_regularisers
from veil.methods.convex.setting import LinearMethod, noise_for_cell
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.plans.controllers.solver import Described
from veil.problem import PublicFacts
from veil.releases import GradientRelease
from veil.sampling.draws import Poisson


@known_as("phased-erm", "the worst group's risk by saddle problems on disjoint folds, each solution released once")
class PhasedErmMethod(LinearMethod):
    """Minimax phased ERM with output perturbation."""

    neighbours: Literal["add-remove", "replace-one"] = "replace-one"
    schedule: Literal["bound", "paper"] = "bound"
    phases: int | None = None

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Folds, regularisers and noise from public sizes, before any row is read."""
        require(self.schedule in ("bound", "paper"), f'schedule is "{self.schedule}": it must be bound or paper')
        smallest = min(facts.group_sizes)
        require(
            self.phases is None or 1 <= self.phases <= smallest,
            f"phases is {self.phases}: it must be at least 1 and at most the rows of the smallest group",
        )
        relation = relation_for("poisson", self.neighbours)
        # Folds of equal size need places that stay when a row goes.
        one_fold = relation is Relation.ADD_REMOVE and facts.sizes != "counted"
        require(
            not one_fold or (self.phases in (None, 1) and self.schedule == "bound"),
            "phased-erm with several phases cuts groups into folds of equal size, which a deleted row would change: "
            "use phases=1, neighbours=replace-one or counted group sizes",
        )
        setting = self.setting(facts, settings, smooth=True)

        def one(kappa: float) -> list[Repeated]:
            return [Repeated(Gaussian(kappa, relation))]

        budgets = [facts.budget_of(cell, settings.epsilon) for cell in range(len(facts.cells))]
        needed = {budget: noise_for_cell(one, budgets.index(budget), facts, settings) for budget in set(budgets)}
        kappas = np.array([needed[budget] for budget in budgets])
        if self.schedule == "paper":
            regularisers = paper_regularisers(setting, settings.epsilon, settings.delta_for(facts))
        else:
            regularisers = best_regularisers(setting, kappas, 1 if one_fold else self.phases)
        phases = make_phases(setting, regularisers, kappas, relation)
        # Every phase has the same ratio of noise to reach; the smallest is taken, should rounding tell them apart.
        ratios = [min(phase.sigma / phase.limits[cell] for phase in phases) for cell in range(len(facts.cells))]
        first = phases[0]
        release = GradientRelease(
            Poisson((1.0,) * len(facts.cells)),
            Clip(tuple(first.sigma / ratio for ratio in ratios)),
            first.sigma,
            1.0,
            relation,
        )
        events = release.events(facts)
        solver = PhasedErm(setting, phases, tuple(events[cell] for cell in range(len(events))), settings.secure_noise)
        bound = excess_risk(setting, phases)
        details = {
            **risk_details(setting, settings, relation, bound, "population"),
            "noise_multiplier": min(ratios),
            "phases": len(phases),
            "mu_w": [phase.mu_w for phase in phases],
            "mu_lambda": [phase.mu_lambda for phase in phases],
            "sigma": [phase.sigma for phase in phases],
            **setting.details(),
            "sampling": "disjoint folds",
        }
        return Plan(
            self.name,
            facts,
            settings,
            len(phases),
            Described(release, self.name),
            relation,
            tuple(TokenBucket((Repeated(events[cell]),)) for cell in range(len(facts.cells))),
            details=details,
            solver=solver,
        )
