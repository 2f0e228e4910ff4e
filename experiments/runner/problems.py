"""Problems: the data of experiments by name.

`rows` and `test_rows` cut any of them down. Where owners have budgets of their own, `drop` leaves out so many percent
of the training rows of owners above the mean budget, and `lower` brings every budget so many percent of the way down to
the smallest one.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.runner.features import (
    features_of,
    fresh_features,
    scattered,
    spurious_cifar10,
    unbalanced_cifar10,
    with_validation,
)
from experiments.runner.texts import hashed_surnames
from veil.datasets import (
    GroupSpec,
    Split,
    generate,
    load_adult,
    load_adult_split,
    load_cifar10,
    load_ctg,
    load_dutch,
    load_mnist,
    load_surnames,
    load_unbalanced_mnist,
)
from veil.datasets.owner_scenarios import disjoint, even_owners, flipped, one_row_each, overlapping, uniform_spread
from veil.datasets.split import set_apart, shuffled
from veil.errors import InputError, require
from veil.problem import Problem
from veil.tables import Columns, fit_encoding, table_problem

Pair = tuple[Problem, Problem]
# A group that is cut down keeps so many rows at least, where it has them.
LEAST = 20
FRAUD_ROWS = 675_676
# Shares of the stand-in: 1.1 % of all rows are fraudulent, as in the real data; the rest is chosen here.
OVER_50, FRAUD_BELOW, FRAUD_ABOVE = 0.2, 0.009, 0.019


@dataclass(frozen=True)
class Source:
    """Where training and test rows come from, and whether the seed of a run draws them anew."""

    load: Callable[..., Pair]
    by_seed: bool
    dataset: str | None = None


def adult(seed: int, groups: Sequence[str] = ("sex", "income")) -> Pair:
    """UCI Adult in its official split, columns and bounds read off the training rows."""
    train, test = load_adult()
    encoding = fit_encoding(train, {"income", "fnlwgt"}, rare=5)  # public rows
    columns = Columns("income", tuple(groups))
    problem = table_problem(train, encoding, columns)
    return problem, table_problem(test, encoding, columns, problem.public)


def adult_validation(seed: int, groups: Sequence[str] = ("sex", "income")) -> Pair:
    """Four fifths of Adult's training rows, and the fifth that the seed sets apart; no test row is looked at."""
    train, _ = load_adult()
    encoding = fit_encoding(train, {"income", "fnlwgt"}, rare=5)  # public rows
    columns, order = Columns("income", tuple(groups)), shuffled(len(train), seed, "reproduction/validation")
    apart = np.isin(np.arange(len(train)), order[: len(train) // 5])
    problem = table_problem(train[~apart], encoding, columns)
    return problem, table_problem(train[apart], encoding, columns, problem.public)


def adult_balanced(seed: int) -> Pair:
    """Adult with as many men as women, groups by sex, columns standardised by the training rows (not private)."""
    split = standardised(load_adult_split(variant="fdpg", seed=seed))
    return split.train, split.test


def standardised(split: Split) -> Split:
    """Every column with mean 0 and variance 1 over the training rows. Not private: pages say so."""
    mean, spread = split.train.inputs.mean(dim=0), split.train.inputs.std(dim=0)
    spread[spread < 1e-6] = 1.0

    def scaled(problem: Problem) -> Problem:
        return replace(problem, inputs=(problem.inputs - mean) / spread)

    return Split(scaled(split.train), scaled(split.test))


def dutch(seed: int) -> Pair:
    """Dutch census 2001, groups by sex; a new fifth is set apart for every seed."""
    return _pair(load_dutch(seed=seed))


def dutch_validation(seed: int) -> Pair:
    """Four fifths of the training rows of `dutch` for this seed, and the other fifth; no test row is looked at."""
    train = load_dutch(seed=seed).train
    order = shuffled(len(train), seed, "reproduction/validation")
    apart = np.isin(np.arange(len(train)), order[: len(train) // 5])
    return taken(train, np.flatnonzero(~apart)), taken(train, np.flatnonzero(apart))


def umnist(seed: int, scattering: bool = False, first: int | None = None) -> Pair:
    """MNIST with 474 eights (ASC); the same rows for every seed; as pixels or as scattering features."""
    split = load_unbalanced_mnist()
    return _scattered(split.train, split.test, first) if scattering else (split.train, split.test)


def umnist_validation(seed: int, scattering: bool = False, first: int | None = None) -> Pair:
    """The training rows of `umnist`, and the tenth of every digit that is set apart; no test row is looked at."""
    split = load_unbalanced_mnist()
    assert split.validation is not None
    return _scattered(split.train, split.validation, first) if scattering else (split.train, split.validation)


def _scattered(train: Problem, other: Problem, first: int | None) -> Pair:
    """Features of all rows, kept; with `first`, of so many rows, computed anew."""
    if first is not None:
        return scattered(cut_down(train, first), keep=False), scattered(cut_down(other, first), keep=False)
    return scattered(train), scattered(other)


def mnist_few_eights(seed: int, validation: bool = False) -> Pair:
    """MNIST with 500 eights (FDPG); which ones depends on the seed; `validation` as for CIFAR-10."""
    pair = _pair(load_unbalanced_mnist(variant="fdpg", seed=seed))
    return _validation_of(pair[0]) if validation else pair


def mnist(seed: int, validation: bool = False, **options: Any) -> Pair:
    """MNIST, one group per digit; `owners = "halves"`: 0–4 have a smaller budget; `validation` as for CIFAR-10."""
    pair = _pair(load_mnist(**options))
    return _validation_of(pair[0]) if validation else pair


def cifar10(
    seed: int, features: bool = False, first: int | None = None, validation: bool = False, **options: Any
) -> Pair:
    """CIFAR-10, one group per class; `owners = "class"`: every class has its budget; `features` of a public network.

    With `validation` a fifth of the training rows is set apart, the same for every seed; no test row is looked at.
    """
    pair = _cifar10(features, first, options)
    return _validation_of(pair[0]) if validation else pair


def _validation_of(train: Problem) -> Pair:
    """Four fifths of the training rows, and the other fifth, the same for every seed."""
    stays, away = set_apart(len(train), 0.2, 0, "reproduction/validation")
    return taken(train, stays), taken(train, away)


def cifar10_dealt(seed: int, features: bool = False, first: int | None = None, **options: Any) -> Pair:
    """CIFAR-10 with ten owners of fixed budgets, to whom the seed deals one class each; `features` as in `cifar10`."""
    return _cifar10(features, first, {**options, "owners": "dealt", "seed": seed})


def _cifar10(features: bool, first: int | None, options: Mapping[str, Any]) -> Pair:
    """Pixels, or features; with `first`, of so many rows, computed anew."""
    if not features:
        return _pair(load_cifar10(**options))
    split = load_cifar10(**{**options, "normalisation": "none"})
    if first is not None:
        return fresh_features(Split(cut_down(split.train, first), cut_down(split.test, first)))
    return features_of(split)


OVERLAP, FLIPPED, SPREAD = 0.3, 0.1, 0.25


def cifar10_scenario(seed: int, scenario: str, first: int | None = None) -> Pair:
    """Features of CIFAR-10 with ε from 0.5 to 5 by class, in a scenario that the seed draws.

    `disjoint`: every class has an owner. `overlapping`: 30 % of every owner's rows go to the others. `one row each`:
    every row is an owner, with a budget within 0.25 of its class's. `flipped labels`: a tenth of the training labels
    are of another class.
    """
    train, test = _cifar10(True, first, {})
    owners = even_owners(train, 0.5, 5.0)
    made: dict[str, Callable[[], Problem]] = {
        "disjoint": lambda: disjoint(train, owners),
        "overlapping": lambda: overlapping(train, owners, OVERLAP, seed),
        "one row each": lambda: one_row_each(train, owners, uniform_spread(SPREAD), seed),
        "flipped labels": lambda: flipped(disjoint(train, owners), FLIPPED, seed),
    }
    require(scenario in made, f'scenario is "{scenario}": it must be one of {", ".join(made)}')
    return made[scenario](), test


def cifar10_unbalanced(
    seed: int, validation: bool = False, scattering: bool = False, first: int | None = None, **options: Any
) -> Pair:
    """CIFAR-10 with few rows of one class; `validation` sets training rows apart and looks at no test row.

    Rows are pixels, `features` of a public network, or fixed `scattering` features, which need no public data.
    """
    split = unbalanced_cifar10(first=first, **options)
    train, test = split.train, split.test
    if scattering:
        kept = first is None
        train, test = scattered(train, kept), test if validation else scattered(test, kept)
    return with_validation(train, seed) if validation else (train, test)


def cifar10_spurious(seed: int, validation: bool = False, **options: Any) -> Pair:
    """Animals and vehicles with blue and other backgrounds, as features; few of the animals have a blue one.

    With `validation` the seed sets a fifth of the training rows apart, and no test row is looked at.
    """
    split = spurious_cifar10(**options)
    if not validation:
        return _pair(split)
    stays, away = set_apart(len(split.train), 0.2, seed, "reproduction/validation")
    return taken(split.train, stays), taken(split.train, away)


def ctg(seed: int, **options: Any) -> Pair:
    """Cardiotocography, every diagnosis a group and an owner; a new fifth is set apart for every seed."""
    return _pair(load_ctg(seed=seed, **options))


def surnames(seed: int, **options: Any) -> Pair:
    """Surnames of 18 languages; a new fifth is set apart for every seed."""
    return _pair(load_surnames(seed=seed, **options))


def surnames_hashed(seed: int, buckets: int = 512, validation: bool = False) -> Pair:
    """Surnames of the seven largest languages as hashed triples of letters; a new fifth is set apart for every seed."""
    return _pair(hashed_surnames(seed, buckets, validation))


def generated(seed: int, groups: Sequence[Mapping[str, Any]], features: int = 10, test_share: float = 1.0) -> Pair:
    """Gaussian classes: each of `groups` is a table with the fields of `veil.datasets.GroupSpec`."""
    try:
        specs = [GroupSpec(**group) for group in groups]
    except TypeError as error:
        raise InputError(f"groups of generated data: {error}") from error
    fresh = [replace(spec, rows=max(LEAST, round(test_share * spec.rows))) for spec in specs]
    return generate(specs, features, seed), generate(fresh, features, seed + 1_000_003)


def bank_fraud_like(seed: int, size: int = FRAUD_ROWS, test_size: int = 50_000, margin: float = 2.0) -> Pair:
    """A stand-in for Bank Account Fraud, which cannot be passed on: made-up rows in the sizes of the ASC paper.

    n = 675,676 and the groups fraud × age over 50 are the paper's, 1.1 % fraud the real data's. All else is made up:
    20 Gaussian columns, of which fraud shifts ten by `margin` in all, in another direction for people over 50.
    """
    generator = np.random.default_rng([seed, 50])

    def part(rows: int) -> Problem:
        older = np.arange(rows) < round(OVER_50 * rows)
        fraud = np.zeros(rows, dtype=bool)
        for side, rate in ((older, FRAUD_ABOVE), (~older, FRAUD_BELOW)):
            fraud[np.flatnonzero(side)[: max(LEAST, round(rate * side.sum()))]] = True
        features = generator.standard_normal((rows, 20), dtype=np.float32)
        features[older & fraud, 5:10] += margin / np.sqrt(5)
        features[~older & fraud, :5] += margin / np.sqrt(5)
        features[:, 19] = older
        label = np.where(fraud, "fraud", "legitimate")
        age = np.where(older, "over 50", "50 or under")
        return Problem.from_arrays(features, label, {"fraud": label, "age": age}, classes=("legitimate", "fraud"))

    return part(size), part(test_size)


PROBLEMS: dict[str, Source] = {
    "adult": Source(adult, by_seed=False, dataset="adult"),
    "adult-validation": Source(adult_validation, by_seed=True, dataset="adult"),
    "adult-balanced": Source(adult_balanced, by_seed=True, dataset="adult"),
    "dutch": Source(dutch, by_seed=True, dataset="dutch"),
    "dutch-validation": Source(dutch_validation, by_seed=True, dataset="dutch"),
    "umnist-validation": Source(umnist_validation, by_seed=False, dataset="mnist"),
    "umnist": Source(umnist, by_seed=False, dataset="mnist"),
    "mnist-few-eights": Source(mnist_few_eights, by_seed=True, dataset="mnist"),
    "mnist": Source(mnist, by_seed=False, dataset="mnist"),
    "cifar10": Source(cifar10, by_seed=False, dataset="cifar10"),
    "cifar10-dealt": Source(cifar10_dealt, by_seed=True, dataset="cifar10"),
    "cifar10-scenario": Source(cifar10_scenario, by_seed=True, dataset="cifar10"),
    "cifar10-unbalanced": Source(cifar10_unbalanced, by_seed=True, dataset="cifar10"),
    "cifar10-spurious": Source(cifar10_spurious, by_seed=True, dataset="cifar10"),
    "ctg": Source(ctg, by_seed=True, dataset="ctg"),
    "surnames": Source(surnames, by_seed=True, dataset="surnames"),
    "surnames-hashed": Source(surnames_hashed, by_seed=True, dataset="surnames"),
    "generated": Source(generated, by_seed=True),
    "bank-fraud-like": Source(bank_fraud_like, by_seed=True),
}


def source(name: str) -> Source:
    """Data by name; an unknown one raises `InputError` with the nearest known one."""
    if name not in PROBLEMS:
        close = difflib.get_close_matches(name, PROBLEMS, n=1)
        hint = f'did you mean "{close[0]}"?' if close else f"known are {', '.join(PROBLEMS)}"
        raise InputError(f'unknown data "{name}": {hint}')
    return PROBLEMS[name]


def load_pair(name: str, options: Mapping[str, Any], seed: int) -> Pair:
    """Training and test rows; `rows` and `test_rows` among the options cut them down.

    >>> train, test = load_pair("adult", {"rows": 500}, 1)
    >>> len(train), len(test)
    (501, 16281)
    """
    return _load(name, json.dumps(dict(options), sort_keys=True), seed if source(name).by_seed else 0)


@lru_cache(maxsize=1)
def _load(name: str, options: str, seed: int) -> Pair:
    given = json.loads(options)
    rows, test_rows = given.pop("rows", None), given.pop("test_rows", None)
    drop, lower = given.pop("drop", 0), given.pop("lower", 0)
    try:
        train, test = source(name).load(seed, **given)
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise InputError(f'data "{name}": {error}') from error
    train = _cut(train, rows)
    if drop:
        train = dropped(train, drop)
    if lower:
        train = lowered(train, lower)
    return train, _cut(test, test_rows)


def _cut(problem: Problem, rows: int | None) -> Problem:
    return problem if rows is None else cut_down(problem, rows)


def cut_down(problem: Problem, rows: int) -> Problem:
    """About so many rows, every group and owner in its share, chosen in a public random order."""
    require(rows > 0, f"rows is {rows}: it must be above 0")
    return _thinned(problem, [rows / len(problem.cell_of)] * len(problem.public.cells))


def dropped(problem: Problem, percent: float) -> Problem:
    """Without so many percent of the rows of owners whose budget is above the mean, chosen in a public random order."""
    budgets = _budgets(problem, "drop", percent)
    mean = sum(budgets) / len(budgets)
    kept = [1 - percent / 100 if budgets[cell.owner] > mean else 1.0 for cell in problem.public.cells]
    return _thinned(problem, kept)


def lowered(problem: Problem, percent: float) -> Problem:
    """The same rows, every budget so many percent of the way down to the smallest one."""
    budgets = _budgets(problem, "lower", percent)
    fewer = tuple(budget - percent / 100 * (budget - min(budgets)) for budget in budgets)
    return replace(problem, public=replace(problem.public, budgets=fewer))


def _budgets(problem: Problem, option: str, percent: float) -> tuple[float, ...]:
    require(0 < percent < 100, f"{option} is {percent}: it must be a percentage between 0 and 100")
    budgets = problem.public.budgets
    if budgets is None:
        raise InputError(f"{option} needs owners with budgets of their own: give the data option owners")
    return budgets


def _thinned(problem: Problem, shares: Sequence[float]) -> Problem:
    """The given share of every cell's rows, in a public random order."""
    order = shuffled(len(problem.cell_of), 0, "reproduction/rows")
    kept = []
    for number, share in enumerate(shares):
        members = order[problem.cell_of[order] == number]
        kept.append(members[: max(min(LEAST, len(members)), round(share * len(members)))])
    return taken(problem, np.sort(np.concatenate(kept)))


def taken(problem: Problem, rows: NDArray[np.int64]) -> Problem:
    """These rows of a problem in memory, in this order; the sizes of cells are theirs."""
    cell_of = problem.cell_of[rows]
    sizes = np.bincount(cell_of, minlength=len(problem.public.cells)).tolist()
    cells = tuple(replace(cell, rows=size) for cell, size in zip(problem.public.cells, sizes, strict=True))
    index = torch.from_numpy(rows)
    return replace(
        problem,
        inputs=problem.inputs[index],
        targets=problem.targets[index],
        cell_of=cell_of,
        public=replace(problem.public, cells=cells),
        present=problem.present[rows],
    )


def _pair(split: Split) -> Pair:
    return split.train, split.test
