"""Small synthetic data in the real formats of the papers' datasets: 14 images, 9 labels."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

from labelwise.data.conversion import convert
from labelwise.data.table import LabelTable

LABELS = ("boat", "cat", "dog", "fish", "house", "kite", "sheep", "sun", "tree")
UNSEEN = LABELS[:3]  # NUS-WIDE's concepts; the others are its tags
SPLITS = ["train"] * 8 + ["val"] * 3 + ["test"] * 3


def write_data(kind: str, folder: Path) -> str:
    """Write a dataset and return what `--data` takes."""
    random = np.random.default_rng(0)
    (folder / "drawn").mkdir(parents=True)
    images = [folder / "drawn" / f"{number:016x}.jpg" for number in range(len(SPLITS))]
    for image in images:
        Image.fromarray(random.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(image)
    # Every label occurs in every split; the first label of an image is its class where there is only one.
    names = [[LABELS[number % 9], LABELS[(number + 4) % 9], LABELS[(number + 7) % 9]] for number in range(len(SPLITS))]
    if kind in ("coco", "csv"):
        table = LabelTable.from_lists([str(image) for image in images], names, LABELS, splits=SPLITS)
        convert(table, kind, folder / kind)
        return f"coco:{folder / kind}" if kind == "coco" else str(folder / kind / "labels.csv")
    return {"imagefolder": _image_folder, "voc": _voc, "openimages": _open_images, "nus-wide": _nus_wide}[kind](
        folder, images, names
    )


def _place(image: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.hardlink_to(image)


def _image_folder(folder: Path, images: list[Path], names: list[list[str]]) -> str:
    for image, split, (label, *_) in zip(images, SPLITS, names, strict=True):
        for each in {label, LABELS[0]} if split == "train" else {label}:  # one class name per image, all classes known
            _place(image, folder / "imagenet" / split / each / f"{each}-{image.name}")
    return f"imagefolder:{folder / 'imagenet'}"


def _voc(folder: Path, images: list[Path], names: list[list[str]]) -> str:
    root = folder / "VOCdevkit" / "VOC2007"
    (root / "ImageSets" / "Main").mkdir(parents=True)
    (root / "Annotations").mkdir()
    for split in ("train", "val", "test"):
        ids = [image.stem for image, of in zip(images, SPLITS, strict=True) if of == split]
        (root / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(ids))
    for image, labels in zip(images, names, strict=True):
        _place(image, root / "JPEGImages" / image.name)
        objects = "".join(f"<object><name>{name}</name><difficult>0</difficult></object>" for name in labels)
        (root / "Annotations" / f"{image.stem}.xml").write_text(f"<annotation>{objects}</annotation>")
    return f"voc:{root.parent}"


def _open_images(folder: Path, images: list[Path], names: list[list[str]]) -> str:
    root = folder / "openimages"
    codes = {name: f"/m/{number:02d}" for number, name in enumerate(LABELS)}
    rows: dict[str, list[list[str]]] = {split: [] for split in ("train", "validation", "test")}
    for image, of, labels in zip(images, SPLITS, names, strict=True):
        split = "validation" if of == "val" else of
        _place(image, root / split / image.name)
        # Three labels are verified as present, three as absent; nobody has looked for the others.
        verified = [(name, "1") for name in labels] + [(name, "0") for name in LABELS if name not in labels][:3]
        rows[split] += [[image.stem, "verification", codes[name], value] for name, value in verified]
    for split, lines in rows.items():
        with open(root / f"oidv6-{split}-annotations-human-imagelabels.csv", "w", newline="") as file:
            csv.writer(file).writerows([["ImageID", "Source", "LabelName", "Confidence"], *lines])
    with open(root / "oidv6-class-descriptions.csv", "w", newline="") as file:
        csv.writer(file).writerows([["LabelName", "DisplayName"], *([code, name] for name, code in codes.items())])
    return f"openimages:{root}"


def _nus_wide(folder: Path, images: list[Path], names: list[list[str]]) -> str:
    root = folder / "nus"
    seen = [name for name in LABELS if name not in UNSEEN]
    files = {"ConceptsList/Concepts81.txt": list(UNSEEN), "NUS_WID_Tags/TagList1k.txt": seen}
    for split in ("Train", "Test"):
        here = [
            (image, labels)
            for image, of, labels in zip(images, SPLITS, names, strict=True)
            if (of == "train") == (split == "Train")
        ]
        files[f"ImageList/{split}Imagelist.txt"] = [f"zoo\\{image.name}" for image, _ in here]
        files[f"NUS_WID_Tags/{split}_Tags1k.dat"] = [
            "\t".join(str(int(name in labels)) for name in seen) for _, labels in here
        ]
        for concept in UNSEEN:
            values = [str(int(concept in labels)) for _, labels in here]
            files[f"Groundtruth/TrainTestLabels/Labels_{concept}_{split}.txt"] = values
        for image, _ in here:
            _place(image, root / "Flickr" / "zoo" / image.name)
    for name, lines in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("\n".join(lines) + "\n")
    return f"nus-wide:{root}?vocabulary=zero-shot"
