"""An exported model as evaluation sees a model: a config, and something that runs."""

from __future__ import annotations

from pathlib import Path

from labelwise.engines.base import Engine, EngineName
from labelwise.export.folder import CONFIG, Exported
from labelwise.model_config import ModelConfig


class ExportedModel:
    def __init__(self, exported: Exported, engine: EngineName = "auto") -> None:
        self.folder: Path = exported.folder
        self.config = ModelConfig.parse(exported.model, str(exported.folder / CONFIG))
        self.engine: Engine = exported.engine(engine)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.config.labels
