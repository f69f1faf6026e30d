"""The word vectors that a head keeps."""

from __future__ import annotations

import torch
from torch import Tensor

from labelwise.core.errors import LabelwiseError
from labelwise.heads.config import ConseConfig, Fast0TagConfig, HeadConfig, QueryHeadConfig


def checked_words(vectors: Tensor | None, labels: int, word_dim: int | None) -> Tensor:
    """The vectors [N, d_w] as given, or zeros to be filled from a state dict."""
    if word_dim is None:
        raise LabelwiseError("heads on words need word_vectors, a tensor [labels, length], one row for each label")
    if vectors is None:
        return torch.zeros(labels, word_dim)
    if vectors.shape != (labels, word_dim):
        raise LabelwiseError(f"word_vectors must be [{labels}, {word_dim}], not {list(vectors.shape)}")
    return vectors.detach().float().clone()


def uses_words(config: HeadConfig) -> bool:
    """Whether the head is made from the labels' word vectors."""
    if isinstance(config, QueryHeadConfig):
        return config.queries.queries == "words" or config.classifier.classifier == "words"
    return isinstance(config, ConseConfig | Fast0TagConfig)


def bound_options(config: HeadConfig) -> list[str]:
    """The options that tie a head to the labels it was made for, each as what to set instead; none for a word head.

    >>> from labelwise.heads import preset
    >>> bound_options(preset("ml-decoder"))
    ['queries=words', 'classifier=shared']
    """
    if isinstance(config, ConseConfig | Fast0TagConfig):
        return []
    if not isinstance(config, QueryHeadConfig):
        return ["head=ml-decoder", "queries=words", "classifier=shared"]
    bound = [] if config.queries.queries == "words" else ["queries=words"]
    experts = config.experts
    if experts.experts == "hybrid":
        if experts.task_experts and experts.task_weights == "own":
            bound.append("task_weights=query")
        if experts.task_experts + experts.shared_experts > 1 and experts.gate_weights == "own":
            bound.append("gate_weights=query")
    if config.classifier.classifier == "group":
        bound.append("classifier=shared")
    return bound


def require_word_head(config: HeadConfig, what: str) -> None:
    bound = bound_options(config)
    if bound:
        options = " ".join(f"--set head.{option}" for option in bound if not option.startswith("head="))
        head = "--head ml-decoder " if "head=ml-decoder" in bound else ""
        raise LabelwiseError(
            f"{what} needs a head that takes any labels; train one on your photos with {head}{options} "
            "--set model.words=package:glove-50d (docs/guides/zero-shot.md)"
        )
