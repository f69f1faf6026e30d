"""Pages and figures: the report of runs as one self-contained HTML file, and attention maps over images."""

from typing import TYPE_CHECKING

from labelwise.core.lazy import lazy_imports
from labelwise.reports.overlay import overlay  # not below: the module has the same name

if TYPE_CHECKING:
    from labelwise.reports.html import Section, write_report
    from labelwise.reports.page import ReportOptions, runs_report

__all__ = ["ReportOptions", "Section", "overlay", "runs_report", "write_report"]

__getattr__ = lazy_imports(__name__, __file__)
