"""The figure of `labelwise explain`; it lives in `labelwise.explain.figure`."""

from __future__ import annotations

from labelwise.explain.figure import save_explanation

__all__ = ["save_explanation"]
