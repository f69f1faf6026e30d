"""Strangers' and damaged models, edited checkpoints: no file is opened, no code runs, no memory is taken."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import labelwise as lw
from labelwise.core.errors import LabelwiseError
from labelwise.data.sample import make_sample
from labelwise.model.folder import read_folder
from labelwise.runtime import sessions
from labelwise.training import load_recipe
from labelwise.training.checkpoint import read_checkpoint
from labelwise.training.loop import Trainer
from labelwise.training.run import Run
from labelwise.words import WordsConfig
from tests import fork_server

pytestmark = pytest.mark.attack

SECRET = "the-secret-of-this-machine"


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.fixture
def words_model(tmp_path: Path) -> Path:
    """A model that takes new labels, whose vectors come from a file."""
    (tmp_path / "words.txt").write_text("cat 1 0\ndog 0 1\n")
    options = {"queries": "words", "classifier": "shared", "dim": 16, "attention_heads": 2}
    source = WordsConfig(source=str(tmp_path / "words.txt"))
    labels = ["cat", "dog"]
    lw.create_model("test_resnet", "ml-decoder", labels, weights="none", size=32, words=source, **options).save(
        tmp_path / "model"
    )
    return tmp_path / "model"


# ---- What a config may name


def test_a_config_holds_values_and_opens_no_file(words_model: Path, tmp_path: Path) -> None:
    readable, other = tmp_path / "phrases.yaml", tmp_path / "key.txt"
    readable.write_text(f"cat: [{SECRET}]\n")
    other.write_text(f"-----BEGIN {SECRET}\n\t: [")
    for file in (readable, other):
        edit(words_model / "config.json", lambda content: content["words"].update(phrases=str(file)))  # noqa: B023
        with pytest.raises(LabelwiseError) as told:
            lw.load_model(words_model)
        assert "phrases" in str(told.value)
        assert SECRET not in str(told.value)


@pytest.mark.parametrize("key", ["model.words.phrases", "data.labels", "data.unseen", "loss.options.prior"])
def test_nor_does_the_recipe_of_a_run(key: str, words_model: Path, tmp_path: Path) -> None:
    """A user's own recipe may name files; the run that was made with it holds what was in them."""
    secret = tmp_path / "secret.yaml"
    secret.write_text(f"cat: [{SECRET}]\n" if "phrases" in key else "0.5\n0.5\n" if "prior" in key else SECRET)
    changes = {"loss.name": "csl"} if "prior" in key else {"model.words.source": "x"}
    mine = load_recipe(None, changes | {key: str(secret)})
    assert str(secret) not in str(mine)
    run = tmp_path / "run"
    shutil.copytree(words_model, run / "model")
    values = mine.model_dump(mode="json")
    (run / "recipe.yaml").write_text(yaml.safe_dump(values))
    assert Run(run).recipe == mine
    *parents, last = key.split(".")
    inner = values
    for part in parents:
        inner = inner[part]
    inner[last] = str(secret)
    (run / "recipe.yaml").write_text(yaml.safe_dump(values))
    if key == "loss.options.prior":  # it may be any value; the loss refuses a text
        recipe = Run(run).recipe
        assert recipe is not None
        assert recipe.loss.options["prior"] == str(secret)
        return
    with pytest.raises(LabelwiseError, match=last) as told:
        Run(run)
    assert SECRET not in str(told.value)


@pytest.mark.slow  # transformers takes seconds to load
def test_a_sentence_encoder_brings_no_code(words_model: Path, tmp_path: Path, labelwise: fork_server.Command) -> None:
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    names = {"AutoConfig": "code.Mine", "AutoModel": "code.Mine", "AutoTokenizer": ["code.Mine", None]}
    (encoder / "config.json").write_text(json.dumps({"model_type": "mine", "auto_map": names}))
    (encoder / "tokenizer_config.json").write_text(json.dumps({"auto_map": names, "tokenizer_class": "Mine"}))
    (encoder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Mine: pass\n")
    edit(words_model / "config.json", lambda content: content["words"].update(source=f"sentence:{encoder}"))
    make_sample(tmp_path / "sample", images=1, size=48)
    done = labelwise("predict", words_model, tmp_path / "sample", "--labels", "fox, cat", input="y\ny\ny\n")
    assert not (tmp_path / "ran").exists()
    assert done.returncode == 2, done.stdout
    assert done.stderr.splitlines()[-1].startswith("error: no sentence encoder")
    assert "Traceback" not in done.stderr


# ---- What a config may cost

COSTS = """
import json, resource, sys, time
from pathlib import Path
import labelwise as lw
from labelwise.core.errors import LabelwiseError
file = Path(sys.argv[1]) / "config.json"
plain, told = file.read_text(), []
lw.load_model(file.parent)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for part, changes in json.loads(sys.argv[2]):
    content = json.loads(plain)
    target = content
    for key in part:
        target = target[key]
    target.update(changes)
    file.write_text(json.dumps(content))
    started = time.process_time()
    try:
        lw.load_model(file.parent)
    except LabelwiseError as error:
        told.append([str(error), time.process_time() - started])
print(json.dumps([told, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024]))
"""


def test_a_small_folder_takes_little_memory(tmp_path: Path) -> None:
    lw.create_model("test_resnet", "hsq", 4, weights="none", size=32, dim=16, attention_heads=2, shared_experts=2).save(
        tmp_path / "model"
    )
    huge: list[tuple[list[str], dict[str, Any]]] = [
        (["head", "tokens"], {"dim": 65536}),
        (["head", "tokens"], {"dim": 2**62}),
        (["head", "tokens"], {"encoder_layers": 1_000_000}),
        (["head", "decoder"], {"decoder_layers": 1_000_000}),
        (["head", "decoder"], {"feedforward": 10**9}),
        (["head", "queries"], {"group_size": 10**12}),
        (["head", "queries"], {"group_size": 10**9, "keep_groups": True}),
        (["head", "experts"], {"shared_experts": 10**9}),
        (["head", "experts"], {"widths": [10**9]}),
        (["backbone"], {"name": "vit_giant_patch14_224", "size": 224}),
        (["backbone"], {"name": "vit_giant_patch14_224", "size": 224, "stage": 0}),
        ([], {"labels": [f"label {n}" for n in range(100_000)]}),
    ]
    done = fork_server.run("-c", COSTS, tmp_path / "model", json.dumps(huge))
    assert done.returncode == 0, done.stderr
    told, megabytes = json.loads(done.stdout)
    assert [(str(tmp_path / "model") in text, "\n" in text) for text, _ in told] == [(True, False)] * len(huge), told
    assert megabytes < 150
    assert max(seconds for _, seconds in told) < 10


# ---- Damage


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_no_flipped_bit_is_used_in_silence(words_model: Path) -> None:
    file = words_model / "model.safetensors"
    whole, (_, _, expected) = file.read_bytes(), read_folder(words_model)
    chosen = random.Random(0)
    header = 8 * (8 + int.from_bytes(whole[:8], "little"))
    bits = [chosen.randrange(header) for _ in range(60)] + [chosen.randrange(header, 8 * len(whole)) for _ in range(60)]
    for bit in bits:
        file.write_bytes(flipped(whole, bit))
        try:
            _, _, found = read_folder(words_model)
        except LabelwiseError:
            continue
        assert bit < header, "a weight changed, and nobody noticed"  # in the header, blanks mean nothing
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    file.write_bytes(flipped(whole, header + 1))
    with pytest.raises(LabelwiseError, match=r"model\.safetensors' is damaged \(its checksum is wrong\)"):
        lw.load_model(words_model)
    file.write_bytes(whole)
    save_file(load_file(file), file)  # as older versions wrote it, and other tools do: without a checksum
    lw.load_model(words_model)


# ---- Edited checkpoints and recipes


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped in its second epoch."""
    folder = tmp_path_factory.mktemp("stopped")
    make_sample(folder / "sample", images=40, size=48)
    settings = {"backbone": "test_resnet", "weights": "none", "size": 32, "batch_size": 8, "workers": 0, "epochs": 2}
    settings |= {"head": "gap", "freeze": "backbone", "ema": 0.9, "checkpoint_minutes": 1e-9}
    real = Trainer._step

    def step(self: Trainer, *batch: Any) -> float:
        if self.progress.step == 5:
            raise RuntimeError("power cut")
        return real(self, *batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_step", step)
        patch.setenv("LABELWISE_CACHE", str(folder / "cache"))
        with pytest.raises(RuntimeError, match="power cut"):
            lw.train(folder / "sample" / "labels.csv", out=folder / "run", **settings)
    return folder / "run"


def test_an_edited_checkpoint_is_told_in_one_line(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABELWISE_CACHE", str(stopped.parent / "cache"))
    shutil.copytree(stopped, tmp_path / "run")
    file = tmp_path / "run" / "checkpoints" / "last.safetensors"
    tensors, state = read_checkpoint(file)
    with safe_open(file, "pt") as opened:
        assert "crc32" in opened.metadata()
    row = state["history"][0]
    states: list[Any] = [[], {}, {**state, "step": "x"}, {**state, "step": -1}, {**state, "step": 10**30}]
    states += [{**state, "history": value} for value in ("x", [1], [{}], [{**row, "epoch": "x"}], [row] * 9)]
    states += [{**state, "best_epoch": 10**30}, {**state, "best_score": "x"}]
    states += [{key: value for key, value in state.items() if key != gone} for gone in ("data", "steps")]
    edits: list[tuple[str, dict[str, torch.Tensor]]] = [(json.dumps(value), tensors) for value in states]
    edits += [("{", tensors), ("[" * 100_000, tensors)]
    for part in ("module.", "averaged.module.", "optimizer."):
        names = [name for name in tensors if name.startswith(part)]
        edits.append((json.dumps(state), tensors | {name: torch.zeros(3, 5) for name in names}))
        edits.append((json.dumps(state), tensors | {f"{part}nothing/x": torch.zeros(1)}))
    edits.append((json.dumps(state), {name: tensors[name] for name in tensors if not name.startswith("module.")}))
    for text, changed in edits:
        save_file(changed, file, metadata={"state": text})
        with pytest.raises(LabelwiseError, match=r"is damaged|has changed") as told:
            lw.train(out=tmp_path / "run", resume=True)
        assert len(str(told.value)) < 1000
    save_file(tensors, file, metadata={"state": json.dumps(state)})  # without a checksum, as older versions wrote it
    assert len(lw.train(out=tmp_path / "run", resume=True).history) == 2


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{a: " * 20_000,
        "loss: {options: {a: " + "[" * 300 + "]" * 300 + "}}",
        "a: &a [1]\nb: *a",
        "loss: {options: &o {a: *o}}",
        "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*{'a' if not n else f'b{n - 1}'}, *a]\n" for n in range(50)),
        "!!python/object/apply:os.system ['true']",
        "epochs: " + "9" * 5000,
        "model: {options: {dim: {a: {b: {c: {d: {e: {f: 1}}}}}}}}",
        "? [a]\n: 1",
        "a: \x00",
    ],
)
def test_a_hostile_recipe_is_told_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(LabelwiseError) as told:
        lw.train("photos.csv", out=tmp_path / "run", recipe=tmp_path / "recipe.yaml")
    assert len(str(told.value)) < 1000
    assert "\n" not in str(told.value)


# ---- A network that does not end


def test_a_loop_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = pytest.importorskip("onnx", reason="needs the package onnx")
    pytest.importorskip("onnxruntime", reason="needs the package onnxruntime")
    make, kinds = onnx.helper, onnx.TensorProto

    def value(name: str, kind: int, shape: list[int]) -> Any:
        return make.make_tensor_value_info(name, kind, shape)

    again = [make.make_node("Identity", ["go"], ["go_on"]), make.make_node("Add", ["x", "one"], ["more"])]
    inputs = [value("n", kinds.INT64, []), value("go", kinds.BOOL, []), value("x", kinds.FLOAT, [1])]
    body = make.make_graph(again, "body", inputs, [value("go_on", kinds.BOOL, []), value("more", kinds.FLOAT, [1])])
    constants = [make.make_tensor("yes", kinds.BOOL, [], [True]), make.make_tensor("one", kinds.FLOAT, [1], [1.0])]
    loop = make.make_node("Loop", ["", "yes", "input"], ["out"], body=body)
    ends = [value("input", kinds.FLOAT, [1])], [value("out", kinds.FLOAT, [1])]
    model = make.make_model(make.make_graph([loop], "net", *ends, constants), opset_imports=[make.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, tmp_path / "model.onnx")
    monkeypatch.setattr(sessions, "TIME_LIMIT", 0.2)
    engine = sessions.OnnxEngine(tmp_path / "model.onnx")
    started = time.monotonic()
    with pytest.raises(LabelwiseError, match="a loop without end"):
        engine(np.zeros(1, np.float32))
    assert time.monotonic() - started < 10
