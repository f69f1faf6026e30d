"""Any timm model as a backbone: images [B, 3, H, W] -> one feature map [B, C, h, w]."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Self

import timm
import torch
from pydantic import Field
from timm.models import group_parameters
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from labelwise.backbones.weights import fetch_weights
from labelwise.core.config import Config
from labelwise.core.errors import LabelwiseError
from labelwise.data.preprocessing import ImageSize, Preprocessing

EARLY = 0.75  # of the groups of layers: a ResNet's stem and first two stages, a ViT's stem and first eight blocks


def early_parameters(model: Any) -> list[nn.Parameter]:
    """Those of a timm model's first groups: its stem, stages or blocks, as its own matcher orders them."""
    try:
        matcher = model.group_matcher(coarse=True)
    except (AttributeError, AssertionError):  # a few families of timm have none, or none that is coarse
        raise LabelwiseError(
            "this backbone does not say in which order its layers come; use freeze none or backbone"
        ) from None
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    groups = group_parameters(model, matcher)  # {place in the order: names}
    groups = {place: found for place, names in groups.items() if (found := learning.keys() & set(names))}
    early = sorted(groups)[: int(len(groups) * EARLY)]
    return [learning[name] for place in early for name in groups[place]]


def put_channels_last(module: nn.Module) -> None:
    """Convolutions are faster so, most of all on a CPU. `module.to` would refuse the rare models with 3-D ones."""
    for parameter in module.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


class BackboneConfig(Config):
    name: str  # as timm spells it, with or without a tag for the weights
    stage: int = -1  # which feature map: -1 is the last, -2 the one before
    size: ImageSize | None = None  # input size in pixels; None: the one the weights were trained at
    drop_path: float = Field(default=0.0, ge=0, lt=1)  # stochastic depth in training: the last block's chance to be out


def list_backbones(pattern: str = "*") -> list[str]:
    """Names of timm's models that match a wildcard pattern.

    >>> list_backbones("tresnet_[ml]")
    ['tresnet_l', 'tresnet_m']
    """
    names: list[str] = timm.list_models(pattern)
    return names


class Backbone(nn.Module):
    """The map comes from `forward_intermediates`, which all families of timm share: no surgery on attributes."""

    def __init__(self, config: BackboneConfig, weights: str = "none") -> None:
        """`weights`: none, hub, package, auto (package if installed, else hub) or the path of a file."""
        super().__init__()
        self.frozen: tuple[nn.Module, ...] = ()
        pretrained = _known_pretrained_config(config.name)
        size = config.size or pretrained.input_size[-1]
        self.config = config.model_copy(update={"size": size})
        self.model = _create(config, size, pretrained.fixed_input_size, weights)
        stages = [stage["num_chs"] for stage in _feature_info(self.model, config.name)]
        if not -len(stages) <= config.stage < len(stages):
            raise LabelwiseError(f"backbone {config.name!r} has no stage {config.stage}; it has {len(stages)} stages")
        stage = config.stage % len(stages)
        stride = _feature_info(self.model, config.name)[-1]["reduction"]
        if pretrained.fixed_input_size and size % stride:
            raise LabelwiseError(f"backbone {config.name!r} takes sizes that are multiples of {stride}, not {size}")
        # EfficientNet and its kin end in a 1x1 convolution that belongs to no stage. The features that the weights were
        # trained for come after it: for the last stage take the network's final map, which is NCHW in those families.
        self.ends_in_projection = stage == len(stages) - 1 and stages[-1] != self.model.num_features
        if self.ends_in_projection:
            self.indices = [stage]
            self.channels = int(self.model.num_features)
            self.model.reset_classifier(0, "")
        else:
            # Layers behind the chosen map would only cost memory, and stop DDP for want of a gradient.
            self.indices = self.model.prune_intermediate_layers([stage], prune_norm=False, prune_head=True)
            self.channels = int(stages[stage])
        for rest in ("head", "fc", "fc_norm", "classifier"):  # norms that some families keep beside the classifier
            if isinstance(module := getattr(self.model, rest, None), nn.Module):
                module.requires_grad_(False)

    def freeze_early(self) -> None:
        """Its first layers stay as they are in training: they see edges and textures, which all photos have.

        Batch norms behind them learn weights, but keep the statistics that the weights before them were trained with:
        those of small batches are so different that they cost more than the training wins (docs/research/study.md).
        """
        for parameter in early_parameters(self.model):
            parameter.requires_grad_(False)
        self.frozen = tuple(
            module for module in self.model.modules() if _is_frozen(module) or isinstance(module, _BatchNorm)
        )
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for module in self.frozen:
            module.train(False)  # or batch norms would use and count a batch's statistics
        return self

    def forward(self, images: Tensor) -> Tensor:
        if self.ends_in_projection:
            final: Tensor = self.model.forward_intermediates(images, indices=self.indices)[0]
            return final
        options: dict[str, Any] = {"norm": True, "output_fmt": "NCHW", "intermediates_only": True}
        maps: list[Tensor] = self.model.forward_intermediates(images, indices=self.indices, **options)
        return maps[0]

    def preprocessing(self) -> Preprocessing:
        """What the weights expect of a picture; pictures are squashed to a square, which cuts no object off."""
        expected = timm.data.resolve_model_data_config(self.model)
        return Preprocessing(
            size=self.config.size or expected["input_size"][-1],
            mean=expected["mean"],
            std=expected["std"],
            interpolation="bicubic" if expected["interpolation"] == "bicubic" else "bilinear",
        )


def _is_frozen(module: nn.Module) -> bool:
    parameters = list(module.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


def _known_pretrained_config(name: str) -> Any:
    if not timm.is_model(name):
        near = get_close_matches(name, timm.list_models(), n=3)
        guess = f"did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
        raise LabelwiseError(f"unknown backbone {name!r}; {guess}List them with: labelwise backbones 'resnet*'")
    _, _, tag = name.partition(".")
    tags = [full.partition(".")[2] for full in timm.list_pretrained(name.partition(".")[0] + ".*")]
    if tag and tag not in tags:
        raise LabelwiseError(f"backbone {name!r} has no weights {tag!r}; it has: {', '.join(tags) or 'none'}")
    return timm.get_pretrained_cfg(name)


def _create(config: BackboneConfig, size: int, fixed_input_size: bool, weights: str) -> Any:
    """The timm model; where its input size is fixed at creation, built for `size` and as flexible as it can be."""
    depth = {"drop_path_rate": config.drop_path} if config.drop_path else {}
    flexible = [{"strict_img_size": False}, {"dynamic_img_size": True}, {}] if fixed_input_size else [{}]
    for options in flexible:
        try:
            sized = {"img_size": size, **options} if fixed_input_size else {}
            return fetch_weights(config.name, weights, {**depth, **sized})
        except TypeError as error:  # families spell this option differently; a constructor refuses others'
            refusal = error
    if "drop_path_rate" in str(refusal):
        raise LabelwiseError(f"backbone {config.name!r} has no stochastic depth; leave out drop_path")
    raise refusal


def _feature_info(model: Any, name: str) -> list[dict[str, Any]]:
    if not hasattr(model, "forward_intermediates"):
        raise LabelwiseError(f"backbone {name!r} cannot give feature maps (no forward_intermediates in timm)")
    info = model.feature_info
    return list(getattr(info, "info", info))
