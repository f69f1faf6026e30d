from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from labelwise.core.errors import LabelwiseError
from labelwise.data.strings import CodedStrings, PackedStrings
from labelwise.data.table import LabelTable, canonical_split

DENSE = arrays.arrays(np.int8, st.tuples(st.integers(1, 8), st.integers(1, 6)), elements=st.sampled_from([1, 0, -1]))


def table_of(dense: np.ndarray, fill: int = 0) -> LabelTable:
    """Through the raw constructor: every entry that differs from the fill value is listed, in shuffled column order."""
    rows, columns = np.nonzero(dense != fill)
    order = np.lexsort((-columns, rows))  # columns need not be sorted within a row
    rows, columns = rows[order], columns[order]
    count = np.bincount(rows, minlength=len(dense))
    return LabelTable(
        tuple("abcdef"[: dense.shape[1]]),
        [f"{row}.jpg" for row in range(len(dense))],
        ["train" if row % 3 else "val" for row in range(len(dense))],
        np.concatenate([[0], np.cumsum(count)]),
        columns,
        dense[rows, columns],
        fill=fill,
        source="photos.csv",
        lines=np.arange(len(dense)) + 2,
    )


@given(DENSE, st.sampled_from([0, -1]))
def test_sparse_and_dense_agree(dense: np.ndarray, fill: int) -> None:
    table = table_of(dense, fill)
    assert np.array_equal(table.targets(), dense)
    assert all(np.array_equal(table.target(row), dense[row]) for row in range(len(dense)))
    assert np.array_equal(table.positives_per_label(), (dense == 1).sum(0))
    assert np.array_equal(table.unknown_per_label(), (dense == -1).sum(0))
    assert [table.present(row) for row in range(len(dense))] == [
        [name for name, value in zip(table.labels, values, strict=True) if value == 1] for values in dense
    ]


@given(DENSE, st.sampled_from([0, -1]), st.data())
def test_select_is_numpy_indexing(dense: np.ndarray, fill: int, data: st.DataObject) -> None:
    table = table_of(dense, fill)
    rows = np.array(data.draw(st.lists(st.integers(-len(dense), len(dense) - 1), max_size=10)), np.int64)
    mask = data.draw(arrays.arrays(bool, len(dense)))
    for which in (rows, mask):
        chosen = table.select(which)
        assert np.array_equal(chosen.targets(), dense[which])
        assert np.array_equal(table.targets(which), dense[which])
        assert chosen.images == list(np.array(table.images, object)[which])
        assert chosen.splits == list(np.array(table.splits, object)[which])
        assert chosen.lines is not None
        assert np.array_equal(chosen.lines, (np.arange(len(dense)) + 2)[which])


@given(DENSE, st.sampled_from([0, -1]), st.data())
def test_with_labels_is_column_indexing(dense: np.ndarray, fill: int, data: st.DataObject) -> None:
    table = table_of(dense, fill)
    columns = data.draw(st.permutations(range(dense.shape[1])))[: data.draw(st.integers(0, dense.shape[1]))]
    order = [table.labels[column] for column in columns]
    assert np.array_equal(table.with_labels(order).targets(), dense[:, columns])
    for missing, value in (("unknown", -1), ("absent", 0)):
        wider = table.with_labels(["new", *order, "newer"], missing=missing)
        expected = np.pad(dense[:, columns], ((0, 0), (1, 1)), constant_values=value)
        assert np.array_equal(wider.targets(), expected)


def test_with_labels_proposes_the_nearest_and_keeps_label_sets() -> None:
    table = LabelTable.from_lists(["a"], [["cat", "dog", "cow"]], source="photos.csv")
    with pytest.raises(LabelwiseError, match=r"^photos.csv: unknown label 'dgo'; did you mean 'dog'\?"):
        table.with_labels(["dgo"])
    with pytest.raises(LabelwiseError, match="'dog' is listed twice"):
        table.with_labels(["dog", "dog"])
    sets = LabelTable(**{**vars(table), "label_sets": {"seen": ("cat", "dog"), "unseen": ("cow",)}})
    assert sets.with_labels(["dog", "cow"]).label_sets == {"seen": ("dog",), "unseen": ("cow",)}


def test_splits_by_any_spelling_and_together() -> None:
    names = ["training", "Validation", "test", "dev", "train", ""]
    table = LabelTable.from_lists(list("uvwxyz"), [[]] * 6, ["cat"], splits=names, source="photos.csv")
    assert table.splits == ["train", "val", "test", "val", "train", ""]
    assert table.split_names == ("train", "val", "test", "")
    assert table.select("valid").images == ["v", "x"]
    assert table.select("trainval").images == table.select("train+val").images == ["u", "v", "x", "y"]
    assert table.select("").images == ["z"]
    with pytest.raises(
        LabelwiseError, match=r"^photos.csv: unknown split 'tset'; did you mean 'test'\? \(train, val, test\)"
    ):
        table.select("tset")
    with pytest.raises(LabelwiseError, match=r"has no splits.*labelwise data split"):
        table.with_splits([""] * 6).select("train")
    own = table.with_splits(["trainval"] * 5 + ["test"])
    assert len(own.select("trainval")) == 5  # a split really called so wins over train + val
    assert table.select("test").split_names == ("test",)


def test_canonical_split_is_idempotent() -> None:
    for name in ("Training", "valid", "DEV", "testing", "fold 1", "trainval"):
        assert canonical_split(canonical_split(name)) == canonical_split(name)


def test_from_lists_precedence_and_order() -> None:
    table = LabelTable.from_lists(["a"], [["x"]], absent=[["x", "y"]], unknown=[["x", "y", "z"]], fill=-1)
    assert table.labels == ("x", "y", "z")
    assert table.target(0).tolist() == [1, 0, -1]
    with pytest.raises(LabelwiseError, match="unknown label 'catt'; did you mean 'cat'"):
        LabelTable.from_lists(["a"], [["catt"]], ["cat"])


def test_rows_count_from_the_end_or_raise() -> None:
    table = LabelTable.from_lists(["a", "b"], [["x"], ["y"]], fill=-1)
    assert table.target(-1).tolist() == [-1, 1]
    assert table.present(-2) == ["x"]
    for row in (2, -3):
        with pytest.raises(IndexError):
            table.target(row)
        with pytest.raises(IndexError):
            table.targets([0, row])
    assert table.targets([-1, 0]).tolist() == [[-1, 1], [1, -1]]
    assert len(table.select([]).select([])) == 0


def test_a_batch_of_a_large_table_costs_no_more_than_of_a_small_one() -> None:
    table = LabelTable.from_lists([""] * 100_000, [["x"]] * 100_000)
    tracemalloc.start()
    table.targets([3, -1])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(table)  # bytes; a number for each image would be eight times as much


def test_splits_may_be_an_array_and_must_be_one_per_image() -> None:
    table = LabelTable.from_lists(["a", "b"], [["x"], []], splits=np.array(["train", "test"]))
    assert table.split_names == ("train", "test")
    with pytest.raises(ValueError, match="2 images, 0 splits"):
        LabelTable.from_lists(["a", "b"], [["x"], []], splits=[])


def test_single_label_ends_where_an_image_loses_its_label() -> None:
    table = LabelTable.from_lists(["a", "b"], [["x"], ["y"]], single_label=True)
    assert table.with_labels(["y", "x"]).single_label
    assert not table.with_labels(["y"]).single_label


def test_where_names_the_row() -> None:
    table = table_of(np.zeros((3, 2), np.int8))
    assert table.select([2]).where(0) == "photos.csv row 4"
    assert LabelTable.from_lists(["a"], [[]], [], source="coco").where(0) == "coco"


def test_broken_tables_are_refused() -> None:
    good = vars(table_of(np.ones((2, 2), np.int8)))
    for change in (
        {"splits": ["train"]},
        {"columns": np.array([0, 1, 0, 2])},
        {"values": np.array([1, 1, 1, 2])},
        {"indptr": np.array([0, 2, 3])},
        {"fill": 1},
    ):
        with pytest.raises(ValueError):  # noqa: PT011 - each names its own numbers
            LabelTable(**{**good, **change})
    with pytest.raises(LabelwiseError, match="'a' is listed twice"):
        LabelTable(**{**good, "labels": ("a", "a")})


@given(st.lists(st.text()), st.data())
def test_packed_strings_are_a_list(strings: list[str], data: st.DataObject) -> None:
    strings = [text.encode("utf-8", "ignore").decode() for text in strings]  # no lone surrogates
    packed = PackedStrings(strings)
    assert packed == strings
    assert list(pickle.loads(pickle.dumps(packed))) == strings
    if strings:
        rows = data.draw(st.lists(st.integers(0, len(strings) - 1)))
        assert packed.take(np.array(rows, np.int64)) == [strings[row] for row in rows]
        assert packed[-1] == strings[-1]
        assert packed[1:] == strings[1:]
    with pytest.raises(IndexError):
        packed[len(strings)]


def test_packed_strings_keep_file_names_that_are_not_unicode() -> None:
    name = b"caf\xe9.jpg".decode("utf-8", "surrogateescape")
    assert PackedStrings([name])[0] == name


def test_take_crosses_its_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelwise.data.strings._TAKE_BLOCK", 3)
    strings = [f"{'x' * (number % 4)}{number}" for number in range(20)]
    rows = np.array([19, 0, 7, 7, 3, 12, 1], np.int64)
    assert PackedStrings(strings).take(rows) == [strings[row] for row in rows]


def test_coded_strings_forget_names_nobody_has() -> None:
    coded = CodedStrings(["b", "a", "b", "c"])
    assert coded.names == ("b", "a", "c")
    assert coded.take(np.array([3, 0, 3])) == ["c", "b", "c"]
    assert coded.take(np.array([3, 0])).names == ("b", "c")


def test_a_million_images_of_ten_thousand_labels_stay_small() -> None:
    """Dense, this would be 10 GB."""
    count, labels = 1_000_000, 10_000
    table = LabelTable(
        tuple(f"label {n}" for n in range(labels)),
        PackedStrings(f"train/{n:016x}.jpg" for n in range(count)),
        CodedStrings("train" for _ in range(count)),
        np.arange(count + 1),
        np.arange(count, dtype=np.int32) % labels,
        np.ones(count, np.int8),
        fill=-1,
    )
    assert table.positives_per_label().tolist() == [count // labels] * labels
    assert table.unknown_per_label()[0] == count - count // labels
    assert len(table.select(np.arange(0, count, 2))) == count // 2
    bytes_per_image = len(pickle.dumps(table, protocol=5)) / count
    assert bytes_per_image < 60


def test_a_table_in_a_notebook_and_in_pandas() -> None:
    table = LabelTable.from_lists(
        ["a.jpg", "<b>.jpg"], [["cat"], ["dog"]], unknown=[["dog"], []], splits=["train", "test"], source="photos.csv"
    )
    assert repr(table) == "<LabelTable 'photos.csv': 2 images, 2 labels; train 1, test 1>"
    page = table._repr_html_()
    assert "&lt;b&gt;.jpg" in page
    assert "<b>.jpg" not in page
    frame = table.to_pandas()
    assert frame.loc["a.jpg"].to_dict() == {"split": "train", "cat": 1, "dog": -1}
    many = LabelTable.from_lists([f"{n}.jpg" for n in range(5000)], [["cat"]] * 5000)
    assert len(many._repr_html_()) < 5000
