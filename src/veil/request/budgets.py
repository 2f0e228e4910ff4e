"""The request of a budget across runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from veil.request.request import Names
from veil.request.settings import Argument, Asked


class BudgetRequest(Asked):
    """The request of `veil budget create`.

    >>> BudgetRequest.checked(dataset="people", epsilon=3.0, delta=1e-5).compose
    'sum'
    """

    dataset: str = Argument(..., description="The name of the data set.")
    epsilon: float = Field(description="Maximum ε per row (with --person: per person), for all runs together.")
    delta: float = Field(description="δ for all runs together.")
    group: Names = Field((), description="Group columns, comma-separated; each group is charged separately.")
    owner: str = Field("", description="Column that names the owner of each row.")
    person: str = Field("", description="Column of people: the budget is each person's, and runs need --person too.")
    relation: Literal["add-remove", "replace-one"] = Field(
        "add-remove", description="add-remove, or replace-one, which accepts runs of both."
    )
    compose: Literal["sum", "renyi"] = Field(
        "sum", description="sum, or renyi: tighter for many runs, private plans only."
    )
