"""The bound from released values, where it is tight: a player of the weights who never moves."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import veil
from tests.methods.convex.convex_cases import linear, made_problem, plan_of
from veil.accounting import Ledger
from veil.foundation.randomness import Seed
from veil.methods.convex import realised
from veil.methods.convex.realised import RealisedRegret
from veil.problem import Problem

STEPS, RADIUS, SLOPE, NOISE = 40, 2.0, 0.3, 1.0
SETTING = SimpleNamespace(weight_radius=RADIUS, bias_of_loss=0.0, constants=SimpleNamespace(middle=0.0))


def shares_of(held: float) -> float:
    """How often the bound holds in 600 runs of two equal groups that lose `SLOPE`·w, where w stays at the edge.

    Without noise the bound is exactly the excess, 2·`SLOPE`·r: whatever it forgets shows at once. `held` scales the
    noise that the account is told of.
    """
    generator, kept = np.random.default_rng(3), 0
    weights, even = np.array([[RADIUS]]), np.full(2, 0.5)
    for _ in range(600):
        regret = RealisedRegret(SETTING, STEPS, held * np.full(2, NOISE), held * NOISE)  # type: ignore[arg-type]
        for _ in range(STEPS):
            losses = SLOPE * RADIUS + NOISE * generator.standard_normal(2)
            gradient = SLOPE + NOISE * generator.standard_normal((1, 1))
            regret.add(weights, even, losses, gradient, held * NOISE)
        kept += regret.bound() >= 2 * SLOPE * RADIUS
    return kept / 600


@pytest.mark.statistical
def test_the_bound_fails_in_no_more_runs_than_it_says() -> None:
    """0.95 less three standard errors of 600 runs is 0.923."""
    assert shares_of(1.0) >= 1 - realised.WRONG


@pytest.mark.statistical
def test_a_bound_that_knows_too_little_noise_would_be_caught() -> None:
    """Told of a tenth of the noise it fails in many runs: the test above can fail."""
    assert shares_of(0.1) < 0.9


def test_without_noise_the_bound_is_the_excess() -> None:
    regret = RealisedRegret(SETTING, STEPS, np.full(2, 1e-12), 1e-12)  # type: ignore[arg-type]
    for _ in range(STEPS):
        regret.add(np.array([[RADIUS]]), np.full(2, 0.5), np.full(2, SLOPE * RADIUS), np.array([[SLOPE]]), 1e-12)
    assert regret.bound() == pytest.approx(2 * SLOPE * RADIUS, abs=1e-9)


PART = realised.WRONG / 3


def within(part: float, runs: int) -> float:
    """The largest share of failures that `runs` runs show when each fails with this probability, but for one test in
    700."""
    return part + 3 * float(np.sqrt(part / runs))


@pytest.mark.statistical
def test_the_martingale_term_holds_for_whoever_stops_when_noise_went_their_way() -> None:
    """8,000 players who stop as soon as their noise exceeds the term: in a third of `WRONG` at most, they ever can."""
    steps, found = 2000, 0
    account = RealisedRegret(SETTING, steps, np.ones(2), 1.0)  # type: ignore[arg-type]
    terms = np.array([account._martingale(float(seen), 1.0) for seen in range(1, steps + 1)])
    generator = np.random.default_rng(8)
    for _ in range(8):
        sums = generator.standard_normal((1000, steps)).cumsum(axis=1)
        found += int((sums > terms).any(axis=1).sum())
    assert 0.2 * PART < found / 8000 <= within(PART, 8000)


@pytest.mark.statistical
def test_what_was_played_counts_with_its_noise() -> None:
    """All weight lies on a group whose losses are released with noise, and another, known exactly, is the worst."""
    generator, wrong = np.random.default_rng(9), 0
    shares, stds = np.array([1.0, 0.0]), np.array([NOISE, 1e-12])
    for _ in range(2000):
        regret = RealisedRegret(SETTING, STEPS, stds, 1e-12)  # type: ignore[arg-type]
        for _ in range(STEPS):
            losses = np.array([-5.0, 1.0]) + stds * generator.standard_normal(2)
            regret.add(np.zeros((1, 1)), shares, losses, np.zeros((1, 1)), 1e-12)
        wrong += regret.bound() < 6.0
    assert wrong / 2000 <= within(PART, 2000)


@pytest.mark.statistical
def test_the_gradients_noise_counts_as_far_as_weights_can_be_apart() -> None:
    """Weights at one edge, the best ones at the other, losses known exactly."""
    generator, wrong = np.random.default_rng(10), 0
    for _ in range(3000):
        regret = RealisedRegret(SETTING, STEPS, np.full(2, 1e-12), NOISE)  # type: ignore[arg-type]
        for _ in range(STEPS):
            gradient = 3 * SLOPE + NOISE * generator.standard_normal((1, 1))
            regret.add(np.array([[RADIUS]]), np.full(2, 0.5), np.zeros(2), gradient, NOISE)
        wrong += regret.bound() < 6 * SLOPE * RADIUS
    assert wrong / 3000 <= within(PART, 3000)


@pytest.mark.statistical
def test_the_worst_loss_holds_where_the_group_that_noise_favoured_most_becomes_the_worst() -> None:
    """400 groups lose nothing; then the one whose noise was lowest loses more than any noise."""
    generator, wrong, groups = np.random.default_rng(11), 0, 400
    for _ in range(300):
        regret = RealisedRegret(SETTING, STEPS, np.full(groups, NOISE), NOISE)  # type: ignore[arg-type]
        noise = NOISE * generator.standard_normal((STEPS, groups))
        lowest = int(noise[:-1].sum(axis=0).argmin())
        for step in range(STEPS):
            losses = noise[step].copy()
            losses[lowest] += 1000.0 * (step == STEPS - 1)
            regret.add(np.zeros((1, 1)), np.full(groups, 1 / groups), losses, np.zeros((1, 1)), NOISE)
        wrong += regret.worst_loss() < 1000.0 / STEPS
    assert wrong / 300 <= within(PART, 300)


@pytest.mark.statistical
def test_a_run_tells_its_account_the_noise_that_was_really_added() -> None:
    """Exact losses and gradients at the weights and shares of every step, computed here: what is left over has the
    stated size. 5,000 values: their mean square is within a tenth of 1 but for one test in 10⁵."""
    generator = np.random.default_rng(12)
    x = generator.standard_normal((90, 9))
    problem = Problem.from_arrays(x, (x[:, 0] > 0).astype(int), ["a"] * 60 + ["b"] * 30)
    plan = plan_of("noisy-sgd-mgr", {}, problem, steps=500)
    told: list[tuple[np.ndarray, ...]] = []
    shown: list[np.ndarray] = []
    model = linear(9)
    with pytest.MonkeyPatch.context() as patched:
        add = RealisedRegret.add
        patched.setattr(RealisedRegret, "add", lambda self, *given: (told.append(given), add(self, *given))[1])
        ledger, seed = Ledger(plan.terms()), Seed.from_int(4)
        plan.solver.solve(model, problem, seed, ledger, lambda step, state: shown.append(state["weights"]))  # type: ignore[union-attr]
    setting = plan.solver.setting  # type: ignore[union-attr]
    rows = np.concatenate([x, np.ones((90, 1))], axis=1)
    rows = torch.from_numpy(rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True)))
    signs, of_losses, of_gradients = torch.from_numpy(np.where(x[:, 0] > 0, 1.0, -1.0)), [], []
    for weights, shares, losses, gradient, std in told:
        at = torch.from_numpy(weights).requires_grad_()
        each = torch.nn.functional.softplus(-signs * (rows @ at)[:, 0])
        means = torch.stack([each[:60].mean(), each[60:].mean()])
        (torch.from_numpy(shares) * means).sum().backward()
        of_losses.append((losses + setting.constants.middle - means.detach().numpy()) / plan.solver.loss_noise)  # type: ignore[union-attr]
        of_gradients.append((gradient - at.grad.numpy()).ravel() / std)  # type: ignore[union-attr]
    assert len(told) == 500
    assert [list(shares) for _, shares, *_ in told] == [[0.5, 0.5], *map(list, shown[:-1])], "shares of another step"
    layer = model[1]  # type: ignore[index]
    released = np.concatenate([layer.weight.detach().numpy(), layer.bias.detach().numpy()[:, None]], axis=1)
    assert released[1] - released[0] == pytest.approx(np.mean([one[0] for one in told], axis=0)[:, 0], abs=1e-6)
    assert np.ptp([shares[0] for _, shares, *_ in told]) > 0.1, "shares never moved: the test shows little"
    assert np.square(of_gradients).mean() == pytest.approx(1.0, abs=0.1)
    assert np.square(of_losses).mean() == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("options", [{"batch": 20}, {"release": "laplace"}, {"gradient": "one-group"}], ids=str)
def test_nothing_is_certified_where_released_values_have_other_noise_too(options: dict[str, object]) -> None:
    """Which rows were drawn, which group was chosen, and noise with longer tails are in no term of the bound."""
    run = veil.fit(
        linear(), made_problem(), method=veil.method("noisy-sgd-mgr", **options), steps=4, delta=1e-4, seed=5
    )
    assert "realised_excess_risk" not in run.history.columns
    plain = veil.fit(linear(), made_problem(), method="noisy-sgd-mgr", steps=4, delta=1e-4, seed=5)
    assert "realised_excess_risk" in plain.history.columns
