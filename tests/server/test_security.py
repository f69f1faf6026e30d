"""Keys, names, folders that are not what they seem: what a stranger may try."""

from __future__ import annotations

import hmac
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from labelwise.core.errors import LabelwiseError
from labelwise.server.run import _bind
from labelwise.server.settings import parse_models
from serving_kit import RunningServer, command, running
from tests import fork_server

KEY = "a long random key: ключ"


def test_the_key_is_asked_for_everywhere_but_for_the_state_and_the_page(
    tiny: Path, photos: list[str], tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n", encoding="utf-8")
    body = Path(photos[0]).read_bytes()
    with running(tiny, f"--api-key-file={tmp_path / 'key'}", "--access-log") as server:
        client = server.client
        for path in ("/health", "/ready", "/", "/docs", "/docs.js"):
            assert client.get(path).status_code == 200
        for path in ("/models", "/metrics", "/openapi.json", "/nothing"):
            assert client.get(path).status_code == 401
        for given in ({}, {"X-API-Key": KEY[:-1].encode()}, {"X-API-Key": b""}, {"Authorization": b"Basic abc"}):
            answer = client.post("/predict", content=body, headers=given)
            assert answer.status_code == 401
            assert "X-API-Key" in answer.json()["error"]
        for given in ({"X-API-Key": KEY.encode()}, {"Authorization": f"Bearer {KEY}".encode()}):
            assert client.post("/predict", content=body, headers=given).status_code == 200
            assert client.get("/models", headers=given).status_code == 200
        client.get("/a%0Aforged%20line")
        assert KEY not in "".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in server.workers())
        assert server.stop() == 0
        log = [line.rpartition(" ")[0].rpartition(" ")[0] for line in server.said[1:]]  # without the milliseconds
        assert {"GET /models 401", "GET /models 200", "POST /predict 200", "GET /a%0Aforged%20line 401"} <= set(log)


def test_a_key_of_the_environment_stays_with_the_front(tiny: Path) -> None:
    with running(tiny, LABELWISE_API_KEY=" secret-key \n") as server:
        assert server.client.get("/models").status_code == 401
        assert server.client.get("/models", headers={"X-API-Key": "secret-key"}).status_code == 200
        (worker,) = server.workers()
        assert b"secret-key" not in Path(f"/proc/{worker}/environ").read_bytes()


def test_the_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from labelwise.server.middleware import AccessMiddleware, Metrics

    compared = []
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or False)
    seen = []

    async def send(message: Any) -> None:
        seen.append(message)

    gate = AccessMiddleware(lambda *_: None, key="right", open_paths=(), metrics=Metrics())  # type: ignore[arg-type, return-value]
    scope = {"type": "http", "path": "/models", "headers": [(b"x-api-key", b"right")]}
    asyncio.run(gate(scope, None, send))  # type: ignore[arg-type]
    assert compared == [(b"right", b"right")]
    assert seen[0]["status"] == 401  # nothing but compare_digest decides


@pytest.mark.parametrize(
    "path",
    [
        "/models/../../etc/passwd/predict",
        "/models/..%2f..%2fetc%2fpasswd/predict",
        "/models/%2e%2e/predict",
        "/models/tiny%00/predict",
        "/models/" + "x" * 5000 + "/predict",
        "/models/%F0%9F%90%95/predict",
    ],
)
def test_names_lead_nowhere_else(tiny_server: RunningServer, photos: list[str], path: str) -> None:
    answer = tiny_server.client.post(path, content=Path(photos[0]).read_bytes())
    assert answer.status_code == 404
    assert answer.json()["error"]


@pytest.mark.parametrize("path", ["/../settings.py", "/..%2fsettings.py", "/page/../../settings.py", "//etc/passwd"])
def test_no_file_but_those_of_the_page_is_served(tiny_server: RunningServer, path: str) -> None:
    answer = tiny_server.client.get(tiny_server.address + path)
    assert answer.status_code == 404
    assert "ModelSource" not in answer.text


@pytest.mark.parametrize("argument", ["../evil=runs/a", "a/b=runs/a", ".hidden=runs/a", "=runs/a", "a b=runs/a", "a="])
def test_names_of_models_are_plain(argument: str) -> None:
    with pytest.raises(LabelwiseError, match=r"valid model name|has no path"):
        parse_models([argument])


def test_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(LabelwiseError, match="two models are called 'first'"):
        parse_models(["runs/first", "old/first"])


def fails(*arguments: object) -> str:
    done = fork_server.run(*command(*arguments))
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("loading ")]
    assert line.startswith("error: ")
    return line


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.target,))


def test_a_pickle_dressed_as_a_model_is_refused(tmp_path: Path, tiny: Path) -> None:
    ran = tmp_path / "ran"
    payload = pickle.dumps(Evil(ran))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text((tiny / "config.json").read_text())
    (folder / "model.onnx").write_bytes(payload)
    assert "cannot be run" in fails(folder)
    as_torch = json.loads((tiny / "config.json").read_text())
    as_torch["export"]["kind"] = "torch"
    (folder / "config.json").write_text(json.dumps(as_torch))
    (folder / "model.pt2").write_bytes(payload)
    assert "can run code" in fails(folder)
    assert not ran.exists()


def test_broken_folders_are_told(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker tells the front, which makes it the one line above."""
    from labelwise.server.models import ModelStore
    from labelwise.server.settings import ServeSettings

    def refused(folder: Path) -> str:
        with pytest.raises(LabelwiseError) as caught:
            ModelStore(ServeSettings(models=parse_models([str(folder)])), lambda text: None)
        return str(caught.value)

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "no model" in refused(tmp_path / "nowhere" / "at" / "all")
    half = tmp_path / "half"
    half.mkdir()
    (half / "config.json").write_text((tiny / "config.json").read_text()[:100])
    assert "damaged" in refused(half)


def test_settings_that_make_no_sense_are_one_line(tmp_path: Path, tiny: Path) -> None:
    assert "never fit into a queue of 4" in fails(tiny, "--queue=4")
    assert "cannot listen" in fails(tiny, "--host=192.0.2.1")
    assert "without scheme, port" in fails(tiny, "--allow-host=https://tags.example.org")
    assert "without scheme, port" in fails(tiny, "--allow-host=tags.example.org:8443")
    (tmp_path / "empty").write_text("\n")
    assert "empty" in fails(tiny, f"--api-key-file={tmp_path / 'empty'}")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "not text" in fails(tiny, f"--api-key-file={tmp_path / 'binary'}")
    with pytest.raises(LabelwiseError, match=r"cannot listen on 127\.0\.0\.1:99999"):
        _bind("127.0.0.1", 99999)
