"""A certificate says what the ledger's rules guarantee, and a second accountant finds the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from veil.accounting import (
    Account,
    AccountingError,
    Envelope,
    Gaussian,
    Gdp,
    Ledger,
    Pld,
    PoissonGaussian,
    Rdp,
    Relation,
    RenyiFilter,
    Repeated,
    SubsetGaussian,
    Terms,
    TokenBucket,
    certify,
)
from veil.accounting.certificate import GROUP_SIZES, Certificate
from veil.accounting.verify import verify


def ledger_of(path: Path | None, relation: Relation, accountant: str, *groups: object) -> Ledger:
    accounts = tuple(Account(f"group {i}", "everybody", 1.0, rule) for i, rule in enumerate(groups))  # type: ignore[arg-type]
    return Ledger(Terms(relation, 1e-5, accountant, accounts, {"method": "test"}), path)


def bucket(*tokens: Repeated) -> TokenBucket:
    return TokenBucket(tokens)


RARE, OFTEN = PoissonGaussian(1.0, 0.005), PoissonGaussian(1.0, 0.01)


def test_each_group_gets_its_own_epsilon_and_the_whole_gets_the_largest() -> None:
    ledger = ledger_of(None, Relation.ADD_REMOVE, "pld", bucket(Repeated(RARE, 1000)), bucket(Repeated(OFTEN, 1000)))
    certificate = certify(ledger, Pld())
    assert certificate.by_group["group 0"] == pytest.approx(Pld().epsilon([Repeated(RARE, 1000)], 1e-5))
    assert certificate.by_group["group 1"] > certificate.by_group["group 0"]
    assert certificate.epsilon == certificate.by_group["group 1"]


def test_what_is_spent_so_far_is_a_reading_and_never_lowers_the_guarantee() -> None:
    ledger = ledger_of(None, Relation.ADD_REMOVE, "pld", bucket(Repeated(RARE, 1000)))
    ledger.reserve("gradient", 0, 10, {0: RARE})
    certificate = certify(ledger, Pld())
    assert certificate.spent_by_group["group 0"] < certificate.by_group["group 0"]
    assert certificate.epsilon == pytest.approx(Pld().epsilon([Repeated(RARE, 1000)], 1e-5))


@pytest.mark.parametrize("sizes", ["counted", "declared", "released", None, "unheard of"])
def test_the_statement_promises_that_a_row_was_there_only_where_sizes_do_not_tell(sizes: str | None) -> None:
    """Where sizes were counted, or nobody knows where they come from, only an empty place is hidden."""
    accounts = (Account("group", "everybody", 1.0, bucket(Repeated(RARE, 10))),)
    facts = {"method": "test"} | ({} if sizes is None else {GROUP_SIZES: sizes})
    statement = certify(Ledger(Terms(Relation.ADD_REMOVE, 1e-5, "pld", accounts, facts)), Pld()).statement
    assert "at all" not in statement
    assert "the names of groups, owners and classes" in statement
    known = sizes in ("declared", "released")
    assert ("whether any one row was in the data by more than" in statement) == known
    assert ("or its place was empty" in statement) != known
    assert ("which were counted in the rows" in statement) != known
    assert ("which were declared" in statement) == (sizes == "declared")
    assert ("Group sizes are noisy" in statement) == (sizes == "released")


def test_the_statement_of_replacing_says_that_sizes_stay() -> None:
    ledger = ledger_of(None, Relation.REPLACE_ONE, "pld", bucket(Repeated(SubsetGaussian(5.0, 100, 10), 10)))
    statement = certify(ledger, Pld()).statement
    assert "what any one row says, as against any other row of the same group and owner" in statement
    assert "how many rows each has" in statement


def test_an_approximate_accountant_cannot_certify() -> None:
    ledger = ledger_of(None, Relation.ADD_REMOVE, "gdp", bucket(Repeated(RARE, 1000)))
    with pytest.raises(AccountingError, match="approximation"):
        certify(ledger, Gdp())


RULES = {
    "poisson add-remove": (Relation.ADD_REMOVE, "pld", bucket(Repeated(RARE, 400), Repeated(Gaussian(50.0), 5))),
    "poisson replace-one": (
        Relation.REPLACE_ONE,
        "pld",
        bucket(Repeated(PoissonGaussian(2.0, 0.01, Relation.REPLACE_ONE), 200)),
    ),
    "gaussian replace-one, one side": (
        Relation.REPLACE_ONE,
        "pld",
        bucket(Repeated(Gaussian(20.0, Relation.REPLACE_ONE, one_sided=True), 30)),
    ),
    "subset": (Relation.REPLACE_ONE, "rdp", bucket(Repeated(SubsetGaussian(9.22, 49208, 256), 11580))),
    "subset by PLD": (Relation.REPLACE_ONE, "pld", bucket(Repeated(SubsetGaussian(4.5, 49208, 256), 2000))),
    "envelope": (
        Relation.ADD_REMOVE,
        "pld",
        bucket(Repeated(Envelope((RARE, PoissonGaussian(2.1, 0.01))), 300), Repeated(Gaussian(50.0), 5)),
    ),
    "filter": (Relation.ADD_REMOVE, "rdp", RenyiFilter(4.0, 0.3)),
}


@pytest.mark.parametrize("kind", RULES)
def test_the_second_accountant_agrees_with_a_true_certificate(tmp_path: Path, kind: str) -> None:
    relation, name, rule = RULES[kind]
    ledger = ledger_of(tmp_path / "ledger.jsonl", relation, name, rule)
    spent = rule.tokens if isinstance(rule, TokenBucket) else (Repeated(RARE, 20),)
    for number, token in enumerate(spent):
        event = token.event.events[0] if isinstance(token.event, Envelope) else token.event
        ledger.reserve(f"release {number}", 0, token.times, {0: event})
    certify(ledger, Pld() if name == "pld" else Rdp()).save(tmp_path / "certificate.json")
    verdict = verify(tmp_path / "certificate.json")
    assert verdict.holds
    assert verdict.opinions[0].second is not None


@pytest.mark.parametrize("kind", ["poisson add-remove", "subset by PLD", "envelope"])
def test_a_certificate_that_claims_too_little_is_caught(tmp_path: Path, kind: str) -> None:
    relation, name, rule = RULES[kind]
    ledger = ledger_of(tmp_path / "ledger.jsonl", relation, name, rule)
    certify(ledger, Pld()).save(tmp_path / "certificate.json")
    record = json.loads((tmp_path / "certificate.json").read_text())
    record["epsilon"] = record["by_group"]["group 0"] = record["epsilon"] * 0.8
    (tmp_path / "certificate.json").write_text(json.dumps(record))
    verdict = verify(tmp_path / "certificate.json")
    assert not verdict.holds
    assert not verdict.opinions[0].agrees


def test_a_certificate_of_another_ledger_state_is_caught(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path / "ledger.jsonl", Relation.ADD_REMOVE, "pld", bucket(Repeated(RARE, 300)))
    certify(ledger, Pld()).save(tmp_path / "certificate.json")
    ledger.reserve("gradient", 0, 1, {0: RARE})
    assert "has changed since" in verify(tmp_path / "certificate.json").faults[0]


def test_a_file_that_is_no_certificate_gives_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "certificate.json").write_text('{"epsilon": 1}')
    with pytest.raises(AccountingError, match="not a certificate"):
        Certificate.load(tmp_path / "certificate.json")
