"""Tables of word vectors: every file format, and names as labels are really written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from labelwise.core.errors import LabelwiseError
from labelwise.words import WordsConfig, open_words
from labelwise.words.tables import split_name

WORDS = {"dog": [0.0, 1.0], "cat": [2.0, 3.0], "sofa": [4.0, 5.0], "traffic": [6.0, 0.5], "light": [-1.0, 0.25]}


def write(path: Path) -> Path:
    """`WORDS` in the format that the file's name asks for."""
    if path.suffix == ".npy":
        np.save(path, np.array(list(WORDS.values()), dtype=np.float32))
        path.with_suffix(".labels.txt").write_text("\n".join(WORDS) + "\n")
    elif path.suffix == ".safetensors":
        save_file({name: torch.tensor(vector) for name, vector in WORDS.items()}, path)
    else:
        lines = [f"{name} {' '.join(map(str, vector))}\n" for name, vector in WORDS.items()]
        path.write_text("".join([f"{len(WORDS)} 2\n", *lines] if path.suffix == ".vec" else lines))
    return path


def raw(path: Path, labels: list[str], **options: object) -> list[list[float]]:
    config = WordsConfig.model_validate({"source": str(path), "normalise": False, **options})
    return open_words(config).vectors(labels).tolist()


@pytest.mark.parametrize("name", ["w.npy", "w.safetensors", "glove.txt", "word2vec.vec"])
def test_every_format_gives_vectors_by_name_in_the_order_of_the_labels(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name)
    assert raw(path, ["sofa", "dog"]) == [[4, 5], [0, 1]]
    assert raw(path, ["traffic light", "Dog"]) == [[2.5, 0.375], [0, 1]]  # a mean of words; tables are lower case


@pytest.mark.parametrize("label", ["traffic light", "traffic_light", "Traffic-Light", "trafficLight", "trafficlight"])
def test_one_thing_written_in_many_ways_has_one_vector(label: str, tmp_path: Path) -> None:
    assert raw(write(tmp_path / "glove.txt"), [label]) == [[2.5, 0.375]]


def test_an_entry_of_several_words_comes_before_the_mean_of_its_words(tmp_path: Path) -> None:
    path = write(tmp_path / "w.txt")
    with path.open("a") as file:
        file.write("traffic light 7 7\nLight_dog 8 8\n")  # large GloVe files and word2vec have such entries
    assert raw(path, ["traffic light", "Light dog", "traffic"]) == [[7, 7], [8, 8], [6, 0.5]]


def test_a_cut_takes_the_more_frequent_words(tmp_path: Path) -> None:
    """Tables list words by frequency: 'tvmonitor' is 'tv monitor', not the rare 'tvmon itor'."""
    (tmp_path / "w.txt").write_text("tv 1 0\nmonitor 0 1\ntvmon 5 5\nitor 5 5\n")
    assert raw(tmp_path / "w.txt", ["tvmonitor"]) == [[0.5, 0.5]]


@given(st.lists(st.sampled_from(["red", "big", "dog", "house"]), min_size=1, max_size=4), st.sampled_from(" _-/"))
def test_names_fall_apart_at_every_separator(words: list[str], separator: str) -> None:
    assert split_name(separator.join(words)) == words
    assert split_name("".join(word.capitalize() for word in words)) == words


def test_phrases_and_templates_are_averaged(tmp_path: Path) -> None:
    path = write(tmp_path / "w.npy")
    assert raw(path, ["pet", "sofa"], phrases={"pet": ["dog", "cat"]}) == [[1, 2], [4, 5]]
    assert raw(path, ["dog"], templates=["{}", "cat {}"]) == [[0.5, 1.5]]  # of [0, 1] and [1, 2]


def test_phrases_of_a_file_are_kept_in_the_config(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("pet: [dog, cat]\nseat: sofa\n")
    (tmp_path / "p.json").write_text('{"pet": ["dog", "cat"], "seat": "sofa"}')
    for name in ("p.yaml", "p.json"):
        config = WordsConfig.parse({"source": "x", "phrases": str(tmp_path / name)}, "words", files=True)
        assert config.phrases == {"pet": ("dog", "cat"), "seat": ("sofa",)}
        assert WordsConfig.model_validate(config.model_dump(mode="json")) == config


def test_normalised_vectors_have_a_mean_square_of_one_and_phrases_equal_weight(tmp_path: Path) -> None:
    path = write(tmp_path / "w.npy")
    vectors = open_words(str(path)).vectors(["dog", "cat", "sofa"])
    torch.testing.assert_close(vectors.square().mean(dim=1), torch.ones(3))
    torch.testing.assert_close(vectors[1], torch.tensor([2.0, 3.0]) / 6.5**0.5)
    two = open_words(WordsConfig(source=str(path), phrases={"x": ("dog", "sofa")})).vectors(["x"])[0]
    directions = torch.nn.functional.normalize(torch.tensor([WORDS["dog"], WORDS["sofa"]])).sum(dim=0)
    torch.testing.assert_close(two, directions / directions.norm() * 2**0.5)


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "w.txt")
    assert raw(path, ["dog"]) == [[0, 1]]
    path.write_text("dog 9 9\n")
    assert raw(path, ["dog"]) == [[9, 9]]


def test_mistakes_are_named(tmp_path: Path) -> None:
    def fails(match: str, path: Path, *labels: str, **options: object) -> None:
        with pytest.raises(LabelwiseError, match=match):
            raw(path, list(labels), **options)

    fails("neither a file nor package:glove-50d", tmp_path / "no.npy", "dog")
    np.save(tmp_path / "w.npy", np.zeros((3, 2)))
    fails(r"needs the labels of its rows in .*w\.labels\.txt", tmp_path / "w.npy", "dog")
    (tmp_path / "w.labels.txt").write_text("dog\ncat\n")
    fails("2 names", tmp_path / "w.npy", "dog")
    np.save(tmp_path / "p.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    fails("cannot read", tmp_path / "p.npy", "dog")
    (tmp_path / "broken.safetensors").write_bytes(b"no tensors")
    fails("cannot read", tmp_path / "broken.safetensors", "dog")
    path = write(tmp_path / "w.txt")
    fails(r"no vector for 2 of the names: no 'bus' for 'dog-bus'.*words.phrases", path, "dog", "dog-bus", "xx")
    fails("no vector for 1 of the names: no '!' for '!'", path, "!")
    fails("at least one label", path)
    (tmp_path / "w.txt").write_text("dog 1 2\ncat 1 x\n")
    fails("line 2 is not a word followed by 2 numbers", path, "cat")
    (tmp_path / "w.txt").write_text("dog 1 2\ncat 1 nan\n")
    fails("not finite", path, "cat")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"source": "x", "templates": ["a photo"]}, "'a photo' has no '{}'"),
        ({"source": "x", "templates": []}, "templates"),
        ({"source": "x", "phrases": {"a": []}}, "no phrases for 'a'"),
        ({"source": "x", "phrases": "no/such.yaml"}, "cannot read the phrases"),
        ({"source": ""}, "source"),
    ],
)
def test_wrong_configs_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(LabelwiseError, match=message):
        WordsConfig.parse(values, "words", files=True)
