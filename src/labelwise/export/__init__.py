"""Exported models: a folder with one network file that other programs run, and everything a tagger needs beside it."""

from labelwise.export.folder import Exported, ExportFormat, find_export

__all__ = ["ExportFormat", "Exported", "find_export"]
