"""Privacy cost: losses against the twin, the gap between groups, and a twin that is trained once."""

from __future__ import annotations

import math

import pytest
import torch

import veil
from veil.datasets import GroupSpec, generate
from veil.errors import InputError
from veil.metrics.privacy_cost import privacy_cost
from veil.training.fitting import row_losses
from veil.training.gradient_variance import GradientVariance, group_gradients


def one(**groups: float) -> dict[int, dict[str, float]]:
    """A single run, of seed 1."""
    return {1: groups}


def test_the_gap_is_between_losses_not_between_accuracies() -> None:
    twin = one(a=0.9, b=0.7)
    assert privacy_cost(twin, one(a=0.8, b=0.6)).gap == pytest.approx(0.0)
    assert privacy_cost(twin, one(a=0.7, b=0.7)).gap == pytest.approx(0.2)


def test_a_group_that_gains_from_privacy_widens_the_gap() -> None:
    assert privacy_cost(one(a=0.9, b=0.7), one(a=0.8, b=0.8)).gap == pytest.approx(0.2)


def test_the_mean_over_seeds_comes_before_the_largest_difference() -> None:
    twins = {seed: {"a": 0.9, "b": 0.7} for seed in (1, 2)}
    runs = {1: {"a": 0.8, "b": 0.5}, 2: {"a": 0.6, "b": 0.7}}
    cost = privacy_cost(twins, runs)
    assert cost.by_group == pytest.approx({"a": 0.2, "b": 0.1})
    assert cost.gap == pytest.approx(0.1)  # the mean of each seed's own gap is 0.2
    assert cost.by_seed == pytest.approx({1: -0.1, 2: 0.3})
    assert sum(cost.by_seed.values()) / 2 == pytest.approx(cost.gap)


def test_only_seeds_that_both_have_are_compared_and_all_where_they_share_none() -> None:
    runs = {1: {"a": 0.5, "b": 0.5}, 2: {"a": 0.0, "b": 1.0}}
    assert privacy_cost(one(a=0.9, b=0.7), runs).gap == pytest.approx(0.2)
    assert privacy_cost({7: {"a": 0.9, "b": 0.7}}, runs).by_group == pytest.approx({"a": 0.65, "b": -0.05})
    with pytest.raises(InputError, match="needs a private run and a twin"):
        privacy_cost({}, runs)


def test_only_the_named_groups_are_compared_and_empty_ones_take_no_part() -> None:
    twin, run = one(a=0.9, b=0.7, c=0.9), one(a=0.9, b=0.6, c=0.1)
    assert privacy_cost(twin, run, ["a", "b"]).gap == pytest.approx(0.1)
    hollow = privacy_cost(twin, one(a=0.9, b=0.6, c=math.nan))
    assert hollow.gap == pytest.approx(0.1)
    assert hollow.as_json()["by_group"]["c"] is None


def test_a_group_that_the_twin_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match='group "b"'):
        privacy_cost(one(a=0.9, b=0.8), one(a=0.9))


def test_gradient_variance_equals_a_loop_over_rows() -> None:
    problem = generate([GroupSpec("large", 60), GroupSpec("small", 20, angle=1.0)])
    model = torch.nn.Linear(10, 2)
    found = group_gradients(model, row_losses, problem, rows=1000)
    rows = []
    for row in range(80):
        model.zero_grad()
        row_losses(model, (problem.inputs[row : row + 1], problem.targets[row : row + 1])).sum().backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]).double())  # type: ignore[union-attr]
    all_rows, groups = torch.stack(rows), torch.from_numpy(problem.group_of)
    for group in range(2):
        own = all_rows[groups == group]
        assert found.norms[group] == pytest.approx(float(own.norm(dim=1).mean()), rel=1e-4)
        expected = float(((own - all_rows.mean(dim=0)) ** 2).sum(dim=1).mean())
        assert found.variances[group] == pytest.approx(expected, rel=1e-4)


def test_a_run_watched_for_gradient_variance_is_marked_as_not_covered() -> None:
    problem = generate([GroupSpec("large", 60), GroupSpec("small", 20, angle=1.0)])
    watch = GradientVariance(problem, row_losses, every=2)
    run = veil.fit(
        torch.nn.Linear(10, 2), problem, method="dp-sgd", epsilon=1.0, steps=4, batch_size=20, seed=1, callbacks=[watch]
    )
    looks = run.findings["GradientVariance"]["looks"]
    assert [look["step"] for look in looks] == [1, 3]
    assert run.findings["GradientVariance"]["private"] is True
    assert any("private rows" in line for line in run.certificate.not_covered)
