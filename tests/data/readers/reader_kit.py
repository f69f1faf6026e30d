"""What every reader of a data format must do.

A new reader's test subclasses `ReaderKit`: the format's name and a method that writes a small dataset are enough.

    class TestMine(ReaderKit):
        format = "mine"

        def write(self, folder: Path) -> Path:
            (folder / "data.mine").write_text("\n".join(f"{image} {split} {','.join(labels)}" for ... in self.rows))
            return folder / "data.mine"
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from labelwise.core.errors import LabelwiseError
from labelwise.data import LabelTable, open_data
from labelwise.data.images import is_image
from labelwise.data.manifests import write_manifest
from labelwise.data.readers.base import find_format
from labelwise.data.table import ABSENT, PRESENT

DAMAGED = b"\xff\xfe\x00 damaged \x80"


class ReaderKit:
    format: str  # the part before the colon in `format:path`
    # Image, split and labels present, as `write` writes them. Change them if the format cannot express them.
    rows: ClassVar[list[tuple[str, str, list[str]]]] = [
        ("a.jpg", "train", ["cat"]),
        ("b.jpg", "train", ["dog"]),
        ("c.jpg", "val", ["cat", "dog"]),
        ("d.jpg", "test", ["dog"]),
    ]
    absent: int = ABSENT  # the value of the labels of an image that are not listed
    recognised: bool = True  # whether a path without the format's name is enough
    option: ClassVar[dict[str, str]] = {"check_files": "no"}  # one that leaves the result as it is

    def write(self, folder: Path) -> Path:
        """Write `rows` as a dataset and return its path. The kit then draws the images where the reader says."""
        raise NotImplementedError

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        (tmp_path / "data").mkdir()
        path = self.write(tmp_path / "data")
        for image in open_data(f"{self.format}:{path}", check_files="no").images:
            Path(image).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8)).save(image)
        return path

    def check(self, table: LabelTable) -> None:
        """The table is what `rows` say, in any order of images and labels."""
        row_of = {Path(image).name: row for row, image in enumerate(table.images)}
        assert set(row_of) == {image for image, _, _ in self.rows}
        names = {name for _, _, labels in self.rows for name in labels}
        assert names <= set(table.labels)
        for image, split, labels in self.rows:
            row = row_of[image]
            values = dict(zip(table.labels, table.target(row).tolist(), strict=True))
            assert table.splits[row] == split
            assert {name: values[name] for name in names} == {
                name: PRESENT if name in labels else self.absent for name in names
            }

    def test_reads(self, path: Path) -> None:
        table = open_data(f"{self.format}:{path}")
        self.check(table)
        assert table.source  # messages name it

    def test_is_recognised(self, path: Path) -> None:
        if self.recognised:
            self.check(open_data(path))

    def test_splits(self, path: Path) -> None:
        table = open_data(f"{self.format}:{path}")
        for split in {split for _, split, _ in self.rows}:
            assert len(table.select(split)) == sum(split == other for _, other, _ in self.rows)

    def test_options_in_the_string_and_as_arguments(self, path: Path) -> None:
        query = "&".join(f"{name}={value}" for name, value in self.option.items())
        self.check(open_data(f"{self.format}:{path}?{query}"))
        self.check(open_data(f"{self.format}:{path}", **self.option))
        with pytest.raises(LabelwiseError, match=f"^format '{self.format}': unknown option 'check_file'; did you"):
            open_data(f"{self.format}:{path}?check_file=no")

    def test_options_are_documented(self) -> None:
        options = find_format(self.format).options
        for name in options.model_fields:
            assert any(f"    {name}: " in (kind.__doc__ or "") for kind in options.__mro__), name

    def test_labels_choose_and_order_the_columns(self, path: Path) -> None:
        table = open_data(f"{self.format}:{path}")
        wanted = table.labels[::-1]
        again = open_data(f"{self.format}:{path}", labels=wanted)
        assert again.labels == wanted
        np.testing.assert_array_equal(again.targets(), table.targets()[:, ::-1])

    def test_a_missing_path(self, path: Path) -> None:
        with pytest.raises(LabelwiseError, match="there is no file or folder"):
            open_data(f"{self.format}:{path}-gone")

    def test_a_missing_image(self, path: Path) -> None:
        table = open_data(f"{self.format}:{path}")
        Path(table.images[1]).unlink()
        assert len(open_data(f"{self.format}:{path}", check_files="drop")) == len(table) - 1
        listed = open_data(f"{self.format}:{path}", check_files="no")
        if len(listed) == len(table):  # an image folder lists only what is there
            with pytest.raises(LabelwiseError, match=r"does not exist.*check_files='drop'"):
                open_data(f"{self.format}:{path}")

    def test_damaged_files_are_told_in_one_line(self, path: Path) -> None:
        files = [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if file.is_file()]
        for file in (file for file in files if not is_image(file.name)):
            content = file.read_bytes()
            for damage in (DAMAGED, content[: len(content) // 2], b"", content + DAMAGED):
                file.write_bytes(damage)
                message = self._problem(path)
                assert "\n" not in message
            file.write_bytes(content)

    def _problem(self, path: Path) -> str:
        try:
            open_data(f"{self.format}:{path}")
        except LabelwiseError as error:
            return str(error)
        return ""

    def test_a_folder_without_anything(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        with pytest.raises(LabelwiseError):
            open_data(f"{self.format}:{tmp_path / 'empty'}")

    def test_round_trip_through_a_manifest(self, path: Path, tmp_path: Path) -> None:
        table = open_data(f"{self.format}:{path}")
        write_manifest(table, tmp_path / "copy.csv", columns=True)
        copy = open_data(tmp_path / "copy.csv")
        assert copy.labels == table.labels
        assert list(copy.splits) == list(table.splits)
        np.testing.assert_array_equal(copy.targets(), table.targets())
