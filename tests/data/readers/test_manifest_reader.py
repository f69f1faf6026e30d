from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise.core.errors import LabelwiseError
from labelwise.data import LabelTable, open_data

Write = Callable[..., Path]


@pytest.fixture
def write(touch: Callable[..., Path]) -> Write:
    """Write a manifest beside the (empty) images a.jpg, b.jpg, c.jpg."""

    def make(text: str | bytes, name: str = "photos.csv") -> Path:
        root = touch("a.jpg", "b.jpg", "c.jpg")
        (root / name).write_bytes(text.encode() if isinstance(text, str) else text)
        return root / name

    return make


def rows(table: LabelTable) -> list[tuple[str, list[str], str]]:
    return [(Path(table.images[i]).name, table.present(i), table.splits[i]) for i in range(len(table))]


EXPECTED = [("a.jpg", ["cat", "dog"], "train"), ("b.jpg", ["dog"], "val"), ("c.jpg", [], "test")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.csv", "image,labels,split\na.jpg,cat|dog,train\nb.jpg,dog,val\nc.jpg,,test\n"),
        ("p.csv", 'image,labels,split\na.jpg,"cat, dog",train\nb.jpg,dog,val\nc.jpg,,test\n'),
        ("p.csv", "image,labels,split\na.jpg,cat;dog,train\nb.jpg,dog,val\nc.jpg,,test"),
        ("p.csv", "File Name;Tags;Set\r\na.jpg;cat,dog;Training\r\n\r\nb.jpg;dog;validation\r\nc.jpg;;test\r\n"),
        ("p.csv", "\ufeffimage,labels,split\na.jpg,cat|dog,train\nb.jpg,dog,valid\nc.jpg,,test\n"),
        ("p.csv", "split,path,class\ntrain,a.jpg,\"[\"\"cat\"\", \"\"dog\"\"]\"\ndev,b.jpg,[dog]\ntesting,c.jpg,[]\n"),
        ("p.csv", "image,dog,cat,split\na.jpg,1,1,train\nb.jpg,1,0,val\nc.jpg,0,0,test\n"),
        ("p.csv", "image,labels,split\n\"a.jpg\",\"cat|\ndog\",train\nb.jpg,dog,val\nc.jpg,,test\n"),
        ("p.tsv", "filepath\tlabel\tsplit_name\na.jpg\tcat,dog\ttrain\nb.jpg\tdog\tval\nc.jpg\t\ttest\n"),
        ("p.jsonl", '{"image": "a.jpg", "labels": ["cat", "dog"], "split": "train"}\n'
                    '{"image": "b.jpg", "labels": ["dog"], "split": "val", "note": 1}\n\n'
                    '{"image": "c.jpg", "split": "test"}\n'),
        ("p.jsonl", '{"image": "a.jpg", "dog": 1, "cat": 1, "split": "train"}\n'
                    '{"image": "b.jpg", "dog": true, "cat": false, "split": "val"}\n'
                    '{"image": "c.jpg", "dog": 0, "cat": 0, "split": "test"}\n'),
    ],
)  # fmt: skip
def test_the_same_table_from_many_spellings(write: Write, name: str, text: str) -> None:
    table = open_data(write(text, name))
    assert [(image, sorted(present), split) for image, present, split in rows(table)] == EXPECTED
    assert set(table.labels) == {"cat", "dog"}


def test_utf16_and_named_encodings(write: Write) -> None:
    text = "image\tlabels\na.jpg\tcafé|thé\n"
    assert open_data(write(text.encode("utf-16"), "p.tsv")).labels == ("café", "thé")
    path = write(text.encode("cp1252"), "p.tsv")
    guessed = open_data(path)
    assert guessed.labels == ("café", "thé")
    assert any("read as Windows' cp1252, for example 'café'" in note for note in guessed.notes)
    assert open_data(f"{path}?encoding=latin-1").labels == ("café", "thé")
    with pytest.raises(LabelwiseError, match=r"p\.tsv row 2: byte 0xe9 is not UTF-8; .*encoding='latin-1'"):
        open_data(f"{path}?encoding=utf-8")
    with pytest.raises(LabelwiseError, match=r"row 2: byte 0xe9 is not UTF-8"):  # 0x81 is nothing in cp1252
        open_data(write(text.encode("cp1252") + b"b.jpg\t\x81\n", "p.tsv"))


@pytest.mark.parametrize(
    "right", [b"image\tlabels\na.jpg\tcaf\xc3\xa9\n", b"\xef\xbb\xbfimage\tlabels\na.jpg\tcat\n"], ids=["text", "mark"]
)
def test_utf8_with_a_bad_byte_is_not_taken_for_cp1252(write: Write, right: bytes) -> None:
    with pytest.raises(LabelwiseError, match=r"p\.tsv row 3: byte 0xe9 is not UTF-8; save the file as UTF-8"):
        open_data(write(right + b"b.jpg\tth\xe9\n", "p.tsv"))


def test_parquet(write: Write) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    path = write(b"", "p.parquet")
    with pytest.raises(LabelwiseError, match="not a readable Parquet file"):
        open_data(path)
    columns = {"image": ["a.jpg", "b.jpg", "c.jpg"], "labels": [["cat", "dog"], ["dog"], None]}
    parquet.write_table(pyarrow.table({**columns, "split": ["train", "val", "test"]}), path)
    assert rows(open_data(path)) == EXPECTED
    parquet.write_table(pyarrow.table({"image": ["a.jpg"], "cat": [1.0], "dog": [None], "cow": [-1.0]}), path)
    assert open_data(path).target(0).tolist() == [1, -1, -1]


def test_parquet_without_pyarrow_says_what_to_install(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(LabelwiseError, match=r"pip install 'labelwise\[parquet\]'"):
        open_data(write(b"", "p.parquet"))


def test_unknown_values(write: Write) -> None:
    wide = open_data(write("image,cat,dog,cow\na.jpg,1,,0\nb.jpg,-1,0.0,1.0\n"))
    assert wide.labels == ("cat", "dog", "cow")  # the order of the columns
    assert wide.targets().tolist() == [[1, -1, 0], [-1, 0, 1]]
    listed = write("image,cat,dog\na.jpg,x,\nb.jpg,,X\n")
    assert open_data(listed).targets().tolist() == [[1, 0], [0, 1]]  # a checklist
    assert open_data(listed, blank="unknown").targets().tolist() == [[1, -1], [-1, 1]]
    named = open_data(write("image,labels,unknown\na.jpg,cat,dog|cow\nb.jpg,cow,\n"))
    assert named.labels == ("cat", "cow", "dog")
    assert named.targets().tolist() == [[1, -1, -1], [0, 1, 0]]


def test_a_label_called_unknown_is_a_label(write: Write) -> None:
    path = write("image,cat,unknown\na.jpg,1,0\n")
    assert open_data(path).labels == ("cat", "unknown")
    with pytest.raises(LabelwiseError, match="unknown_column= needs a label column"):
        open_data(path, unknown_column="unknown")


def test_white_space_separates_only_where_it_makes_fewer_labels(write: Write) -> None:
    tags = "image,tags\n" + "".join(
        f"{n}.jpg,{tags}\n" for n, tags in enumerate(["clear road", "clear water", "road water", "clear"])
    )
    assert open_data(write(tags), check_files="no").labels == ("clear", "road", "water")
    names = "image,tags\na.jpg,fire truck\nb.jpg,hot dog\n"
    assert open_data(write(names)).labels == ("fire truck", "hot dog")
    assert open_data(write(names), separator="space").labels == ("dog", "fire", "hot", "truck")


def test_given_columns(write: Write) -> None:
    path = write("id,where,what,cat,dog,width\n7,a.jpg,x+y,1,0,640\n")
    table = open_data(path, image_column="where", label_column="what", separator="+")
    assert table.labels == ("x", "y")
    assert open_data(f"{path}?image_column=where&label_columns=dog,cat").target(0).tolist() == [0, 1]
    with pytest.raises(LabelwiseError, match=r"but not 'id' \(7\), .*ignore_columns='id,what,width' or .*='what'"):
        open_data(path, image_column="where")
    assert open_data(path, image_column="where", ignore_columns="id,what,width").labels == ("cat", "dog")


MISTAKES = {
    "missing column": (
        "picture,labels\nx.jpg,cat\n",
        r"has no image column: it has picture, labels, and none of them names files in .*; rename one to 'image', "
        r"name it, or say where the images are \(image_column=… or root=…\)",
    ),
    "no labels": ("image,split\na.jpg,train\n", r"has no labels: its columns are image, split"),
    "unknown split": (
        "image,labels,split\na.jpg,cat,train\nb.jpg,cat,trian\n",
        r"row 3: unknown split 'trian'; did you mean 'train'\?",
    ),
    "number of fields": (
        "image,labels\na.jpg,cat\nb.jpg,cat,dog\n",
        r"row 3: 3 fields where the header has 2 \(image, labels\); quote a field",
    ),
    "open quote": ('image,labels\na.jpg,"cat\nb.jpg,dog\n', r"row 2: .*double quote left open"),
    "no image": ("image,labels\n ,cat\n", r"row 2: the image column is empty"),
    "gone": (
        "image,labels\na.jpg,cat\n/old/disk/b.jpg,cat\nx.jpg,dog\n",
        r"row 3: image '/old/disk/b.jpg' does not exist \(nor does 1 more of 3\)\. .*root=",
    ),
    "conflict": (
        "image,labels\na.jpg,cat\nb.jpg,cat\na.jpg,dog\n",
        r"row 4: image '.*a.jpg' has other labels than in row 2; .*duplicates='merge'",
    ),
    "leak": (
        "image,labels,split\na.jpg,cat,train\na.jpg,cat,test\n",
        r"row 3: image '.*a.jpg' is in split 'test', but in 'train' in row 2",
    ),
    "empty": ("", r"is empty"),
    "only a header": ("image,labels\n", r"is empty: it has no row"),
    "no header": ("a.jpg,cat\nb.jpg,dog\n", r"row 1: the first row must name the columns"),
    "same column twice": ("image,cat,cat\na.jpg,1,1\n", r"two columns are called 'cat'"),
    "no value": ("image,cat,dog\na.jpg,1,0\nb.jpg,2,0\n", r"row 3: column 'cat' holds '2'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_name_the_row_and_the_fix(write: Write, mistake: str) -> None:
    text, message = MISTAKES[mistake]
    path = write(text)
    with pytest.raises(LabelwiseError, match=message) as caught:
        open_data(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_some_labels_of_a_table_and_typing_errors(write: Write) -> None:
    path = write("image,labels\na.jpg,cat\nb.jpg,cat|dgo\nc.jpg,cow\n")
    with pytest.raises(LabelwiseError, match=r"s\.csv: unknown label 'dog'; did you mean 'dgo'\? \(cat, cow, dgo\)"):
        open_data(path, labels=["dog", "cat", "cow"])
    some = open_data(path, labels=["cow", "cat"])
    assert some.targets().tolist() == [[0, 1], [0, 1], [1, 0]]
    assert some.notes == (f"{path}: 1 label is not among the chosen ones and ignored: dgo",)
    table = open_data(write("image,labels\na.jpg,cat\n"), labels=["dog", "cat", "cow"])
    assert table.target(0).tolist() == [0, 1, 0]
    wide = write("image,cat,dog\na.jpg,1,0\n")
    assert open_data(wide, labels=["dog", "cat"]).target(0).tolist() == [0, 1]
    with pytest.raises(LabelwiseError, match="did you mean 'cat'"):
        open_data(wide, labels=["catt"])


def test_line_numbers_count_as_an_editor_does(write: Write) -> None:
    path = write('image,labels\n"a.jpg","cat|\ndog"\n\nb.jpg,cat,x\n')
    with pytest.raises(LabelwiseError, match="row 5: 3 fields"):
        open_data(path)
    table = open_data(write('image,labels\n"a.jpg","cat|\ndog"\n\nb.jpg,cat\n'))
    assert [table.where(row).split("row ")[1] for row in range(2)] == ["2", "5"]


def test_jsonl_mistakes(write: Write) -> None:
    with pytest.raises(LabelwiseError, match=r"row 2: not JSON"):
        open_data(write('{"image": "a.jpg", "labels": []}\n{"image": \n', "p.jsonl"))
    with pytest.raises(LabelwiseError, match=r"row 1: the image column holds a dict, not a path"):
        open_data(write('{"image": {"bytes": ""}, "labels": []}\n', "p.jsonl"))
    with pytest.raises(LabelwiseError, match=r"row 1: expected an object"):
        open_data(write("[1]\n", "p.jsonl"))


def test_repeated_rows(write: Write) -> None:
    assert len(open_data(write("image,labels\na.jpg,cat\na.jpg,cat\n"))) == 1
    long = write("image,labels\na.jpg,cat\nb.jpg,dog\na.jpg,cow\n")
    assert rows(open_data(long, duplicates="merge")) == [("a.jpg", ["cat", "cow"], ""), ("b.jpg", ["dog"], "")]


def test_images_that_moved(write: Write, tmp_path: Path) -> None:
    path = write("image,labels\n/old/disk/photos/x/a.jpg,cat\n/old/disk/photos/b.jpg,dog\n")
    moved = tmp_path / "new" / "photos"
    (moved / "x").mkdir(parents=True)
    (moved / "x" / "a.jpg").touch()
    (moved / "b.jpg").touch()
    assert open_data(path, root=str(moved)).images == [str(moved / "x" / "a.jpg"), str(moved / "b.jpg")]
    assert open_data(path, root=str(moved.parent)).images == [str(moved / "x" / "a.jpg"), str(moved / "b.jpg")]
    relative = write("image,labels\nx\\a.jpg,cat\nb.jpg,dog\n")  # written on Windows
    assert open_data(f"csv:{relative}?root={moved}").images == [str(moved / "x" / "a.jpg"), str(moved / "b.jpg")]
    dropped = open_data(write("image,labels\na.jpg,cat\ngone.jpg,dog\n"), check_files="drop")
    assert (len(dropped), dropped.labels) == (1, ("cat", "dog"))


def test_own_split_names(write: Write) -> None:
    folds = open_data(write("image,labels,fold\na.jpg,x,0\nb.jpg,x,1\nc.jpg,x,fold 2\n"))
    assert folds.split_names == ("0", "1", "fold 2")
    own = write("image,labels,split\na.jpg,x,train\nb.jpg,x,holdout\n")
    assert open_data(own, splits="train,holdout").split_names == ("train", "holdout")
    with pytest.raises(LabelwiseError, match=r"row 3: unknown split 'holdout'"):
        open_data(own)
    with pytest.raises(LabelwiseError, match=r"row 3: unknown split 'holdout'; choose one of train, val"):
        open_data(own, splits=["train", "val"])


def test_a_folder_with_one_manifest(write: Write) -> None:
    folder = write("image,labels\na.jpg,cat\n").parent
    assert open_data(folder).where(0) == f"{folder}/photos.csv row 2"
    write("image,labels\na.jpg,cat\n", "more.csv")
    with pytest.raises(LabelwiseError, match=r"holds 2 manifests \(more\.csv, photos\.csv\); name one"):
        open_data(folder)


NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="|;,[]\ufeff", exclude_categories=("C", "Z")),
    min_size=1,
    max_size=5,
)


@settings(deadline=None)
@given(
    st.lists(st.lists(NAMES, max_size=4), min_size=1, max_size=6),
    st.sampled_from(",;\t"),
    st.sampled_from("|;,"),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_what_pythons_csv_writes_is_read_back(
    present: list[list[str]], delimiter: str, separator: str, newline: str, quoting: int, encoding: str
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator=newline, quoting=quoting)  # type: ignore[arg-type]
    writer.writerow(["image", "labels"])
    writer.writerows([f"{row}.jpg", separator.join(names)] for row, names in enumerate(present))
    jsonl = "\n".join(json.dumps({"image": f"{row}.jpg", "labels": names}) for row, names in enumerate(present))
    with TemporaryDirectory() as folder:
        (Path(folder) / "p.csv").write_bytes(text.getvalue().encode(encoding))
        (Path(folder) / "p.jsonl").write_text(jsonl)
        expected = [sorted(set(names)) for names in present]
        for file, options in (("p.csv", {"separator": separator}), ("p.jsonl", {})):
            table = open_data(Path(folder) / file, check_files=False, **options)
            assert [sorted(table.present(row)) for row in range(len(table))] == expected


def test_one_image_spelled_in_two_ways(write: Write) -> None:
    file = write("image,labels,split\na.jpg,cat,train\n./a.jpg,dog,test\n", "m.csv")
    with pytest.raises(LabelwiseError, match="is in split 'test', but in 'train' in row 2"):
        open_data(file)


def test_a_zero_counts_for_more_than_an_unknown_where_rows_are_merged(write: Write) -> None:
    for cells in (("-1,1", "0,1"), ("0,1", "-1,1")):
        file = write("image,cat,dog\n" + "".join(f"a.jpg,{row}\n" for row in cells), "m.csv")
        assert open_data(file, duplicates="merge").target(0).tolist() == [0, 1]


def test_a_cell_of_thousands_of_names(write: Write) -> None:
    names = [f"label number {number}" for number in range(12_000)]
    table = open_data(write(f"image,labels\na.jpg,{'|'.join(names)}\n"))
    assert len(table.present(0)) == 12_000


@pytest.mark.parametrize("cell", ['{"cat": 1}', '["cat", ["dog"]]'])
def test_labels_are_names(write: Write, cell: str) -> None:
    file = write(f'{{"image": "a.jpg", "labels": {cell}}}\n', "m.jsonl")
    with pytest.raises(LabelwiseError, match=r"m\.jsonl row 1: labels are a list of names, not "):
        open_data(file)


def test_a_misspelt_column_to_ignore(write: Write) -> None:
    file = write("image,cat,night\na.jpg,1,0\n", "m.csv")
    with pytest.raises(LabelwiseError, match="did you mean 'night'"):
        open_data(file, ignore_columns="nigth")
