"""Heads with public weights: ML-Decoder's (timm's layer and the authors' repository), Query2Label's, CSRA's, RAM++'s.

Each function reads the sizes off the tensors, builds the head and copies tensor by tensor. A tensor that is missing,
has another shape or belongs to nothing is an error that names it as the file does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from labelwise.core.errors import LabelwiseError
from labelwise.heads.base import Head
from labelwise.heads.csra import CsraHead
from labelwise.heads.gap import GapHead
from labelwise.heads.query_head import QueryHead
from labelwise.heads.ram_plus import RamPlusHead
from labelwise.heads.registry import build, preset, with_options

State = Mapping[str, Tensor]

# ---- ML-Decoder. timm keeps the tensors on the head (`embed_standart.weight`), the authors on the head's decoder
# (`decoder.embed_standart.weight`), and a whole model adds a prefix (`head.`, `fc.`, `module.head.`).

_MARK = "duplicate_pooling"  # the group fully-connected layer: its key tells where the head's prefix ends
_ML_DECODER = {
    "tokens.project.": "embed_standart.",
    "queries.weight": "query_embed.weight",
    "queries.project.": "wordvec_proj.",
    "classifier.weights.weight": "duplicate_pooling",
    "classifier.bias": "duplicate_pooling_bias",
}


def load_ml_decoder(state: State, attention_heads: int = 8, word_vectors: Tensor | None = None) -> QueryHead:
    """An ML-Decoder head with the weights of a public state dict.

    Args:
        state: Of the head alone or of a whole model, in timm's or the authors' layout.
        attention_heads: The one size that the tensors do not show; both public versions use 8.
        word_vectors: [N, d_w], the labels of a zero-shot head, which does not hold them itself.

    Example:
        theirs = timm.layers.ml_decoder.MLDecoder(num_classes=30, initial_num_features=64)
        head = load_ml_decoder(theirs.state_dict())
    """
    prefix = ml_decoder_prefix(state)
    inside = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    theirs = {re.sub(r"^decoder\.(?!layers\.)", "", key): value for key, value in inside.items()}
    pooling = theirs[_MARK]
    options: dict[str, Any] = {
        "dim": pooling.shape[-2],
        "feedforward": _shape(theirs, "decoder.layers.0.linear1.weight")[0],
        "attention_heads": attention_heads,
        "decoder_layers": sum(key.endswith(".linear1.weight") for key in theirs),
    }
    if pooling.dim() == 3:  # [K, D, g]
        # The public versions cut the labels into groups in their given order.
        options |= {"groups": pooling.shape[0], "group_seed": None}
        labels = _shape(theirs, "duplicate_pooling_bias")[0]
        word_vectors = None
    else:  # [D, 1]: zero-shot, one projection for all labels
        if word_vectors is None:
            raise LabelwiseError(
                "this is a zero-shot head: give its labels and their word vectors, [labels, length]",
                options={"word_vectors": ...},
            )
        labels = len(word_vectors)
        options |= {"groups": None, "queries": "words", "classifier": "shared", "word_projection": "relu"}
        options |= {"word_dim": _shape(theirs, "wordvec_proj.weight")[1]}
    config = with_options(preset("ml-decoder"), options, "ML-Decoder weights")
    head = build(config, _shape(theirs, "embed_standart.weight")[1], labels, word_vectors)
    assert isinstance(head, QueryHead)
    _fill(head, theirs, lambda key: _replaced(key, _ML_DECODER), "ML-Decoder")
    return head


def ml_decoder_prefix(state: State) -> str:
    """Where the head is in a whole model's state dict."""
    marks = [key for key in state if key.endswith(_MARK)]
    if len(marks) != 1:
        raise LabelwiseError(f"no ML-Decoder in these weights: expected one tensor '…{_MARK}', found {len(marks)}")
    return marks[0].removesuffix(_MARK).removesuffix("decoder.")


# ---- Query2Label

_Q2L = {
    "tokens.project.": "input_proj.",
    "tokens.encoder.": "transformer.encoder.layers.",
    "queries.weight": "query_embed.weight",
    "decoder.": "transformer.decoder.",
    "classifier.weights.weight": "fc.W",
    "classifier.bias": "fc.b",
}


def load_q2l(state: State, attention_heads: int = 4) -> QueryHead:
    """A Query2Label head with the weights of its authors' code.

    Args:
        state: Of a whole model (`transformer.decoder.norm.weight`, `query_embed.weight`, `fc.W`, ...).
        attention_heads: The one size that the tensors do not show; the authors' released models have 4.

    Example:
        head = load_q2l(torch.load("checkpoint.pkl", weights_only=True)["state_dict"])
    """
    theirs = {key: value for key, value in state.items() if not key.startswith("backbone.")}
    labels, dim = _shape(theirs, "query_embed.weight")
    projected = "input_proj.weight" in theirs  # left out where D is the backbone's number of channels
    has_self_attention = "transformer.decoder.layers.0.self_attn.in_proj_weight" in theirs
    options = {
        "dim": dim,
        "project": projected,
        "encoder_layers": sum(re.fullmatch(r".*encoder.*\.linear1\.weight", key) is not None for key in theirs),
        "decoder_layers": sum(re.fullmatch(r".*decoder.*\.linear1\.weight", key) is not None for key in theirs),
        "feedforward": _shape(theirs, "transformer.decoder.layers.0.linear1.weight")[0],
        "first_block": "self-attention" if has_self_attention else "none",
        "attention_heads": attention_heads,
    }
    config = with_options(preset("q2l"), options, "Query2Label weights")
    head = build(config, _shape(theirs, "input_proj.weight")[1] if projected else dim, labels)
    assert isinstance(head, QueryHead)
    _fill(head, theirs, lambda key: _replaced(key, _Q2L), "Query2Label")
    return head


# ---- RAM and RAM++

_RAM = {
    "project.": "image_proj.",
    "queries.": "wordvec_proj.",
    "classifier.": "fc.",
    "layers.": "tagging_head.encoder.layer.",
    ".query.": ".crossattention.self.query.",
    ".key.": ".crossattention.self.key.",
    ".value.": ".crossattention.self.value.",
    ".out_proj.": ".crossattention.output.dense.",
    ".norm1.": ".crossattention.output.LayerNorm.",
    ".linear1.": ".intermediate.dense.",
    ".linear2.": ".output.dense.",
    ".norm2.": ".output.LayerNorm.",
}
_RAM_DESCRIPTIONS = 51  # of each tag of RAM++: 50 by a language model, and the tag in a template


def load_ram(state: State, attention_heads: int = 4) -> RamPlusHead:
    """The tagging head of RAM++ or RAM with the weights of their authors' code; captions of RAM are left out.

    Args:
        state: Of a whole model (`label_embed`, `tagging_head.encoder.layer.0.crossattention.self.query.weight`, ...).
        attention_heads: The one size that the tensors do not show; the released models have 4.

    Example:
        head = load_ram(torch.load("ram_plus_swin_large_14m.pth", weights_only=True)["model"])
    """
    theirs = {re.sub(r"^vision_multi\.", "tagging_head.", key): value for key, value in state.items()}
    # BERT's embeddings and self-attention are deleted in the authors' code; older files may still hold them.
    other = re.compile(r"(visual_encoder|text_decoder|tag_encoder|tagging_head\.(embeddings|.*\.attention))\..*")
    theirs = {key: value for key, value in theirs.items() if not other.fullmatch(key)}
    descriptions = _RAM_DESCRIPTIONS if "reweight_scale" in theirs else 1
    rows, width = _shape(theirs, "label_embed")
    feedforward, dim = _shape(theirs, "tagging_head.encoder.layer.0.intermediate.dense.weight")
    options = {
        "word_dim": descriptions * width,
        "descriptions": descriptions,
        "dim": dim,
        "feedforward": feedforward,
        "attention_heads": attention_heads,
        "decoder_layers": sum(key.endswith(".intermediate.dense.weight") for key in theirs),
    }
    if rows % descriptions:
        raise LabelwiseError(f"'label_embed' has {rows} rows, which are not {descriptions} descriptions of each tag")
    words = theirs.pop("label_embed").float().view(rows // descriptions, -1)
    config = with_options(preset("ram-plus"), options, "RAM++ weights")
    head = build(config, _shape(theirs, "image_proj.weight")[1], len(words), words)
    assert isinstance(head, RamPlusHead)
    _fill(head, theirs, _ram_name, "RAM++")
    return head


def _ram_name(key: str) -> str:
    for ours, name in _RAM.items():
        key = key.replace(ours, name, 1) if ours.startswith(".") or key.startswith(ours) else key
    return key


# ---- CSRA and average pooling


def load_csra(state: State, residual_weight: float) -> CsraHead:
    """A CSRA head with the weights of its authors' code.

    Args:
        state: Of a whole model (`classifier.multi_head.0.head.weight`, ...).
        residual_weight: lambda, which is not among the tensors: 0.1 for VOC, 0.4 or 0.5 for COCO, 0.3 for WIDER.

    Example:
        head = load_csra(torch.load("resnet101_voc07_head1_lam0.1_94.7.pth", weights_only=True), 0.1)
    """
    theirs = {key: value for key, value in state.items() if key.startswith("classifier.")}
    names = [f"classifier.multi_head.{number}.head.weight" for number in range(max(1, len(theirs)))]
    labels, channels = _shape(theirs, names[0])[:2]  # [N, C, 1, 1]
    options = {"residual_weight": residual_weight, "residual_heads": len(names)}
    head = build(with_options(preset("csra"), options, "CSRA weights"), channels, labels)
    assert isinstance(head, CsraHead)
    head.load_state_dict({"weight": torch.stack([_taken(theirs, name, head.weight[0], "CSRA") for name in names])})
    return head


def load_gap(state: State, prefix: str = "head.fc.") -> GapHead:
    """A head of average pooling and a linear layer.

    Args:
        state: Of a whole model.
        prefix: Of the linear layer.

    >>> load_gap({"head.fc.weight": torch.zeros(80, 16), "head.fc.bias": torch.zeros(80)}).labels
    80
    """
    theirs = {key: value for key, value in state.items() if key.startswith(prefix)}
    labels, channels = _shape(theirs, f"{prefix}weight")
    head = build(preset("gap"), channels, labels)
    assert isinstance(head, GapHead)
    _fill(head, theirs, lambda key: key.replace("classifier.", prefix), "linear layer")
    return head


# ---- Tensor by tensor


def _fill(head: Head, theirs: State, named: Callable[[str], str], what: str) -> None:
    """Copy all tensors of `theirs` into `head`; `named` gives their name of one of the head's tensors."""
    # A head's assignment of labels and its word vectors are ours: no public file has them.
    ours = {key: value for key, value in head.state_dict().items() if key not in ("label_slot", "word_vectors")}
    filled = {key: _taken(theirs, named(key), tensor, what) for key, tensor in ours.items()}
    unknown = sorted(theirs.keys() - {named(key) for key in ours})
    if unknown:
        raise LabelwiseError(f"these {what} weights do not fit: tensor {unknown[0]!r} belongs to no part of the head")
    head.load_state_dict(filled, strict=False)


def _taken(theirs: State, name: str, like: Tensor, what: str) -> Tensor:
    """One of their tensors in the shape of ours: a 1x1 convolution becomes a linear layer."""
    shape = _shape(theirs, name)
    if [size for size in shape if size > 1] != [size for size in like.shape if size > 1]:
        raise LabelwiseError(
            f"these {what} weights do not fit: tensor {name!r} is {list(shape)}, where the others ask for "
            f"{list(like.shape)}"
        )
    return theirs[name].reshape(like.shape)


def _shape(state: State, key: str) -> torch.Size:
    if key not in state:
        raise LabelwiseError(f"the weights are not complete: tensor {key!r} is missing")
    return state[key].shape


def _replaced(key: str, prefixes: Mapping[str, str]) -> str:
    for ours, theirs in prefixes.items():
        if key.startswith(ours):
            return theirs + key.removeprefix(ours)
    return key
