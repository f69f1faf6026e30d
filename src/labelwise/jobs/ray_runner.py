"""The parts of a job on Ray Data: a pool of processes, on this machine or on all machines of a cluster.

Each process loads the model once. One that is killed is replaced, and the part it had is done again from its start;
as a part always gives the same bytes, nobody can tell afterwards.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from typing import Any

from labelwise.core.errors import LabelwiseError, missing_extra
from labelwise.jobs.job import JobSettings
from labelwise.jobs.parts import Part
from labelwise.jobs.run import ModelFiles, PartResult, PartWorker, open_tagger

_MOST_ATTEMPTS = 6  # at a part: one whose images kill every process that opens them must not go on for ever


class _Attempts:
    """How often each part was begun. Lives in a process of its own, which outlives those that do the work."""

    def __init__(self) -> None:
        self._begun: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        self._begun[number] += 1
        return self._begun[number]


class _RayWorker:
    """What Ray keeps in each process of the pool."""

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

        with suppress(ray.exceptions.RayError):  # whoever counts was killed, too: the work matters more
            if ray.get(self._attempts.begin.remote(number)) > _MOST_ATTEMPTS:
                return PartResult(number, problem=f"its process died {_MOST_ATTEMPTS} times; is an image too large?")
        return self._work(number, part)


def ray_results(
    tasks: Sequence[tuple[int, Part]],
    files: ModelFiles,
    settings: JobSettings,
    *,
    address: str | None = None,
    workers: int | None = None,
) -> Iterator[PartResult]:
    """The results as they become ready. Without an `address` Ray runs on this machine only, and ends with the job."""
    # Ray reads these when it is imported.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # else it warns of how Ray Data itself starts its processes
    if address is None:
        # On Linux Ray listens to the whole network, even if told _node_ip_address="127.0.0.1"; this is what makes it
        # stay on the loopback address on other systems.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
        import ray.data
    except ImportError:
        raise missing_extra("ray", "ray") from None
    with _connected(ray, address, workers):
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        cores = int(ray.cluster_resources().get("CPU", 1))  # type: ignore[no-untyped-call]
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
                "command again to go on"
            ) from error


@contextmanager
def _connected(ray: Any, address: str | None, workers: int | None) -> Iterator[None]:
    if ray.is_initialized():  # by the program that calls us
        yield
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is None:
            ray.init("local", num_cpus=workers, include_dashboard=False, **quiet)  # never one that happens to run here
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        if address is None:
            raise LabelwiseError(f"Ray does not start on this machine ({reason})") from None
        raise LabelwiseError(
            f"no Ray cluster at {address!r} lets us in ({reason}); start one with: ray start --head, and set the same "
            "RAY_AUTH_TOKEN here and there if it asks for one"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()
