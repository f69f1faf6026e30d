"""`labelwise predict --engine` and `--labels`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labelwise.cli.predict import predict
from labelwise.core.arrays import Floats
from labelwise.core.errors import LabelwiseError
from labelwise.data.sample import make_sample
from labelwise.model.model import create_model

LABELS = ("boat", "car", "hot dog", "sun")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("engines")
    make_sample(root / "sample", images=10, size=48)
    torch.manual_seed(0)
    create_model("test_resnet", "hsq", LABELS, weights="none", size=32, dim=16).save(root / "run")
    vectors = torch.randn(len(LABELS), 12)
    options: dict[str, Any] = {"queries": "words", "classifier": "shared", "dim": 16, "groups": None}
    create_model("test_resnet", "ml-decoder", LABELS, weights="none", size=32, word_vectors=vectors, **options).save(
        root / "words"
    )
    return root


def test_the_engine_asked_for_runs_the_model_and_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Constant:
        family = "onnxruntime"

        def __call__(self, images: Floats, known: Floats | None = None) -> Floats:
            return np.full((len(images), len(LABELS)), 2.0, np.float32)

    asked: list[tuple[str, int, int]] = []

    def open_engine(name: str, model: object, *, images: int, batch_size: int, say: Any, **_: object) -> Constant:
        asked.append((name, images, batch_size))
        say("chosen")
        return Constant()

    monkeypatch.setattr("labelwise.engines.choose.open_engine", open_engine)
    predict(str(folder / "run"), str(folder / "sample"), engine="onnxruntime", batch_size=4)
    said = capsys.readouterr()
    assert asked == [("onnxruntime", 10, 4)]
    assert "chosen" in said.err
    assert said.out.count("boat 0.88") == 10


def test_torch_gives_the_same_optimised_or_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict(str(folder / "run"), str(folder / "sample"), top=4)
    few = capsys.readouterr()
    predict(str(folder / "run"), str(folder / "sample"), top=4, engine="torch")
    optimised = capsys.readouterr()
    assert optimised.err == ""
    assert optimised.out == few.out


def test_other_labels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = folder / "sample" / "images" / "00000.jpg"
    predict(str(folder / "words"), str(image), top=9)
    everything = capsys.readouterr().out
    predict(str(folder / "words"), str(image), top=9, labels="sun, boat,")
    said = capsys.readouterr().out
    assert "car" not in said.replace(str(image), "")
    for name in ("sun", "boat"):
        score = everything.partition(f"{name} ")[2][:4]
        assert f"{name} {score}" in said  # each label has its own query: the others do not matter
    with pytest.raises(LabelwiseError, match="word"):
        predict(str(folder / "run"), str(image), labels="sun, boat")
