"""Hostile input: what is valid, how it is spoilt, and the readers that it is given to.

A reader may answer, or refuse by one of Veil's own errors with one sentence. Anything else is a fault.
"""

from __future__ import annotations

import copy
import json
import random
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from veil.accounting import (
    Account,
    AccountingError,
    Certificate,
    Choice,
    Envelope,
    Gaussian,
    Laplace,
    Ledger,
    Mixture,
    NoisyMax,
    PoissonGaussian,
    Rdp,
    Relation,
    RenyiFilter,
    Repeated,
    Selection,
    SubsetGaussian,
    Terms,
    TokenBucket,
    Tree,
    certify,
)
from veil.accounting.ledger import _seal
from veil.cli.app import app
from veil.cli.config_file import further_settings, read_config_file
from veil.errors import InputError
from veil.foundation.toml import to_toml
from veil.plans import Settings
from veil.problem.budgets import read_budgets
from veil.tables import draft_schema, read_schema, read_table
from veil.tables.guessing import fit_encoding

Reader = Callable[[Path], object]
TRAIN = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]

EVENTS = (
    PoissonGaussian(1.0, 0.01),
    Gaussian(20.0),
    Laplace(50.0),
    NoisyMax(30.0),
    Tree(40.0, 8),
    Mixture(0.5, Gaussian(20.0)),
    Envelope((PoissonGaussian(2.0, 0.01), PoissonGaussian(3.0, 0.02))),
    Selection((Repeated(Gaussian(40.0), 3),), 1.0, gamma=0.5),
    Choice(((Repeated(Gaussian(40.0), 3),), (Repeated(Gaussian(30.0)),))),
)


def valid_ledger(path: Path) -> Ledger:
    """A ledger with every kind of event and both kinds of rules."""
    bucket = TokenBucket(tuple(Repeated(event, 4) for event in EVENTS))
    accounts = (Account("f", "o", 9.0, bucket), Account("m", "o", 9.0, RenyiFilter(8.0, 50.0)))
    ledger = Ledger(Terms(Relation.ADD_REMOVE, 1e-5, "rdp", accounts, {"method": "test", "steps": 3}), path)
    for step, event in enumerate(EVENTS):
        ledger.reserve("gradient", step, 1, {0: event, 1: Gaussian(20.0)})
    return ledger


def valid_certificate(folder: Path) -> Certificate:
    """A certificate of a small ledger."""
    rule = TokenBucket((Repeated(SubsetGaussian(2.0, 100, 10), 3),))
    ledger = Ledger(Terms(Relation.REPLACE_ONE, 1e-5, "rdp", (Account("f", "o", 9.0, rule),), {"method": "test"}))
    return certify(ledger, Rdp(), assumptions=("one",), not_covered=("two",))


SCHEMA = """
[columns.age]
kind = "numeric"
low = 17
high = 90
missing = "flag"
missing_words = ["?"]
[columns.born]
kind = "date"
low = 1900-01-01
high = "2020-01-31"
[columns.sex]
kind = "group"
values = ["f", "m"]
feature = true
[columns.town]
kind = "category"
values = ["A", "B"]
[columns.words]
kind = "text"
form = "tokens"
buckets = 16
length = 8
[columns.rich]
kind = "target"
values = ["no", "yes"]
[columns.who]
kind = "owner"
[group_sizes]
f = 10
m = 20
"""
CONFIG = """
target = "rich"
group = ["sex"]
method = "asc"
epsilon = 1.0
[settings]
steps = 10
batch_size = 32
learning_rate = 0.1
optimizer = "adam"
seed = 3
secure_noise = false
"""
BUDGETS_TOML = "[budgets]\nnorth = 1.0\nsouth = 0.5\n"
BUDGETS_CSV = "owner,epsilon\nnorth,1.0\nsouth,0.5\n"
TABLE = "age,born,sex,town,words,rich\n" + "".join(
    f'{20 + i},20{i % 20:02d}-01-0{1 + i % 9},{"fm"[i % 2]},{"ABC"[i % 3]},"some words {i}, and more",{i % 2}\n'
    for i in range(8)
)


def read_ledger(path: Path) -> object:
    ledger = Ledger.open(path)
    return [ledger.spent(cell) for cell in range(len(ledger.terms.accounts))]


def read_certificate(path: Path) -> object:
    certificate = Certificate.load(path)
    return certificate.as_json(), sorted(certificate.by_group.values()), sorted(certificate.by_owner)


def read_whole_schema(path: Path) -> object:
    schema = read_schema(path)
    for sequence in (False, True):
        try:
            schema.encoding(sequence).width()
        except InputError:
            continue
    return schema.with_roles("rich", ["sex"], None, set()).to_toml("NOTE")


def read_config(path: Path) -> object:
    """As `veil train --config` does: options for the command line to check, and settings."""
    context = typer.Context(TRAIN)
    read_config_file(context, path)
    return Settings.checked(**further_settings(context)), context.default_map


def read_rows(path: Path) -> object:
    table = read_table(path)
    draft_schema(table).to_toml()
    return fit_encoding(table, set()).encode(table)


READERS: dict[str, Reader] = {
    "ledger.jsonl": read_ledger,
    "certificate.json": read_certificate,
    "schema.toml": read_whole_schema,
    "config.toml": read_config,
    "budgets.toml": read_budgets,
    "budgets.csv": read_budgets,
    "table.csv": read_rows,
}


def valid(name: str, folder: Path) -> bytes:
    """What a reader answers to."""
    texts = {
        "schema.toml": SCHEMA,
        "config.toml": CONFIG,
        "budgets.toml": BUDGETS_TOML,
        "budgets.csv": BUDGETS_CSV,
        "table.csv": TABLE,
    }
    if name in texts:
        return texts[name].encode()
    path = folder / f"valid-{name}"
    path.unlink(missing_ok=True)
    if name == "ledger.jsonl":
        valid_ledger(path)
    else:
        valid_certificate(folder).save(path)
    return path.read_bytes()


def fault(reader: Reader, path: Path) -> str | None:
    """What is wrong with the reader's answer, or None."""
    try:
        reader(path)
    except (InputError, AccountingError) as error:
        sentence = str(error)
        if not sentence.strip():
            return f"{type(error).__name__} says nothing"
        return None
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None


DEEP: Any = 0
for _ in range(400):
    DEEP = [DEEP]

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3.5, -0.0, 1e308, -1e308, 5e-324, 10**30, -(10**30), 10**400, float("nan"),
    float("inf"), float("-inf"), "", "x", "nan", "1e999", "\x00", "\ud800", "<script>", "a" * 5000, "\x1b[31m", "\n",
    [], {}, [[]], [None], {"": None}, {"kind": "Gaussian"}, {"kind": "Mixture", "event": {}}, DEEP,
)  # fmt: skip


def spoilt_json(value: Any, chance: random.Random) -> Any:
    """A copy with one place changed, removed, doubled or exchanged for another kind of value."""
    value = copy.deepcopy(value)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        places = list(_places(value))
        if not places:
            return chance.choice(VALUES)
        holder, key = chance.choice(places)
        if chance.random() < 0.15:
            if isinstance(holder, dict):
                del holder[key]
            else:
                holder.pop(key)
        elif chance.random() < 0.1 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            other_holder, other_key = chance.choice(places)
            fresh = other_holder[other_key] if chance.random() < 0.3 else chance.choice(VALUES)
            holder[key] = copy.deepcopy(fresh)
    return value


def _places(value: Any) -> Any:
    """Every (container, key) below a value, not deeper than twelve."""
    waiting = [(value, 0)]
    while waiting:
        holder, depth = waiting.pop()
        if depth > 12:
            continue
        keys: Sequence[Any] = (
            list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        )
        for key in keys:
            yield holder, key
            waiting.append((holder[key], depth + 1))


PIECES = (
    b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r", b"\n", b'"', b"'", b"[", b"]", b"{", b"}", b",", b";", b"\t", b"=", b"#",
    b"[" * 3000, b"{a=" * 800, b"9" * 5000, b"1e99999", b"nan", b"inf", b"-inf", b"0x", b"'''", b'"""', b"\\u0000",
    b"\\ud800", b"1979-99-99", b"0000-00-00", b"9999999-01-01", b"true", b"null", b",,,,,,", b"a.b.c.", b"=1\n",
    b"<script>", b"a" * 20000,
)  # fmt: skip


def spoilt_bytes(content: bytes, chance: random.Random) -> bytes:
    """A copy with bytes changed, cut, doubled or put in."""
    found = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        at = chance.randrange(len(found) + 1)
        to = min(len(found), at + chance.choice((0, 1, 1, 2, 5, 30, 200)))
        kind = chance.randrange(5)
        if kind == 0:
            found[at:to] = bytes(chance.randrange(256) for _ in range(to - at))
        elif kind == 1:
            del found[at:to]
        elif kind == 2:
            found[at:at] = found[at:to] * chance.choice((1, 2, 20))
        else:
            found[at : to if kind == 3 else at] = chance.choice(PIECES)
    return bytes(found[:200_000])


def spoilt(name: str, content: bytes, chance: random.Random) -> bytes:
    """One hostile input for a reader; JSON is sealed again half of the time, so that what lies behind is reached."""
    if name.endswith((".jsonl", ".json")) and chance.random() < 0.7:
        if name == "certificate.json":
            return _dumped(spoilt_json(json.loads(content), chance))
        records = spoilt_json([json.loads(line)["record"] for line in content.splitlines()], chance)
        return sealed(records if isinstance(records, list) else [records])
    if name.endswith(".toml") and chance.random() < 0.6:
        record = spoilt_json(tomllib.loads(content.decode()), chance)
        try:
            return to_toml(record).encode("utf-8", "surrogatepass")
        except (AttributeError, ValueError, RecursionError):  # TOML cannot hold it
            return spoilt_bytes(content, chance)
    return spoilt_bytes(content, chance)


def sealed(records: Sequence[Any]) -> bytes:
    """Lines of a ledger whose checksums fit: whoever writes a ledger can do that."""
    lines, check = [], ""
    for record in records:
        try:
            line, check = _seal(record, check)
        except (ValueError, RecursionError):  # JSON cannot hold it
            continue
        lines.append(line)
    return b"".join(lines)


def _dumped(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except (ValueError, RecursionError):
        return b"{}"
