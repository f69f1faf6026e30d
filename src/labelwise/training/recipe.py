"""A recipe: everything that decides how a model is trained. One YAML file, typed, complete; flags override it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationInfo, field_validator

from labelwise.core.config import Config
from labelwise.core.errors import LabelwiseError
from labelwise.core.files import atomic_write
from labelwise.data.labels import LabelList, UnseenList
from labelwise.data.preprocessing import CropRatio, ImageSize
from labelwise.heads import preset
from labelwise.loading.augment import AugmentationConfig
from labelwise.losses import loss_options
from labelwise.words import WordsConfig

Fraction = Annotated[float, Field(ge=0, lt=1)]


class DataRecipe(Config):
    source: str | None = None  # what --data takes: a path, format:path, format:path?option=value
    train: str = "train"  # splits, also several: train+val
    validation: str | None = "val"  # None: train without looking at validation data
    # a subset or another order of the data's labels (a manifest's: all of them): names, or a file of them
    labels: LabelList | None = None
    # Zero-shot: labels that training must not see (names, a file, or "data": those the data itself calls unseen). The
    # others are learned; `labelwise evaluate` then measures on both.
    unseen: UnseenList | None = None
    # Training images with an unseen label: left out (the strict rule), kept if a seen label is present too, or all kept
    unseen_images: Literal["drop", "keep-labelled", "keep"] = "drop"
    validation_share: Fraction = 0.2  # of the training images, where the data has no validation split (stratified)
    on_bad_image: Literal["error", "skip"] = "error"


class ModelRecipe(Config):
    backbone: str = "tf_efficientnet_lite2"  # its weights come with pip, no hub needed
    weights: str = "auto"  # auto, hub, package, none or a file
    stage: int = -1
    size: ImageSize | None = None  # None: the backbone's own
    # backbone: the statistics of the pretrained weights; plain: values in [0, 1] as they are (ML-Decoder appendix C)
    normalisation: Literal["backbone", "plain"] = "backbone"
    resize: Literal["squash", "crop", "pad"] = "squash"  # how a picture becomes a square (preprocessing.py)
    crop_ratio: CropRatio = 1.0  # crop: the share of the shorter side that the central square takes
    drop_path: Fraction = 0.0  # stochastic depth: the chance to leave out the backbone's last block in a training step
    head: str = "hsq"
    options: dict[str, Any] = Field(default_factory=dict)  # of the head: labelwise heads NAME lists them
    words: WordsConfig | None = None  # source of word vectors, for word queries (docs/guides/zero-shot.md)
    # which labels share a query, where there are fewer queries than labels: dealt at random, by the meaning of their
    # names (needs words), or by how often they occur in the same training images (docs/guides/many-labels.md)
    grouping: Literal["random", "words", "co-occurrence"] = "random"
    task: Literal["multi-label", "single-label"] = "multi-label"
    # backbone: its features are computed once and cached; early: all but its last layers (layers.py) stay as they are
    freeze: Literal["none", "early", "backbone"] = "none"
    # A trained model of this very description to go on from: a run, a model folder or a hub id. None: start afresh
    start: str | None = None

    @field_validator("options")
    @classmethod
    def _read_old_option_names(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        try:
            renamed = preset(info.data.get("head", "")).renamed_options()
        except LabelwiseError:  # an unknown head is told where it is used
            return options
        return {renamed.get(name, name): value for name, value in options.items()}


class LossRecipe(Config):
    name: str = "asymmetric"
    options: dict[str, Any] = Field(default_factory=dict)


class OptimizerRecipe(Config):
    # adam adds the decay to the gradient, adamw to the weights; lamb is for batches of thousands
    name: Literal["adam", "adamw", "lamb"] = "adamw"
    lr: PositiveFloat = 1e-4
    backbone_lr: PositiveFloat | None = None  # None: the same as lr
    weight_decay: float = Field(default=1e-2, ge=0)  # never on biases, norms and queries
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    clip_norm: PositiveFloat | None = 1.0


class ScheduleRecipe(Config):
    name: Literal["one-cycle", "cosine", "constant"] = "one-cycle"
    warmup: Fraction = 0.2  # share of all steps in which the rate rises
    final: float = Field(default=0.0, ge=0)  # the last rate, as a share of the highest


class Recipe(Config):
    renamed: ClassVar = {"union": "pair_mix"}

    description: str = ""  # what it reproduces, and where its numbers come from
    data: DataRecipe = DataRecipe()
    model: ModelRecipe = ModelRecipe()
    augmentation: AugmentationConfig = AugmentationConfig()
    mixup: float = Field(default=0.0, ge=0)
    cutmix: float = Field(default=0.0, ge=0)
    # chance that a step joins each image's feature map with another's: a scene with the labels of both. Ours
    pair_mix: float = Field(default=0.0, ge=0, le=1)
    loss: LossRecipe = LossRecipe()
    optimizer: OptimizerRecipe = OptimizerRecipe()
    schedule: ScheduleRecipe = ScheduleRecipe()
    epochs: PositiveInt = 20
    batch_size: PositiveInt = 64  # of all processes together
    accumulate: PositiveInt = 1  # steps of backward before one of the optimizer; batch_size counts one of them
    ema: Fraction = 0.0  # decay of the averaged weights that are evaluated and saved; 0: none
    early_stop: PositiveInt | None = None  # epochs without a better validation mAP before training ends
    thresholds: Literal["f1", "none"] = "f1"  # fitted with the calibration, on the validation data at the end
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    workers: NonNegativeInt = 2
    checkpoint_minutes: PositiveFloat = 10.0  # between checkpoints inside an epoch; each epoch ends with one
    seed: int = Field(default=0, ge=0, lt=2**31)

    @property
    def can_mix_pairs(self) -> bool:
        """Whether `pair_mix` makes sense: an image may have any number of labels."""
        return self.model.task == "multi-label"


# What `labelwise train` does without a recipe; recipes/own-photos.yaml says the same, line by line.
OWN_PHOTOS = Recipe(
    description="Sensible defaults for your own photos: a head on a frozen, pretrained backbone, in minutes on a CPU.",
    model=ModelRecipe(freeze="backbone", size=224, options={"dim": 256, "token_dropout": 0.5}),
    augmentation=AugmentationConfig(flip=0.5, cutout=0.0, policy="none"),
    pair_mix=0.5,
    optimizer=OptimizerRecipe(lr=3e-4),
    epochs=8,
    batch_size=32,
)


def load_recipe(path: str | Path | None, changes: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of a YAML file (None: for own photos) with dotted `changes` such as {"optimizer.lr": 1e-3} applied.

    Without a file, a run to start from ("model.start") also says what is learned from which data, and by which seed the
    data was split.
    """
    changes = changes or {}
    values: Any = OWN_PHOTOS.model_dump(mode="json")
    where = "recipe"
    if path is not None:
        where = f"recipe {str(path)!r}"
        values = _read(Path(path), where)
    elif isinstance(start := changes.get("model.start"), str) and (earlier := Path(start) / "recipe.yaml").is_file():
        kept = _read(earlier, f"recipe {str(earlier)!r}")
        values |= {part: kept[part] for part in ("data", "model", "loss", "seed") if part in kept}
    if "model.head" in changes and isinstance(values.get("model"), dict):
        head = preset(str(changes["model.head"]))
        _keep_what_fits(values["model"], {**head.option_parts(), **head.renamed_options()})
    if "loss.name" in changes and isinstance(values.get("loss"), dict):
        _keep_what_fits(values["loss"], loss_options(str(changes["loss.name"])))
    changes = {Recipe.renamed.get(key, key): value for key, value in changes.items()}
    for dotted, value in changes.items():
        _set(values, dotted.split("."), value, dotted)
    recipe = Recipe.parse(values, where)
    if path is None and "pair_mix" not in changes and not recipe.can_mix_pairs:  # nobody asked for it
        recipe = recipe.model_copy(update={"pair_mix": 0.0})
    return recipe


_SHORT_KEYS = {
    "data": "data.source",
    "on_bad_image": "data.on_bad_image",
    "head": "model.head",
    "backbone": "model.backbone",
    "weights": "model.weights",
    "size": "model.size",
    "freeze": "model.freeze",
    "start": "model.start",
    "loss": "loss.name",
    "lr": "optimizer.lr",
}


def full_key(key: str) -> str:
    """A setting's dotted key in the recipe from its short form: what the arguments of training and sweeps are called.

    >>> full_key("lr"), full_key("head.shared_experts"), full_key("optimizer.clip_norm")
    ('optimizer.lr', 'model.options.shared_experts', 'optimizer.clip_norm')
    """
    return _SHORT_KEYS.get(key, key.replace("head.", "model.options.", 1) if key.startswith("head.") else key)


def short_key(key: str) -> str:
    """A setting's name for people, from its dotted key.

    >>> short_key("model.options.shared_experts"), short_key("epochs"), short_key("loss.name")
    ('shared_experts', 'epochs', 'loss')
    """
    return key.removesuffix(".name").rpartition(".")[2]


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Complete, with all defaults: the file reruns the training even after the defaults have changed."""
    atomic_write(path, yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


def _read(path: Path, where: str) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise LabelwiseError(f"{where} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise LabelwiseError(f"{where} is not a list of 'key: value' lines")
    return values


def _keep_what_fits(part: dict[str, Any], known: Collection[str]) -> None:
    """Options that the recipe has for its own head or loss, and that another one does not take, are left out."""
    options = part.get("options")
    if isinstance(options, dict):
        part["options"] = {name: value for name, value in options.items() if name in known}


def _set(values: dict[str, Any], path: list[str], value: Any, dotted: str) -> None:
    *parents, last = path
    for part in parents:
        if values.get(part) is None:  # model.words.source=… where the recipe has no words yet
            values[part] = {}
        values = values[part]
        if not isinstance(values, dict):
            raise LabelwiseError(f"cannot set {dotted!r}: {part!r} is a plain value")
    values[last] = value
