"""Large jobs on hostile files: each costs its own image or part, none hangs, and nothing unfinished counts as done."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from labelwise.jobs.job import JobFolder, JobSettings
from labelwise.jobs.run import PartWorker, open_tagger, run_job
from labelwise.jobs.sources import find_parts
from tests.fork_server import Command
from tests.jobs.job_kit import contents, rows, save_pictures
from tests.server.serving_kit import write_tiny_export

pytestmark = pytest.mark.attack


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_export(tmp_path_factory.mktemp("jobs") / "model"))


def problems(out: Path) -> dict[str, str | None]:
    return {Path(row["image"]).name: row["error"] for row in rows(out)}


@pytest.mark.parametrize("kept", [0, 3, 0.5, -1])
def test_a_part_that_was_cut_short_is_done_again(kept: float, model: str, tmp_path: Path) -> None:
    save_pictures(tmp_path / "photos", 6)
    parts, out = find_parts([str(tmp_path / "photos")], part_size=2), tmp_path / "out"
    run_job(model, parts, str(out), JobSettings())
    whole = contents(out)
    cut = whole["part-000001.parquet"]
    (out / "part-000001.parquet").write_bytes(cut[: int(kept * len(cut)) if 0 < kept < 1 else int(kept)])
    assert set(JobFolder(str(out)).finished()) == {0, 2}
    assert run_job(model, parts, str(out), JobSettings()).images == 2
    assert contents(out) == whole


def test_links_that_loop_pipes_and_holes_cost_one_image_each(model: str, tmp_path: Path, labelwise: Command) -> None:
    """The whole command, as a process of its own: one that waits for a pipe would be killed, and fail."""
    photos = tmp_path / "photos"
    save_pictures(photos, 2)
    (photos / "loop.jpg").symlink_to("loop.jpg")
    (photos / "up").symlink_to("..", target_is_directory=True)
    os.mkfifo(photos / "pipe.jpg")
    with (photos / "sparse.jpg").open("wb") as file:
        file.truncate(30 << 30)
    done = labelwise("predict", model, photos, "--out", tmp_path / "out", timeout=60)
    assert done.returncode == 0, done.stderr
    found = {name: problem and problem.partition("(")[2] for name, problem in problems(tmp_path / "out").items()}
    assert found == {
        "00000.jpg": None,
        "00001.jpg": None,
        "loop.jpg": "Too many levels of symbolic links)",
        "pipe.jpg": "not a regular file)",
        "sparse.jpg": "30,720 MB; an image file may have 512 MB)",
    }


def sparse_shard(folder: Path, size: int, dialect: str = "gnu") -> str:
    """A small tar file of two photos and, between them, one of `size` zeros."""
    save_pictures(folder / "photos", 2)
    with (folder / "photos" / "00000x.jpg").open("wb") as file:
        file.truncate(size)
    pack = ["tar", "--sparse", f"--format={dialect}", "--sort=name", "-cf", "s.tar", "photos"]
    subprocess.run(pack, cwd=folder, check=True)
    assert (folder / "s.tar").stat().st_size < 1 << 20
    return str(folder / "s.tar")


@pytest.mark.parametrize("dialect", ["gnu", "posix"])
def test_a_sparse_tar_that_claims_30_gb_costs_one_image(dialect: str, model: str, tmp_path: Path) -> None:
    shard = sparse_shard(tmp_path, 30 << 30, dialect)
    run_job(model, find_parts([shard]), str(tmp_path / "out"), JobSettings())
    found = problems(tmp_path / "out")
    assert list(found) == ["00000.jpg", "00000x.jpg", "00001.jpg"]
    assert found["00000.jpg"] is found["00001.jpg"] is None
    assert "30,720 MB" in str(found["00000x.jpg"])


def test_images_that_do_not_fit_into_memory_fail_their_part(model: str, tmp_path: Path) -> None:
    shard = sparse_shard(tmp_path, 500 << 20)
    worker = PartWorker(open_tagger(model, JobSettings()), JobSettings())
    sparse, small = (find_parts([source])[0] for source in (shard, str(tmp_path / "photos" / "00001.jpg")))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), before[1]))
    try:
        failed = worker(0, sparse)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert failed.problem == "its images do not fit into memory"
    assert worker(1, small).problem is None


def test_containers_that_are_pipes_are_refused(model: str, tmp_path: Path, labelwise: Command) -> None:
    os.mkfifo(tmp_path / "a.tar")
    os.mkfifo(tmp_path / "a.parquet")
    for name in ("a.tar", "a.parquet"):
        done = labelwise("predict", model, tmp_path / name, "--out", tmp_path / "out", timeout=60)
        assert done.returncode == 2
        assert "is not a regular file" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("keeps_its_time", [False, True])
def test_an_image_replaced_since_is_told(keeps_its_time: bool, model: str, tmp_path: Path) -> None:
    names = save_pictures(tmp_path / "photos", 4)
    parts, said = find_parts([str(tmp_path / "photos")], part_size=2), list[str]()
    for _ in range(2):
        run_job(model, parts, str(tmp_path / "out"), JobSettings(), say=said.append)
    assert not [line for line in said if "changed" in line]
    shutil.copy2(names[0], tmp_path / "other.jpg")  # as old as the first photo
    if not keeps_its_time:
        os.utime(tmp_path / "other.jpg")
    os.replace(tmp_path / "other.jpg", names[2])
    run_job(model, parts, str(tmp_path / "out"), JobSettings(), say=said.append)
    assert f"{names[2]!r} was changed after part 1 was written; to predict it again, remove part-000001" in said[-1]
    (tmp_path / "out" / "part-000001.parquet").unlink()
    assert run_job(model, parts, str(tmp_path / "out"), JobSettings(), say=said.append).images == 2
    run_job(model, parts, str(tmp_path / "out"), JobSettings(), say=said.append)
    assert sum("changed" in line for line in said) == 1
