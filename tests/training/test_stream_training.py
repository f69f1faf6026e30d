"""Training and evaluation from shards: to the bit, whoever reads them and whenever they are killed."""

from __future__ import annotations

import io
import json
import signal
import tarfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import labelwise as lw
from labelwise.core.errors import LabelwiseError
from labelwise.data.conversion import convert
from labelwise.data.preprocessing import Preprocessing
from labelwise.data.sources import open_images
from labelwise.data.stream_table import StreamTable
from labelwise.loading import AugmentationConfig, ImageDataset, eval_transform, train_transform
from labelwise.training.batches import ImageBatches, Share
from labelwise.training.checkpoint import read_checkpoint
from labelwise.training.recipe import save_recipe
from labelwise.training.run import read_history
from labelwise.training.setup import grouped_labels
from labelwise.training.train import train
from process_kit import finished, same_bits, start, torchrun
from run_kit import recipe


@pytest.fixture(scope="module")
def shards(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images in 9 shards: 42 to train in 5 of up to 9, so that they divide by nothing."""
    folder = tmp_path_factory.mktemp("shards") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labelwise.data.conversion.SHARD_IMAGES", 9)
        convert(sample, "webdataset", folder)
    return folder


def source(shards: Path, **options: object) -> str:
    return f"webdataset:{shards}?shuffle=20" + "".join(f"&{name}={value}" for name, value in options.items())


def test_killed_while_workers_read_a_run_resumes_to_the_same_bits(shards: Path, tmp_path: Path) -> None:
    settings = {"epochs": 3, "checkpoint_minutes": 1e-6, "augmentation.crop": 0.5, "data.validation": None}
    train(recipe(Path(source(shards)), **settings), tmp_path / "whole")  # read by this process alone
    killed, last = tmp_path / "killed", tmp_path / "killed" / "checkpoints" / "last.safetensors"
    (tmp_path / "run.py").write_text(
        "import sys\nfrom labelwise.training import load_recipe\nfrom labelwise.training.train import train\n"
        f"wanted = load_recipe({str(tmp_path / 'whole' / 'recipe.yaml')!r}, {{'workers': 2}})\n"
        f"train(wanted, {str(killed)!r}, resume='resume' in sys.argv)\n"
    )
    program = (str(tmp_path / "run.py"),)
    process, reached = start(program=program), -1
    while reached < 7 and process.poll() is None:  # within the second epoch of five steps
        time.sleep(0.005)
        with suppress(LabelwiseError):  # it may be replaced while it is read
            reached = read_checkpoint(last)[1]["step"]
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    assert 0 < reached < 15, output
    finished(start("resume", program=program))
    assert same_bits(tmp_path / "whole", killed)


def batches(table: StreamTable, share: Share, workers: int = 0) -> ImageBatches:
    preprocessing = Preprocessing(size=16)
    augmented = ImageDataset(table, train_transform(preprocessing, AugmentationConfig(crop=0.5)), seed=1)
    return ImageBatches(augmented, ImageDataset(table, eval_transform(preprocessing)), 8, workers, 1, share)


def keys(step: tuple[torch.Tensor, torch.Tensor]) -> list[float]:
    return [float(value) for value in step[0].double().sum(dim=(1, 2, 3))]


@pytest.mark.parametrize("lanes", [1, 4])
def test_any_number_of_processes_sees_the_same_images_in_the_same_steps(shards: Path, lanes: int) -> None:
    table = open_images(source(shards, lanes=lanes)).select("train")
    assert isinstance(table, StreamTable)
    alone = [keys(step) for step in batches(table, Share(), workers=2).epoch(3)]
    assert len({key for step in alone for key in step}) == 40  # whole batches of 42 images, none twice
    for processes in (2, 4):
        shares = [list(batches(table, Share(rank, processes)).epoch(3, first=2)) for rank in range(processes)]
        for number, step in enumerate(alone[2:]):
            assert sorted(key for share in shares for key in keys(share[number])) == sorted(step)
    seen = [keys(step) for rank in range(3) for step in batches(table, Share()).validation(Share(rank, 3))]
    assert len({key for step in seen for key in step}) == 42


def test_torchrun_on_shards_sees_every_image_once_and_gives_the_metrics_of_one_process(
    shards: Path, tmp_path: Path
) -> None:
    """42 images in steps of 8, with a worker for each process. What a process draws for itself is off."""
    off = {"model.options": {"dim": 16, "attention_heads": 2, "dropout": 0.0, "token_dropout": 0.0}, "pair_mix": 0}
    off |= {"augmentation.crop": 0.5, "model.freeze": "early"}
    save_recipe(recipe(Path(source(shards)), workers=1, **off), tmp_path / "recipe.yaml")
    (tmp_path / "run.py").write_text(
        "import os, sys\nfrom pathlib import Path\nfrom labelwise.training import load_recipe\n"
        "from labelwise.training.loop import Trainer\nfrom labelwise.training.train import train\n"
        "step, out = Trainer._step, Path(sys.argv[1])\n"
        "def told(self, inputs, targets, rows, number):\n"
        "    with (out / f'rows-{os.environ.get(\"RANK\", 0)}').open('a') as file:\n"
        "        print(*rows.tolist(), file=file)\n"
        "    return step(self, inputs, targets, rows, number)\n"
        "Trainer._step = told\n"
        f"train(load_recipe({str(tmp_path / 'recipe.yaml')!r}), out / 'run')\n"
    )
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    finished(start(str(tmp_path / "one"), program=(str(tmp_path / "run.py"),)))
    torchrun(str(tmp_path / "two"), program=(str(tmp_path / "run.py"),))

    def steps(file: Path) -> list[set[int]]:
        return [set(map(int, line.split())) for line in file.read_text().splitlines()]

    alone = steps(tmp_path / "one" / "rows-0")
    both = [steps(tmp_path / "two" / f"rows-{rank}") for rank in range(2)]
    assert [first | second for first, second in zip(*both, strict=True)] == alone
    for epoch in (alone[:5], alone[5:]):
        assert len(set.union(*epoch)) == 40  # the two images that do not fill a batch wait for other epochs
    found, expected = (read_history(tmp_path / name / "run") for name in ("two", "one"))
    for row, again in zip(expected, found, strict=True):
        assert again["loss"] == pytest.approx(row["loss"], abs=1e-3)
        assert again["mAP"] == pytest.approx(row["mAP"], abs=0.05)


def test_evaluation_from_shards_gives_the_numbers_of_the_files(sample: Path, shards: Path, tmp_path: Path) -> None:
    changes = {"model.freeze": "backbone", "epochs": 1}
    run = train(recipe(sample, **changes), tmp_path / "files")
    files = lw.evaluate(run, sample, split="test", bootstrap=0, engine="torch")
    streamed = lw.evaluate(run, f"webdataset:{shards}", split="test", bootstrap=0, engine="torch")
    assert streamed.scores.to_dict() == files.scores.to_dict()
    assert lw.evaluate(run, f"webdataset:{shards}", split="val", fit_thresholds="f1", bootstrap=0).fitted is not None


def test_features_of_shards_are_those_of_the_files(sample: Path, shards: Path, tmp_path: Path) -> None:
    """They are found by the content of an image, wherever it is stored."""
    changes = {"model.freeze": "backbone", "epochs": 2, "augmentation.flip": 0.5}
    train(recipe(sample, **changes, **{"data.train": "train+val", "data.validation": "test"}), tmp_path / "files")
    stored = sorted((tmp_path / "cache" / "features").glob("*/*.safetensors"))
    wanted = recipe(Path(source(shards)), **changes)
    train(wanted, tmp_path / "a")
    assert [file for file in stored if not file.exists()] == []
    train(wanted, tmp_path / "b")
    assert same_bits(tmp_path / "a", tmp_path / "b")


def test_without_splits_a_share_of_every_shard_is_held_out(sample: Path, tmp_path: Path) -> None:
    table = lw.data.open_data(sample)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labelwise.data.conversion.SHARD_IMAGES", 20)
        convert(table.with_splits([""] * len(table)), "webdataset", tmp_path / "shards")
    run = train(recipe(Path(f"webdataset:{tmp_path / 'shards'}"), epochs=1), tmp_path / "run")
    log = (run.folder / "log.txt").read_text()
    assert "no validation split: 20% of the training images are held out" in log
    assert "48 training images, 12 validation images" in log
    assert "of the time waiting for data" in log
    assert 0 <= json.loads((run.folder / "metrics.jsonl").read_text())["waiting"] <= 1


def rewritten(shard: Path, change: Callable[[str, bytes], bytes]) -> None:
    with tarfile.open(shard) as archive:
        files = [(member, archive.extractfile(member).read()) for member in archive]  # type: ignore[union-attr]
    with tarfile.open(shard, "w") as archive:
        for member, content in files:
            changed = change(member.name, content)
            member.size = len(changed)
            archive.addfile(member, io.BytesIO(changed))


def test_mistakes_that_a_worker_meets_stay_one_line(shards: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    for file in shards.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    shard = folder / "train-000002.tar"
    rewritten(shard, lambda name, data: b"no picture" if not name.endswith("json") else data)
    with pytest.raises(LabelwiseError, match=r"train-000002\.tar/\d+' cannot be decoded .*on_bad_image='skip'"):
        train(recipe(Path(source(folder)), workers=1, epochs=1), tmp_path / "bad")
    skipping = recipe(Path(source(folder)), epochs=1, workers=1, **{"data.on_bad_image": "skip"})
    assert train(skipping, tmp_path / "skipped").model().config.results["skipped_images"] >= 7  # 2 images are left over
    rewritten(folder / "train-000001.tar", lambda name, data: b'["sunn"]' if name.endswith("json") else data)
    with pytest.raises(LabelwiseError, match=r"^\S+train-000001\.tar/\d+: unknown label 'sunn'; did you mean 'sun'\?"):
        train(recipe(Path(source(folder)), workers=1, epochs=1, **{"data.on_bad_image": "skip"}), tmp_path / "unknown")


def test_what_needs_all_labels_beforehand_is_refused(shards: Path, tmp_path: Path) -> None:
    for changes, message in (
        ({"data.empty_images": "drop"}, r"known only when they are read; keep them \(data.empty_images='keep'\)"),
        ({"data.unseen": ["sun"]}, r"known only when they are read; keep them \(data.unseen_images='keep'\)"),
    ):
        with pytest.raises(LabelwiseError, match=message):
            train(recipe(Path(source(shards)), **changes, **{"model.options": {}}), tmp_path / "run", overwrite=True)


@pytest.mark.parametrize("kind", ["words", "co-occurrence"])
def test_labels_are_grouped_as_from_files(sample: Path, shards: Path, kind: str, tmp_path: Path) -> None:
    tables = lw.data.open_data(sample).select("train"), open_images(source(shards)).select("train")
    vectors = torch.randn(len(tables[0].labels), 8, generator=torch.Generator().manual_seed(0))
    save_file(dict(zip(tables[0].labels, vectors.unbind(), strict=True)), tmp_path / "words.safetensors")
    changes = {"model.head": "ml-decoder", "model.options": {"groups": 4}, "model.grouping": kind}
    wanted = recipe(sample, **changes, **{"model.words": {"source": str(tmp_path / "words.safetensors")}})
    files, streamed = (grouped_labels(wanted, table) for table in tables)
    assert files is not None
    assert streamed is not None
    assert torch.equal(files, streamed)


def test_memory_holds_no_list_of_images(tmp_path: Path) -> None:
    """A million images in a thousand shards: an epoch plans one window, and a worker gets less than a megabyte."""
    import pickle
    import tracemalloc

    from labelwise.data.shards import Shard
    from labelwise.training.batches import batches_of

    table = StreamTable.of([Shard(f"{n:04d}.tar", 1000) for n in range(1000)], ["a"], "drawn")
    tracemalloc.start()
    steps = sum(1 for _ in batches_of(table.shuffled(0, 0), len(table), 64, Share()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (steps, peak < 8e6) == (1_000_000 // 64, True), peak
    assert len(pickle.dumps(table)) < 1e6
    last = next(batches_of(table.shuffled(0, 0), len(table), 64, Share(), first=steps - 1))
    assert np.array_equal(last, list(batches_of(table.shuffled(0, 0), len(table), 64, Share()))[-1])
