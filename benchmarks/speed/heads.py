"""`python -m benchmarks.speed heads`: time, memory and parameters of the heads against other implementations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.speed.report import Check, Column, JsonFile, PlotFile, Report

if TYPE_CHECKING:
    from torch import Tensor, nn

# Labels and queries: ML-Decoder's table 9, then its COCO and Open Images models.
TABLE_9 = ((100, 100), (1000, 100), (5000, 100))
MORE = ((80, 80), (9600, 200))
CHANNELS = 2048


def heads(
    *,
    batch: int = 8,
    seconds: float = 3.0,
    memory: bool = True,
    growth_backbone: str = "tf_efficientnet_lite2",
    json: JsonFile = None,
    plot: PlotFile = None,
) -> None:
    """Heads against timm's ML-Decoder (repaired), HSQ's Algorithm 1 as printed, and Query2Label.

    The columns are those of ML-Decoder's table 9: labels, queries, time for a batch in inference and in training, and
    memory. Both sides of a pair have the same weights and give the same logits, which is checked before they are timed
    in turns. Ours in inference is the optimised head (`heads.optimize`). Times are medians.

    Parameters
    ----------
    batch
        Images in a batch; maps have 2048 channels.
    seconds
        How long each pair is measured, at least.
    memory
        Also measure the memory of a training step, each in a process of its own.
    growth_backbone
        Backbone (untrained, at 224 pixels) of the comparison of 10,000 labels with 100, end to end.
    """
    import torch

    from labelwise.core.progress import track

    torch.manual_seed(0)
    report = Report(
        "heads",
        f"Heads on maps of {CHANNELS} channels, batch {batch}, medians in ms",
        [
            Column("case", "head"),
            Column("labels", "labels", ",d"),
            Column("queries", "queries", ",d"),
            Column("side", "map", "d"),
            Column("parameters_m", "parameters (M)", ".1f"),
            Column("ours_ms", "ours", ".1f"),
            Column("peer", "against"),
            Column("peer_ms", "its time", ".1f"),
            Column("ratio", "faster by", ".2fx"),
            Column("training_ms", "ours, training", ".1f"),
            Column("peer_training_ms", "its time", ".1f"),
            Column("training_ratio", "faster by", ".2fx"),
            Column("memory_mb", "training memory (MB)", ",.0f"),
            Column("peer_memory_mb", "its memory", ",.0f"),
        ],
        [],
        settings={"batch": batch, "channels": CHANNELS, "seconds": seconds, "growth_backbone": growth_backbone},
        bars={"ours_ms": "ours", "peer_ms": "the other"},
        unit="ms for a batch, inference",
    )
    parts: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        *(("timm", lambda n=n, k=k: _against_timm(n, k, batch, seconds, memory)) for n, k in TABLE_9 + MORE),
        *(("literal", lambda n=n: _against_literal(n, batch, seconds, memory)) for n in (1, 16)),
        # How much of that is batching: the same loops without the output that the logits never read.
        *(("task loops", lambda n=n: _against_literal(n, batch, seconds, False, shared_output=False)) for n in (1, 16)),
        *(("q2l", lambda n=n, d=d: _against_q2l(n, d, batch, seconds, memory)) for n, d in ((20, 256), (80, 512))),
        ("absorbed", lambda: _absorbed(batch, seconds)),
        ("growth", lambda: _growth(growth_backbone, batch, seconds)),
    ]
    kinds = [kind for kind, _ in parts]
    for _, measure in track(parts, "Measuring", unit="runs"):
        report.rows.append(measure())

    def worst(kind: str, key: str = "ratio") -> float:
        return min(float(row[key]) for row, found in zip(report.rows, kinds, strict=True) if found == kind)

    growth, dearest = report.rows[kinds.index("growth")], 1 / worst("q2l")
    report.checks = [
        Check("ML-Decoder's optimised head against timm's, lowest ratio over all N/K", worst("timm"), 1),
        Check("HSQ against Algorithm 1, lowest ratio in inference", worst("literal"), 20),
        Check("HSQ head cost relative to Query2Label", dearest, 1.3, at_most=True),
        Check("absorbed keys and values at N/K = 80/20 on a 14 x 14 map", worst("absorbed"), 1),
        Check(
            "ML-Decoder end to end: cost of 10,000 labels relative to 100",
            growth["ours_ms"] / growth["peer_ms"],
            1.15,
            at_most=True,
        ),
    ]
    report.publish(json, plot)


class Pair(NamedTuple):
    """The same head twice: to train, and for inference."""

    trained: nn.Module
    fast: nn.Module


def _row(
    names: tuple[str, str],
    sizes: tuple[int, int, int],  # labels, queries, side of the map
    ours: Pair,
    theirs: Pair,
    batch: int,
    seconds: float,
    same: bool = True,  # both sides must give the same logits
) -> dict[str, Any]:
    import torch

    from labelwise.engines.measure import in_turns

    labels, queries, side = sizes
    x = torch.randn(batch, CHANNELS, side, side)
    with torch.no_grad():
        difference = float((ours.fast.eval()(x) - theirs.fast.eval()(x)).abs().max())
    assert not same or difference < 1e-4, f"{names[0]} and {names[1]} differ by {difference}"
    inference = in_turns({"ours": _forward(ours.fast, x), "theirs": _forward(theirs.fast, x)}, seconds=seconds)
    training = in_turns({"ours": _step(ours.trained, x), "theirs": _step(theirs.trained, x)}, seconds=seconds)
    return {
        "case": names[0],
        "labels": labels,
        "queries": queries,
        "side": side,
        "parameters_m": sum(p.numel() for p in ours.trained.parameters()) / 1e6,
        "ours_ms": inference["ours"].median,
        "peer": names[1],
        "peer_ms": inference["theirs"].median,
        "ratio": inference["theirs"].median / inference["ours"].median,
        "training_ms": training["ours"].median,
        "peer_training_ms": training["theirs"].median,
        "training_ratio": training["theirs"].median / training["ours"].median,
        "difference": difference if same else None,
    }


def _forward(module: nn.Module, x: Tensor) -> Callable[[], object]:
    import torch

    def run() -> None:
        module.eval()
        with torch.inference_mode():
            module(x)

    return run


def _step(module: nn.Module, x: Tensor) -> Callable[[], object]:
    """Forward and backward."""

    def run() -> None:
        module.train()
        module.zero_grad(set_to_none=True)
        module(x).square().mean().backward()

    return run


def _memory(ours: str, theirs: str, labels: int, options: dict[str, Any], batch: int) -> dict[str, float | None]:
    """The most that a training step of each takes, in MB."""
    from benchmarks.speed.scaling import run_case

    case = {"labels": labels, "options": options, "mode": "training", "batch": batch, "seconds": 0.0}
    found = [run_case({**case, "head": name}, time_limit=600) for name in (ours, theirs)]
    return {"memory_mb": found[0].get("megabytes"), "peer_memory_mb": found[1].get("megabytes")}


def _against_timm(labels: int, queries: int, batch: int, seconds: float, memory: bool) -> dict[str, Any]:
    from labelwise.heads import load_ml_decoder, optimize
    from tests.oracles.peers import create_head

    options = {"groups": queries}
    theirs = create_head("timm ml-decoder", CHANNELS, labels, options)
    ours = load_ml_decoder(theirs.state_dict())
    pairs = Pair(ours, optimize(ours)), Pair(theirs, theirs)
    row = _row(("ml-decoder", "timm"), (labels, queries, 7), *pairs, batch, seconds)
    return row | (_memory("ml-decoder", "timm ml-decoder", labels, options, batch) if memory else {})


def _against_literal(
    shared_experts: int, batch: int, seconds: float, memory: bool, shared_output: bool = True
) -> dict[str, Any]:
    """The hybrid sharing layers alone: they are what Algorithm 1 describes."""
    from torch import nn

    from labelwise.heads.config import ExpertsConfig
    from labelwise.heads.experts import HybridSharing
    from tests.oracles.literal import literal_copy

    labels, dim = 80, 512
    experts = HybridSharing(labels, dim, ExpertsConfig(experts="hybrid", shared_experts=shared_experts))
    literal = literal_copy(experts, labels, shared_experts, own=1, shared_output=shared_output)

    class OnQueries(nn.Module):
        """Takes the place of a head: the map [B, 2048, 7, 7] gives the queries' vectors [B, L, D]."""

        def __init__(self, layers: nn.Module, batched: bool) -> None:
            super().__init__()
            self.layers, self.batched = layers, batched

        def forward(self, x: Tensor) -> Tensor:
            queries = x.flatten(1)[:, : labels * dim].unflatten(1, (labels, dim))
            if self.batched:
                out: Tensor = self.layers(queries.transpose(0, 1).contiguous()).transpose(0, 1)
                return out
            task: Tensor = self.layers(queries)[0]
            return task

    ours, theirs = OnQueries(experts, True), OnQueries(literal, False)
    case = f"hsq's layers, D={dim}, n_s={shared_experts}"
    pairs = Pair(ours, ours), Pair(theirs, theirs)
    peer = "Algorithm 1" if shared_output else "Algorithm 1 without its shared output"
    row = _row((case, peer), (labels, labels, 7), *pairs, batch, seconds)
    options = {"dim": dim, "shared_experts": shared_experts}
    return row | (_memory("hsq", "literal hsq", labels, options, batch) if memory else {})


def _against_q2l(labels: int, dim: int, batch: int, seconds: float, memory: bool) -> dict[str, Any]:
    from labelwise import heads

    hsq, q2l = (heads.create(name, in_features=CHANNELS, labels=labels, dim=dim) for name in ("hsq", "q2l"))
    pairs = Pair(hsq, heads.optimize(hsq)), Pair(q2l, heads.optimize(q2l))
    row = _row((f"hsq, D={dim}", "q2l"), (labels, labels, 7), *pairs, batch, seconds, same=False)  # two heads
    return row | (_memory("hsq", "q2l", labels, {"dim": dim}, batch) if memory else {})


def _absorbed(batch: int, seconds: float) -> dict[str, Any]:
    from labelwise import heads

    labels, queries, side = 80, 20, 14
    head = heads.create("ml-decoder", in_features=CHANNELS, labels=labels, groups=queries)
    # A head that is optimised for a single token projects it: there that is cheaper.
    pairs = Pair(head, heads.optimize(head, side * side)), Pair(head, heads.optimize(head, 1))
    names = "ml-decoder, absorbed", "projecting keys and values"
    row = _row(names, (labels, queries, side), *pairs, batch, seconds)
    return {key: value for key, value in row.items() if "training" not in key}  # the same head on both sides


def _growth(backbone: str, batch: int, seconds: float) -> dict[str, Any]:
    """A whole model with 10,000 labels ("ours") against one with 100 ("its"), both optimised."""
    import torch

    from labelwise.engines.measure import in_turns
    from labelwise.model.model import create_model

    def model(labels: int) -> nn.Module:
        return create_model(backbone, "ml-decoder", labels, weights="none", size=224, groups=100).eval().optimize()

    images = torch.randn(batch, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    runs = {str(labels): _forward(model(labels), images) for labels in (100, 10_000)}
    times = in_turns(runs, seconds=3 * seconds)
    return {
        "case": f"{backbone} + ml-decoder, 10,000 labels",
        "labels": 10_000,
        "queries": 100,
        "side": 7,
        "ours_ms": times["10000"].median,
        "peer": "100 labels",
        "peer_ms": times["100"].median,
        "ratio": times["100"].median / times["10000"].median,
    }
