"""The snippets of docs/reference/metrics.md give what the page says."""

from __future__ import annotations

import doctest
from pathlib import Path


def test_snippets_of_the_page() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
    results = doctest.testfile(str(page), module_relative=False)
    assert results.attempted >= 8
    assert results.failed == 0
