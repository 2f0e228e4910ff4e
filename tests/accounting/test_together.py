"""What several runs cost together: never below any history of a row; added up where nothing better is known."""

from __future__ import annotations

import math
from itertools import product

import pytest

from veil.accounting import Account, Gaussian, Pld, PoissonGaussian, Relation, RenyiFilter, Repeated, Terms, TokenBucket
from veil.accounting.spending_rules import SpendingRule
from veil.accounting.together import RunTerms, cost_together
from veil.errors import InputError

TRAINING = {"a": Repeated(PoissonGaussian(1.1, 0.02), 200), "b": Repeated(PoissonGaussian(1.4, 0.02), 200)}
MEASURED = Repeated(Gaussian(2.0, one_sided=True))


def terms(rules: dict[str, SpendingRule], relation: Relation = Relation.ADD_REMOVE, delta: float = 1e-5) -> Terms:
    return Terms(relation, delta, "pld", tuple(Account(name, "all", 2.0, rule) for name, rule in rules.items()))


def run(number: int, epsilon: float = 2.0) -> RunTerms:
    training: dict[str, SpendingRule] = {name: TokenBucket((token,)) for name, token in TRAINING.items()}
    held: dict[str, SpendingRule] = {name: TokenBucket((MEASURED,)) for name in TRAINING}
    return RunTerms(number, terms(training), terms(held), epsilon)


def test_every_history_of_a_row_costs_at_most_what_is_said_and_one_costs_it() -> None:
    """Two runs split alike (number 1), a third splits anew: a row trains in both of the first or in none."""
    found = cost_together([run(1), run(1), run(2)])
    costs = []
    for token, parts in product(TRAINING.values(), product((True, False), repeat=2)):
        tokens = [token if train else MEASURED for train in (parts[0], parts[0], parts[1])]
        costs.append(Pld().epsilon(tokens, 3e-5))
    assert found.epsilon == pytest.approx(max(costs))
    assert max(costs) > min(costs) * 1.05, "all histories cost the same: the test shows nothing"
    assert found.delta == pytest.approx(3e-5)
    assert found.epsilon < found.added_up == 6.0


def test_runs_under_two_relations_are_added_up_as_replacements() -> None:
    other = RunTerms(1, terms({"a": TokenBucket((MEASURED,))}, Relation.REPLACE_ONE), None, 1.5)
    found = cost_together([run(1, 1.0), other])
    assert found.relation is Relation.REPLACE_ONE
    assert found.epsilon == found.added_up == pytest.approx(2 * 1.0 + 1.5)
    assert found.delta == pytest.approx((1 + math.e) * 1e-5 + 1e-5)


@pytest.mark.parametrize("kind", ["filter", "each row", "too many"])
def test_where_releases_cannot_be_composed_epsilon_is_added_up(kind: str) -> None:
    if kind == "filter":
        runs = [RunTerms(number, terms({"a": RenyiFilter(8.0, 0.1)}), None, 0.7) for number in range(3)]
    elif kind == "each row":
        runs = [RunTerms(number, run(1).training, None, 0.7, each_row=True) for number in range(3)]
    else:
        runs = [run(number, 0.7) for number in range(40)]
    assert cost_together(runs).epsilon == pytest.approx(0.7 * len(runs))


def test_nothing_to_add_up_is_an_error() -> None:
    with pytest.raises(InputError, match="no run"):
        cost_together([])
