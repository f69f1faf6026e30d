"""Data in memory, options of its reader as keyword arguments and as flags, and tables without splits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import labelwise as lw
from labelwise.cli import main
from labelwise.core.errors import listeners
from labelwise.data.sample import make_sample
from labelwise.training.recipe import load_recipe

TINY = {"backbone": "resnet10t", "weights": "none", "size": 32, "epochs": 1, "batch_size": 16, "workers": 0}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample set, listed by numbers in a column that its content tells, and a run that was trained on a frame."""
    pandas = pytest.importorskip("pandas")
    folder = tmp_path_factory.mktemp("arguments")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABELWISE_CACHE", str(folder / "cache"))
        table = make_sample(folder / "sample", images=30, size=40, progress=False)
        rows = [{"Nr": Path(image).stem, "what": "+".join(table.present(n))} for n, image in enumerate(table.images)]
        frame = pandas.DataFrame(rows)
        frame.to_csv(folder / "numbers.csv", index=False)
        reading = {"root": folder / "sample", "separator": "+", "label_column": "what"}
        lw.train(frame, out=folder / "run", **TINY, **reading, **{"head.dim": 16})
    return folder


@pytest.fixture(autouse=True)
def _cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELWISE_CACHE", str(place / "cache"))


def test_a_recipe_names_the_table_that_was_in_memory(place: Path) -> None:
    source = load_recipe(place / "run" / "recipe.yaml").data.source
    assert source is not None
    assert Path(source).parent == place / "run"
    written, sample = lw.data.open_data(source), lw.data.open_data(place / "sample" / "labels.csv")
    assert {Path(image).name for image in written.images} == {Path(image).name for image in sample.images}
    assert written.labels == lw.load_model(place / "run").labels


def test_keyword_arguments_say_how_to_read(place: Path, tmp_path: Path) -> None:
    reading = {"root": str(place / "sample"), "separator": "+"}
    whole = lw.evaluate(place / "run" / "model", place / "numbers.csv", split="all", bootstrap=0, workers=0, **reading)
    assert whole.scores.images == 30
    assert lw.data.inspect(place / "numbers.csv", decode=False, **reading).images == 30
    assert lw.data.split(place / "numbers.csv", **reading).split_names == ("train", "val", "test")
    with pytest.raises(lw.LabelwiseError, match="unknown option 'rooot'; did you mean 'root'"):
        lw.evaluate(place / "run", place / "numbers.csv", rooot="x")
    table = lw.data.open_data(place / "numbers.csv", **reading)
    with pytest.raises(lw.LabelwiseError, match="root is for a reader, and this table has been read"):
        lw.evaluate(place / "run", table, root="x")
    with pytest.raises(lw.LabelwiseError, match="root says how to read a table; name it"):
        lw.train(out=tmp_path / "run", root="x")


def test_flags_say_how_to_read(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--root", str(place / "sample"), "--separator", "+", "--image-column", "Nr", "--label-column", "what"]
    with pytest.raises(SystemExit, match="0"):
        main(["data", "inspect", str(place / "numbers.csv"), "--fast", *flags, "--json", str(tmp_path / "r.json")])
    assert json.loads((tmp_path / "r.json").read_text())["images"] == 30
    said = capsys.readouterr()
    assert "note: " in said.err
    assert f"images from column 'Nr' ('00000' is {place / 'sample' / 'images' / '00000.jpg'})" in said.err
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(place / "run"), "--root", "x"])
    assert "--root says how to read a table; name it (--data photos.csv)" in capsys.readouterr().err


def test_every_command_with_a_table_has_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "evaluate", "report", "sweep", "explain", "export", "data inspect", "data split"):
        with pytest.raises(SystemExit, match="0"):
            main([*command.split(), "--help"])
        text = capsys.readouterr().out
        assert all(flag in text for flag in ("--image-column", "--label-column", "--separator", "--root")), command


def test_a_table_without_splits_is_measured_whole(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("labelwise.core.errors.listeners", [*listeners, told.append])
    reading = {"root": str(place / "sample"), "separator": "+"}
    run = lw.evaluate(place / "run", place / "numbers.csv", bootstrap=0, workers=0, **reading)
    assert (run.split, run.scores.images) == ("test", 3)  # the split that its training made
    (place / "alone").symlink_to(place / "run" / "model")  # no run around it
    whole = lw.evaluate(place / "alone", place / "numbers.csv", bootstrap=0, workers=0, **reading)
    assert (whole.split, whole.scores.images) == ("all", 30)
    assert told[-1] == f"{place / 'numbers.csv'} has no splits: all 30 images are used"
    with pytest.raises(lw.LabelwiseError, match="has no splits, so there is no 'val'"):
        lw.evaluate(place / "alone", place / "numbers.csv", split="val", **reading)


def test_some_labels_of_a_table_are_learned_and_each_note_is_told_once(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (place / "numbers.csv").read_text().replace("sun", "Sun", 1)
    (tmp_path / "variants.csv").write_text(rows)
    told: list[str] = []
    monkeypatch.setattr("labelwise.core.errors.listeners", [told.append])
    some = {"data.labels": ["tree", "sun"], "data.validation": "Validation", "head.dim": 16}
    reading = {"root": place / "sample", "separator": "+", "label_column": "what"}
    run = lw.train(tmp_path / "variants.csv", out=tmp_path / "run", **TINY, **reading, **some)
    assert run.labels == ("tree", "sun")
    assert sum("almost the same name: 'sun' and 'Sun'" in note for note in told) == 1
    assert sum("labels are not among the chosen ones and ignored: Sun, " in note for note in told) == 1
    assert run.recipe is not None
    assert run.recipe.data.validation == "val"
    found = lw.evaluate(run, bootstrap=0, workers=0)
    assert "Sun" in found.labels_ignored
    assert found.scores.tally.positives.shape == (2,)
