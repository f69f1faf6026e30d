"""Jobs without Ray: against direct predictions, interrupted anywhere, refused where they do not belong."""

from __future__ import annotations

import json
import re
import signal
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from job_kit import LABELS, contents, rows, save_model, save_pictures
from labelwise.cli import main
from labelwise.cli.jobs import JobOptions
from labelwise.cli.predict import predict
from labelwise.core.errors import LabelwiseError
from labelwise.engines.load import load
from labelwise.jobs.job import JobFolder, JobSettings
from labelwise.jobs.run import PartWorker, run_job
from labelwise.jobs.sources import find_parts
from tests import fork_server


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`model/`, and 23 pictures in `photos/`, two of which are none."""
    root = tmp_path_factory.mktemp("jobs")
    save_model(root / "model")
    save_pictures(root / "photos", 21)
    (root / "photos" / "00007x.jpg").write_bytes(b"oops")
    (root / "photos" / "zero.png").write_bytes(b"")
    return root


def test_rows_are_the_direct_predictions(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    options = JobOptions(out=str(out), part_size=5, all_scores=True)
    predict(str(place / "model"), str(place / "photos"), job=options, batch_size=3)
    assert re.search(
        r"23 images in 5 parts \([\d.]+ images/s\); 2 of them could not be decoded", capsys.readouterr().err
    )
    assert sorted(contents(out)) == ["_job.json", *(f"part-{n:06d}.parquet" for n in range(5))]
    direct = load(place / "model", engine="torch").predict(place / "photos", on_bad_image="skip", batch_size=3)
    found = rows(out)
    assert [row["image"] for row in found] == [prediction.image for prediction in direct]
    for row, prediction in zip(found, direct, strict=True):
        assert row["error"] == prediction.error
        if prediction.error:
            assert (row["labels"], row["scores"], row["all_scores"]) == (None, None, None)
            continue
        assert row["labels"] == prediction.labels
        assert row["scores"] == pytest.approx(prediction.scores, abs=1e-5)
        order = json.loads((out / "_job.json").read_text())["labels"]
        assert dict(zip(order, row["all_scores"], strict=True)) == pytest.approx(prediction.all_scores, abs=1e-5)
    assert sum(row["error"] is not None for row in found) == 2


def test_what_is_finished_is_not_done_again(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = find_parts([str(place / "photos")], part_size=5)
    model, job = str(place / "model"), JobSettings(top=2)
    run_job(model, parts, str(tmp_path / "whole"), job)
    done: list[int] = []
    real = PartWorker.__call__

    def stops_at_the_third(self: PartWorker, number: int, part: object) -> object:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(number)
        return real(self, number, part)  # type: ignore[arg-type]

    monkeypatch.setattr(PartWorker, "__call__", stops_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        run_job(model, parts, str(tmp_path / "out"), job)
    (tmp_path / "out" / ".part-000002.parquet.77-1.part").write_bytes(b"half")  # as a kill in the middle leaves it
    done.clear()
    with pytest.raises(KeyboardInterrupt):
        run_job(model, parts, str(tmp_path / "out"), job)
    assert done == [2, 3]
    done.clear()
    summary = run_job(model, parts, str(tmp_path / "out"), job)
    assert (done, summary.already_there, summary.images) == ([4], 4, 3)
    (tmp_path / "out" / ".part-000002.parquet.77-1.part").unlink()
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert len(rows(tmp_path / "out")[0]["labels"]) == 2


def test_a_killed_process_is_continued_to_the_same_bytes(place: Path, tmp_path: Path) -> None:
    save_pictures(tmp_path / "many", 200)
    parts = find_parts([str(tmp_path / "many")], part_size=4)
    run_job(str(place / "model"), parts, str(tmp_path / "whole"), JobSettings(engine="torch"))
    options = ["--out", tmp_path / "out", "--part-size", 4, "--engine", "torch"]
    process = fork_server.start("-m", "labelwise", "predict", place / "model", tmp_path / "many", *options)
    deadline = time.monotonic() + 240
    while not (tmp_path / "out" / "part-000002.parquet").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    finished = JobFolder(str(tmp_path / "out")).finished()
    assert 3 <= len(finished) < 50
    summary = run_job(str(place / "model"), parts, str(tmp_path / "out"), JobSettings(engine="torch"))
    assert summary.already_there == len(finished)
    found = contents(tmp_path / "out")
    assert {name: data for name, data in found.items() if not name.startswith(".")} == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root, job, parts: (root / "other", job, parts), "it used another model"),
        (lambda root, job, parts: (root / "model", JobSettings(top=3), parts), "its top is None, now it is 3"),
        (lambda root, job, parts: (root / "model", JobSettings(batch_size=8), parts), "its batch-size is 32"),
        (lambda root, job, parts: (root / "model", job, parts[:-1]), "its images differ"),
    ],
)
def test_another_job_in_the_same_folder_is_refused(
    place: Path, tmp_path: Path, change: Callable[..., tuple[Path, JobSettings, list[object]]], message: str
) -> None:
    if not (place / "other").exists():
        save_model(place / "other", seed=1)
    parts = find_parts([str(place / "photos")], part_size=5)
    run_job(str(place / "model"), parts, str(tmp_path), JobSettings())
    before = contents(tmp_path)
    model, job, others = change(place, JobSettings(), parts)
    with pytest.raises(LabelwiseError, match=message):
        run_job(str(model), others, str(tmp_path), job)  # type: ignore[arg-type]
    assert contents(tmp_path) == before


def test_a_folder_with_other_files_is_refused(place: Path, tmp_path: Path) -> None:
    parts = find_parts([str(place / "photos")])
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(LabelwiseError, match="is not empty and is not a job"):
        run_job(str(place / "model"), parts, str(tmp_path), JobSettings())
    (tmp_path / "thesis.tex").rename(tmp_path / "_job.json")
    with pytest.raises(LabelwiseError, match="has a damaged _job"):
        run_job(str(place / "model"), parts, str(tmp_path), JobSettings())


def test_a_broken_shard_costs_its_own_part_only(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = sorted((place / "photos").glob("000??.jpg"))
    for number in range(3):
        with tarfile.open(tmp_path / f"s{number}.tar", "w") as archive:
            for image in images[number * 4 : number * 4 + 4]:
                archive.add(image, image.name)
    good = (tmp_path / "s1.tar").read_bytes()
    (tmp_path / "s1.tar").write_bytes(good[:1500])
    command = ["predict", str(place / "model"), f"{tmp_path}/s*.tar", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit):
        main(command)
    said = capsys.readouterr().err.splitlines()[-1]
    assert "error: 1 of 3 parts failed; part 1: the shard" in said
    assert "s1.tar is not a readable tar file" in said
    assert set(JobFolder(str(tmp_path / "out")).finished()) == {0, 2}
    (tmp_path / "s1.tar").write_bytes(good)
    with pytest.raises(SystemExit) as done:
        main(command)
    assert not done.value.code
    assert [Path(row["image"]).name for row in rows(tmp_path / "out")] == [image.name for image in images[:12]]
    assert "resumed: 2 of 3 parts done already" in capsys.readouterr().err


def test_parquet_in_and_a_bucket_out(place: Path, tmp_path: Path) -> None:
    images = sorted((place / "photos").iterdir())
    table = pyarrow.table({"path": [image.name for image in images], "bytes": [image.read_bytes() for image in images]})
    pyarrow.parquet.write_table(table, tmp_path / "in.parquet", row_group_size=10)
    memory = fsspec.filesystem("memory")
    try:
        for again in (0, 3):
            parts = find_parts([str(tmp_path / "in.parquet")], part_size=10)
            summary = run_job(str(place / "model"), parts, "memory://bucket-jobs/out", JobSettings())
            assert summary.already_there == again
        files = sorted(memory.ls("/bucket-jobs/out", detail=False))
        assert [file.rpartition("/")[2] for file in files] == [
            "_job.json",
            *(f"part-{n:06d}.parquet" for n in range(3)),
        ]
        with memory.open(files[-1]) as file:
            last = pyarrow.parquet.read_table(file).to_pylist()
        assert [row["image"] for row in last] == [image.name for image in images[20:]]
    finally:
        memory.rm("/bucket-jobs", recursive=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--runner", "ray"], "add --out DIR"),
        (["--all-scores"], "add --out DIR"),
        (["--out", "x", "--workers", "2"], "(--runner ray)"),
        (["--out", "x", "--runner", "ray", "--workers", "0"], 'Invalid value "0" for --workers'),
        (["--out", "x", "--json", "y.json"], "--out writes Parquet"),
        (["--out", "gopher://x"], "cannot write to 'gopher://x'"),
        (["--out", "x", "--threshold", "3"], "out of range"),
        (["--out", "x", "--batch-size", "0"], 'Invalid value "0" for --batch-size'),
        (["--out", "x", "--overwrite"], "leave out"),
    ],
)
def test_mistakes(
    place: Path,
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["predict", str(place / "model"), str(place / "photos"), *words])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_pyarrow_it_is_told_before_anything_is_done(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a plain install."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SystemExit):
        main(["predict", str(place / "model"), str(place / "photos"), "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert said == "error: this needs the package 'pyarrow'; install it with: pip install 'labelwise[parquet]'\n"
    assert not (tmp_path / "out").exists()


def test_a_damaged_job_file_is_told(place: Path, tmp_path: Path) -> None:
    (tmp_path / "_job.json").write_text('{"settings": null}')
    with pytest.raises(LabelwiseError, match=r"has a damaged _job\.json"):
        run_job(str(place / "model"), find_parts([str(place / "photos")]), str(tmp_path), JobSettings())


def test_results_may_lie_among_the_pictures(place: Path, tmp_path: Path) -> None:
    save_pictures(tmp_path / "photos", 3)
    for again in (0, 1):
        parts = find_parts([str(tmp_path / "photos")])
        summary = run_job(str(place / "model"), parts, str(tmp_path / "photos" / "tags"), JobSettings())
        assert (summary.already_there, summary.parts) == (again, 1)


def test_labels_are_in_the_job(place: Path, tmp_path: Path) -> None:
    run_job(str(place / "model"), find_parts([str(place / "photos")]), str(tmp_path), JobSettings())
    about = json.loads((tmp_path / "_job.json").read_text())
    assert about["labels"] == list(LABELS)
    assert about["settings"]["engine"] == "torch"  # what "auto" became
