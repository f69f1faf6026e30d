"""`labelwise serve`: models over HTTP, with a page to drop photos on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from labelwise.core.errors import LabelwiseError, missing_extra


def serve(
    models: Annotated[list[str] | None, Parameter(negative=())] = None,
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    engine: Literal["auto", "torch", "onnxruntime", "openvino"] = "auto",
    workers: int = 1,
    batch_size: int = 32,
    max_wait: float = 10.0,
    max_bytes: int = 32_000_000,
    max_pixels: int = 50_000_000,
    max_files: int = 32,
    timeout: float = 60.0,
    queue: int = 256,
    api_key_file: Path | None = None,
    access_log: bool = False,
) -> None:
    """Answer over HTTP: labels of pictures, where the model looked, and a page for people.

    Ctrl-C or SIGTERM stops it: what was accepted is answered first.

    Parameters
    ----------
    models
        Run folders, model folders, exported models or hub ids, also as NAME=PATH; the first one is the default.
        Without any, the bundled tagger.
    host
        The address to listen on; other machines reach it with 0.0.0.0. Set a key, then.
    port
        0 takes a free one.
    engine
        What runs the models. auto: an exported model's own; of others the fastest, measured at the first start.
    workers
        Processes that hold the models, each with its share of the cores. One is the most efficient: it uses all cores.
        With two, one goes on while the other is restarted.
    batch_size
        Pictures of several requests that go through a model at once, at most.
    max_wait
        Milliseconds that a picture waits for others that are being decoded, to share a batch with them.
    max_bytes
        Of a request. More is refused with status 413.
    max_pixels
        Of a picture, by its header. More is refused with status 413 before anything is decoded.
    max_files
        Pictures in one request. More are refused with status 413.
    timeout
        Seconds after which a picture that has no answer yet is refused with status 503.
    queue
        Pictures that are accepted and not answered yet. More are refused with status 429.
    api_key_file
        A file that holds a key, which requests must send then; or set LABELWISE_API_KEY.
    access_log
        Also write a line for each request.
    """
    from labelwise.server.settings import ServeSettings, parse_models

    values: dict[str, Any] = {
        "models": _bundled() if not models else parse_models(models),
        "engine": engine,
        "workers": workers,
        "batch_size": batch_size,
        "max_wait": max_wait,
        "max_bytes": max_bytes,
        "max_pixels": max_pixels,
        "max_files": max_files,
        "timeout": timeout,
        "queue": queue,
    }
    settings = ServeSettings.parse(values, "serve")
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise missing_extra(error.name or "fastapi", "serve") from None
    from labelwise.server.run import run_server

    run_server(settings, host=host, port=port, key=_key(api_key_file), access_log=access_log)


def _bundled() -> Any:
    from labelwise.bundled import default_model
    from labelwise.server.settings import ModelSource

    return (ModelSource(name=default_model().name, source=str(default_model())),)


def _key(file: Path | None) -> str | None:
    """The key to ask for; None if there is none."""
    from labelwise.server.settings import KEY_VARIABLE

    try:
        key = os.environ.get(KEY_VARIABLE) if file is None else file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise LabelwiseError(
            f"the API key in {file} is not text; write a long random one of letters and digits"
        ) from None
    if key is not None and not key.strip():
        raise LabelwiseError(
            f"the API key in {file or KEY_VARIABLE} is empty; write a long random one, or leave it out"
        )
    return key and key.strip()
