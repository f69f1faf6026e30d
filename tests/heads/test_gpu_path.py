"""The GPU path without a GPU: fake tensors of device "cuda" run every forward, and a tensor left on the CPU raises."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from labelwise import heads, losses
from labelwise.loading.augment import draw_partners, join_pairs

LABELS, CHANNELS = 7, 16
PRECISIONS = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Without a GPU autocast turns itself off.
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda *_: True)
    with FakeTensorMode():
        yield


def build(name: str) -> heads.Head:
    with torch.device("cuda"):
        config = heads.preset(name)
        options = {"dim": CHANNELS} if config.kind == "query" else {}
        words = torch.randn(LABELS, 2 * 51) if config.takes_words else None  # 51 descriptions of RAM++
        return heads.create(name, in_features=CHANNELS, labels=LABELS, word_vectors=words, **options)


def forward(head: heads.Head, precision: str) -> torch.Tensor:
    maps = torch.randn(2, CHANNELS, 4, 4, device="cuda")
    dtype = PRECISIONS[precision]
    with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
        logits: torch.Tensor = head(maps)
    return logits


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", heads.list_heads())
def test_every_head_stays_on_the_gpu(name: str, precision: str) -> None:
    head = build(name)
    assert forward(head.train(), precision).device.type == "cuda"
    assert forward(head.eval(), precision).shape == (2, LABELS)
    details = head.details(torch.randn(2, CHANNELS, 4, 4, device="cuda"))
    assert {details.logits.device.type, details.label_query.device.type} == {"cuda"}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", [name for name in losses.list_losses() if name != "ranking"])
def test_every_loss_stays_on_the_gpu_in_float32(name: str, precision: str) -> None:
    """All but `ranking`, whose pairs have a shape that depends on the values: fake tensors have none."""
    logits = forward(build("gap"), precision)
    targets = torch.zeros(2, LABELS, dtype=torch.long, device="cuda")
    loss = losses.create(name)(logits, targets)
    assert (loss.device.type, loss.dtype, loss.shape) == ("cuda", torch.float32, ())


def test_pairs_are_mixed_on_the_gpu() -> None:
    partners, both = draw_partners(torch.zeros(4, LABELS, dtype=torch.long, device="cuda"))
    joined = join_pairs(torch.rand(4, CHANNELS, 2, 2, device="cuda"), partners)
    assert {both.device.type, joined.device.type} == {"cuda"}


def test_autocast_is_on_and_a_tensor_left_on_the_cpu_is_noticed() -> None:
    """What makes the tests above mean something."""
    assert {forward(build("gap"), precision).dtype for precision in ("bf16-mixed", "16-mixed")} == {
        torch.bfloat16,
        torch.float16,
    }
    with pytest.raises(RuntimeError, match="two devices"):
        _ = torch.rand(2, device="cuda") + torch.rand(2)
