"""Datasets: readers for the usual formats, all giving the same `LabelTable`."""

from __future__ import annotations

from labelwise.data.readers.base import ReaderOptions, list_formats, register_format
from labelwise.data.sources import open_data
from labelwise.data.table import LabelTable

__all__ = ["LabelTable", "ReaderOptions", "list_formats", "open_data", "register_format"]
