"""C-Tran written out token by token in NumPy, from the paper's equations: the yardstick for the head `c-tran`.

Around eq. 2 to 4 stand what the public code has: several attention heads with a joint output layer, residuals, and a
layer norm after each block and before the first one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = Mapping[str, Array]  # a state dict of the head


def c_tran(weights: Weights, image: Array, known: Array, *, layers: int, heads: int) -> Array:
    """Logits [N] of one map [C, H, W]; `known` [N] is 1, 0 or -1 (unknown)."""
    height, width = image.shape[1:]
    tokens = []
    for i in range(height):
        for j in range(width):
            z = image[:, i, j]
            if "project.weight" in weights:
                z = weights["project.weight"] @ z + weights["project.bias"]
            tokens.append(norm(weights, "norm", z))
    for label, state in zip(weights["label"], known, strict=True):
        s = {-1: np.zeros(len(label)), 0: weights["state"][0], 1: weights["state"][1]}[int(state)]
        tokens.append(norm(weights, "norm", label + s))  # eq. 1
    for number in range(layers):
        tokens = encoder_layer(weights, f"layers.{number}", tokens, heads)
    answers = []
    for i, h in enumerate(tokens[height * width :]):  # eq. 5, before the sigmoid
        answers.append(weights["classifier.weight"][i, :, 0] @ h + weights["classifier.bias"][i].item())
    return np.array(answers)


def encoder_layer(weights: Weights, layer: str, tokens: list[Array], heads: int) -> list[Array]:
    dim = len(tokens[0])
    part = dim // heads
    w_q, w_k, w_v = weights[f"{layer}.self_attn.in_proj_weight"].reshape(3, dim, dim)
    b_q, b_k, b_v = weights[f"{layer}.self_attn.in_proj_bias"].reshape(3, dim)
    out = []
    for h_i in tokens:
        mixed = np.zeros(dim)
        for head in range(heads):
            rows = slice(head * part, (head + 1) * part)
            query = (w_q @ h_i + b_q)[rows]
            similar = np.array([query @ (w_k @ h_j + b_k)[rows] for h_j in tokens]) / np.sqrt(part)
            alpha = np.exp(similar - similar.max())
            alpha /= alpha.sum()  # eq. 2
            for weight, h_j in zip(alpha, tokens, strict=True):
                mixed[rows] += weight * (w_v @ h_j + b_v)[rows]  # eq. 3
        attended = linear(weights, f"{layer}.self_attn.out_proj", mixed)
        h = norm(weights, f"{layer}.norm1", h_i + attended)
        hidden = np.maximum(linear(weights, f"{layer}.linear1", h), 0)
        out.append(norm(weights, f"{layer}.norm2", h + linear(weights, f"{layer}.linear2", hidden)))  # eq. 4
    return out


def linear(weights: Weights, name: str, x: Array) -> Array:
    product: Array = weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]
    return product


def norm(weights: Weights, name: str, x: Array) -> Array:
    scaled: Array = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]
