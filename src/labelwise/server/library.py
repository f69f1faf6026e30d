"""The models that a worker holds, and the same ones with other labels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.data.inputs import InputTransform
from labelwise.errors import LabelwiseError
from labelwise.export.folder import find_export
from labelwise.server.settings import ModelSource, ServeSettings
from labelwise.tagger import Tagger, load

if TYPE_CHECKING:
    from labelwise.model import LabelModel

_RELABELLED = 16  # models with other labels that are kept; they share all weights but the words
_MANY = 1_000_000  # pictures to come, for the choice of an engine: measuring it pays


class Served:
    """A tagger and what turns pictures into its inputs."""

    def __init__(self, tagger: Tagger, model: LabelModel | None) -> None:
        self.tagger, self.model = tagger, model  # an exported model has no inside to look at
        self.transform = InputTransform(tagger.config.preprocessing)

    def warm_up(self) -> Served:
        """The first run of an engine allocates and compiles: nobody should wait for that."""
        size = self.tagger.config.preprocessing.size
        self.tagger.engine(np.zeros((1, 3, size, size), np.float32))
        return self


class Library:
    def __init__(self, settings: ServeSettings, say: Callable[[str], None]) -> None:
        self._served = {model.name: _open(model, settings, say) for model in settings.models}
        self._relabelled: OrderedDict[tuple[str, tuple[str, ...]], Served] = OrderedDict()
        self._lock = Lock()

    def served(self, name: str, labels: Sequence[str] | None) -> Served:
        """The model of this name, or a sister of it with these labels; several threads may ask."""
        original = self._served[name]
        if labels is None:
            return original
        if original.model is None:
            raise LabelwiseError(f"the labels of the model {name!r} are fixed: it is an exported one")
        key = (name, tuple(labels))
        with self._lock:
            if key not in self._relabelled:
                model = original.model.with_labels(labels).eval()
                self._relabelled[key] = Served(Tagger(model), model)
                if len(self._relabelled) > _RELABELLED:
                    self._relabelled.popitem(last=False)
            self._relabelled.move_to_end(key)
            return self._relabelled[key]

    def describe(self) -> list[dict[str, Any]]:
        """What GET /models says of each."""
        return [
            {"name": name, "default": number == 0, **_describe(served)}
            for number, (name, served) in enumerate(self._served.items())
        ]


def _open(model: ModelSource, settings: ServeSettings, say: Callable[[str], None]) -> Served:
    if find_export(model.source) is None:
        tagger = load(model.source, engine=settings.engine, images=_MANY, batch_size=settings.batch_size, say=say)
        return Served(tagger, tagger.model).warm_up()
    return Served(load(model.source, engine=settings.engine), None).warm_up()


def _describe(served: Served) -> dict[str, Any]:
    tagger = served.tagger
    picture = tagger.config.preprocessing
    content: dict[str, Any] = {
        "task": tagger.config.task,
        "labels": list(tagger.labels),
        "thresholds": {label: round(limit, 6) for label, limit in tagger.thresholds.items()},
        "engine": tagger.engine.family,
        "size": picture.size,
        "resize": picture.resize,
        "crop_ratio": picture.crop_ratio,
    }
    return content | _abilities(served.model)


def _abilities(model: LabelModel | None) -> dict[str, bool]:
    if model is None:
        return {"words": False, "explain": False, "attention": False, "experts": False}
    from labelwise.explain.gates import shared_experts
    from labelwise.explain.maps import natural_method
    from labelwise.heads.word_head import bound_options

    return {
        "words": not bound_options(model.config.head) and model.config.words is not None,
        "explain": True,
        "attention": natural_method(model) == "attention",
        "experts": shared_experts(model.config) is not None,
    }
