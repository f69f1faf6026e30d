"""INT8 by post-training quantisation: 8-bit weights and activations, with ranges from calibration images."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.core.arrays import Floats
from labelwise.core.errors import LabelwiseError, counted, missing_extra
from labelwise.core.progress import progress_of
from labelwise.data.decode import TableImages
from labelwise.data.images import OnBadImage
from labelwise.data.table import LabelTable
from labelwise.engines.convert import FILES, SCOPES, open_file, save_openvino
from labelwise.metrics import mean_average_precision
from labelwise.model.config import ModelConfig
from labelwise.runtime.exported import IMAGES, KNOWN
from labelwise.runtime.sessions import Engine, Family, inputs_for, openvino_core

CALIBRATION_IMAGES = 300  # more do not change the ranges
_HEAD = "head"  # the name of the head in a LabelModel


@dataclass(frozen=True)
class Calibration:
    """Images to find the ranges on and to measure the loss of accuracy on. Their labels are matched to the model's."""

    table: LabelTable
    config: ModelConfig
    max_loss: float = 0.5  # mAP points
    on_bad_image: OnBadImage = "error"
    progress: bool = True


def quantize(
    whole: Path, family: Family, calibration: Calibration, metadata: str, say: Callable[[str], None]
) -> dict[str, float]:
    """Replace the ONNX file `whole` by its INT8 version, a file for `family`; gives mAP (percent) before and after on
    all calibration images."""
    say(f"finding the ranges of INT8 on {counted(min(CALIBRATION_IMAGES, len(calibration.table)), 'image')}")
    path = whole.with_name(FILES[family])
    whole = whole.rename(whole.with_name("float32.onnx"))
    if family == "onnxruntime":
        _quantize_onnx(whole, path, calibration)
    else:
        _quantize_openvino(whole, path, calibration, metadata)
    say(f"measuring both on {counted(len(calibration.table), 'image')}")
    engines = [open_file(whole, family), open_file(path, family)]
    before, after = _mean_average_precisions(engines, calibration)
    if np.isnan(before):
        raise LabelwiseError(f"{calibration.table.source}: none of the model's labels is on any calibration image")
    whole.unlink()
    if before - after > calibration.max_loss:
        raise LabelwiseError(
            f"INT8 loses {before - after:.2f} mAP (from {before:.2f} to {after:.2f}), more than the allowed "
            f"{calibration.max_loss:g}; nothing was written. Try the other format, other images, or allow more",
            options={"max_loss": ...},
        )
    return {"before": before, "after": after}


def _quantize_onnx(whole: Path, path: Path, calibration: Calibration) -> None:
    """QDQ format, per-channel weights. Weights use 7 of the 8 bits: CPUs without VNNI add two 8-bit products in 16
    bits, which would overflow."""
    try:
        import onnx
        from onnxruntime import quantization
    except ImportError:
        raise missing_extra("onnx", "onnx") from None

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.batches = _calibration_batches(calibration)

        def get_next(self) -> dict[str, Floats] | None:
            return next(self.batches, None)

    model = onnx.load(whole)
    logging.disable(logging.WARNING)  # it proposes steps that the exporter has done
    try:
        quantization.quantize_static(
            whole,
            path,
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
            nodes_to_exclude=[node.name for node in model.graph.node if _in_head(node)],
            calibrate_method=quantization.CalibrationMethod.MinMax,
        )
    finally:
        logging.disable(logging.NOTSET)
    quantized = onnx.load(path)
    del quantized.metadata_props[:]
    quantized.metadata_props.extend(model.metadata_props)
    onnx.save(quantized, path)


def _quantize_openvino(whole: Path, path: Path, calibration: Calibration, metadata: str) -> None:
    core = openvino_core()
    try:
        import nncf
        import onnx
    except ImportError:
        raise missing_extra("nncf", "openvino") from None
    nncf.set_log_level(logging.ERROR)
    images = nncf.Dataset(list(_calibration_batches(calibration)))
    model = core.read_model(whole)
    head = [node for node in onnx.load(whole).graph.node if _in_head(node)]
    known = {name for node in head for name in (node.name, *node.output)}
    # An ONNX node becomes one or several operations, named `node` or `node/part`.
    names = [op.get_friendly_name() for op in model.get_ops()]
    ignored = nncf.IgnoredScope(names=[name for name in names if name in known or name.split("/")[0] in known])
    quantized = nncf.quantize(
        model, images, subset_size=CALIBRATION_IMAGES, preset=nncf.QuantizationPreset.MIXED, ignored_scope=ignored
    )
    save_openvino(quantized, path, metadata)


def _in_head(node: Any) -> bool:
    """The exporter records the module of each node. The head's softmaxes and products of activations need more than 8
    bits, and cost little compared with the backbone."""
    scopes = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "")
    return f"'{_HEAD}'" in scopes


def _calibration_batches(calibration: Calibration) -> Iterator[dict[str, Floats]]:
    """One image at a time [1, 3, size, size], spread evenly over the table; no label is known."""
    table, config = calibration.table, calibration.config
    names = (IMAGES, KNOWN) if config.head.takes_known else (IMAGES,)
    rows = np.linspace(0, len(table) - 1, min(CALIBRATION_IMAGES, len(table))).round().astype(int)
    for _, image in _inputs(calibration, rows.tolist()):
        yield inputs_for(names, [1, len(config.labels)], image[None], None)


def _inputs(calibration: Calibration, rows: list[int]) -> Iterator[tuple[int, Floats]]:
    """Rows of the table with their inputs [3, size, size]."""
    images = TableImages(calibration.table, calibration.config.preprocessing, calibration.on_bad_image)
    for part, inputs in images.batches(32, rows):
        yield from zip(part, inputs, strict=True)


def _mean_average_precisions(engines: list[Engine], calibration: Calibration) -> list[float]:
    """Percent; the same decoded images go through all networks."""
    targets = calibration.table.targets()
    logits: list[list[Floats]] = [[] for _ in engines]
    rows: list[int] = []
    with progress_of("Measuring INT8", len(calibration.table), calibration.progress) as advance:
        for row, image in _inputs(calibration, list(range(len(calibration.table)))):
            rows.append(row)
            for engine, found in zip(engines, logits, strict=True):
                found.append(engine(image[None])[0])
            advance(1)
    known: NDArray[np.int8] = targets[rows]
    return [100 * float(mean_average_precision(np.stack(found), known)) for found in logits]
