"""A model as the files it consists of, so that it can be sent to machines that do not see its folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from labelwise.atomic_file import write_whole
from labelwise.cache_folder import cache_folder
from labelwise.export.folder import find_export


@dataclass(frozen=True)
class ModelFiles:
    contents: dict[str, bytes]

    @classmethod
    def read(cls, source: str) -> ModelFiles:
        """Of a run folder, a model folder, an exported model or a hub id."""
        exported = find_export(source)
        if exported is not None:
            files = [file for file in exported.folder.iterdir() if file.is_file()]
        else:
            from labelwise.model_folder import CONFIG, WEIGHTS, find_folder

            folder = find_folder(source)
            files = [folder / name for name in (CONFIG, WEIGHTS) if (folder / name).is_file()]
        return cls({file.name: file.read_bytes() for file in sorted(files)})

    @property
    def fingerprint(self) -> str:
        """
        >>> one, other = ModelFiles({"config.json": b"{}"}), ModelFiles({"config.json": b"[]"})
        >>> len(one.fingerprint), one.fingerprint == other.fingerprint
        (32, False)
        """
        digest = hashlib.sha256()
        for name, content in sorted(self.contents.items()):
            digest.update(f"{name} {len(content)}\n".encode() + content)
        return digest.hexdigest()[:32]

    def unpacked(self) -> Path:
        """A folder on this machine that holds them; written once, and shared by all workers."""
        folder = cache_folder() / "models" / self.fingerprint
        for name, content in self.contents.items():
            if not (folder / name).is_file():
                write_whole(folder / name, content)
        return folder
