"""Numbers about runs and models: curves, mistakes, label quality, experts, maps, comparisons."""

from typing import TYPE_CHECKING

from labelwise.core.lazy import lazy_imports

if TYPE_CHECKING:
    from labelwise.analysis.comparison import Comparison, compare, improved_pairs, related_pairs
    from labelwise.analysis.measured import MeasuredRun, measure_runs
    from labelwise.analysis.quality import LabelIssue, label_issues
    from labelwise.analysis.transfer import Transfer, negative_transfer
    from labelwise.training.run import Run, open_runs

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

__getattr__ = lazy_imports(__name__, __file__)
