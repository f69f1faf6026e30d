"""`python -m benchmarks.speed throughput`: a folder of JPEGs to labels."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.speed.report import Check, Column, JsonFile, PlotFile, Report

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from labelwise.model.model import LabelModel
    from labelwise.runtime.tagger import Tagger

EAGER = "eager timm + Pillow loop"
STAGES = ("decode", "preprocess", "backbone", "head")


def throughput(
    *,
    photos: Path | None = None,
    images: int = 1000,
    model: str | None = None,
    int8: Path | None = None,
    batch: int = 32,
    rounds: int = 2,
    json: JsonFile = None,
    plot: PlotFile = None,
) -> None:
    """Images per second from a folder of JPEGs to labels, on every engine, against an eager timm + Pillow loop.

    All of them run on the same images in turns, and their answers are compared: how many of all decisions (a label
    applies to an image or not) are other ones than the eager loop's. Stages are timed one by one, in
    ms per image; end to end, labelwise decodes the next images while the network works.

    Parameters
    ----------
    photos
        A folder of JPEGs; default: synthetic images of 400 pixels.
    images
        How many of them.
    model
        A run, a model folder or a hub id; default: EfficientNet-Lite2 at 224 pixels with an untrained HSQ head.
    int8
        An exported INT8 model (`labelwise export --int8`), as one more row.
    batch
        Images in a batch.
    rounds
        Of all of them; the fastest counts.
    """
    import numpy as np

    from benchmarks.speed.eager_loop import EagerLoop
    from benchmarks.speed.models import bench_model, bench_photos, model_name

    network = bench_model(model)
    with tempfile.TemporaryDirectory() as folder:
        paths = bench_photos(photos, images, Path(folder))
        taggers, left_out = _taggers(network, batch, int8)
        loop = EagerLoop(network, batch)
        sides: dict[str, Callable[[], np.ndarray]] = {EAGER: lambda: loop.scores(paths)}
        for name, tagger in taggers.items():
            sides[name] = partial(_scores, tagger, paths, batch)
        scores, seconds = _in_rounds(sides, rounds)
        stages = {EAGER: {stage: loop.seconds[stage] / rounds / len(paths) * 1e3 for stage in STAGES}}
        backbone = network.optimize().backbone
        for name, tagger in taggers.items():  # of an exported model there is no backbone alone
            alone = None if name == "INT8" else backbone
            stages[name] = _stages(tagger, alone, paths[: 4 * batch], batch)
    limits = np.array(list(next(iter(taggers.values())).thresholds.values()))
    rows: list[dict[str, Any]] = [
        {
            "engine": name,
            **{f"{stage}_ms": stages[name].get(stage) for stage in STAGES},
            "images_per_s": len(paths) / seconds[name],
            "ratio": seconds[EAGER] / seconds[name],
            "other_decisions": float(((found >= limits) != (scores[EAGER] >= limits)).mean() * 100),
            "other_top_label": float((found.argmax(1) != scores[EAGER].argmax(1)).mean() * 100),
        }
        for name, found in scores.items()
    ]
    report = Report(
        "throughput",
        f"{len(paths):,} JPEGs to labels, batch {batch}; stages in ms per image",
        [
            Column("engine", "engine"),
            *(Column(f"{stage}_ms", stage, ".1f") for stage in STAGES),
            Column("images_per_s", "images/s end to end", ".1f"),
            Column("ratio", "faster by", ".2fx"),
            Column("other_decisions", "other decisions (%)", ".3f"),
            Column("other_top_label", "other top label (%)", ".2f"),
        ],
        rows,
        notes=[f"left out: {name} ({why})" for name, why in left_out.items()],
        settings={"images": len(paths), "batch": batch, "model": model_name(model), "photos": photos is not None},
        bars={"images_per_s": "images/s"},
        unit="images/s, end to end",
    )
    whole = [row for row in rows if row["engine"] not in (EAGER, "INT8")]
    best = max(whole, key=lambda row: float(row["ratio"]))
    report.checks = [
        Check(f"end to end at fp32, best engine ({best['engine']}) against the eager loop", best["ratio"], 3),
        Check("decisions that differ at fp32", best["other_decisions"], 0.1, at_most=True, unit="%"),
    ]
    for row in rows:
        if row["engine"] == "INT8":
            report.checks.append(Check("INT8 against the best fp32 engine", row["ratio"] / best["ratio"], 1))
    report.publish(json, plot)


def _taggers(network: LabelModel, batch: int, int8: Path | None) -> tuple[dict[str, Tagger], dict[str, str]]:
    """One for each engine that is installed, and why others are left out."""
    from labelwise.analysis.speed import EAGER, open_taggers

    exported = {} if int8 is None else {"INT8": int8}
    taggers, left_out = open_taggers(network, batch_size=batch, exported=exported)
    return {name: tagger for name, tagger in taggers.items() if name != EAGER}, left_out


def _scores(tagger: Tagger, paths: Sequence[str], batch: int) -> np.ndarray:
    import numpy as np

    found = [prediction.all_scores for prediction in tagger.stream(paths, batch_size=batch)]
    return np.array([[scores[label] for label in tagger.labels] for scores in found], np.float32)


def _in_rounds(
    sides: dict[str, Callable[[], np.ndarray]], rounds: int
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Everybody's answers, and the seconds of the fastest round."""
    from labelwise.core.progress import track

    answers: dict[str, np.ndarray] = {}
    seconds: dict[str, float] = {}
    turns = [name for _ in range(rounds) for name in sides]
    for name in track(turns, "Measuring", unit="runs"):
        start = time.perf_counter()
        answers[name] = sides[name]()
        taken = time.perf_counter() - start
        seconds[name] = min(taken, seconds.get(name, taken))
    return answers, seconds


def _stages(tagger: Tagger, backbone: nn.Module | None, paths: Sequence[str], batch: int) -> dict[str, float]:
    """ms per image, one stage at a time. The head's time is the whole network's less the backbone's."""
    import numpy as np

    from labelwise.data.images import load_image
    from labelwise.data.preprocessing import InputTransform
    from labelwise.engines.choose import open_engine
    from labelwise.engines.measure import in_turns

    transform = InputTransform(tagger.config.preprocessing)
    start = time.perf_counter()
    images = [load_image(path, min_side=transform.min_side) for path in paths]
    decoded = time.perf_counter()
    inputs = np.stack([transform(image) for image in images])[:batch]
    stages = {"decode": decoded - start, "preprocess": time.perf_counter() - decoded}
    result: dict[str, Any] = {name: taken / len(paths) * 1e3 for name, taken in stages.items()}
    runs: dict[str, Callable[[], object]] = {"network": lambda: tagger.logits(inputs)}
    if backbone is not None:
        size = tagger.config.preprocessing.size
        engine = open_engine(tagger.family, backbone, size=size, batch_size=batch)
        runs["backbone"] = lambda: engine(inputs)
    times = {name: timing.best / len(inputs) for name, timing in in_turns(runs, seconds=1).items()}
    result["backbone"] = times.get("backbone", times["network"])
    if "backbone" in times:
        result["head"] = max(0.0, times["network"] - times["backbone"])
    return result
