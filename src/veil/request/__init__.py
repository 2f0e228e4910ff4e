"""Requests: what the user asks for, as typed models without torch."""

from veil.request.audits import AuditRequest, AuditSettings
from veil.request.budgets import BudgetRequest
from veil.request.request import (
    COMPARED,
    LOOP_SETTINGS,
    NETWORK,
    SUITED,
    CompareRequest,
    Request,
    RowsRequest,
    TableRequest,
    default_method,
)
from veil.request.settings import Settings
from veil.request.tuning import Candidate, TuneRequest

__all__ = [
    "COMPARED",
    "LOOP_SETTINGS",
    "NETWORK",
    "SUITED",
    "AuditRequest",
    "AuditSettings",
    "BudgetRequest",
    "Candidate",
    "CompareRequest",
    "Request",
    "RowsRequest",
    "Settings",
    "TableRequest",
    "TuneRequest",
    "default_method",
]
