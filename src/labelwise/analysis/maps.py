"""Where a model looked for a label: its cross-attention, or Grad-CAM for any head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from labelwise.core.errors import LabelwiseError
from labelwise.data.labels import unknown_label
from labelwise.heads import list_heads, preset
from labelwise.loading.augment import eval_transform
from labelwise.model.model import LabelModel
from labelwise.model.network import evaluating, given
from labelwise.runtime.prediction import attention_caption

Method = Literal["attention", "grad-cam"]


def grad_cam(model: LabelModel, images: Tensor, labels: Tensor, known: Tensor | None = None) -> Tensor:
    """Grad-CAM (Selvaraju et al., ICCV 2017): maps [B, n, H, W] >= 0 of the labels with indices `labels` [B, n] in
    `images` [B, 3, size, size]. `known` [B, N] is what the model is told of them.

    With average pooling and a linear layer this is CAM (Zhou et al., CVPR 2016).
    """
    with evaluating(model):
        with torch.no_grad():
            features = model.backbone(images)  # [B, C, H, W]; the backbone needs no gradients
        with torch.enable_grad():
            features = features.requires_grad_()
            logits = model.head(features, **given(known)).gather(1, labels)  # [B, n]
            maps = []
            for column in logits.unbind(dim=1):
                # Images are independent, so the gradient of the sum holds that of each image.
                (gradient,) = torch.autograd.grad(column.sum(), features, retain_graph=True)
                weights = gradient.mean(dim=(2, 3), keepdim=True)  # [B, C, 1, 1], eq. 1
                maps.append((weights * features).sum(dim=1).relu().detach())  # [B, H, W], eq. 2
    return torch.stack(maps, dim=1)


def natural_method(model: LabelModel) -> Method:
    """Attention if the head has any, else Grad-CAM."""
    return "attention" if model.config.head.has_attention else "grad-cam"


def label_maps(
    model: LabelModel,
    images: Tensor,
    labels: Tensor,
    *,
    method: Method | None = None,
    layer: int | None = None,
    head: int | None = None,
    known: Tensor | None = None,
) -> Tensor:
    """Maps of where a model looked for some labels.

    Args:
        model: The model.
        images: Preprocessed images [B, 3, size, size].
        labels: Indices of the labels [B, n].
        method: `attention` or `grad-cam`; by default attention if the head has any.
        layer: Decoder layer, counted from 1; by default the last.
        head: Attention head, counted from 1; by default the mean of all.
        known: What the model is told of the images, [B, N]: 1 for labels that are there, 0 for absent ones, -1 for
            all others.

    Returns:
        Maps [B, n, H, W]. Each sums to 1; Grad-CAM's may be all 0 if nothing supports the label.
    """
    method = method or natural_method(model)
    if method == "grad-cam":
        if layer is not None or head is not None:
            raise LabelwiseError("Grad-CAM has neither layers nor attention heads; leave them out")
        maps = grad_cam(model, images, labels, known)
        return maps / maps.sum(dim=(2, 3), keepdim=True).clamp(min=1e-12)
    if not model.config.head.has_attention:
        able = ", ".join(name for name in list_heads() if preset(name).has_attention)
        raise LabelwiseError(
            f"a model with the head {model.config.head.kind!r} has no attention to show (heads that have: {able})",
            options={"method": "grad-cam"},
        )
    with evaluating(model), torch.inference_mode():
        details = model.details(images, known)
    chosen = details.attention_layers[_index("layer", layer, len(details.attention_layers), default=-1)]
    # [B, K, H, W]
    maps = chosen.mean(dim=1) if head is None else chosen[:, _index("head", head, chosen.shape[1])]
    queries = details.label_query[labels]  # [B, n]
    return maps.gather(1, queries[:, :, None, None].expand(-1, -1, *maps.shape[2:]))


def maps_of(
    model: LabelModel,
    image: Image.Image,
    labels: Sequence[str],
    *,
    method: Method | None = None,
    layer: int | None = None,
    head: int | None = None,
    known: NDArray[np.float32] | None = None,
) -> dict[str, NDArray[np.float32]]:
    """`label_maps` of one image by the labels' names, [H, W] each. They cover what the model saw of the image. `known`
    is of `Tagger.known_labels`, [N]."""
    for label in labels:
        if label not in model.labels:
            raise unknown_label(label, model.labels)
    seen = eval_transform(model.config.preprocessing)(image)[None].to(next(model.parameters()).device)
    numbers = torch.tensor([[model.labels.index(label) for label in labels]], device=seen.device)
    told = None if known is None else torch.from_numpy(known)[None].to(seen)
    maps = label_maps(model, seen, numbers, method=method, layer=layer, head=head, known=told)[0]
    return dict(zip(labels, maps.float().cpu().numpy(), strict=True))


def map_caption(model: LabelModel, method: Method | None, layer: int | None, head: int | None) -> str:
    """What a map shows, as a caption."""
    if (method or natural_method(model)) == "grad-cam":
        return "Grad-CAM"
    return attention_caption(layer, head)


def _index(what: str, number: int | None, count: int, default: int = 0) -> int:
    """The index of a number that counts from 1."""
    if number is None:
        return default
    if not 1 <= number <= count:
        raise LabelwiseError(f"{what} {number}: this model's attention has {what}s 1 to {count}")
    return number - 1
