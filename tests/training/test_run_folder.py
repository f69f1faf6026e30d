"""What training may do to a folder: nothing is lost by a mistake, by a second process or by a stop."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import labelwise as lw
from labelwise.core.errors import LabelwiseError
from labelwise.model.model import load_model
from labelwise.training import load_recipe
from labelwise.training import train as training
from labelwise.training.display import Display
from labelwise.training.run import Run, check_folder, find_run, run_folder
from labelwise.training.train import train
from run_kit import recipe


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"data.source": "nowhere.csv"}, "no file or folder"), ({"model.backbone": "test_resnett"}, "did you mean")],
)
def test_a_mistake_does_not_cost_the_run_that_was_to_be_replaced(
    changes: dict[str, str], message: str, sample: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(recipe(sample), run)
    before = content(run)
    with pytest.raises(LabelwiseError, match=message):
        train(recipe(sample, **changes), run, overwrite=True)
    assert content(run) == before
    train(recipe(sample, seed=1), run, overwrite=True)
    assert load_recipe(run / "recipe.yaml", {}).seed == 1
    assert not (run / ".replaced").exists()


def test_a_process_that_is_killed_while_it_replaces_a_run_leaves_the_old_one(tmp_path: Path) -> None:
    """Whatever of the old run has been set aside already comes back when the folder is used again."""
    run, names = tmp_path / "run", ("recipe.yaml", "metrics.jsonl", "log.txt")
    for moved in range(len(names) + 1):
        (run / ".replaced").mkdir(parents=True)
        for number, name in enumerate(names):
            ((run / ".replaced" if number < moved else run) / name).write_text(f"old {name}")
        if moved == len(names):
            (run / "log.txt").write_text("of the new run, which never came so far as to have a recipe")
        with run_folder(run, resume=bool(moved), overwrite=not moved):
            pass
        assert [(run / name).read_text() for name in names] == [f"old {name}" for name in names]
        assert not (run / ".replaced").exists()
        for name in names:
            (run / name).unlink()


def test_only_a_run_is_overwritten(sample: Path, tmp_path: Path) -> None:
    (tmp_path / "predictions").mkdir()
    (tmp_path / "predictions" / "mine.csv").write_text("x")
    train(recipe(sample), tmp_path, overwrite=True)
    assert (tmp_path / "predictions" / "mine.csv").read_text() == "x"
    (tmp_path / "other" / "model").mkdir(parents=True)
    with pytest.raises(LabelwiseError, match="belongs to no run"):
        train(recipe(sample), tmp_path / "other", overwrite=True)


@pytest.mark.parametrize("name", ["split.csv", "log.txt", "metrics.jsonl"])
def test_files_of_others_are_not_written_to(name: str, sample: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(LabelwiseError, match=f"{name}' exists and belongs to no run; choose another folder"):
        train(recipe(sample), tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "mine"}


def test_a_training_that_was_stopped_before_its_recipe_begins_again(tmp_path: Path) -> None:
    Display(tmp_path / "log.txt").say("cached features")
    (tmp_path / "split.csv").write_text("image,split\n")
    check_folder(tmp_path, resume=False, overwrite=False)


def test_a_run_whose_epochs_have_one_step_can_be_stopped(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = recipe(sample, epochs=5, batch_size=64)
    real = training.Trainer._step

    def step(self: Any, *arguments: Any) -> float:
        if self.progress.step == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *arguments)

    monkeypatch.setattr(training.Trainer, "_step", step)
    with pytest.raises(KeyboardInterrupt):
        train(wanted, tmp_path / "run")
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    monkeypatch.undo()
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path / "cache"))
    train(wanted, tmp_path / "run", resume=True)
    train(wanted, tmp_path / "whole")
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("run", "whole")
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 5


def test_resuming_a_finished_run_leaves_its_model_alone(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(recipe(sample), tmp_path / "run")
    model = load_model(tmp_path / "run")
    model.config = model.config.model_copy(update={"thresholds": (0.25,) * len(model.labels)})
    model.save(tmp_path / "run" / "model")
    again = train(recipe(sample), tmp_path / "run", resume=True)
    assert again.config.thresholds == load_model(tmp_path / "run").config.thresholds == model.config.thresholds
    assert "is already finished" in " ".join("".join(capsys.readouterr()).split())


def test_others_may_read_a_run(sample: Path, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        train(recipe(sample), tmp_path / "run")
    finally:
        os.umask(before)
    for name in ("model/model.safetensors", "model/config.json", "checkpoints/last.safetensors", "metrics.jsonl"):
        assert oct((tmp_path / "run" / name).stat().st_mode & 0o777) == oct(0o640), name


def test_fitting_is_part_of_the_run(sample: Path, tmp_path: Path) -> None:
    """The offset travels with the model: its scores are those of the fit."""
    model = train(recipe(sample, epochs=3), tmp_path / "run").model()
    assert model.config.offset != 0
    assert load_model(tmp_path / "run").config == model.config


def test_a_run_is_opened_by_its_folder_or_by_its_model_folder(sample: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = train(recipe(sample, **{"model.head": "hsq"}), folder)
    assert [Run(source).folder for source in (folder, folder / "model", str(folder))] == [folder] * 3
    assert [find_run(source) for source in (folder, folder / "model", tmp_path, "owner/name")] == [folder] * 2 + [
        None
    ] * 2
    assert run.recipe == load_recipe(folder / "recipe.yaml")
    assert run.name == "run"
    assert repr(run).startswith(f"Run({str(folder)!r}, head='hsq', backbone='test_resnet', labels=")
    assert "epochs=2, mAP=" in repr(run)
    assert run.labels == run.model().labels
    assert "test_resnet" in run._repr_html_()
    frame = run.history.to_pandas()
    assert list(frame.index) == [1, 2]
    assert frame["loss"].tolist() == [entry["loss"] for entry in run.history]
    assert "<th>loss</th>" in run.history._repr_html_()
    assert [epoch for epoch, _ in run.gates()] == [1, 2]
    measured = lw.evaluate(run, split="val", bootstrap=0, workers=0, progress=False, engine="torch")
    assert 100 * measured.scores.mAP == pytest.approx(run.results["mAP"])


def test_a_model_without_its_run_has_no_recipe_and_no_history(sample: Path, tmp_path: Path) -> None:
    run = train(recipe(sample, epochs=1), tmp_path / "run")
    run.model().save(tmp_path / "alone")
    alone = Run(tmp_path / "alone")
    assert (alone.folder, alone.recipe, alone.history, alone.gates()) == (None, None, [], [])
    assert (alone.head, alone.frozen, alone.results) == ("query", False, run.results)
    with pytest.raises(LabelwiseError, match="does not say what it was trained on"):
        lw.evaluate(alone)


def test_a_folder_with_somebody_elses_recipe_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("bread: flour, water, salt\n")
    (tmp_path / "log.txt").write_text("rises slowly\n")
    for overwrite in (False, True):
        with pytest.raises(
            LabelwiseError, match=r"recipe\.yaml' belongs to no run of labelwise; choose another folder"
        ):
            check_folder(tmp_path, resume=False, overwrite=overwrite)
    (tmp_path / "metrics.jsonl").touch()  # a run whose recipe is damaged may be replaced
    check_folder(tmp_path, resume=False, overwrite=True)
