"""The budget store: a privacy budget across runs, shared by everybody who uses the same rows.

A data set has a total (ε, δ) and, where wanted, tighter limits for groups and owners. A run reserves its cost before it
reads a row; a run that would exceed a limit is rejected. `docs/budgets.md` states the guarantee and why it holds.

>>> import tempfile
>>> folder = tempfile.TemporaryDirectory()
>>> store = BudgetStore.create(f"{folder.name}/budget.sqlite")
>>> store.add_dataset(DataSet("people"), epsilon=1.0, delta=1e-5)
>>> store.reserve("people", Spending("first", Cost(0.4, 1e-6))).state
'reserved'
>>> [round(balance.left_epsilon, 2) for balance in store.balances("people")]
[0.6]
>>> folder.cleanup()
"""

from veil.budget_store.balance import Balance, Charge, Limit
from veil.budget_store.costs import Cost, DataSet
from veil.budget_store.entries import NOT_CHARGED, Entry, Spending, State
from veil.budget_store.runs import BudgetedRun, RunReservation, reserve_amount, reserve_for, reserve_together
from veil.budget_store.store import BudgetStore

__all__ = [
    "NOT_CHARGED",
    "Balance",
    "BudgetStore",
    "BudgetedRun",
    "Charge",
    "Cost",
    "DataSet",
    "Entry",
    "Limit",
    "RunReservation",
    "Spending",
    "State",
    "reserve_amount",
    "reserve_for",
    "reserve_together",
]
