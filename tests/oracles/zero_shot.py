"""LESA, BiAM, SDL and attention per label as loops over images, labels, attentions and regions: for tests only."""

from __future__ import annotations

import math
from itertools import combinations

import torch
from torch import Tensor, nn

from labelwise.heads.attention_per_label import AttentionPerLabelHead
from labelwise.heads.biam import BiamHead
from labelwise.heads.lesa import LesaHead, SharedAttentionHead


def unit(vector: Tensor) -> Tensor:
    return vector / vector.norm()


def softmax(values: list[float]) -> list[float]:
    exponentials = [math.exp(value) for value in values]
    return [value / sum(exponentials) for value in exponentials]


def vectors(layer: nn.Module, words: Tensor) -> list[Tensor]:
    """theta of each label."""
    return [layer(unit(word)) for word in words]


def lesa_attentions(head: SharedAttentionHead, image: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Of one image [T, D]: each attention's logits [T] and attended feature [D]."""
    first, _, second = head.attention
    logits = [
        torch.stack([second.weight[m] @ torch.tanh(first(region)) + second.bias[m] for region in image])
        for m in range(second.out_features)
    ]
    attended = []
    for e in logits:
        shares = softmax(e.tolist())
        attended.append(sum((a * region for a, region in zip(shares, image, strict=True)), torch.zeros_like(image[0])))
    return logits, attended


@torch.no_grad()
def lesa(head: LesaHead, image: Tensor, words: Tensor) -> list[float]:
    _, attended = lesa_attentions(head, image)
    return [max(float(theta @ z) for z in attended) for theta in vectors(head.label_vectors.project, words)]


@torch.no_grad()
def lesa_regularizers(head: LesaHead, images: Tensor, words: Tensor, targets: Tensor) -> tuple[float, float, float]:
    """L_div, L_rel and L_dist of images [B, T, D] with targets [B, N]: means over images, the first a root of one."""
    thetas = vectors(head.label_vectors.project, words)
    squares, relevance, distribution = 0.0, 0.0, 0.0
    for image, target in zip(images, targets.tolist(), strict=True):
        logits, attended = lesa_attentions(head, image)
        squares += sum(2 * float(unit(a) @ unit(b)) ** 2 for a, b in combinations(logits, 2))
        mean = image.mean(dim=0)
        for theta, t in zip(thetas, target, strict=True):
            gain = max(float(theta @ z) for z in attended) - float(theta @ mean)
            relevance += {1: max(0.0, -gain), 0: max(0.0, gain), -1: 0.0}[t]
        shares = [softmax([float(theta @ z) for z in attended]) for theta in thetas]
        for m in range(len(attended)):
            mass = sum(share[m] for share, t in zip(shares, target, strict=True) if t == 1)
            distribution += mass**2 / len(attended)
    number = len(images)
    return math.sqrt(squares / number), relevance / number, distribution / number


@torch.no_grad()
def attention_per_label(head: AttentionPerLabelHead, image: Tensor, words: Tensor) -> list[float]:
    found = []
    queries = [torch.relu(query) for query in vectors(head.queries.project, words)]
    for query, theta in zip(queries, vectors(head.label_vectors.project, words), strict=True):
        shares = softmax([float(head.mix @ (torch.relu(head.keys(region)) * query)) for region in image])
        found.append(sum(share * float(theta @ region) for share, region in zip(shares, image, strict=True)))
    return found


@torch.no_grad()
def biam(head: BiamHead, image: Tensor, words: Tensor) -> list[float]:
    """Of one map [C, H, W], in evaluation mode."""

    def convolved(module: nn.Module, features: Tensor) -> Tensor:
        out: Tensor = module.norm(torch.relu(module.convolution(features[None])))[0]
        return out

    h = convolved(head.reduce, image)  # [d, H, W]
    regions = h.flatten(1).T  # [T, d]
    dim = regions.shape[1]
    block = head.region_context
    theirs = nn.MultiheadAttention(dim, block.attention.heads, batch_first=True)
    theirs.load_state_dict(block.attention.state_dict())
    o = regions + theirs(regions[None], regions[None], regions[None])[0][0]
    e_r = o + block.feedforward(o)

    scene = head.scene_context
    value = nn.functional.leaky_relu(scene.value(regions), 0.2)
    gate = torch.sigmoid(value.mean(dim=0) * scene.key(image.mean(dim=(1, 2))))
    c_g = (gate * value).T.unflatten(1, h.shape[1:])  # [d, H, W]
    e_g = (c_g + convolved(scene.convolution, c_g)).flatten(1).T

    e_f = nn.functional.leaky_relu(head.enrich(torch.cat((e_r, e_g), dim=1)), 0.2)  # [T, D]
    found = []
    for theta in vectors(head.label_vectors.project, words):
        best = sorted((float(theta @ region) for region in e_f), reverse=True)[: head.config.top_regions]
        found.append(sum(best) / len(best))
    return found


@torch.no_grad()
def sdl_loss(matrix: Tensor, words: Tensor, target: list[int], weight: float) -> float:
    """Of one image: its matrix A [R, d_w], the labels' words [N, d_w] and their targets."""
    scores = [max(float(row @ unit(word)) for row in matrix) for word in words]
    present = [c for c, t in enumerate(target) if t == 1]
    absent = [c for c, t in enumerate(target) if t == 0]
    rank = sum(math.log1p(math.exp(scores[n] - scores[p])) for p in present for n in absent) / len(present)
    chosen = torch.stack([unit(words[p]) for p in present])
    diversity = float(chosen.var(dim=0).sum()) if len(present) > 1 else 0.0
    return (1 - weight) * (1 + diversity) * rank + weight * float(matrix.var(dim=0).abs().sum())
