"""Export a model: convert it, compare its outputs with the model's, and only then put it in place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from labelwise.core.arrays import Floats
from labelwise.core.errors import LabelwiseError
from labelwise.engines.convert import STRIDE, convert, open_file, takes_other_sizes
from labelwise.engines.measure import package_version
from labelwise.engines.quantize import Calibration, quantize
from labelwise.model.folder import replace_model_folder
from labelwise.model.model import LabelModel
from labelwise.model.network import TorchEngine
from labelwise.runtime.exported import CONFIG, ExportConfig, ExportFormat, config_text, find_export
from labelwise.runtime.sessions import TOLERANCE, Engine, Family, relative_difference

FAMILY: dict[ExportFormat, Family] = {"onnx": "onnxruntime", "openvino": "openvino", "torch": "torch"}
_PACKAGES = ("labelwise", "torch", "timm", "onnx", "onnxruntime", "openvino", "nncf")


def export_model(
    model: LabelModel,
    kind: ExportFormat,
    out: Path,
    *,
    calibration: Calibration | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> ExportConfig:
    """Write an export folder; gives what is known about it.

    Outputs are compared at several batch sizes and, where the network takes them, input sizes. If they differ by more
    than TOLERANCE, that is an error and nothing is written. An existing folder is replaced only if it is an export, and
    only when the new one is complete.

    Args:
        model: The model.
        kind: `onnx`, `openvino`, or `torch` for PyTorch programs.
        out: The folder.
        calibration: Images to quantise to INT8 with. Default: float32.
        say: Called with one line per step.
    """
    if out.exists() and any(out.iterdir()) and find_export(out) is None:
        raise LabelwiseError(f"{str(out)!r} exists and is not an export folder; choose another folder or empty it")
    if calibration is not None and kind == "torch":
        raise LabelwiseError("INT8 works for onnx and openvino only", options={"format": "onnx"})
    fast = model.cpu().optimize()
    # Goes into the network's file, too, except for `difference`, which is measured on that file.
    about = ExportConfig(
        kind=kind,
        precision="float32" if calibration is None else "int8",
        other_sizes=takes_other_sizes(model, model.config.preprocessing.size),
        made_with={name: found for name in _PACKAGES if (found := package_version(name))},
    )
    settings = model.config.model_dump(mode="json")

    def write(folder: Path) -> None:
        nonlocal about
        say(f"converting to {kind}")
        text = config_text(about, settings)
        # Both INT8 formats are made from ONNX, whose nodes name the modules that they come from.
        family = FAMILY[kind] if calibration is None else "onnxruntime"
        path = convert(fast, family, folder, size=model.config.preprocessing.size, metadata=text)
        say("comparing its outputs with the model's")
        difference = largest_difference(open_file(path, FAMILY[kind]), model, other_sizes=about.other_sizes)
        about = about.model_copy(update={"difference": difference})
        if calibration is not None:
            scores = quantize(path, FAMILY[kind], calibration, text, say)
            about = about.model_copy(update={"mean_average_precision": scores})
        (folder / CONFIG).write_text(config_text(about, settings), encoding="utf-8")

    replace_model_folder(out, write)
    return about


def largest_difference(engine: Engine, model: LabelModel, *, other_sizes: bool) -> float:
    """The largest difference on noise: batches of 1, 2 and 5 images and, with `other_sizes`, three other sizes. More
    than TOLERANCE is an error."""
    reference, size = TorchEngine(model.eval()), model.config.preprocessing.size
    shapes = [(1, size, size), (2, size, size), (5, size, size)]
    if other_sizes:
        shapes += [(1, size + STRIDE, size + STRIDE), (3, size, size + 2 * STRIDE), (2, 2 * size, size)]
    largest = 0.0
    for batch, height, width in shapes:
        images = _noise(batch, height, width)
        expected = reference(images)
        try:
            difference = relative_difference(engine(images), expected)
        except Exception as error:  # each engine has its own errors
            reason = " ".join(str(error).split())[:200]
            raise LabelwiseError(
                f"the exported network cannot run {batch} images of {width} x {height}: {reason}; nothing was written"
            ) from error
        if difference > TOLERANCE:
            raise LabelwiseError(
                f"the logits of the exported network differ from the model's (by {difference:.1e} for "
                f"{batch} images of {width} x {height}); nothing was written"
            )
        largest = max(largest, difference)
    return largest


def _noise(batch: int, height: int, width: int) -> Floats:
    return np.random.default_rng(height + width + batch).standard_normal((batch, 3, height, width), np.float32)
