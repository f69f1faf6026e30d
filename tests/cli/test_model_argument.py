"""Whether the first argument is a model: every kind of argument, and what is said about those that are neither."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from labelwise.cli.explain import explain
from labelwise.cli.predict import is_model, model_and_rest, predict
from labelwise.core.errors import LabelwiseError


@pytest.fixture
def bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model without a file is enough: only who is chosen matters here."""
    monkeypatch.setitem(
        sys.modules, "labelwise.bundled", SimpleNamespace(default_model=lambda: Path("the-bundled-one"))
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in (
        "model/config.json",
        "run/model/config.json",
        "runs/first/x",
        "photos/sub/a.JPG",
        "shards/000.tar",
        "notes/x.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "album").symlink_to("../photos")
    (tmp_path / "photo").write_bytes(b"a picture without a suffix")
    return tmp_path


@pytest.mark.parametrize("argument", ["model", "run", "./run", "owner/name", "owner/name-v1.5", "released.pth"])
def test_models(here: Path, bundled: None, argument: str) -> None:
    assert model_and_rest([argument, "b.jpg", "c"]) == (argument, ["b.jpg", "c"])


@pytest.mark.parametrize(
    "argument",
    [
        *("photos", "photos/sub/a.JPG", "photo", "shards", "shards/000.tar", "s3://b/photos", "links"),
        *("photos/*.jpg", "shards/{000..099}.tar"),
    ],
)
def test_pictures_mean_the_bundled_model(here: Path, bundled: None, argument: str) -> None:
    assert model_and_rest([argument, "b.jpg"]) == ("the-bundled-one", [argument, "b.jpg"])


def test_no_argument_means_the_bundled_model(bundled: None) -> None:
    assert model_and_rest([]) == ("the-bundled-one", [])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("notes", r"'notes' is neither a model \(it has no config.json"),
        ("photos/misspelt.jpg", r"^no such file or folder: 'photos/misspelt.jpg'$"),  # looks like a hub id, too
        ("owner/photo.heic", "no such file"),
        ("phto.jpg", r"^no such file or folder: 'phto.jpg'; did you mean 'photo'\?$"),
        ("runs/frist", r"^no such file or folder: 'runs/frist'; did you mean 'runs/first'\?$"),
        ("rnus/first", r"^no such file or folder: 'rnus/first'; did you mean 'runs/first'\?$"),
        ("nowhere", "no such file or folder: 'nowhere'"),
        ("../nowhere/deep", "no such file or folder"),
    ],
)
def test_what_is_neither_names_the_fix_and_asks_no_hub(here: Path, argument: str, message: str) -> None:
    with pytest.raises(LabelwiseError, match=message):
        is_model(argument)


def test_a_command_without_pictures_asks_for_them(here: Path, bundled: None) -> None:
    with pytest.raises(LabelwiseError, match="no images given for 'run'"):
        predict("run")
    with pytest.raises(LabelwiseError, match="no images given"):
        predict()
    with pytest.raises(LabelwiseError, match="one image"):
        explain("photo", "photos/sub/a.JPG")
    with pytest.raises(LabelwiseError, match="one image"):
        explain()


def test_the_bundled_model_predicts_and_explains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    from labelwise.data.sample import make_sample
    from labelwise.model.model import create_model

    image = make_sample(tmp_path / "sample", images=2, size=48).images[0]
    create_model("test_resnet", "hsq", ("kite", "sea"), weights="none", size=32, dim=16).save(tmp_path / "bundled")
    monkeypatch.setitem(sys.modules, "labelwise.bundled", SimpleNamespace(default_model=lambda: tmp_path / "bundled"))
    predict(image, str(tmp_path / "sample"), top=2, json=tmp_path / "tags.json")
    assert len(json.loads((tmp_path / "tags.json").read_text())) == 3
    assert all("kite" in line and "sea" in line for line in capsys.readouterr().out.splitlines())
    explain(image, out=tmp_path / "why.png")
    assert "kite" in capsys.readouterr().out
    assert (tmp_path / "why.png").exists()
