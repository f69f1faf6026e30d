from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from labelwise.errors import LabelwiseError
from labelwise.words import read_word_vectors


def test_both_layouts_give_vectors_by_name(tmp_path: Path) -> None:
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save(tmp_path / "w.npy", rows)
    (tmp_path / "w.labels.txt").write_text("dog\ncat\nsofa\n")
    save_file(
        {n: torch.from_numpy(r) for n, r in zip(["dog", "cat", "sofa"], rows, strict=True)}, tmp_path / "w.safetensors"
    )
    for name in ("w.npy", "w.safetensors"):
        assert read_word_vectors(tmp_path / name, ["sofa", "dog"]).tolist() == [[4, 5], [0, 1]]


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(LabelwiseError, match="no file of word vectors"):
        read_word_vectors(tmp_path / "no.npy", ["dog"])
    np.save(tmp_path / "w.npy", np.zeros((3, 2)))
    with pytest.raises(LabelwiseError, match=r"needs the labels of its rows in .*w\.labels\.txt"):
        read_word_vectors(tmp_path / "w.npy", ["dog"])
    (tmp_path / "w.labels.txt").write_text("dog\ncat\n")
    with pytest.raises(LabelwiseError, match="2 names"):
        read_word_vectors(tmp_path / "w.npy", ["dog"])
    (tmp_path / "w.labels.txt").write_text("dog\ncat\nsofa\n")
    with pytest.raises(LabelwiseError, match="no vector for 1 labels, such as 'bus'"):
        read_word_vectors(tmp_path / "w.npy", ["dog", "bus"])
    np.save(tmp_path / "p.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(LabelwiseError, match="cannot read"):
        read_word_vectors(tmp_path / "p.npy", ["dog"])
