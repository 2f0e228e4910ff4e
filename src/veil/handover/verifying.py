"""Verifying a folder: its certificate with a second accountant, and an exported model beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from veil.accounting.verify import Verdict, verify

MODELS = ("model.safetensors", "model.onnx", "model.pkl")
"""The names of models: of a run, and of what is exported."""


def verify_with_export(path: Path) -> Verdict:
    """What `veil verify` finds: the verdict on a certificate, and on an exported model beside it.

    Args:
        path: The file of the certificate.

    Returns:
        The verdict of `veil.accounting.verify`, with the faults of the exported model and what was compared.

    Raises:
        AccountingError: The certificate or a ledger cannot be read.
        InputError: The exported model cannot be read.
    """
    verdict = verify(path)
    exported = any((path.parent / name).exists() for name in MODELS[1:])
    if not exported and (path.parent / MODELS[0]).exists():
        return verdict
    from veil.accounting.certificate import Certificate
    from veil.handover.checking import check_exported

    found = check_exported(path.parent, Certificate.load(path), path.read_text(encoding="utf-8"))
    remarks = dict.fromkeys([*verdict.remarks, *([found.sentence] if found.sentence else [])])
    return replace(verdict, faults=(*verdict.faults, *found.faults), remarks=tuple(remarks))
