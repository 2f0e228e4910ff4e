"""The plan of a search: which candidates take part, what a trial may spend, and what the whole of it costs.

Nothing here reads a row. *Selection* (Liu and Talwar 2019; Papernot and Steinke 2022): a random number K of trials,
each a candidate drawn by public chances, trained and scored by itself; the best of them leaves, and nothing else, not
even K. Its cost is that of `veil.accounting.Selection`. *Composition*: a fixed number of trials, all of which are seen,
so that a sampler may learn from their scores; every trial is paid for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from veil.accounting import AccountingError, Choice, Gaussian, Pld, Relation, Repeated, Selection, TokenBucket
from veil.accounting.calibration import noise_multiplier
from veil.accounting.ledger import Account, Terms
from veil.accounting.pld.profiles import supported
from veil.accounting.pld.selection import selection_shift
from veil.accounting.rdp.closed import negative_binomial_mean
from veil.errors import InputError, require
from veil.foundation.randomness import Seed
from veil.methods import create, planned
from veil.plans import Plan
from veil.problem import PublicFacts
from veil.request import Candidate, Settings

TUNE = "tune"
# The logarithmic distribution: much of the cost of a geometric number of trials is saved, little of its use lost.
SHAPE = 0.0
# A loop whose noise, averaged over its steps, is longer than this share of the longest possible update learns nothing.
HOPELESS = 0.5
Parameters = Callable[[Candidate], int]


@dataclass(frozen=True)
class NumberOfTrials:
    """How many trials there are: a truncated negative binomial number, at least 1; secret where it is used.

    >>> number = NumberOfTrials.expecting(3.0)
    >>> round(number.mean, 3), number.quantile(0.5), number.quantile(0.9)
    (3.0, 2, 7)
    """

    gamma: float
    shape: float = SHAPE

    @classmethod
    def expecting(cls, mean: float) -> NumberOfTrials:
        """The number with this mean."""
        require(
            math.isfinite(mean) and 1.01 <= mean <= 1000,
            f"trials is {mean:g}: it must be between 1.01 and 1000 in expectation; for one run use veil train",
        )
        low, high = -60.0, -1e-9  # log γ; the mean falls with it
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if negative_binomial_mean(SHAPE, math.exp(middle)) > mean else (low, middle)
        return cls(math.exp(high))

    @property
    def mean(self) -> float:
        """The expected number."""
        return negative_binomial_mean(self.shape, self.gamma)

    def chances(self, most: int) -> np.ndarray:
        """The chances of 1, 2, …, `most` trials."""
        first = math.log(self.mean) + (1 + self.shape) * math.log(self.gamma)  # f'(0) = E[K]·γ^(1+η)
        counts = np.arange(1, most)
        steps = math.log1p(-self.gamma) + np.log((counts + self.shape) / (counts + 1))
        found: np.ndarray = np.exp(first + np.concatenate([[0.0], np.cumsum(steps)]))
        return found

    def chance_of_all_below(self, each: np.ndarray) -> np.ndarray:
        """The chance that all trials are below something that each is below with this chance: E[each^K]."""
        rest = 1.0 - (1.0 - self.gamma) * np.asarray(each, dtype=np.float64)
        found: np.ndarray = (
            np.log(rest) / math.log(self.gamma)
            if self.shape == 0
            else (rest**-self.shape - 1.0) / (self.gamma**-self.shape - 1.0)
        )
        return found

    def quantile(self, chance: float) -> int:
        """The smallest number that is not exceeded with this chance."""
        most = 64
        while (total := np.cumsum(self.chances(most)))[-1] < chance and most < 2**22:
            most *= 4
        return min(int(np.searchsorted(total, chance)), most - 1) + 1

    def draw(self, seed: Seed) -> int:
        """The number of trials of one search."""
        return self.quantile(float(seed.generator("number of trials", 0).random()))


@dataclass(frozen=True)
class Search:
    """What will happen, in public constants: candidates with the plans of their trials, and what a trial may spend.

    `settings` has the ε and δ of the whole. `trials` is the number of trials: random, or fixed under composition.
    `left_out` says why a candidate takes no part.
    """

    settings: Settings
    trials: NumberOfTrials | int
    candidates: tuple[Candidate, ...]
    plans: tuple[Plan, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def charge(self) -> Literal["selection", "composition"]:
        """How the whole is paid for."""
        return "composition" if isinstance(self.trials, int) else "selection"

    @property
    def facts(self) -> PublicFacts:
        """The public facts of the rows."""
        return self.plans[0].facts

    @property
    def relation(self) -> Relation:
        """The neighbouring relation that all candidates have."""
        return Relation(self.plans[0].relation or Relation.ADD_REMOVE)

    @property
    def share(self) -> Settings:
        """The settings of a trial: its ε and δ."""
        return self.plans[0].settings

    def drawn(self, seed: Seed, number: int) -> int:
        """Which candidate a trial is, by a draw of its own."""
        weights = np.array([candidate.weight for candidate in self.candidates])
        place = seed.generator("candidate", number).random() * weights.sum()
        return int(min(np.searchsorted(np.cumsum(weights), place, side="right"), len(weights) - 1))

    def token(self, runs: Sequence[tuple[Repeated, ...]]) -> Repeated:
        """What a row pays for all trials, each of which is one of these runs."""
        several = list(dict.fromkeys(runs))
        run = (Repeated(Choice(tuple(several))),) if len(several) > 1 else several[0]
        if isinstance(self.trials, NumberOfTrials):
            return Repeated(Selection(run, self.trials.shape, gamma=self.trials.gamma))
        return Repeated(Choice(tuple(several)), self.trials)

    def whole(self) -> Plan:
        """The search as a plan: its rules pay for all trials."""
        rules = tuple(TokenBucket((self.token(runs),)) for runs in _runs_by_cell(self.plans))
        details = {"search": self.as_json()}
        first = self.plans[0]
        return replace(first, method=TUNE, settings=self.settings, steps=1, rules=rules, details=details, solver=None)

    def scoring_terms(self, rows: PublicFacts) -> Terms:
        """The ledger's terms for the rows by which trials are scored."""
        bucket = TokenBucket((self.token([(Repeated(score_event(self.plans[0])),)]),))
        accounts = tuple(
            Account(rows.groups[cell.group], rows.owners[cell.owner], self.settings.epsilon, bucket)
            for cell in rows.cells
        )
        delta = self.settings.delta_for(self.facts)
        return Terms(
            self.relation, delta, self.settings.accountant, accounts, {"method": "scores of trials", "steps": 1}
        )

    def as_json(self) -> dict[str, Any]:
        """What a dry run shows, and the certificate states: public constants."""
        weights = sum(candidate.weight for candidate in self.candidates)
        found: dict[str, Any] = {
            "charge": self.charge,
            "candidates": [{"candidate": c.label, "chance": c.weight / weights} for c in self.candidates],
            "left_out": dict(self.left_out),
            "trial_epsilon": self.share.epsilon,
            "trial_delta": self.plans[0].delta,
        }
        if isinstance(self.trials, int):
            return {**found, "trials": self.trials}
        number = self.trials
        quantiles = {str(chance): number.quantile(chance) for chance in (0.5, 0.9, 0.99)}
        return {**found, "expected_trials": number.mean, "gamma": number.gamma, "shape": number.shape} | {
            "one_trial": float(number.chances(2)[0]),
            "quantiles": quantiles,
        }


def score_event(plan: Plan) -> Gaussian:
    """What a row pays for the score of one trial: noisy counts at the trial's own (ε, δ)."""
    settings, relation = plan.settings, Relation(plan.relation or Relation.ADD_REMOVE)
    kappa = noise_multiplier(
        lambda k: [Gaussian(k, relation, one_sided=True)], settings.epsilon, plan.delta, settings.accountant_for()
    )
    return Gaussian(kappa, relation, one_sided=True)


def plan_search(
    candidates: Sequence[Candidate],
    facts: PublicFacts,
    settings: Settings,
    trials: NumberOfTrials | int,
    parameters: Parameters | None = None,
) -> Search:
    """Plan every candidate with the share of a trial; candidates that cannot work by public rules are left out.

    Args:
        candidates: What a trial may be.
        facts: Public facts of the training rows.
        settings: ε and δ of the whole search.
        trials: A random number of trials for selection, a fixed one for composition.
        parameters: How many numbers a candidate trains, for the rule about noise.

    Returns:
        The search, whose token costs at most ε at δ.

    Raises:
        InputError: No candidate is left, or no share is found.
    """
    require(facts.rows_together == 1, "veil tune supports people by the mean of their rows: omit --person-rows each")
    require(settings.accountant == "pld", "veil tune needs the accountant pld: omit accountant from the settings")
    settings = settings.model_copy(update={"delta": settings.delta_for(facts)})
    first = Search(settings, trials, tuple(candidates), ())
    kept, left_out = _able(first, facts, parameters)
    search = replace(first, candidates=kept, left_out=left_out)
    found = _by_selection(search, facts) if isinstance(trials, NumberOfTrials) else _by_composition(search, facts)
    spent = max(rule.guarantee(settings.delta or 0.0, Pld()) for rule in found.whole().rules or ())
    require(spent <= settings.epsilon * (1 + 1e-6), f"no share of ε = {settings.epsilon:g} pays for this search")
    return found


def plan_trial(candidate: Candidate, facts: PublicFacts, share: Settings) -> Plan:
    """The plan of a trial of this candidate."""
    own = Settings.checked(**{**share.model_dump(), **candidate.settings})
    return planned(create(candidate.method, candidate.options), facts, own)


def _able(
    search: Search, facts: PublicFacts, parameters: Parameters | None
) -> tuple[tuple[Candidate, ...], dict[str, str]]:
    """The candidates whose plan says that they may work, and why the others may not."""
    kept: list[Candidate] = []
    plans: list[Plan] = []
    left_out: dict[str, str] = {}
    for candidate in search.candidates:
        try:
            plan = plan_trial(candidate, facts, search.settings)
        except (InputError, AccountingError) as error:
            left_out[candidate.label] = str(error)
            continue
        reason = _reason(plan, plans, parameters(candidate) if parameters and plan.solver is None else 0)
        if not reason and isinstance(search.trials, int) and not _added_up(plan):
            reason = "its batches are drawn, whose costs --charge composition cannot add up over trials: use selection"
        if reason:
            left_out[candidate.label] = reason
        else:
            kept.append(candidate)
            plans.append(plan)
    reasons = "; ".join(f"{label}: {reason}" for label, reason in left_out.items())
    require(bool(kept), f"no candidate can work here: {reasons}")
    return tuple(kept), left_out


def _reason(plan: Plan, others: Sequence[Plan], parameters: int) -> str:
    """Why a candidate takes no part, from its plan alone; "" if it does."""
    if not plan.private or plan.over_budget:
        return "it is not private within the budget"
    if not all(isinstance(rule, TokenBucket) for rule in plan.rules or ()):
        return "what it spends is chosen while it runs, which a search cannot charge"
    if others and plan.relation is not others[0].relation:
        return f"its neighbouring relation is {plan.relation}, not {others[0].relation}"
    if plan.solver is not None and any(_alike(plan, other) for other in others):
        return "its plan is the same as that of an earlier candidate"
    noise, batch = plan.details.get("noise_multiplier"), plan.details.get("batch")
    if parameters and isinstance(noise, float) and isinstance(batch, int | float):
        share = noise * math.sqrt(parameters / plan.steps) / batch
        if share > HOPELESS:
            return f"its noise over all steps is {share:.2g} of the longest possible update"
    return ""


def _added_up(plan: Plan) -> bool:
    """Whether the accountant knows the cost of several runs of this plan or of another one."""
    rules = [rule for rule in plan.rules or () if isinstance(rule, TokenBucket)]
    return all(supported(Choice((rule.tokens,))) for rule in dict.fromkeys(rules))


def _alike(plan: Plan, other: Plan) -> bool:
    return plan.method == other.method and plan.solver == other.solver and plan.settings == other.settings


def _runs_by_cell(plans: Sequence[Plan]) -> list[list[tuple[Repeated, ...]]]:
    """The tokens of every plan, for each cell."""
    rules = [[rule for rule in plan.rules or () if isinstance(rule, TokenBucket)] for plan in plans]
    return [[rule.tokens for rule in cell] for cell in zip(*rules, strict=True)]


def _with_share(search: Search, facts: PublicFacts, epsilon: float, delta: float) -> Search:
    share = search.settings.model_copy(update={"epsilon": epsilon, "delta": delta, "seed": None})
    return replace(search, plans=tuple(plan_trial(candidate, facts, share) for candidate in search.candidates))


def _by_selection(search: Search, facts: PublicFacts) -> Search:
    """A trial's ε is what the shift leaves of the whole, at δ / E[K].

    The shift grows with the trial's ε. That of the whole ε is too large, so that what it leaves is on the safe side; a
    straight line through both finds nearly all of the rest.
    """
    assert isinstance(search.trials, NumberOfTrials)
    epsilon, delta = search.settings.epsilon, (search.settings.delta or 0.0) / search.trials.mean
    whole = epsilon * (1 - 2e-4)
    most = _shift(_with_share(search, facts, epsilon, delta))
    require(most < whole, f"trials: so many leave nothing of ε = {epsilon:g}: fewer trials, or a larger ε")
    least = _shift(_with_share(search, facts, whole - most, delta))
    slope = (most - least) / (epsilon - whole + most)
    share = (whole - least + slope * (whole - most)) / (1 + slope)
    found = _with_share(search, facts, share, delta)
    shift = _shift(found)
    return found if share + shift <= whole else _with_share(search, facts, whole - shift, delta)


def _shift(search: Search) -> float:
    """By how much selection raises ε, for the row that pays most."""
    score = (Repeated(score_event(search.plans[0])),)
    runs = {tuple(cell) for cell in _runs_by_cell(search.plans)} | {(score,)}
    found = 0.0
    for several in runs:
        selection = search.token(several).event
        assert isinstance(selection, Selection)
        found = max(found, selection_shift(selection, lambda e, s=several: _profile(s, e)))  # type: ignore[misc]
    return found


def _profile(runs: Sequence[tuple[Repeated, ...]], epsilons: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.max([Pld().profile(run, epsilons) for run in dict.fromkeys(runs)], axis=0)
    return found


def _by_composition(search: Search, facts: PublicFacts) -> Search:
    """The largest ε of a trial with which all of them together stay within the whole."""
    epsilon, delta = search.settings.epsilon, search.settings.delta or 0.0
    require(
        isinstance(search.trials, int) and search.trials >= 2, "trials must be 2 or more: for one run use veil train"
    )
    low, high = 0.0, epsilon
    for _ in range(10):
        share = (low + high) / 2
        found = _with_share(search, facts, share, delta)
        tokens = [*(search.token(runs) for runs in _runs_by_cell(found.plans))]
        tokens.append(search.token([(Repeated(score_event(found.plans[0])),)]))
        spent = max(Pld().epsilon([token], delta) for token in dict.fromkeys(tokens))
        low, high = (share, high) if spent <= epsilon else (low, share)
    require(low > 0, f"trials: so many leave nothing of ε = {epsilon:g}: fewer trials, or a larger ε")
    return _with_share(search, facts, low, delta)
