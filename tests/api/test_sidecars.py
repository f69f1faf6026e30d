"""Sidecars: read back by other programs' rules, and never on top of somebody else's file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from labelwise.api.prediction_files import SidecarWriter
from labelwise.cli.predict import predict
from labelwise.core.errors import LabelwiseError
from labelwise.data.sample import make_sample
from labelwise.engines.load import load
from labelwise.model.model import create_model

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
    predict(model, str(photos), sidecar="xmp", top=2, on_bad_image="skip")
    names = {"rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#", "dc": "http://purl.org/dc/elements/1.1/"}
    for prediction in load(model).predict(sorted(photos.glob("000*.jpg"))):
        packet = ElementTree.parse(Path(str(prediction.image)).with_suffix(".xmp")).getroot()
        items = packet.findall(".//rdf:Description/dc:subject/rdf:Bag/rdf:li", names)
        assert [item.text for item in items] == list(prediction.all_scores)[:2]
    assert not (photos / "bad.xmp").exists()
    assert len(list(photos.iterdir())) == 4 + 3  # nothing half-written is left


def test_json_and_text(model: str, photos: Path, tmp_path: Path) -> None:
    predict(model, str(photos), sidecar="json", on_bad_image="skip")
    predict(model, str(photos), sidecar="txt", sidecar_dir=tmp_path / "out", threshold=0.0, on_bad_image="skip")
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
    options = {"sidecar": kind, "on_bad_image": "skip"}
    with pytest.raises(LabelwiseError, match=rf"{re.escape(name)}.*overwrite=True"):
        predict(model, str(photos), **options)  # type: ignore[arg-type]
    assert [file.name for file in photos.iterdir() if file.suffix != ".jpg"] == [
        name
    ]  # told before anything is written
    assert capsys.readouterr().out == ""
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
        predict(model, str(photos), sidecar="txt", json=tags, csv=table, on_bad_image="skip")
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
