"""What the released checkpoints compute, literally and straight from their tensors: TResNet and the four heads.

Written from the papers and the layouts in `released.py`, image by image and head by head, without labelwise or timm.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

State = dict[str, Tensor]


# ---- TResNet


def tresnet_map(state: State, images: Tensor) -> Tensor:
    """[B, 3, H, W] -> [B, C, H/32, W/32]."""
    batch, channels, height, width = images.shape
    x = torch.empty(batch, 16 * channels, height // 4, width // 4)
    for row in range(4):
        for column in range(4):
            first = (4 * row + column) * channels
            x[:, first : first + channels] = images[:, :, row::4, column::4]
    x = _conv(state, "body.conv1", x, slope=1e-2)
    for stage in (1, 2, 3, 4):
        block = 0
        while any(key.startswith(f"body.layer{stage}.{block}.") for key in state):
            x = _block(state, f"body.layer{stage}.{block}", x)
            block += 1
    return x


def _block(state: State, name: str, x: Tensor) -> Tensor:
    shrinks = f"{name}.downsample.1.0.weight" in state
    shortcut = x
    if shrinks:
        shortcut = _conv(state, f"{name}.downsample.1", F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False))
    elif f"{name}.downsample.0.0.weight" in state:
        shortcut = _conv(state, f"{name}.downsample.0", x)
    if f"{name}.conv3.0.weight" in state:
        out = _conv(state, f"{name}.conv1", x, slope=1e-3)
        out = _shrinking(state, f"{name}.conv2", out, shrinks)
        out = _conv(state, f"{name}.conv3", _squeeze_excite(state, f"{name}.se", out))
    else:
        out = _shrinking(state, f"{name}.conv1", x, shrinks)
        out = _squeeze_excite(state, f"{name}.se", _conv(state, f"{name}.conv2", out))
    return F.relu(out + shortcut)


def _shrinking(state: State, name: str, x: Tensor, shrinks: bool) -> Tensor:
    if not shrinks:
        return _conv(state, name, x, slope=1e-3)
    x = _conv(state, f"{name}.0", x, slope=1e-3)
    filter_ = torch.tensor([1.0, 2.0, 1.0])
    blur = (filter_[:, None] * filter_[None, :] / 16).expand(x.shape[1], 1, 3, 3)
    return F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), blur, stride=2, groups=x.shape[1])


def _conv(state: State, name: str, x: Tensor, slope: float | None = None) -> Tensor:
    """Convolution, InPlace-ABN (whose scale is the size of its weight), and a leaky ReLU if there is a slope."""
    weight = state[f"{name}.0.weight"]
    x = F.conv2d(x, weight, padding=weight.shape[-1] // 2)
    mean, variance = state[f"{name}.1.running_mean"], state[f"{name}.1.running_var"]
    scale = (state[f"{name}.1.weight"].abs() + 1e-5) / (variance + 1e-5).sqrt()
    x = (x - mean[:, None, None]) * scale[:, None, None] + state[f"{name}.1.bias"][:, None, None]
    return x if slope is None else F.leaky_relu(x, slope)


def _squeeze_excite(state: State, name: str, x: Tensor) -> Tensor:
    if f"{name}.fc1.weight" not in state:
        return x
    pooled = x.mean(dim=(2, 3), keepdim=True)
    hidden = F.relu(F.conv2d(pooled, state[f"{name}.fc1.weight"], state[f"{name}.fc1.bias"]))
    return x * F.conv2d(hidden, state[f"{name}.fc2.weight"], state[f"{name}.fc2.bias"]).sigmoid()


# ---- Heads: maps [B, C, H, W] -> logits [B, N]


def ml_decoder_logits(state: State, maps: Tensor, labels: int, words: Tensor | None = None) -> Tensor:
    pooling, bias = state["head.decoder.duplicate_pooling"], state["head.decoder.duplicate_pooling_bias"]
    if words is None:
        queries = state["head.decoder.query_embed.weight"]
    else:
        queries = F.relu(words @ state["head.wordvec_proj.weight"].T + state["head.wordvec_proj.bias"])
    logits = []
    for image in maps:  # [C, H, W]
        tokens = F.relu(_linear(state, "head.decoder.embed_standart", image.flatten(1).T))
        x = _norm(state, "head.decoder.layers.0.norm1", 2 * queries)
        x = _norm(state, "head.decoder.layers.0.norm2", x + _attend(state, x, tokens, tokens, 8))
        x = _norm(state, "head.decoder.layers.0.norm3", x + _feedforward(state, "head.decoder.layers.0", x))
        outputs = [x[k] @ (pooling[k] if pooling.dim() == 3 else pooling) for k in range(len(x))]
        logits.append(torch.cat(outputs)[:labels] + bias)
    return torch.stack(logits)


def query2label_logits(state: State, maps: Tensor, heads: int) -> Tensor:
    positions = state["backbone.1.pe"][0].flatten(1).T  # [T, D]
    queries = state["query_embed.weight"]
    logits = []
    for image in maps:
        tokens = image.flatten(1).T
        if "input_proj.weight" in state:
            tokens = tokens @ state["input_proj.weight"][:, :, 0, 0].T + state["input_proj.bias"]
        name = "transformer.encoder.layers.0"
        keys = tokens + positions
        tokens = _norm(state, f"{name}.norm1", tokens + _attend(state, keys, keys, tokens, heads, f"{name}.self_attn"))
        tokens = _norm(state, f"{name}.norm2", tokens + _feedforward(state, name, tokens))
        x = torch.zeros_like(queries)
        for number in range(2):
            name = f"transformer.decoder.layers.{number}"
            read = _attend(state, x + queries, tokens + positions, tokens, heads, f"{name}.multihead_attn")
            x = _norm(state, f"{name}.norm2", x + read)
            x = _norm(state, f"{name}.norm3", x + _feedforward(state, name, x))
        x = _norm(state, "transformer.decoder.norm", x)
        logits.append((x * state["fc.W"][0]).sum(dim=1) + state["fc.b"][0])
    return torch.stack(logits)


def csra_logits(state: State, maps: Tensor, temperatures: list[int], residual_weight: float) -> Tensor:
    """99 stands for max pooling, as in the authors' code."""
    total = torch.zeros(())
    for number, temperature in enumerate(temperatures):
        weight = state[f"classifier.multi_head.{number}.head.weight"]  # [N, C, 1, 1]
        scores = F.conv2d(maps, weight / weight.norm(dim=1, keepdim=True)).flatten(2)  # [B, N, T]
        attended = scores.amax(dim=2)
        if temperature != 99:
            attended = (scores * (scores * temperature).softmax(dim=2)).sum(dim=2)
        total = total + scores.mean(dim=2) + residual_weight * attended
    return total


def ram_plus_logits(state: State, maps: Tensor, heads: int) -> Tensor:
    """Tag by tag: its descriptions are mixed by the image, the mixture reads the image, one number comes out."""
    logits = []
    for image in maps:
        tokens = image.flatten(1).T  # [T, C]
        memory = _linear(state, "image_proj", torch.cat((tokens.mean(dim=0, keepdim=True), tokens)))  # [1 + T, d]
        for descriptions in state["label_embed"].split(51):
            similar = state["reweight_scale"].exp() * descriptions @ (memory[0] / memory[0].norm())
            shares = similar.exp() / similar.exp().sum()
            tag = F.relu(_linear(state, "wordvec_proj", (shares[:, None] * descriptions).sum(dim=0)))
            for number in range(2):
                tag = _bert_layer(state, f"tagging_head.encoder.layer.{number}", tag, memory, heads)
            logits.append(_linear(state, "fc", tag))
    return torch.cat(logits).view(len(maps), -1)


def _bert_layer(state: State, name: str, tag: Tensor, memory: Tensor, heads: int) -> Tensor:
    query = _linear(state, f"{name}.crossattention.self.query", tag).chunk(heads)
    keys = _linear(state, f"{name}.crossattention.self.key", memory).chunk(heads, dim=1)
    values = _linear(state, f"{name}.crossattention.self.value", memory).chunk(heads, dim=1)
    read = [
        (key @ part / math.sqrt(len(part))).softmax(dim=0) @ value
        for part, key, value in zip(query, keys, values, strict=True)
    ]
    tag = tag + _linear(state, f"{name}.crossattention.output.dense", torch.cat(read))
    tag = _bert_norm(state, f"{name}.crossattention.output.LayerNorm", tag)
    hidden = F.gelu(_linear(state, f"{name}.intermediate.dense", tag))
    return _bert_norm(state, f"{name}.output.LayerNorm", tag + _linear(state, f"{name}.output.dense", hidden))


def _bert_norm(state: State, name: str, x: Tensor) -> Tensor:
    return (x - x.mean()) / (x.var(unbiased=False) + 1e-12).sqrt() * state[f"{name}.weight"] + state[f"{name}.bias"]


def sine_positions(dim: int, grid: int) -> Tensor:
    """DETR's, as Query2Label stores them: [1, D, H, W], rows in the first half of the channels."""
    table = torch.zeros(dim, grid, grid)
    half = dim // 2
    for channel in range(half):
        frequency = 10000 ** (2 * (channel // 2) / half)
        wave = math.sin if channel % 2 == 0 else math.cos
        for place in range(grid):
            value = wave((place + 1) / (grid + 1e-6) * 2 * math.pi / frequency)
            table[channel, place, :] = value
            table[half + channel, :, place] = value
    return table[None]


def _attend(
    state: State,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    name: str = "head.decoder.layers.0.multihead_attn",
) -> Tensor:
    """[K, D], [T, D], [T, D] -> [K, D], one attention head after the other."""
    dim = query.shape[1]
    weights, biases = state[f"{name}.in_proj_weight"].split(dim), state[f"{name}.in_proj_bias"].split(dim)
    q, k, v = (x @ w.T + b for x, w, b in zip((query, key, value), weights, biases, strict=True))
    width = dim // heads
    parts = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        parts.append((q[:, part] @ k[:, part].T / math.sqrt(width)).softmax(dim=1) @ v[:, part])
    return _linear(state, f"{name}.out_proj", torch.cat(parts, dim=1))


def _feedforward(state: State, name: str, x: Tensor) -> Tensor:
    return _linear(state, f"{name}.linear2", F.relu(_linear(state, f"{name}.linear1", x)))


def _linear(state: State, name: str, x: Tensor) -> Tensor:
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def _norm(state: State, name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(dim=1, keepdim=True)
    deviation = (centred.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
    return centred / deviation * state[f"{name}.weight"] + state[f"{name}.bias"]
