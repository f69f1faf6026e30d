"""Speed beside other work: how long OpenMP's threads may spin, idle and with one busy process beside it.

    python benchmarks/busy_machine.py --json benchmarks/results/busy-machine.json

Cases: training steps of the default head on feature maps; feature maps from images with each engine. Every measurement
is a process of its own, because the setting is read once. All choices take turns in one round, idle and busy, so that
other load on the machine meets all of them; ratios are of the same round, their median is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CASES = ("train", "torch", "onnxruntime", "openvino")
CHOICES: dict[str, dict[str, str]] = {
    "default": {},
    "1000 spins": {"GOMP_SPINCOUNT": "1000"},
    "10000 spins": {"GOMP_SPINCOUNT": "10000"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
}
BUSY = "import time; end = time.time() + 600\nwhile time.time() < end: pass"


def measure(case: str, seconds: float) -> float:
    """Images per second in this process."""
    import torch  # first: labelwise sets what is not set, and the default is what PyTorch does alone

    from labelwise import losses
    from labelwise.engines.choose import open_engine
    from labelwise.training.optimizer import create_optimizer
    from labelwise.training.recipe import OWN_PHOTOS
    from labelwise.training.setup import build_model

    recipe = OWN_PHOTOS.model_copy(update={"model": OWN_PHOTOS.model.model_copy(update={"weights": "none"})})
    model = build_model(recipe, tuple(f"label {number}" for number in range(20)))
    batch = recipe.batch_size
    step: Callable[[], object]
    if case == "train":
        head, maps, targets = model.head.train(), torch.randn(batch, 1280, 7, 7), torch.randint(0, 2, (batch, 20))
        optimizer, loss = create_optimizer(head, recipe.optimizer), losses.create(recipe.loss.name)

        def step() -> None:
            loss(head(maps), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    else:
        backbone = model.backbone.eval()
        images = torch.randn(batch, 3, 224, 224).numpy()
        engine = open_engine(case, backbone, size=224)  # type: ignore[arg-type]

        def step() -> None:
            with torch.inference_mode():
                engine(images)

    for _ in range(2):
        step()
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        step()
        done += 1
    return done * batch / (time.perf_counter() - start)


@contextmanager
def beside(busy: bool) -> Iterator[None]:
    other = subprocess.Popen([sys.executable, "-c", BUSY]) if busy else None
    try:
        yield
    finally:
        if other is not None:
            other.kill()
            other.wait()


def in_process(case: str, choice: str, seconds: float) -> float:
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    words = [sys.executable, __file__, "--measure", case, "--seconds", str(seconds)]
    done = subprocess.run(words, env=kept | CHOICES[choice], capture_output=True, check=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(measure(arguments.measure, arguments.seconds))
        return
    from labelwise.engines.measure import machine

    result: dict[str, object] = {"machine": machine(), "rounds": arguments.rounds}
    for case in arguments.cases:
        found: dict[str, list[dict[str, float]]] = {"idle": [], "busy": []}
        for _ in range(arguments.rounds):
            for state, rounds in found.items():
                with beside(state == "busy"):
                    rounds.append({choice: in_process(case, choice, arguments.seconds) for choice in CHOICES})
        result[case] = {
            state: {
                choice: {
                    "images_per_second": [round(one[choice], 1) for one in rounds],
                    "of_default": round(statistics.median(one[choice] / one["default"] for one in rounds), 2),
                }
                for choice in CHOICES
            }
            for state, rounds in found.items()
        }
        print(case, json.dumps(result[case]), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
