"""Effects: what an additive model learned of every column, from its weights and the encoding alone.

    score(row) = constant + Σ_j f_j(x_j) + Σ_(a,b) g_ab(x_a, x_b)

f_j is a curve through its knots for a number or a date, and one value each for a category. g_ab is a table of the
levels of two crossed columns. What one of the two says alone is taken out of it and added to f_a and f_b, so that rows
and columns of the table are 0 on average. Every f_j is 0 on average over its knots or values, all of which count the
same: how common a value is stays private. Knots are placed by noisy quantiles, so for numbers this is about the average
over rows.

No row is read: effects are post-processing of the released model and cost no ε. `noise` estimates the standard
deviation that the noise of the gradients gives an effect, from released and public values alone. Noise in where knots
stand, in which columns are crossed and in the weights of groups is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from veil.models.crosses import LEVELS, Crosses
from veil.models.knots import Knots
from veil.models.tables import Head, Scale
from veil.plans import Plan
from veil.tables.encoding import Category, Codes, Date, Encoding, HashedCategory, Numeric, Text
from veil.training.fitting import Measured

Unit = Literal["log-odds", "scores", "target"]
Kind = Literal["number", "date", "category", "hashed category", "text"]
FORMAT = "veil-effects/1"
REST, UNKNOWN = "other values", "unknown value"


@dataclass(frozen=True)
class Levels:
    """The levels of a crossed column, and how much each of the column's knots or values belongs to each."""

    names: tuple[str, ...]
    shares: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class ColumnEffect:
    """What one column adds to each curve.

    `at` are knots in the column's own unit (dates: days since 1970-01-01) with straight lines between them, or the
    values of a category. Of two knots in one place the last counts. `missing` is the effect of a missing number, where
    it has a flag; `unknown` that of a value of a category that is missing or not listed. A text has one effect for each
    hashed token, which counts by the token's share; it is not centred. `spread` is the standard deviation over `at`,
    each counting the same. `noise` is None where the model does not know it.

    Args:
        column: Name of the column.
        kind: "number", "category", "date" or "text", as the encoding has it.
        at: Knots or values.
        effects: By curve, the effect at each of them.
        missing: Effect of a missing number by curve, or None.
        unknown: Effect of an unlisted value by curve, or None.
        spread: Standard deviation over `at`.
        levels: The levels that the column is crossed by, or None.
        noise: Standard deviation of each effect by the noise of training, or None.
    """

    column: str
    kind: Kind
    at: tuple[float, ...] | tuple[str, ...]
    effects: tuple[tuple[float, ...], ...]
    missing: tuple[float, ...] | None
    unknown: tuple[float, ...] | None
    spread: float
    levels: Levels | None
    noise: tuple[tuple[float, ...], ...] | None = None


@dataclass(frozen=True)
class PairEffect:
    """The interaction of two crossed columns: by curve, level of the first, level of the second.

    A missing number has the levels of the middle between its bounds.

    Args:
        columns: Names of both columns.
        levels: Names of the levels of each.
        effects: By curve, level of the first and level of the second column.
        spread: Standard deviation over all pairs of levels.
        noise: Standard deviation of each effect by the noise of training, or None.
    """

    columns: tuple[str, str]
    levels: tuple[tuple[str, ...], tuple[str, ...]]
    effects: tuple[tuple[tuple[float, ...], ...], ...]
    spread: float
    noise: tuple[tuple[tuple[float, ...], ...], ...] | None = None


@dataclass(frozen=True)
class Effects:
    """All effects of an additive model; columns and pairs that matter most come first.

    Of two classes there is one curve, the log-odds of the second; of more, one each: its score less the mean over
    classes. Numbers to predict have one curve, in the target's own unit. `from_rows` says whether knots and
    values stand on bounds and categories that were taken from rows.

    Args:
        unit: What an effect is measured in.
        curves: Names of the curves.
        from_rows: Whether bounds or categories were taken from rows.
        constant: By curve, what is added to all rows.
        columns: What each column adds.
        pairs: What pairs of columns add beside it.
    """

    unit: Unit
    curves: tuple[str, ...]
    from_rows: bool
    constant: tuple[float, ...]
    columns: tuple[ColumnEffect, ...]
    pairs: tuple[PairEffect, ...]

    def as_json(self) -> dict[str, Any]:
        """What `effects.json` holds.

        Returns:
            A mapping of JSON values.
        """
        return {"format": FORMAT, **asdict(self)}


@dataclass(frozen=True)
class Learned:
    """Takes the effects of a run's model at its end, if the model is additive; no row is read."""

    encoding: Encoding

    def __call__(self, model: nn.Module, plan: Plan) -> Measured:
        """The effects, for the run's record."""
        found = effects_of(model, self.encoding, plan.facts.classes, plan.facts.target_range)
        return Measured(effects=None if found is None else found.as_json())


@dataclass(frozen=True)
class _Crossed:
    """A crossed column: the levels it uses, and how its numbers become levels. One more level takes what is in none.

    `lengths` are those of the levels in a product: rare values of a category have longer ones.
    """

    column: int
    used: list[int]
    maps: Tensor
    lengths: Tensor


def effects_of(
    model: nn.Module, encoding: Encoding, classes: Sequence[str], target_range: tuple[float, float] | None = None
) -> Effects | None:
    """The effects of a trained model `additive`; None where the model is another one, or projects its rows.

    Args:
        model: what `veil train` made, or a predictor's `model`.
        encoding: how the columns of the table became numbers.
        classes: their names; empty for numbers to predict.
        target_range: the numbers that −1 and 1 stand for, where numbers are predicted.

    Returns:
        The effects, or None.

    >>> from veil.models.tables import additive
    >>> from veil.problem import PublicFacts
    >>> model = additive(PublicFacts(("all",), ("all",), (), (1,), classes=("no", "yes")), [1], [0], knots=3)
    >>> _ = model[-1].weight.data.copy_(torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]))
    >>> age = effects_of(model, Encoding((Numeric("age", 20, 80, "middle"),), False), ("no", "yes")).columns[0]
    >>> age.at, age.effects
    ((20.0, 50.0, 80.0), ((-1.0, 0.0, 1.0),))
    """
    match list(model) if isinstance(model, nn.Sequential) else []:
        case [nn.Flatten(), Knots() as curves, Crosses() as crosses, Scale() as scale, nn.Linear() as head]:
            pass
        case _:
            return None
    if not _fits(curves, crosses, encoding) or not all(bool(value.isfinite().all()) for value in head.parameters()):
        return None
    unit, names, contrast = _curves(classes)
    low, high = target_range or (-1.0, 1.0)
    contrast = contrast * (high - low) / 2
    weights = contrast @ head.weight.detach().double() * scale.factor
    constant = contrast @ head.bias.detach().double() + (low + high) / 2
    made = _Additive(curves, crosses, encoding)
    found = made.parts(weights, constant)
    if found is None:
        return None
    columns, pairs, constant = found
    root = head.noise_root if isinstance(head, Head) else None
    if root is not None:
        # Effects are linear in the weights, so that what noise does to them is what they are of the noise.
        noise = made.parts(root.T.double() * scale.factor, torch.zeros(root.shape[1], dtype=torch.float64))
        assert noise is not None
        lengths = torch.linalg.vector_norm(contrast, dim=1)
        columns = [_with_noise(own, other, lengths) for own, other in zip(columns, noise[0], strict=True)]
        pairs = [_with_noise(own, other, lengths) for own, other in zip(pairs, noise[1], strict=True)]
    return Effects(
        unit,
        names,
        encoding.from_rows,
        _listed(constant),
        tuple(sorted(columns, key=lambda one: -one.spread)),
        tuple(sorted(pairs, key=lambda one: -one.spread)),
    )


E = TypeVar("E", ColumnEffect, PairEffect)


def _with_noise(effect: E, of_noise: E, lengths: Tensor) -> E:
    """An effect with its standard deviation: over independent directions of noise, squares add up."""
    spread = torch.tensor(of_noise.effects, dtype=torch.float64).square().sum(dim=0).sqrt()
    curves = lengths.reshape(-1, *[1] * spread.ndim) * spread
    noise: Any = tuple(tuple(_listed(line) for line in one) if one.ndim == 2 else _listed(one) for one in curves)
    return replace(effect, noise=noise)


@dataclass(frozen=True)
class _Additive:
    """How weights become effects: linear in them, for any number of curves."""

    knots: Knots
    crosses: Crosses
    encoding: Encoding

    def parts(self, weights: Tensor, constant: Tensor) -> tuple[list[ColumnEffect], list[PairEffect], Tensor] | None:
        """Effects of columns and of pairs in the order of the table, and the constant; None for a sequence's codes."""
        plain, tables = weights[:, : len(self.crosses.levels)].clone(), weights[:, len(self.crosses.levels) :]
        tables = tables.reshape(len(weights), len(self.crosses.pairs), LEVELS, LEVELS)
        crossed, pairs = _crossed(self.crosses, self.knots), []
        for (a, b), table in zip(self.crosses.pairs, tables.unbind(1), strict=True):
            first, second = crossed[a], crossed[b]
            if first is None or second is None:
                continue
            own = table[:, first.used][:, :, second.used] * first.lengths[:, None] * second.lengths
            # All crosses together are as long as all columns.
            pure, rest = _purified(own * (len(self.crosses.blocks) / len(self.crosses.pairs)) ** 0.5)
            for side, alone in zip((first, second), rest, strict=True):
                # The share of the last level is 1 less those of the others.
                plain[:, self.crosses.blocks[side.column]] += (alone[:, :-1] - alone[:, -1:]) @ side.maps.T
                constant = constant + alone[:, -1]
            pairs.append(((first, second), pure))
        levels = {one.column: one for one in crossed if one is not None}
        columns, numbers = [], iter(self.knots.places)
        for index, column in enumerate(self.encoding.columns):
            own, level = plain[:, self.crosses.blocks[index]], levels.get(index)
            match column:
                case Numeric() | Date():
                    found, moved = _number(column, own, next(numbers), level)
                case Category() | HashedCategory():
                    found, moved = _category(column, own, level)
                case Text():
                    found, moved = _text(column, own, level)
                case Codes():
                    return None
            columns.append(found)
            constant = constant + moved
        together = [_pair(pair, pure, columns) for pair, pure in pairs]
        return columns, together, constant


def _fits(curves: Knots, crosses: Crosses, encoding: Encoding) -> bool:
    """Whether the model's blocks are the columns of the encoding, and all numbers have knots."""
    knots = curves.places.shape[1]
    numbers = [isinstance(column, Numeric | Date) for column in encoding.columns]
    widths = [width + knots * number for width, number in zip(encoding.widths(), numbers, strict=True)]
    return curves.numbers == encoding.numbers() and [len(block) for block in crosses.blocks] == widths


def _curves(classes: Sequence[str]) -> tuple[Unit, tuple[str, ...], Tensor]:
    """What effects are in, the name of each curve, and how outputs become curves."""
    count = len(classes)
    if count < 2:
        return "target", ("target",), torch.ones(1, 1, dtype=torch.float64)
    if count == 2:
        return "log-odds", (classes[1],), torch.tensor([[-1.0, 1.0]], dtype=torch.float64)
    return "scores", tuple(classes), torch.eye(count, dtype=torch.float64) - 1 / count


def _crossed(crosses: Crosses, knots: Knots) -> list[_Crossed | None]:
    """The column at each crossed place, with the levels that it uses; None where nothing was chosen."""
    found: list[_Crossed | None] = []
    for place in range(crosses.chosen):
        maps = crosses.levels[:, place].double()
        own = [index for index, block in enumerate(crosses.blocks) if bool(maps[block].any())]
        if not own:
            found.append(None)
            continue
        block, used = crosses.blocks[own[0]], maps.any(dim=0).nonzero()[:, 0].tolist()
        shares = maps[block][:, used]
        # Levels of numbers share a row between them; a value is in one level or in none.
        lengths = torch.ones_like(shares[0]) if block[0] in knots.numbers else shares.amax(dim=0)
        found.append(_Crossed(own[0], used, shares / lengths, lengths))
    return found


def _purified(table: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """A table [curve, level, level] less what each side says alone, with the last level of each side; and what that is.

    Averages are over the levels that were there, all alike.
    """
    whole = nn.functional.pad(table, (0, 1, 0, 1))
    first = whole[:, :, :-1].mean(dim=2)
    whole = whole - first[:, :, None]
    second = whole[:, :-1].mean(dim=1)
    return whole - second[:, None], (first, second)


def _number(
    column: Numeric | Date, weights: Tensor, places: Tensor, crossed: _Crossed | None
) -> tuple[ColumnEffect, Tensor]:
    """A curve through knots and bounds, centred, and what centring took from each curve."""
    count = len(places)
    layer = Knots([0], count)
    layer.places.copy_(places)
    # Outside the knots their shares stay what they are at the last one.
    knots = [*[0] * bool(places[0] > -1.0), *range(count), *[count - 1] * bool(places[-1] < 1.0)]
    points = places.double()[knots]
    points[0], points[-1] = -1.0, 1.0
    own, fine = weights[:, :1], weights[:, -count:]
    curve = own * points + fine[:, knots]
    mean = curve.mean(dim=1)
    missing = None
    if column.missing == "flag":
        middle = layer(torch.zeros(1, 1, dtype=torch.float64))[0, 1:]
        missing = _listed(fine @ middle + weights[:, 1] - mean)
    at = column.low + (points + 1) / 2 * ((column.high - column.low) or 1.0)
    kind: Kind = "date" if isinstance(column, Date) else "number"
    levels = None
    if crossed is not None:
        maps = crossed.maps[-count:][knots]
        most = at[maps.argmax(dim=0)].tolist()
        names = [
            f"near {_day(value) if kind == 'date' else _rounded(value, column.high - column.low)}" for value in most
        ]
        levels = Levels(_told_apart(names), tuple(_listed(line) for line in maps))
    effects = tuple(_listed(line) for line in curve - mean[:, None])
    return ColumnEffect(column.name, kind, _listed(at), effects, missing, None, _spread(curve), levels), mean


def _category(
    column: Category | HashedCategory, weights: Tensor, crossed: _Crossed | None
) -> tuple[ColumnEffect, Tensor]:
    """An effect for each value, centred, and what centring took from each curve."""
    # One value alone is told from all others.
    among = weights if weights.shape[1] > 1 else nn.functional.pad(weights, (0, 1))
    mean = among.mean(dim=1)
    kind: Kind = "category" if isinstance(column, Category) else "hashed category"
    values = column.values if isinstance(column, Category) else _hash_names(column)
    effects, levels = tuple(_listed(line) for line in weights - mean[:, None]), _value_levels(values, crossed)
    return ColumnEffect(column.name, kind, values, effects, None, _listed(-mean), _spread(among), levels), mean


def _hash_names(column: HashedCategory) -> tuple[str, ...]:
    pools = (f"pool {number + 1} of {column.pools}" for number in range(column.pools))
    return (*(f"hash {value}" for value in column.kept), *pools)


def _text(column: Text, weights: Tensor, crossed: _Crossed | None) -> tuple[ColumnEffect, Tensor]:
    """An effect for each hashed token. Shares of tokens do not add up to 1, so that nothing can be centred."""
    values = tuple(f"hash {bucket}" for bucket in range(column.buckets))
    effects, levels = tuple(_listed(line) for line in weights), _value_levels(values, crossed)
    found = ColumnEffect(column.name, "text", values, effects, None, None, _spread(weights), levels)
    return found, torch.zeros(len(weights), dtype=weights.dtype)


def _value_levels(values: Sequence[str], crossed: _Crossed | None) -> Levels | None:
    """Levels named by their values, or as all others; the last one is that of no value."""
    if crossed is None:
        return None
    maps = torch.cat([crossed.maps, 1 - crossed.maps.sum(dim=1, keepdim=True)], dim=1)
    members = [[values[place] for place in line.nonzero()[:, 0].tolist()] for line in crossed.maps.T]
    rest = REST if sum(len(own) > 1 for own in members) == 1 else None
    names = [own[0] if len(own) == 1 else rest or _together(own) for own in members]
    return Levels((*names, UNKNOWN), tuple(_listed(line) for line in maps))


def _together(values: Sequence[str]) -> str:
    """Values that share a level.

    >>> _together(["teacher", "nurse"]), _together(["teacher", "nurse", "cook", "smith"])
    ('teacher, nurse', 'teacher, nurse and 2 more')
    """
    more = f" and {len(values) - 2} more" if len(values) > 2 else ""
    return ", ".join(values[:2]) + more


def _pair(pair: tuple[_Crossed, _Crossed], pure: Tensor, columns: Sequence[ColumnEffect]) -> PairEffect:
    first, second = (columns[side.column] for side in pair)
    assert first.levels is not None
    assert second.levels is not None
    spread = _spread(pure[:, :-1, :-1].flatten(1))
    rows, across = len(first.levels.names), len(second.levels.names)
    effects = tuple(tuple(_listed(line) for line in table) for table in pure[:, :rows, :across])
    return PairEffect((first.column, second.column), (first.levels.names, second.levels.names), effects, spread)


def _spread(curves: Tensor) -> float:
    """The standard deviation over a curve, the root of its mean square over curves."""
    return float(curves.var(dim=1, correction=0).mean().sqrt())


def _listed(values: Tensor) -> tuple[float, ...]:
    return tuple(values.tolist())


def _rounded(value: float, width: float) -> str:
    """A number to a hundredth of the width of its column or somewhat finer."""
    digits = 2 - math.floor(math.log10(width)) if width > 0 else 4
    value = round(value, digits) + 0.0
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _told_apart(names: Sequence[str]) -> tuple[str, ...]:
    """Names of levels in almost one place get numbers.

    >>> _told_apart(["near 0", "near 0", "near 9"])
    ('near 0 (1)', 'near 0 (2)', 'near 9')
    """
    return tuple(
        f"{name} ({list(names[: place + 1]).count(name)})" if list(names).count(name) > 1 else name
        for place, name in enumerate(names)
    )


def _day(days: float) -> str:
    return str(np.datetime64(math.floor(days), "D"))
