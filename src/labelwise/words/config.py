"""Where the word vectors of labels come from. Saved with a model, so that it can learn new names later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, field_validator, model_validator

from labelwise.config import Config
from labelwise.errors import LabelwiseError


class WordsConfig(Config):
    """A plain string stands for its source: `WordsConfig.parse("package:glove-50d", ...)`, `words: glove.txt` in YAML.

    >>> WordsConfig.model_validate("package:glove-50d").templates
    ('{}',)
    """

    # A table of vectors (words.npy with words.labels.txt, words.safetensors, GloVe or word2vec text),
    # package:glove-50d, sentence:minilm, sentence:FOLDER or HUB ID, clip:MODEL/PRETRAINED
    source: str = Field(min_length=1)
    templates: tuple[str, ...] = Field(default=("{}",), min_length=1)  # texts around a name; their vectors are averaged
    # label -> other words for it, used in its place and averaged; in a recipe also a YAML or JSON file that holds them
    phrases: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    normalise: bool = True  # to a mean square of 1, so that queries from every source start at the same scale

    @model_validator(mode="before")
    @classmethod
    def _source_alone(cls, values: Any) -> Any:
        return {"source": values} if isinstance(values, str) else values

    @field_validator("templates")
    @classmethod
    def _have_a_place_for_the_name(cls, templates: tuple[str, ...]) -> tuple[str, ...]:
        for template in templates:
            if "{}" not in template:
                raise ValueError(f"{template!r} has no place '{{}}' for the label's name")
        return templates

    @field_validator("phrases", mode="before")
    @classmethod
    def _from_a_file(cls, phrases: Any) -> Any:
        """Read at once, so that a saved recipe or model holds the phrases themselves."""
        if isinstance(phrases, str):
            phrases = _read_phrases(Path(phrases))
        if isinstance(phrases, dict):
            return {label: (words,) if isinstance(words, str) else words for label, words in phrases.items()}
        return phrases

    @field_validator("phrases")
    @classmethod
    def _some_words(cls, phrases: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for label, words in phrases.items():
            if not words:
                raise ValueError(f"there are no phrases for {label!r}")
        return phrases


def _read_phrases(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise LabelwiseError(f"cannot read the phrases {str(path)!r}: {' '.join(str(error).split())}") from None
