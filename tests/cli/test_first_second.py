"""The first second: what a command says before it has loaded anything heavy. Cold processes, each with many checks."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import pytest

from labelwise import cli
from labelwise.losses import BUILT_IN, list_losses, loss_class

HEAVY = ["torch", "torchvision", "timm", "lightning_fabric", "safetensors", "huggingface_hub", "pandas", "pyarrow"]
# Runs commands one after the other in one process; for each its exit status, its stderr and the heavy imports so far.
COLD = """
import contextlib, io, json, sys
from labelwise.cli import main
results = []
for arguments in json.loads(sys.argv[1]):
    status, said = 0, io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            main(arguments)
        except SystemExit as end:
            status = end.code or 0
    results.append([status, said.getvalue(), [name for name in json.loads(sys.argv[2]) if name in sys.modules]])
print(json.dumps(results))
"""


def in_a_cold_process(
    *commands: list[str], cwd: Path, heavy: Sequence[str] = HEAVY
) -> list[tuple[int, str, list[str]]]:
    script = [sys.executable, "-c", COLD, json.dumps(commands), json.dumps(heavy)]
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(script, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=True)
    return [tuple(result) for result in json.loads(done.stdout)]


def test_mistakes_are_told_before_pytorch_is_loaded(tmp_path: Path) -> None:
    for name in ("photo.jpg", "other.jpg"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "photos.csv").write_text("image,split,labels\nphoto.jpg,train,cat\nother.jpg,test,cat|unicorn\n")
    (tmp_path / "words.csv").write_text("picture,words\nnowhere.jpg,cat\n")
    (tmp_path / "recipe.yaml").write_text("epoch: 3\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "recipe.yaml").write_text("epochs: 3\n")
    train = ["train", "--out", "run", "--data", "photos.csv"]
    mistakes = [
        ([*train[:3], "--data", "missing.csv"], "missing.csv"),
        ([*train[:3], "--data", "words.csv"], "words.csv"),
        ([*train, "--head", "hsqq"], "did you mean 'hsq'"),
        ([*train, "--set", "head.shared_expert=4"], "did you mean 'shared_experts'"),
        ([*train, "--loss", "asymetric"], "did you mean 'asymmetric'"),
        ([*train, "--weights", "missing.pth"], "no weights file 'missing.pth'"),
        ([*train, "--set", "data.train=trian"], "trian"),
        ([*train, "--set", "optimizer.weight_deca=0.1"], "did you mean 'weight_decay'"),
        ([*train, "--recipe", "recipe.yaml"], "did you mean 'epochs'"),
        (["train", "--out", "taken", "--data", "photos.csv"], "already holds a run"),
        (["train", "--out", "run", "--resume"], "there is no run in 'run'"),
        (["sweep", "--out", "s", "--data", "photos.csv", "--grid", "head=hsqq"], "did you mean 'hsq'"),
        (["evaluate", "--data", "missing.csv"], "missing.csv"),
        (["evaluate", "--data", "photos.csv", "--split", "tset"], "tset"),
        (["evaluate", "--data", "photos.csv"], "unicorn"),  # a label that the bundled tagger does not have
        (["export", "missing-model", "--out", "onnx"], "no model 'missing-model'"),
        (["complexity", "--head", "hsqq"], "did you mean 'hsq'"),
        (["predict", "missing.jpg"], "no such file"),
        (["explain", "missing.jpg", "--out", "why.png"], "no such file"),
        (["heads", "hsqq"], "did you mean 'hsq'"),
    ]
    told = in_a_cold_process(*(arguments for arguments, _ in mistakes), cwd=tmp_path)
    for (arguments, message), (status, said, loaded) in zip(mistakes, told, strict=True):
        assert (status, said.count("\n")) == (2, 1), (arguments, said)
        assert message in said, arguments
        assert [name for name in loaded if name != "huggingface_hub"] == [], arguments


@pytest.fixture(scope="module")
def photo() -> Path:
    import skimage

    return Path(skimage.__file__).parent / "data" / "chelsea.png"


def test_predicting_and_explaining_load_no_pytorch(photo: Path, tmp_path: Path) -> None:
    (tmp_path / "cats.csv").write_text(f"image,split,labels\n{photo},test,cat\n")
    told = in_a_cold_process(
        ["predict", str(photo), "--csv", "tags.csv"],
        ["explain", str(photo), "--out", "why.png"],
        ["explain", "--experts", "--data", "cats.csv", "--out", "experts.json"],
        ["heads"],
        ["export", "--out", "photo", "--int8"],
        cwd=tmp_path,
    )
    assert [status for status, _, _ in told] == [0, 0, 0, 0, 2], told
    assert [loaded for _, _, loaded in told] == [[]] * 5
    assert "cat" in (tmp_path / "tags.csv").read_text()
    assert len(json.loads((tmp_path / "experts.json").read_text())["labels"]) == 80
    assert (tmp_path / "why.png").stat().st_size > 10_000


def test_the_first_answer_does_not_wait_for_what_it_does_not_need(photo: Path, tmp_path: Path) -> None:
    heavy = ["numpy", "rich.markdown", "yaml", "PIL.TiffImagePlugin"]
    told = in_a_cold_process(["--help"], ["predict", str(photo)], cwd=tmp_path, heavy=heavy)
    assert [loaded for _, _, loaded in told] == [[], ["numpy"]]


def test_serving_loads_no_pytorch(photo: Path, tmp_path: Path) -> None:
    """Nor do its workers: what PyTorch is here cannot be imported."""
    for name in ("torch", "timm"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('imported {name}', name='{name}')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "labelwise", "serve", "--port", "0"]
    env = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            said = next(line for line in server.stderr if "http://" in line)
            address = re.findall(r"http://[\d.:]+", said)[0]
            found = {}
            for question in ("predict", "explain"):
                request = Request(f"{address}/{question}", photo.read_bytes(), {"Content-Type": "image/png"})
                with urlopen(request, timeout=60) as response:
                    found[question] = json.load(response)
        finally:
            server.terminate()
    assert list(found["predict"]["predictions"][0]["labels"]) == ["cat"]
    assert np.shape(found["explain"]["maps"]["cat"]) == (9, 9)
    assert len(found["explain"]["experts"]["names"]) == 17


def test_what_needs_pytorch_says_what_to_install(tmp_path: Path) -> None:
    script = """
import sys
sys.modules |= dict.fromkeys(["torch", "timm", "torchvision"])  # what import then raises for it: not installed
from labelwise.cli import main
main(sys.argv[1:])
"""
    command = [sys.executable, "-c", script, "complexity", "--backbone", "resnet10t"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = "error: this needs PyTorch; install it with: pip install 'labelwise[train]'\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.parametrize("arguments", [["complexity", "--backbone", "resnet10t"], ["backbones", "resnet10t"]])
def test_a_terminal_sees_at_once_that_pytorch_is_loaded(tmp_path: Path, arguments: list[str]) -> None:
    pty = pytest.importorskip("pty")
    terminal, stderr = pty.openpty()
    (tmp_path / "torch.py").write_text("raise ImportError('not today', name='torch')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "labelwise", *arguments]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, stderr=stderr, timeout=60, check=False)
    said = os.read(terminal, 10_000).decode().splitlines()
    assert (done.returncode, said[0]) == (2, "loading PyTorch …")
    assert "needs PyTorch" in said[1]


def test_garbage_is_left_at_exit_unless_pytorch_would_report_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(True))
    monkeypatch.setitem(sys.modules, "torch", sys)
    cli._leave_garbage()
    assert not calls
    monkeypatch.delitem(sys.modules, "torch")
    cli._leave_garbage()
    assert calls


def test_what_people_use_is_imported_without_pytorch() -> None:
    script = """
import pkgutil, sys, labelwise
for room in ("api", "cli", "hub", "jobs", "server", "runtime", "data"):
    for module in pkgutil.walk_packages([f"{labelwise.__path__[0]}/{room}"], f"labelwise.{room}."):
        __import__(module.name)
        assert not {"torch", "timm"} & set(sys.modules), module.name
"""
    subprocess.run([sys.executable, "-c", script], timeout=120, check=True)


def test_the_names_of_losses_are_those_that_are_registered() -> None:
    assert list(BUILT_IN) == list_losses()[: len(BUILT_IN)]
    for name, traits in BUILT_IN.items():
        assert traits == tuple(trait for trait in ("remembers", "uses_unknown") if getattr(loss_class(name), trait))
