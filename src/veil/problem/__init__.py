"""Problem: rows with their groups, owners and budgets, checked, and the public facts that plans are made from."""

from veil.problem.budgets import quantise
from veil.problem.problem import CROSSED, EVERYBODY, Cell, Memberships, Problem, PublicFacts, cross
from veil.problem.rows import Collate, Rows
from veil.problem.strata import HOLE, Strata
from veil.problem.targets import Task

__all__ = [
    "CROSSED",
    "EVERYBODY",
    "HOLE",
    "Cell",
    "Collate",
    "Memberships",
    "Problem",
    "PublicFacts",
    "Rows",
    "Strata",
    "Task",
    "cross",
    "quantise",
]
