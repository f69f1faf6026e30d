"""Where labelwise keeps what it can always compute again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder that the variable LABELWISE_CACHE names, else ~/.cache/labelwise."""
    named = os.environ.get("LABELWISE_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "labelwise"
