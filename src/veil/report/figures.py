"""Figures: what each chart shows, as data. The page draws them, and every one also becomes a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from veil.report.wording import NOTHING, date, number, percent, signed, value

Value = float | None
FORMATS: dict[str, Callable[[Value], str]] = {
    "percent": percent,
    "number": number,
    "signed": signed,
    "value": value,
    "date": date,
}


@dataclass(frozen=True)
class Cell:
    """One cell of a table: what is read, and what it is sorted by."""

    text: str
    sort: float | str | None = None


@dataclass(frozen=True)
class Table:
    """A table with a caption; the columns after the first `text_columns` are numbers."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    text_columns: int = 1


@dataclass(frozen=True)
class Series:
    """A named line: a value at each x; `role` is "group" or "summary". `band` is drawn to both sides of the line."""

    name: str
    x: tuple[float, ...]
    y: tuple[Value, ...]
    role: str = "group"
    band: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What every figure has: a title, how its values are written, and a note below it."""

    title: str
    format: str = "percent"
    note: str = ""

    def cell(self, value: Value) -> Cell:
        """A value as it stands in the figure's table."""
        return Cell(FORMATS[self.format](value), value)


@dataclass(frozen=True, kw_only=True)
class Lines(Drawn):
    """Lines over a common axis, with horizontal reference lines and, where wanted, the diagonal.

    `span` are the ends of the upright axis; without it they follow from the values.
    """

    kind: ClassVar[str] = "lines"
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_format: str = "number"
    span: tuple[float, float] | None = None
    references: tuple[tuple[str, float], ...] = ()
    diagonal: str | None = None
    band_label: str = "±"

    def table(self) -> Table:
        """One row per x, one column per line, and one for its band."""
        xs = sorted({x for series in self.series for x in series.x})
        at = FORMATS[self.x_format]
        drawn: list[tuple[str, Mapping[float, Value]]] = []
        for series in self.series:
            drawn.append((series.name, dict(zip(series.x, series.y, strict=True))))
            if series.band is not None:
                drawn.append((f"{series.name}, {self.band_label}", dict(zip(series.x, series.band, strict=True))))
        rows = tuple((Cell(at(x), x), *(self.cell(column.get(x)) for _, column in drawn)) for x in xs)
        return Table(self.title, (self.x_label, *(name for name, _ in drawn)), rows, text_columns=0)


@dataclass(frozen=True)
class Interval:
    """A value with the interval around it."""

    value: Value
    low: Value = None
    high: Value = None
    n: int | None = None


@dataclass(frozen=True, kw_only=True)
class Forest(Drawn):
    """Dots with intervals: one row per name, one dot per series; `joined` dots share a line and are tied together."""

    kind: ClassVar[str] = "forest"
    rows: tuple[str, ...]
    series: tuple[tuple[str, tuple[Interval, ...]], ...]
    x_label: str
    row_label: str = "Group"
    interval_label: str = "95 % interval"
    joined: bool = False

    def table(self) -> Table:
        """Each series has its value and its interval."""
        shown = FORMATS[self.format]
        columns = [label for name, _ in self.series for label in (name, f"{name}: {self.interval_label}")]
        rows = []
        for index, row in enumerate(self.rows):
            cells = [Cell(row, row)]
            for _, intervals in self.series:
                one = intervals[index]
                known = one.low is not None and one.high is not None
                cells.append(self.cell(one.value))
                cells.append(Cell(f"{shown(one.low)} to {shown(one.high)}" if known else NOTHING, one.low))
            rows.append(tuple(cells))
        return Table(self.title, (self.row_label, *columns), tuple(rows))


@dataclass(frozen=True)
class Bar:
    """A named bar with a mark (a budget), an inner value (what was spent), or a whisker to both sides of its end."""

    name: str
    value: Value
    mark: Value = None
    inner: Value = None
    whisker: Value = None


@dataclass(frozen=True, kw_only=True)
class Bars(Drawn):
    """Horizontal bars against marks; with a `span`, from 0 to both sides of an axis with these ends."""

    kind: ClassVar[str] = "bars"
    bars: tuple[Bar, ...]
    x_label: str
    row_label: str
    value_label: str
    mark_label: str = ""
    inner_label: str = ""
    whisker_label: str = ""
    format: str = "number"
    span: tuple[float, float] | None = None

    def table(self) -> Table:
        """One row per bar."""
        labels = [("value", self.value_label), ("mark", self.mark_label), ("inner", self.inner_label)]
        labels.append(("whisker", self.whisker_label))
        used = [(key, label) for key, label in labels if label]
        rows = tuple(
            (Cell(bar.name, bar.name), *(self.cell(getattr(bar, key)) for key, _ in used)) for bar in self.bars
        )
        return Table(self.title, (self.row_label, *(label for _, label in used)), rows)


@dataclass(frozen=True, kw_only=True)
class Heat(Drawn):
    """A grid of values, maybe with counts; each cell also prints its value, so that colour is not needed to read it.

    Where it is `diverging`, colours part at the middle of the values, or at `middle` where that is given.
    """

    kind: ClassVar[str] = "heat"
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[Value, ...], ...]
    row_label: str
    column_label: str
    value_label: str
    counts: tuple[tuple[int | None, ...], ...] | None = None
    count_label: str = ""
    diverging: bool = False
    middle: Value = None

    def table(self) -> Table:
        """One row per cell of the grid."""
        rows = []
        for down, row in enumerate(self.rows):
            for across, column in enumerate(self.columns):
                cells = [Cell(row, row), Cell(column, column), self.cell(self.values[down][across])]
                if self.counts is not None:
                    cells.append(Cell(number(self.counts[down][across]), self.counts[down][across]))
                rows.append(tuple(cells))
        labels = (self.row_label, self.column_label, self.value_label, self.count_label)
        return Table(self.title, labels[: 3 if self.counts is None else 4], tuple(rows), text_columns=2)


@dataclass(frozen=True)
class Point:
    """A named point with one standard deviation in each direction."""

    name: str
    x: float
    y: float
    x_std: Value = None
    y_std: Value = None
    front: bool = False
    private: bool = True
    subject: bool = False


@dataclass(frozen=True, kw_only=True)
class Scatter(Drawn):
    """Named points; those that no other beats in both directions form the front."""

    kind: ClassVar[str] = "scatter"
    x_label: str
    y_label: str
    points: tuple[Point, ...]

    def table(self) -> Table:
        """One row per point."""
        rows = []
        for p in self.points:
            front = "yes" if p.front else "no"
            values = (self.cell(value) for value in (p.x, p.x_std, p.y, p.y_std))
            rows.append((Cell(p.name, p.name), Cell(front, front), *values))
        columns = ("Method", "On the front", self.x_label, "std", self.y_label, "std")
        return Table(self.title, columns, tuple(rows), text_columns=2)


Figure = Lines | Forest | Bars | Heat | Scatter


def as_json(figure: Figure) -> dict[str, Any]:
    """A figure as JSON values, with its kind."""
    return {"kind": figure.kind, **asdict(figure)}
