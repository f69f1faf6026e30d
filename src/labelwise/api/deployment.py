"""`lw.export`, `lw.push` and `lw.serve`: a model for another engine, on the hub, or behind an HTTP address."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from labelwise.api.inputs import check_reader_options, model_path, open_model, open_table, require_choice
from labelwise.bundled import default_model
from labelwise.core.errors import LabelwiseError
from labelwise.data.images import OnBadImage
from labelwise.runtime.exported import ExportedModel, ExportFormat, check_target, find_export
from labelwise.runtime.sessions import EngineName

if TYPE_CHECKING:
    from labelwise.api.inputs import Data
    from labelwise.model.model import LabelModel
    from labelwise.server.settings import ModelSource
    from labelwise.training.run import Run


def export(
    model: str | Path | Run | LabelModel | None = None,
    *,
    out: str | Path,
    format: ExportFormat = "onnx",
    maps: bool = True,
    half: bool = False,
    int8: bool = False,
    calibration: Data | None = None,
    split: str | None = None,
    max_loss: float = 0.5,
    on_bad_image: OnBadImage = "error",
    overwrite: bool = False,
    say: Callable[[str], None] = lambda text: None,
    **reader: Any,
) -> ExportedModel:
    """Write a model as one file that runs without PyTorch, after comparing its outputs with the model's.

    Args:
        model: A run, a model folder, a hub id or a model in memory. Default: the bundled tagger.
        out: The folder to write: the network and `config.json`.
        format: `onnx` (for ONNX Runtime, OpenVINO and many others), `openvino`, or `torch` (a torch.export program).
        maps: Also export where the model looked and the weights of HSQ's experts, for `explain` and the web page;
            PyTorch programs never have them.
        half: Store weights as 16-bit floats: half the size, the same speed.
        int8: Quantise to 8 bits, which is smaller and faster. Needs `calibration`.
        calibration: A dataset with labels, on which INT8 finds its ranges and mAP is measured before and after.
        split: The images of `calibration` to use. Default: `val` if there is one, else all.
        max_loss: How many points of mAP INT8 may lose; if it loses more, nothing is written.
        on_bad_image: `skip` leaves out calibration images that cannot be decoded.
        overwrite: Replace the export that is there already.
        say: Called with one line per step.
        **reader: Options of the calibration data's reader: `image_column`, `label_column`, `separator`, `root`, ...

    Returns:
        The export; its `about` tells the precision, the largest difference from the model's logits and INT8's mAP.

    Example:
        >>> import labelwise as lw
        >>> lw.export("runs/first", out="first-onnx").about.difference  # doctest: +SKIP
        2.4e-07
        >>> lw.load("first-onnx").predict("photo.jpg")  # doctest: +SKIP
    """
    require_choice(format=(format, ExportFormat), on_bad_image=(on_bad_image, OnBadImage))
    if int8 != (calibration is not None):
        raise LabelwiseError(
            "INT8 needs a dataset to calibrate on: give both", options={"int8": True, "calibration": ...}
        )
    if split is not None and not int8:
        raise LabelwiseError("a split chooses among the calibration images", options={"int8": True, "calibration": ...})
    check_reader_options(reader, export)
    check_target(Path(out), overwrite=overwrite)
    from labelwise.data.labels import match_labels

    table = None
    if calibration is not None:
        table = open_table(calibration, **reader)
        table = table.part(split or ("val" if "val" in table.split_names else "all"))
    network = open_model(model)
    from labelwise.engines.export import export_model  # PyTorch is loaded by now
    from labelwise.engines.quantize import Calibration

    images = None
    if table is not None:
        table = match_labels(table, network.labels, ignore_extra=True)
        images = Calibration(table, network.config, max_loss, on_bad_image)
    export_model(network, format, Path(out), calibration=images, half=half, maps=maps, say=say)
    exported = find_export(out)
    assert exported is not None  # it was just written
    return exported


def push(
    model: str | Path | Run,
    name: str,
    *,
    license: str | None = None,
    private: bool | None = None,
    evaluations: Sequence[str | Path] = (),
    message: str = "Upload a labelwise model",
    token: str | None = None,
    dry_run: str | Path | None = None,
) -> str:
    """Upload a model to the hub with a card: metrics, labels, thresholds, licence and how to use it.

    Needs a login (`hf auth login`) or `HF_TOKEN`. Afterwards every command takes the model as `owner/name`.

    Args:
        model: A run or a model folder.
        name: The repository, `owner/name`; it is created if needed.
        license: The model's licence as the hub writes it, e.g. `apache-2.0`. Default: none is stated.
        private: Whether a new repository is private. An existing one stays as it is.
        evaluations: JSON files of `lw.evaluate` or `labelwise evaluate --json`; those in the run folder are found.
        message: The commit message.
        token: Access token; default: the one of the login.
        dry_run: Write what would be uploaded into this folder, and upload nothing.

    Returns:
        The repository's address; with `dry_run`, the folder.

    Example:
        >>> import labelwise as lw
        >>> lw.push("runs/first", "ann/pets", license="apache-2.0")  # doctest: +SKIP
        'https://huggingface.co/ann/pets'
    """
    from labelwise.hub.push import prepare
    from labelwise.model.upload import upload

    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model" if dry_run is None else Path(dry_run)
        files = [Path(file) for file in evaluations]
        prepare(model_path(model), folder, name, license=license, evaluations=files)
        if dry_run is not None:
            return str(folder)
        return upload(folder, name, private=private, message=message, token=token)


def serve(
    models: str | Path | Run | Sequence[str | Path] | Mapping[str, str | Path] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    allow_host: str | Sequence[str] = (),
    engine: EngineName = "auto",
    api_key: str | None = None,
    access_log: bool = False,
    **limits: Any,
) -> None:
    """Serve models over HTTP, with a drag-and-drop web page. Returns after Ctrl-C or SIGTERM.

    Requests that were accepted are answered before it returns.

    Args:
        models: One or several runs, model folders, exported models or hub ids; the first one is the default. A mapping
            gives them names. Default: the bundled tagger.
        host: The address to listen on; `0.0.0.0` for other machines (then set a key).
        port: The port; 0 takes a free one.
        allow_host: Further names of this server, e.g. of a proxy in front. On loopback and without a key, requests that
            browsers send for or from other sites are refused.
        engine: What runs the models; `auto` is the fastest one, measured at the first start.
        api_key: The key that requests must send. Default: `LABELWISE_API_KEY` of the environment, if set.
        access_log: Write a line for each request.
        **limits: `workers`, `batch_size`, `max_wait`, `max_bytes`, `max_pixels`, `max_files`, `timeout`, `queue` and
            `max_connections`, as in `labelwise.server.settings.ServeSettings`.

    Example:
        >>> import labelwise as lw
        >>> lw.serve({"pets": "runs/pets", "voc": "runs/voc"}, port=8080)  # doctest: +SKIP
    """
    from labelwise.server.settings import KEY_VARIABLE, ServeSettings

    settings = ServeSettings.parse({"models": _sources(models), "engine": engine, **limits}, "serve")
    key = os.environ.get(KEY_VARIABLE) if api_key is None else api_key
    if key is not None and not key.strip():
        raise LabelwiseError("the API key is empty; use a long random one, or none")
    hosts = [allow_host] if isinstance(allow_host, str) else allow_host
    for name in hosts:
        if "/" in name or (":" in name and not name.endswith("]")):  # [::1] is a host
            raise LabelwiseError(f"{name!r} is not a host; write it without scheme, port and path, like example.org")
    from labelwise.server.run import run_server

    run_server(settings, host=host, port=port, allow_host=hosts, key=key and key.strip(), access_log=access_log)


def _sources(models: Any) -> tuple[ModelSource, ...]:
    from labelwise.server.settings import ModelSource, parse_models

    if models is None or models == []:
        return (ModelSource(name=default_model().name, source=str(default_model())),)
    if isinstance(models, Mapping):
        return parse_models([f"{name}={model_path(source)}" for name, source in models.items()])
    several = models if isinstance(models, list | tuple) else [models]
    return parse_models([model_path(source) for source in several])
