"""A training on a Ray cluster: Ray Train starts the processes that torchrun would start, and starts them again if some
are lost. All else is the same: the run folder, which every machine must see, and what is computed."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labelwise.core import terminal
from labelwise.core.errors import LabelwiseError, missing_extra, one_line
from labelwise.core.ray_cluster import ray_cluster
from labelwise.runtime.run_files import LOG
from labelwise.training.check import check
from labelwise.training.recipe import Recipe
from labelwise.training.run import Run, continues

_RESTARTS = 3
_SECONDS_BETWEEN_LOOKS = 0.5


def train_on_ray(
    recipe: Recipe, folder: Path, *, resume: bool, address: str | None = None, processes: int | None = None
) -> Run:
    """Train in `processes` processes on the cluster at `address`.

    Default: on this machine alone, in one process per GPU; without GPUs, in one per machine.
    """
    with ray_cluster(address) as ray:
        try:
            from ray.train import FailureConfig, RunConfig, ScalingConfig
            from ray.train.torch import TorchConfig, TorchTrainer
        except ImportError:
            raise missing_extra("ray", "ray") from None
        for name in ("ray.train", "ray.air"):
            logging.getLogger(name).setLevel(logging.ERROR)
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = int(sum(resources.get("GPU", 0) for resources in machines))
        processes = processes or gpus or len(machines)
        check(recipe, processes)
        cores = int(min(resources.get("CPU", 1) for resources in machines)) * len(machines) // processes
        own = folder / ".ray"  # Ray keeps its books there; the checkpoints are ours
        trainer = TorchTrainer(
            _train_here,
            train_loop_config={"recipe": recipe, "folder": folder, "resume": resume, "in": os.getcwd()},
            torch_config=TorchConfig(timeout_s=max(1, round(60 * recipe.timeout_minutes))),
            scaling_config=ScalingConfig(
                num_workers=processes, use_gpu=gpus > 0, resources_per_worker={"CPU": max(1, cores)}
            ),
            run_config=RunConfig(
                name="run", storage_path=str(own.absolute()), failure_config=FailureConfig(max_failures=_RESTARTS)
            ),
        )
        try:
            with _followed(folder / LOG):
                trainer.fit()
        except Exception as error:
            raise _told(error) from error
        finally:
            shutil.rmtree(own, ignore_errors=True)
    return Run(folder)


def _train_here(order: dict[str, Any]) -> None:
    """In each process. Ray has set the variables of torchrun, but for those by which Fabric knows it."""
    os.environ |= {"TORCHELASTIC_RUN_ID": "ray", "GROUP_RANK": os.environ["NODE_RANK"]}
    os.environ["TORCHELASTIC_MAX_RESTARTS"] = str(_RESTARTS)
    os.chdir(order["in"])  # a recipe may name its data by a relative path
    from labelwise.training.train import train

    recipe, folder = order["recipe"], order["folder"]
    train(recipe, folder, resume=order["resume"] or continues(folder, recipe))


@contextmanager
def _followed(log: Path) -> Iterator[None]:
    """Show what the first process says, wherever it runs: it writes the run's log."""
    ended = threading.Event()
    start = log.stat().st_size if log.exists() else 0

    def follow() -> None:
        shown, last = start, False
        while not last:
            last = ended.wait(_SECONDS_BETWEEN_LOOKS)
            if log.exists():
                with log.open("rb") as file:
                    file.seek(shown)
                    for line in file.read().decode(errors="replace").splitlines():
                        terminal.say(line, stderr=True)
                    shown = file.tell()

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _told(error: Exception) -> LabelwiseError:
    """The first mistake that a process has told, else what Ray says. A lost process is the others' mistake."""
    failures = [getattr(one, "_base_exc", one) for one in getattr(error, "worker_failures", {}).values()]
    told = [one for one in failures if isinstance(one, LabelwiseError)]
    told.sort(key=lambda one: "does not answer" in str(one))
    if told:
        return told[0]
    reason = one_line(failures[0] if failures else error)[:300]
    return LabelwiseError(f"the training on Ray stopped ({reason}); run the same command again to continue")
