"""Pages and figures: the report of runs as one self-contained HTML file, and attention maps over images."""

from labelwise.reports.html import Section, write_report
from labelwise.reports.overlay import overlay
from labelwise.reports.page import ReportOptions, runs_report

__all__ = ["ReportOptions", "Section", "overlay", "runs_report", "write_report"]
