"""Every built-in reader, and one of a user's own, through the same tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from PIL import Image

from labelwise.core import plugins
from labelwise.core.errors import LabelwiseError
from labelwise.data import LabelTable, ReaderOptions, list_formats, open_data, register_format
from labelwise.data.conversion import convert
from labelwise.data.manifests import write_manifest
from labelwise.data.readers.base import read_lines, unregister_format
from labelwise.data.table import UNKNOWN
from labelwise.data.xmp import tagged
from reader_kit import ReaderKit


def table_of(rows: list[tuple[str, str, list[str]]]) -> LabelTable:
    images, splits, labels = zip(*rows, strict=True)
    return LabelTable.from_lists(list(images), list(labels), splits=list(splits))


class ManifestKit(ReaderKit):
    option: ClassVar = {"duplicates": "merge", "root": ""}

    def write(self, folder: Path) -> Path:
        file = folder / f"labels.{self.format}"
        table = table_of([(str(folder / image), split, labels) for image, split, labels in self.rows])
        write_manifest(table, file)
        return file


class TestCsv(ManifestKit):
    format = "csv"
    option: ClassVar = {"separator": "|"}


class TestTsv(ManifestKit):
    format = "tsv"
    option: ClassVar = {"image_column": "image"}


class TestJsonl(ManifestKit):
    format = "jsonl"
    option: ClassVar = {"splits": "train,val,test"}


class TestParquet(ManifestKit):
    format = "parquet"
    option: ClassVar = {"label_column": "labels"}


class TestManifestFolder(ManifestKit):
    format = "manifest"
    option: ClassVar = {"duplicates": "merge"}

    def write(self, folder: Path) -> Path:
        table = table_of([(str(folder / image), split, labels) for image, split, labels in self.rows])
        write_manifest(table, folder / "labels.csv")
        return folder


class TestCoco(ReaderKit):
    format = "coco"
    option: ClassVar = {"year": "2017"}

    def write(self, folder: Path) -> Path:
        (folder / "annotations").mkdir()
        categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
        for split in ("train", "val", "test"):
            here = [(image, labels) for image, of, labels in self.rows if of == split]
            content = {
                "categories": categories,
                "images": [{"id": number, "file_name": image} for number, (image, _) in enumerate(here)],
                "annotations": [
                    {"id": number, "image_id": number, "category_id": 1 + ["cat", "dog"].index(label)}
                    for number, (_, labels) in enumerate(here)
                    for label in labels
                ],
            }
            (folder / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))
        return folder


class TestImageFolder(ReaderKit):
    format = "imagefolder"
    rows: ClassVar = [("a.jpg", "train", ["cat"]), ("b.jpg", "train", ["dog"]), ("c.jpg", "test", ["cat"])]

    def write(self, folder: Path) -> Path:
        for image, split, (label,) in self.rows:
            (folder / split / label).mkdir(parents=True, exist_ok=True)
            (folder / split / label / image).touch()
        return folder


class TestKeywords(ReaderKit):
    format = "keywords"
    option: ClassVar = {"levels": "path", "sources": "xmp,sidecar"}
    rows: ClassVar = [("a.jpg", "", ["cat"]), ("b.jpg", "", ["dog"]), ("c.jpg", "", ["cat", "dog"])]

    def write(self, folder: Path) -> Path:
        for image, _, labels in self.rows:
            Image.new("RGB", (8, 8)).save(folder / image)
            about = {"model": "", "version": "", "date": ""}
            packet = tagged(None, dict.fromkeys(labels, 1.0), **about).replace(b"urn:labelwise:", b"urn:other:")
            (folder / image).with_suffix(".xmp").write_bytes(packet.replace(b'xmptk="labelwise', b'xmptk="other'))
        return folder


class TestVoc(ReaderKit):
    format = "voc"
    option: ClassVar = {"difficult": "present"}

    def write(self, folder: Path) -> Path:
        root = folder / "VOC2007"
        (root / "ImageSets" / "Main").mkdir(parents=True)
        (root / "Annotations").mkdir()
        for split in ("train", "val", "test"):
            names = [Path(image).stem for image, of, _ in self.rows if of == split]
            (root / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names))
        for image, _, labels in self.rows:
            objects = "".join(f"<object><name>{name}</name><difficult>0</difficult></object>" for name in labels)
            (root / "Annotations" / image).with_suffix(".xml").write_text(f"<annotation>{objects}</annotation>")
        return folder


class TestOpenImages(ReaderKit):
    format = "openimages"
    absent = UNKNOWN
    option: ClassVar = {"classes": "all"}
    rows: ClassVar = [
        ("000000000000000a.jpg", "train", ["cat"]),
        ("000000000000000b.jpg", "train", ["dog"]),
        ("000000000000000c.jpg", "val", ["cat", "dog"]),
        ("000000000000000d.jpg", "test", ["dog"]),
    ]

    def write(self, folder: Path) -> Path:
        (folder / "oidv6-class-descriptions.csv").write_text("LabelName,DisplayName\n/m/01,cat\n/m/02,dog\n")
        for split in ("train", "validation", "test"):
            lines = [
                f"{Path(image).stem},verification,{'/m/01' if label == 'cat' else '/m/02'},1"
                for image, of, labels in self.rows
                if split.startswith(of)
                for label in labels
            ]
            file = folder / f"oidv6-{split}-annotations-human-imagelabels.csv"
            file.write_text("\n".join(["ImageID,Source,LabelName,Confidence", *lines]) + "\n")
        return folder


class TestNusWide(ReaderKit):
    format = "nus-wide"
    option: ClassVar = {"empty": "drop"}
    rows: ClassVar = [("a.jpg", "train", ["cat"]), ("b.jpg", "train", ["dog"]), ("c.jpg", "test", ["cat", "dog"])]

    def write(self, folder: Path) -> Path:
        files = {"Concepts81.txt": ["cat", "dog"]}
        for split in ("Train", "Test"):
            here = [(image, labels) for image, of, labels in self.rows if of == split.lower()]
            files[f"ImageList/{split}Imagelist.txt"] = [image for image, _ in here]
            for concept in ("cat", "dog"):
                file = f"Groundtruth/TrainTestLabels/Labels_{concept}_{split}.txt"
                files[file] = [str(int(concept in labels)) for _, labels in here]
        for name, lines in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("\n".join(lines) + "\n")
        return folder


# ---- a user's own


class MineOptions(ReaderOptions):
    """Options of the format `mine`.

    Args:
        case: What becomes of label names.
    """

    case: Literal["lower", "keep"] = "lower"


def read_mine(path: Path, options: MineOptions, labels: Any) -> LabelTable:
    rows = [line.split(" ") for line in read_lines(path)]
    if any(len(row) != 3 for row in rows):
        raise LabelwiseError(f"{path}: expected lines like 'a.jpg train cat,dog'")
    present = [(names.lower() if options.case == "lower" else names).split(",") for _, _, names in rows]
    images = [str(path.parent / image) for image, _, _ in rows]
    return LabelTable.from_lists(images, present, splits=[split for _, split, _ in rows])


def register() -> None:
    register_format(
        "mine",
        options=MineOptions,
        looks_like="a file *.mine",
        recognise=lambda path: path.suffix == ".mine",
        aliases=["my-own"],
    )(read_mine)


@pytest.fixture
def mine() -> Iterator[None]:
    register()
    yield
    unregister_format("mine")


@pytest.mark.usefixtures("mine")
class TestMine(ReaderKit):
    format = "mine"
    option: ClassVar = {"case": "keep"}

    def write(self, folder: Path) -> Path:
        lines = (f"{image} {split} {','.join(labels)}" for image, split, labels in self.rows)
        (folder / "data.mine").write_text("\n".join(lines))
        return folder / "data.mine"

    def test_aliases(self, path: Path) -> None:
        self.check(open_data(f"MY_OWN:{path}"))

    def test_it_can_be_converted(self, path: Path, tmp_path: Path) -> None:
        convert(open_data(path), "coco", tmp_path / "coco")
        assert len(open_data(tmp_path / "coco")) == len(self.rows)


def test_a_name_is_taken_once(mine: None) -> None:
    register()  # the same function again, as in a notebook
    with pytest.raises(LabelwiseError, match="there is a data format 'coco' already; choose another name"):
        register_format("coco", looks_like="something else")(read_mine)
    assert "mine" in [format.name for format in list_formats()]


def test_a_package_registers_by_its_entry_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine_package.py").write_text("from test_reader_kit import register\nregister()\n")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("mine", "mine_package", "labelwise.formats")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point] if group == "labelwise.formats" else [])
    plugins.import_plugins.cache_clear()
    (tmp_path / "data.txt").write_text("a.jpg train Cat")
    try:
        assert open_data(f"mine:{tmp_path / 'data.txt'}", check_files="no").labels == ("cat",)
    finally:
        plugins.import_plugins.cache_clear()
        unregister_format("mine")
