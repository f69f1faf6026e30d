"""`labelwise export`: a model as one file that runs without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from labelwise.cli.common import say
from labelwise.core.errors import LabelwiseError


def export(
    model: str | None = None,
    /,
    *,
    out: Path,
    format: Literal["onnx", "openvino", "torch"] = "onnx",
    int8: Annotated[bool, Parameter(negative=())] = False,
    calibration: str | None = None,
    split: str | None = None,
    max_loss: float = 0.5,
    on_bad_image: Literal["error", "skip"] = "error",
) -> None:
    """Write a model as one file that runs without PyTorch, after comparing it with the model.

    Parameters
    ----------
    model
        A run folder, a model folder or a hub id. Left out, the tagger that comes with labelwise.
    out
        The folder to write: the network and config.json. It is replaced if it is an export already.
    format
        onnx (ONNX Runtime, OpenVINO and many others run it), openvino, or torch (a torch.export program).
    int8
        Quantise to 8 bits: smaller and faster. Needs --calibration.
    calibration
        A dataset with labels, to find the ranges of INT8 on and to measure mAP before and after.
    split
        The images of --calibration to use; without it val if there is one, else all.
    max_loss
        How much mAP (points) INT8 may lose; if it loses more, nothing is written.
    on_bad_image
        A calibration picture that cannot be decoded is an error, or is skipped.
    """
    if int8 != (calibration is not None):
        raise LabelwiseError("--int8 and --calibration DATA belong together: give both or none")
    if split is not None and not int8:
        raise LabelwiseError("--split chooses among the images of --calibration: give that, too")
    from labelwise.bundled import default_model
    from labelwise.data.labels import match_labels
    from labelwise.data.sources import open_data
    from labelwise.engines.export import export_model
    from labelwise.engines.quantize import Calibration
    from labelwise.model.model import load_model

    network = load_model(model or default_model())
    images = None
    if calibration is not None:
        table = open_data(calibration)
        chosen = split or ("val" if "val" in table.split_names else "all")
        table = match_labels(table.part(chosen), network.labels, ignore_extra=True)
        images = Calibration(table, network.config, max_loss, on_bad_image)
    about = export_model(network, format, out, calibration=images, say=lambda text: say(f"{text} …", stderr=True))
    size = network.config.preprocessing.size
    sizes = "sides of any multiple of 32" if about.other_sizes else f"pictures of {size} x {size} pixels only"
    say(f"{out}: {format}, {about.precision}, {len(network.labels)} labels, any batch size, {sizes}")
    if about.difference is not None:
        say(f"largest difference to the model's logits: {about.difference:.1e} of the largest one")
    if about.mean_average_precision is not None:
        before, after = about.mean_average_precision["before"], about.mean_average_precision["after"]
        say(f"mAP on {calibration} ({chosen}): {before:.2f} before, {after:.2f} in INT8 ({after - before:+.2f})")
