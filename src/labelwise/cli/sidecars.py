"""A small file beside each photo that says what is in it: for scripts (JSON), for people (text), for photo managers
(XMP keywords)."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from xml.sax.saxutils import escape

from labelwise.atomic_file import write_whole
from labelwise.errors import LabelwiseError

if TYPE_CHECKING:
    from labelwise.prediction import Prediction

Kind = Literal["json", "txt", "xmp"]
_XMP = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="labelwise {version}">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/">
   <dc:subject>
    <rdf:Bag>{keywords}</rdf:Bag>
   </dc:subject>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""


class SidecarWriter:
    """One file for each picture, whole or not there. A file that somebody else wrote stays, unless `overwrite`."""

    def __init__(
        self, kind: Kind, folder: Path | None = None, *, overwrite: bool = False, resume: bool = False
    ) -> None:
        self._kind, self._folder, self._overwrite, self._resume = kind, folder, overwrite, resume
        self._owner: dict[Path, str] = {}  # whose sidecar a file is, in this run

    def place(self, image: str) -> Path:
        """`a.jpg` -> `a.jpg.json`, `a.txt`, `a.xmp`: the names that other programs look for."""
        photo = Path(image)
        if self._folder is not None:
            # Below the folder, by the path as it was given; one that leads out of it is made absolute first.
            inside = Path(os.path.abspath(photo)) if ".." in photo.parts else photo
            photo = self._folder / inside.relative_to(inside.anchor)
        return photo.with_name(photo.name + ".json") if self._kind == "json" else photo.with_suffix(f".{self._kind}")

    def wants(self, image: str) -> bool:
        file = self.place(image)
        other = self._owner.setdefault(file, image)
        if os.path.abspath(other) != os.path.abspath(image):
            raise LabelwiseError(
                f"{other!r} and {image!r} would share the sidecar {str(file)!r}; --sidecar json gives each its own"
            )
        if not file.exists() or self._overwrite:
            return True
        if self._resume:
            return False
        if not self._is_ours(file):
            raise LabelwiseError(
                f"{str(file)!r} exists and labelwise did not write it; add --overwrite to replace such files, or write "
                "elsewhere with --sidecar-dir DIR"
            )
        return True

    def _is_ours(self, file: Path) -> bool:
        text = file.read_text(encoding="utf-8", errors="replace")
        if self._kind == "xmp":
            return 'x:xmptk="labelwise ' in text
        if self._kind == "txt":
            return False  # a plain list of words says nothing about who wrote it
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return isinstance(content, dict) and "labelwise" in content

    def write(self, prediction: Prediction, labels: dict[str, float]) -> None:
        if prediction.error is not None:
            return
        text = self._text(prediction, labels)
        write_whole(self.place(str(prediction.image)), text.encode("utf-8", "backslashreplace"))

    def _text(self, prediction: Prediction, labels: dict[str, float]) -> str:
        if self._kind == "txt":
            return "".join(f"{label}\n" for label in labels)
        if self._kind == "xmp":
            keywords = "".join(f"\n     <rdf:li>{escape(label)}</rdf:li>" for label in labels)
            return _XMP.format(version=version("labelwise"), keywords=keywords + "\n    " if keywords else "")
        content: dict[str, Any] = prediction.to_dict(all_scores=True) | {"labels": labels}
        return json.dumps({"labelwise": version("labelwise"), **content}, indent=1, ensure_ascii=False) + "\n"

    def close(self) -> None:
        """Every file is complete already."""
