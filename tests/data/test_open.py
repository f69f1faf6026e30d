from __future__ import annotations

import os
from pathlib import Path

import pytest

from labelwise.core.errors import LabelwiseError
from labelwise.data import open_data
from labelwise.data.readers.base import list_formats
from labelwise.data.sources import is_streamed, parse_source


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jpg").touch()
    (tmp_path / "photos.csv").write_text("image,labels\na.jpg,cat\n")
    return tmp_path


def test_a_path_a_format_and_options_in_the_string(photos: Path) -> None:
    for data in ("photos.csv", Path("photos.csv"), "csv:photos.csv", "photos.csv?separator=|", f"manifest:{photos}"):
        table = open_data(data)
        assert os.path.samefile(table.images[0], photos / "a.jpg")
        assert table.labels == ("cat",)
    assert open_data("photos.csv").where(0) == "photos.csv row 2"
    assert open_data("photos.csv").images[0] == "a.jpg"  # relative as it was typed


def test_a_plus_in_an_option_is_a_plus(photos: Path) -> None:
    (photos / "plus.csv").write_text("image,labels\na.jpg,cat+fire truck\n")
    assert open_data("plus.csv?separator=+").labels == ("cat", "fire truck")


def test_names_that_look_like_formats_or_options_are_paths_if_they_exist(photos: Path) -> None:
    for name in ("voc:photos.csv", "photos?x=1.csv"):
        (photos / name).write_text("image,labels\na.jpg,dog\n")
        assert open_data(name).labels == ("dog",)


def test_home_folder(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(photos))
    assert open_data("~/photos.csv").labels == open_data("csv:~/photos.csv?separator=|").labels == ("cat",)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("cocoo:/data", r"unknown data format 'cocoo'; did you mean 'coco'\?"),
        ("gone.csv", r"no file or folder 'gone\.csv' in '.*'$"),
        ("voc:gone?year=2007", r"no file or folder 'gone' in '.*' \(from the data argument 'voc:gone\?year=2007'\)"),
        ("photos.csv?seperator=x", r"^format 'csv': unknown option 'seperator'; did you mean 'separator'\?"),
        ("photos.csv?check_files=maybe", r"format 'csv': check_files='maybe': input should be 'error', 'drop' or 'no'"),
        ("photos.csv?separator", r"write them as \?name=value"),
        ("empty", r"cannot tell the format of the folder empty; say it as format:path\. Looked for .*coco: .*voc: "),
        ("tars", r"can be read as webdataset:tars"),
        ("notes.doc", r"cannot tell the format of the file notes\.doc"),
        ("csv:empty", r"cannot read empty as csv"),
        ("imagefolder:photos.csv", r"cannot read photos\.csv as imagefolder"),
        ("voc:empty", r"not a VOC devkit: it holds neither VOC2007/ImageSets/Main"),
        ("coco:empty", r"not a COCO folder: looked for annotations/instances_"),
        ("openimages:empty", r"no Open Images labels: looked for"),
        ("nus-wide:empty", r"Concepts81\.txt is missing"),
        ("imagefolder:empty", r"no images in folders named after their class"),
        ("hf:org/name", r"a stream of shards"),
        ("shards/{0..3}.tar", r"a stream of shards"),
    ],
)
def test_mistakes(photos: Path, data: str, message: str) -> None:
    (photos / "empty").mkdir()
    (photos / "tars").mkdir()
    (photos / "tars" / "0.tar").touch()
    (photos / "notes.doc").touch()
    with pytest.raises(LabelwiseError, match=message) as caught:
        open_data(data)
    assert "\n" not in str(caught.value)


def test_format_names() -> None:
    names = [format.name for format in list_formats()]
    specific = {"csv", "tsv", "json", "jsonl", "parquet", "voc", "coco", "openimages", "nus-wide"}
    assert set(names[:-3]) == specific
    assert names[-3:] == ["manifest", "keywords", "imagefolder"]  # the most general layouts are tried last
    for alias, name in (("NUSWIDE", "nus-wide"), ("imagenet", "imagefolder"), ("open_images", "openimages")):
        assert parse_source(f"{alias}:/x").format == name
    assert parse_source("C:\\photos").path == "C:\\photos"
    assert not is_streamed("coco:/data/x.tar")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("photos.zip", r"photos\.zip cannot be read as it is: unpack it"),
        ("labels.xlsx", r"labels\.xlsx cannot be read as it is: save the sheet as CSV"),
        ("data.yaml", r"data\.yaml cannot .*: if it belongs to YOLO's boxes, export them as COCO"),
        ("captions.txt", "cannot tell the format of the f"),
    ],
)
def test_files_that_people_have_and_nothing_reads(tmp_path: Path, file: str, message: str) -> None:
    (tmp_path / "images" / "train").mkdir(parents=True)
    (tmp_path / "images" / "train" / "1.jpg").touch()  # images is not the name of a label
    (tmp_path / file).touch()
    for data in (tmp_path, tmp_path / file):
        with pytest.raises(LabelwiseError, match=message):
            open_data(data)
