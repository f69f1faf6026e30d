"""Each engine against the PyTorch model, and which one `auto` takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labelwise.core.environment import thread_count
from labelwise.core.errors import LabelwiseError
from labelwise.data.sample import make_sample
from labelwise.engines import choose
from labelwise.engines.choose import open_engine, run_full_batch
from labelwise.engines.convert import convert, open_file
from labelwise.engines.measure import in_turns, work_of_others
from labelwise.evaluation.inference import engine_for, predict_logits
from labelwise.features import FeatureCache
from labelwise.model.model import LabelModel, create_model
from labelwise.model.network import TorchEngine
from labelwise.runtime.sessions import Engine, EngineName, Family, SessionEngine, relative_difference
from tests import fork_server


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all tests of this file: they share the conversions."""
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path_factory.getbasetemp() / "engine-cache"))


def small_model(seed: int = 0) -> LabelModel:
    torch.manual_seed(seed)
    return create_model("test_resnet", "gap", 5, weights="none", size=64).eval()


@pytest.fixture(scope="module")
def model() -> LabelModel:
    return small_model()


def noise(batch: int, size: int = 64) -> np.ndarray:
    return np.random.default_rng(batch).standard_normal((batch, 3, size, size), np.float32)


@pytest.mark.parametrize("family", ["torch", "onnxruntime", "openvino"])
def test_an_engine_gives_the_models_logits(model: LabelModel, family: Family) -> None:
    pytest.importorskip(family)
    engine = open_engine(family, model, size=64)
    assert engine.family == family
    for images in (noise(1), noise(3), noise(2, 96), np.flip(noise(2), -1)):
        with torch.no_grad():
            expected = model(torch.from_numpy(images.copy())).numpy()
        found = engine(np.ascontiguousarray(images))
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1e-5)
    first = engine(noise(2))
    kept = first.copy()
    engine(noise(2) + 1)
    assert (first == kept).all()  # a result is the caller's own


@pytest.mark.parametrize("family", ["onnxruntime", "openvino"])
def test_threads_share_a_batch(model: LabelModel, family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the images of a batch are divided, each output is that of its image; also for several callers at once."""
    pytest.importorskip(family)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    engine = open_engine(family, model, size=64)
    batches = [noise(images) for images in (1, 5, 6, 7, 13, 32)]
    with ThreadPoolExecutor(len(batches)) as callers:
        answers = list(callers.map(engine, batches))
    for images, found in zip(batches, answers, strict=True):
        expected = np.concatenate([TorchEngine(model)(image[None]) for image in images])
        assert relative_difference(found, expected) < 1e-4


@pytest.mark.parametrize("family", ["onnxruntime", "openvino"])
def test_full_batches_of_any_size(model: LabelModel, family: EngineName) -> None:
    """The network itself always takes the same few images; a batch need not be a multiple of them."""
    pytest.importorskip(family)
    for batch_size in (1, 15, 32):
        engine = open_engine(family, model.backbone, size=64, batch_size=batch_size, full_batches=True)
        images = noise(17)
        assert len(engine(images[:0])) == 0
        found = run_full_batch(engine, images, batch_size)
        assert relative_difference(found, TorchEngine(model.backbone)(images)) < 1e-4


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a batch of 8 is divided on every machine."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("family", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("reason", ["large", "no memory"])
def test_a_network_that_should_not_or_cannot_be_opened_twice_runs_whole_batches(
    reason: str, family: Family, model: LabelModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(family)
    engine = open_file(convert(model, family, tmp_path, size=64), family)
    assert isinstance(engine, SessionEngine)
    if reason == "large":
        monkeypatch.setattr("labelwise.runtime.sessions._LARGE_BYTES", 0)
    tried = []
    monkeypatch.setattr(type(engine), "_open_streams", lambda self: tried.append(1) or _no_memory())
    for _ in range(2):
        assert relative_difference(engine(noise(8)), TorchEngine(model)(noise(8))) < 1e-4
    assert len(tried) == (reason == "no memory")  # not again for every batch


def _no_memory() -> Any:
    raise RuntimeError("bad allocation")


@pytest.mark.usefixtures("two_threads")
def test_a_file_that_is_replaced_does_not_change_what_is_open(tmp_path: Path) -> None:
    """A batch is computed in another way than single images, which is only set up when the first one comes."""
    path = convert(small_model(), "onnxruntime", tmp_path, size=64)
    engine = open_file(path, "onnxruntime")
    before = np.concatenate([engine(image[None]) for image in noise(8)])
    (tmp_path / "new").mkdir()
    convert(small_model(seed=1), "onnxruntime", tmp_path / "new", size=64).replace(path)
    assert relative_difference(engine(noise(8)), before) < 1e-4
    assert relative_difference(open_file(path, "onnxruntime")(noise(8)), before) > 0.01


SIGNAL_AFTER_TWO_ENGINES = """
import signal, sys
from pathlib import Path
import numpy as np
from labelwise.runtime.sessions import OpenVinoEngine
signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
engines = [OpenVinoEngine(Path(sys.argv[1])) for _ in range(2)]
for engine in engines:
    engine(np.zeros((1, 3, 64, 64), np.float32))
del engine
while engines:
    del engines[0]
signal.raise_signal(signal.SIGUSR1)
"""


def test_a_signal_is_handled_after_engines_were_closed(model: LabelModel, tmp_path: Path) -> None:
    """With a Core for each engine it ended the process: a segmentation fault at Ctrl-C."""
    pytest.importorskip("openvino")
    path = convert(model, "onnxruntime", tmp_path, size=64)
    done = fork_server.run("-c", SIGNAL_AFTER_TWO_ENGINES, path)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr


FIRST_ARRAYS_IN_TWO_THREADS = """
import faulthandler, sys, threading
from labelwise.runtime.sessions import openvino, openvino_core
faulthandler.dump_traceback_later(10, exit=True)  # needs no lock of Python's, which would be held for ever
sys.setswitchinterval(1e-6)
openvino_core()
start = threading.Barrier(4)
def convert():
    start.wait()
    openvino().Type.f32.to_dtype()
threads = [threading.Thread(target=convert) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_the_first_arrays_of_openvino_may_come_from_several_threads() -> None:
    """Its bindings then waited for themselves, in nearly half of the processes."""
    pytest.importorskip("openvino")
    for _ in range(2):
        done = fork_server.run("-c", FIRST_ARRAYS_IN_TWO_THREADS)
        assert done.returncode == 0, done.stderr


def test_a_conversion_is_kept_and_a_changed_weight_is_another_network(
    model: LabelModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    expected = open_engine("onnxruntime", model, size=64)(noise(2))
    conversions: list[str] = []

    def convert(module: Any, family: str, *_: Any, **__: Any) -> None:
        conversions.append(family)
        raise LabelwiseError("converting")

    monkeypatch.setattr(choose, "convert", convert)
    assert (open_engine("onnxruntime", model, size=64)(noise(2)) == expected).all()
    assert conversions == []
    other = small_model()
    next(other.parameters()).data.view(-1)[0] += 1e-3
    with pytest.raises(LabelwiseError, match="converting"):
        open_engine("onnxruntime", other, size=64)


class Delayed:
    """An engine that gives what it is told to, after a while."""

    def __init__(self, family: Family, model: LabelModel, seconds: float, error: float = 0.0) -> None:
        self.family, self.model, self.seconds, self.error = family, model, seconds, error

    def __call__(self, images: np.ndarray) -> np.ndarray:
        time.sleep(self.seconds)
        return TorchEngine(self.model)(images) + np.float32(self.error)


@pytest.fixture
def fake(model: LabelModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """onnxruntime is faster than torch and right, openvino faster still and wrong; gives a list of the conversions."""
    converted: list[str] = []
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path))

    def convert(module: Any, family: Family, folder: Path, **_: Any) -> Path:
        converted.append(family)
        (folder / choose.FILES[family]).write_text(family)
        return folder / choose.FILES[family]

    def open_file(path: Path, family: Family) -> Engine:
        right = family == "onnxruntime"
        return Delayed(family, model, 0.03) if right else Delayed(family, model, 0.0, error=0.01)

    monkeypatch.setattr(choose, "convert", convert)
    monkeypatch.setattr(choose, "open_file", open_file)
    monkeypatch.setattr(choose, "_torch_engine", lambda module: Delayed("torch", model, 0.2))
    return converted


def test_auto_takes_the_fastest_that_agrees_and_remembers_it(model: LabelModel, fake: list[str]) -> None:
    said: list[str] = []
    engine = open_engine("auto", model, size=64, images=500, batch_size=2, say=said.append)
    assert engine.family == "onnxruntime"
    assert fake == ["onnxruntime"]
    assert "engine onnxruntime: the fastest here" in said[-1]
    assert "without openvino: engine openvino gives different outputs" in said[-1]
    said.clear()
    again = open_engine("auto", model, size=64, images=3, batch_size=2, say=said.append)  # few, but it is known now
    assert again.family == "onnxruntime"
    assert fake == ["onnxruntime"]
    assert len(said) == 1


def test_auto_does_not_measure_for_a_few_images(model: LabelModel, fake: list[str]) -> None:
    said: list[str] = []
    engine = open_engine("auto", model, size=64, images=499, say=said.append)
    assert isinstance(engine, TorchEngine)
    assert engine.module is model
    assert fake == []
    assert said == []


def test_another_machine_measures_again(model: LabelModel, fake: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    open_engine("auto", model, size=64, images=500, batch_size=2)
    monkeypatch.setattr(choose, "processor", lambda: "another one")
    said: list[str] = []
    assert open_engine("auto", model, size=64, images=1, batch_size=2, say=said.append).family == "torch"
    assert open_engine("auto", model, size=64, images=900, batch_size=2, say=said.append).family == "onnxruntime"
    assert fake == ["onnxruntime"]  # the converted network is good for all


def test_a_memory_that_cannot_be_read_is_measured_again(model: LabelModel, fake: list[str], tmp_path: Path) -> None:
    open_engine("auto", model, size=64, images=500, batch_size=2)
    (choice,) = tmp_path.glob("engines/*/choice-*.json")
    assert json.loads(choice.read_text())["family"] == "onnxruntime"
    for damage in ("", "{", '{"family": "gpu"}', "[]"):
        choice.write_text(damage)
        assert open_engine("auto", model, size=64, images=500, batch_size=2).family == "onnxruntime"


@pytest.mark.parametrize(
    ("others", "days", "again"), [(0.7, 2, True), (None, 2, False), (0.05, 900, False), (0.7, 0, False)]
)
def test_what_was_measured_beside_other_work_is_measured_again(
    model: LabelModel, fake: list[str], tmp_path: Path, others: float | None, days: int, again: bool
) -> None:
    open_engine("auto", model, size=64, images=500, batch_size=2)
    (file,) = tmp_path.glob("engines/*/choice-*.json")
    measured = json.loads(file.read_text())
    assert measured["measured"] == pytest.approx(time.time(), abs=60)
    old = {**measured, "family": "torch", "others": others, "measured": time.time() - days * 86_400}
    file.write_text(json.dumps(old))
    said: list[str] = []
    few = open_engine("auto", model, size=64, images=1, batch_size=2, say=said.append)
    assert (few.family, len(said)) == ("torch", 1)  # a doubtful answer is better than none
    many = open_engine("auto", model, size=64, images=500, batch_size=2, say=said.append)
    assert many.family == ("onnxruntime" if again else "torch")
    assert ("the machine was busy the last time" in "".join(said)) is again


def test_the_work_of_other_processes_is_noticed() -> None:
    script = "import time; end = time.monotonic() + 1\nwhile time.monotonic() < end: pass"
    with work_of_others() as others, subprocess.Popen([sys.executable, "-c", script]) as other:
        other.wait()
    assert others() is None or others() > 0.3 / os.cpu_count()


def test_what_is_far_too_slow_is_called_twice_but_a_slow_start_is_forgiven() -> None:
    calls: list[str] = []
    seconds = {"slow": (0.2, 0.2), "slow start": (0.2, 0.01), "fast": (0.01, 0.01)}  # the first call, and later ones

    def run(name: str) -> None:
        calls.append(name)
        time.sleep(seconds[name][calls.count(name) > 1])

    times = in_turns({name: partial(run, name) for name in seconds}, seconds=0, rounds=3, hopeless=3.0)
    assert Counter(calls) == {"slow": 2, "slow start": 4, "fast": 4}
    assert times["slow"].best > 100 > times["slow start"].best


def test_an_engine_that_disagrees_is_refused_by_name(model: LabelModel, fake: list[str]) -> None:
    with pytest.raises(LabelwiseError, match=r"openvino gives different outputs .*by"):
        open_engine("openvino", model, size=64)


def test_differences_are_relative_to_the_largest_output_and_nan_is_infinite() -> None:
    big = np.float32([[1000.0, 0.0]])
    assert relative_difference(big + np.float32(0.05), big) == pytest.approx(5e-5, rel=0.1)
    assert relative_difference(np.float32([[0.1]]), np.float32([[0.0]])) == pytest.approx(0.1)
    assert relative_difference(np.float32([[np.nan]]), np.float32([[0.0]])) == float("inf")
    with pytest.raises(LabelwiseError, match=r"\[1, 2\] where the model gives \[1, 1\]"):
        relative_difference(big, np.float32([[0.0]]))


def test_the_number_of_threads_follows_openmps_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert thread_count() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert thread_count() >= 1


def test_features_of_an_engine_are_close_and_in_a_store_of_their_own(model: LabelModel, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    table = make_sample(tmp_path / "sample", images=6, size=40)
    options = {"folder": tmp_path / "cache", "batch_size": 4, "workers": 0, "progress": False}

    def build(rows: list[int], engine: str) -> FeatureCache:
        preprocessing = model.config.preprocessing
        return FeatureCache.build(table.select(rows), model.backbone, preprocessing, engine=engine, **options)  # type: ignore[arg-type]

    everything = list(range(6))
    torch_maps = build(everything, "torch").batch(np.arange(6))
    assert len(list((tmp_path / "cache").iterdir())) == 1
    build([0, 3, 5], "onnxruntime")  # interrupted, so to say
    pieces = build(everything, "onnxruntime").batch(np.arange(6))
    about = [json.loads(file.read_text()).get("engine") for file in (tmp_path / "cache").glob("*/about.json")]
    assert sorted(about, key=str) == [None, "onnxruntime"]
    torch.testing.assert_close(pieces, torch_maps, rtol=2e-3, atol=1e-4)  # both are stored in half precision
    in_one_go = FeatureCache.build(
        table,
        model.backbone,
        model.config.preprocessing,
        engine="onnxruntime",
        **{**options, "folder": tmp_path / "other"},  # type: ignore[arg-type]
    )
    assert torch.equal(in_one_go.batch(np.arange(6), True), build(everything, "onnxruntime").batch(np.arange(6), True))


def test_evaluation_takes_the_engine_that_computed_the_features(
    model: LabelModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(choose, "FAMILIES", ("onnxruntime",))  # the fastest for such a small network may be PyTorch
    monkeypatch.setattr(choose, "WORTH_MEASURING", 3)
    table = make_sample(tmp_path / "sample", images=3, size=40)
    FeatureCache.build(table, model.backbone, model.config.preprocessing, engine="auto", batch_size=2, progress=False)
    said: list[str] = []
    engine = engine_for(model, "auto", images=3, batch_size=2, say=said.append)
    assert engine is not None
    assert engine.family == "onnxruntime"
    assert ["measuring" in line for line in said] == [False]  # it is known from the features
    found, expected = (predict_logits(model, table, batch_size=2, engine=one) for one in (engine, None))
    np.testing.assert_allclose(found.logits, expected.logits, atol=1e-5)
    np.testing.assert_allclose(engine(noise(5)), model.logits(noise(5)), atol=1e-5)  # more than a batch
    training = small_model().train()
    assert engine_for(training, "auto", images=3, batch_size=2) is not None
    assert training.training
    assert all(map(torch.equal, training.buffers(), model.buffers()))  # no batch norm has learned from noise


def test_auto_goes_on_with_the_store_that_was_begun(
    model: LabelModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    table = make_sample(tmp_path / "sample", images=4, size=40)
    parts = (model.backbone, model.config.preprocessing)
    options: dict[str, Any] = {"folder": tmp_path / "cache", "batch_size": 4, "workers": 0, "progress": False}
    FeatureCache.build(table.select([0, 1]), *parts, engine="onnxruntime", **options)
    FeatureCache.build(table, *parts, engine="auto", **options)  # half of it is there
    assert len(list((tmp_path / "cache").iterdir())) == 1
    asked: list[str] = []

    def opened(name: str, *arguments: Any, **keywords: Any) -> Engine:
        asked.append(name)
        return open_engine(name, *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr("labelwise.features.cache.open_engine", opened)
    FeatureCache.build(table, *parts, engine="auto", **options)
    assert asked == []  # complete: nothing is opened
    other = small_model(1)
    engines: dict[EngineName, Engine] = {}
    for part in ([0, 1], [2, 3]):
        FeatureCache.build(table.select(part), other.backbone, parts[1], engine="auto", engines=engines, **options)
    assert asked == ["auto"]  # nothing there, and too little to measure; opened once for both tables
    assert engines.keys() == {"auto", "torch"}
