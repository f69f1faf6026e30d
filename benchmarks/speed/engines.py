"""`python -m benchmarks.speed engines`: one batch through every engine that is installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.speed.report import Column, JsonFile, PlotFile, Report

if TYPE_CHECKING:
    import numpy as np

    from labelwise.model.model import LabelModel

Runner = Callable[["np.ndarray"], "np.ndarray"]


def engines(
    *,
    model: str | None = None,
    int8: Path | None = None,
    batch: int = 16,
    seconds: float = 10.0,
    compile: bool = True,
    json: JsonFile = None,
    plot: PlotFile = None,
) -> None:
    """Images per second of the network alone: PyTorch in four ways, ONNX Runtime, OpenVINO, INT8.

    Parameters
    ----------
    model
        A run, a model folder or a hub id; default: EfficientNet-Lite2 at 224 pixels with an untrained HSQ head.
    int8
        An exported INT8 model (`labelwise export --int8`), as one more row.
    batch
        Images in a batch.
    seconds
        How long they are measured in turns, at least.
    compile
        Also `torch.compile`, which takes a minute or two.
    """
    import numpy as np

    from benchmarks.speed.models import bench_model, model_name
    from labelwise.engines.measure import in_turns
    from labelwise.runtime.sessions import relative_difference

    network = bench_model(model)
    size = network.config.preprocessing.size
    images = np.random.default_rng(0).standard_normal((batch, 3, size, size), np.float32)
    runners, left_out = _runners(network, batch, compile, int8)
    expected = runners["torch, eager"](images)
    times = in_turns({name: partial(run, images) for name, run in runners.items()}, seconds=seconds)
    rows: list[dict[str, Any]] = [
        {
            "engine": name,
            "images_per_s": batch / times[name].best * 1e3,
            "ratio": times["torch, eager"].best / times[name].best,
            "difference": relative_difference(run(images), expected),
        }
        for name, run in runners.items()
    ]
    Report(
        "engines",
        f"One batch of {batch} at {size} pixels, best of all rounds",
        [
            Column("engine", "engine"),
            Column("images_per_s", "images/s", ".1f"),
            Column("ratio", "faster by", ".2fx"),
            Column("difference", "largest difference of logits", ".0e"),
        ],
        rows,
        notes=[f"left out: {name} ({why})" for name, why in left_out.items()],
        settings={"batch": batch, "size": size, "model": model_name(model)},
        bars={"images_per_s": "images/s"},
        unit="images/s",
    ).publish(json, plot)


def _runners(
    network: LabelModel, batch: int, compile: bool, int8: Path | None
) -> tuple[dict[str, Runner], dict[str, str]]:
    """Every way to run the network, and why others are left out."""
    import copy

    import torch

    from labelwise.analysis.speed import EAGER, open_taggers
    from labelwise.backbones.timm_backbone import put_channels_last

    @torch.inference_mode()
    def eager(images: np.ndarray) -> np.ndarray:
        logits: np.ndarray = network(torch.from_numpy(images)).numpy()
        return logits

    channels_last = copy.deepcopy(network)
    put_channels_last(channels_last)
    exported = {} if int8 is None else {"INT8": int8}
    taggers, left_out = open_taggers(network, batch_size=batch, compile=compile, exported=exported)
    runners: dict[str, Runner] = {"torch, eager": eager, "torch, channels last": channels_last.logits}
    return runners | {name: tagger.logits for name, tagger in taggers.items() if name != EAGER}, left_out
