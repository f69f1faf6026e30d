from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelwise.core.errors import LabelwiseError
from labelwise.data.inspection import Inspection, inspect
from labelwise.data.sources import open_data
from labelwise.data.table import LabelTable
from labelwise.reports.figures import save_inspection

LABELS = ["day", "night", "sun", "moon", "rare", "never"]


@pytest.fixture
def table(tmp_path: Path) -> LabelTable:
    """Forty pictures with every fault there is."""
    images, present = [], []
    for row in range(40):
        images.append(str(tmp_path / f"{row:02d}.png"))
        Image.new("RGB", (8, 8), (row * 6, 255 - row, row)).save(images[-1])
        present.append(["day", "sun"] if row % 2 else ["night", "moon"] if row % 4 else ["night"])
    present[5] = []
    present[6] = [*present[6], "rare"]
    shutil.copy(images[1], images[39])  # in train and in test, same labels
    shutil.copy(images[2], images[3])  # in train, other labels
    shutil.copy(images[8], images[12])  # in train, same labels
    Path(images[10]).write_bytes(b"")
    Path(images[20]).write_bytes(Path(images[20]).read_bytes()[:48])
    splits = ["train"] * 30 + ["test"] * 10
    unknown: list[list[str]] = [["rare"] if row in (30, 31) else [] for row in range(40)]
    return LabelTable.from_lists(images, present, LABELS, unknown=unknown, splits=splits, source="photos.csv")


@pytest.fixture
def report(table: LabelTable) -> Inspection:
    return inspect(table)


def test_counts(table: LabelTable, report: Inspection) -> None:
    targets = table.targets()
    assert report.images == 40
    assert report.splits == {"train": 30, "test": 10}
    for column, count in enumerate(report.labels):
        assert count.present == (targets[:, column] == 1).sum()
        assert count.unknown == (targets[:, column] == -1).sum()
        assert count.per_split == {
            "train": (targets[:30, column] == 1).sum(),
            "test": (targets[30:, column] == 1).sum(),
        }
    per_image = (targets == 1).sum(1)
    assert report.images_by_label_count == {k: (per_image == k).sum() for k in (0, 1, 2, 3)}
    assert report.mean_labels_per_image == pytest.approx(per_image.mean())
    assert report.imbalance == 20  # night in 20 images, rare in 1
    assert report.unknown_share == pytest.approx(2 / 240)


def test_pairs(report: Inspection) -> None:
    first = report.together[0]
    assert (first.a, first.b, first.together, first.b_given_a, first.a_given_b) == ("day", "sun", 19, 1.0, 1.0)
    assert first.lift == pytest.approx(19 / (19 * 19 / 40))
    assert ("day", "night") in {(pair.a, pair.b) for pair in report.apart}
    assert all(pair.together == 0 for pair in report.apart if {pair.a, pair.b} <= {"day", "night", "sun"} - {"sun"})


def test_pairs_agree_with_a_plain_count() -> None:
    targets = np.random.default_rng(0).integers(-1, 2, (200, 6))
    table = LabelTable.from_dense([f"none/{i}.jpg" for i in range(200)], targets, list("abcdef"))
    report = inspect(table, decode=False, pairs=100)
    pairs = report.together + report.apart
    assert len(pairs) == 15  # each once
    for pair in pairs:
        a, b = targets[:, "abcdef".index(pair.a)] == 1, targets[:, "abcdef".index(pair.b)] == 1
        assert pair.together == (a & b).sum()
        assert pair.b_given_a == pytest.approx(b[a].mean())
        assert pair.a_given_b == pytest.approx(a[b].mean())
        assert pair.lift == pytest.approx((a & b).mean() / a.mean() / b.mean())


def test_files(table: LabelTable, report: Inspection) -> None:
    assert report.broken is not None
    assert [(bad.row, bad.reason) for bad in report.broken] == [(10, "empty file"), (20, "truncated file")]
    found = {tuple(Path(image).stem for image in group.images): group for group in report.duplicates}
    assert set(found) == {("01", "39"), ("02", "03"), ("08", "12")}
    assert found["01", "39"].splits == ["train", "test"]
    assert [found[key].conflict for key in (("01", "39"), ("02", "03"), ("08", "12"))] == [False, True, False]
    assert inspect(table, decode=False).broken == []


def test_missing_files_are_broken_not_fatal(table: LabelTable) -> None:
    Path(table.images[7]).unlink()
    report = inspect(table)
    assert report.broken is not None
    assert ("no such file", 7) in {(bad.reason, bad.row) for bad in report.broken}


def test_missing_images_are_told_apart_from_undecodable_ones(table: LabelTable) -> None:
    for row in (7, 9):
        Path(table.images[row]).unlink()
    missing, undecodable = inspect(table).problems[:2]
    assert missing.startswith(f"2 images are missing, the first: {table.images[7]}.")
    assert undecodable.startswith(f"2 images cannot be decoded, the first: {table.images[10]} (empty file)")


def test_what_to_fix(report: Inspection) -> None:
    lines = report.problems
    expected = [
        "2 images cannot be decoded",
        "1 image is in several splits",
        "1 image occurs again with different labels",
        "1 image occurs more than once in one split",
        "1 label has no image (never)",
        "1 label has fewer than 10 images (rare)",
        "1 pair of labels always occurs together: 'day' and 'sun'",
        "1 label has no image in the split 'test' (rare)",
        "1 image has no label",
    ]
    assert len(lines) == len(expected)
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)
        assert "\n" not in line


def test_nothing_to_fix(tmp_path: Path) -> None:
    images = [str(tmp_path / f"{i}.jpg") for i in range(40)]
    for number, image in enumerate(images):
        Path(image).write_text(str(number))
    table = LabelTable.from_lists(
        images, [["a", "b"], ["a"], ["b"], ["a"]] * 10, splits=["train", "train", "test", "test"] * 10
    )
    assert inspect(table, decode=False).problems == []
    without = table.with_splits([""] * 40)
    assert inspect(without, decode=False).problems == [
        "There are no splits. Training makes them, or you: labelwise data split DATA --out split.csv"
    ]


def test_json_and_picture(report: Inspection, tmp_path: Path) -> None:
    content = json.loads(json.dumps(report.to_dict()))
    assert content["labels"][0] == {"label": "day", "present": 19, "unknown": 0, "per_split": {"train": 14, "test": 5}}
    assert content["broken"][0]["reason"] == "empty file"
    assert len(content["problems"]) == 9
    pytest.importorskip("matplotlib")
    save_inspection(report, tmp_path / "report.png")
    pixels = np.asarray(Image.open(tmp_path / "report.png").convert("RGB"))
    assert pixels.shape[1] > 1000
    assert (pixels != 255).any(-1).mean() > 0.05  # something is drawn


def test_no_matplotlib_no_such_format(report: Inspection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LabelwiseError, match=r"name a \.png, \.pdf or \.svg file"):
        save_inspection(report, tmp_path / "report.docx")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(LabelwiseError, match=r"pip install 'labelwise\[plots\]'"):
        save_inspection(report, tmp_path / "report.png")


def test_one_label_one_image(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    report = inspect(LabelTable.from_lists([str(tmp_path / "a.png")], [["x"]]))
    assert report.together == report.apart == []
    assert report.broken == []
    assert report.imbalance == 1


def test_progress_is_told(table: LabelTable) -> None:
    told: dict[str, int] = {}

    def tell(description: str, done: int, total: int | None) -> None:
        told[description] = done
        assert total is not None
        assert done <= total

    inspect(table, progress=tell)
    assert told["Decoding images"] == 40
    assert told["Comparing files of equal size"] > 0


def test_the_known_duplicates_of_voc2007(shared_data: Path) -> None:
    report = inspect(open_data(f"voc:{shared_data / 'VOCdevkit'}?year=2007"), decode=False)
    assert report.images == 9963
    pairs = {tuple(Path(image).stem for image in group.images) for group in report.duplicates}
    assert pairs == {("000338", "007284"), ("008037", "009623"), ("000949", "005042")}


def test_an_inspection_in_a_notebook_and_in_pandas(report: Inspection) -> None:
    assert repr(report).endswith("40 images, 6 labels; train 30, test 10; 9 problems>")
    assert "1 image is in several splits" in report._repr_html_()
    frame = report.to_pandas()
    assert frame.loc["never"].to_dict() == {"images": 0, "train": 0, "test": 0, "unknown": 0}
    assert frame["images"].is_monotonic_decreasing


def test_a_path_is_opened_and_missing_images_are_broken(tmp_path: Path) -> None:
    (tmp_path / "photos.csv").write_text("image,labels\ngone.jpg,cat\n")
    report = inspect(tmp_path / "photos.csv")
    assert report.broken is not None
    assert [bad.reason for bad in report.broken] == ["no such file"]
    with pytest.raises(LabelwiseError, match="does not exist"):
        inspect(f"{tmp_path / 'photos.csv'}?check_files=error")


def test_missing_images_are_counted_without_decoding_and_the_advice_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "img").mkdir(parents=True)
    (tmp_path / "tables").mkdir()
    for number in range(3):
        (tmp_path / "data" / "img" / f"{number}.jpg").write_text(str(number))
    (tmp_path / "tables" / "t.csv").write_text("image,labels\nimg/0.jpg,cat\nimg/1.jpg,dog\nimg/2.jpg,dog\n")
    report = inspect("tables/t.csv", decode=False)
    assert (len(report.broken), report.decoded) == (3, False)
    advice = "Images of that name lie in data: read it with root=data (--root data)."
    assert report.problems[0] == f"3 images are missing, the first: tables/img/0.jpg. {advice}"
    assert inspect("tables/t.csv", decode=False, root="data").broken == []
    with pytest.raises(
        LabelwiseError, match=r"lie in data; say so, or .* \(root='data' or check_files='drop'\)"
    ) as caught:
        open_data("tables/t.csv")
    assert caught.value.for_command_line().endswith("(--root data or --check-files drop)")


def test_a_few_missing_images_are_no_reason_to_look_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("img/0.jpg", "img/1.jpg", "old/2.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "t.csv").write_text("image,labels\nimg/0.jpg,cat\nimg/1.jpg,dog\nimg/2.jpg,dog\n")
    problem = inspect("t.csv", decode=False).problems[0]
    assert problem == "1 image is missing, the first: img/2.jpg. Images of that name lie in old."
    with pytest.raises(LabelwiseError, match=r"Images of that name lie in old\. Correct the path, or leave") as caught:
        open_data("t.csv")
    assert caught.value.options == {"check_files": "drop"}


def test_the_advice_for_coco_is_its_own_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.jpg").touch()
    content = {"images": [{"id": 1, "file_name": "1.jpg"}], "categories": [{"id": 1, "name": "cat"}]}
    boxes = {**content, "annotations": [{"id": 1, "image_id": 1, "category_id": 1}]}
    (tmp_path / "boxes.json").write_text(json.dumps(boxes))
    problem = inspect("boxes.json", decode=False).problems[0]
    assert problem.endswith("Images of that name lie in photos: read it with images_folder=photos.")
    assert len(open_data("boxes.json", images_folder="photos")) == 1


def test_names_that_are_almost_the_same() -> None:
    names = ["giraffe"] * 60 + ["girafes"] + ["snowboard"] * 40 + ["snowbord"] * 3 + ["house"] + ["horse"] * 9
    names += ["Traffic light"] * 9 + ["traffic_light"] * 3 + ["label1", "label2"] * 5
    table = LabelTable.from_lists([f"none/{n}.jpg" for n in range(len(names))], [[name] for name in names])
    report = inspect(table, decode=False)
    assert report.similar == [["Traffic light", "traffic_light"], ["giraffe", "girafes"], ["snowboard", "snowbord"]]
    (problem,) = (line for line in report.problems if "almost the same name" in line)
    assert problem.startswith("3 groups of labels have almost the same name: 'Traffic light' and 'traffic_light', 'gi")
    assert report.missing_fix == ""
    everywhere = LabelTable.from_lists(["1.jpg", "2.jpg"], [["a", "b"], ["a"]])
    assert "1 label is on every image (a). Add images without, or leave such labels out." in (
        inspect(everywhere, decode=False).problems
    )
