"""Audits: what an attacker learns about the rows of each group, compared with the guarantee."""

from veil.auditing.attacks import audit
from veil.auditing.findings import Audit, Finding, read_audits
from veil.auditing.self_test import SelfTest, self_test

__all__ = ["Audit", "Finding", "SelfTest", "audit", "read_audits", "self_test"]
