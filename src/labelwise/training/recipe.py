"""A recipe: everything that decides how a model is trained, as one typed YAML file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from labelwise.core.config import Config, may_read_files
from labelwise.core.errors import LabelwiseError, one_line, torch_needed
from labelwise.core.files import atomic_write
from labelwise.core.yaml_files import read_yaml, yaml_text
from labelwise.data.labels import LabelList, UnseenList
from labelwise.data.preprocessing import CropRatio, ImageSize
from labelwise.data.sources import is_streamed, parse_source
from labelwise.data.table import canonical_split
from labelwise.heads.registry import preset
from labelwise.loading.config import AugmentationConfig
from labelwise.losses import BUILT_IN, check_loss, read_prior
from labelwise.runtime.run_files import RECIPE, run_candidates
from labelwise.words.config import WordsConfig, tower_words

SplitName = Annotated[str, AfterValidator(canonical_split)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Freeze = Literal["none", "stem", "stem+norms", "early", "backbone"]


class DataRecipe(Config):
    """The images and labels.

    Attributes:
        source: A path, `format:path` or `format:path?option=value`.
        train: Split to train on, or several: `train+val`.
        validation: Split to validate on; None trains without validation.
        labels: A subset or another order of the data's labels: names, or a file of names.
        unseen: Zero-shot: labels that training must not see: names, a file, or `data` for those that the data declares.
        unseen_images: Training images with an unseen label: `drop` them (the strict rule), `keep-labelled` those that
            also have a seen label, or `keep` all.
        empty_images: Training and validation images without any label: `keep`, or `drop` as ML-Decoder's code
            does on NUS-WIDE.
        validation_share: Share of the training images that is held out if the data has no validation split.
        max_images: Images to train and validate on, at most: a sample in which splits and labels keep their shares.
        on_bad_image: `skip` leaves out images that cannot be decoded.
    """

    source: str | None = None
    train: SplitName = "train"
    validation: SplitName | None = "val"
    labels: LabelList | None = None
    unseen: UnseenList | None = None
    unseen_images: Literal["drop", "keep-labelled", "keep"] = "drop"
    empty_images: Literal["keep", "drop"] = "keep"
    validation_share: Fraction = 0.2
    max_images: PositiveInt | None = None
    on_bad_image: Literal["error", "skip"] = "error"


class ModelRecipe(Config):
    """Backbone, head and preprocessing.

    Attributes:
        backbone: Name of a timm model; the default's weights come with pip. Or the image tower of an open_clip model,
            with its weights: `clip:MODEL/PRETRAINED` or `clip:FOLDER`.
        weights: Weights of the backbone: `auto`, `hub`, `package`, `none` or a file.
        stage: Which of the backbone's feature maps to use, counted from the end.
        size: Input size in pixels; None for the backbone's own.
        normalisation: `backbone` uses the statistics of the pretrained weights; `plain` keeps values in [0, 1]
            (ML-Decoder appendix C).
        resize: How an image becomes a square.
        crop_ratio: With `crop`: the share of the shorter side that the central square takes.
        drop_path: Stochastic depth: probability of skipping the backbone's last block in a training step.
        head: Name of the head.
        options: Options of the head; `labelwise heads NAME` lists them.
        words: Source of the labels' word vectors, for word queries and grouping.
        grouping: Which labels share a query if there are fewer queries than labels: `random`, similar `words`, or
            `co-occurrence` in the training images.
        task: `single-label` trains one softmax over all labels.
        freeze: `backbone` trains only the head, on features that are computed once and cached; `early` also trains the
            last layers of the backbone; `stem` trains all of it but the stem and the first stage (Query2Label on
            TResNets), `stem+norms` not the batch norms either (on ResNets); `none` trains everything.
        start: A trained model of the same architecture to continue from: a run, a model folder or a hub id.
    """

    backbone: str = "tf_efficientnet_lite2"
    weights: str = "auto"
    stage: int = -1
    size: ImageSize | None = None
    normalisation: Literal["backbone", "plain"] = "backbone"
    resize: Literal["squash", "crop", "pad"] = "squash"
    crop_ratio: CropRatio = 1.0
    drop_path: Fraction = 0.0
    head: str = "hsq"
    options: dict[str, Any] = Field(default_factory=dict)
    words: WordsConfig | None = None
    grouping: Literal["random", "words", "co-occurrence"] = "random"
    task: Literal["multi-label", "single-label"] = "multi-label"
    freeze: Freeze = "none"
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
    """The loss by name, with its options (`labelwise.losses.create`).

    Attributes:
        name: Name of the loss.
        scale: Factor of its gradient. It matters to optimizers that add the weight decay to the gradient.
        options: Options of the loss.
    """

    name: str = "asymmetric"
    scale: PositiveFloat = 1.0
    options: dict[str, Any] = Field(default_factory=dict)

    def has(self, trait: Literal["remembers", "uses_unknown"]) -> bool:
        """What the class of the loss says of it. Needs PyTorch for a loss of another package."""
        if self.name in BUILT_IN:
            return trait in BUILT_IN[self.name]
        with torch_needed():
            from labelwise.losses import loss_class
        return bool(getattr(loss_class(self.name), trait))

    @field_validator("options")
    @classmethod
    def _prior_from_a_file(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Read now, so that a saved recipe holds the shares themselves."""
        if info.data.get("name") == "csl" and isinstance(file := options.get("prior"), str) and may_read_files(info):
            return {**options, "prior": read_prior(file)}
        return options


class OptimizerRecipe(Config):
    """The optimizer.

    Attributes:
        name: `adam` and `sgd` add the decay to the gradient, `adamw` to the weights; `lamb` is for batches of
            thousands.
        lr: Highest learning rate.
        backbone_lr: Highest learning rate of the backbone; None for the same as `lr`.
        layer_decay: Factor of the learning rate from each group of the backbone's layers to the one before it, so that
            early layers change least; 1 for the same rate everywhere. The more groups, the closer to 1: a ViT-B has 13
            (0.65 to 0.9), a ConvNeXt Base 37 (0.95).
        weight_decay: Decay of weights.
        decay_all: Also decay biases, norms and queries, as Query2Label's code does.
        betas: Decay rates of the gradient's moments; not for `sgd`.
        momentum: For `sgd`.
        clip_norm: Largest gradient norm; None does not clip.
    """

    name: Literal["adam", "adamw", "lamb", "sgd"] = "adamw"
    lr: PositiveFloat = 1e-4
    backbone_lr: PositiveFloat | None = None
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    weight_decay: float = Field(default=1e-2, ge=0)
    decay_all: bool = False
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    momentum: Fraction = 0.9
    clip_norm: PositiveFloat | None = 1.0


class ScheduleRecipe(Config):
    """The learning rate over the steps.

    Attributes:
        name: Shape of the schedule.
        warmup: Share of all steps in which the rate rises.
        final: The last rate, as a share of the highest; not for `constant` and `step`.
        drops: For `step`: after which shares of all steps the rate becomes a tenth.
        momentum: For `one-cycle`: the first beta (the momentum of `sgd`) at the lowest and at the highest rate, as
            torch's OneCycleLR has them; None keeps the optimizer's.
    """

    name: Literal["one-cycle", "cosine", "constant", "step"] = "one-cycle"
    warmup: Fraction = 0.2
    final: float = Field(default=0.0, ge=0)
    drops: tuple[Fraction, ...] = ()
    momentum: tuple[Fraction, Fraction] | None = None

    @model_validator(mode="after")
    def _of_its_schedule(self) -> Self:
        if self.momentum is not None and self.name != "one-cycle":
            raise ValueError("momentum is for the one-cycle schedule; leave it out")
        if bool(self.drops) != (self.name == "step"):
            raise ValueError("the step schedule needs drops, e.g. [0.4, 0.8], and no other schedule has them")
        return self


class Recipe(Config):
    """Everything that decides how a model is trained.

    Attributes:
        description: What the recipe reproduces, and where its numbers come from.
        data: The images and labels.
        model: Backbone, head and preprocessing.
        augmentation: Augmentation of the training images.
        mixup: Alpha of MixUp; 0 for none.
        cutmix: Alpha of CutMix; 0 for none.
        pair_mix: Probability that a step joins each image's feature map with another's, with the labels of both.
        loss: The loss and its options.
        optimizer: The optimizer.
        schedule: The learning rate over the steps.
        epochs: Passes over the training images.
        min_steps: Fewer steps than this become more epochs: 8 epochs of 100 images would be over before anything is
            learned.
        batch_size: Images per step, of all processes together.
        accumulate: Backward steps per optimizer step; `batch_size` counts one of them. Weights and rates are those of
            one batch that is so many times larger; batch norms still see the small ones.
        grad_checkpointing: Compute the backbone's activations again in the backward pass instead of keeping them: the
            same numbers with much less memory and about a third more time.
        sync_batch_norm: Batch norms share their statistics among all processes, for few images on each GPU.
        ema: Decay of averaged weights; 0 for none. After each epoch the raw and the averaged weights are validated, and
            the better ones count.
        ema_warmup: Let the decay rise slowly, so that a short training forgets its first steps.
        early_stop: Stop after this many epochs without a better validation score.
        refit: At the end, learn from the validation images too: this share of the epochs again, on training and
            validation images together, from the best weights and with a low rate that falls to zero. Thresholds and
            scores are those from before, when the validation images were still new to the model.
        thresholds: Rule for the thresholds, fitted with the calibration on the validation images at the end: `auto`, or
            `f1` for the best F1 on these very images.
        precision: Number format of the computation; `auto` is `bf16-mixed` where the processor or GPU computes with
            bfloat16, else `32-true`.
        strategy: How several processes share the work; `auto` is `ddp` if there are several.
        workers: Processes that load images, if the backbone is trained too; features are computed on all cores.
        checkpoint_minutes: Time between checkpoints within an epoch; each epoch also ends with one.
        timeout_minutes: How long several processes wait for one that does not answer before they take it for lost.
        seed: Seed of everything random; the same seed gives the same weights.
    """

    renamed: ClassVar = {"union": "pair_mix"}

    description: str = ""
    data: DataRecipe = DataRecipe()
    model: ModelRecipe = ModelRecipe()
    augmentation: AugmentationConfig = AugmentationConfig()
    mixup: float = Field(default=0.0, ge=0)
    cutmix: float = Field(default=0.0, ge=0)
    pair_mix: float = Field(default=0.0, ge=0, le=1)
    loss: LossRecipe = LossRecipe()
    optimizer: OptimizerRecipe = OptimizerRecipe()
    schedule: ScheduleRecipe = ScheduleRecipe()
    epochs: PositiveInt = 20
    min_steps: NonNegativeInt = 0
    batch_size: PositiveInt = 64
    accumulate: PositiveInt = 1
    grad_checkpointing: bool = False
    sync_batch_norm: bool = False
    ema: Fraction = 0.0
    ema_warmup: bool = False
    early_stop: PositiveInt | None = None
    refit: Fraction = 0.0
    thresholds: Literal["auto", "f1", "none"] = "auto"
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed"] = "32-true"
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    workers: NonNegativeInt = 2
    checkpoint_minutes: PositiveFloat = 10.0
    timeout_minutes: PositiveFloat = 10.0
    seed: int = Field(default=0, ge=0, lt=2**31)

    def with_enough_epochs(self, steps: int) -> Recipe:
        """The recipe with as many epochs as `min_steps` needs, at `steps` optimizer steps in each.

        >>> Recipe(epochs=8, min_steps=400).with_enough_epochs(3).epochs
        134
        """
        return self.model_copy(update={"epochs": max(self.epochs, -(-self.min_steps // steps))})

    def refitting(self, train: str) -> Recipe:
        """The recipe of the last part, `refit`, on the splits `train`.

        >>> last = Recipe(epochs=8, refit=0.25, optimizer=OptimizerRecipe(lr=0.75)).refitting("train+val")
        >>> last.epochs, last.optimizer.lr, last.data.train, last.data.validation
        (2, 0.25, 'train+val', None)
        """
        rates = {name: rate / 3 for name in ("lr", "backbone_lr") if (rate := getattr(self.optimizer, name))}
        return self.model_copy(
            update={
                "data": self.data.model_copy(update={"train": train, "validation": None}),
                "epochs": max(1, round(self.refit * self.epochs)),
                "optimizer": self.optimizer.model_copy(update=rates),
                "schedule": ScheduleRecipe(name="cosine", warmup=0.0),
                "ema": 0.0,  # the best weights are one set: those in training, or their average
                "early_stop": None,
            }
        )


# The default recipe; recipes/own-photos.yaml says the same, line by line.
OWN_PHOTOS = Recipe(
    description="Defaults for your own images: a head on a frozen, pretrained backbone, in minutes on a CPU.",
    model=ModelRecipe(freeze="backbone", size=224, head="hsq-baseline", options={"dim": 256, "token_dropout": 0.5}),
    augmentation=AugmentationConfig(flip=0.0, cutout=0.0, policy="none"),
    pair_mix=0.5,
    optimizer=OptimizerRecipe(lr=6e-4),
    epochs=6,
    min_steps=400,
    refit=0.15,
    batch_size=32,
    precision="auto",
)


def load_recipe(path: str | Path | None, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe and change some of its settings.

    Args:
        path: A YAML file; None for the default, a query head on a frozen, pretrained backbone.
        changes: Settings by their dotted keys. Without a file, a run in `model.start` also gives its data, model, loss
            and seed, so that its splits stay the same.

    >>> load_recipe(None, {"optimizer.lr": 1e-3, "model.head": "gap"}).optimizer.lr
    0.001
    """
    changes = changes or {}
    values: Any = OWN_PHOTOS.model_dump(mode="json")
    where = "recipe"
    if path is not None:
        where = f"recipe {str(path)!r}"
        values = _read(Path(path), where)
    elif (
        isinstance(start := changes.get("model.start"), str)
        and (earlier := run_candidates(start)[0] / RECIPE).is_file()
    ):
        values |= run_recipe(earlier.parent).model_dump(mode="json", include={"data", "model", "loss", "seed"})
    if path is None and tower_words(str(changes.get("model.backbone"))):
        values["model"]["size"] = None  # its own: more than in other backbones depends on it
    if "model.head" in changes and isinstance(values.get("model"), dict):
        head = preset(str(changes["model.head"]))
        _keep_what_fits(values["model"], {**head.option_parts(), **head.renamed_options()})
    if "loss.name" in changes:
        check_loss(str(changes["loss.name"]))
        if isinstance(values.get("loss"), dict) and values["loss"].get("options"):
            from labelwise.losses import loss_options  # needs PyTorch

            _keep_what_fits(values["loss"], loss_options(str(changes["loss.name"])))
    changes = {Recipe.renamed.get(key, key): value for key, value in changes.items()}
    if "epochs" in changes:  # who names a number of epochs means it
        changes = {"min_steps": 0, **changes}
    for old, new in Recipe.renamed.items():  # a file with the old name, and a change under either one
        if new in changes and old in values:
            values[new] = values.pop(old)
    for dotted, value in changes.items():
        _set(values, dotted.split("."), value, dotted)
    recipe = Recipe.parse(values, where, files=True)
    by_default = path is None and "pair_mix" not in changes
    if by_default and (recipe.model.task == "single-label" or recipe.loss.has("remembers")):
        recipe = recipe.model_copy(update={"pair_mix": 0.0})
    return recipe


def run_recipe(folder: Path) -> Recipe:
    """The recipe that a run saved. It holds values alone: the run may be a stranger's, and opens no file here."""
    where = f"recipe {str(folder / RECIPE)!r}"
    return Recipe.parse(_read(folder / RECIPE, where), where)


def own_data(recipe: Recipe) -> str | None:
    """The data that a run was trained on, to read it again; an error if its path leads nowhere from here."""
    if (source := recipe.data.source) is not None and not is_streamed(source):
        path = Path(parse_source(source).path)
        if not path.is_absolute() and not path.exists():
            raise LabelwiseError(
                f"the run was trained on {str(path)!r}, which is not in {str(Path.cwd())!r}; go to the folder where it "
                "was trained, or name the data",
                options={"data": ...},
            )
    return source


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
    """Write a recipe with all its defaults, so that the file reruns the training even after defaults have changed."""
    atomic_write(path, yaml_text(recipe.model_dump(mode="json")))


def _read(path: Path, where: str) -> dict[str, Any]:
    try:
        values = read_yaml(path) or {}
    except (OSError, ValueError) as error:
        raise LabelwiseError(f"{where} cannot be read: {one_line(error)[:300]}") from None
    if not isinstance(values, dict):
        raise LabelwiseError(f"{where} is not a YAML mapping of 'key: value' lines")
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
