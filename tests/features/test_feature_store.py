"""Damaged, foreign and half-written stores; killed, concurrent and disk-less builders."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import signal
import time
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

from labelwise.core.errors import LabelwiseError
from labelwise.data.preprocessing import Preprocessing
from labelwise.data.sample import make_sample
from labelwise.data.table import LabelTable
from labelwise.features import FeatureCache
from labelwise.features import store as writer

IMAGES = 12
FORK = get_context("fork")  # real processes, without the seconds of importing torch again


class Counting(nn.Module):
    """The smallest backbone; counts the pictures it sees (batches are filled up with zeros)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 8, 8, stride=8)
        self.seen = 0

    def forward(self, images: Tensor) -> Tensor:
        self.seen += int(images.flatten(1).any(dim=1).sum())
        return self.layer(images)


@pytest.fixture
def table(tmp_path: Path) -> LabelTable:
    return make_sample(tmp_path / "sample", images=IMAGES, size=64)


@pytest.fixture
def backbone(monkeypatch: pytest.MonkeyPatch) -> Counting:
    monkeypatch.setattr(writer, "SHARD_BYTES", 1)  # a shard for each batch: 4 pictures, mirrored or not
    return Counting()


def build(table: LabelTable, backbone: Counting, folder: Path) -> tuple[Tensor, int]:
    """All maps, plain and mirrored, and how many pictures were computed for them."""
    backbone.seen = 0
    cache = FeatureCache.build(
        table, backbone, Preprocessing(size=32), folder=folder, batch_size=4, workers=0, progress=False
    )
    return torch.stack([cache.batch(cache.rows, flip) for flip in (False, True)]), backbone.seen


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.safetensors"))


def damage(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(content)


def one_line(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = caplog.records
    caplog.clear()
    assert record.levelno == logging.WARNING
    assert "\n" not in record.getMessage()
    return record.getMessage()


def test_what_is_stored_is_what_the_page_says(table: LabelTable, backbone: Counting, tmp_path: Path) -> None:
    build(table, backbone, tmp_path / "c")
    assert len(shards(tmp_path / "c")) == 2 * IMAGES / 4
    entry = 4 * 4 * 8 * 2 + 33 + 8  # float16 map, key and checksum
    for shard in shards(tmp_path / "c"):
        assert 0 < shard.stat().st_size - 4 * entry < 1024


# A shard: 8 bytes, the header's JSON, checksums, maps, keys. Wherever a bit flips, it is noticed.
@pytest.mark.parametrize("place", [3, 20, 60, -1, -40, -33 * 4 - 1, -33 * 4 - 600, "checksum"])
def test_a_flipped_bit_is_noticed_and_repaired(
    table: LabelTable, backbone: Counting, tmp_path: Path, caplog: pytest.LogCaptureFixture, place: int | str
) -> None:
    expected, _ = build(table, backbone, tmp_path / "c")
    victim = shards(tmp_path / "c")[2]
    size = victim.stat().st_size
    damage(victim, size - 4 * (33 + 256 + 8) if place == "checksum" else int(place))
    again, seen = build(table, backbone, tmp_path / "c")
    assert seen == 4  # the maps of this shard
    assert torch.equal(again, expected)
    assert f"{victim} is damaged" in one_line(caplog)
    assert not victim.exists()
    assert build(table, backbone, tmp_path / "c")[1] == 0
    assert not caplog.records


@pytest.mark.parametrize("left", [0, 5, 100, 900])
def test_a_truncated_file_is_noticed_and_repaired(
    table: LabelTable, backbone: Counting, tmp_path: Path, caplog: pytest.LogCaptureFixture, left: int
) -> None:
    expected, _ = build(table, backbone, tmp_path / "c")
    os.truncate(shards(tmp_path / "c")[0], left)
    again, seen = build(table, backbone, tmp_path / "c")
    assert seen == 4
    assert torch.equal(again, expected)
    assert "is damaged" in one_line(caplog)


def test_maps_of_another_backbone_are_not_used(
    table: LabelTable, backbone: Counting, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build(table, backbone, tmp_path / "a")
    other = Counting()
    expected, _ = build(table, other, tmp_path / "b")
    target = shards(tmp_path / "b")[0].parent
    for path in shards(tmp_path / "b"):
        path.unlink()
    shutil.copy(shards(tmp_path / "a")[0], target)
    again, seen = build(table, other, tmp_path / "b")
    assert seen == 2 * IMAGES
    assert torch.equal(again, expected)
    assert "belongs to another backbone" in one_line(caplog)


def test_a_folder_that_cannot_be_made(table: LabelTable, backbone: Counting, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(LabelwiseError, match=r"cannot write the feature cache .*LABELWISE_CACHE"):
        build(table, backbone, tmp_path / "file")


def test_a_full_disk(table: LabelTable, backbone: Counting, tmp_path: Path) -> None:
    """The system really refuses to write on: here by the limit on the size of a file."""
    build(table.select([0, 1, 2, 3]), backbone, tmp_path / "c")
    before = shards(tmp_path / "c")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(LabelwiseError, match=r"cannot write the feature cache in .*Free some space"):
            build(table, backbone, tmp_path / "c")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert shards(tmp_path / "c") == before
    assert not list(tmp_path.glob("c/*/*.part"))
    _, seen = build(table, backbone, tmp_path / "c")
    assert seen == 2 * (IMAGES - 4)


# ---- real processes


class Slow(Counting):
    """Tells another process of its calls, and takes its time for them."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.calls = seconds, FORK.Value("i", 0)

    def forward(self, images: Tensor) -> Tensor:
        self.calls.value += 1
        time.sleep(self.seconds)
        return super().forward(images)


def start(table: LabelTable, backbone: Slow, folder: Path) -> BaseProcess:
    process = FORK.Process(target=build, args=(table, backbone, folder))
    process.start()
    return process


def content(folder: Path) -> dict[bytes, bytes]:
    """Key -> map, read without the cache's own code; a key that is stored twice is an error."""
    stored: dict[bytes, bytes] = {}
    for path in shards(folder):
        tensors = load_file(path)
        for key, one in zip(tensors["keys"], tensors["maps"], strict=True):
            assert key.tobytes() not in stored
            stored[key.tobytes()] = one.tobytes()
    return stored


def test_a_killed_build_goes_on_and_two_at_once_share_the_work(
    table: LabelTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6 calls are needed: 12 pictures in batches of 4, plain and mirrored."""
    monkeypatch.setattr(writer, "SHARD_BYTES", 1)
    backbone, folder = Slow(0.5), tmp_path / "killed"
    killed = start(table, backbone, folder)
    while len(shards(folder)) < 2:
        assert killed.is_alive()
        time.sleep(0.02)
    killed.kill()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    finished = len(shards(folder))
    assert 2 <= finished < 6
    leftover = shards(folder)[0].parent / ".0123.part"  # as if it had been killed while writing
    leftover.write_bytes(b"half of a shard")
    os.utime(leftover, (0, 0))  # long ago
    draft = leftover.with_name(".4567.part")  # another process is writing it just now
    draft.write_bytes(b"half of a shard")

    backbone.seconds, backbone.calls.value = 0.2, 0
    pair = [start(table, backbone, folder) for _ in range(2)]  # both go on with it at once
    for process in pair:
        process.join(60)
        assert process.exitcode == 0
    assert backbone.calls.value == 6 - finished
    assert not leftover.exists()
    assert draft.exists()

    backbone.seconds = 0.0
    build(table, backbone, tmp_path / "whole")
    assert len(content(tmp_path / "whole")) == 2 * IMAGES
    assert content(folder) == content(tmp_path / "whole")


def test_two_processes_on_different_images_do_not_wait_for_each_other(
    table: LabelTable, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor do those that share some images: what both need is computed by both."""
    backbone, folder = Slow(60.0), tmp_path / "c"
    other = start(table.select(range(8)), backbone, folder)
    while not backbone.calls.value:
        assert other.is_alive()
        time.sleep(0.02)
    backbone.seconds = 0.0  # in this process
    _, seen = build(table.select(range(4, 12)), backbone, folder)
    assert (seen, other.is_alive(), caplog.records) == (16, True, [])
    other.kill()
    other.join()
    assert build(table, backbone, folder)[1] == 8
    expected, _ = build(table, backbone, tmp_path / "whole")
    assert torch.equal(build(table, backbone, folder)[0], expected)


def test_a_killed_process_does_not_leave_the_store_locked(
    table: LabelTable, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even while its own worker processes outlive it: torch's look for their parent every 5 seconds."""
    backbone = Slow(60.0)
    options = {"folder": tmp_path / "c", "batch_size": 4, "workers": 2, "progress": False}
    process = FORK.Process(target=FeatureCache.build, args=(table, backbone, Preprocessing(size=32)), kwargs=options)
    process.start()
    while not backbone.calls.value:
        assert process.is_alive()
        time.sleep(0.02)
    process.kill()
    process.join()
    backbone.seconds = 0.0
    build(table, backbone, tmp_path / "c")
    assert not caplog.records  # it would have said that it waits
