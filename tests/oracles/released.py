"""Names and shapes of the tensors in released checkpoints, written out from what the authors' public code registers.

Nothing here comes from labelwise or timm: the loaders are tested against it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

Shapes = dict[str, tuple[int, ...]]


def tresnet(blocks: tuple[int, int, int, int], width: int = 64, *, bottleneck: bool = False) -> Shapes:
    """TResNet without a head. Version 2 has bottleneck blocks in all stages, version 1 in the last two."""
    shapes = {"body.conv1.0.weight": (width, 48, 3, 3), **_norm("body.conv1.1", width)}
    channels = width
    for stage, count in enumerate(blocks, 1):
        planes = width * 2 ** (stage - 1)
        wide = bottleneck or stage > 2
        out = planes * (4 if wide else 1)
        for block in range(count):
            name, shrinks = f"body.layer{stage}.{block}", stage > 1 and block == 0
            if wide:
                shapes |= _conv(f"{name}.conv1", planes, channels, 1)
                shapes |= _conv(f"{name}.conv2.0" if shrinks else f"{name}.conv2", planes, planes, 3)  # blurred after
                shapes |= _conv(f"{name}.conv3", out, planes, 1)
            else:
                shapes |= _conv(f"{name}.conv1.0" if shrinks else f"{name}.conv1", planes, channels, 3)
                shapes |= _conv(f"{name}.conv2", planes, planes, 3)
            if stage < 4:
                squeezed = max(out // (8 if wide else 4), 64)
                shapes |= {f"{name}.se.fc1.weight": (squeezed, planes, 1, 1), f"{name}.se.fc1.bias": (squeezed,)}
                shapes |= {f"{name}.se.fc2.weight": (planes, squeezed, 1, 1), f"{name}.se.fc2.bias": (planes,)}
            if block == 0 and (shrinks or channels != out):
                shapes |= _conv(f"{name}.downsample.{int(shrinks)}", out, channels, 1)
            channels = out
    return shapes


def ml_decoder(channels: int, labels: int, groups: int | None, dim: int = 768, words: int = 300) -> Shapes:
    """The authors' head. `groups` None: zero-shot."""
    shapes = {
        "decoder.embed_standart.weight": (dim, channels),
        "decoder.embed_standart.bias": (dim,),
        **_layer("decoder.layers.0", dim, 2048, ("multihead_attn",), 3),
    }
    if groups is None:
        shapes |= {"decoder.duplicate_pooling": (dim, 1), "decoder.duplicate_pooling_bias": (1,)}
        shapes |= {"wordvec_proj.weight": (dim, words), "wordvec_proj.bias": (dim,)}
    else:
        shapes |= {"decoder.query_embed.weight": (groups, dim), "decoder.duplicate_pooling_bias": (labels,)}
        shapes |= {"decoder.duplicate_pooling": (groups, dim, -(-labels // groups))}
    return {f"head.{key}": shape for key, shape in shapes.items()}


def query2label(channels: int, labels: int, grid: int, dim: int, feedforward: int, projected: bool = False) -> Shapes:
    """Everything but the backbone, which is `backbone.0`."""
    shapes: Shapes = {"backbone.1.pe": (1, dim, grid, grid), "query_embed.weight": (labels, dim)}
    if projected:
        shapes |= {"input_proj.weight": (dim, channels, 1, 1), "input_proj.bias": (dim,)}
    shapes |= _layer("transformer.encoder.layers.0", dim, feedforward, ("self_attn",), 2)
    for number in range(2):
        layer = _layer(f"transformer.decoder.layers.{number}", dim, feedforward, ("multihead_attn",), 3)
        shapes |= {key: shape for key, shape in layer.items() if ".norm1." not in key}  # removed with self-attention
    shapes |= {"transformer.decoder.norm.weight": (dim,), "transformer.decoder.norm.bias": (dim,)}
    return shapes | {"fc.W": (1, labels, dim), "fc.b": (1, labels)}


def ram_plus(channels: int, tags: int, dim: int = 768, texts: int = 512, feedforward: int = 3072) -> Shapes:
    """Everything but `visual_encoder`: 51 descriptions of each tag, a BERT of two layers without self-attention."""
    shapes: Shapes = {"label_embed": (51 * tags, texts), "reweight_scale": ()}
    shapes |= _linear("image_proj", texts, channels) | _linear("wordvec_proj", dim, texts) | _linear("fc", 1, dim)
    for number in range(2):
        name = f"tagging_head.encoder.layer.{number}"
        shapes |= _linear(f"{name}.crossattention.self.query", dim, dim)
        shapes |= _linear(f"{name}.crossattention.self.key", dim, texts)
        shapes |= _linear(f"{name}.crossattention.self.value", dim, texts)
        shapes |= _linear(f"{name}.crossattention.output.dense", dim, dim)
        shapes |= _affine(f"{name}.crossattention.output.LayerNorm", dim)
        shapes |= _linear(f"{name}.intermediate.dense", feedforward, dim)
        shapes |= _linear(f"{name}.output.dense", dim, feedforward) | _affine(f"{name}.output.LayerNorm", dim)
    return shapes


def csra(channels: int, labels: int, heads: int) -> Shapes:
    return {f"classifier.multi_head.{i}.head.weight": (labels, channels, 1, 1) for i in range(heads)}


def swin(width: int, depths: tuple[int, ...], heads: tuple[int, ...], window: int, size: int) -> Shapes:
    shapes = {"patch_embed.proj.weight": (width, 3, 4, 4), "patch_embed.proj.bias": (width,)}
    shapes |= _affine("patch_embed.norm", width)
    for stage, (depth, count) in enumerate(zip(depths, heads, strict=True)):
        dim, grid = width * 2**stage, size // 4 // 2**stage
        for block in range(depth):
            name = f"layers.{stage}.blocks.{block}"
            shapes |= _affine(f"{name}.norm1", dim) | _affine(f"{name}.norm2", dim)
            shapes |= (
                _mlp(name, dim) | _linear(f"{name}.attn.qkv", 3 * dim, dim) | _linear(f"{name}.attn.proj", dim, dim)
            )
            shapes |= {f"{name}.attn.relative_position_bias_table": ((2 * window - 1) ** 2, count)}
            shapes |= {f"{name}.attn.relative_position_index": (window**2, window**2)}
            if block % 2 and grid > window:
                shapes |= {f"{name}.attn_mask": ((grid // window) ** 2, window**2, window**2)}
        if stage < len(depths) - 1:
            shapes |= _affine(f"layers.{stage}.downsample.norm", 4 * dim)
            shapes |= {f"layers.{stage}.downsample.reduction.weight": (2 * dim, 4 * dim)}
    return shapes | _affine("norm", width * 2 ** (len(depths) - 1))


def vit(dim: int, depth: int, size: int) -> Shapes:
    shapes = {"cls_token": (1, 1, dim), "pos_embed": (1, (size // 16) ** 2 + 1, dim)}
    shapes |= {"patch_embed.proj.weight": (dim, 3, 16, 16), "patch_embed.proj.bias": (dim,)}
    for block in range(depth):
        name = f"blocks.{block}"
        shapes |= _affine(f"{name}.norm1", dim) | _affine(f"{name}.norm2", dim)
        shapes |= _mlp(name, dim) | _linear(f"{name}.attn.qkv", 3 * dim, dim) | _linear(f"{name}.attn.proj", dim, dim)
    return shapes | _affine("norm", dim)


def random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    """Numbers under which activations stay near 1. Norms have negative weights too: InPlace-ABN takes their size."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes.items():
        numbers = torch.randn(shape, generator=generator)
        if name.endswith("running_var"):
            numbers = numbers.abs() + 0.5
        elif len(shape) > 1:
            numbers /= math.sqrt(math.prod(shape[1:]))
        state[name] = numbers
    return state


def _affine(name: str, channels: int) -> Shapes:
    return {f"{name}.{key}": (channels,) for key in ("weight", "bias")}


def _norm(name: str, channels: int) -> Shapes:
    return {f"{name}.{key}": (channels,) for key in ("weight", "bias", "running_mean", "running_var")}


def _conv(name: str, out: int, channels: int, kernel: int) -> Shapes:
    return {f"{name}.0.weight": (out, channels, kernel, kernel), **_norm(f"{name}.1", out)}


def _linear(name: str, out: int, features: int) -> Shapes:
    return {f"{name}.weight": (out, features), f"{name}.bias": (out,)}


def _mlp(name: str, dim: int) -> Shapes:
    return _linear(f"{name}.mlp.fc1", 4 * dim, dim) | _linear(f"{name}.mlp.fc2", dim, 4 * dim)


def _layer(name: str, dim: int, feedforward: int, attentions: tuple[str, ...], norms: int) -> Shapes:
    shapes: Shapes = {}
    for attention in attentions:
        shapes |= {f"{name}.{attention}.in_proj_weight": (3 * dim, dim), f"{name}.{attention}.in_proj_bias": (3 * dim,)}
        shapes |= _linear(f"{name}.{attention}.out_proj", dim, dim)
    shapes |= _linear(f"{name}.linear1", feedforward, dim) | _linear(f"{name}.linear2", dim, feedforward)
    for number in range(1, norms + 1):
        shapes |= _affine(f"{name}.norm{number}", dim)
    return shapes
