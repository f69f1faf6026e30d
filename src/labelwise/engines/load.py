"""Open a model by its name: a run folder, a model folder, an exported model or a hub id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from labelwise.bundled import default_model
from labelwise.core.errors import LabelwiseError, torch_needed
from labelwise.runtime.exported import CONFIG, ExportedModel, find_export
from labelwise.runtime.folder import find_folder, network_folder
from labelwise.runtime.sessions import EngineName
from labelwise.runtime.tagger import Model, Tagger
from labelwise.words.config import tower_words

if TYPE_CHECKING:
    # At run time only where PyTorch is needed: exported models work without it.
    from labelwise.model.config import ModelConfig
    from labelwise.model.model import LabelModel


def load(
    source: str | PathLike[str] | None = None,
    *,
    threshold: float | None = None,
    engine: EngineName | None = None,
    labels: Sequence[str] | None = None,
    images: int = 0,
    batch_size: int = 32,
    say: Callable[[str], None] | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
) -> Tagger:
    """Load a model for prediction, on the GPU if there is one.

    Args:
        source: A run folder, a model folder, an exported model or a hub id. Default: the bundled tagger. `clip:FOLDER`
            and `clip:MODEL/PRETRAINED` are open_clip models, which answer for any `labels` without training.
        threshold: One threshold for all labels, instead of the model's own.
        engine: What runs the model: `torch`, `onnxruntime`, `openvino`, or `auto` for the fastest of these, which is
            measured once (about half a minute) if at least 500 `images` are to be predicted. Default: the model as it
            is, or what an exported file is for.
        labels: Other labels, for a model that works on words.
        images: How many images there will be, about.
        batch_size: The batch size that `auto` is measured at.
        say: Called with one line about what `auto` chose.
        revision: Branch, tag or commit of a hub repository.
        token: Access token for the hub.
        cache_dir: Where downloads from the hub are kept.
        local_files_only: Use only what was downloaded before.

    Example:
        >>> tagger = load()
        >>> tagger.labels[:3]
        ('airplane', 'apple', 'backpack')
    """
    if isinstance(source, str) and tower_words(source):
        return _tagger(zero_shot_model(source, labels), engine, threshold, images, batch_size, say)
    folder = find_folder(
        default_model() if source is None else fspath(source),
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
    )
    exported = None if engine == "torch" and network_folder(folder) != folder else find_export(folder)
    if exported is not None:
        if labels is not None:
            raise LabelwiseError(
                f"the labels of the exported model {str(folder)!r} are fixed; for other ones, take a model with word "
                "queries, or one like clip:ViT-B-16-SigLIP2/webli (docs/guides/labels-in-words.md)"
            )
        return Tagger(exported.open(engine or "auto"), threshold=threshold)
    with torch_needed():
        from labelwise.model.model import load_model

    model = on_fastest_device(load_model(folder))
    if labels is not None:
        model = model.with_labels(labels).eval()
    return _tagger(model, engine, threshold, images, batch_size, say)


def _tagger(
    model: LabelModel,
    engine: EngineName | None,
    threshold: float | None,
    images: int,
    batch_size: int,
    say: Callable[[str], None] | None,
) -> Tagger:
    from labelwise.backbones.timm_backbone import put_channels_last
    from labelwise.engines.choose import open_engine

    put_channels_last(model)
    if engine is None:
        return Tagger(model, threshold=threshold)
    size = model.config.preprocessing.size
    runner = open_engine(engine, model, size=size, images=images, batch_size=batch_size, say=say)
    return Tagger(model, engine=runner, threshold=threshold)


def open_model(source: str | Path, *, engine: EngineName = "auto") -> LabelModel | ExportedModel:
    """A model in memory, on the GPU if there is one; or an exported one, opened by `engine`."""
    folder = find_folder(source)
    exported = find_export(folder)
    if exported is not None:
        return exported.open(engine)
    with torch_needed():
        from labelwise.model.model import load_model
    return on_fastest_device(load_model(folder))


def zero_shot_model(source: str, labels: Sequence[str] | None) -> LabelModel:
    """An open_clip model (`clip:…`) that answers for these labels, untrained; on the GPU if there is one."""
    if labels is None:
        raise LabelwiseError(f"{source!r} has no labels of its own; name them", options={"labels": ...})
    with torch_needed():
        from labelwise.model.model import create_model
    return on_fastest_device(create_model(source, "text-aligned", labels).eval())


def on_fastest_device(model: LabelModel) -> LabelModel:
    """On the GPU, if there is one."""
    import torch

    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def require_network(model: Model) -> LabelModel:
    """The model with all its parts, to explain, relabel or save it; an error for an exported model or a copy."""
    from labelwise.model.model import LabelModel

    if not isinstance(model, LabelModel):
        what = f"the exported model {str(model.folder)!r}" if isinstance(model, ExportedModel) else type(model).__name__
        raise LabelwiseError(f"{what} only predicts; load the model that it was made from")
    return model


def read_labels(source: str | Path) -> tuple[str, ...]:
    """The labels of a model, without its weights and without PyTorch."""
    folder = find_folder(source)
    exported = find_export(folder)
    if exported is not None:
        return exported.config.labels
    from labelwise.model.folder import read_config

    return read_config(folder).labels


def full_config(model: Model) -> ModelConfig:
    """The whole config of a model. An exported model itself reads only what predicting needs."""
    from labelwise.model.config import ModelConfig

    if isinstance(model.config, ModelConfig):
        return model.config
    if isinstance(model, ExportedModel):
        return ModelConfig.parse(model.content, str(model.folder / CONFIG))
    raise LabelwiseError(f"a {type(model).__name__} has no full config")
