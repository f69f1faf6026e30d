"""`labelwise export`: a model as one file that runs without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import labelwise as lw
from labelwise.cli.common import FileName, Flag, Network, OnBadImage, described_by, note, say, takes_table
from labelwise.core.errors import counted


@takes_table
@described_by("api.deployment:export")
def export(
    model: Network = None,
    /,
    *,
    out: Path,
    format: Literal["onnx", "openvino", "torch"] = "onnx",
    maps: bool = True,
    half: Flag = False,
    int8: Flag = False,
    calibration: FileName | None = None,
    split: str | None = None,
    max_loss: float = 0.5,
    on_bad_image: OnBadImage = "error",
    overwrite: Flag = False,
) -> None:
    """Write a model as one file that runs without PyTorch, after comparing its outputs with the model's."""
    exported = lw.export(**locals(), say=lambda text: note(f"{text} …"))
    about, labels, size = exported.about, exported.config.labels, exported.config.preprocessing.size
    sizes = "sides of any multiple of 32" if about.other_sizes else f"images of {size} x {size} pixels only"
    more = f", with {' and '.join(about.outputs[1:])}" if about.outputs[1:] else ""
    say(f"{out}: {format}, {about.precision}, {counted(len(labels), 'label')}{more}, any batch size, {sizes}")
    if about.difference is not None:
        say(f"largest difference from the model's outputs: {about.difference:.1e} of the largest one")
    if about.mean_average_precision is not None:
        before, after = about.mean_average_precision["before"], about.mean_average_precision["after"]
        say(f"mAP on {calibration}: {before:.2f} before, {after:.2f} in INT8 ({after - before:+.2f})")
