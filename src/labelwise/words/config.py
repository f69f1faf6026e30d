"""Where the word vectors of labels come from. No PyTorch: a mistake in it is told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from labelwise.core.config import Config, may_read_files
from labelwise.core.errors import LabelwiseError, one_line

USUAL_DIM = 300  # of GloVe: to count with, where nothing says how long the vectors will be


class WordsConfig(Config):
    """Where word vectors come from. A plain string stands for its source (`words: glove.txt` in a recipe).

    Args:
        source: A file of vectors (words.npy with words.labels.txt, words.safetensors, GloVe or word2vec text),
            package:glove-50d, sentence:minilm, sentence:FOLDER or HUB ID, clip:MODEL/PRETRAINED or clip:FOLDER.
        templates: Texts with {} for the label's name; their vectors are averaged.
        phrases: Other words for labels, used instead of the name and averaged. In a recipe also a YAML or JSON file.
        normalise: Scale vectors to a mean square of 1, so that queries start at the same scale with every source.

    >>> WordsConfig.model_validate("package:glove-50d").templates
    ('{}',)
    """

    source: str = Field(min_length=1)
    templates: tuple[str, ...] = Field(default=("{}",), min_length=1)
    phrases: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    normalise: bool = True

    @model_validator(mode="before")
    @classmethod
    def _source_alone(cls, values: Any) -> Any:
        return {"source": values} if isinstance(values, str) else values

    @field_validator("templates")
    @classmethod
    def _contain_the_name(cls, templates: tuple[str, ...]) -> tuple[str, ...]:
        for template in templates:
            if "{}" not in template:
                raise ValueError(f"{template!r} has no '{{}}' for the label's name")
        return templates

    @field_validator("phrases", mode="before")
    @classmethod
    def _from_a_file(cls, phrases: Any, info: ValidationInfo) -> Any:
        """Read now, so that a saved recipe or model holds the phrases themselves."""
        if isinstance(phrases, str) and may_read_files(info):
            from labelwise.core.yaml_files import read_yaml  # not above: predicting needs no YAML

            try:
                phrases = read_yaml(Path(phrases))
            except (OSError, ValueError) as error:
                raise LabelwiseError(f"cannot read the phrases {phrases!r}: {one_line(error)}") from None
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


def tower_words(backbone: str) -> WordsConfig | None:
    """The texts that belong to the image tower of an open_clip model (`clip:…`); None for any other backbone.

    >>> tower_words("clip:ViT-B-32/openai").templates, tower_words("resnet50")
    (('a photo of a {}.',), None)
    """
    return WordsConfig(source=backbone, templates=("a photo of a {}.",)) if backbone.startswith("clip:") else None
