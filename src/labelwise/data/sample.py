"""The built-in sample set: small drawn landscapes with labels that go together (an umbrella in the rain, stars around
the moon, fish and boats at sea) and labels that exclude each other (sun and moon). Seeded, made in seconds."""

from __future__ import annotations

from pathlib import Path

from labelwise.data.duplicates import Track, quietly
from labelwise.data.manifest_writer import write_manifest
from labelwise.data.sample_scene import SAMPLE_LABELS, draw_scene
from labelwise.data.table import LabelTable
from labelwise.errors import LabelwiseError

_SPLIT_OF_TEN = ("train", "train", "train", "test", "train", "train", "train", "val", "train", "test")


def make_sample(
    folder: str | Path, *, images: int = 1000, size: int = 160, seed: int = 0, track: Track = quietly
) -> LabelTable:
    """Write `images/*.jpg` and `labels.csv` (columns image, labels, split: 70% train, 10% val, 20% test).

    The same arguments give the same files, byte for byte.
    """
    if images < 1 or not 32 <= size <= 2048:
        raise LabelwiseError(f"a sample set needs at least 1 image of 32 to 2048 pixels, not {images} of {size}")
    root = Path(folder)
    (root / "images").mkdir(parents=True, exist_ok=True)
    names, present = [], []
    for number in track(range(images), "Drawing", images):
        scene = draw_scene(number, size, seed)
        names.append(f"images/{number:05d}.jpg")
        present.append(list(scene.boxes))
        scene.image.save(root / names[-1], "JPEG", quality=88)
    splits = [_SPLIT_OF_TEN[number % 10] for number in range(images)]
    paths = [str(root / name) for name in names]
    table = LabelTable.from_lists(paths, present, SAMPLE_LABELS, splits=splits, source=str(root / "labels.csv"))
    write_manifest(table, root / "labels.csv")
    return table
