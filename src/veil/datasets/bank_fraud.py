"""Bank Account Fraud: a million applications for an account, about 1 % fraudulent (Jesus et al. 2022).

Official layout: `bank_account_fraud/Base.csv` (or another variant). Groups: fraud or not × age under or over 50, as in
the ASC paper. Bounds are those of the data sheet that comes with the data.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from veil.datasets.files import DataFile, locate
from veil.datasets.split import Split
from veil.errors import require
from veil.problem import Problem
from veil.tables.encoding import Category, Column, Encoding, Numeric

FILES = (DataFile("bank_account_fraud/Base.csv"),)
VARIANTS = ("Base", "Variant I", "Variant II", "Variant III", "Variant IV", "Variant V")
# Negative values stand for "missing" in the columns where the bounds start at 0.
BOUNDS = {
    "income": (0.1, 0.9),
    "name_email_similarity": (0.0, 1.0),
    "prev_address_months_count": (0.0, 380.0),
    "current_address_months_count": (0.0, 429.0),
    "customer_age": (10.0, 90.0),
    "days_since_request": (0.0, 79.0),
    "intended_balcon_amount": (-16.0, 114.0),
    "zip_count_4w": (1.0, 6830.0),
    "velocity_6h": (-175.0, 16818.0),
    "velocity_24h": (1297.0, 9586.0),
    "velocity_4w": (2825.0, 7020.0),
    "bank_branch_count_8w": (0.0, 2404.0),
    "date_of_birth_distinct_emails_4w": (0.0, 39.0),
    "credit_risk_score": (-191.0, 389.0),
    "bank_months_count": (0.0, 32.0),
    "proposed_credit_limit": (200.0, 2000.0),
    "session_length_in_minutes": (0.0, 107.0),
    "device_distinct_emails_8w": (0.0, 2.0),
    "device_fraud_count": (0.0, 1.0),
}
SWITCHES = ("email_is_free", "phone_home_valid", "phone_mobile_valid", "has_other_cards", "foreign_request")
VALUES = {
    "payment_type": ("AA", "AB", "AC", "AD", "AE"),
    "employment_status": ("CA", "CB", "CC", "CD", "CE", "CF", "CG"),
    "housing_status": ("BA", "BB", "BC", "BD", "BE", "BF", "BG"),
    "source": ("INTERNET", "TELEAPP"),
    "device_os": ("linux", "macintosh", "other", "windows", "x11"),
}
CLASSES = ("legitimate", "fraud")


def load_bank_fraud(*, variant: str = "Base", test_months: tuple[int, ...] = (6, 7)) -> Split:
    """Months 6 and 7 test, the earlier ones train, as the data sheet proposes."""
    require(variant in VARIANTS, f'variant is "{variant}": it must be one of {", ".join(VARIANTS)}')
    table = pd.read_csv(locate(DataFile(f"bank_account_fraud/{variant}.csv"), "bank-fraud"))
    for name in BOUNDS:
        if BOUNDS[name][0] == 0.0 and name in table.columns:
            table[name] = table[name].where(table[name] >= 0)
    columns: list[Column] = [Numeric(name, low, high) for name, (low, high) in BOUNDS.items()]
    columns += [Numeric(name, 0.0, 1.0, "middle") for name in (*SWITCHES, "keep_alive_session")]
    columns += [Category(name, values) for name, values in VALUES.items()]
    encoding = Encoding(tuple(columns), from_rows=False)
    later = table["month"].isin(test_months).to_numpy()

    def part(rows: pd.DataFrame) -> Problem:
        fraud = np.where(rows["fraud_bool"].to_numpy() == 1, "fraud", "legitimate")
        age = np.where(rows["customer_age"].to_numpy() > 50, "over 50", "50 or under")
        return Problem.from_arrays(encoding.encode(rows), fraud, {"fraud": fraud, "age": age}, classes=CLASSES)

    return Split(part(table[~later]), part(table[later]))
