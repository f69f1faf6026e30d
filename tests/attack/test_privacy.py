"""Nobody phones home: commands in a network namespace of their own, where every look-up and packet is seen."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server
from tests.attack import watched_network
from tests.jobs.job_kit import save_model, save_pictures
from tests.server.serving_kit import png, write_tiny_export

pytestmark = pytest.mark.attack
Watched = Callable[..., dict[str, Any]]
QUIET = {"lookups": [], "packets": [], "home": []}

# Predict, a job, and a server that answers and then stays for a while; all without PyTorch.
LIGHT = """
import subprocess, sys, time, urllib.request
model, photo, out, seconds = sys.argv[1:]
labelwise = [sys.executable, "-m", "labelwise"]
server = subprocess.Popen([*labelwise, "serve", model, "--port", "0"], stderr=subprocess.PIPE, text=True)
subprocess.run([*labelwise, "predict", model, photo], check=True)
subprocess.run([*labelwise, "predict", model, photo, "--out", out], check=True)
subprocess.run([*labelwise, "predict", "runs/frist", photo], check=False)
address = next(line for line in server.stderr if line.startswith("serving ")).split(" on ")[1].split()[0]
with open(photo, "rb") as file:
    request = urllib.request.Request(address + "/predict", file.read(), {"Content-Type": "image/png"})
urllib.request.urlopen(request).read()
time.sleep(float(seconds))
server.terminate()
assert server.wait() == 0
"""


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    """Runs Python in a namespace; gives the look-ups, packets and new files in the home folder."""
    home, report = tmp_path / "home", tmp_path / "report.json"
    home.mkdir()
    # Whatever would keep a library quiet without us; ONNX Runtime and OpenVINO take CI for a wish to be left alone.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CI", "HF_HUB_", "ORT_", "RAY_"))}

    def run(start: str, *words: object, fails: bool = False, **env: str) -> dict[str, Any]:
        env = kept | {"HOME": str(home), "LABELWISE_CACHE": str(tmp_path / "cache")} | env
        done = fork_server.run(watched_network.__file__, report, start, *words, cwd=tmp_path, env=env)
        if done.returncode == watched_network.NOT_PERMITTED:
            pytest.skip(f"needs root, network namespaces and iproute2 ({done.stderr.strip()})")
        assert (done.returncode != 0) == fails, done.stderr
        files = [str(file.relative_to(home)) for file in home.rglob("*") if file.is_file()]
        return {**json.loads(report.read_text()), "home": files, "said": done.stderr + done.stdout}

    return run


def seen(report: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in report.items() if key != "said"}


def test_what_is_looked_up_is_seen(watched: Watched) -> None:
    look = "import socket; s = socket.socket(); s.settimeout(0.1); s.connect_ex(('192.0.2.7', 80)); "
    report = watched("cold", "-c", look + "socket.getaddrinfo('example.org', 80)", fails=True)
    assert set(report["lookups"]) == {"example.org"}
    assert report["packets"] == ["192.0.2.7"]


@pytest.mark.parametrize("seconds", [0, pytest.param(12, marks=pytest.mark.slow)])  # it sends after ten
def test_predict_job_and_serve_look_nothing_up(seconds: int, watched: Watched, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(png(40, 30))
    model = write_tiny_export(tmp_path / "model")
    report = watched("cold", "-c", LIGHT, model, tmp_path / "photo.png", tmp_path / "out", seconds)
    assert seen(report) == QUIET
    assert "error: no such file or folder: 'runs/frist'" in report["said"]


@pytest.mark.parametrize("kind", ["openvino", pytest.param("onnx", marks=pytest.mark.slow)])
def test_export_looks_nothing_up(kind: str, watched: Watched, tmp_path: Path) -> None:
    words = ("export", save_model(tmp_path / "model"), "--format", kind, "--out", tmp_path / "export")
    assert seen(watched("warm", "-m", "labelwise", *words)) == QUIET


@pytest.mark.slow
def test_quantising_and_a_job_on_ray_look_nothing_up(watched: Watched, tmp_path: Path) -> None:
    photos = save_pictures(tmp_path / "photos", 8)
    (tmp_path / "photos.csv").write_text("image,labels\n" + "".join(f"{photo},boat\n" for photo in photos))
    words = ("export", save_model(tmp_path / "model"), "--format", "openvino", "--int8", "--calibration", "photos.csv")
    assert seen(watched("cold", "-m", "labelwise", *words, "--max-loss", 100, "--out", tmp_path / "int8")) == QUIET
    model = write_tiny_export(tmp_path / "onnx")
    words = ("predict", model, tmp_path / "photos", "--out", tmp_path / "out", "--runner", "ray", "--workers", 1)
    key = [".ray/auth_token"]  # of the cluster on this machine
    assert seen(watched("cold", "-m", "labelwise", *words)) == QUIET | {"home": key}


@pytest.mark.parametrize(
    ("words", "name", "message"),
    [
        (["nobody/nothing", "photo.png"], "huggingface.co", "the hub is not asked (LABELWISE_OFFLINE=1)"),
        (["model", "http://example.org/a.jpg"], "example.org", "example.org is not asked (LABELWISE_OFFLINE=1)"),
        (["model", "http://example.org/a.tar", "--out", "out"], "example.org", "is not asked (LABELWISE_OFFLINE=1)"),
    ],
)
def test_the_switch(words: list[str], name: str, message: str, watched: Watched, tmp_path: Path) -> None:
    """Without it, the same commands do ask: so it is the switch that keeps them from it."""
    (tmp_path / "photo.png").write_bytes(png(40, 30))
    write_tiny_export(tmp_path / "model")
    command = ("warm", "-m", "labelwise", "predict", *words)
    assert set(watched(*command, fails=True)["lookups"]) == {name}
    offline = watched(*command, fails=True, LABELWISE_OFFLINE="1")
    assert seen(offline) == QUIET
    assert message in offline["said"]
