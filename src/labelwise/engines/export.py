"""Export a model: convert it, compare its outputs with the model's, and only then put it in place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from labelwise.core.arrays import Floats
from labelwise.core.errors import LabelwiseError
from labelwise.engines.convert import STRIDE, Explaining, convert, inputs_of, open_file, outputs_of, takes_other_sizes
from labelwise.engines.measure import package_version
from labelwise.engines.quantize import Calibration, quantize
from labelwise.model.folder import replace_model_folder
from labelwise.model.model import LabelModel
from labelwise.runtime.exported import (
    ATTENTION,
    CONFIG,
    GATES,
    OUT,
    ExportConfig,
    ExportFormat,
    config_text,
)
from labelwise.runtime.sessions import IMAGES_AT_ONCE, TOLERANCE, Engine, Family, relative_difference, stream_count

FAMILY: dict[ExportFormat, Family] = {"onnx": "onnxruntime", "openvino": "openvino", "torch": "torch"}
HALF_TOLERANCE = 1e-2  # 16-bit weights have 11 significant bits
_PACKAGES = ("labelwise", "torch", "timm", "onnx", "onnxruntime", "openvino", "nncf")


def export_model(
    model: LabelModel,
    kind: ExportFormat,
    out: Path,
    *,
    calibration: Calibration | None = None,
    half: bool = False,
    maps: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> ExportConfig:
    """Write an export folder; gives what is known about it.

    Outputs are compared at several batch sizes and, where the network takes them, input sizes. If they differ by more
    than TOLERANCE, that is an error and nothing is written. An old export is replaced when the new one is complete.

    Args:
        model: The model.
        kind: `onnx`, `openvino`, or `torch` for PyTorch programs.
        out: The folder.
        calibration: Images to quantise to INT8 with. Default: float32.
        half: Store weights as 16-bit floats.
        maps: Also give where the network looked and its gates, if its head has any; not for PyTorch programs.
        say: Called with one line per step.
    """
    if calibration is not None and kind == "torch":
        raise LabelwiseError("INT8 works for onnx and openvino only", options={"format": "onnx"})
    if half and (calibration is not None or kind == "torch"):
        raise LabelwiseError("16-bit weights are for onnx and openvino, and not for INT8; leave them out")
    fast = model.cpu().optimize()
    outputs = outputs_of(model.config.head) if maps and kind != "torch" else (OUT,)
    label_query = tuple(model.head.label_query.tolist())
    # Goes into the network's file, too, except for `difference`, which is measured on that file.
    about = ExportConfig(
        kind=kind,
        precision="int8" if calibration is not None else "float16" if half else "float32",
        inputs=inputs_of(model),
        outputs=outputs,
        label_query=None if label_query == tuple(range(len(label_query))) else label_query,
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
        network = fast if outputs == (OUT,) else Explaining(fast)
        size = model.config.preprocessing.size
        path = convert(network, family, folder, size=size, metadata=text, outputs=outputs, half=half)
        say("comparing its outputs with the model's")
        difference = largest_difference(open_file(path, FAMILY[kind]), model, about)
        about = about.model_copy(update={"difference": difference})
        if calibration is not None:
            scores = quantize(path, FAMILY[kind], calibration, text, say)
            about = about.model_copy(update={"mean_average_precision": scores})
        (folder / CONFIG).write_text(config_text(about, settings), encoding="utf-8")

    replace_model_folder(out, write)
    return about


def largest_difference(engine: Engine, model: LabelModel, about: ExportConfig) -> float:
    """The largest difference of any output on noise: batches of 1, 2 and 5 images or more and, where the network takes
    them, three other sizes. More than TOLERANCE (HALF_TOLERANCE with 16-bit weights) is an error."""
    size, tolerance = model.config.preprocessing.size, HALF_TOLERANCE if about.precision == "float16" else TOLERANCE
    batches = 1, 2, max(5, IMAGES_AT_ONCE * stream_count())  # the last one is divided among the threads
    shapes = [(batch, size, size) for batch in batches]
    if about.other_sizes:
        shapes += [(1, size + STRIDE, size + STRIDE), (3, size, size + 2 * STRIDE), (2, 2 * size, size)]
    largest = 0.0
    for batch, height, width in shapes:
        images = _noise(batch, height, width)
        known = _some_known(batch, len(model.labels)) if model.takes_known else None
        expected = _expected(model, images, known, about)
        try:
            logits_alone = about.outputs == (OUT,)
            found = {OUT: engine(images, known)} if logits_alone else engine.outputs(images, known)  # type: ignore[attr-defined]
            difference = max(relative_difference(found[name], expected[name]) for name in about.outputs)
        except Exception as error:  # each engine has its own errors
            reason = " ".join(str(error).split())[:200]
            raise LabelwiseError(
                f"the exported network cannot run {batch} images of {width} x {height}: {reason}; nothing was written"
            ) from error
        if difference > tolerance:
            raise LabelwiseError(
                f"the outputs of the exported network differ from the model's (by {difference:.1e} for "
                f"{batch} images of {width} x {height}); nothing was written"
            )
        largest = max(largest, difference)
    return largest


def _expected(model: LabelModel, images: Floats, known: Floats | None, about: ExportConfig) -> dict[str, Floats]:
    if about.outputs == (OUT,):
        return {OUT: model.logits(images, known)}
    evidence = model.evidence(images, known)
    found = {OUT: evidence.logits, ATTENTION: evidence.attention, GATES: evidence.gates}
    return {name: output for name, output in found.items() if output is not None}


def _some_known(batch: int, labels: int) -> Floats:
    """[B, N]: each label present, absent or not known."""
    return np.random.default_rng(batch).integers(-1, 2, (batch, labels)).astype(np.float32)


def _noise(batch: int, height: int, width: int) -> Floats:
    return np.random.default_rng(height + width + batch).standard_normal((batch, 3, height, width), np.float32)
