"""A canary goes through the whole of `veil tune`: rows are read, models trained, scored, and the best one chosen.

Trials make one step of DP-SGD with all rows, so each publishes one Gaussian release. The canary alone has its value of
a column: its gradient has a direction of its own and the whole length of the bound. All public rows, by which trials
are chosen, have this value too, and differ in a number that decides which of them are predicted right: the trial that
noise carried farthest in the canary's direction wins. The attacker sees the published weights in this direction.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import kstest

from veil.accounting import Choice, Repeated
from veil.accounting.verify import verify
from veil.auditing.lower_bounds import LowerBound
from veil.auditing.search_canaries import fit_search
from veil.foundation.parallel import Workers
from veil.foundation.randomness import Seed
from veil.plans import Plan
from veil.problem import PublicFacts
from veil.request import TuneRequest
from veil.tables import tuning
from veil.training import fitting, searching
from veil.training.searching import NumberOfTrials, Search

SEARCHES, PAIRS, EPSILON, DELTA, TRIALS = 160, 6, 4.0, 0.1, 10.0
ROWS, PUBLIC = 200, 400
SCHEMA = f"""
columns.age = {{kind = "numeric", low = -1.0, high = 1.0, missing = "middle"}}
columns.job = {{kind = "category", values = ["a", "rare"]}}
columns.sex = {{kind = "group", values = ["f"]}}
columns.ill = {{kind = "target", values = ["no", "yes"]}}
group_sizes.f = {ROWS}
"""
CANARY = pd.DataFrame({"age": [0.0], "job": ["rare"], "sex": ["f"], "ill": ["yes"]})
Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    old = np.arange(ROWS) % 2 == 0
    others = pd.DataFrame({"age": np.where(old, 1.0, -1.0), "job": "a", "sex": "f", "ill": np.where(old, "yes", "no")})
    others.to_csv(folder / "without.csv", index=False)
    pd.concat([others, CANARY]).to_csv(folder / "with.csv", index=False)
    public = pd.DataFrame({"age": np.linspace(-0.12, 0.12, PUBLIC), "job": "rare", "sex": "f", "ill": "yes"})
    public.to_csv(folder / "public.csv", index=False)
    (folder / "schema.toml").write_text(SCHEMA)
    return folder


@pytest.fixture(autouse=True)
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is the same in all trials: other tests show that it keeps rows apart."""
    monkeypatch.setattr(fitting, "check_rows_apart", lambda *_: [])


def request(tables: Path, name: str, seed: int) -> TuneRequest:
    return TuneRequest.checked(
        data=tables / f"{name}.csv",
        test=tables / "public.csv",
        schema=tables / "schema.toml",
        target="ill",
        group=("sex",),
        candidate=[f"dp-sgd model=logistic steps=1 batch_size={ROWS}"],
        trials=TRIALS,
        settings={"epsilon": EPSILON, "delta": DELTA, "seed": seed},
    )


def published(tables: Path, name: str, seed: int, out: Path) -> Floats:
    """The weights that one search publishes, in one row."""
    folder = out / f"{name}-{seed}"
    run = tuning.tune(request(tables, name, seed), folder, workers=Workers(1, "threading"))
    assert run.certificate.epsilon <= EPSILON * (1 + 1e-6)
    assert seed or verify(folder / "certificate.json").holds, "nothing in its folder refutes the search"
    return np.concatenate([weights.detach().double().numpy().ravel() for weights in run.model.parameters()])


def audited(tables: Path, searches: int, out: Path) -> tuple[LowerBound, Floats]:
    """What the published weights prove about ε; and how far noise carried them, in units of what the canary moves."""
    pairs = [[published(tables, name, seed, out) for name in ("with", "without")] for seed in range(PAIRS)]
    moves = np.array([one - other for one, other in pairs])
    move = moves.mean(axis=0)
    # The same numbers of trials and the same noise, with and without: the canary moves every search by the same.
    assert np.abs(moves - move).max() < 1e-4 * np.linalg.norm(move)
    more = [published(tables, "without", seed, out) for seed in range(PAIRS, searches)]
    along = np.array([other for _, other in pairs] + more) @ move / (move @ move)
    search = tuning.plan_of_search(request(tables, "without", 0))
    return fit_search(search, along, 1.0, Seed.from_int(1)), along


class Forgetful:
    """A search that trains each trial with all of ε and δ, and writes one trial into the ledger."""

    @staticmethod
    def shares(search: Search, facts: PublicFacts) -> Search:
        return searching._with_share(search, facts, search.settings.epsilon, search.settings.delta or 0.0)

    @staticmethod
    def token(self: Search, runs: list[tuple[Repeated, ...]]) -> Repeated:
        return Repeated(Choice(tuple(runs)))

    @classmethod
    def put(cls, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(searching, "_by_selection", cls.shares)
        monkeypatch.setattr(Search, "token", cls.token)


@pytest.mark.long
@pytest.mark.statistical
def test_what_whole_searches_publish_of_a_canary_stays_below_their_certificate(tables: Path, tmp_path: Path) -> None:
    """A false alarm has a chance below 1 in 20, and with these seeds there is none."""
    bound, along = audited(tables, SEARCHES, tmp_path)
    assert 0.3 * EPSILON < bound.epsilon <= EPSILON, "the attack sees much, and less than was promised"
    search = tuning.plan_of_search(request(tables, "without", 0))
    trials, noise = search.trials, search.plans[0].details["noise_multiplier"]
    assert isinstance(trials, NumberOfTrials)
    # What the fit assumes: the best of a random number of Gaussian trials, with the noise that was charged.
    assert kstest(along / noise, lambda x: trials.chance_of_all_below(ndtr(x))).pvalue > 0.01


@pytest.mark.long
@pytest.mark.statistical
def test_whole_searches_that_forget_their_trials_are_caught(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is missed with a chance of about 1 in 100, and with these seeds it is not."""
    Forgetful.put(monkeypatch)
    bound, _ = audited(tables, SEARCHES, tmp_path)
    assert bound.epsilon > EPSILON


def test_every_trial_trains_with_its_share_and_no_more(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, plans = tuning.execute, []

    def spied(job: fitting.Job, plan: Plan, *more: object) -> object:
        plans.append(plan)
        return real(job, plan, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(tuning, "execute", spied)
    search = tuning.plan_of_search(request(tables, "without", 0))
    assert isinstance(search.trials, NumberOfTrials)
    seed = next(seed for seed in range(99) if search.trials.draw(Seed.from_int(seed)) == 3)  # type: ignore[union-attr]
    published(tables, "without", seed, tmp_path)
    assert len(plans) == 3
    for plan in plans:
        assert plan.settings.epsilon == search.share.epsilon < EPSILON
        assert plan.delta == pytest.approx(DELTA / TRIALS)
        assert plan.rules == search.plans[0].rules


def test_a_search_that_gives_trials_more_than_their_share_is_not_planned(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "_by_selection", Forgetful.shares)
    with pytest.raises(tuning.InputError, match="no share of ε = 4 pays for this search"):
        tuning.plan_of_search(request(tables, "without", 0))
