"""`labelwise report` from the command line to the files it leaves."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from labelwise.analysis.measured import predict_once
from labelwise.cli.report import report
from labelwise.core.errors import LabelwiseError
from labelwise.data.inspection import FEW
from labelwise.data.table import LabelTable
from labelwise.evaluation import evaluate
from labelwise.model.model import create_model, load_model
from labelwise.reports.page import ReportOptions, runs_report
from labelwise.training.run import open_runs
from report_kit import EVIL, Page, make_run

QUICK = {"bootstrap": 40, "workers": 0, "images": 3}


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def one(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("one")
    report([str(runs[1])], out=out, predictions=4, **QUICK)
    return out


@pytest.fixture(scope="module")
def several(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("several")
    report([str(run) for run in runs], out=out, pairs=["sun,tree"], **QUICK)
    return out


def test_the_numbers_are_those_of_evaluate(one: Path, runs: list[Path], photos: LabelTable) -> None:
    numbers = json.loads((one / "report.json").read_text())["runs"][0]
    expected = evaluate(
        load_model(runs[1]), photos.select("test"), bootstrap=40, workers=0, on_bad_image="skip", progress=False
    ).to_dict()
    for key in ("mAP", "CF1", "OF1", "images", "labels"):
        assert numbers[key] == pytest.approx(expected[key]), key
    assert numbers["confidence"]["mAP"] == pytest.approx(expected["confidence"]["mAP"])
    assert [row["AP"] for row in numbers["per_label"]] == pytest.approx([row["AP"] for row in expected["per_label"]])
    assert numbers["images"] == 17  # 18 in the test split, one broken
    labels = rows_of(one / "labels.csv")
    assert [row["label"] for row in labels] == list(photos.labels)
    for row in labels:
        assert float(row["best_F1"]) >= float(row["F1"]) - 1e-9


def test_the_page_says_it_all_and_escapes_everything(one: Path) -> None:
    page = Page((one / "report.html").read_text())
    for title in ("Which labels fail", "What to do next",
                  "Metrics", "Labels", "Precision-recall curves", "Thresholds and calibration", "Co-occurrence",
                  "Predictions", "Worst mistakes", "Labels to check", "Experts", "Training", "Cost",
                  "Problems in the data", "Recipes"):  # fmt: skip
        assert title in page.text
    assert "left out: 1 image that cannot be decoded" in page.text
    assert "optimistic" not in page.text
    for name in EVIL.values():
        assert name in page.text
    assert "script" not in [name for name, _ in page.elements]
    assert not any(key.startswith("on") for _, values in page.elements for key in values)
    assert len(page.ids()) == len(set(page.ids())) > 0
    sources = page.attributes("img", "src")
    assert sources
    assert all(source.startswith("data:image/jpeg;base64,") for source in sources)


def test_what_people_ask_comes_first_and_agrees_with_the_numbers(one: Path) -> None:
    text = Page((one / "report.html").read_text()).text
    titles = ["labels found", "Which labels fail", "What to do next", "Labels to check", "Metrics", "Precision-recall"]
    places = [text.rindex(f"\n{title}") if title in text else -1 for title in titles]
    assert places == sorted(places)
    assert places[0] > 0
    rows, numbers = rows_of(one / "labels.csv"), json.loads((one / "report.json").read_text())["runs"][0]
    for name, words in (("OR", "of the labels that the images have"), ("OP", "of the labels that it gave")):
        assert f"{numbers[name]:.1f} %{words}" in text
    few = sorted((int(row["positives"]), row["label"]) for row in rows if int(row["positives"]) < FEW)
    assert few
    said = re.split(r"cannot\s+be judged: ", text)[1].split(".\n")[0]
    assert said.startswith(f"{few[0][1]} ({few[0][0]})")
    assert said.endswith(f"and {len(few) - 8} more")
    failing = text.split("Which labels fail\n")[-1].split("What to do next")[0]
    for row in rows:
        if int(row["positives"]) >= FEW and float(row["F1"]) < 50:
            assert f"{row['label']}" in failing


def test_a_number_that_few_images_stand_behind_is_grey(one: Path) -> None:
    elements = Page((one / "report.html").read_text()).elements
    few = sum(int(row["positives"]) < FEW for row in rows_of(one / "labels.csv"))
    assert few
    for tag in ("text", "rect", "tr", "figure"):  # the chart's names and bars, the table, the curves
        classes = [(values.get("class") or "").split() for name, values in elements if name == tag]
        assert sum("few" in one for one in classes) == few, tag


def test_every_term_has_a_tooltip(one: Path, several: Path) -> None:
    for folder in (one, several):
        page = (folder / "report.html").read_text()
        for section in page.split("<section")[1:]:
            visible = re.sub(r"<(svg|pre|select)\b.*?</\1>", "", section.split("</section>")[0], flags=re.DOTALL)
            explained = re.findall(r'<abbr tabindex="0" title="[^"]{20,}">([^<]*)</abbr>', visible)
            plain = re.sub(r"<[^>]*>", "\n", re.sub(r"<h2.*?</h2>|<h3.*?</h3>", "", visible, flags=re.DOTALL))
            for term in ("mAP", "AP", "CF1", "OF1", "CP", "OR", "F1", "precision", "bootstrap", "multiply-adds"):
                if re.search(rf"(?<![\w-]){term}(?![\w-])", plain):
                    assert any(term.lower() in one.lower() for one in explained), (term, section[:200])


def test_several_runs_are_compared_on_the_same_images(several: Path, runs: list[Path]) -> None:
    text = (several / "report.html").read_text()
    page = Page(text)
    numbers = json.loads((several / "report.json").read_text())
    assert [run["name"] for run in numbers["runs"]] == [run.name for run in runs]
    precision = [[row["AP"] for row in run["per_label"]] for run in numbers["runs"]]
    for place, comparison in enumerate(numbers["comparisons"], start=1):
        gaps = np.subtract(precision[place], precision[0])
        assert [row["difference"] for row in comparison["labels"]] == pytest.approx(gaps.tolist())
        better = int((gaps > 0).sum())
        assert comparison["labels_better"] == better
        assert comparison["pairs_improved"] == better * (better - 1) / 2
        for row in comparison["labels"]:
            assert row["interval"][0] <= row["interval"][1]
    assert len(rows_of(several / "differences.csv")) == 3 * 13
    assert {row["model.size"] for row in rows_of(several / "runs.csv")} == {"64", "96"}
    assert "mAP against input size in pixels" in page.text
    assert "Over seeds" in page.text
    assert "both of its labels are better" in page.text
    # Two elements are scripts: data that nothing runs, and the code whose hash the page's policy names.
    scripts = [values for name, values in page.elements if name == "script"]
    assert [values.get("type") for values in scripts] == ["application/json", None]
    assert "script-src 'sha256-" in page.attributes("meta", "content")[-1]
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert data["labels"] == [row["label"] for row in numbers["runs"][0]["per_label"]]
    assert data["runs"][1]["ap"] == pytest.approx(precision[1], abs=1e-3)


def test_predictions_are_computed_once(
    runs: list[Path], photos: LabelTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = open_runs([runs[1]])
    test = photos.select("test")
    first = predict_once(run, test, tmp_path, workers=0, progress=False)
    assert list((runs[1] / "predictions").glob("*.npz"))
    assert not list(tmp_path.glob("*.npz"))

    def refuse(*arguments: object) -> None:
        raise AssertionError("predicted again")

    monkeypatch.setattr("labelwise.analysis.measured._predict", refuse)
    again = predict_once(run, test, tmp_path)
    np.testing.assert_array_equal(first.predictions.logits, again.predictions.logits)
    assert again.predictions.bad_images == first.predictions.bad_images
    assert first.experts is not None
    assert again.experts is not None
    np.testing.assert_array_equal(first.experts.weights, again.experts.weights)
    assert again.complexity == first.complexity
    with pytest.raises(AssertionError, match="again"):
        predict_once(run, photos.select("val"), tmp_path)


def test_what_changes_is_predicted_again_and_what_has_gone_is_not(photos: LabelTable, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    images = [shutil.copy(image, folder) for image in photos.images[10:16]]
    table = LabelTable.from_dense(images, photos.targets()[10:16], photos.labels, source="some.csv")
    (run,) = open_runs([make_run(tmp_path / "run", Path("some.csv"), photos.labels)])
    options = {"workers": 0, "progress": False}
    first = predict_once(run, table, tmp_path, **options)
    shutil.copy(photos.images[20], images[0])
    changed = predict_once(run, table, tmp_path, **options)
    assert (changed.predictions.logits[0] != first.predictions.logits[0]).any()
    np.testing.assert_allclose(changed.predictions.logits[1:], first.predictions.logits[1:], rtol=1e-5, atol=1e-6)
    for image in images:
        Path(image).unlink()
    gone = predict_once(run, table, tmp_path, **options)
    np.testing.assert_array_equal(gone.predictions.logits, changed.predictions.logits)
    (stored,) = (tmp_path / "run" / "predictions").glob("*.npz")
    stored.write_bytes(stored.read_bytes()[:500])
    with pytest.raises(
        LabelwiseError, match="none of its images can be decoded"
    ):  # damaged: it would have to predict again
        predict_once(run, table, tmp_path, **options)


def test_a_report_without_pictures_says_so(runs: list[Path], photos: LabelTable, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(Path(photos.source).parent, folder)
    run = make_run(tmp_path / "run", folder / "labels.csv", photos.labels)
    options = ReportOptions(bootstrap=0, workers=0, images=2, progress=False)
    runs_report([run], tmp_path / "before", options)
    shutil.rmtree(folder / "images")
    text = runs_report([run], tmp_path / "after", options).read_text()
    assert "no image: " in text
    assert text.count("<img") == 0
    before, after = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("before", "after"))
    assert before["runs"][0]["mAP"] == after["runs"][0]["mAP"]


def test_labels_that_not_all_runs_have_are_left_out_and_named(
    runs: list[Path], photos: LabelTable, tmp_path: Path
) -> None:
    fewer = make_run(tmp_path / "fewer", Path(photos.source), (*photos.labels[3:], "unicorn"))
    said: list[str] = []
    options = ReportOptions(bootstrap=20, workers=0, images=0, progress=False, warn=said.append)
    page = runs_report([runs[0], fewer], tmp_path / "out", options).read_text()
    assert [line for line in said if "that not all runs have" in line] == [
        "left out: 3 labels of gap <u>run that not all runs have.",
        "left out: 1 label of fewer that not all runs have.",
    ]
    assert "left out: 1 label of fewer" in page
    numbers = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {run["labels"] for run in numbers["runs"]} == {10}


def test_a_model_without_a_run_needs_data_and_keeps_its_predictions_beside_the_report(
    photos: LabelTable, tmp_path: Path
) -> None:
    create_model("test_resnet", "gap", photos.labels, weights="none", size=64).save(tmp_path / "alone")
    with pytest.raises(LabelwiseError, match="name the data to measure on"):
        runs_report([tmp_path / "alone"], tmp_path / "out")
    options = ReportOptions(data=photos.source, split="val", bootstrap=0, workers=0, images=0, progress=False)
    runs_report([tmp_path / "alone"], tmp_path / "out", options)
    assert len(list((tmp_path / "out" / "predictions").glob("*.npz"))) == 1
    assert sorted(path.name for path in (tmp_path / "alone").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]


def test_trained_images_are_called_optimistic_and_their_labels_are_not_questioned(
    runs: list[Path], tmp_path: Path
) -> None:
    said: list[str] = []
    options = ReportOptions(split="val+train", bootstrap=0, workers=0, images=0, progress=False, warn=said.append)
    page = Page(runs_report([runs[0]], tmp_path / "out", options).read_text()).text
    assert any("was trained on 63 of these images: its numbers are optimistic" in line for line in said)
    assert "optimistic" in page
    assert "Measure on other images:" in page
    assert "Labels to check" not in page
    assert not (tmp_path / "out" / "label_issues.csv").exists()


def test_the_per_label_baseline(photos: LabelTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A joint model that gives every picture the same score cannot be better than one model per label."""
    run = make_run(tmp_path / "run", Path(photos.source), photos.labels)
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("on_bad_image: error", "on_bad_image: skip"))
    assert "freeze: backbone" in recipe.read_text()
    options = ReportOptions(per_label_baseline=True, bootstrap=60, workers=0, images=0, progress=False)
    page = runs_report([run], tmp_path / "out", options).read_text()
    found = json.loads((tmp_path / "out" / "report.json").read_text())["negative_transfer"]
    assert found["training_images"] == 63
    assert len(found["labels"]) == 13
    for row, label in zip(found["labels"], rows_of(tmp_path / "out" / "labels.csv"), strict=True):
        assert row["difference"] == pytest.approx(float(label["AP"]) - row["baseline_AP"])
    assert "Negative transfer" in page
    recipe.write_text(recipe.read_text().replace("freeze: backbone", "freeze: none"))
    with pytest.raises(LabelwiseError, match="frozen backbone"):
        runs_report([run], tmp_path / "out", options)


def test_mistakes_are_one_line(runs: list[Path], photos: LabelTable, tmp_path: Path) -> None:
    def fails(*sources: Path, **options: object) -> str:
        with pytest.raises(LabelwiseError) as error:
            runs_report(list(sources), tmp_path / "out", ReportOptions(**{"progress": False, "workers": 0, **options}))
        assert "\n" not in str(error.value)
        assert not (tmp_path / "out" / "report.html").exists()
        return str(error.value)

    (tmp_path / "empty").mkdir()
    assert "is not a model" in fails(tmp_path / "empty")
    unfinished = make_run(tmp_path / "unfinished", Path(photos.source), photos.labels)
    (unfinished / "model" / "model.safetensors").unlink()
    assert "finish its training" in fails(unfinished)
    assert "did you mean 'hsq'" in fails(runs[0], runs[1], reference="hqs")
    assert "unknown label 'sunn'; did you mean 'sun'?" in fails(runs[0], runs[1], pairs=["sunn,tree"])
    assert "two labels with a comma" in fails(runs[0], runs[1], pairs=["sun"])
    other = make_run(tmp_path / "other", Path(photos.source), ("kite", "drum"))
    assert "no label in common" in fails(runs[0], other)
    elsewhere = make_run(tmp_path / "elsewhere", tmp_path / "other.csv", photos.labels)
    assert "different data" in fails(runs[0], elsewhere)
    assert "no file or folder" in fails(elsewhere)
    assert "needs bootstrap samples" in fails(runs[0], runs[1], bootstrap=0)
    assert "name at least one run" in fails()


def test_a_run_named_twice_counts_once(runs: list[Path]) -> None:
    assert [run.name for run in open_runs([runs[1], runs[1] / "model", runs[0]])] == ["hsq", "gap <u>run"]


def test_an_interrupted_report_leaves_the_old_page(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ReportOptions(bootstrap=0, workers=0, images=0, progress=False)
    page = runs_report([runs[0]], tmp_path, options)
    before = page.read_bytes()

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("labelwise.core.files.os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runs_report([runs[0]], tmp_path, options)
    assert page.read_bytes() == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
