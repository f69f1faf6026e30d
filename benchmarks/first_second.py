"""The first second: what a plain `pip install` takes, and how long the first commands of a new user take.

    python benchmarks/first_second.py --json benchmarks/results/first-second.json

Builds the wheel of this checkout, installs it without extras into a clean environment, and lets it tag, explain and
serve a photo. Then commands run in cold processes, in turns with `python -c "import onnxruntime, numpy, PIL.Image"`:
ratios say more than seconds on a machine that does other things. `--check` leaves out the timing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import skimage

from labelwise.engines.measure import machine

ROOT = Path(__file__).resolve().parents[1]
PHOTO = Path(skimage.__file__).parent / "data" / "chelsea.png"  # a cat
HEAVY = ("torch", "torchvision", "timm", "matplotlib", "pyarrow")
MOST = {"site_packages_mb": 250, "wheel_mb": 25, "predict_ratio": 3.5, "help_ratio": 1.2, "predict_memory_mb": 300}


class Cost(NamedTuple):
    """Of a cold process."""

    wall: float  # seconds
    cpu: float  # seconds, user and system
    memory: float  # MB, the peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="install and use it, without timing")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    # The environment of a new user: nothing of this checkout.
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sizes = install(folder, env)
        check_use(folder, env)
        print("tagged, explained and served a photo without PyTorch:", sizes)
        result: dict[str, Any] = {"sizes": sizes}
        if not arguments.check:
            result |= {"rounds": arguments.rounds, **measure(folder, env, arguments.rounds), "machine": machine()}
            print(json.dumps(result["commands"], indent=1))
    too_much = {name: value for name, value in facts(result).items() if value > MOST[name]}
    if arguments.json:
        arguments.json.write_text(json.dumps({**result, "most": MOST}, indent=1) + "\n")
    if too_much:
        sys.exit(f"more than it may be: {too_much} (at most {MOST})")


def install(folder: Path, env: Mapping[str, str]) -> dict[str, float]:
    """Build the wheel and install it without extras; the sizes of both in MB."""
    uv = Path(sys.executable).with_name("uv")
    run([uv, "build", "--quiet", "--wheel", "--out-dir", folder / "dist", ROOT], env)
    (wheel,) = (folder / "dist").glob("*.whl")
    run([uv, "venv", "--quiet", "--python", sys.executable, folder / "venv"], env)
    run([uv, "pip", "install", "--quiet", "--python", folder / "venv" / "bin" / "python", wheel], env)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    unwanted = [name for name in HEAVY if (packages / name).exists()]
    if unwanted:
        sys.exit(f"a plain install brings {', '.join(unwanted)}")
    size = megabytes(packages)
    # What Python writes on the first imports, and pip at once.
    run([folder / "venv" / "bin" / "python", "-m", "compileall", "-q", packages], env, check=False)
    return {
        "wheel_mb": round(wheel.stat().st_size / 1e6, 1),
        "site_packages_mb": size,
        "with_all_bytecode_mb": megabytes(packages),
    }


def megabytes(folder: Path) -> float:
    return round(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6, 1)


def check_use(folder: Path, env: Mapping[str, str]) -> None:
    """Tag a photo, explain it and serve it; an error if anything is wrong."""
    command = folder / "venv" / "bin" / "labelwise"
    shutil.copy(PHOTO, folder / "photo.png")
    said = run([command, "predict", "photo.png"], env, cwd=folder)
    assert "cat 1.00" in said, said
    run([command, "explain", "photo.png", "--out", "why.png"], env, cwd=folder)
    assert (folder / "why.png").stat().st_size > 10_000
    for extra, words in {"train": ["complexity"], "parquet": ["predict", "photo.png", "--out", "tags"]}.items():
        missing = subprocess.run([command, *words], env=env, cwd=folder, capture_output=True, text=True, check=False)
        assert f"pip install 'labelwise[{extra}]'" in missing.stderr, missing.stderr
    with subprocess.Popen([command, "serve", "--port", "0"], env=env, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            lines = iter(server.stderr)
            address = next(found[0] for line in lines if (found := re.findall(r"http://[\d.:]+", line)))
            for question in ("predict", "explain"):
                request = Request(f"{address}/{question}", PHOTO.read_bytes(), {"Content-Type": "image/png"})
                with urlopen(request, timeout=60) as answer:
                    assert "cat" in json.dumps(json.load(answer))
        finally:
            server.terminate()


def measure(folder: Path, env: Mapping[str, str], rounds: int) -> dict[str, Any]:
    """Medians of cold processes, which run in turns."""
    bin = folder / "venv" / "bin"
    commands = {
        "import": [bin / "python", "-c", "import onnxruntime, numpy, PIL.Image"],
        "help": [bin / "labelwise", "--help"],
        "predict": [bin / "labelwise", "predict", "photo.png"],
        "explain": [bin / "labelwise", "explain", "photo.png", "--out", "why.png"],
        "mistake": [bin / "labelwise", "train", "--data", "missing.csv", "--out", "run"],
    }
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            cost = cold(command, env, folder)
            if number:  # the first one reads files from the disk
                costs[name].append(cost)
    medians = {name: Cost(*map(statistics.median, zip(*some, strict=True))) for name, some in costs.items()}
    base = medians["import"]
    return {
        "commands": {
            name: {
                "wall_seconds": round(cost.wall, 3),
                "cpu_seconds": round(cost.cpu, 3),
                # That of a smaller process is this one's: a child begins as a copy of its parent.
                **({"peak_memory_mb": round(cost.memory, 1)} if name in ("predict", "explain") else {}),
                "wall_ratio": round(cost.wall / base.wall, 2),
                "cpu_ratio": round(cost.cpu / base.cpu, 2),
            }
            for name, cost in medians.items()
        }
    }


def cold(command: Sequence[str | Path], env: Mapping[str, str], folder: Path) -> Cost:
    start = time.perf_counter()
    process = subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    used: resource.struct_rusage = os.wait4(process.pid, 0)[2]
    process.returncode = 0  # waited for already
    return Cost(time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3)


def facts(result: Mapping[str, Any]) -> dict[str, float]:
    """What has a limit."""
    found = {name: result["sizes"][name] for name in ("site_packages_mb", "wheel_mb")}
    if "commands" in result:
        commands = result["commands"]
        found |= {f"{name}_ratio": max(ratios(commands[name])) for name in ("predict", "help")}
        found["predict_memory_mb"] = commands["predict"]["peak_memory_mb"]
    return found


def ratios(command: Mapping[str, float]) -> tuple[float, float]:
    return command["wall_ratio"], command["cpu_ratio"]


def run(command: Sequence[str | Path], env: Mapping[str, str], *, cwd: Path | None = None, check: bool = True) -> str:
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    if check and done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
