"""`labelwise serve`: models over HTTP, with a drag-and-drop web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

import labelwise as lw
from labelwise.cli.common import FileName, Repeated, described_by
from labelwise.core.errors import LabelwiseError


@described_by("server.settings:ServeSettings", "api.deployment:serve")
def serve(
    models: Annotated[list[FileName] | None, Parameter(negative=())] = None,
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    allow_host: Annotated[tuple[str, ...], Repeated] = (),
    engine: Literal["auto", "torch", "onnxruntime", "openvino"] = "auto",
    workers: int = 1,
    batch_size: int = 32,
    max_wait: float = 10.0,
    max_bytes: int = 64_000_000,
    max_pixels: int | None = None,
    max_files: int = 32,
    timeout: float = 60.0,
    queue: int = 256,
    max_connections: int = 1000,
    api_key_file: Path | None = None,
    access_log: bool = False,
) -> None:
    """Serve models over HTTP, with a drag-and-drop web page.

    Ctrl-C or SIGTERM stops it; requests that were accepted are answered first.

    Parameters
    ----------
    models
        Runs, model folders, exported models or hub ids, also as NAME=PATH. Default: the bundled tagger.
    api_key_file
        A file with the key that requests must send. Default: LABELWISE_API_KEY of the environment, if set.
    """
    options = {name: value for name, value in locals().items() if name != "api_key_file" and value is not None}
    lw.serve(**options, api_key=_key(api_key_file))


def _key(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        key = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise LabelwiseError(
            f"the API key in {file} is not text; use a long random one of letters and digits"
        ) from None
    if not key.strip():
        raise LabelwiseError(f"the API key in {file} is empty; write a long random one into it")
    return key
