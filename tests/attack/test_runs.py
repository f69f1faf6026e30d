"""Training is killed, or its disk fills, while one run replaces another: an old run or a resumable new one is left."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import labelwise as lw
from labelwise.data.sample import make_sample
from labelwise.runtime.run_files import settle
from labelwise.training import load_recipe
from labelwise.training.run import find_run, run_folder
from tests import fork_server

pytestmark = pytest.mark.attack

SMALL = {
    **{"backbone": "test_resnet", "weights": "none", "size": 32, "batch_size": 8, "workers": 0, "epochs": 2},
    **{"head": "hsq", "head.dim": 16, "head.attention_heads": 2, "head.shared_experts": 2, "freeze": "backbone"},
}
# Code on a file layer that, at the n-th change in a folder, is killed or has no space left from then on.
LAYER = """
import errno, os, signal, sys
how, left, folder, code, *sys.argv = sys.argv[1:]
left, writing = int(left), os.O_WRONLY | os.O_RDWR
def layer(event, values):
    global left
    new = event == "os.mkdir" or (event == "open" and isinstance(values[2], int) and values[2] & writing)
    gone = event in ("os.remove", "os.rmdir")
    in_tree = gone and values[1] != -1  # shutil.rmtree names entries, not paths
    if in_tree or ((new or gone or event == "os.rename") and folder in str(values[0])):
        left -= 1
        if how == "kill" and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "full" and left <= 0 and new:
            raise OSError(errno.ENOSPC, "No space left on device", str(values[0]))
sys.addaudithook(layer)
exec(code, {"__name__": "__main__"})
"""
COMMAND = "import sys, labelwise.cli; labelwise.cli.main(sys.argv)"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    make_sample(folder, images=40, size=48)
    return folder / "labels.csv"


@pytest.fixture(scope="module")
def finished(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Runs that nothing happened to, by their seeds; they also fill the feature cache."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABELWISE_CACHE", str(folder / "cache"))
        return {seed: Path(lw.train(sample, out=folder / str(seed), seed=seed, **SMALL)) for seed in (0, 1)}


@pytest.fixture(autouse=True)
def _warm_cache(finished: dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELWISE_CACHE", str(finished[0].parent / "cache"))


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def overwriting(sample: Path, run: Path, seed: int) -> list[str]:
    flags = [f"--set={key}={value}" for key, value in SMALL.items()]
    return ["train", "--data", str(sample), "--out", str(run), "--overwrite", f"--seed={seed}", *flags]


def check(run: Path, finished: dict[int, Path], output: str = "") -> int:
    """The old run, untouched, or a new one that resumes to the same weights. Gives the seed of the run that stands."""
    assert find_run(run) == run, output
    if load_recipe(run / "recipe.yaml").seed == 0:
        assert content(run) == content(finished[0]), output
        return 0
    resumed = lw.train(out=run, resume=True)
    assert resumed.recipe is not None
    assert resumed.recipe.seed == 1
    for name in ("model/model.safetensors", "recipe.yaml"):
        assert (run / name).read_bytes() == (finished[1] / name).read_bytes(), output
    return 1


# ---- Killed


def at_every_change(folder: Path, code: str, check: Callable[[], None]) -> int:
    """Kill a process at each of its changes to the folder in turn, and check what it leaves; gives their number."""
    for number in range(1, 200):
        done = fork_server.run("-c", LAYER, "kill", number, folder, code)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        check()
        if done.returncode == 0:
            return number - 1
    raise AssertionError("it never ended")


REPLACE_RUN = """
from pathlib import Path
from labelwise.runtime.run_files import drop_replaced
from labelwise.training.run import run_folder
run = Path({run!r})
with run_folder(run, resume=False, overwrite=True):
    (run / "split.csv").write_text("new")
    (run / "recipe.yaml").write_text("new")
    if {begins}:
        (run / "checkpoints").mkdir()
        (run / "checkpoints" / "last.safetensors").write_text("new")
        drop_replaced(run)
"""


@pytest.mark.parametrize("begins", [True, False])
def test_a_run_is_replaced_as_a_whole_or_not_at_all(begins: bool, tmp_path: Path) -> None:
    """Whoever looks next sees one whole run, whichever change was the last one of a killed process."""
    run, seen = tmp_path / "run", set()
    old = ("recipe.yaml", "checkpoints/last.safetensors", "log.txt")

    def renew() -> None:
        shutil.rmtree(run, ignore_errors=True)
        for name in old:
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            (run / name).write_text("old")

    def check() -> None:
        settle(run)
        found = content(run)
        is_new = found["recipe.yaml"] == b"new"
        assert found == (dict.fromkeys(("split.csv", *old[:2]), b"new") if is_new else dict.fromkeys(old, b"old"))
        seen.add(is_new)
        renew()

    renew()
    assert at_every_change(run, REPLACE_RUN.format(run=str(run), begins=begins), check) > 15
    assert seen == ({False, True} if begins else {False})


SAVE_AGAIN = """
from pathlib import Path
from labelwise.core.files import replace_folder
replace_folder(Path({model!r}), lambda fresh: (fresh / "config.json").write_text("new"), replaced="config.json".__eq__)
"""


def test_a_folder_is_swapped_in_one_step(tmp_path: Path) -> None:
    """A model that is saved over another one: at no moment is there none, and no file of mine is lost."""
    model = tmp_path / "models" / "mine"

    def renew() -> None:
        shutil.rmtree(model.parent, ignore_errors=True)
        model.mkdir(parents=True)
        (model / "config.json").write_text("old")
        (model / "notes.txt").write_text("mine")

    def check() -> None:
        assert (model / "config.json").read_text() in ("old", "new")
        assert len(list(model.parent.rglob("notes.txt"))) == 1
        renew()

    renew()
    assert at_every_change(model.parent, SAVE_AGAIN.format(model=str(model)), check) > 3


@pytest.mark.parametrize("number", [3, 14, pytest.param(None, marks=pytest.mark.slow)])
def test_killed_at_a_change_of_the_folder(
    number: int | None, sample: Path, finished: dict[int, Path], tmp_path: Path
) -> None:
    """`labelwise train --overwrite` itself; the slow one is killed at every single change."""
    run, seen = tmp_path / "run", set()
    for change in [number] if number is not None else range(1, 1000):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(finished[0], run)
        done = fork_server.run("-c", LAYER, "kill", change, run, COMMAND, *overwriting(sample, run, 1))
        assert done.returncode in (0, -signal.SIGKILL), done.stdout + done.stderr
        seen.add(check(run, finished, done.stdout + done.stderr))
        if done.returncode == 0:
            break
    assert seen == ({0} if number else {0, 1})


def test_a_killed_training_costs_no_command_the_old_run(
    sample: Path, finished: dict[int, Path], tmp_path: Path, labelwise: fork_server.Command
) -> None:
    """Not only training sets the folder in order: whatever reads the run next does."""
    run = tmp_path / "run"
    train, predict = ["train", "--out", run, "--resume"], ["predict", run, sample.parent]
    for command in (train, predict, ["evaluate", run / "model", "--data", sample, "--bootstrap", 0]):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(finished[0], run)
        killed = fork_server.run("-c", LAYER, "kill", 12, run, COMMAND, *overwriting(sample, run, 1))
        assert killed.returncode == -signal.SIGKILL
        assert not (run / "recipe.yaml").exists()
        done = labelwise(*command)
        assert done.returncode == 0, done.stderr
        assert content(run)["model/model.safetensors"] == content(finished[0])["model/model.safetensors"]
        assert not list(run.glob(".replaced*"))


def test_a_run_that_is_being_replaced_is_left_alone_by_those_who_read_it(
    finished: dict[int, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    with run_folder(run, resume=False, overwrite=True):
        (run / "recipe.yaml").write_text("new")
        settle(run)  # in this process, whose lock it must not lose either
        code = "import sys; from pathlib import Path; from labelwise.runtime.run_files import settle"
        other = fork_server.run("-c", f"{code}; settle(Path(sys.argv[1]))", run)
        assert other.returncode == 0, other.stderr
        assert (run / "recipe.yaml").read_text() == "new"
    assert content(run) == content(finished[0])


@pytest.mark.slow
def test_50_kills_at_random_moments(sample: Path, finished: dict[int, Path], tmp_path: Path) -> None:
    moments, run, seen = random.Random(os.getpid()), tmp_path / "run", []
    started = time.monotonic()
    assert fork_server.run("-m", "labelwise", *overwriting(sample, tmp_path / "timed", 1)).returncode == 0
    lasts = time.monotonic() - started
    for _ in range(50):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(finished[0], run)
        process = fork_server.start("-m", "labelwise", *overwriting(sample, run, 1), stderr=subprocess.STDOUT)
        time.sleep(moments.uniform(0, lasts))
        process.kill()
        output, _ = process.communicate()
        seen.append(check(run, finished, output))
    assert {0, 1} == {*seen}, seen


# ---- A full disk


@pytest.mark.parametrize("size", [1_000, 40_000])
def test_files_that_cannot_grow(size: int, sample: Path, finished: dict[int, Path], tmp_path: Path) -> None:
    """Real writes that fail in the kernel, of the recipe and of the checkpoint: no file may become larger."""
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.RLIM_INFINITY))"
    code = f"import sys; sys.argv.pop(0); {limit}\n{COMMAND}"
    done = fork_server.run("-c", code, *overwriting(sample, run, 1))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert check(run, finished, done.stderr) == 0


@pytest.mark.parametrize("number", [4, 15, 22, pytest.param(None, marks=pytest.mark.slow)])
def test_full_from_a_change_on(number: int | None, sample: Path, finished: dict[int, Path], tmp_path: Path) -> None:
    run, seen = tmp_path / "run", set()
    for change in [number] if number is not None else range(1, 1000):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(finished[0], run)
        done = fork_server.run("-c", LAYER, "full", change, run, COMMAND, *overwriting(sample, run, 1))
        assert "Traceback" not in done.stderr, done.stderr
        seen.add(check(run, finished, done.stdout + done.stderr))
        if done.returncode == 0:
            break
    assert seen == ({0} if number else {0, 1})


@pytest.mark.slow
def test_a_disk_that_fills(sample: Path, finished: dict[int, Path], tmp_path: Path) -> None:
    """A file system of its own, a little larger each time, until the training fits."""
    code = "import sys; from tests.attack.test_runs import fill; fill(*sys.argv[1:])"
    alone = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"]).returncode:
        pytest.skip("needs `unshare`, and the right to mount a file system in a namespace")
    command = [*alone, sys.executable, "-c", code, str(sample), str(tmp_path), str(finished[0]), str(finished[1])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout + done.stderr
    seen = [line.split()[0] for line in done.stdout.splitlines()]
    assert seen == sorted(seen, reverse=True)  # while there is too little space, the old run; from then on, the new one
    assert {*seen} == {"old", "new"}


def fill(sample: str, folder: str, *runs: str) -> None:
    """In a namespace of mounts: train on file systems of a growing size, and print which run each one ends with."""
    import labelwise.cli
    import labelwise.training.train

    def in_child(work: Callable[[], object]) -> int:
        sys.stdout.flush()
        if not (child := os.fork()):
            status = 1
            try:
                work()
                status = 0
            except SystemExit as end:
                status = int(end.code or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    finished, disk, after = {n: Path(run) for n, run in enumerate(runs)}, Path(folder) / "disk", Path(folder) / "after"
    disk.mkdir()
    pages = sum(-(-path.stat().st_size // 4096) + 1 for path in finished[0].rglob("*"))
    for space in range(pages + 4, 10 * pages, 8):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={4 * space}k", "none", disk], check=True)
        shutil.copytree(finished[0], disk / "run")
        trained = in_child(lambda: labelwise.cli.main(overwriting(Path(sample), disk / "run", 1)))
        assert trained in (0, 2), trained
        shutil.copytree(disk / "run", after)
        subprocess.run(["umount", disk], check=True)
        seed = in_child(lambda: sys.exit(10 + check(after, finished))) - 10
        print(["old", "new"][seed], 4 * space)  # noqa: T201
        shutil.rmtree(after)
        if trained == 0:
            return
