"""What runs learned: their predictions kept on disk, curves, mistakes, label quality, and honest comparisons."""

from labelwise.insight.compare import Comparison, compare, improved_pairs, related_pairs
from labelwise.insight.measured import MeasuredRun, measure_runs
from labelwise.insight.quality import LabelIssue, label_issues
from labelwise.insight.run import Run, open_runs
from labelwise.insight.transfer import Transfer, negative_transfer

__all__ = [
    "Comparison",
    "LabelIssue",
    "MeasuredRun",
    "Run",
    "Transfer",
    "compare",
    "improved_pairs",
    "label_issues",
    "measure_runs",
    "negative_transfer",
    "open_runs",
    "related_pairs",
]
