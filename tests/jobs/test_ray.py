"""Jobs on Ray, on this machine: the same bytes as without it, whoever is killed on the way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from job_kit import contents, kill, rows, save_model, save_pictures, workers_of
from labelwise.jobs.job import JobSettings
from labelwise.jobs.run import run_job
from labelwise.jobs.sources import find_parts
from tests.fork_server import Command
from tests.server.serving_kit import write_tiny_export


def test_a_small_job_on_ray_gives_the_files_of_one_without(labelwise: Command, tmp_path: Path) -> None:
    """One worker, which runs an exported model: it starts without PyTorch. The tests below disturb larger jobs."""
    pytest.importorskip("onnxruntime")
    model, photos = write_tiny_export(tmp_path / "model"), tmp_path / "photos"
    save_pictures(photos, 5)
    (photos / "bad.jpg").write_bytes(b"oops")
    job = ("predict", model, photos, "--part-size", 3)
    done = labelwise(*job, "--out", tmp_path / "ray", "--runner", "ray", "--workers", 1)
    assert done.returncode == 0, done.stderr
    assert re.search(r"6 \w+ in 2 parts \(.*\); 1 of them could not be decoded", done.stderr)
    done = labelwise(*job, "--out", tmp_path / "here")
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "ray") == contents(tmp_path / "here")


def start(model: str, photos: Path, out: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "labelwise", "predict", model, str(photos), "--out", str(out), "--runner", "ray"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, "--engine", "torch", *words], env=environment, stderr=subprocess.PIPE, text=True)


def kill_a_worker_after(process: subprocess.Popen[str], out: Path, parts: int) -> int:
    """Wait until so many parts are written, then end one of the pool's processes without a warning."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stderr and process.stderr.read()
        workers = workers_of(process.pid)
        if workers and len(list(out.glob("part-*.parquet"))) >= parts:
            kill(workers[0])
            return workers[0]
        time.sleep(0.05)
    raise AssertionError("no worker was seen")


@pytest.mark.slow
def test_killed_workers_change_nothing_in_5000_pictures(tmp_path: Path) -> None:
    model, photos = save_model(tmp_path / "model"), tmp_path / "photos"
    save_pictures(photos, 4998)
    (photos / "bad.jpg").write_bytes(b"oops")
    (photos / "cut.jpg").write_bytes((photos / "00000.jpg").read_bytes()[:400])
    undisturbed = start(model, photos, tmp_path / "undisturbed", "--part-size", "50")
    _, said = undisturbed.communicate(timeout=900)
    assert undisturbed.returncode == 0, said
    assert re.search(r"5,000 images in 100 parts \(.*\); 2 of them could not be decoded", said)

    disturbed = start(model, photos, tmp_path / "disturbed", "--part-size", "50")
    killed = [kill_a_worker_after(disturbed, tmp_path / "disturbed", parts) for parts in (10, 40, 70)]
    _, said = disturbed.communicate(timeout=900)
    assert disturbed.returncode == 0, said
    assert len(set(killed)) == 3
    assert contents(tmp_path / "disturbed") == contents(tmp_path / "undisturbed")
    found = rows(tmp_path / "disturbed")
    assert [row["image"] for row in found] == sorted(str(photo) for photo in photos.iterdir())
    assert sum(row["error"] is not None for row in found) == 2

    # A driver that is killed is started again; and a job that began on Ray may end without it.
    driver = start(model, photos, tmp_path / "driver", "--part-size", "50")
    kill_a_worker_after(driver, tmp_path / "driver", 5)
    kill(driver.pid)
    driver.wait(60)
    parts = find_parts([str(photos)], part_size=50)
    summary = run_job(model, parts, str(tmp_path / "driver"), JobSettings(engine="torch"))
    assert 5 <= summary.already_there < 100
    found_files = contents(tmp_path / "driver")
    assert {n: c for n, c in found_files.items() if not n.startswith(".")} == contents(tmp_path / "undisturbed")


@pytest.mark.slow
def test_a_part_that_kills_every_process_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoder that crashes the whole process, as a picture larger than the memory does."""
    model, photos = save_model(tmp_path / "model"), tmp_path / "photos"
    save_pictures(photos, 12)
    (photos / "00005.jpg").write_bytes(b"deadly")
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "import labelwise.data.images as images\n"
        "def heic(data):\n"
        "    return os._exit(9) if data == b'deadly' else False\n"
        "images.is_heic = heic\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = start(model, photos, tmp_path / "out", "--part-size", "4")
    _, said = process.communicate(timeout=900)
    assert process.returncode == 2, said
    assert "1 of 3 parts failed; part 1: its process died 6 times" in said
    assert [Path(row["image"]).name for row in rows(tmp_path / "out")] == [
        f"{n:05d}.jpg" for n in (0, 1, 2, 3, 8, 9, 10, 11)
    ]


@pytest.mark.slow
def test_nothing_listens_beyond_this_machine(tmp_path: Path) -> None:
    model, photos = save_model(tmp_path / "model"), tmp_path / "photos"
    save_pictures(photos, 400)
    process = start(model, photos, tmp_path / "out", "--part-size", "4", "--workers", "1")
    kill_a_worker_after(process, tmp_path / "out", 2)  # it runs now
    open_ports = _listening(_below(process.pid))
    process.communicate(timeout=900)
    assert process.returncode == 0
    assert open_ports
    assert {address for address in open_ports if address not in ("127.0.0.1", "::1")} == set()


def _below(process: int) -> set[int]:
    found = {process}
    for _ in range(6):  # a driver, its raylet, their processes
        for folder in Path("/proc").iterdir():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            if parent in found:
                found.add(int(folder.name))
    return found


def _listening(processes: set[int]) -> set[str]:
    """The addresses that these processes accept connections on, from /proc."""
    sockets = set()
    for process in processes:
        try:
            for link in Path(f"/proc/{process}/fd").iterdir():
                sockets.add(os.readlink(link))
        except OSError:
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.add(_address(fields[1].partition(":")[0]))
    return found


def _address(text: str) -> str:
    """
    >>> _address("0100007F")
    '127.0.0.1'
    """
    import socket

    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    data = b"".join(words)
    address = socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)
    return address.removeprefix("::ffff:")
