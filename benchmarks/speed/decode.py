"""`python -m benchmarks.speed decode`: large JPEGs, read as small as they are needed, against plain Pillow."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.speed.report import Check, Column, JsonFile, PlotFile, Report

WIDTH, HEIGHT = 4000, 3000  # 12 megapixels


def decode(
    *,
    photos: Path | None = None,
    images: int = 12,
    model: str | None = None,
    rounds: int = 3,
    json: JsonFile = None,
    plot: PlotFile = None,
) -> None:
    """12-megapixel JPEGs to the network's input: `load_image(min_side=…)` against plain Pillow.

    A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size for a fraction of the work. The answers of a model on both are
    compared.

    Parameters
    ----------
    photos
        A folder of JPEGs; default: synthetic images, enlarged to 4000 x 3000 pixels with a camera's noise.
    images
        How many of them.
    model
        Whose answers are compared; default: EfficientNet-Lite2 at 224 pixels with an untrained HSQ head.
    rounds
        Of all ways in turns; the median counts.
    """
    import numpy as np
    import torch
    from PIL import Image

    from benchmarks.speed.models import bench_model, bench_photos, model_name
    from labelwise.data.images import load_image
    from labelwise.data.preprocessing import InputTransform
    from labelwise.engines.measure import in_turns

    network = bench_model(model)
    transform = InputTransform(network.config.preprocessing)

    def plain(paths: list[str]) -> list[np.ndarray]:
        return [transform(Image.open(path).convert("RGB")) for path in paths]

    def scaled(paths: list[str]) -> list[np.ndarray]:
        return [transform(load_image(path, min_side=transform.min_side)) for path in paths]

    ways = {"plain Pillow": plain, "labelwise": scaled}
    with tempfile.TemporaryDirectory() as folder:
        paths = _large_photos(images, Path(folder)) if photos is None else bench_photos(photos, images, Path(folder))
        runs = {name: partial(way, paths) for name, way in ways.items()}
        times = in_turns(runs, seconds=0, rounds=rounds)
        batches = {name: torch.from_numpy(np.stack(run())) for name, run in runs.items()}
        megapixels = float(np.mean([np.prod(Image.open(path).size) for path in paths]) / 1e6)
    with torch.inference_mode():
        scores = {name: network.scores(network(batch)) for name, batch in batches.items()}
    reference = scores["plain Pillow"]
    rows: list[dict[str, Any]] = [
        {
            "way": name,
            "ms": times[name].median / len(paths),
            "ratio": times["plain Pillow"].median / times[name].median,
            "pixel_difference": float((batches[name] - batches["plain Pillow"]).abs().mean()),
            "score_difference": float((scores[name] - reference).abs().max()),
            "other_top_label": int((scores[name].argmax(1) != reference.argmax(1)).sum()),
        }
        for name in ways
    ]
    report = Report(
        "decode",
        f"{len(paths)} JPEGs of {megapixels:.1f} megapixels to inputs of {transform.preprocessing.size} pixels",
        [
            Column("way", "decoder"),
            Column("ms", "ms per image", ".1f"),
            Column("ratio", "faster by", ".2fx"),
            Column("pixel_difference", "mean difference of inputs", ".3f"),
            Column("score_difference", "largest difference of scores", ".4f"),
            Column("other_top_label", "images with another top label", "d"),
        ],
        rows,
        [
            Check("large JPEGs against plain Pillow", rows[1]["ratio"], 2),
            Check("images with another top label", rows[1]["other_top_label"], 0, at_most=True, unit=""),
        ],
        settings={"images": len(paths), "model": model_name(model)},
        bars={"ms": "ms"},
        unit="ms per image",
    )
    report.publish(json, plot)


def _large_photos(count: int, folder: Path) -> list[str]:
    """Synthetic scenes with noise, which costs a decoder as much as the detail of a photo does."""
    import numpy as np
    from PIL import Image

    from labelwise.data.sample import draw_scene

    paths = []
    noise = np.random.default_rng(0).normal(0, 6, (HEIGHT, WIDTH, 1)).astype(np.float32)
    for number in range(count):
        scene = draw_scene(number, 480, seed=0).image.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        pixels = (np.asarray(scene, np.float32) + noise).clip(0, 255).astype(np.uint8)
        paths.append(str(folder / f"{number:02d}.jpg"))
        Image.fromarray(pixels).save(paths[-1], "JPEG", quality=90)
    return paths
