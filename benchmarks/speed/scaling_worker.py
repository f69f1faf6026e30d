"""One measurement of `python -m benchmarks.speed scaling`, in its own process: JSON in, JSON out.

python -m benchmarks.speed.scaling_worker '{"head": "ml-decoder", "labels": 1000}'
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field

from labelwise.core.config import Config
from labelwise.core.errors import is_out_of_memory
from labelwise.engines.measure import forget_peak, limit_growth, memory_now, memory_peak


class Case(Config):
    head: str
    options: dict[str, Any] = Field(default_factory=dict)
    labels: int
    mode: Literal["inference", "training"] = "inference"
    batch: int = 8
    channels: int = 2048
    side: int = 7  # of the feature map
    seconds: float = 1.0  # at least so long is measured
    memory_limit: float = 8.0  # GB that the head and its work may take
    threads: int | None = None


class Result(Config):
    status: Literal["ok", "out of memory", "out of time"] = "ok"
    parameters: int | None = None
    milliseconds: float | None = None  # for a batch: the median
    megabytes: float | None = None  # the most the process held, beyond what it held before the head was built


def measure(case: Case) -> Result:
    """Build the head and run it. Memory that lacks is a result, too."""
    import torch

    from labelwise import losses

    if case.threads is not None:
        torch.set_num_threads(case.threads)
    torch.manual_seed(0)
    _head(case.model_copy(update={"labels": 2}))  # imports what is needed, whose memory is not the head's
    torch.randn(256, 256) @ torch.randn(256, 256)  # starts the threads, nor is theirs
    forget_peak()
    before = memory_now()
    limit_growth(round(case.memory_limit * 1e9))
    parameters = None
    try:
        head = _head(case)
        parameters = sum(p.numel() for p in head.parameters())
        x = torch.randn(case.batch, case.channels, case.side, case.side)
        if case.mode == "inference":
            head.eval()

            def run() -> None:
                with torch.inference_mode():
                    head(x)

        else:
            targets = (torch.rand(case.batch, case.labels) < 0.01).to(torch.int8)

            def run() -> None:  # all of a training step but the optimizer
                head.zero_grad(set_to_none=True)
                losses.asymmetric(head(x), targets).backward()

        milliseconds = _median_time(run, case.seconds)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return Result(status="out of memory", parameters=parameters)
    peak = memory_peak()
    taken = None if peak is None or before is None else (peak - before) / 1e6
    return Result(parameters=parameters, milliseconds=milliseconds, megabytes=taken)


def _head(case: Case) -> Any:
    from labelwise import heads

    if case.head in heads.list_heads():
        return heads.create(case.head, in_features=case.channels, labels=case.labels, **case.options)
    from tests.oracles.peers import create_head

    return create_head(case.head, case.channels, case.labels, case.options, case.side**2)


def _median_time(run: Callable[[], None], seconds: float) -> float:
    """Milliseconds of a call after a first one, of as many as fit into `seconds`, at least 3."""
    run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


if __name__ == "__main__":
    result = measure(Case.parse(json.loads(sys.argv[1]), "case"))
    sys.stdout.write(result.model_dump_json() + "\n")
