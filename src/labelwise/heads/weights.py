"""Weights of the two public ML-Decoders: timm's layer and the authors' repository.

Both hold the same tensors. timm keeps them on the head (`embed_standart.weight`), the authors on the head's decoder
(`decoder.embed_standart.weight`), and a whole model adds a prefix (`head.`, `fc.`, `module.head.`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from labelwise.core.errors import LabelwiseError
from labelwise.heads.query_head import QueryHead
from labelwise.heads.registry import build, preset, with_options

_MARK = "duplicate_pooling"  # the group fully-connected layer: its key tells where the head's prefix ends
_RENAMED = {
    "embed_standart.weight": "tokens.project.weight",
    "embed_standart.bias": "tokens.project.bias",
    "query_embed.weight": "queries.weight",
    "duplicate_pooling": "classifier.weights.weight",
    "duplicate_pooling_bias": "classifier.bias",
}


def load_ml_decoder(state: Mapping[str, Tensor], attention_heads: int = 8) -> QueryHead:
    """An ML-Decoder head with the weights of a public state dict.

    Args:
        state: Of the head alone or of a whole model, in timm's or the authors' layout.
        attention_heads: The one size that the tensors do not show; both public versions use 8.

    Example:
        theirs = timm.layers.ml_decoder.MLDecoder(num_classes=30, initial_num_features=64)
        head = load_ml_decoder(theirs.state_dict())
    """
    ours = {_renamed(key): value for key, value in _head_tensors(state).items()}
    try:
        labels = ours["classifier.bias"].shape[0]
        queries, dim, _ = ours["classifier.weights.weight"].shape
        in_features = ours["tokens.project.weight"].shape[1]
        feedforward = ours["decoder.layers.0.linear1.weight"].shape[0]
    except (KeyError, ValueError) as error:
        raise LabelwiseError(f"a tensor of these ML-Decoder weights is missing or has a wrong shape: {error}") from None
    options = {
        "dim": dim,
        "groups": queries,
        "group_seed": None,  # the public versions cut the labels into groups in their given order
        "feedforward": feedforward,
        "attention_heads": attention_heads,
        "decoder_layers": sum(key.endswith(".linear1.weight") for key in ours),
    }
    head = build(with_options(preset("ml-decoder"), options, "ml-decoder weights"), in_features, labels)
    assert isinstance(head, QueryHead)
    try:
        head.load_state_dict(ours if head.label_slot is None else {**ours, "label_slot": head.label_slot})
    except RuntimeError as error:
        raise LabelwiseError(f"these ML-Decoder weights do not fit: {' '.join(str(error).split())}") from None
    return head


def _head_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The head's tensors by their timm names, out of a head's or a whole model's state dict."""
    marks = [key for key in state if key.endswith(_MARK)]
    if len(marks) != 1:
        raise LabelwiseError(f"no ML-Decoder in these weights: expected one tensor '…{_MARK}', found {len(marks)}")
    prefix = marks[0].removesuffix(_MARK).removesuffix("decoder.")
    inside = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    flat = {re.sub(r"^decoder\.(?!layers\.)", "", key): value for key, value in inside.items()}
    return {key: value for key, value in flat.items() if key in _RENAMED or key.startswith("decoder.layers.")}


def _renamed(key: str) -> str:
    return _RENAMED.get(key, key)  # decoder layers carry torch's own names in both
