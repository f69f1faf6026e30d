"""A server that holds models with an inside: maps, experts, and other labels for a model that works on words."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labelwise.analysis.maps import maps_of
from labelwise.model.model import LabelModel, create_model, load_model
from labelwise.runtime.tagger import Tagger
from serving_kit import RunningServer, running

LABELS = ("boat", "car", "cat", "dog", "sun")
WORDS = ("dog", "harbour", "seagull", "sunset")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    small: dict[str, Any] = {"weights": "none", "size": 64}
    create_model("test_resnet", "hsq", LABELS, dim=16, shared_experts=3, **small).save(root / "hsq")
    create_model("test_resnet", "gap", LABELS, task="single-label", **small).save(root / "gap")
    (root / "words.txt").write_text("".join(f"{word} {n} {n % 2} {3 - n}\n" for n, word in enumerate(WORDS)))
    words: dict[str, Any] = {"words": str(root / "words.txt"), "queries": "words", "classifier": "shared"}
    create_model("test_resnet", "ml-decoder", WORDS[:2], dim=16, groups=None, **words, **small).save(root / "words")
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with running(folder / "hsq", folder / "gap", folder / "words", "--engine=torch", warm_workers=True) as server:
        yield server


def model(folder: Path, name: str) -> LabelModel:
    return load_model(folder / name)


def test_attention_and_experts(server: RunningServer, folder: Path, photos: list[str]) -> None:
    hsq = model(folder, "hsq")
    tagger = Tagger(hsq)
    body = Path(photos[0]).read_bytes()
    answer = server.client.post("/explain?labels=dog,car", content=body).json()
    (prediction,) = tagger.predict(photos[0])
    assert (answer["model"], answer["kind"]) == ("hsq", "attention")
    assert list(answer["maps"]) == ["dog", "car"]
    assert answer["labels"] == pytest.approx(prediction.all_scores, abs=1e-4)
    for label, found in answer["maps"].items():
        np.testing.assert_allclose(found, prediction.attention(label), atol=1e-4)
        assert np.sum(found) == pytest.approx(1, abs=1e-3)
    assert answer["experts"]["names"] == ["own", "shared 0", "shared 1", "shared 2"]
    inputs = torch.from_numpy(tagger.input(photos[0]))[None]
    with torch.inference_mode():
        details = hsq.details(inputs)
    gates = details.gates[-1][0][details.label_query]
    for label, weights in zip(LABELS, gates.tolist(), strict=True):
        assert answer["experts"]["weights"][label] == pytest.approx(weights, abs=1e-4)
    default = server.client.post("/explain", content=body).json()
    assert list(default["maps"]) == (prediction.labels or list(prediction.all_scores)[:1])


def test_grad_cam_for_a_head_without_attention(server: RunningServer, folder: Path, photos: list[str]) -> None:
    body = Path(photos[1]).read_bytes()
    answer = server.client.post("/models/gap/explain?labels=sun", content=body).json()
    assert (answer["kind"], answer["experts"]) == ("grad-cam", None)
    gap = model(folder, "gap")
    expected = maps_of(gap, Tagger(gap).predict(photos[1])[0].open_image(), ["sun"])["sun"]
    np.testing.assert_allclose(answer["maps"]["sun"], expected, atol=2e-3)


def test_labels_that_nobody_knows_and_too_many(server: RunningServer, photos: list[str]) -> None:
    body = Path(photos[0]).read_bytes()
    answer = server.client.post("/explain?labels=dogg", content=body)
    assert answer.status_code == 422
    assert "did you mean 'dog'?" in answer.json()["error"]
    many = ",".join(f"l{number}" for number in range(65))
    assert server.client.post(f"/explain?labels={many}", content=body).status_code == 422
    assert server.client.post("/explain", files=[("files", body)] * 2).status_code == 422
    assert server.client.post("/models/gap/predict?threshold=0.5", content=body).status_code == 422


def test_other_labels_by_request(server: RunningServer, folder: Path, photos: list[str]) -> None:
    words = model(folder, "words")
    about = {entry["name"]: entry for entry in server.client.get("/models").json()["models"]}
    assert (about["words"]["words"], about["hsq"]["words"]) == (True, False)
    assert (about["hsq"]["experts"], about["hsq"]["attention"], about["gap"]["attention"]) == (True, True, False)
    for labels in (["seagull", "sunset"], ["sunset"], ["harbour", "dog", "seagull"], ["seagull", "sunset"]):
        (expected,) = Tagger(words.with_labels(labels).eval()).predict(photos[0])
        url = f"/models/words/predict?all_scores=true&labels={', '.join(labels)}"
        (found,) = server.client.post(url, content=Path(photos[0]).read_bytes()).json()["predictions"]
        assert found["all_scores"] == pytest.approx(expected.all_scores, abs=1e-4)
    body = Path(photos[0]).read_bytes()
    answer = server.client.post("/models/words/predict?labels=spaceship", content=body)
    assert answer.status_code == 422
    assert "spaceship" in answer.json()["error"]
    explained = server.client.post("/models/words/explain?labels=sunset", content=body).json()
    assert set(explained["maps"]) == {"sunset"}


def test_a_pickle_in_place_of_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    """The worker of this one imports PyTorch, which could read pickles."""
    from labelwise.core.errors import LabelwiseError
    from labelwise.server.models import ModelStore
    from labelwise.server.settings import ServeSettings, parse_models

    target = tmp_path / "model"
    target.mkdir()
    (target / "config.json").write_text((folder / "hsq" / "config.json").read_text())
    (target / "model.safetensors").write_bytes(pickle.dumps({"weights": [1, 2, 3]}))
    settings = ServeSettings(models=parse_models([str(target)]))
    with pytest.raises(LabelwiseError, match="damaged"):
        ModelStore(settings, lambda text: None)
