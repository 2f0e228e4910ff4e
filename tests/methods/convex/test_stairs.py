"""Stairs: coordinates in which smooth curves of a number are large directions, and the way back to the layer's own."""

from __future__ import annotations

import torch
from torch import nn

from veil.methods.convex.stairs import Stairs
from veil.models.tables import additive
from veil.models.whitened import Projection
from veil.problem import PublicFacts

FACTS = PublicFacts(("all",), ("all",), (), (4,), classes=("no", "yes"))


def features(**options: object) -> nn.Sequential:
    model = additive(FACTS, numbers=(0, 2), **options)  # type: ignore[arg-type]
    return nn.Sequential(*list(model)[:-1])  # type: ignore[call-overload]


def test_scores_of_stairs_are_those_of_the_shares_with_weights_brought_back() -> None:
    generator = torch.Generator().manual_seed(0)
    made = features(knots=7, crossed=2)
    rows = made(torch.rand(50, 4, generator=generator) * 2 - 1).double()
    stairs = Stairs.of(made)
    assert stairs == Stairs(4, 2, 7)
    weights = torch.randn(3, rows.shape[1], generator=generator).double()
    torch.testing.assert_close(stairs.climbed(rows) @ weights.T, rows @ stairs.back(weights).T)


def test_the_smoothest_curve_has_most_of_the_variance_and_all_of_them_about_one() -> None:
    values = torch.linspace(-1, 1, 5_001)[:, None].expand(-1, 4)
    stairs = Stairs.of(features(knots=25))
    assert stairs is not None
    rows = stairs.climbed(features(knots=25)(values).double())[:, 4:29] / 0.5  # four columns share a row's length
    found = torch.linalg.eigvalsh(torch.cov(rows.T)).flip(0)
    assert 0.8 < found.sum() < 1.2
    assert found[0] > 0.55 * found.sum()
    assert found[0] / found[1] > 3.5


def test_other_columns_and_crosses_stay_as_they_are() -> None:
    made = features(knots=5, crossed=2)
    rows = torch.randn(6, 4 + 2 * 5 + 16, generator=torch.Generator().manual_seed(0)).double()
    stairs = Stairs.of(made)
    assert stairs is not None
    kept = [*range(4), *range(14, 30)]
    assert torch.equal(stairs.climbed(rows)[:, kept], rows[:, kept])
    assert torch.equal(stairs.back(rows)[:, kept], rows[:, kept])


def test_a_model_without_numbers_or_with_a_projection_has_no_stairs() -> None:
    assert Stairs.of(nn.Sequential(*list(additive(FACTS))[:-1])) is None  # type: ignore[call-overload]
    assert Stairs.of(nn.Sequential(nn.Flatten())) is None
    wide = features(knots=600)
    assert any(isinstance(part, Projection) for part in wide)
    assert Stairs.of(wide) is None
