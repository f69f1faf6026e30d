"""Speed of the heads against other implementations of the same mathematics, in one run.

    python benchmarks/heads.py [--json FILE]

- HSQ: our batched hybrid sharing layers against Algorithm 1 as the paper prints it, and against the same loops without
  the shared output, which the logits never read. Widths (64, 16).
- ML-Decoder: our head against timm's. timm's class raises an error on its first forward on today's PyTorch, so the
  benchmark runs its layers itself; the arithmetic is timm's.

Every pair has the same weights, its outputs are compared before it is timed, and its two sides are timed in turns, so
that other load on the machine meets both. Times are medians; read the ratios, not the milliseconds.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from rich.console import Console
from rich.table import Table
from timm.layers.ml_decoder import MLDecoder
from torch import Tensor, nn

from labelwise.heads import load_ml_decoder
from labelwise.heads.config import ExpertsConfig
from labelwise.heads.experts import HybridSharing
from literal import literal_copy

BATCH = 8
Run = Callable[[], Any]


def in_turns(ours: Run, theirs: Run, seconds: float) -> tuple[float, float]:
    """Median milliseconds of two functions, called alternately for about `seconds`."""
    times: tuple[list[float], list[float]] = ([], [])
    for run in (ours, theirs):  # warm up
        run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for run, log in zip((ours, theirs), times, strict=True):
            start = time.perf_counter()
            run()
            log.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[0]), statistics.median(times[1])


def forward_only(module: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> Run:
    def run() -> None:
        module.eval()
        with torch.inference_mode():
            call(x)

    return run


def forward_and_backward(module: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> Run:
    def run() -> None:
        module.train()
        module.zero_grad(set_to_none=True)
        call(x).square().mean().backward()

    return run


def compare(
    name: str,
    ours: nn.Module,
    theirs: nn.Module,
    call: Callable[[Tensor], Tensor],
    peer: Any,
    x: Tensor,
    seconds: float,
) -> list[dict[str, Any]]:
    """Two rows, inference and training. `call` and `peer` give the two sides' outputs for `x`."""
    ours.eval(), theirs.eval()
    with torch.no_grad():
        difference = float((call(x) - peer(x)).abs().max())
    assert difference < 1e-4, f"{name}: the two sides differ by {difference}"
    rows = []
    for mode, runner in (("inference", forward_only), ("training", forward_and_backward)):
        mine, other = in_turns(runner(ours, call, x), runner(theirs, peer, x), seconds)
        rows.append({"case": name, "mode": mode, "ours_ms": mine, "theirs_ms": other, "ratio": other / mine})
    return rows


def hsq_rows(seconds: float) -> list[dict[str, Any]]:
    labels, dim, rows = 80, 512, []
    for shared in (1, 16):
        ours = HybridSharing(labels, dim, ExpertsConfig(experts="hybrid", shared_experts=shared, task_experts=1))
        x = torch.randn(BATCH, labels, dim)

        def batched(x: Tensor, ours: HybridSharing = ours) -> Tensor:
            return ours(x.transpose(0, 1).contiguous()).transpose(0, 1)

        for with_shared_output in (True, False):
            literal = literal_copy(ours, labels, shared, own=1)
            for layer in literal.layers:
                layer.with_shared_output = with_shared_output
            what = "literal Algorithm 1" if with_shared_output else "its loops without the shared output"
            name = f"HSQ layers, L=80 D=512 n_s={shared} vs {what}"
            rows += compare(name, ours, literal, batched, lambda x, literal=literal: literal(x)[0], x, seconds)
    return rows


def timm_forward(head: MLDecoder, x: Tensor) -> Tensor:
    """timm's MLDecoder.forward with its decoder's layers called one after the other."""
    memory = head.embed_standart(x.flatten(2).transpose(1, 2)).relu_().transpose(0, 1)
    h = head.query_embed.weight.unsqueeze(1).expand(-1, x.shape[0], -1)
    for layer in head.decoder.layers:
        h = layer(h, memory)
    h = h.transpose(0, 1)
    out = torch.zeros(h.shape[0], h.shape[1], head.duplicate_factor)
    for i in range(head.embed_len_decoder):
        out[:, i, :] = torch.matmul(h[:, i, :], head.duplicate_pooling[i, :, :])
    return out.flatten(1)[:, : head.num_classes] + head.duplicate_pooling_bias


def ml_decoder_rows(seconds: float) -> list[dict[str, Any]]:
    rows = []
    for labels, groups in ((80, 80), (5000, 100), (9600, 200)):
        theirs = MLDecoder(num_classes=labels, num_of_groups=groups, initial_num_features=2048)
        ours = load_ml_decoder(theirs.state_dict())
        x = torch.randn(BATCH, 2048, 7, 7)
        name = f"ML-Decoder, N/K={labels}/{groups} vs timm's layers"
        rows += compare(name, ours, theirs, ours, lambda x, theirs=theirs: timm_forward(theirs, x), x, seconds)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/heads.json"))
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each pair")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = hsq_rows(arguments.seconds) + ml_decoder_rows(arguments.seconds)
    table = Table("case", "mode", "ours (ms)", "theirs (ms)", "ours is faster by", title=f"batch {BATCH}, medians")
    for row in rows:
        table.add_row(
            row["case"], row["mode"], f"{row['ours_ms']:.2f}", f"{row['theirs_ms']:.2f}", f"{row['ratio']:.2f}x"
        )
    Console(width=130).print(table)
    machine = {
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "timm": timm.__version__,
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"batch": BATCH, "machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
