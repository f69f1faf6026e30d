"""C-Tran, SRN and MCAR against literal implementations: plain layers of PyTorch, loops, crops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from labelwise import heads
from labelwise.heads.base import mask_labels
from tests.oracles.c_tran import c_tran

LABELS, CHANNELS = 5, 16


def head(name: str, **options: Any) -> Any:
    made = heads.create(name, in_features=CHANNELS, labels=LABELS, **options).eval()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.3)
    return made


@pytest.mark.parametrize("dim", [None, 8])
def test_c_tran_is_the_papers_transformer_over_image_and_labels(dim: int | None) -> None:
    made, x = head("c-tran", dim=dim, encoder_layers=2), torch.randn(3, CHANNELS, 2, 4)
    known = torch.tensor([[-1, 0, 1, -1, 1], [-1] * LABELS, [0, 0, 1, 1, 1]])
    weights = {name: value.double().numpy() for name, value in made.state_dict().items()}
    expected = [
        c_tran(weights, image.double().numpy(), told.double().numpy(), layers=2, heads=4)
        for image, told in zip(x, known, strict=True)
    ]
    with torch.no_grad():
        np.testing.assert_allclose(made(x, known.float()).numpy(), expected, atol=1e-4, rtol=1e-4)
        np.testing.assert_allclose(made(x[1:2]).numpy(), expected[1:2], atol=1e-4, rtol=1e-4)  # nothing is told


@pytest.mark.parametrize("states", [1, 3])
def test_an_optimized_c_tran_does_not_project_its_labels_again(states: int) -> None:
    """One row per label if nothing is known, else three, each to query, key and value."""
    made, x = head("c-tran"), [torch.randn(2, CHANNELS, 3, 3), torch.zeros(2, LABELS)][: 1 + states // 3]

    def flops(module: nn.Module) -> int:
        with FlopCounterMode(display=False) as counter:
            module(*x)
        return int(counter.get_total_flops())

    assert flops(made) - flops(heads.optimize(made)) == 2 * states * LABELS * 3 * CHANNELS**2


def test_label_masks_split_the_targets_and_leave_enough_to_learn() -> None:
    targets = torch.randint(-1, 2, (4000, 8)).float()
    targets[:, 0] = 0.3  # of mixed images
    known, rest = mask_labels(targets, least_unknown=0.25)
    told = known >= 0
    assert torch.equal(known[told], targets[told])
    assert torch.equal(rest[~told], targets[~told])
    assert (rest[told] == -1).all()
    assert not told[:, 0].any()
    known, _ = mask_labels(torch.zeros(4000, 8), least_unknown=0.25)
    counts = torch.bincount((known >= 0).sum(dim=1), minlength=9) / 4000
    torch.testing.assert_close(counts[:7], torch.full((7,), 1 / 7), atol=0.03, rtol=0)  # 0 to 6 of 8, all as likely
    assert counts[7:].sum() == 0


def test_srn_reads_the_weighted_attention_of_all_labels() -> None:
    """At 14 x 14, where nothing is resized."""
    made, x = head("srn", width=6), torch.randn(2, CHANNELS, 14, 14)
    scores, confidence = made.attention(x), made.confidence(x)
    weighted = torch.empty(2, LABELS, 14, 14)
    auxiliary = torch.empty(2, LABELS)
    for image in range(2):
        for label in range(LABELS):
            share = scores[image, label].exp() / scores[image, label].exp().sum()
            weighted[image, label] = confidence[image, label].sigmoid() * share
            pooled = sum(x[image, :, i, j] * share[i, j] for i in range(14) for j in range(14))
            weight, bias = made.confidence.weight[label, :, 0, 0], made.confidence.bias[label]
            auxiliary[image, label] = weight @ pooled + bias
    expected = 0.5 * made.classifier(x.mean(dim=(2, 3))) + 0.5 * made.regularise(weighted)
    torch.testing.assert_close(made(x), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(made._run(x)[1], auxiliary, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("pooling", ["average", "weighted"])
def test_mcar_crops_the_regions_of_the_best_labels(pooling: str) -> None:
    made, x = head("mcar", regions=2, pooling=pooling), torch.randn(3, CHANNELS, 6, 7)

    def logits(crop: Tensor) -> Tensor:
        pooled = crop.mean(dim=(1, 2))
        return made.classifier(pooled if pooling == "average" else (pooled + crop.amax(dim=(1, 2))) / 2)

    def interval(profile: Tensor) -> slice:
        scaled = (profile - profile.min()) / (profile.max() - profile.min())
        first = last = int(profile.argmax())
        while first > 0 and scaled[first - 1] >= 0.5:
            first -= 1
        while last + 1 < len(scaled) and scaled[last + 1] >= 0.5:
            last += 1
        return slice(first, last + 1)

    for image, found in zip(x, made(x), strict=True):
        whole = logits(image)
        maps = torch.einsum("nc,chw->nhw", made.classifier.weight, image) + made.classifier.bias[:, None, None]
        local = []
        for label in whole.argsort(descending=True)[:2]:
            score = maps[label].sigmoid()
            local.append(logits(image[:, interval(score.amax(dim=1)), interval(score.amax(dim=0))]))
        expected = torch.stack((whole, *local)).amax(dim=0)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["srn", "mcar"])
def test_both_answers_are_trained(name: str) -> None:
    """In training, each image has two rows with the same targets."""
    made, x = head(name).train(), torch.randn(4, CHANNELS, 4, 4)
    targets = torch.randint(0, 2, (4, LABELS)).float()
    logits, wanted = made(x), made.training_targets(targets)
    assert logits.shape == wanted.shape == (8, LABELS)
    assert torch.equal(wanted[:4], wanted[4:])
    F.binary_cross_entropy_with_logits(logits, wanted).backward()
    assert made.eval().training_targets(targets) is targets
