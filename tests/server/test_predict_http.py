"""What the server answers is what `Tagger.predict` says, in every way to ask."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from labelwise.runtime.tagger import Tagger
from serving_kit import RunningServer


def expected(tagger: Tagger, path: str) -> dict[str, Any]:
    (prediction,) = tagger.predict(path)
    labels = dict(zip(prediction.labels, prediction.scores, strict=True))
    return {"labels": labels, "all_scores": prediction.all_scores}


def agree(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(
        list(found[part]) == list(wanted[part]) and found[part] == pytest.approx(wanted[part], abs=1e-5)
        for part in ("labels", "all_scores")
    )


def test_a_raw_body_and_a_form_give_what_predict_gives(
    tiny_server: RunningServer, tiny_tagger: Tagger, photos: list[str]
) -> None:
    for path in photos[:4]:
        answer = tiny_server.client.post("/predict?all_scores=true", content=Path(path).read_bytes()).json()
        assert answer["model"] == "tiny"
        (found,) = answer["predictions"]
        assert found["image"] is None
        assert agree(found, expected(tiny_tagger, path))
    files = [("files", (Path(path).name, Path(path).read_bytes())) for path in photos[:6]]
    answer = tiny_server.client.post("/models/second/predict?all_scores=true", files=files).json()
    assert answer["model"] == "second"
    assert [found["image"] for found in answer["predictions"]] == [Path(path).name for path in photos[:6]]
    for found, path in zip(answer["predictions"], photos, strict=False):
        assert agree(found, expected(tiny_tagger, path))


def test_top_and_threshold_choose_as_on_the_command_line(
    tiny_server: RunningServer, tiny_tagger: Tagger, photos: list[str]
) -> None:
    body = Path(photos[0]).read_bytes()
    scores = expected(tiny_tagger, photos[0])["all_scores"]
    middle = sorted(scores.values())[2]

    def ask(query: str) -> dict[str, float]:
        (found,) = tiny_server.client.post(f"/predict?{query}", content=body).json()["predictions"]
        assert "all_scores" not in found
        labels: dict[str, float] = found["labels"]
        return labels

    assert ask("top=2") == pytest.approx(dict(list(scores.items())[:2]), abs=1e-5)
    assert list(ask(f"threshold={middle - 1e-4}")) == [label for label, score in scores.items() if score >= middle]
    assert list(ask(f"threshold={middle - 1e-4}&top=1")) == list(scores)[:1]
    assert ask("threshold=1") == {}
    assert list(ask(f"top={10**20}")) == list(scores)


def test_concurrent_requests_share_batches_and_stay_apart(
    tiny_server: RunningServer, tiny_tagger: Tagger, photos: list[str]
) -> None:
    wanted = {path: expected(tiny_tagger, path) for path in photos}
    batches, pictures = (tiny_server.metric(f"labelwise_batch_size_{kind}") for kind in ("count", "sum"))

    def ask(path: str) -> bool:
        answer = tiny_server.client.post("/predict?all_scores=true", content=Path(path).read_bytes())
        return agree(answer.json()["predictions"][0], wanted[path])

    with ThreadPoolExecutor(12) as clients:
        assert all(clients.map(ask, photos * 5))
    batches = tiny_server.metric("labelwise_batch_size_count") - batches
    assert tiny_server.metric("labelwise_batch_size_sum") - pictures == 60
    assert batches < 60


def test_a_form_tells_which_pictures_cannot_be_used(tiny_server: RunningServer, photos: list[str]) -> None:
    good = Path(photos[0]).read_bytes()
    files = [("files", ("good.jpg", good)), ("files", ("cut.jpg", good[:300])), ("files", ("note.txt", b"hello"))]
    answer = tiny_server.client.post("/predict", files=files)
    assert answer.status_code == 200
    whole, cut, note = answer.json()["predictions"]
    assert whole["labels"] is not None
    assert (cut["image"], note["image"]) == ("cut.jpg", "note.txt")
    assert "truncated" in cut["error"]
    assert "not an image" in note["error"]
    assert "labels" not in note
    answer = tiny_server.client.post("/predict", files=files[1:])
    assert answer.status_code == 422
    assert "cannot be decoded" in answer.json()["error"]


def test_the_state_is_told(tiny_server: RunningServer) -> None:
    assert tiny_server.client.get("/health").json() == {"status": "alive"}
    assert tiny_server.client.get("/ready").json() == {"status": "ready"}
    assert [tiny_server.client.head(path).status_code for path in ("/health", "/ready", "/models")] == [200, 200, 405]
    first, second = tiny_server.client.get("/models").json()["models"]
    assert (first["name"], first["default"], second["name"], second["default"]) == ("tiny", True, "second", False)
    assert first["labels"] == ["boat", "car", "cat", "dog", "sun"]
    assert first["thresholds"]["cat"] == 0.6
    assert (first["words"], first["attention"], first["experts"], first["explain"]) == (False,) * 4
    assert tiny_server.address.startswith("http://127.0.0.1:")
    before = tiny_server.metric("labelwise_requests_total")
    tiny_server.client.get("/health")
    assert tiny_server.metric("labelwise_requests_total") == before + 2  # /metrics itself is one
    assert tiny_server.metric("labelwise_queue_length") == 0
    assert tiny_server.metric("labelwise_workers_ready") == 1


def test_pages_and_the_description_are_served(tiny_server: RunningServer) -> None:
    description = tiny_server.client.get("/openapi.json").json()
    assert {"/predict", "/models/{name}/predict", "/explain", "/models", "/health"} <= set(description["paths"])
    body = description["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert {"multipart/form-data", "application/octet-stream", "image/*"} == set(body)
    page = tiny_server.client.get("/docs")
    assert "text/html" in page.headers["content-type"]
    assert "http" not in page.text  # nothing is loaded from elsewhere
    assert json.loads(tiny_server.client.get("/explain").text)["error"]
