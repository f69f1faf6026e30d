from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from torchvision.datasets import ImageFolder

from labelwise.core.errors import LabelwiseError
from labelwise.data import open_data


def test_agrees_with_torchvision(touch: Callable[..., Path]) -> None:
    root = touch("dog/2.jpg", "dog/10.JPEG", "cat/deep/1.png", "cat/0.jpg", "ant/z.webp", "ant/notes.txt")
    theirs = ImageFolder(str(root))
    ours = open_data(root)
    assert list(ours.labels) == theirs.classes
    assert ours.single_label
    assert ours.split_names == ("",)
    assert sorted(zip(ours.images, ours.targets().argmax(1).tolist(), strict=True)) == sorted(theirs.samples)
    assert (ours.targets().sum(1) == 1).all()


def test_order_does_not_depend_on_the_disk(touch: Callable[..., Path]) -> None:
    names = [f"cat/{folder}/{file}.jpg" for folder in "qhzaxc" for file in "31"]
    root = touch(*names, "cat/9.jpg")
    assert open_data(root).images == [str(root / name) for name in ("cat/9.jpg", *sorted(names))]


def test_splits_by_folder(touch: Callable[..., Path]) -> None:
    root = touch("valid/dog/1.jpg", "train/cat/1.jpg", "train/dog/2.jpg")
    table = open_data(f"imagefolder:{root}")
    assert table.splits == ["train", "train", "val"]
    assert table.labels == ("cat", "dog")
    assert table.select("val").present(0) == ["dog"]


def test_imagenet_names(touch: Callable[..., Path]) -> None:
    root = touch(*(f"ILSVRC/Data/CLS-LOC/train/{id}/{id}_1.JPEG" for id in ("n03126707", "n01440764", "n02012849")))
    data = root / "ILSVRC/Data/CLS-LOC"
    assert open_data(f"imagenet:{data}").labels == ("n01440764", "n02012849", "n03126707")
    (root / "LOC_synset_mapping.txt").write_text(
        "n01440764 tench, Tinca tinca\nn02012849 crane\nn03126707 crane\nn09999999 unused\n"
    )
    assert open_data(data).labels == ("tench", "crane (n02012849)", "crane (n03126707)")
    index = data / "imagenet_class_index.json"
    index.write_text(
        json.dumps({"0": ["n01440764", "tench"], "1": ["n02012849", "crane"], "2": ["n03126707", "tower_crane"]})
    )
    assert open_data(data).labels == ("tench", "crane", "tower crane")  # the nearer file
    index.write_text(json.dumps({"0": ["n01440764", "tench"]}))
    assert open_data(data).labels == ("n01440764", "n02012849", "n03126707")  # half a list renames nothing
    with pytest.raises(LabelwiseError, match="has no name for the folder 'n02012849'"):
        open_data(data, names_file=str(index))


def test_loose_validation_photos_are_not_a_class(touch: Callable[..., Path]) -> None:
    root = touch("train/n01440764/1.JPEG", "val/ILSVRC2012_val_00000001.JPEG")
    with pytest.raises(LabelwiseError, match=r"images in .*val are not in folders named after their class"):
        open_data(root)


def test_folders_beside_the_splits(touch: Callable[..., Path]) -> None:
    root = touch("train/cat/1.jpg", "test/cat/2.jpg", "__MACOSX/train/cat/._1.jpg")
    assert open_data(f"imagefolder:{root}").splits == ["train", "test"]
    touch("extra/cat/3.jpg")
    with pytest.raises(LabelwiseError, match=r"holds splits, .* and also extra"):
        open_data(f"imagefolder:{root}")


def test_a_split_under_two_names(touch: Callable[..., Path]) -> None:
    root = touch("train/cat/1.jpg", "val/cat/2.jpg", "valid/cat/3.jpg")
    with pytest.raises(LabelwiseError, match="are the same split"):
        open_data(f"imagefolder:{root}")


def test_a_class_may_be_called_train_and_a_link_may_lead_back(touch: Callable[..., Path]) -> None:
    root = touch("train/1.jpg", "bus/2.jpg")
    (root / "bus" / "again").symlink_to(".")
    table = open_data(f"imagefolder:{root}")
    assert table.labels == ("bus", "train")
    assert len(table) == 2


def photo(folder: Path, name: str, content: str = "") -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content or file.name)
    return file


def test_one_image_in_several_folders_has_several_labels(tmp_path: Path) -> None:
    for name in ("beach/1.jpg", "beach/2.jpg", "sunset/1.jpg", "dog/old/1.jpg", "dog/3.jpg"):
        photo(tmp_path, name)
    photo(tmp_path, "sunset/2.jpg", "another photo")
    photo(tmp_path, "dog/2.jpg", "a.jpg")  # of the same size, but another photo, too
    (tmp_path / "sunset" / "3.jpg").symlink_to("../dog/3.jpg")
    table = open_data(tmp_path)
    assert {image[len(str(tmp_path)) + 1 :]: table.present(row) for row, image in enumerate(table.images)} == {
        "beach/1.jpg": ["beach", "dog", "sunset"],
        "beach/2.jpg": ["beach"],
        "dog/2.jpg": ["dog"],
        "dog/3.jpg": ["dog", "sunset"],
        "sunset/2.jpg": ["sunset"],
    }
    assert not table.single_label
    assert table.notes == (
        f"{tmp_path}: 2 images lie in several folders (1.jpg is in beach and dog and sunset), read as one image with "
        "several labels",
    )


def test_one_image_in_several_splits(tmp_path: Path) -> None:
    for name in ("train/beach/1.jpg", "train/sunset/1.jpg", "test/beach/1.jpg", "test/sunset/1.jpg"):
        photo(tmp_path, name)
    table = open_data(tmp_path)
    assert [table.present(row) for row in range(len(table))] == [["beach", "sunset"]] * 2  # for `inspect` to tell
    (tmp_path / "test/sunset/1.jpg").unlink()
    with pytest.raises(LabelwiseError, match=r"train/beach/1\.jpg and .*/test/beach/1\.jpg are the same image in two"):
        open_data(tmp_path)


def test_a_second_copy_in_the_same_folder_is_left_out_and_told(tmp_path: Path) -> None:
    for name in ("beach/old/1.jpg", "beach/1.jpg", "dog/2.jpg"):
        photo(tmp_path, name)
    table = open_data(tmp_path)
    assert (len(table), table.single_label) == (2, True)
    assert table.notes == (f"{tmp_path}: 1 copy of an image in a folder of its label, left out",)


def test_boxes_of_yolo_are_no_classes(touch: Callable[..., Path]) -> None:
    with pytest.raises(LabelwiseError, match="export them as COCO"):
        open_data(touch("train/images/1.jpg", "train/labels/1.txt", "data.yaml"))


def test_a_folder_around_the_folders_of_classes_is_told(touch: Callable[..., Path]) -> None:
    with pytest.raises(LabelwiseError, match=r"/images can be read$"):
        open_data(touch("images/cat/1.jpg", "images/dog/2.jpg"))


def test_images_beside_the_folders_are_told(touch: Callable[..., Path]) -> None:
    assert (
        open_data(touch("cat/1.jpg", "2.jpg")).notes[0].endswith("images that are in no folder of a label are left out")
    )
