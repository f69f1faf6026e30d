"""Sidecars: read back by other programs' rules, and never on top of somebody else's file."""

from __future__ import annotations

import json
import re
from datetime import datetime
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import labelwise as lw
from labelwise.api.sidecars import SidecarWriter
from labelwise.cli.predict import predict
from labelwise.cli.untag import untag
from labelwise.core.errors import LabelwiseError
from labelwise.data.sample import make_sample
from labelwise.data.xmp import Packet
from labelwise.engines.load import load
from labelwise.model.model import create_model
from tests.fixtures.foreign_xmp import DIGIKAM, LIGHTROOM

LABELS = ("sea & sand", "<kite>", "böat")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("sidecars") / "model"
    torch.manual_seed(0)
    create_model("test_resnet", "csra", LABELS, weights="none", size=32).save(folder)
    return str(folder)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    make_sample(tmp_path / "sample", images=3, size=32)
    (tmp_path / "sample" / "images" / "bad.jpg").write_bytes(b"oops")
    return tmp_path / "sample" / "images"


def test_xmp_keywords_are_those_of_the_prediction(model: str, photos: Path) -> None:
    predict(model, str(photos), sidecar="xmp", top=2)
    names = {"rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#", "dc": "http://purl.org/dc/elements/1.1/"}
    for prediction in load(model).predict(sorted(photos.glob("000*.jpg"))):
        packet = ElementTree.parse(Path(str(prediction.image)).with_suffix(".xmp")).getroot()
        items = packet.findall(".//rdf:Description/dc:subject/rdf:Bag/rdf:li", names)
        assert [item.text for item in items] == list(prediction.all_scores)[:2]
    assert not (photos / "bad.xmp").exists()
    assert len(list(photos.iterdir())) == 4 + 3  # nothing half-written is left


def test_json_and_text(model: str, photos: Path, tmp_path: Path) -> None:
    predict(model, str(photos), sidecar="json")
    predict(model, str(photos), sidecar="txt", sidecar_dir=tmp_path / "out", threshold=0.0)
    for prediction in load(model).predict(sorted(photos.glob("000*.jpg"))):
        image = Path(str(prediction.image))
        content = json.loads(image.with_name(image.name + ".json").read_text())
        assert content["image"] == str(image)
        assert content["all_scores"] == pytest.approx(prediction.all_scores, abs=1e-5)
        assert list(content["labels"]) == prediction.labels
        beside = tmp_path / "out" / image.relative_to("/").with_suffix(".txt")
        assert beside.read_text().splitlines() == list(prediction.all_scores)
    assert list(photos.glob("*.txt")) == []


@pytest.mark.parametrize("kind", ["json", "txt", "xmp"])
def test_a_file_of_somebody_else_stays(model: str, photos: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = "00001.jpg.json" if kind == "json" else f"00001.{kind}"
    (photos / name).write_text("mine")
    options = {"sidecar": kind}
    with pytest.raises(LabelwiseError, match=rf"{re.escape(name)}.*overwrite=True"):
        predict(model, str(photos), **options)  # type: ignore[arg-type]
    assert [file.name for file in photos.iterdir() if file.suffix != ".jpg"] == [
        name
    ]  # told before anything is written
    assert capsys.readouterr().out == ""
    if kind != "xmp":  # a sidecar that cannot be read is not one of an earlier run
        predict(model, str(photos), resume=True, **options)  # type: ignore[arg-type]
        assert (photos / name).read_text() == "mine"
        assert len(capsys.readouterr().out.splitlines()) == 2
    predict(model, str(photos), overwrite=True, **options)  # type: ignore[arg-type]
    assert (photos / name).read_text() != "mine"
    if kind != "txt":  # our own are replaced without a question
        before = (photos / name).read_text()
        predict(model, str(photos), top=2, **options)  # type: ignore[arg-type]
        assert (photos / name).read_text() != before


def test_a_refused_sidecar_leaves_other_files_as_they_are(model: str, photos: Path, tmp_path: Path) -> None:
    (photos / "00000.txt").write_text("somebody's notes")
    tags, table = tmp_path / "tags.json", tmp_path / "tags.csv"
    tags.write_text("earlier results")
    table.write_text("earlier rows")
    with pytest.raises(LabelwiseError, match="overwrite=True"):
        predict(model, str(photos), sidecar="txt", json=tags, csv=table)
    assert (tags.read_text(), table.read_text()) == ("earlier results", "earlier rows")


def test_two_pictures_never_share_a_sidecar(tmp_path: Path) -> None:
    writer = SidecarWriter("txt", None)
    assert writer.wants(str(tmp_path / "a.jpg"))
    with pytest.raises(LabelwiseError, match=r"a\.jpg.*a\.png.*would share.*sidecar='json'"):
        writer.wants(str(tmp_path / "a.png"))
    assert SidecarWriter("json", None).path_of("x/a.jpg") == Path("x/a.jpg.json")


@pytest.mark.parametrize("image", ["/etc/../photo.jpg", "../../photo.jpg", "/photo.jpg", "a/b.jpg"])
def test_sidecars_stay_below_their_folder(image: str, tmp_path: Path) -> None:
    place = SidecarWriter("json", tmp_path / "out").path_of(image)
    assert place.resolve().is_relative_to((tmp_path / "out").resolve())
    with pytest.raises(LabelwiseError, match="only sidecars"):
        predict("owner/name", image, overwrite=True)


# ---- XMP is added to, tried, and taken out again


@pytest.fixture
def foreign(photos: Path) -> dict[str, bytes]:
    """The sidecars of two other programs, by either name."""
    files = {"00000.xmp": LIGHTROOM, "00001.jpg.xmp": DIGIKAM}
    for name, data in files.items():
        (photos / name).write_bytes(data)
    return files


def sidecars(photos: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in photos.iterdir() if not file.name.endswith(".jpg")}


def test_keywords_are_added_and_taken_out_again(
    model: str, photos: Path, foreign: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    tag = partial(predict, model, str(photos), sidecar="xmp", top=2)
    tag(dry_run=True)
    told = capsys.readouterr()
    assert sidecars(photos) == foreign  # only told
    lines = [line.split("   ") for line in told.out.splitlines()]
    assert [(Path(file).name, status) for file, status, *_ in lines] == [
        ("00000.xmp", "changed"),
        ("00001.jpg.xmp", "changed"),
        ("00002.xmp", "new"),
    ]
    assert told.err.endswith("3 of 3 sidecars would change; nothing was written\n")
    tag()
    written = sidecars(photos)
    best = {
        Path(str(p.image)).name: list(p.all_scores)[:2] for p in load(model).predict(sorted(photos.glob("000*.jpg")))
    }
    for (file, _, *added), labels in zip(lines, best.values(), strict=True):
        packet = Packet(written[Path(file).name])
        assert [one.label for one in packet.predicted] == labels
        assert sorted(added) == sorted(f"+ {label}" for label in labels)
        assert {one.model for one in packet.predicted} == {"/".join(Path(model).parts[-2:])}
        assert datetime.fromisoformat(packet.predicted[0].date).tzinfo
    tag(dry_run=True)
    assert "0 of 3 sidecars would change" in capsys.readouterr().err
    tag(resume=True)
    assert "resumed: 3 of 4 images done already" in capsys.readouterr().err
    untag(str(photos), dry_run=True)
    assert "would be: 2 sidecars changed and 1 sidecar deleted; nothing" in capsys.readouterr().err
    assert sidecars(photos) == written
    untag(str(photos / "00000.jpg"), str(photos / "00001.jpg.xmp"), str(photos / "*2.jpg"))
    assert sidecars(photos) == foreign
    untag(str(photos))
    assert capsys.readouterr().err.endswith("nothing that labelwise wrote was found\n")


def test_untag_takes_json_and_leaves_other_files(model: str, photos: Path) -> None:
    predict(model, str(photos), sidecar="json")
    predict(model, str(photos), sidecar="txt")
    others = {"notes.json": b'{"labelwise": 1}', "other.jpg.json": b'{"by": "labelwise"}', "x.xmp": b"labelwise?"}
    for name, data in others.items():
        (photos / name).write_bytes(data)
    with pytest.raises(LabelwiseError, match=r"x\.xmp' is not readable XMP.*3 others changed"):
        lw.untag(photos)
    assert {name for name in sidecars(photos) if not name.endswith(".txt")} == set(others)
    assert len(list(photos.glob("*.txt"))) == 3
    (photos / "photos").mkdir()
    with pytest.raises(LabelwiseError, match=r"no such file or folder: '.*photo'; did you mean"):
        lw.untag(photos / "photo")


def test_a_model_that_finds_nothing_writes_nothing(
    model: str, photos: Path, foreign: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    predict(model, str(photos), sidecar="xmp", threshold=1.0, dry_run=True)
    told = capsys.readouterr()
    assert [line.split("   ")[1] for line in told.out.splitlines()] == [
        *["unchanged"] * 2,
        "not written (no label applies)",
    ]
    assert told.err.endswith("0 of 3 sidecars would change; nothing was written\n")
    predict(model, str(photos), sidecar="xmp", top=2)
    predict(model, str(photos), sidecar="xmp", threshold=1.0)
    assert sidecars(photos) == foreign


def test_a_dry_run_is_about_sidecars(model: str, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(LabelwiseError, match="only sidecars"):
        predict(model, str(photos), dry_run=True)
    with pytest.raises(LabelwiseError, match="a dry run writes no files"):
        predict(model, str(photos), dry_run=True, sidecar="xmp", csv=tmp_path / "x.csv")
    stream = lw.predict_stream(photos, model, sidecar="json", dry_run=True)
    assert [prediction.error is None for prediction in stream] == [True, True, True, False]
    assert [change.status for change in stream.changes] == ["new"] * 3
    assert sidecars(photos) == {}
