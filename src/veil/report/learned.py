"""What the model learned: the effects of an additive model as figures and a table; and small groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from veil.report.cleaning import Record
from veil.report.figures import Bar, Bars, Cell, Figure, Heat, Lines, Series, Table
from veil.report.wording import counts_people, date, number, signed, some_of, value

COLUMNS, PAIRS, BY_GROUP, VALUES, CURVES = 10, 4, 4, 10, 8
TOGETHER = "other small groups"
UNKNOWN = "unknown value"
READ_OFF = (
    "The ends of the curves and the values listed depend on bounds and categories taken from the training rows: "
    "the certificate does not cover them."
)
EFFECT = "Effect"
NOISE = "noise, two standard deviations"
# Of knots within this share of a column's range only a few are drawn, where so many stand together.
CROWD, CROWDED = 0.001, 4
BAND = (
    "Bands and whiskers show the noise that privacy added, two standard deviations to each side, estimated. "
    "They do not show how sure the rows make an effect."
)


def effect_figures(run: Record) -> dict[str, Figure]:
    """The columns and the pairs that matter most, on one scale."""
    effects = run.get("effects") or {}
    columns = [_apart(one) for one in effects.get("columns") or [] if one["kind"] != "text"][:COLUMNS]
    if not columns:
        return {}
    highest = 1.05 * max(abs(one) for column in columns for line in column["effects"] for one in line)
    span = (-highest, highest) if highest > 0 else (-1.0, 1.0)
    found: dict[str, Figure] = {}
    for index, column in enumerate(columns):
        found[f"effect-{index}"] = _drawn(column, effects, span)
    of_groups, others = _split_pairs(run, effects)
    for index, pair in enumerate(of_groups[:BY_GROUP]):
        found[f"by-group-{index}"] = _pair(pair, effects["curves"])
    for index, pair in enumerate(others[:PAIRS]):
        found[f"pair-{index}"] = _pair(pair, effects["curves"])
    return found


def _group_columns(run: Record) -> list[str]:
    """The columns that make the groups, as the run was asked; the target, which no model sees, is left out."""
    config = run.get("config") or {}
    asked = config.get("group") or []
    return [name for name in ([asked] if isinstance(asked, str) else asked) if name != config.get("target")]


def _split_pairs(run: Record, effects: Record) -> tuple[list[Record], list[Record]]:
    """Pairs with a column of the groups, which stands first, and the others; those that matter most come first."""
    groups = set(_group_columns(run))
    of_groups: list[Record] = []
    others: list[Record] = []
    for pair in effects.get("pairs") or []:
        if groups.isdisjoint(pair["columns"]):
            others.append(pair)
        else:
            of_groups.append(pair if pair["columns"][0] in groups else _turned(pair))
    return of_groups, others


def _turned(pair: Record) -> Record:
    """The same pair with its columns the other way round."""
    turned = {**pair, **{name: list(reversed(pair[name])) for name in ("columns", "levels")}}
    return {**turned, "effects": [[list(line) for line in zip(*table, strict=True)] for table in pair["effects"]]}


def _by_group(run: Record, effects: Record) -> str | None:
    """What changes from group to group, in one sentence; None where the run names no column of groups."""
    groups = _group_columns(run)
    seen = {one["column"] for one in effects["columns"]}.union(*(pair["columns"] for pair in effects["pairs"]))
    own = [name for name in groups if name in seen]
    if not groups:
        return None
    if not own:
        return (
            f"The model does not see {some_of(groups)}: every column has the same effect in every group. What differs "
            "between groups are the values in their columns, and how much their errors counted in training."
        )
    if _split_pairs(run, effects)[0]:
        return (
            f"Beside the effect of {some_of(own)} alone, these columns have another effect in each group. A value is "
            "added for people of that group, beyond what both columns add alone."
        )
    return (
        f"Every column has the same effect in every group; {some_of(own)} adds its own effect. With more rows or a "
        "larger ε, columns get an effect for each group."
    )


def learned(run: Record) -> dict[str, Any] | None:
    """How to read the figures, and what the certificate does not cover; None where a run has no effects."""
    effects = run.get("effects") or {}
    if not effects:
        return None
    up = {
        "log-odds": f"Up (+): “{effects['curves'][0]}” is more likely. Down (−): less. +1 multiplies the odds by 2.7.",
        "scores": "Up (+): the class is more likely than others. Down (−): less. Each class has its own effects.",
        "target": "Up (+): the predicted number is higher. Down (−): lower. Effects are in the target's own unit.",
    }[effects["unit"]]
    return {
        "reading": f"{up} The effects of a column are 0 on average over its knots or values. They follow from the "
        "released model alone: they read no rows and cost no ε. "
        f"{BAND if _knows_noise(effects) else 'Part of each effect is noise.'} A missing "
        "number counts as the middle between the column's bounds, unless the model learned otherwise.",
        "by_group": _by_group(run, effects),
        "not_covered": READ_OFF if effects["from_rows"] else None,
        "columns": len(effects["columns"]),
        "pairs": len(effects["pairs"]),
        "shown": {"columns": COLUMNS, "pairs": PAIRS},
    }


def _knows_noise(effects: Record) -> bool:
    return any(column.get("noise") is not None for column in effects["columns"])


def learned_table(run: Record) -> Table | None:
    """All columns and pairs by how much they matter, with the values that have the largest and the smallest effect."""
    effects = run.get("effects") or {}
    if not effects:
        return None
    curves = effects["curves"]
    rows = []
    for column in map(_apart, effects["columns"]):
        ends = ("–", "–") if column["kind"] == "text" else _ends(column["effects"], _names(column), curves)
        rows.append((column["column"], column["kind"], *ends, column["spread"]))
    for pair in effects["pairs"]:
        down, across = map(_known, pair["levels"])
        flat = [[one for line in table[: len(down)] for one in line[: len(across)]] for table in pair["effects"]]
        ends = _ends(flat, [f"{a} × {b}" for a in down for b in across], curves)
        rows.append((" × ".join(pair["columns"]), "pair", *ends, pair["spread"]))
    return Table(
        "Columns and pairs by how much they matter",
        ("Column", "Kind", "Highest at", "Lowest at", "Standard deviation of the effect"),
        tuple((*(Cell(text, text) for text in row[:-1]), Cell(number(row[-1]), row[-1])) for row in rows),
        text_columns=4,
    )


def unheard(run: Record) -> str | None:
    """The sentence about groups too small to be treated separately; None where there are none."""
    details = run.get("details") or {}
    together: Mapping[str, str] = details.get("heard_together") or {}
    if not together or details.get("aim") == "overall":
        return None
    rows = {group["name"]: group.get("rows") for group in run.get("groups") or []}
    parts = []
    for other in dict.fromkeys(together.values()):
        own = [f"'{name}' ({_counted(rows.get(name), run)})" for name, kin in together.items() if kin == other]
        whom = other if other == TOGETHER else f"'{other}'"
        parts.append(f"{some_of(own)}, treated together with {whom}")
    needed = details.get("rows_to_be_heard")
    many = "people" if counts_people(run) else "rows"
    more = "" if needed is None else f" About {number(needed)} {many} would be needed."
    return f"Too few {many} to be treated separately at this ε: {'; '.join(parts)}.{more}"


def _counted(count: int | None, run: Record) -> str:
    one, many = ("person", "people") if counts_people(run) else ("row", "rows")
    return f"{number(count)} {one if count == 1 else many}"


def _names(column: Record) -> list[str]:
    """Knots or values as people read them."""
    shown = {"number": value, "date": date}.get(column["kind"], str)
    return [shown(at) for at in column["at"]]


def _ends(lines: Sequence[Sequence[float]], names: Sequence[str], curves: Sequence[str]) -> tuple[str, str]:
    """Where an effect is largest and where it is smallest; of several curves with the curve's name."""
    every = [
        (one, name, curve)
        for line, curve in zip(lines, curves, strict=True)
        for one, name in zip(line, names, strict=True)
    ]
    said = [
        f"{name}{f' for {curve}' if len(curves) > 1 else ''} ({signed(one)})"
        for one, name, curve in (max(every), min(every))
    ]
    return said[0], said[1]


def _known(levels: Sequence[str]) -> Sequence[str]:
    """Levels without that of no known value, which stands last."""
    return levels[:-1] if levels[-1] == UNKNOWN else levels


def _apart(column: Record) -> Record:
    """A column of numbers with few knots for many that stand in almost one place: nearly all rows have one value there.

    Between such knots there are no rows, so that what they say is noise. The first and the last stay, so that the curve
    beside them is right, and the middle one; at a bound, of several in one place, the last, which rows there get.
    """
    at = column["at"]
    if column["kind"] not in ("number", "date") or at[-1] <= at[0]:
        return column
    kept: list[int] = []
    first = 0
    for place in range(1, len(at) + 1):
        if place < len(at) and at[place] - at[first] <= CROWD * (at[-1] - at[0]):
            continue
        crowd = range(first, place)
        if len(crowd) < CROWDED:
            kept += crowd
        elif first == 0:
            kept += sorted({max(one for one in crowd if at[one] == at[0]), crowd[-1]})
        else:
            kept += [crowd[0], *[crowd[len(crowd) // 2]] * (place < len(at)), crowd[-1]]
        first = place

    def of(lines: Sequence[Sequence[float]] | None) -> list[list[float]] | None:
        return None if lines is None else [[line[one] for one in kept] for line in lines]

    parts = {"at": [at[one] for one in kept], "effects": of(column["effects"]), "noise": of(column.get("noise"))}
    return {**column, **parts, "left_out": len(at) - len(kept)}


def _drawn(column: Record, effects: Record, span: tuple[float, float]) -> Figure:
    """A curve for a number or a date; bars for a category, or a grid where there are several curves."""
    curves = list(effects["curves"])
    strongest = sorted(range(len(curves)), key=lambda curve: -max(map(abs, column["effects"][curve])))[:CURVES]
    chosen = sorted(strongest)
    note = _note(column, curves, len(chosen))
    if column["kind"] in ("number", "date"):
        names = [curves[curve] for curve in chosen] if len(curves) > 1 else [EFFECT]
        return Lines(
            title=column["column"],
            x_label=column["column"],
            y_label=_label(effects),
            series=tuple(
                Series(name, tuple(column["at"]), tuple(column["effects"][curve]), band=_band(column, curve))
                for name, curve in zip(names, chosen, strict=True)
            ),
            format="signed",
            x_format="date" if column["kind"] == "date" else "value",
            span=span,
            band_label=NOISE,
            note=note,
        )
    places = sorted(range(len(column["at"])), key=lambda at: -max(abs(line[at]) for line in column["effects"]))
    places = sorted(places[:VALUES], key=lambda at: -column["effects"][chosen[0]][at])
    if len(curves) == 1:
        band = _band(column, 0)
        return Bars(
            title=column["column"],
            bars=tuple(
                Bar(column["at"][place], column["effects"][0][place], whisker=band[place] if band else None)
                for place in places
            ),
            x_label=_label(effects),
            row_label="Value",
            value_label=EFFECT,
            whisker_label=NOISE if band else "",
            format="signed",
            span=span,
            note=note,
        )
    return Heat(
        title=column["column"],
        rows=tuple(column["at"][place] for place in places),
        columns=tuple(curves[curve] for curve in chosen),
        values=tuple(tuple(column["effects"][curve][place] for curve in chosen) for place in places),
        row_label="Value",
        column_label="Class",
        value_label=EFFECT,
        format="signed",
        diverging=True,
        middle=0.0,
        note=note,
    )


def _band(column: Record, curve: int) -> tuple[float, ...] | None:
    """Two standard deviations of noise; None where a run does not know them."""
    noise = column.get("noise")
    return None if noise is None else tuple(2 * one for one in noise[curve])


def _pair(pair: Record, curves: Sequence[str]) -> Heat:
    """The interaction of two columns; of several curves the one with the largest effect."""
    most = max(range(len(curves)), key=lambda curve: max(abs(one) for line in pair["effects"][curve] for one in line))
    rows, columns = map(_known, pair["levels"])
    of = f"Class {curves[most]}. " if len(curves) > 1 else ""
    return Heat(
        title=" × ".join(pair["columns"]),
        rows=tuple(rows),
        columns=tuple(columns),
        values=tuple(tuple(line[: len(columns)]) for line in pair["effects"][most][: len(rows)]),
        row_label=pair["columns"][0],
        column_label=pair["columns"][1],
        value_label=EFFECT,
        format="signed",
        diverging=True,
        middle=0.0,
        note=f"{of}What both add together, beyond what each adds alone. Down: {pair['columns'][0]}. Across: "
        f"{pair['columns'][1]}.",
    )


def _label(effects: Record) -> str:
    return {
        "log-odds": f"Log-odds of {effects['curves'][0]}",
        "scores": "Score of a class, less the mean over classes",
        "target": "Change of the predicted number",
    }[effects["unit"]]


def _note(column: Record, curves: Sequence[str], shown: int) -> str:
    """What the figure omits: further values and classes, and values without a place on the axis."""
    values = len(column["at"]) if column["kind"] not in ("number", "date") else 0
    said = [f"The {VALUES} of {values} values with the largest effects."] if values > VALUES else []
    if column.get("left_out"):
        said.append("Nearly all rows have the same value where many knots stand together: few of them are drawn.")
    said += [f"The {shown} of {len(curves)} classes with the largest effects."] if len(curves) > shown else []
    for name, own in (("Missing", column["missing"]), ("Missing or any other value", column["unknown"])):
        if own is not None and len(curves) <= CURVES:
            each = zip(curves, own, strict=True)
            said.append(f"{name}: {', '.join(f'{c} {signed(v)}' if len(curves) > 1 else signed(v) for c, v in each)}.")
    return " ".join(said)
