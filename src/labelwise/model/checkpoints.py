"""Models that were trained with the papers' own code: ML-Decoder's, Query2Label's, CSRA's and RAM++'s files, whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from labelwise import heads
from labelwise.backbones import Backbone, BackboneConfig
from labelwise.backbones.layouts import recognised_backbone
from labelwise.backbones.weights import read_checkpoint, unwrapped
from labelwise.core.errors import LabelwiseError, one_line
from labelwise.data.labels import label_list
from labelwise.data.preprocessing import Preprocessing
from labelwise.data.readers.base import read_lines, unique_names
from labelwise.data.readers.coco import COCO_LABELS
from labelwise.data.readers.openimages import read_descriptions
from labelwise.data.readers.voc import VOC_LABELS
from labelwise.heads.weights import ml_decoder_prefix
from labelwise.model.config import ModelConfig
from labelwise.model.model import LabelModel

Normalisation = Literal["plain", "backbone"]
State = dict[str, Tensor]


def load_checkpoint(
    file: str | Path,
    *,
    labels: Sequence[str] | str | Path | None = None,
    size: int | None = None,
    normalisation: Normalisation | None = None,
    task: Literal["multi-label", "single-label"] = "multi-label",
    attention_heads: int | None = None,
    residual_weight: float | None = None,
    word_vectors: Tensor | str | Path | None = None,
    thresholds: Sequence[float] | str | Path | None = None,
) -> LabelModel:
    """A model from a checkpoint of ML-Decoder's, Query2Label's, CSRA's, ASL's, CSL's, RAM's or RAM++'s public code.

    Backbone and head are read off the tensors. What a file does not say has the value of the released models, or is
    asked for. Nothing in the file is executed. `save` makes a model folder of it, which every command takes.

    Args:
        file: As the authors' code saves it, with or without a wrapper (`model`, `state_dict`, `module.`).
        labels: Names in the order of the outputs, or a file of them: one per line, or Open Images' class descriptions
            (csv). Default: those in the file, else COCO's if there are 80 and VOC's if there are 20.
        size: Input size in pixels. Default: that of the released models.
        normalisation: "plain" for inputs in [0, 1], "backbone" for the statistics of its ImageNet weights. Default: as
            the authors' evaluation has it. Query2Label's is an option of its script (`orid_norm`: plain).
        task: "single-label" for a model that was trained with a softmax.
        attention_heads: Default: 8 for ML-Decoder, 4 for Query2Label and RAM++, as in the released models.
        residual_weight: CSRA's lambda. Default: that of the released model with as many labels and heads.
        word_vectors: The vectors [N, d_w] of a zero-shot ML-Decoder's labels, or the authors' `wordvec_array.pth`.
        thresholds: From which score each label applies, or a file with one number per line (RAM's
            `ram_tag_list_threshold.txt`). Default: RAM's 0.68 for its own models, else 0.5.

    Example:
        >>> model = load_checkpoint("tresnet_l_COCO__448_90_0.pth")  # doctest: +SKIP
        >>> model.save("models/ml-decoder-coco")  # doctest: +SKIP
    """
    content = read_checkpoint(file)
    state = unwrapped(content, str(file))
    try:
        if isinstance(word_vectors, str | Path):
            word_vectors = _word_array(word_vectors)
        found = _read(state, _Given(attention_heads, residual_weight, word_vectors))
        name, fixed = recognised_backbone(found.backbone)
        known = _SIZES.get((name, found.head.labels)) if found.size is None else found.size
        size = size or fixed or known
        if size is None:
            raise LabelwiseError("the file does not say for which image size it was trained", options={"size": ...})
        backbone = Backbone(BackboneConfig(name=name, size=size), found.backbone)
        names = _names(labels, content, found.head.labels)
        limits = _thresholds(thresholds, found)
    except LabelwiseError as error:
        raise LabelwiseError(f"{str(file)!r}: {error.message}", options=error.options) from None
    settings = backbone.preprocessing().model_dump() | {"interpolation": "bilinear"}
    if (normalisation or found.normalisation) == "plain":
        settings = {key: value for key, value in settings.items() if key not in ("mean", "std")}
    values = {
        "labels": names,
        "preprocessing": Preprocessing.parse(settings, "preprocessing"),
        "task": task,
        "backbone": backbone.config,
        "head": found.head.config,
        "thresholds": limits,
    }
    config = ModelConfig.parse(values, str(file))
    return LabelModel(config, backbone=backbone, head=found.head).eval()


# ---- The families

# Input sizes of the released models by backbone and number of labels: MS-COCO (ML-Decoder, then ASL), Open Images,
# Stanford Cars.
_SIZES = {
    ("tresnet_m", 80): 224,
    ("tresnet_v2_l", 80): 448,
    ("tresnet_v2_xl", 80): 640,
    ("tresnet_l", 80): 448,
    ("tresnet_xl", 80): 640,
    ("tresnet_m", 9605): 224,
    ("tresnet_v2_l", 9605): 224,
    ("tresnet_v2_l", 196): 384,
}
# lambda of the released CSRA models by number of labels and of heads, from the authors' commands.
_LAMBDAS = {(20, 1): 0.1, (80, 4): 0.5, (80, 6): 0.4, (14, 1): 0.3}
_WIDER_LABELS = 14


@dataclass(frozen=True)
class _Given:
    """What the caller knows and no file says."""

    attention_heads: int | None
    residual_weight: float | None
    word_vectors: Tensor | None


@dataclass(frozen=True)
class _Found:
    head: heads.Head
    backbone: State  # under the backbone's own names
    normalisation: Normalisation = "plain"
    size: int | None = None
    threshold: float | None = None  # of all labels


def _ml_decoder(state: State, given: _Given) -> _Found:
    prefix = ml_decoder_prefix(state)
    head = heads.load_ml_decoder(state, given.attention_heads or 8, given.word_vectors)
    return _Found(head, {key: value for key, value in state.items() if not key.startswith(prefix)})


def _query2label(state: State, given: _Given) -> _Found:
    # torchvision's networks and TResNet are wrapped in a `body`, Swin is not
    prefix = "backbone.0.body." if any(key.startswith("backbone.0.body.") for key in state) else "backbone.0."
    backbone = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    positions = state.get("backbone.1.pe")  # [1, D, H, W]; they are computed here, but tell the image size
    size = None if positions is None else 32 * positions.shape[-1]
    return _Found(heads.load_q2l(state, given.attention_heads or 4), backbone, "backbone", size)


def _csra(state: State, given: _Given) -> _Found:
    backbone = {key: value for key, value in state.items() if not key.startswith("classifier.")}
    classifiers = [value for key, value in state.items() if key not in backbone]
    released = (len(classifiers[0]), len(classifiers))  # labels, heads
    residual_weight = _LAMBDAS.get(released) if given.residual_weight is None else given.residual_weight
    if residual_weight is None:
        raise LabelwiseError(
            f"lambda is not in the file, and the authors name none for {released[0]} labels and {released[1]} heads",
            options={"residual_weight": ...},
        )
    normalisation: Normalisation = "backbone" if released[0] == _WIDER_LABELS else "plain"
    return _Found(heads.load_csra(state, residual_weight), backbone, normalisation, 448)


def _ram(state: State, given: _Given) -> _Found:
    prefix = "visual_encoder."
    backbone = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    return _Found(heads.load_ram(state, given.attention_heads or 4), backbone, "backbone", threshold=0.68)


def _average_pooling(state: State, given: _Given) -> _Found:
    backbone = {key: value for key, value in state.items() if not key.startswith("head.")}
    return _Found(heads.load_gap({key: value for key, value in state.items() if key not in backbone}), backbone)


# A tensor that only the code of this family has.
_FAMILIES: dict[str, Callable[[State, _Given], _Found]] = {
    r"(.*\.)?duplicate_pooling": _ml_decoder,
    r"transformer\.decoder\..*": _query2label,
    r"classifier\.multi_head\..*": _csra,
    r"(tagging_head|vision_multi)\..*": _ram,
    r"head\.fc\..*": _average_pooling,
}


def _read(state: State, given: _Given) -> _Found:
    for pattern, read in _FAMILIES.items():
        if any(re.fullmatch(pattern, key) for key in state):
            return read(state, given)
    raise LabelwiseError(
        "not a checkpoint of ML-Decoder's, Query2Label's, CSRA's, RAM++'s, RAM's, ASL's or CSL's code: it has none of "
        "'…duplicate_pooling', 'transformer.decoder.…', 'classifier.multi_head.…', 'tagging_head.…' or 'head.fc.…'"
    )


# ---- Names and words


def _names(given: Sequence[str] | str | Path | None, content: Mapping[str, Any], number: int) -> tuple[str, ...]:
    """The names of the outputs: as given, as in the file, or those of the dataset with so many labels."""
    inside = _names_inside(content)
    if isinstance(given, str | Path):
        is_table = Path(given).suffix == ".csv" and Path(given).is_file()
        described = read_descriptions(Path(given)) if is_table else {}
        ids = inside or tuple(described)  # without ids in the checkpoint, the table must have its labels in its order
        names = unique_names([described.get(id, id) for id in ids], ids) if described else label_list(str(given))
    elif given is not None:
        names = tuple(given)
    else:
        known = {len(COCO_LABELS): COCO_LABELS, len(VOC_LABELS): VOC_LABELS}
        names = tuple(inside or known.get(number, ()))
    if len(names) != number:
        has = f"{len(names)} names were found" if names else "they are not in the file"
        raise LabelwiseError(f"the model has {number} labels, and {has}; give their names", options={"labels": ...})
    return names


def _names_inside(content: Mapping[str, Any]) -> tuple[str, ...] | None:
    """`idx_to_class`, which the authors of ML-Decoder, ASL and CSL save with their models."""
    classes = content.get("idx_to_class")
    if isinstance(classes, dict) and all(isinstance(index, int) for index in classes):
        classes = [classes[index] for index in sorted(classes)]
    elif isinstance(classes, dict):
        classes = list(classes.values())
    return tuple(str(name) for name in classes) if isinstance(classes, list | tuple) else None


def _thresholds(given: Sequence[float] | str | Path | None, found: _Found) -> tuple[float, ...] | None:
    """One per label; None for the default."""
    if given is None:
        return None if found.threshold is None else (found.threshold,) * found.head.labels
    try:
        numbers = tuple(float(line) for line in (read_lines(Path(given)) if isinstance(given, str | Path) else given))
    except (OSError, ValueError) as error:
        raise LabelwiseError(f"cannot read the thresholds: {one_line(error)}") from None
    if len(numbers) != found.head.labels:
        raise LabelwiseError(
            f"the model has {found.head.labels} labels, not {len(numbers)}", options={"thresholds": ...}
        )
    return numbers


def _word_array(file: str | Path) -> Tensor:
    """`wordvec_array.pth` of ML-Decoder's authors: one tensor [d_w, N], in half precision."""
    array = read_checkpoint(file)
    if not isinstance(array, Tensor) or array.dim() != 2:
        raise LabelwiseError(f"{str(file)!r} is not a tensor [length, labels] of word vectors")
    return array.T.float()
