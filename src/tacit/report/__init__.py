"""What people read: the audit's report, the comparison of Runs, and the model card."""

from tacit.report.comparison import render_comparison
from tacit.report.model_card import model_card, write_model_card
from tacit.report.page import render_report, write_report

__all__ = ["model_card", "render_comparison", "render_report", "write_model_card", "write_report"]
