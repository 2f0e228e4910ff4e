"""Problem: rows with their groups, owners and budgets, checked, and the public facts that plans are made from."""

from veil.problem.budgets import quantise
from veil.problem.groups import CROSSED, Memberships, cross
from veil.problem.problem import EVERYBODY, Cell, Problem, PublicFacts, Unit
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
    "Unit",
    "cross",
    "quantise",
]
