"""What measured times depend on: the machine and the versions. No name of a host, no path."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("labelwise", "torch", "torchvision", "timm", "pillow", "numpy", "onnxruntime", "openvino", "nncf")


def machine() -> dict[str, Any]:
    """
    >>> sorted(machine())
    ['cores', 'load', 'processor', 'system', 'threads', 'versions']
    """
    import torch

    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,  # before the benchmark
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
    }


def processor() -> str:
    """The processor's name and the widest vectors that it has, which decide its speed."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = facts.get("flags", "").split()
    widest = next((name for name in ("avx512f", "avx2") if name in flags), "")
    return " ".join(part for part in (facts.get("model name", platform.machine()), widest) if part)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
