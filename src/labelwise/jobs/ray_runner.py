"""The parts of a job on Ray Data: a pool of processes, on this machine or on all machines of a cluster.

Each process loads the model once. A killed process is replaced, and its part starts again; a part always gives the same
bytes, so the result is the same.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

from labelwise.core.errors import LabelwiseError, missing_extra
from labelwise.core.ray_cluster import ray_cluster
from labelwise.jobs.job import JobSettings
from labelwise.jobs.parts import Part
from labelwise.jobs.run import ModelFiles, PartResult, PartWorker, open_tagger

_MOST_ATTEMPTS = 6  # per part: images that kill every process must not be retried for ever


class _Attempts:
    """How often each part was started. An actor of its own, so that it outlives the workers."""

    def __init__(self) -> None:
        self._begun: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        self._begun[number] += 1
        return self._begun[number]


class _RayWorker:
    """The state of each process in Ray's pool."""

    def __init__(self, files: Any, parts: Any, settings: JobSettings, attempts: Any) -> None:
        import ray

        model: ModelFiles = ray.get(files)
        self._parts: dict[int, Part] = ray.get(parts)
        self._work = PartWorker(open_tagger(model.unpacked(), settings), settings)
        self._attempts = attempts

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        results = [self._result(int(number), self._parts[int(number)]) for number in batch["number"]]
        return {field.name: [getattr(result, field.name) for result in results] for field in fields(PartResult)}

    def _result(self, number: int, part: Part) -> PartResult:
        import ray

        with suppress(ray.exceptions.RayError):  # the counter was killed, too: the work matters more
            if ray.get(self._attempts.begin.remote(number)) > _MOST_ATTEMPTS:
                return PartResult(number, problem=f"its process died {_MOST_ATTEMPTS} times; an image may be too large")
        return self._work(number, part)


def ray_results(
    tasks: Sequence[tuple[int, Part]],
    files: ModelFiles,
    settings: JobSettings,
    *,
    address: str | None = None,
    workers: int | None = None,
) -> Iterator[PartResult]:
    """Yield the results as they finish. Without an `address`, Ray runs on this machine only and ends with the job."""
    with ray_cluster(address, workers) as ray:
        try:
            import ray.data
        except ImportError:
            raise missing_extra("ray", "ray") from None
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        cores = int(ray.cluster_resources().get("CPU", 1))
        attempts = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_Attempts).remote()
        try:
            dataset = ray.data.from_items(
                [{"number": number} for number, _ in tasks], override_num_blocks=len(tasks)
            ).map_batches(
                _RayWorker,
                batch_size=1,
                num_cpus=1,
                compute=ray.data.ActorPoolStrategy(min_size=1, max_size=min(workers or cores, len(tasks))),
                fn_constructor_args=(ray.put(files), ray.put(dict(tasks)), settings, attempts),
            )
            for row in dataset.iter_rows():
                yield PartResult(**row)
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise LabelwiseError(
                f"the job on Ray stopped ({type(error).__name__}: {reason}); finished parts are kept, run the same "
                "job again to continue"
            ) from error
