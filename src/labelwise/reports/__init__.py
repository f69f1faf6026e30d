"""Pages and pictures for people: one self-contained HTML file, and where a model looked."""

from __future__ import annotations

from labelwise.reports.demo import DemoPicture, demo_report
from labelwise.reports.html import Section, write_report
from labelwise.reports.overlay import overlay

__all__ = ["DemoPicture", "Section", "demo_report", "overlay", "write_report"]
