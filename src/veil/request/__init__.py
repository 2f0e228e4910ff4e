"""Requests: what the user asks for, as typed models without torch."""

from veil.request.audits import AuditRequest, AuditSettings
from veil.request.budgets import BudgetRequest
from veil.request.request import FOR_NETWORKS, NETWORK, SUITED, CompareRequest, Request, TableRequest
from veil.request.settings import Settings

__all__ = [
    "FOR_NETWORKS",
    "NETWORK",
    "SUITED",
    "AuditRequest",
    "AuditSettings",
    "BudgetRequest",
    "CompareRequest",
    "Request",
    "Settings",
    "TableRequest",
]
