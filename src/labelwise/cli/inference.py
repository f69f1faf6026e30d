"""How `labelwise evaluate` runs a model over images: in which engine, from which views, from cached features or not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from labelwise.cli.say import say
from labelwise.data.images import OnBadImage
from labelwise.data.table import LabelTable
from labelwise.engines.base import Engine, EngineName
from labelwise.engines.choose import open_engine
from labelwise.errors import LabelwiseError
from labelwise.evaluation.inference import InferenceOptions
from labelwise.export.folder import find_export
from labelwise.export.model import ExportedModel
from labelwise.features import FeatureCache
from labelwise.model import LabelModel, load_model


def open_network(model: str, engine: EngineName, *, itself: bool) -> LabelModel | ExportedModel:
    """A model, or if that will do an exported one."""
    exported = find_export(model)
    if exported is not None:
        if itself:
            raise LabelwiseError("--save, --cache, --unseen and --scales need the model itself, not an exported one")
        return ExportedModel(exported, engine)
    return load_model(model).to("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(kw_only=True)
class Inference:
    network: LabelModel | ExportedModel
    engine: EngineName
    batch_size: int
    workers: int
    on_bad_image: OnBadImage
    flip: bool
    scales: list[float]
    cache: bool
    as_it_is: bool  # the network's own labels, and no others
    images: int  # how many, about: for one engine or the other to be worth its preparation

    @cached_property
    def runner(self) -> Engine | None:
        """The engine for the whole model; None where torch runs it, or its head on cached features."""
        if isinstance(self.network, ExportedModel):
            return self.network.engine
        if self.cache:  # there the engine computes the features
            return None
        if not self.as_it_is or self.scales != [1]:
            if self.engine not in ("auto", "torch"):
                raise LabelwiseError(
                    f"--engine {self.engine} runs a model as it is: not with --scales or --unseen; use torch"
                )
            return None
        return open_engine(
            self.engine,
            self.network,
            size=self.network.config.preprocessing.size,
            images=self.images * (2 if self.flip else 1),
            batch_size=self.batch_size,
            say=lambda text: say(text, stderr=True),
        )

    def options(self, images: LabelTable) -> InferenceOptions:
        """The keywords of `predict_logits` for these images; their features are computed here if they are cached."""
        features = None
        if self.cache and isinstance(self.network, LabelModel):
            features = FeatureCache.build(
                images,
                self.network.backbone,
                self.network.config.preprocessing,
                flips=self.flip,
                batch_size=self.batch_size,
                workers=self.workers,
                on_bad_image=self.on_bad_image,
                engine=self.engine,
            )
        return {
            "batch_size": self.batch_size,
            "workers": self.workers,
            "on_bad_image": self.on_bad_image,
            "flip": self.flip,
            "scales": self.scales,
            "features": features,
            "engine": self.runner,
        }
