"""Hostile metadata and names: XML bombs, escape sequences, formulas."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from xml.etree import ElementTree

import pytest
from PIL import Image

from labelwise.core.errors import LabelwiseError
from labelwise.core.tables import is_formula
from labelwise.data import open_data
from labelwise.data.manifests import write_manifest
from labelwise.data.table import LabelTable
from labelwise.data.xmp import Packet, XmpError
from labelwise.model.model import create_model
from tests.fork_server import Command

pytestmark = pytest.mark.attack

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
LAUGHS = "".join(f'<!ENTITY l{n + 1} "{f"&l{n};" * 10}">' for n in range(9))
BOMBS = {
    "entities": f'<!DOCTYPE x [<!ENTITY l0 "ha">{LAUGHS}]><x>&l9;</x>',
    "one entity": f'<!DOCTYPE x [<!ENTITY l "{"ha" * 50_000}">]><x>{"&l;" * 50_000}</x>',
    "a local file": '<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><x>&f;</x>',
    "an address": '<!DOCTYPE x SYSTEM "http://127.0.0.1:9/x.dtd"><x/>',
    "deep": "<a>" * 200_000 + "</a>" * 200_000,
    "many": f'<R:RDF xmlns:R="{RDF}">' + "<a/>" * 200_000 + "</R:RDF>",
    "many attributes": f'<R:RDF xmlns:R="{RDF}" ' + " ".join(f'a{n}="" a{n}=""' for n in range(100_000)) + "/>",
    "many lines": f'<R:RDF xmlns:R="{RDF}">' + "\n" * (17 << 20) + "</R:RDF>",
}


@pytest.mark.parametrize("name", BOMBS)
def test_xml_bombs_are_refused_in_a_line(name: str, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg", xmp=b"<x/>")
    (tmp_path / "a.xmp").write_text(BOMBS[name])
    start, memory = time.process_time(), getrusage(RUSAGE_SELF).ru_maxrss
    with pytest.raises(XmpError) as refused:
        Packet.read(tmp_path / "a.xmp")
    assert "\n" not in str(refused.value)
    assert "root:" not in str(refused.value)
    assert getrusage(RUSAGE_SELF).ru_maxrss - memory < 300_000  # KB
    with pytest.raises(LabelwiseError, match=r"and 1 more.*damaged=skip"):  # the one in the image, too
        open_data(f"keywords:{tmp_path}")
    assert time.process_time() - start < 10


NAMES = ("\x1b]0;owned\x07", "\x1b[2J\x1b[31m", "\x9b31m", "a\rb", "x\u202egpj", "\ud800", "\x00 ends", "tab\t", "=1+1")
ESCAPES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def test_names_do_not_reach_the_terminal(labelwise: Command, tmp_path: Path) -> None:
    """File names and label names with escape sequences: predict, inspect, errors, and the XMP that is written."""
    labels = ["lone" if name == "\ud800" else name for name in NAMES]
    create_model("test_resnet", "csra", labels, weights="none", size=32).save(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(config.read_text().replace('"lone"', r'"\ud800"'))  # only a stranger can write this
    photos = tmp_path / "photos"
    photos.mkdir()
    files = ["\x1b]0;a\x07.jpg", "\x9b31m\nerror: all is lost.jpg", "=1+1.jpg"]
    for name in files:
        Image.new("RGB", (32, 32)).save(photos / name)
    (photos / "\x1b[31mbad.jpg").write_bytes(b"oops")
    written = ["--csv", "tags.csv", "--sidecar", "xmp", "--top", str(len(NAMES))]
    done = labelwise("predict", "model", "photos", *written, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(files)
    assert r"\x1b]0;owned\x07 0." in done.stdout
    for sidecar in photos.glob("*.xmp"):
        ElementTree.parse(sidecar)
        assert len(Packet.read(sidecar).predicted) == len(NAMES)
    with (tmp_path / "tags.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = list(csv.reader(file))[1:]
    assert not any(is_formula(cell) for row in rows for cell in row)
    assert sorted(Path(row[0]).name for row in rows) == sorted(files)
    table = LabelTable.from_lists([str(photos / files[0])] * 12, [NAMES[:5]] * 12, splits=["\x1b[31mtrain"] * 12)
    write_manifest(table, tmp_path / "photos.jsonl")
    said = [
        done,
        labelwise("untag", "photos", cwd=tmp_path),
        labelwise("data", "inspect", "photos.jsonl?splits=\x1b[31mtrain", cwd=tmp_path),
        labelwise("predict", "model", "no\x1b[31m.jpg", cwd=tmp_path),
        labelwise("predict", "model", str(photos / "\x1b[31mbad.jpg"), cwd=tmp_path),
        labelwise("heads", "\x1b[31m", cwd=tmp_path),
    ]
    assert [one.returncode for one in said] == [0, 0, 0, 2, 2, 2], [one.stderr for one in said]
    for one in said:
        assert not ESCAPES.search(one.stdout + one.stderr)
        assert "Traceback" not in one.stderr


def test_formulas_in_tables_stay_text_and_read_back(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "=HYPERLINK(1).jpg")
    Image.new("RGB", (8, 8)).save(tmp_path / "-1.jpg")
    images, names = [str(tmp_path / "=HYPERLINK(1).jpg"), str(tmp_path / "-1.jpg")], ["@SUM(1)", "cat"]
    write_manifest(LabelTable.from_lists(images, [names, names[1:]]), tmp_path / "photos.csv")
    with (tmp_path / "photos.csv").open(newline="") as file:
        assert not any(is_formula(cell) for row in csv.reader(file) for cell in row)
    again = open_data(tmp_path / "photos.csv")
    assert [Path(image).name for image in again.images] == ["=HYPERLINK(1).jpg", "-1.jpg"]
    assert again.labels == ("@SUM(1)", "cat")


@pytest.mark.skipif(shutil.which("script") is None, reason="needs the program script")
def test_a_real_terminal_is_not_renamed(tmp_path: Path) -> None:
    """In a pseudo-terminal, where rich writes colours of its own."""
    photos = tmp_path / "photos"
    photos.mkdir()
    Image.new("RGB", (8, 8)).save(photos / "a.jpg")
    (tmp_path / "photos.csv").write_text("image,labels\nphotos/a.jpg,\x1b]0;owned\x07|cat\n")
    command = f"{sys.executable} -m labelwise data inspect photos.csv"
    done = subprocess.run(["script", "-qec", command, "/dev/null"], cwd=tmp_path, capture_output=True, check=True)
    assert b"owned" in done.stdout
    assert b"\x1b]0;" not in done.stdout
