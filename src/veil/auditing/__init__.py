"""Audits: what an attacker can really learn about the rows of each group, beside what is promised."""

from veil.auditing.attacks import audit
from veil.auditing.findings import Audit, Finding, read_audits
from veil.auditing.self_test import SelfTest, self_test

__all__ = ["Audit", "Finding", "SelfTest", "audit", "read_audits", "self_test"]
