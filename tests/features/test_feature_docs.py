"""The snippet and the sizes of docs/guides/feature-cache.md are right."""

from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "feature-cache.md"


def test_snippets_of_the_page() -> None:
    results = doctest.testfile(str(PAGE), module_relative=False)
    assert results.attempted >= 12
    assert results.failed == 0


def test_sizes_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for channels, side in ((1280, 7), (2048, 14)):
        assert f"{2 * channels * side * side + 41:,} bytes" in text  # 41: asserted on real files in test_feature_store
    assert round(9963 * 2 * (2 * 1280 * 49 + 41) / 1e9, 1) == 2.5
