"""The heads against independent implementations: torch's own layers, and DETR's and the papers' loops written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise import heads
from labelwise.heads.query_head import sine_positions
from tests.oracles.literal import literal_copy

LABELS, CHANNELS, DIM, BATCH = 11, 20, 16, 3
TOLERANCE = {"atol": 1e-5, "rtol": 0}


def torch_attention(ours: nn.Module, heads_: int) -> nn.MultiheadAttention:
    attention = nn.MultiheadAttention(DIM, heads_, batch_first=True)
    attention.load_state_dict(ours.state_dict())
    return attention.eval()


def per_label(head: heads.Head, x: Tensor) -> Tensor:
    """One vector per label, one label at a time."""
    weight, bias = head.classifier.weights.weight, head.classifier.bias
    return torch.stack([x[:, i] @ weight[i, :, 0] + bias[i] for i in range(LABELS)], dim=1)


def test_transformer_decoder_is_torchs() -> None:
    head = heads.create(
        "transformer-decoder", in_features=CHANNELS, labels=LABELS, dim=DIM, attention_heads=4, decoder_layers=2
    ).eval()
    reference = nn.TransformerDecoder(nn.TransformerDecoderLayer(DIM, 4, 2048, 0.1, batch_first=True), 2).eval()
    reference.load_state_dict(head.decoder.state_dict())
    x = torch.randn(BATCH, CHANNELS, 3, 5)
    memory = F.conv2d(x, head.tokens.project.weight[..., None, None], head.tokens.project.bias).relu()
    queries = head.queries.weight.expand(BATCH, -1, -1)
    expected = per_label(head, reference(queries, memory.flatten(2).transpose(1, 2)))
    torch.testing.assert_close(head(x), expected, **TOLERANCE)


def test_hsq_is_a_torch_encoder_a_decoder_and_algorithm_1() -> None:
    head = heads.create(
        "hsq", in_features=CHANNELS, labels=LABELS, dim=DIM, attention_heads=4, shared_experts=3, task_experts=2
    ).eval()
    encoder = nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, 0.1, batch_first=True).eval()
    encoder.load_state_dict(head.tokens.encoder[0].state_dict())
    x = torch.randn(BATCH, CHANNELS, 4, 4)
    memory = encoder(head.tokens.project(x.flatten(2).transpose(1, 2)))
    stream = head.queries.weight.expand(BATCH, -1, -1)
    for layer in head.decoder.layers:
        attention = torch_attention(layer.multihead_attn, 4)
        stream = layer.norm2(stream + attention(stream, memory, memory)[0])
        stream = layer.norm3(stream + layer.linear2(layer.linear1(stream).relu()))
    refined, _ = literal_copy(head.experts, LABELS, shared=3, own=2)(stream)
    torch.testing.assert_close(head(x), per_label(head, refined), **TOLERANCE)


@pytest.mark.parametrize("first_block", ["none", "self-attention"])
def test_q2l_is_detrs_decoder(first_block: str) -> None:
    """The stream starts at zero; queries join every query side, positions every key side, no value and no residual."""
    head = heads.create(
        "q2l", in_features=CHANNELS, labels=LABELS, dim=DIM, attention_heads=4, first_block=first_block
    ).eval()
    x = torch.randn(BATCH, CHANNELS, 4, 6)
    position = sine_positions(4, 6, DIM, x)
    tokens = head.tokens.project(x.flatten(2).transpose(1, 2))
    for layer in head.tokens.encoder:
        attention = torch_attention(layer.self_attn, 4)
        tokens = layer.norm1(tokens + attention(tokens + position, tokens + position, tokens)[0])
        tokens = layer.norm2(tokens + layer.linear2(layer.linear1(tokens).relu()))
    queries = head.queries.weight.expand(BATCH, -1, -1)
    stream = torch.zeros_like(queries)
    for layer in head.decoder.layers:
        if first_block == "self-attention":
            attention = torch_attention(layer.self_attn, 4)
            stream = layer.norm1(stream + attention(stream + queries, stream + queries, stream)[0])
        attention = torch_attention(layer.multihead_attn, 4)
        stream = layer.norm2(stream + attention(stream + queries, tokens + position, tokens)[0])
        stream = layer.norm3(stream + layer.linear2(layer.linear1(stream).relu()))
    torch.testing.assert_close(head(x), per_label(head, head.decoder.norm(stream)), **TOLERANCE)


def test_attention_maps_are_torchs() -> None:
    head = heads.create("q2l", in_features=CHANNELS, labels=LABELS, dim=DIM, attention_heads=4).eval()
    x = torch.randn(BATCH, CHANNELS, 2, 3)
    tokens, position = head.tokens(x.flatten(2).transpose(1, 2), (2, 3))
    queries = head.queries.weight.expand(BATCH, -1, -1)
    attention = torch_attention(head.decoder.layers[0].multihead_attn, 4)
    _, expected = attention(queries, tokens + position, tokens, average_attn_weights=False)
    torch.testing.assert_close(head.details(x).attention_layers[0].flatten(3), expected, **TOLERANCE)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 5)])
def test_sine_positions_by_their_formula(height: int, width: int) -> None:
    positions = sine_positions(height, width, DIM, torch.zeros(1)).view(height, width, DIM)
    half = DIM // 2
    for row in range(height):
        for column in range(width):
            for channel in range(DIM):
                position = (row + 1) / height if channel < half else (column + 1) / width
                i = channel % half
                angle = position * 2 * math.pi / 10000 ** (2 * (i // 2) / half)
                expected = math.sin(angle) if i % 2 == 0 else math.cos(angle)
                assert positions[row, column, channel].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("residual_heads", [1, 2, 4, 6, 8])
@torch.no_grad()
def test_csra_by_its_formula(residual_heads: int) -> None:
    """Zhu & Wu eq. 2 to 6: s_j = x_j m / |m|; logit = mean_j s_j + lambda * sum_j softmax(T s)_j s_j, T = inf: max."""
    head = heads.create(
        "csra", in_features=CHANNELS, labels=LABELS, residual_heads=residual_heads, residual_weight=0.3
    ).eval()
    temperatures = {1: [1], 2: [1, 0], 4: [1, 2, 4, 0], 6: [1, 2, 3, 4, 5, 0], 8: [1, 2, 3, 4, 5, 6, 7, 0]}
    x = torch.randn(BATCH, CHANNELS, 3, 4)
    for b in range(BATCH):
        for label in range(LABELS):
            logit = 0.0
            for h, temperature in enumerate(temperatures[residual_heads]):
                m = head.weight[h, label]
                scores = torch.stack([x[b, :, i, j] @ m / m.norm() for i in range(3) for j in range(4)])
                pooled = ((temperature * scores).softmax(0) * scores).sum() if temperature else scores.max()
                logit += float(scores.mean() + 0.3 * pooled)
            assert head(x)[b, label].item() == pytest.approx(logit, abs=1e-5)
