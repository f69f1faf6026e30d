"""The image tower of an open_clip model (CLIP, SigLIP, SigLIP 2): a timm backbone and a text-aligned head's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import timm
import torch
from timm.models import VisionTransformer
from torch import Tensor
from torch.nn import functional as F

from labelwise.core.errors import LabelwiseError, one_line
from labelwise.heads import Head, HeadConfig, TextAlignedHead
from labelwise.heads.text_configs import TextAlignedConfig
from labelwise.words import WordsConfig, open_words
from labelwise.words.encoders import clip_model
from labelwise.words.prompts import PromptEncoder

State = dict[str, Tensor]
# open_clip's own ViTs, by width, layers and pixels of a patch. Its other towers are timm's and tell their names.
_VITS = {
    (256, 10, 16): "vit_xsmall_patch16_clip",
    (512, 12, 16): "vit_medium_patch16_clip",
    (512, 12, 32): "vit_medium_patch32_clip",
    (640, 12, 32): "vit_betwixt_patch32_clip",
    (768, 12, 16): "vit_base_patch16_clip",
    (768, 12, 32): "vit_base_patch32_clip",
    (1024, 24, 14): "vit_large_patch14_clip",
    (1280, 32, 14): "vit_huge_patch14_clip",
    (1408, 40, 14): "vit_giant_patch14_clip",
    (1664, 48, 14): "vit_gigantic_patch14_clip",
}


@dataclass(frozen=True)
class Tower:
    """What a model takes from an open_clip model.

    Args:
        name: The backbone in timm.
        state: Its tensors, as timm reads them.
        head_options: Of a text-aligned head.
        head_state: Its tensors: pooling, projection, scale and bias.
        size: Of its images, in pixels.
        normalisation: Mean, standard deviation and interpolation of its inputs.
        has_bias: Whether its logits were trained for independent labels (SigLIP), not for a choice among texts (CLIP).
    """

    name: str
    state: State
    head_options: dict[str, Any]
    head_state: State
    size: int
    normalisation: dict[str, Any]
    has_bias: bool

    def backbone_options(self, size: int | None, *, with_class_token: bool) -> dict[str, Any]:
        token = with_class_token and self.head_options["pool"] == "token"
        return {"name": self.name, "size": size or self.size, "class_token": token}

    def weights(self, asked_for: str) -> State | str:
        if asked_for not in ("auto", "none"):
            raise LabelwiseError("an open_clip model brings its own weights", options={"weights": "auto"})
        return self.state if asked_for == "auto" else "none"

    @torch.no_grad()
    def fill(self, head: Head, words: WordsConfig) -> None:
        """Give a text-aligned head the tower's tensors.

        CLIP's logits only rank texts. A label applies if its prompt fits better than the same prompt without a label:
        their difference is the logit. Under a softmax over the labels it makes no difference. Where each label has a
        negative text of its own, the two are compared without a bias.
        """
        try:
            head.load_state_dict({**head.state_dict(), **self.head_state})
        except RuntimeError as error:
            raise LabelwiseError(
                f"the words or options of the head do not fit its tower: {one_line(error)[:200]}"
            ) from None
        if isinstance(head.config, TextAlignedConfig) and head.config.prompts == "dualcoop":
            head.get_parameter("logit_bias").zero_()
        elif not self.has_bias:
            without = open_words(words).vectors([""])[0]
            head.get_parameter("negative").copy_(F.normalize(without, dim=0))


def text_tower(head: HeadConfig, words: WordsConfig | None, labels: Sequence[str]) -> PromptEncoder | None:
    """What trains the vectors before the labels' names (`TextAlignedConfig.prompts`); None for all other heads."""
    if not isinstance(head, TextAlignedConfig) or not head.trains_text:
        return None
    if words is None:
        raise LabelwiseError("prompts are trained through a text tower", options={"words": "clip:ViT-B-32/openai"})
    return PromptEncoder(open_words(words), labels, head.context)


@torch.no_grad()
def attach_text_tower(head: Head, tower: PromptEncoder | None) -> None:
    """Make a head trainable whose prompts go through the text tower; other heads have none and stay as they are."""
    if tower is not None:
        assert isinstance(head, TextAlignedHead)
        head.text_tower = tower
        if tower.starts_at_words:
            head.context.copy_(tower.words)


def open_tower(source: str) -> Tower:
    """The image tower of an open_clip model.

    Args:
        source: `clip:MODEL/PRETRAINED` or `clip:FOLDER`, as for word vectors.
    """
    model = clip_model(source)
    visual = model.visual
    try:
        found = _timm_tower(visual) if hasattr(visual, "trunk") else _native_tower(visual)
    except LabelwiseError as error:
        raise LabelwiseError(f"the image tower of {source!r} {error.message}") from None
    name, state, options, head_state = found
    bias = getattr(model, "logit_bias", None)
    head_state |= {"logit_scale": model.logit_scale.reshape(()), "logit_bias": _scalar(bias)}
    size = visual.image_size[0] if isinstance(visual.image_size, tuple) else visual.image_size
    settings = visual.preprocess_cfg
    normalisation = {
        "mean": tuple(settings["mean"]),
        "std": tuple(settings["std"]),
        "interpolation": "bilinear" if settings["interpolation"] == "bilinear" else "bicubic",
    }
    head_options = {"train_projection": False, "project": "project.weight" in head_state, **options}
    detached = {key: value.detach() for key, value in head_state.items()}
    return Tower(name, state, head_options, detached, size, normalisation, bias is not None)


_Found = tuple[str, State, dict[str, Any], State]  # name, tensors of the backbone, options and tensors of the head


def _native_tower(visual: Any) -> _Found:
    """open_clip's own ViT: a class token and a projection, [width, d]."""
    blocks: Any = getattr(getattr(visual, "transformer", None), "resblocks", ())
    first = visual.conv1
    name = _VITS.get((first.out_channels, len(blocks), first.kernel_size[0])) if len(blocks) else None
    if name is None or visual.attn_pool is not None or visual.proj is None:
        raise LabelwiseError("is not one that timm has; these work: " + ", ".join(sorted(_VITS.values())))
    quick = "_quickgelu" if type(blocks[0].mlp.gelu).__name__ == "QuickGELU" else ""
    name = f"{name}{quick}_224"
    if not timm.is_model(name):
        raise LabelwiseError(f"would be {name!r}, which timm does not have")
    state = {f"visual.{key}": value for key, value in visual.state_dict().items() if key != "proj"}
    options = {"pool": "token", "word_dim": visual.proj.shape[1]}
    return name, state, options, {"project.weight": visual.proj.T.contiguous()}


def _timm_tower(visual: Any) -> _Found:
    """A ViT of timm with a class token, or with attention pooling as in SigLIP."""
    trunk, pool = visual.trunk, getattr(visual.trunk, "global_pool", None)
    projections = dict(visual.head.named_children())
    if not isinstance(trunk, VisionTransformer) or pool not in ("token", "map") or set(projections) - {"drop", "proj"}:
        raise LabelwiseError("is not a ViT with a class token or attention pooling, and at most a linear projection")
    state = {key: value for key, value in trunk.state_dict().items() if not key.startswith("attn_pool.")}
    projection = projections.get("proj")
    head_state = {} if projection is None else {"project.weight": projection.weight}
    options = {"pool": "token", "word_dim": trunk.num_features if projection is None else projection.out_features}
    if pool == "map":
        options |= _pool_options(trunk.attn_pool)
        head_state |= _pool_state(trunk.attn_pool.state_dict())
    return str(trunk.pretrained_cfg["architecture"]), state, options, head_state


def _pool_options(pool: Any) -> dict[str, Any]:
    activation = pool.mlp.act
    tanh = type(activation).__name__ == "GELUTanh" or getattr(activation, "approximate", "none") == "tanh"
    return {
        "pool": "attention",
        "attention_heads": pool.num_heads,
        "feedforward": pool.mlp.fc1.out_features,
        "activation": "gelu-tanh" if tanh else "gelu",
    }


def _pool_state(theirs: Mapping[str, Tensor]) -> State:
    """timm's `AttentionPoolLatent` in the names of ours."""
    state = {"pool.query": theirs["latent"]}
    for part in ("weight", "bias"):
        state[f"pool.attention.in_proj_{part}"] = torch.cat((theirs[f"q.{part}"], theirs[f"kv.{part}"]))
        state[f"pool.attention.out_proj.{part}"] = theirs[f"proj.{part}"]
        state[f"pool.norm.{part}"] = theirs[f"norm.{part}"]
        state[f"pool.linear1.{part}"] = theirs[f"mlp.fc1.{part}"]
        state[f"pool.linear2.{part}"] = theirs[f"mlp.fc2.{part}"]
    return state


def _scalar(value: Tensor | None) -> Tensor:
    return torch.zeros(()) if value is None else value.reshape(())
