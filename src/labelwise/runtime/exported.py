"""An exported model on disk: the network's file and `config.json`. Reading and running it does not need PyTorch."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field

from labelwise.core.arrays import Floats
from labelwise.core.config import Config
from labelwise.core.errors import LabelwiseError, counted, nearest_path
from labelwise.data.images import is_image
from labelwise.runtime.prediction import Evidence, TaggerConfig
from labelwise.runtime.sessions import EngineName, Family, OnnxEngine, OpenVinoEngine, SessionEngine

FORMAT = 1  # raised when older versions cannot read what this one writes
CONFIG = "config.json"
OUT, ATTENTION, GATES = "out", "attention", "gates"  # the outputs of the network in the file
IMAGES, KNOWN = "images", "known"  # its inputs
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
EXPORTS = ("model.onnx", "model.xml", "model.bin")
ExportFormat = Literal["onnx", "openvino", "torch"]
FILES: dict[ExportFormat, str] = {"onnx": "model.onnx", "openvino": "model.xml", "torch": "model.pt2"}


class ExportConfig(Config):
    """What is known about the exported file."""

    kind: ExportFormat
    precision: Literal["float32", "float16", "int8"] = "float32"
    inputs: tuple[str, ...] = (IMAGES,)  # then labels that are known, if the head takes them
    outputs: tuple[str, ...] = (OUT,)  # logits, then what led to them: attention, gates
    label_query: tuple[int, ...] | None = None  # the query that answers for each label; None: each has its own
    other_sizes: bool  # takes images whose sides are any multiples of 32, else only those of the model's size
    difference: float | None = None  # relative, the largest one between its outputs and the model's
    mean_average_precision: dict[str, float] | None = None  # INT8: percent on the calibration images, before and after
    made_with: dict[str, str] = Field(default_factory=dict)


@dataclass(repr=False)
class ExportedModel:
    """An export folder whose config was read: a `Model` that runs without PyTorch. `open` or the first use opens it."""

    folder: Path
    about: ExportConfig
    config: TaggerConfig
    content: dict[str, Any]  # all of the model's config, as JSON
    _session: SessionEngine | None = None

    def open(self, engine: EngineName = "auto") -> Self:
        """Open the network by this engine; an error if it cannot run the file, or if the file has other labels."""
        path = self.folder / FILES[self.about.kind]
        family = self._family(engine)
        if not path.is_file():
            raise LabelwiseError(f"{str(self.folder)!r} has no {path.name}; copy the whole folder")
        session: SessionEngine = OnnxEngine(path) if family == "onnxruntime" else OpenVinoEngine(path)
        self._require_same_labels(path, session.output_shape, session.metadata)
        if len(session.inputs) != len(self.about.inputs):
            raise LabelwiseError(f"the inputs of {str(path)!r} are not those in {CONFIG}; export the model again")
        self._session = session
        return self

    def __repr__(self) -> str:
        about = f"{self.about.kind}, {self.about.precision}"
        return f"<ExportedModel {str(self.folder)!r}: {counted(len(self.config.labels), 'label')}, {about}>"

    @property
    def engine(self) -> SessionEngine:
        if self._session is None:
            self.open()
        assert self._session is not None
        return self._session

    @property
    def family(self) -> Family:
        return self.engine.family

    @property
    def takes_known(self) -> bool:
        return KNOWN in self.about.inputs

    def logits(self, images: Floats, known: Floats | None = None) -> Floats:
        """Logits [B, N] of inputs [B, 3, H, W]."""
        return self.engine(images, known)

    def evidence(self, images: Floats, known: Floats | None = None) -> Evidence:
        """The logits with what led to them; logits alone if the file has no more."""
        outputs = self.engine.outputs(images, known)
        found = {name: outputs[name] for name in self.about.outputs if name in outputs}
        label_query = self.about.label_query or range(len(self.config.labels))
        return Evidence(found[OUT], np.array(label_query), found.get(ATTENTION), found.get(GATES))

    def _family(self, name: EngineName) -> EngineName:
        if self.about.kind == "torch":
            # torch.export.load evaluates expressions and unpickles objects that are in the file.
            raise LabelwiseError(
                f"{str(self.folder)!r} was exported for PyTorch, and opening such a file can run code in it; load the "
                "model that it was made from, or export it in another format",
                options={"format": "onnx"},
            )
        if name == "torch" or (name == "onnxruntime" and self.about.kind == "openvino"):
            raise LabelwiseError(f"{str(self.folder)!r} holds {FILES[self.about.kind]}, which engine {name} cannot run")
        if name == "auto":
            has_onnxruntime = find_spec("onnxruntime") is not None or find_spec("openvino") is None
            return "onnxruntime" if self.about.kind == "onnx" and has_onnxruntime else "openvino"
        return name

    def _require_same_labels(self, path: Path, shape: list[Any], metadata: dict[str, str]) -> None:
        """Somebody may have mixed the files of two exports."""
        count = shape[-1] if len(shape) == 2 else -1
        if count != len(self.config.labels):
            raise LabelwiseError(
                f"{str(path)!r} gives {count if count != -1 else 'no'} logits where {CONFIG} has "
                f"{len(self.config.labels)} labels; copy the whole folder, or export the model again"
            )
        try:
            inside = json.loads(metadata["labelwise"])["model"]["labels"]
        except (KeyError, TypeError, ValueError, RecursionError):
            inside = None
        if inside != list(self.config.labels):
            raise LabelwiseError(f"the labels in {str(path)!r} are not those in {CONFIG}; export the model again")


def is_hub_id(name: str) -> bool:
    """Whether a name that is no local path can be a model on the hub.

    Beside a folder `runs/first`, `runs/frist` and `rnus/first` are slips.

    >>> is_hub_id("owner/name"), is_hub_id("photo"), is_hub_id("./runs/first"), is_hub_id("owner/phto.jpg")
    (True, False, False, False)
    >>> is_hub_id("runs/frist")
    False
    """
    if not _HUB_ID.fullmatch(name) or is_image(Path(name).name):
        return False
    return not name.startswith("runs/") and not Path(name).parent.is_dir() and nearest_path(name) is None


def find_export(source: str | Path) -> ExportedModel | None:
    """The exported model in the folder `source`; None if it is something else (a model, a run, a hub id)."""
    file = Path(source) / CONFIG
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        if any((file.parent / name).is_file() for name in EXPORTS):
            raise LabelwiseError(f"{str(file)!r} is damaged: it is not JSON; export the model again") from None
        return None  # opening it as a model will say what is wrong
    if not isinstance(content, dict) or "export" not in content:
        return None
    if not isinstance(content.get("format"), int) or content["format"] > FORMAT:
        from importlib.metadata import version

        raise LabelwiseError(
            f"{str(source)!r} was made by a newer labelwise (this is {version('labelwise')}); "
            "upgrade with: pip install -U labelwise"
        )
    about = _section(content, "export", file)
    model = _section(content, "model", file)
    known = {key: value for key, value in model.items() if key in TaggerConfig.model_fields}
    where = str(file)
    return ExportedModel(Path(source), ExportConfig.parse(about, where), TaggerConfig.parse(known, where), model)


def check_target(folder: Path, *, overwrite: bool) -> None:
    """An error if an export must not be written into `folder`: it holds something else, or an export to be kept."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        found = folder.is_dir() and find_export(folder) is not None
    except LabelwiseError:  # a damaged one
        found = True
    if not found:
        raise LabelwiseError(f"{str(folder)!r} exists and is not an export folder; choose another folder or empty it")
    if not overwrite:
        raise LabelwiseError(
            f"{str(folder)!r} already holds an export; overwrite it, or choose another folder",
            options={"overwrite": True},
        )


def _section(content: dict[str, Any], name: str, file: Path) -> dict[str, Any]:
    section = content.get(name)
    if not isinstance(section, dict):
        raise LabelwiseError(f"{str(file)!r} is damaged: {name!r} is missing; export the model again")
    return section


def config_text(about: ExportConfig, model: dict[str, Any]) -> str:
    """The text of `config.json`, which is also stored inside the network's file."""
    content = {"format": FORMAT, "export": about.model_dump(mode="json"), "model": model}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
