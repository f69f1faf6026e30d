"""benchmarks/study.py and its lists: the runs of a stage, fixed photos, differences between rows."""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelwise import heads
from labelwise.data.sample import make_sample
from labelwise.evaluation import bootstrap_draws
from labelwise.metrics import average_precision
from labelwise.runtime.run_files import MODEL

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("study")


def asked(**changes: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"data": "photos.csv", "words": "words.npy", "rows": ["*"], "seeds": [0, 1]} | changes)


def test_a_study_like_another_one_has_its_rows(study: Any) -> None:
    coco, every = study.read_study("coco"), study.read_study("coco_all")
    assert every["rows"] == {row: coco["rows"][row] for row in ("hsq-baseline", "q2l", "hsq")}
    assert (every["always"], every["stages"]["test"]) == (coco["always"], coco["stages"]["test"])
    assert all(
        study.read_study(name)["results"].keys() == study.read_study(name)["stages"].keys() for name in study.STUDIES
    )
    written = [study.read_study(name)["results"]["test"] for name in study.STUDIES]
    assert len({*written}) == len(written)  # no study writes over another one's numbers


@pytest.mark.parametrize("name", ["voc", "coco"])
def test_what_was_chosen_was_tried_and_what_is_compared_is_run(study: Any, name: str) -> None:
    rows, compared, alone = (study.read_study(name)[key] for key in ("rows", "compare", "alone"))
    for row, settings in rows.items():
        if row in ("gap", "csra", "hsq", "q2l"):
            assert all(settings["set"][key] in values for key, values in settings["try"].items()), row
    assert {row for pair in [*compared, alone] for row in pair} <= rows.keys()


def test_every_head_is_a_method_with_as_many_trials_as_the_others(study: Any, tmp_path: Path) -> None:
    rows = study.read_study("methods_voc")["rows"]
    assert sorted(settings["set"]["model.head"] for settings in rows.values()) == sorted(heads.list_heads())
    more = {row for row, settings in rows.items() if len(settings["try"]["optimizer.lr"]) > 2}
    assert more == {"fast0tag", "sdl", "ml-gcn", "kssnet", "cma"}  # the better of two rates won by more than a point
    assert {len(settings["try"]["optimizer.lr"]) for settings in rows.values()} == {2, 3}
    assert all(settings["set"]["optimizer.lr"] in settings["try"]["optimizer.lr"] for settings in rows.values())
    runs = study.plan(study.read_study("methods_coco"), "test", tmp_path, asked(seeds=[0]))
    assert {run.settings["row"] for run in runs if run.recipe.model.words is not None} == {
        row for row in rows if heads.preset(row).takes_words
    }
    same = [(run.recipe.loss, run.recipe.epochs, run.recipe.batch_size, run.recipe.pair_mix) for run in runs]
    assert all(each == same[0] for each in same)


def test_the_whole_comparison_is_one_command_of_stages_that_there_are(study: Any, tmp_path: Path) -> None:
    page = import_module("methods_page")
    given = {"voc": "voc:d", "voc_words": "v.npy", "coco": "c.csv", "coco_words": "c.npy", "out": tmp_path}
    commands = page.studies(argparse.Namespace(**given))
    stages = [[word for word in words[1:] if word in (*study.TRAINING, *study.AFTERWARDS)] for words in commands]
    assert stages == [["tune", "test", "compare", "cost"], ["test"], ["test", "compare", "cost"]]
    for name, *_ in commands:
        assert study.read_study(name)["rows"]


def test_rows_taken_from_the_coco_study_have_the_same_settings(study: Any, tmp_path: Path) -> None:
    def recipes(name: str, rows: list[str]) -> dict[str, Any]:
        runs = study.plan(study.read_study(name), "test", tmp_path, asked(rows=rows, seeds=[0]))
        return {run.settings["row"]: run.recipe for run in runs}

    same = import_module("methods_page").SAME
    ours, theirs = recipes("methods_coco", [*same]), recipes("coco", [*same.values()])
    assert [ours[row] == theirs[other] for row, other in same.items()] == [True] * len(same)


def test_every_row_has_its_first_seed_before_any_has_its_second(study: Any, tmp_path: Path) -> None:
    coco = study.read_study("coco")
    runs = study.plan(coco, "test", tmp_path, asked())
    assert [run.settings["row"] for run in runs] == [*coco["rows"]] * 2
    assert [run.settings["seed"] for run in runs] == [0] * len(coco["rows"]) + [1] * len(coco["rows"])
    words = {run.settings["row"] for run in runs if run.recipe.model.words is not None}
    assert words == {"ml-decoder-words"}
    assert {run.recipe.data.train for run in runs} == {"train+val+more"}


def test_trials_do_not_see_test(study: Any, tmp_path: Path) -> None:
    runs = study.plan(study.read_study("coco"), "tune", tmp_path, asked(rows=["hsq*", "gap"]))
    assert {run.name for run in runs} == {
        f"{row}_lr-{rate}_seed-0"
        for rates, rows in {(0.001, 0.003): ["gap"], (0.0003, 0.0006): ["hsq", "hsq-baseline", "hsq-linear"]}.items()
        for row in rows
        for rate in rates
    }
    assert {(run.recipe.data.train, run.recipe.data.validation) for run in runs} == {("train", "val")}


def test_a_row_after_another_starts_from_its_run_of_the_same_seed(study: Any, tmp_path: Path) -> None:
    runs = study.plan(study.read_study("voc"), "test", tmp_path, asked(rows=["hsq", "hsq-fine-tuned"]))
    starts = {run.name: run.recipe.model.start for run in runs}
    assert starts["hsq-fine-tuned_seed-1"] == str(tmp_path / "hsq_seed-1")
    assert starts["hsq_seed-1"] is None


def test_difference_is_that_of_the_seeds_that_both_rows_have(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = np.random.default_rng(0).integers(0, 2, (200, 2))
    noise = {"a_seed-0": 0.5, "a_seed-1": 0.5, "a_seed-2": 9.0, "b_seed-0": 2.0, "b_seed-1": 2.0}
    scores = {
        name: targets + np.random.default_rng(seed).normal(0, size, targets.shape)
        for seed, (name, size) in enumerate(noise.items())
    }
    drawn = {name: (bootstrap_draws(values, targets, samples=50), ("x", "y")) for name, values in scores.items()}
    monkeypatch.setattr(study, "draws_of", lambda folder: drawn[folder.name])
    for name in scores:
        (tmp_path / name / MODEL).mkdir(parents=True)
    halves = {name: draws.metrics["mAP"] for name, (draws, _) in drawn.items()}
    runs = [
        {
            **{"row": name[0], "seed": int(name[-1]), "mAP": 100 * draws.whole_metrics["mAP"]},
            "AP": dict(zip(labels, 100 * draws.whole_average_precision, strict=True)),
        }
        for name, (draws, labels) in drawn.items()
    ]
    pairs = {"compare": [["a", "b"], ["a", "c"]], "compare_labels": [["a", "b"]]}
    (found,) = study.differences(runs, pairs, tmp_path, halves)  # c has no run yet
    assert found["seeds"] == [0, 1]
    precision = {name: 100 * average_precision(values, targets).numpy() for name, values in scores.items()}
    gaps = [precision[f"a_seed-{seed}"] - precision[f"b_seed-{seed}"] for seed in (0, 1)]
    assert found["of_seeds"] == pytest.approx([gap.mean() for gap in gaps])
    assert found["difference"] == pytest.approx(np.mean(gaps))
    assert found["interval"][0] > 0
    assert [row["difference"] for row in found["labels"]] == pytest.approx(np.mean(gaps, axis=0))


def test_from_runs_to_differences(study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = make_sample(tmp_path / "sample", images=60, size=32)
    always = {"model.backbone": "test_resnet", "model.weights": "none", "model.size": 32, "model.freeze": "backbone"}
    always["batch_size"] = 8
    tiny = {
        "results": {"test": "tiny"},
        "always": always,
        "stages": {"test": {"data.train": "train+val", "data.validation": None, "epochs": 1}},
        "compare": [["csra", "gap"]],
        "compare_labels": [["csra", "gap"]],
        "alone": ["gap"],
        "rows": {head: {"set": {"model.head": head}} for head in ("gap", "csra")}
        | {"c-tran": {"set": {"model.head": "c-tran", "model.options.dim": 16}}},
    }
    monkeypatch.setattr(study, "read_study", lambda name: tiny)
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path / "cache"))
    report = tmp_path / "tiny.json"
    where = ["--out", str(tmp_path / "runs"), "--results", str(tmp_path), "--data", str(sample.source), "--seeds", "0"]
    monkeypatch.setattr(sys, "argv", ["study.py", "coco", "test", "compare", "alone", "cost", *where])
    study.main()
    found = json.loads(report.read_text())
    score = {row["row"]: row["mAP"] for row in found["summary"]}
    (gap,) = found["differences"]
    assert gap["difference"] == pytest.approx(score["csra"] - score["gap"])
    assert gap["of_seeds"] == pytest.approx([gap["difference"]])
    assert [row["label"] for row in gap["labels"]] == list(sample.labels)
    (alone,) = found["alone"]
    assert found["costs"].keys() == {"gap", "csra", "c-tran"}
    assert all(cost["train_ms"] > cost["answer_ms"] > 0 for cost in found["costs"].values())
    assert (alone["row"], alone["training_images"]) == ("gap", len(sample.select("train+val")))

    shutil.rmtree(tmp_path / "runs")  # as on another machine, with the results alone
    monkeypatch.setattr(sys, "argv", ["study.py", "coco", "test", "compare", *where])
    study.main()
    assert not [*tmp_path.glob("runs/**/*_seed-0")]
    assert json.loads(report.read_text()) == found


def test_photos_of_the_coco_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    coco_table = import_module("coco_table")
    with coco_table.PHOTOS.open(newline="") as file:
        chosen = [(int(row["id"]), row["split"]) for row in csv.DictReader(file)]
    assert Counter(split for _, split in chosen) == {"train": 5000, "val": 2000, "more": 3000, "test": 4000}
    assert len({id for id, _ in chosen}) == 14_000
    table = tmp_path / "coco.csv"
    lines = [f"{id:012}.jpg,cat|dog,{'test' if split == 'test' else 'train'}\n" for id, split in chosen]
    table.write_text("image,labels,split\n" + "".join(lines) + "000000999999.jpg,cat,train\n")
    coco_table.write_table(table, tmp_path / "study.csv")
    with (tmp_path / "study.csv").open(newline="") as file:
        written = [(coco_table.number(row["image"]), row["split"]) for row in csv.DictReader(file)]
    assert written == chosen
    coco_table.write_table(table, tmp_path / "all.csv", every=True)
    assert (tmp_path / "all.csv").read_text().splitlines()[-1] == "000000999999.jpg,cat,more"
    table.write_text("image,labels,split\n" + "".join(lines[1:]))
    with pytest.raises(SystemExit, match=r"1 of the study's photos are missing"):
        coco_table.write_table(table, tmp_path / "study.csv")
