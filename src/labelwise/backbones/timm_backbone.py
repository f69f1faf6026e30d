"""Any timm model as a backbone: images [B, 3, H, W] -> one feature map [B, C, h, w]."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Self

import timm
import torch
from timm.models import VisionTransformer, group_parameters
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from labelwise.backbones import tresnet as _tresnet  # noqa: F401 (registers its models in timm)
from labelwise.backbones.config import BackboneConfig
from labelwise.backbones.weights import fetch_weights
from labelwise.core.errors import LabelwiseError
from labelwise.data.preprocessing import Preprocessing

EARLY = 0.75  # of the groups of layers: a ResNet's stem and first two stages, a ViT's stem and first eight blocks


class Backbone(nn.Module):
    """Any timm model: images [B, 3, H, W] -> one feature map [B, C, h, w].

    The map comes from `forward_intermediates`, which all families of timm share: no surgery on attributes.

    Args:
        config: Which model and which of its maps.
        weights: "none", "hub", "package", "auto" (package if installed, else hub), the path of a file, or a state dict.
    """

    def __init__(self, config: BackboneConfig, weights: str | Mapping[str, Tensor] = "none") -> None:
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
        # EfficientNet and similar families end in a 1x1 convolution that belongs to no stage. The pretrained features
        # come after it: the last stage is the network's final map, which is NCHW in those families.
        self.ends_in_projection = stage == len(stages) - 1 and stages[-1] != self.model.num_features
        if self.ends_in_projection:
            self.indices = [stage]
            self.channels = int(self.model.num_features)
            self.model.reset_classifier(0, "")
        else:
            # Layers after the chosen map would only cost memory, and DDP fails on parameters without a gradient.
            self.indices = self.model.prune_intermediate_layers([stage], prune_norm=False, prune_head=True)
            self.channels = int(stages[stage])
        if config.class_token:
            if not (isinstance(self.model, VisionTransformer) and self.model.has_class_token and stage):
                raise LabelwiseError(f"backbone {config.name!r} has no class token; leave out class_token")
            self.indices = [stage - 1, stage]
            self.channels *= 2
        for rest in ("head", "fc", "fc_norm", "classifier"):  # norms that some families have next to the classifier
            if isinstance(module := getattr(self.model, rest, None), nn.Module):
                module.requires_grad_(False)

    def freeze_early(self) -> None:
        """Keep the first layers fixed in training: they detect edges and textures, which all images have.

        Later batch norms learn weights but keep their pretrained statistics: those of small batches are so different
        that they cost more than the training gains (docs/research/study.md).
        """
        groups = ordered_groups(self.model)
        self._freeze(groups[: int(len(groups) * EARLY)])

    def freeze_stem(self) -> None:
        """Keep the weights of the stem and the first stage fixed; batch norms follow the batches: Query2Label on
        TResNets."""
        for parameter in itertools.chain(*ordered_groups(self.model)[:2]):
            parameter.requires_grad_(False)

    def freeze_stem_and_norms(self) -> None:
        """Keep the stem, the first stage and all batch norms fixed, weights and statistics: Query2Label on ResNets."""
        norms = [list(module.parameters()) for module in self.model.modules() if isinstance(module, _BatchNorm)]
        self._freeze([*ordered_groups(self.model)[:2], *norms])

    def _freeze(self, groups: list[list[nn.Parameter]]) -> None:
        """No gradient for these parameters, and no new statistics for any batch norm."""
        for parameter in itertools.chain(*groups):
            parameter.requires_grad_(False)
        self.frozen = tuple(
            module for module in self.model.modules() if _is_frozen(module) or isinstance(module, _BatchNorm)
        )
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for module in self.frozen:
            module.train(False)  # otherwise batch norms would use, and update, statistics of the batch
        return self

    def forward(self, images: Tensor) -> Tensor:
        if self.ends_in_projection:
            final: Tensor = self.model.forward_intermediates(images, indices=self.indices)[0]
            return final
        if self.config.class_token:
            return self._with_class_token(images)
        options: dict[str, Any] = {"norm": True, "output_fmt": "NCHW", "intermediates_only": True}
        maps: list[Tensor] = self.model.forward_intermediates(images, indices=self.indices, **options)
        return maps[0]

    def _with_class_token(self, images: Tensor) -> Tensor:
        """Patches and the class token: [B, 2C, h, w]."""
        options: dict[str, Any] = {"return_prefix_tokens": True, "output_fmt": "NCHW", "intermediates_only": True}
        (before, _), (_, prefix) = self.model.forward_intermediates(images, indices=self.indices, **options)
        # A sequence of one: its attention is 1, so that the value of the patch itself is all that it reads.
        alone = before.flatten(2).transpose(1, 2).flatten(0, 1).unsqueeze(1)  # [B * T, 1, C]
        patches = self.model.norm(self.model.blocks[-1](alone)).view(before.shape[0], -1, before.shape[1])
        token = self.model.norm(prefix[:, 0])[:, :, None, None].expand(before.shape)
        return torch.cat((patches.transpose(1, 2).view(before.shape), token), dim=1)

    def preprocessing(self) -> Preprocessing:
        """The preprocessing that the weights expect. Images are squashed to a square, which cuts nothing off."""
        expected = timm.data.resolve_model_data_config(self.model)
        return Preprocessing(
            size=self.config.size or expected["input_size"][-1],
            mean=expected["mean"],
            std=expected["std"],
            interpolation="bicubic" if expected["interpolation"] == "bicubic" else "bilinear",
        )


def list_backbones(pattern: str = "*") -> list[str]:
    """Names of timm's models that match a wildcard pattern.

    Args:
        pattern: As in a shell, e.g. "convnext*".

    >>> list_backbones("tresnet_[ml]")
    ['tresnet_l', 'tresnet_m']
    """
    names: list[str] = timm.list_models(pattern)
    return names


def ordered_groups(model: Any, *, coarse: bool = True) -> list[list[nn.Parameter]]:
    """The parameters of a timm model by groups, in the order of timm's own matcher.

    Args:
        model: The timm model.
        coarse: Stem, then stages; otherwise single blocks. Some families have only blocks.
    """
    try:
        matcher = model.group_matcher(coarse=coarse)
    except (AttributeError, AssertionError):  # a few families of timm have none, or none that is coarse
        raise LabelwiseError(
            "timm does not say in which order the layers of this backbone come", options={"freeze": "backbone"}
        ) from None
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    groups = group_parameters(model, matcher)  # {position in the order: names}
    groups = {order: found for order, names in groups.items() if (found := learning.keys() & set(names))}
    return [[learning[name] for name in groups[order]] for order in sorted(groups)]


def put_channels_last(module: nn.Module) -> None:
    """Convolutions are faster in this memory order, most of all on a CPU. `module.to` refuses models with 3-D ones."""
    for parameter in module.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


def _is_frozen(module: nn.Module) -> bool:
    parameters = list(module.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


def _known_pretrained_config(name: str) -> Any:
    if not timm.is_model(name):
        near = get_close_matches(name, timm.list_models(), n=3)
        guess = f"did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
        raise LabelwiseError(
            f"unknown backbone {name!r}; {guess}`labelwise backbones` and backbones.list_backbones() list them"
        )
    _, _, tag = name.partition(".")
    tags = [full.partition(".")[2] for full in timm.list_pretrained(name.partition(".")[0] + ".*")]
    if tag and tag not in tags:
        raise LabelwiseError(f"backbone {name!r} has no weights {tag!r}; it has: {', '.join(tags) or 'none'}")
    return timm.get_pretrained_cfg(name)


def _create(config: BackboneConfig, size: int, fixed_input_size: bool, weights: str | Mapping[str, Tensor]) -> Any:
    """The timm model; if its input size is fixed at creation, built for `size` and as flexible as it can be."""
    depth = {"drop_path_rate": config.drop_path} if config.drop_path else {}
    flexible = [{"strict_img_size": False}, {"dynamic_img_size": True}, {}] if fixed_input_size else [{}]
    for options in flexible:
        try:
            sized = {"img_size": size, **options} if fixed_input_size else {}
            return fetch_weights(config.name, weights, {**depth, **sized})
        except TypeError as error:  # families name this option differently, and constructors refuse unknown ones
            refusal = error
    if "drop_path_rate" in str(refusal):
        raise LabelwiseError(f"backbone {config.name!r} has no stochastic depth; leave out drop_path")
    raise refusal


def _feature_info(model: Any, name: str) -> list[dict[str, Any]]:
    if not hasattr(model, "forward_intermediates"):
        raise LabelwiseError(f"backbone {name!r} cannot give feature maps (no forward_intermediates in timm)")
    info = model.feature_info
    return list(getattr(info, "info", info))
