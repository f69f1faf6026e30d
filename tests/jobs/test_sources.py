"""What a job works on: folders, shards, Parquet and addresses, always cut into the same parts."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from job_kit import save_pictures
from labelwise.core.errors import LabelwiseError
from labelwise.jobs.parts import FilesPart, Part, ShardPart, read_file
from labelwise.jobs.sources import find_parts


def names_of(parts: list[Part]) -> list[str]:
    return [picture.name for part in parts for picture in part.images()]


def contents_of(parts: list[Part]) -> list[bytes]:
    return [picture.data for part in parts for picture in part.images()]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return save_pictures(tmp_path_factory.mktemp("images") / "photos", 7)


def save_shard(path: Path, images: list[str]) -> None:
    with tarfile.open(path, "w") as archive:
        for image in images:
            archive.add(image, Path(image).name)
            label = io.BytesIO(b"cat")
            info = tarfile.TarInfo(Path(image).with_suffix(".txt").name)
            info.size = 3
            archive.addfile(info, label)


@given(size=st.integers(1, 9))
@settings(deadline=None)
def test_a_folder_is_cut_into_full_parts_in_order(images: list[str], size: int) -> None:
    parts = find_parts([str(Path(images[0]).parent)], part_size=size)
    assert names_of(parts) == images
    assert [part.count for part in parts[:-1]] == [size] * (len(parts) - 1)
    assert parts == find_parts([str(Path(images[0]).parent)], part_size=size)


def test_every_picture_of_a_shard_and_nothing_else(images: list[str], tmp_path: Path) -> None:
    for number in range(3):
        save_shard(tmp_path / f"s-{number:03d}.tar", images[number * 2 : number * 2 + 2])
    by_folder = find_parts([str(tmp_path)])
    assert by_folder == find_parts([str(tmp_path / "s-{000..002}.tar")]) == find_parts([str(tmp_path / "*.tar")])
    assert [part.count for part in by_folder] == [None, None, None]
    assert names_of(by_folder) == [f"{tmp_path}/s-{n // 2:03d}.tar/{Path(images[n]).name}" for n in range(6)]
    assert contents_of(by_folder) == [Path(image).read_bytes() for image in images[:6]]


def test_parquet_with_paths_with_pictures_and_as_hugging_face_writes_it(images: list[str], tmp_path: Path) -> None:
    data = [Path(image).read_bytes() for image in images]
    folder = Path(images[0]).parent
    paths = pyarrow.table({"path": [Path(image).name for image in images]})
    pyarrow.parquet.write_table(paths, folder / "list.parquet")
    try:
        assert names_of(find_parts([str(folder / "list.parquet")], part_size=3)) == images
        with pytest.raises(LabelwiseError, match="mixes several kinds of sources"):
            find_parts([str(folder)])
    finally:
        (folder / "list.parquet").unlink()
    raw = pyarrow.table({"key": [f"k{n}" for n in range(7)], "jpg": [*data[:6], None]})
    pyarrow.parquet.write_table(raw, tmp_path / "raw.parquet", row_group_size=4)
    parts = find_parts([str(tmp_path / "raw.parquet")], part_size=3)
    assert [part.count for part in parts] == [3, 1, 3]  # within the row groups of 4 and 3
    assert names_of(parts) == [f"k{n}" for n in range(7)]
    assert contents_of(parts) == [*data[:6], b""]
    assert [p.problem for part in parts for p in part.images()] == [None] * 6 + ["the cell is empty"]
    nested = pyarrow.table({"image": [{"bytes": d, "path": None} for d in data], "label": list(range(7))})
    pyarrow.parquet.write_table(nested, tmp_path / "hf.parquet", row_group_size=4)
    parts = find_parts([str(tmp_path / "hf.parquet")])
    assert contents_of(parts) == data
    assert names_of(parts)[-1] == f"{tmp_path / 'hf.parquet'}#6"
    with pytest.raises(LabelwiseError, match="did you mean 'image'"):
        find_parts([str(tmp_path / "hf.parquet")], column="imag")
    with pytest.raises(LabelwiseError, match="'label' holds int64"):
        find_parts([str(tmp_path / "hf.parquet")], column="label")


def test_rows_of_a_large_row_group_are_read_piece_by_piece(tmp_path: Path) -> None:
    data = [f"picture {number}".encode() for number in range(350)]
    pyarrow.parquet.write_table(pyarrow.table({"jpg": data}), tmp_path / "all.parquet", row_group_size=270)
    parts = find_parts([str(tmp_path / "all.parquet")], part_size=130)
    assert [part.count for part in parts] == [130, 130, 10, 80]
    assert contents_of(parts) == data
    assert names_of(parts) == [f"{tmp_path}/all.parquet#{number}" for number in range(350)]


def test_links_hidden_folders_and_results_of_jobs(images: list[str], tmp_path: Path) -> None:
    photos = Path(images[0]).parent
    (tmp_path / "album").mkdir()
    (tmp_path / "album" / "linked").symlink_to(photos)
    (tmp_path / "album" / ".cache").mkdir()
    (tmp_path / "album" / ".cache" / "x.parquet").write_bytes(b"not ours")
    assert names_of(find_parts([str(tmp_path / "album")])) == [
        f"{tmp_path}/album/linked/{Path(image).name}" for image in images
    ]
    plain = tmp_path / "plain"
    save_pictures(plain, 2)
    for place in ("tags", ".hidden"):
        (plain / place).mkdir()
        (plain / place / "part-000000.parquet").write_bytes(b"")
    (plain / "tags" / "_job.json").write_text("{}")
    assert len(names_of(find_parts([f"file://{plain}"]))) == 2
    assert len(names_of(find_parts([str(plain)]))) == 2


def test_what_is_not_there_in_a_list_is_a_row(images: list[str], tmp_path: Path) -> None:
    (tmp_path / "dangling.jpg").symlink_to("nowhere")
    listed = [images[0], str(tmp_path / "gone.jpg"), str(Path(images[0]).parent), "memory://bucket/gone.png"]
    parts = find_parts([str(tmp_path / "*.jpg")], listed=listed)
    pictures = [picture for part in parts for picture in part.images()]
    assert [picture.name for picture in pictures] == [f"{tmp_path}/dangling.jpg", *listed[:2], *images, listed[3]]
    assert [picture.problem for picture in pictures] == [
        "no such file", None, "no such file", *[None] * 7, "no such file",
    ]  # fmt: skip
    with pytest.raises(LabelwiseError, match="no such file"):
        find_parts([str(tmp_path / "gone.jpg")])
    pattern = f"{Path(images[0]).parent}/*.jpg"
    assert names_of(find_parts([], listed=[pattern, str(tmp_path / "IMG_0001")])) == [*images, f"{tmp_path}/IMG_0001"]


def test_addresses(images: list[str], tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for image in images[:3]:
        memory.pipe_file(f"/bucket-sources/sub/{Path(image).name}", Path(image).read_bytes())
    memory.pipe_file("/bucket-sources/notes.txt", b"x")
    save_shard(tmp_path / "s.tar", images[3:5])
    memory.pipe_file("/bucket-sources-tar/s.tar", (tmp_path / "s.tar").read_bytes())
    try:
        parts = find_parts(["memory://bucket-sources", "memory://bucket-sources-tar/*.tar"], part_size=2)
        assert [type(part) for part in parts] == [FilesPart, FilesPart, ShardPart]
        assert contents_of(parts) == [Path(image).read_bytes() for image in images[:5]]
        assert names_of(parts)[0] == "memory:///bucket-sources/sub/00000.jpg"
        assert read_file("memory://bucket-sources/none.jpg").problem == "no such file"
    finally:
        memory.rm("/bucket-sources", recursive=True)
        memory.rm("/bucket-sources-tar", recursive=True)
    local = Path(images[0]).parent
    assert contents_of(find_parts([f"file://{local}"])) == [Path(image).read_bytes() for image in images]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere/photos", "no such file or folder: 'nowhere/photos'"),
        ("nowhere/{0..3}.tar", "no such file or folder: 'nowhere/0.tar'"),
        ("memory://nowhere", "contains no images, shards or Parquet files, or does not exist"),
        ("gopher://x/y", "cannot open 'gopher://x/y'"),
    ],
)
def test_sources_that_are_not_there(source: str, message: str) -> None:
    with pytest.raises(LabelwiseError, match=message):
        find_parts([source])


def test_a_folder_without_pictures_and_nothing_at_all(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(LabelwiseError, match="holds no images"):
        find_parts([str(tmp_path)])
    with pytest.raises(LabelwiseError, match="the sources contain no images"):
        find_parts([])
    with pytest.raises(LabelwiseError, match="too small"):
        find_parts([str(tmp_path)], part_size=0)
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(LabelwiseError, match=r"x\.parquet' is not a readable Parquet file"):
        find_parts([str(tmp_path / "x.parquet")])
