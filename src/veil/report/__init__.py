"""Report: one self-contained HTML page (and its JSON twin) from the records of one run or many."""

from veil.report.audits import read_audits
from veil.report.model_card import render_card, write_card
from veil.report.page import build_twin, render_page, render_summary, write_report
from veil.report.requirements import Requirement, parse_requirement
from veil.report.twin import judge_requirements
from veil.report.variants import group_table, summary_table

__all__ = [
    "Requirement",
    "build_twin",
    "group_table",
    "judge_requirements",
    "parse_requirement",
    "read_audits",
    "render_card",
    "render_page",
    "render_summary",
    "summary_table",
    "write_card",
    "write_report",
]
