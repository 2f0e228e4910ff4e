"""Report: one self-contained HTML page (and its JSON twin) from the facts of one run or many."""

from veil.report.page import build_facts, render_page, render_summary, write_report
from veil.report.variants import group_table, summary_table

__all__ = ["build_facts", "group_table", "render_page", "render_summary", "summary_table", "write_report"]
