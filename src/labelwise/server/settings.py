"""Settings of a server: which models under which names, and all limits."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from labelwise.core.config import Config
from labelwise.core.errors import LabelwiseError
from labelwise.runtime.sessions import EngineName

MOST_MAPS = 64  # in the answer to one /explain
KEY_VARIABLE = "LABELWISE_API_KEY"  # of the environment
_PIXEL_BYTES = 24  # at the most, while an image is decoded: a PNG with transparency that has to be turned
_MOST_PIXELS = 178_000_000  # Pillow refuses 178,956,971
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")  # no slash and no leading dot: a name is never a path


class ModelSource(Config):
    name: str  # in the server's URLs
    source: str  # a run folder, a model folder, an exported model or a hub id


def memory_limit() -> int:
    """Bytes of memory that this process may use: the machine's, or its control group's (a container, a service)."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    files = {"": "/sys/fs/cgroup{}/memory.max", "memory": "/sys/fs/cgroup/memory{}/memory.limit_in_bytes"}
    with suppress(OSError):  # not Linux
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            for place in (group, ""):  # a container may see its own group as the root
                with suppress(KeyError, OSError, ValueError):  # another controller, no such file, "max"
                    limits.append(int(Path(files[controllers].format(place)).read_text(encoding="utf-8")))
    return min(limits)


def pixel_limit(memory: int) -> int:
    """The largest image that a quarter of the memory can decode, whatever its format.

    >>> pixel_limit(8 << 30), pixel_limit(64 << 30)  # cameras have up to 61 megapixels, some phones 108 or 200
    (89478485, 178000000)
    """
    return min(_MOST_PIXELS, memory // 4 // _PIXEL_BYTES)


class ServeSettings(Config):
    """What the front and the workers share. The API key is not among it: no worker needs it.

    Args:
        models: The models; the first one is the default.
        engine: What runs them.
        workers: Processes that hold the models, each with its share of the cores. One is the most efficient and uses
            all cores. With two, one goes on while the other is restarted.
        batch_size: Most images of several requests in one batch.
        max_wait: Milliseconds that an image waits for others to share its batch.
        max_bytes: Largest request; larger ones get status 413.
        max_pixels: Largest image, by its header; larger ones get status 413 before anything is decoded. Default: what a
            quarter of the machine's or container's memory can decode, e.g. 89 megapixels of 8 GB; at most 178.
        max_files: Most images per request; more get status 413.
        timeout: Seconds after which an image without an answer gets status 503.
        queue: Most images that wait for an answer; more get status 429.
        max_connections: Most connections. One more closes the one that has been idle longest; if none is idle, it gets
            status 429.
    """

    models: tuple[ModelSource, ...] = Field(min_length=1)
    engine: EngineName = "auto"
    workers: int = Field(default=1, ge=1)
    batch_size: int = Field(default=32, ge=1)
    max_wait: float = Field(default=10.0, ge=0)
    max_bytes: int = Field(default=64_000_000, ge=1)
    max_pixels: int = Field(default_factory=lambda: pixel_limit(memory_limit()), ge=1)
    max_files: int = Field(default=32, ge=1)
    timeout: float = Field(default=60.0, gt=0)
    queue: int = Field(default=256, ge=1)
    max_connections: int = Field(default=1000, ge=1)

    @model_validator(mode="after")
    def _a_full_request_fits(self) -> Self:
        if self.max_files > self.queue:
            raise ValueError(f"max_files={self.max_files} images never fit into a queue of {self.queue}; raise queue")
        return self

    @property
    def held_bytes(self) -> int:
        """Limit for the bodies of all requests together, which the front keeps in memory."""
        return 8 * self.max_bytes

    @property
    def decode_seconds(self) -> float:
        """Limit for decoding one image. Shorter than `timeout`: those that wait behind it can still be answered."""
        return self.timeout / 4


def parse_models(arguments: Sequence[str]) -> tuple[ModelSource, ...]:
    """Parse `PATH` or `NAME=PATH` each; without a name, a model is named after its folder.

    >>> [(model.name, model.source) for model in parse_models(["runs/first", "pets=runs/second/model"])]
    [('first', 'runs/first'), ('pets', 'runs/second/model')]
    """
    models = [_parse_model(argument) for argument in arguments]
    names = [model.name for model in models]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise LabelwiseError(f"two models are called {repeated!r}; name them, like pets=runs/pets")
    return tuple(models)


def _parse_model(argument: str) -> ModelSource:
    name, equals, source = argument.partition("=")
    if not equals or Path(argument).exists():  # a folder may have = in its name
        return ModelSource(name=_name_of(argument), source=argument)
    if not _NAME.fullmatch(name):
        raise LabelwiseError(f"{name!r} is not a valid model name; use letters, digits, '_', '-' and '.' (not first)")
    if not source:
        raise LabelwiseError(f"the model {name!r} has no path; write {name}=PATH")
    return ModelSource(name=name, source=source)


def _name_of(source: str) -> str:
    """
    >>> _name_of("runs/my first/model/"), _name_of("owner/pets"), _name_of(".")
    ('my-first', 'pets', 'model')
    """
    path = Path(source)
    name = path.parent.name if path.name == "model" and path.parent.name else path.name
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip(".") or "model"
