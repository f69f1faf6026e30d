"""Files of tensors: safetensors with a checksum in the header, and whether they fit a model before it is built."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from labelwise.core.errors import counted
from labelwise.core.files import atomic_write

Built = TypeVar("Built", bound=nn.Module)
_CHECKSUM = "crc32"


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a file as a whole; `metadata` goes into its header, with a checksum of everything."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {**metadata, _CHECKSUM: _checksum(plain, metadata)}

    def write(draft: Path) -> None:
        save_file(plain, draft, metadata=header)
        _sort_metadata(draft)

    atomic_write(path, write)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata. A file without a checksum, of another tool or an older version, is taken as it is.

    Raises:
        OSError, SafetensorError, ValueError: It is missing, cut off, no such file, or not what was written.
    """
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = dict(file.metadata() or {})
    expected = metadata.pop(_CHECKSUM, None)
    if expected is not None and expected != _checksum(tensors, metadata):
        raise ValueError("its checksum is wrong")
    return tensors, metadata


def _sort_metadata(path: Path) -> None:
    """safetensors writes the metadata in a random order. The same tensors should give the same bytes."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:  # always, unless it escapes characters in another way
            file.seek(8)
            file.write(text.ljust(size))


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """It finds damage, not malice. CRC-32 runs at gigabytes per second, and finds every single flipped bit."""
    found = zlib.crc32(repr(sorted(metadata.items())).encode())
    for name, tensor in sorted(tensors.items()):
        found = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.flatten().view(torch.uint8).numpy().data, found)
    return f"{found:08x}"


def fitting(build: Callable[[], Built], tensors: Mapping[str, Tensor]) -> Built:
    """The module that `build` makes, with these tensors; ValueError if it has others.

    It is built on the meta device first, which allocates nothing: a config of three kilobytes can ask for gigabytes.
    """
    with torch.device("meta"), _about_as_large_as(tensors):
        expected = build().state_dict()
    if missing := expected.keys() - tensors.keys():
        raise ValueError(f"{counted(len(missing), 'tensor is', 'tensors are')} missing, e.g. {min(missing)!r}")
    if unknown := tensors.keys() - expected.keys():
        raise ValueError(f"it has no place for {min(unknown)!r}")
    for name, tensor in expected.items():
        if tensor.shape != tensors[name].shape:
            raise ValueError(f"{name!r} is {list(tensors[name].shape)}, not {list(tensor.shape)}")
    module = build()
    module.load_state_dict(tensors)
    return module


@contextmanager
def _about_as_large_as(tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Stop this thread when it makes far more modules and numbers than the tensors have: without this, a hundred
    thousand layers would take gigabytes on the meta device too. Layers of a backbone that are pruned again count."""
    thread = threading.get_ident()
    modules, numbers = 20_000 + 20 * len(tensors), 250_000_000 + 4 * sum(t.numel() for t in tensors.values())

    def count(module: nn.Module, name: str, made: nn.Module | nn.Parameter | None) -> None:
        nonlocal modules, numbers
        if threading.get_ident() == thread:
            modules -= 1
            numbers -= made.numel() if isinstance(made, Tensor) else 0
            if modules < 0 or numbers < 0:
                raise ValueError("it describes a far larger model than there are tensors for")

    hooks = [register_module_module_registration_hook(count), register_module_parameter_registration_hook(count)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
