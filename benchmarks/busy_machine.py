"""Speed beside other work: how threads wait and how they share a batch, idle and with one busy process beside it.

    python benchmarks/busy_machine.py --json benchmarks/results/busy-machine.json

Cases: training steps of the default head on feature maps; the default backbone on batches of images with each engine;
feature building, in which the same engines run beside the threads that decode photos. `default` is what each library
does by itself, `labelwise` what it does when labelwise opens it: each thread computes some images of a batch. With
`together` all threads compute each operation, as labelwise does for a few images. All compute in float32. Every
measurement is a process of its own, because some settings are read once. All choices take turns in one round, idle and
busy, so that other load on the machine meets all of them; ratios are of the same round, their median is reported. Cases
that are measured later are added to the file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

BATCH, SIZE, PHOTOS = 32, 224, 64
OPENMP: dict[str, dict[str, Any]] = {  # environment variables
    "default": {},
    "1000 spins": {"GOMP_SPINCOUNT": "1000"},
    "10000 spins": {"GOMP_SPINCOUNT": "10000"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
}
ONNX_RUNTIME: dict[str, dict[str, Any]] = {  # of the session; with its own number of threads it does not pin them
    "default": {},
    "labelwise": {},
    "together": {"session.intra_op.allow_spinning": "0"},
}
OPENVINO: dict[str, dict[str, Any]] = {
    "default": {},
    "labelwise": {},
    "together": {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False},
}
CASES = {
    "train": OPENMP,
    "onnxruntime": ONNX_RUNTIME,
    "openvino": OPENVINO,
    "features-onnxruntime": ONNX_RUNTIME,
    "features-openvino": OPENVINO,
}
NETWORKS = {"labelwise": "some-images.onnx"}  # for the images that a thread takes
NETWORK = "batch.onnx"
BUSY = "import time; end = time.time() + 600\nwhile time.time() < end: pass"
Network = Callable[[np.ndarray], object]


def training_step() -> Callable[[], object]:
    import torch  # first: labelwise sets what is not set, and the default is what PyTorch does alone

    from labelwise import losses
    from labelwise.training.optimizer import create_optimizer
    from labelwise.training.recipe import OWN_PHOTOS
    from labelwise.training.setup import build_model

    recipe = OWN_PHOTOS.model_copy(update={"model": OWN_PHOTOS.model.model_copy(update={"weights": "none"})})
    head = build_model(recipe, tuple(f"label {number}" for number in range(20))).head.train()
    maps, targets = torch.randn(BATCH, 1280, 7, 7), torch.randint(0, 2, (BATCH, 20))
    optimizer, loss = create_optimizer(head, recipe.optimizer), losses.create(recipe.loss.name)

    def step() -> None:
        loss(head(maps), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def onnx_network(path: Path, choice: str) -> Network:
    import onnxruntime

    from labelwise.core.environment import thread_count
    from labelwise.runtime.sessions import OnnxEngine

    if choice == "labelwise":
        return OnnxEngine(path)
    options = onnxruntime.SessionOptions()
    if choice != "default":
        options.intra_op_num_threads = thread_count()
    for key, value in ONNX_RUNTIME[choice].items():
        options.add_session_config_entry(key, value)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})


def openvino_network(path: Path, choice: str) -> Network:
    import openvino

    from labelwise.runtime.sessions import OpenVinoEngine

    if choice == "labelwise":
        return OpenVinoEngine(path)
    settings = {"INFERENCE_PRECISION_HINT": "f32", **OPENVINO[choice]}
    request = openvino.compile_model(path, "CPU", settings).create_infer_request()
    return lambda images: request.infer([images], share_inputs=True)


def building_step(folder: Path, network: Network) -> Callable[[], object]:
    """A batch of photos is decoded while the one before it is computed, as when features are built."""
    from labelwise.data.decode import TableImages
    from labelwise.data.preprocessing import Preprocessing
    from labelwise.data.table import LabelTable

    files = sorted(str(path) for path in folder.glob("*.jpg"))
    table = LabelTable.from_lists(files, [["label"]] * len(files))
    batches = TableImages(table, Preprocessing(size=SIZE)).batches(BATCH, cycle(range(len(files))))
    return lambda: network(next(batches)[1])


def measure(case: str, choice: str, folder: Path, seconds: float) -> float:
    """Images per second in this process."""
    if case == "train":
        step = training_step()
    else:
        network = folder / NETWORKS.get(choice, NETWORK)
        opened = (openvino_network if case.endswith("openvino") else onnx_network)(network, choice)
        images = np.random.default_rng(0).standard_normal((BATCH, 3, SIZE, SIZE), np.float32)
        step = building_step(folder, opened) if case.startswith("features") else lambda: opened(images)
    for _ in range(2):
        step()
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        step()
        done += 1
    return done * BATCH / (time.perf_counter() - start)


def prepare(folder: Path) -> None:
    """The default backbone as ONNX, with random weights, and photos of smooth noise as large as those of VOC."""
    from PIL import Image

    from labelwise.engines.convert import convert
    from labelwise.runtime.sessions import IMAGES_AT_ONCE
    from labelwise.training.recipe import OWN_PHOTOS
    from labelwise.training.setup import build_model

    recipe = OWN_PHOTOS.model_copy(update={"model": OWN_PHOTOS.model.model_copy(update={"weights": "none"})})
    backbone = build_model(recipe, ("label",)).backbone.eval()
    for batch, name in ((BATCH, NETWORK), (IMAGES_AT_ONCE, NETWORKS["labelwise"])):
        convert(backbone, "onnxruntime", folder, size=SIZE, batch=batch).rename(folder / name)
    generator = np.random.default_rng(0)
    for number in range(PHOTOS):
        coarse = generator.integers(0, 256, (94, 125, 3), np.uint8)
        Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{number}.jpg", quality=90)


@contextmanager
def beside(busy: bool) -> Iterator[None]:
    other = subprocess.Popen([sys.executable, "-c", BUSY]) if busy else None
    try:
        yield
    finally:
        if other is not None:
            other.kill()
            other.wait()


def in_process(case: str, choice: str, folder: Path, seconds: float) -> float:
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    own = OPENMP[choice] if CASES[case] is OPENMP else {}
    words = [sys.executable, __file__, "--measure", case, choice, str(folder), "--seconds", str(seconds)]
    return float(subprocess.run(words, env=kept | own, stdout=subprocess.PIPE, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        case, choice, folder = arguments.measure
        print(measure(case, choice, Path(folder), arguments.seconds))
        return
    from labelwise.engines.measure import machine

    known = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.is_file() else {}
    result: dict[str, Any] = known | {"machine": machine()}
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        for case in arguments.cases:
            result[case] = compared(case, Path(name), arguments.rounds, arguments.seconds)
            print(case, json.dumps(result[case]), flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def compared(case: str, folder: Path, rounds: int, seconds: float) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {"idle": [], "busy": []}
    for _ in range(rounds):
        for state, speeds in found.items():
            with beside(state == "busy"):
                speeds.append({choice: in_process(case, choice, folder, seconds) for choice in CASES[case]})
    return {
        state: {
            choice: {
                "images_per_second": [round(one[choice], 1) for one in speeds],
                "of_default": round(statistics.median(one[choice] / one["default"] for one in speeds), 2),
            }
            for choice in CASES[case]
        }
        for state, speeds in found.items()
    }


if __name__ == "__main__":
    main()
