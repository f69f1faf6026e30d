"""Runs of heads on a graph of the labels: the graph is made of the training images, and travels with the model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import labelwise as lw
from labelwise.core.errors import LabelwiseError
from labelwise.data import open_data
from labelwise.training import cooccurrence
from labelwise.training.train import train
from run_kit import recipe
from tests.heads.head_kit import small_options

GRAPHS = [name for name in lw.heads.list_heads() if lw.heads.preset(name).takes_cooccurrence]


@pytest.fixture(scope="module")
def words(sample: Path) -> Path:
    """Word vectors of the labels, beside the sample set."""
    labels = open_data(sample).labels
    vectors = torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(0))
    save_file(dict(zip(labels, vectors.unbind(), strict=True)), sample.parent / "words.safetensors")
    return sample.parent / "words.safetensors"


def of(head: str, words: Path | None) -> dict[str, Any]:
    """Changes to a recipe: this head, small."""
    options = {key: value for key, value in small_options(head).items() if not isinstance(value, torch.Tensor)}
    given = {} if words is None else {"model.words": str(words)}
    return {"model.head": head, "model.options": options, "epochs": 1, **given}


@pytest.mark.parametrize("head", GRAPHS)
def test_a_trained_model_needs_neither_the_table_nor_the_words(
    head: str, sample: Path, words: Path, tmp_path: Path
) -> None:
    gone = Path(shutil.copy(words, tmp_path / "words.safetensors"))
    changes = of(head, gone)
    train(recipe(sample, **changes), tmp_path / "run")
    gone.unlink()
    table, given = open_data(sample).select("train"), small_options(head)
    trained = lw.load_model(tmp_path / "run")
    made = lw.heads.create(
        head,
        in_features=trained.head.in_features,
        labels=len(table.labels),
        word_vectors=trained.head.word_vectors,
        cooccurrence=cooccurrence(table),
        **{key: value for key, value in given.items() if not isinstance(value, torch.Tensor)},
    )
    if head == "cma":  # its embeddings are fitted to the graph
        torch.testing.assert_close(trained.head.label_embeddings.norm(dim=1), torch.ones(len(table.labels)))
    else:
        torch.testing.assert_close(trained.head.adjacency, made.adjacency)  # validation images have no part in it
    assert trained(torch.rand(1, 3, 32, 32)).isfinite().all()
    with pytest.raises(LabelwiseError, match="needs a head that takes new labels"):
        trained.with_labels(["harbour"], torch.randn(1, 6))


def test_words_are_asked_for(sample: Path, tmp_path: Path) -> None:
    with pytest.raises(LabelwiseError, match="this head needs word vectors") as needed:
        train(recipe(sample, **of("ml-gcn", None)), tmp_path / "none")
    assert needed.value.options == {"model.words": "package:glove-50d"}
