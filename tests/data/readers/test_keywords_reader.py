"""Photographers' keywords: every field as exiftool reads it, in the mixtures that programs write."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pillow_heif import register_heif_opener

from labelwise.core.errors import LabelwiseError
from labelwise.data import open_data
from labelwise.data.readers.keywords import KeywordsOptions, _embedded, combined, keywords_of
from labelwise.data.xmp import Packet, tagged

FIELDS = ("XMP-dc:Subject", "XMP-lr:HierarchicalSubject", "XMP-digiKam:TagsList", "IPTC:Keywords", "XPKeywords")
KINDS = ("jpg", "png", "tif", "webp", "heic", "avif")
NAMES = ["dog", "Köln", "sea & <sand>", "日本", "a, b", 'say "hi"']


def read(exiftool: str, *files: Path) -> list[dict[str, Any]]:
    command = [exiftool, "-j", "-struct", *(f"-{field}" for field in FIELDS), *files]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def photo(file: Path, **keywords: list[str]) -> Path:
    """A photo with a sidecar that has these lists."""
    Image.new("RGB", (8, 8)).save(file)
    lists = {
        "subject": "<dc:subject><rdf:Bag>{}</rdf:Bag></dc:subject>",
        "hierarchical": "<lr:hierarchicalSubject><rdf:Bag>{}</rdf:Bag></lr:hierarchicalSubject>",
        "tags": "<digiKam:TagsList><rdf:Seq>{}</rdf:Seq></digiKam:TagsList>",
    }
    items = [lists[kind].format("".join(f"<rdf:li>{n}</rdf:li>" for n in names)) for kind, names in keywords.items()]
    if items:
        file.with_suffix(".xmp").write_text(
            '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description '
            'xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:lr="http://ns.adobe.com/lightroom/1.0/" '
            f'xmlns:digiKam="http://www.digikam.org/ns/1.0/">{"".join(items)}</rdf:Description></rdf:RDF>',
            encoding="utf-8",
        )
    return file


def labels_of(folder: Path, **options: Any) -> dict[str, list[str]]:
    table = open_data(f"keywords:{folder}", **options)
    return {Path(table.images[row]).name: table.present(row) for row in range(len(table))}


def test_every_field_of_every_kind_of_file_as_exiftool_reads_it(exiftool: str, tmp_path: Path) -> None:
    register_heif_opener()
    files = [tmp_path / f"photo.{kind}" for kind in KINDS]
    for file in files:
        Image.new("RGB", (64, 64)).save(file)
    values = [NAMES, ["animal|dog", *NAMES], ["Places/Köln", *NAMES], NAMES, [";".join(NAMES)]]
    tags = [f"-{field}={name}" for field, names in zip(FIELDS, values, strict=True) for name in names]
    subprocess.run([exiftool, "-q", "-m", "-overwrite_original", "-codedcharacterset=utf8", *tags, *files], check=True)
    for one in read(exiftool, *files):
        xmp, iptc, windows = _embedded(one["SourceFile"])
        lists = {tag.rpartition(" ")[2].casefold(): names for tag, names in Packet(xmp).lists.items()}
        assert lists == {name.casefold(): one[name] for name in ("Subject", "TagsList", "HierarchicalSubject")}
        assert windows == one["XPKeywords"].split(";")
        if not one["SourceFile"].endswith(".png"):  # there exiftool warns: "non-standard IPTC in PNG"
            assert iptc == one.get("Keywords", [])
            assert bool(iptc) == one["SourceFile"].endswith(("jpg", "tif"))


def test_iptc_without_a_character_set(exiftool: str, tmp_path: Path) -> None:
    """Old programs wrote Windows' encoding. UTF-8 is taken for what it is even if the file does not say so."""
    for charset in ("latin", "utf8"):
        image = tmp_path / f"{charset}.jpg"
        Image.new("RGB", (8, 8)).save(image)
        tags = ["-charset", f"iptc={charset}", "-IPTC:Keywords=Köln"]
        subprocess.run([exiftool, "-q", "-overwrite_original", *tags, image], check=True)
        assert _embedded(str(image))[1] == ["Köln"]


@pytest.mark.parametrize(
    ("written", "leaf", "path"),
    [
        # Lightroom exports the keywords above, too.
        (
            {"subject": ["animal", "dog", "beach"], "hierarchical": ["animal|dog", "beach"]},
            ["beach", "dog"],
            "animal|dog",
        ),
        ({"subject": ["animal", "dog"], "hierarchical": ["animal", "animal|dog"]}, ["animal", "dog"], "animal|dog"),
        # digiKam writes leaves, and its own list with slashes.
        ({"tags": ["animal/dog"], "hierarchical": ["animal|dog"], "subject": ["dog"]}, ["dog"], "animal|dog"),
        ({"tags": ["_Digikam_Internal_Tags_/Pick Label None", "dog"], "subject": ["dog"]}, ["dog"], "dog"),
        # darktable adds what it keeps for itself, whole or in its parts.
        (
            {"subject": ["dog", "darktable", "exported", "format", "jpg"]}
            | {"hierarchical": ["dog", "darktable|exported", "darktable|format|jpg"]},
            ["dog"],
            "dog",
        ),
        ({"subject": ["darktable|format|orf", "dog"]}, ["dog"], "dog"),
        # Windows knows no levels: a slash is part of the name.
        ({"subject": ["black/white"]}, ["black/white"], "black/white"),
        # Decomposed, as macOS writes names, and composed.
        ({"subject": ["Ko\u0308ln"], "hierarchical": ["Köln"]}, ["Köln"], "Köln"),
    ],
)
def test_the_mixtures_that_programs_write(
    written: dict[str, list[str]], leaf: list[str], path: str, tmp_path: Path
) -> None:
    photo(tmp_path / "a.jpg", **written)
    assert labels_of(tmp_path) == {"a.jpg": leaf}
    assert path in labels_of(tmp_path, levels="path")["a.jpg"]
    assert labels_of(tmp_path, levels="all")["a.jpg"] == sorted({*leaf, *path.split("|")})


def test_iptc_cuts_long_keywords() -> None:
    long = "ä" * 40
    assert combined(set(), [long, long[:32], "ä"]) == {(long,), ("ä",)}


def test_embedded_and_both_sidecars_are_joined(exiftool: str, tmp_path: Path) -> None:
    image = photo(tmp_path / "a.jpg", subject=["one"])
    (tmp_path / "a.xmp").rename(tmp_path / "a.jpg.xmp")
    photo(image, subject=["two"])
    write = ["-XMP-dc:Subject=three", "-IPTC:Keywords=four", "-XPKeywords=five;six"]
    subprocess.run([exiftool, "-q", "-overwrite_original", *write, image], check=True)
    assert labels_of(tmp_path) == {"a.jpg": ["five", "four", "one", "six", "three", "two"]}
    by_source = {name: labels_of(tmp_path, sources=name)["a.jpg"] for name in ("sidecar", "xmp", "iptc", "windows")}
    assert by_source == {"sidecar": ["one", "two"], "xmp": ["three"], "iptc": ["four"], "windows": ["five", "six"]}
    with pytest.raises(LabelwiseError, match="unknown source 'itpc'; did you mean 'iptc'"):
        labels_of(tmp_path, sources="itpc")


def test_what_is_not_listed_and_photos_without_keywords(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg", subject=["dog", "rare"])
    photo(tmp_path / "b.jpg", subject=["cat", "dog"])
    photo(tmp_path / "c.jpg", subject=["cat"])
    photo(tmp_path / "d.jpg")

    def rows(**options: Any) -> list[list[int]]:
        return open_data(f"keywords:{tmp_path}", **options).targets().tolist()

    assert open_data(f"keywords:{tmp_path}").labels == ("cat", "dog", "rare")
    assert rows() == [[0, 1, 1], [1, 1, 0], [1, 0, 0]]
    assert rows(min_images=2) == [[0, 1], [1, 1], [1, 0]]
    assert rows(min_images=2, others="unknown") == [[-1, 1], [1, 1], [1, -1]]
    assert rows(min_images=2, untagged="absent")[3] == [0, 0]
    assert rows(min_images=2, untagged="unknown")[3] == [-1, -1]
    assert rows(min_images=2, others="unknown", untagged="absent")[0::3] == [[-1, 1], [0, 0]]
    with pytest.raises(LabelwiseError, match=r"none of 4 photos .* has keywords that 9 photos have"):
        rows(min_images=9)


def test_a_models_own_keywords_are_not_learned_from(tmp_path: Path) -> None:
    """Training on what a model predicted would only confirm it."""
    photo(tmp_path / "a.jpg", subject=["dog"])
    (tmp_path / "b.jpg").write_bytes((tmp_path / "a.jpg").read_bytes())
    about = {"model": "m", "version": "1", "date": "2026-11-18"}
    for name in ("a.xmp", "b.xmp"):
        file = tmp_path / name
        file.write_bytes(tagged(file.read_bytes() if file.exists() else None, {"dog": 0.9, "cat": 0.9}, **about))
    assert labels_of(tmp_path) == {"a.jpg": ["dog"]}
    assert labels_of(tmp_path, predicted="keep") == {"a.jpg": ["cat", "dog"], "b.jpg": ["cat", "dog"]}


def test_damaged_metadata_is_named_and_can_be_left_out(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg", subject=["dog"])
    photo(tmp_path / "b.jpg", subject=["cat"])
    (tmp_path / "b.xmp").write_text("<x")
    (tmp_path / "c.jpg").write_bytes(b"oops")
    with pytest.raises(LabelwiseError, match=r"b\.xmp' is not readable XMP: .*\(and 1 more\); .*damaged=skip"):
        labels_of(tmp_path)
    assert labels_of(tmp_path, damaged="skip") == {"a.jpg": ["dog"]}
    _, note = open_data(f"keywords:{tmp_path}?damaged=skip").notes
    assert "b.xmp' is not readable XMP" in note
    assert "(and 1 more); its keywords are left out" in note


def test_one_photo_and_none(tmp_path: Path) -> None:
    image = photo(tmp_path / "a.jpg", subject=["dog"])
    assert open_data(f"keywords:{image}").labels == ("dog",)
    assert keywords_of(str(image), KeywordsOptions(), []) == {("dog",)}
    (tmp_path / "a.xmp").unlink()
    with pytest.raises(LabelwiseError, match=r"none of 1 photo in .* has keywords"):
        open_data(f"keywords:{tmp_path}")


@pytest.mark.parametrize("folder", ["", "2019/05", "0"])
def test_photos_that_are_in_no_folder_of_a_label_are_read_by_their_keywords(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for name, names in (("1.jpg", ["dog"]), ("2.jpg", ["cat"]), ("3.jpg", [])):
        photo(tmp_path / folder / name, subject=names)
    table = open_data(tmp_path)
    assert table.labels == ("cat", "dog")
    (note,) = table.notes
    assert note.startswith(f"{tmp_path}: labels are the keywords of 2 photos; left out: 1 photo without any (untagged=")


def test_folders_with_names_are_labels_and_keywords_are_pointed_to(tmp_path: Path) -> None:
    (tmp_path / "pets").mkdir()
    photo(tmp_path / "pets" / "1.jpg", subject=["dog"])
    photo(tmp_path / "cover.jpg", subject=["album"])  # one loose photo makes no difference
    table = open_data(tmp_path)
    assert table.labels == ("pets",)
    assert table.notes[-1].endswith(f"keywords:{tmp_path} reads the keywords in the photos")
