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
