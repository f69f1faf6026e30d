"""XMP packets: what others wrote stays byte for byte, what labelwise wrote goes, and exiftool agrees."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelwise.data.xmp import Packet, XmpError, sidecars_of, tagged
from tests.fixtures.foreign_xmp import EMPTY, FOREIGN, LIGHTROOM, RENAMED, WITHOUT

ABOUT = {"model": "runs/first", "version": "0.1.0", "date": "2026-11-18T12:00:00+00:00"}
LI = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}li"


def read(exiftool: str, *files: Path) -> list[dict[str, Any]]:
    command = [exiftool, "-j", "-struct", "-G1", "-XMP:all", *map(str, files)]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


@pytest.mark.parametrize("data", (FOREIGN | EMPTY).values(), ids=[*FOREIGN, *EMPTY])
def test_untagging_gives_the_same_bytes(data: bytes) -> None:
    once = tagged(data, {"dog": 0.9, "sea & <sand>": 0.5}, **ABOUT)
    again = tagged(once, {"cat": 0.7}, **{**ABOUT, "model": "runs/second"})
    assert [one.label for one in Packet(again).predicted] == ["cat"]
    for written in (once, again):
        assert written != data
        assert Packet(written).without_predictions().data == data


@given(
    st.sampled_from([None, *FOREIGN.values(), *EMPTY.values()]),
    st.dictionaries(st.text(st.characters(), min_size=1, max_size=12), st.floats(0, 1), min_size=1, max_size=4),
)
def test_any_labels_give_valid_xml_and_go_again(data: bytes | None, labels: dict[str, float]) -> None:
    written = tagged(data, labels, **ABOUT)
    root = ElementTree.fromstring(written)  # an independent parser finds every keyword
    packet = Packet(written)
    texts = {(item.text or "").strip() for item in root.iter(LI)}
    assert {one.label.strip() for one in packet.predicted if one.added == "True"} <= texts
    left = packet.without_predictions()
    assert left.is_left_over if data is None else left.data == data


def test_keywords_that_were_there_are_not_ours() -> None:
    packet = Packet(tagged(LIGHTROOM, {"pet": 0.9, "animal": 0.8, "dog": 0.7}, **ABOUT))
    assert [one.added for one in packet.predicted] == ["False", "False", "True"]
    assert list(packet.lists.values()) == [["animal", "pet", "dog"], ["animal|pet", "dog"]]
    assert packet.predicted[2] == ("dog", "0.7000", "runs/first", "0.1.0", "2026-11-18T12:00:00+00:00", "True")


def test_the_same_prediction_changes_nothing_and_respects_a_removed_keyword() -> None:
    once = tagged(LIGHTROOM, {"dog": 0.9, "cat": 0.8}, **ABOUT)
    corrected = once.replace(b"\n     <rdf:li>cat</rdf:li>", b"")  # in Lightroom, say
    assert corrected != once
    for data in (once, corrected):
        assert tagged(data, {"dog": 0.9, "cat": 0.8}, **{**ABOUT, "date": "2027-01-01T00:00:00+00:00"}) == data


def test_sidecars_from_before_there_were_records() -> None:
    old = tagged(None, {"dog": 0.9}, **ABOUT)
    start, end = old.index(b"\n   <labelwise:Predictions>"), old.index(b"</labelwise:Predictions>") + 24
    packet = Packet(old[:start] + old[end:])
    assert packet.keywords == [("dog",)]
    assert packet.without_predictions().is_left_over


def test_records_in_the_other_forms_of_rdf() -> None:
    """Adobe's programs write a structure as attributes, or with a description inside."""
    fields = "Label='dog' Score='0.9' Model='m' Version='1' Date='2026' Added='True'".replace(" ", " L:")
    block = (
        b"#'><rdf:Description xmlns:L='urn:labelwise:xmp:1.0/' xmlns:dc='http://purl.org/dc/elements/1.1/'>"
        b"<dc:subject><rdf:Bag><rdf:li>dog</rdf:li></rdf:Bag></dc:subject>"
        b"<L:Predictions><rdf:Seq>%s</rdf:Seq></L:Predictions></rdf:Description></rdf:RDF>"
    )
    for form in (f"<rdf:li L:{fields}/>", f"<rdf:li><rdf:Description L:{fields}/></rdf:li>"):
        packet = Packet(WITHOUT.replace(b"#'/>", block.replace(b"%s", form.encode())))
        assert packet.predicted == [("dog", "0.9", "m", "1", "2026", "True")]
        assert packet.without_predictions().keywords == []


def test_a_packet_without_anything_can_be_added_to() -> None:
    packet = Packet(tagged(WITHOUT, {"dog": 0.9}, **ABOUT))
    assert packet.keywords == [("dog",)]
    assert Packet(packet.without_predictions().data).keywords == []
    assert not packet.without_predictions().is_left_over  # somebody else made it


@pytest.mark.parametrize("form", ["subject='dog'/>", "><dc:subject>dog</dc:subject></rdf:Description>"])
def test_a_single_keyword_without_a_list(form: str) -> None:
    form = f"dc:{form}" if form.startswith("subject") else form
    data = WITHOUT.replace(b"#'/>", b"#'><rdf:Description xmlns:dc='http://purl.org/dc/elements/1.1/' %s</rdf:RDF>")
    data = data.replace(b"%s", form.encode())
    assert Packet(data).keywords == [("dog",)]
    with pytest.raises(XmpError, match="not a list"):
        tagged(data, {"cat": 1.0}, **ABOUT)


def test_other_encodings_are_read_and_not_edited() -> None:
    for data in (
        RENAMED.replace(b"UTF-8", b"utf-16").decode().encode("utf-16"),
        RENAMED.replace(b"UTF-8", b"latin-1").replace(b"mine", b"K\xf6ln"),
    ):
        assert Packet(data).keywords in ([("mine",)], [("Köln",)])
        with pytest.raises(XmpError, match="not in UTF-8"):
            tagged(data, {"cat": 1.0}, **ABOUT)


def test_sidecars_by_either_name(tmp_path: Path) -> None:
    for name in ("a.jpg", "a.xmp", "a.jpg.xmp", "b.JPG", "b.XMP", "c.jpg", "ca.xmp"):
        (tmp_path / name).touch()
    found = [[file.name for file in sidecars_of(tmp_path / name)] for name in ("a.jpg", "b.JPG", "c.jpg")]
    assert found == [["a.xmp", "a.jpg.xmp"], ["b.XMP"], []]


def test_exiftool_reads_all_of_it_and_keeps_all_of_it(exiftool: str, tmp_path: Path) -> None:
    """Everything of others reads the same before and after; and what labelwise wrote survives a rewrite and can be
    taken out of it."""
    labels = {"dog": 0.98, "sea & <sand>": 0.5, "\x1b[31m\ud800": 0.25}
    for number, data in enumerate(FOREIGN.values()):
        (tmp_path / f"{number}-before.xmp").write_bytes(data)
        (tmp_path / f"{number}-tagged.xmp").write_bytes(tagged(data, labels, **ABOUT))
        shutil.copy(tmp_path / f"{number}-tagged.xmp", tmp_path / f"{number}-written.xmp")
    rewritten = sorted(tmp_path.glob("*-written.xmp"))
    rewrite = [exiftool, "-q", "-overwrite_original", "-XMP-dc:Creator=Anna", "-XMP-dc:Subject+=tulip", *rewritten]
    subprocess.run(rewrite, check=True)
    for file in rewritten:
        left = Packet(file.read_bytes()).without_predictions()
        file.with_name(file.name.replace("written", "zleft")).write_bytes(left.data)
    found = {Path(one.pop("SourceFile")).stem: one for one in read(exiftool, *sorted(tmp_path.iterdir()))}
    for number in range(len(FOREIGN)):
        before, after, written, left = (found[f"{number}-{kind}"] for kind in ("before", "tagged", "written", "zleft"))
        ours = after.pop("XMP-labelwise:Predictions")
        assert [(one["Label"], one["Score"], one["Model"], one["Added"]) for one in ours] == [
            (r"\x1b[31m\ud800" if label.startswith("\x1b") else label, score, "runs/first", True)
            for label, score in labels.items()
        ]
        assert written.pop("XMP-labelwise:Predictions") == ours
        added = [one["Label"] for one in ours]
        keywords = {"XMP-dc:Subject", "XMP-lr:HierarchicalSubject", "XMP-digiKam:TagsList"}
        assert after == {name: value + added if name in keywords else value for name, value in before.items()}
        assert left.pop("XMP-dc:Creator") == ["Anna"]
        before["XMP-dc:Subject"].append("tulip")
        assert left | {"XMP-x:XMPToolkit": ""} == before | {"XMP-x:XMPToolkit": ""}
