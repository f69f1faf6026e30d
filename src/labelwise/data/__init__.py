"""Datasets: readers for the usual formats, all giving the same `LabelTable`, and tools for it.

>>> import labelwise as lw
>>> table = lw.data.open_data("photos.csv")  # doctest: +SKIP
>>> lw.data.inspect(table).problems  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelwise.core.lazy import lazy_imports

if TYPE_CHECKING:
    from labelwise.data.conversion import convert
    from labelwise.data.decode import decode_many, find_images
    from labelwise.data.downloads import download
    from labelwise.data.hiding import hide
    from labelwise.data.images import BadImage, BadImageError, Encoded, load_image
    from labelwise.data.inspection import Inspection, inspect
    from labelwise.data.manifests import write_manifest
    from labelwise.data.preprocessing import InputTransform, Preprocessing
    from labelwise.data.readers.base import ReaderOptions, list_formats, register_format, unregister_format
    from labelwise.data.sample import make_sample
    from labelwise.data.sources import open_data
    from labelwise.data.splitting import split
    from labelwise.data.table import LabelTable

__all__ = [
    "BadImage",
    "BadImageError",
    "Encoded",
    "InputTransform",
    "Inspection",
    "LabelTable",
    "Preprocessing",
    "ReaderOptions",
    "convert",
    "decode_many",
    "download",
    "find_images",
    "hide",
    "inspect",
    "list_formats",
    "load_image",
    "make_sample",
    "open_data",
    "register_format",
    "split",
    "unregister_format",
    "write_manifest",
]

__getattr__ = lazy_imports(__name__, __file__)
