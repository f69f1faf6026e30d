"""Training from shards: memory, speed, the quality of the shuffling, and caches of features larger than memory.

    python benchmarks/streams.py --data voc:/data/VOCdevkit --json benchmarks/results/streams.json

memory    the real command with 10,000 labels on 1,000 and on 1,000,000 images: one drawn shard and a thousand links to
          it; the most that the process and its workers held together, and the seconds to the first checkpoint, which is
          due a second after the first step
speed     what depends on where images come from: reading, decoding and augmenting them in two workers, from shards and
          from files, in turns, without a model. The images are those of --data, else drawn ones
shuffle   how far an epoch's order is from uniform if each shard holds one label only, which is the worst case: the
          variance of a label's number of images in a batch, 1.0 for a uniform order
cache     a head on cached features that are dropped from memory all the time, so that every map comes from the disk, as
          a ratio to the same training from memory, in turns; and how much was read from the disk
"""

from __future__ import annotations

import argparse
import ctypes
import io
import json
import mmap
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SMALL = ["model.weights=none", "model.freeze=none", "pair_mix=0", "thresholds=none", "data.validation=null"]
LABELS = 10_000


def train_command(data: str, out: Path, *settings: str) -> list[str]:
    options = [part for setting in settings for part in ("--set", setting)]
    return [sys.executable, "-m", "labelwise", "train", "--data", data, "--out", str(out), *options]


def drawn_shard(path: Path, images: int, size: int) -> None:
    """Noise with ten labels for each image."""
    rng = np.random.default_rng(0)
    with tarfile.open(path, "w") as archive:
        for number in range(images):
            image = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(image, "JPEG")
            labels = json.dumps(rng.choice(LABELS, 10, replace=False).tolist())
            for name, content in ((f"{number:04d}.jpg", image.getvalue()), (f"{number:04d}.json", labels.encode())):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


# ---- memory


def shards_of(folder: Path, one: Path, count: int) -> str:
    folder.mkdir()
    names = [f"train-{number:06d}.tar" for number in range(count)]
    for name in names:
        os.link(one, folder / name)
    (folder / "labels.txt").write_text("".join(f"label {number}\n" for number in range(LABELS)))
    entries = [{"url": name, "nsamples": 1000} for name in names]
    (folder / "index.json").write_text(json.dumps({"shardlist": entries}))
    return f"webdataset:{folder}"


def tree_memory(process: int) -> float:
    """MB that a process and its children hold, what they share counted once."""
    total, waiting = 0, [process]
    while waiting:
        pid = waiting.pop()
        with suppress(OSError):  # it has just ended
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
            for thread in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (thread / "children").read_text().split())
    return total / 1024


def measure_memory(folder: Path, steps: int) -> list[dict[str, Any]]:
    from safetensors import safe_open

    from labelwise.training.checkpoint import last_checkpoint

    drawn_shard(folder / "one.tar", 1000, 64)
    rows = []
    for count in (1, 1000):
        out = folder / f"run-{count}"
        settings = [*SMALL, "model.backbone=test_resnet", "model.size=32", "model.head=ml-decoder", "head.dim=768"]
        settings += ["head.groups=100", f"epochs={10_000 // count}", "batch_size=32", "checkpoint_minutes=0.02"]
        started = time.monotonic()
        command = train_command(shards_of(folder / f"shards-{count}", folder / "one.tar", count), out, *settings)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            peak, done, first = 0.0, 0, 0.0
            while done < steps and process.poll() is None:
                time.sleep(0.5)
                peak = max(peak, tree_memory(process.pid))
                if last_checkpoint(out).exists():
                    first = first or time.monotonic() - started
                    with safe_open(last_checkpoint(out), "pt") as checkpoint:
                        done = json.loads(checkpoint.metadata()["state"])["step"]
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate()
        if done < steps:
            raise SystemExit(errors)
        row = {"images": count * 1000, "labels": LABELS, "steps": done, "peak_mb": round(peak)}
        rows.append(row | {"seconds_to_first_checkpoint": round(first, 1)})
    return rows


# ---- speed


def in_turns(kinds: dict[str, Callable[[int], float]], rounds: int) -> dict[str, Any]:
    """Seconds of each of two kinds in every round, side by side: what else the machine does slows both. `ratio` is the
    speed of the first one, relative to the second; `cpu_ratio` the same by processor time, which others hardly change.
    """
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    cpu: dict[str, float] = dict.fromkeys(kinds, 0.0)
    for number in range(rounds):
        for name in list(kinds) if number % 2 else reversed(kinds):
            before = os.times()
            seconds[name].append(kinds[name](number))
            cpu[name] += sum(os.times()[:4]) - sum(before[:4])  # of this process and of workers that have ended
    first, second = seconds.values()
    ratios = [other / one for one, other in zip(first, second, strict=True)]
    of_first, of_second = cpu.values()
    found = {"ratio": statistics.median(ratios), "cpu_ratio": of_second / of_first, "ratios": ratios}
    return found | {"seconds": seconds, "cpu_seconds": cpu}


def measure_speed(folder: Path, rounds: int, images: int, data: str | None) -> dict[str, Any]:
    """An epoch of reading, decoding and augmenting in two workers, without a model: all that depends on the source."""
    import labelwise as lw
    from labelwise.data.conversion import convert
    from labelwise.data.preprocessing import Preprocessing
    from labelwise.data.sample import make_sample
    from labelwise.data.sources import open_images
    from labelwise.loading import AugmentationConfig, ImageDataset, train_transform
    from labelwise.training.batches import ImageBatches, Share

    table = lw.data.open_data(data).select("train") if data else make_sample(folder / "sample", images=images, size=256)
    some = table.select(np.arange(min(images, len(table))))
    lw.data.write_manifest(some.with_splits(["train"] * len(some)), folder / "some.csv")
    convert(folder / "some.csv", "webdataset", folder / "shards")
    transform = train_transform(Preprocessing(size=224), AugmentationConfig())

    def epochs(source: str) -> Callable[[int], float]:
        dataset = ImageDataset(open_images(source), transform, seed=0)
        batches = ImageBatches(dataset, None, 32, 2, 0, Share())

        def epoch(number: int) -> float:
            started = time.monotonic()
            for _ in batches.epoch(number):
                pass
            return time.monotonic() - started

        return epoch

    kinds = {"shards": epochs(f"webdataset:{folder / 'shards'}"), "files": epochs(str(folder / "some.csv"))}
    for epoch in kinds.values():
        epoch(0)  # both are in memory, and the index of the shards is written
    return {"images": len(some), "data": (data or "drawn").rpartition("/")[2], **in_turns(kinds, rounds)}


# ---- shuffling


def measure_shuffle(shards: int = 200, samples: int = 1000, batch: int = 64) -> list[dict[str, Any]]:
    """Shard s holds nothing but label s."""
    from labelwise.data.shard_kinds import TarShard
    from labelwise.data.stream_table import StreamTable

    def row(name: str, order: np.ndarray) -> dict[str, Any]:
        labels = order[: len(order) // batch * batch].reshape(-1, batch) // samples
        counts = np.stack([np.bincount(one, minlength=shards) for one in labels])  # [batches, shards]
        uniform = batch / shards * (1 - 1 / shards)
        distinct = float((counts > 0).sum(axis=1).mean())
        return {"order": name, "labels_in_a_batch": distinct, "variance": float(counts.var(axis=0).mean() / uniform)}

    every = [TarShard(f"{number}.tar", samples) for number in range(shards)]
    rows = []
    for piece in (samples, 100):
        for window in (5_000, 20_000, 50_000):
            table = StreamTable.of(every, ["a"], "drawn", shuffle=window, piece=piece)
            kind = "whole shards" if piece == samples else f"pieces of {piece}"
            rows.append(row(f"{kind}, shuffle={window}", np.concatenate(list(table.shuffled(0, 0)))))
    return [*rows, row("uniform", np.random.default_rng(0).permutation(shards * samples))]


# ---- a cache larger than memory


@contextmanager
def dropped(files: list[Path], maps: list[Any]) -> Iterator[None]:
    """Inside the block, the files, and the tensors that map them, are dropped from memory again and again."""
    over, libc = threading.Event(), ctypes.CDLL(None)
    opened = [os.open(file, os.O_RDONLY) for file in files]

    def drop() -> None:
        for tensor in maps:  # what a process maps, the kernel keeps
            first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
            size = (tensor.data_ptr() + tensor.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
            assert libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), mmap.MADV_DONTNEED) == 0
        for descriptor in opened:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def repeat() -> None:
        while not over.wait(0.3):
            drop()

    drop()
    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for descriptor in opened:
            os.close(descriptor)


def read_from_disk() -> int:
    """Bytes that this process has caused to be read so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def measure_cache(folder: Path, rounds: int, images: int) -> dict[str, Any]:
    """Steps of the default head on maps of 1,280 x 7 x 7 that are drawn, not computed."""
    import torch

    from labelwise import losses
    from labelwise.data.table import LabelTable
    from labelwise.features import FeatureCache
    from labelwise.features.store import open_shard, write_shard
    from labelwise.heads import create
    from labelwise.training.batches import FeatureBatches, Share

    torch.manual_seed(0)
    per_shard, stored = 500, folder / "maps"
    stored.mkdir()
    for first in range(0, images, per_shard):
        keys = [f"{number:033d}".encode() for number in range(first, first + per_shard)]
        write_shard(stored, "drawn", keys, torch.randn(per_shard, 7, 7, 1280).half())
    files = sorted(stored.glob("*.safetensors"))
    opened = [open_shard(file, "drawn") for file in files]
    cache = FeatureCache([[(shard, slot) for shard in opened for slot in range(per_shard)]], [])
    table = LabelTable.from_lists([str(n) for n in range(images)], [[f"label {n % 20}"] for n in range(images)])
    batches = FeatureBatches(cache, None, (table, None), 32, 0, Share(), 0.0)
    head = create("hsq", in_features=1280, labels=20, dim=256)
    optimizer, loss = torch.optim.AdamW(head.parameters(), fused=True), losses.create("asymmetric")

    def steps(number: int) -> float:
        """Half an epoch, in seconds."""
        started = time.monotonic()
        epoch, half = divmod(number, 2)
        count = len(batches) // 2
        for maps, targets, _ in islice(batches.epoch(epoch, half * count), count):
            loss(head(maps), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        return time.monotonic() - started

    read: list[float] = []

    def from_disk(number: int) -> float:
        with dropped(files, [shard.maps for shard in opened]):
            before = read_from_disk()
            seconds = steps(number)
            read.append((read_from_disk() - before) / 1e9)
        return seconds

    def from_memory(number: int) -> float:
        for shard in opened:
            shard.maps.sum()  # fills the memory again
        return steps(number)

    steps(0)
    found = in_turns({"disk": from_disk, "memory": from_memory}, rounds)
    size = sum(file.stat().st_size for file in files) / 1e9
    return {"images": images, "gb": size, "gb_read": read, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["shuffle", "memory", "speed", "cache"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--data", help="photos for the speed, such as voc:/data/VOCdevkit")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["LABELWISE_CACHE"] = str(folder / "cache")
        measured: dict[str, Callable[[], Any]] = {
            "shuffle": measure_shuffle,
            "memory": lambda: measure_memory(folder, arguments.steps),
            "speed": lambda: measure_speed(folder, arguments.rounds, arguments.images, arguments.data),
            "cache": lambda: measure_cache(folder, arguments.rounds, arguments.images),
        }
        known = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
        for part in arguments.parts:
            known[part] = measured[part]()
            print(part, json.dumps(known[part], indent=1))
            if arguments.json:
                arguments.json.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
