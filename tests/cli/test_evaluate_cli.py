"""`labelwise evaluate` as a user meets it: real processes, files and exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from labelwise.cli import main
from labelwise.data.manifests import write_manifest
from labelwise.data.sample import make_sample
from labelwise.model.model import create_model, load_model
from tests.fork_server import Command


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run (random weights), the sample set, and a file that is no picture in its test split."""
    folder = tmp_path_factory.mktemp("evaluate")
    table = make_sample(folder / "photos", images=40, size=64)
    torch.manual_seed(0)
    create_model("test_resnet", "gap", table.labels, weights="none", size=64).save(folder / "run" / "model")
    manifest = (folder / "photos" / "labels.csv").read_text()
    (folder / "photos" / "broken.jpg").write_bytes(b"no picture")
    (folder / "photos" / "broken.csv").write_text(manifest + "broken.jpg,test,sun\n")
    (folder / "photos" / "kite.csv").write_text("image,labels,split\nimages/00000.jpg,kite|sun,test\n")
    return folder


@pytest.fixture
def evaluate(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """The command in this process (a new one takes seconds to import PyTorch): exit status, stdout, stderr."""
    monkeypatch.chdir(here)
    monkeypatch.setenv("LABELWISE_CACHE", str(here / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(*arguments: str) -> tuple[int, str, str]:
        status = 0
        try:
            main(["evaluate", *arguments, "--workers", "0"])
        except SystemExit as stop:
            status = int(stop.code or 0)
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def test_numbers_on_the_terminal_and_in_json_in_a_real_process(labelwise: Command, here: Path) -> None:
    options = ["--data", "photos/broken.csv", "--flip", "--scales", "1.0,1.5", "--bootstrap", "50"]
    options += ["--workers", "0", "--on-bad-image", "skip", "--json", "out/test.json"]
    done = labelwise("evaluate", "run", *options, cwd=here)
    assert done.returncode == 0, done.stderr
    result = json.loads((here / "out" / "test.json").read_text())
    assert result["images"] == 8
    assert [Path(bad["path"]).name for bad in result["bad_images"]] == ["broken.jpg"]
    assert {"mAP", "CP", "CR", "CF1", "OP", "OR", "OF1", "CF1_top3", "OF1_top3", "per_label", "ece"} <= set(result)
    assert result["test_time"] == {"flip": True, "scales": [1.0, 1.5]}
    assert (result["model"]["source"], result["data"]["split"]) == ("run", "test")
    low, high = result["confidence"]["mAP"]
    shown = next(line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["mAP"])
    assert shown == ["mAP", f"{result['mAP']:.2f}", f"({low:.1f}", "to", f"{high:.1f})"]
    umbrella = next(line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["umbrella"])
    row = next(row for row in result["per_label"] if row["label"] == "umbrella")
    assert umbrella[-2:] == [str(row["positives"]), str(row["predicted"])]
    assert "broken.jpg" in done.stdout


def test_what_is_fitted_on_val_is_saved_in_the_model_and_used_from_then_on(
    here: Path, evaluate: Callable[..., tuple[int, str, str]]
) -> None:
    def of(name: str, *arguments: str) -> tuple[dict[str, object], str]:
        status, _, said = evaluate("run", "--data", "photos/labels.csv", "--bootstrap", "0", "--json", name, *arguments)
        assert status == 0, said
        return json.loads((here / name).read_text()), said

    weights = (here / "run" / "model" / "model.safetensors").read_bytes()
    fit = ["--fit-thresholds", "precision=0.5", "--fit-temperature"]
    fitted, said = of("fitted.json", *fit, "--fit-on", "val", "--save")
    assert "optimistic" not in said
    config = load_model(here / "run").config
    assert config.temperature == fitted["temperature"] != 1
    assert list(config.thresholds or ()) == [row["threshold"] for row in fitted["per_label"]]
    assert len(set(config.thresholds or ())) > 1
    assert (here / "run" / "model" / "model.safetensors").read_bytes() == weights
    assert sorted(path.name for path in (here / "run").iterdir()) == ["model"]

    later, said = of("later.json", "--cache")  # nothing fitted; features from the cache, stored with half precision
    assert said.count("warning") == said.count("labels are predicted per image") == 1  # of a random model
    assert [row["predicted"] for row in later["per_label"]] == [row["predicted"] for row in fitted["per_label"]]
    assert later["mAP"] == pytest.approx(fitted["mAP"], abs=1)

    _, said = of("val.json", "--split", "val", "--fit-thresholds", "f1")
    warnings = [line for line in said.splitlines() if line.startswith("warning: ")]
    assert sum("these numbers are optimistic" in line for line in warnings) == 1
    _, said = of("both.json", "--split", "val+test", "--fit-on", "validation", "--fit-temperature")
    assert "warning: 4 images are both fitted and measured on" in said
    assert load_model(here / "run").config == config  # no --save: the model is as it was


def test_the_table_that_is_read_is_not_replaced(here: Path, evaluate: Callable[..., tuple[int, str, str]]) -> None:
    before = (here / "photos" / "labels.csv").read_bytes()
    status, _, said = evaluate("run", "--data", "photos/labels.csv?root=photos", "--json", "photos/labels.csv")
    assert status == 2
    assert "'photos/labels.csv' is not known to be written by labelwise, and is not replaced; name another" in said
    assert (here / "photos" / "labels.csv").read_bytes() == before


def test_data_without_splits_gets_those_of_the_run(
    tmp_path: Path, evaluate: Callable[..., tuple[int, str, str]]
) -> None:
    table = make_sample(tmp_path / "photos", images=20, size=64)
    create_model("test_resnet", "gap", table.labels, weights="none", size=64).save(tmp_path / "run" / "model")
    write_manifest(table, tmp_path / "run" / "split.csv")
    write_manifest(table.with_splits([""] * 20), tmp_path / "photos" / "labels.csv")
    data = str(tmp_path / "photos")
    status, _, said = evaluate(str(tmp_path / "run"), "--data", data, "--json", str(tmp_path / "out.json"))
    assert status == 0, said
    assert json.loads((tmp_path / "out.json").read_text())["images"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere/at/all", "--data", "photos/labels.csv"], "no model 'nowhere/at/all'"),
        (
            ["run", "--data", "photos/labels.csv", "--split", "tst"],
            "unknown split 'tst'; did you mean 'test'? (train, val, test) (--split test)",
        ),
        (["run", "--data", "photos/kite.csv", "--split", "v"], "unknown split 'v'; choose one of test (--split test)"),
        (
            ["run", "--data", "photos/labels.csv", "--fit-temperature", "--fit-on", "vla"],
            "did you mean 'val'? (train, val, test) (--fit-on val)",
        ),
        (["run", "--data", "photos/broken.csv"], "broken.jpg' cannot be decoded"),
        (["run", "--data", "photos/labels.csv", "--scales", "big"], "--scales 'big': write numbers"),
        (["run", "--data", "photos/labels.csv", "--scales", "1,1.2"], "both give 64 pixels"),
        (["run", "--data", "photos/labels.csv", "--scales", "1,2", "--cache"], "leave out the scales or the cache"),
        (["run", "--data", "photos/labels.csv", "--fit-thresholds", "best"], "unknown threshold rule 'best'"),
        (
            ["run", "--data", "photos/labels.csv", "--save"],
            "say what to fit: thresholds or a temperature (--fit-thresholds f1)",
        ),
        (["owner/name", "--data", "photos/labels.csv", "--fit-temperature", "--save"], "'owner/name' is not one"),
        (["run", "--data", "photos/labels.csv", "--bootstrap", "-1"], 'Invalid value "-1" for --bootstrap'),
        (["run"], "--data"),
        (["run", "--data", "photos/kite.csv"], "1 label that the model does not know: 'kite'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(
    evaluate: Callable[..., tuple[int, str, str]], arguments: list[str], message: str
) -> None:
    status, out, said = evaluate(*arguments)
    assert status == 2
    assert out == ""
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert message in said


def test_without_a_model_the_bundled_tagger_is_measured_and_never_changed(
    here: Path, evaluate: Callable[..., tuple[int, str, str]]
) -> None:
    (here / "photos" / "dogs.csv").write_text("image,labels\nimages/00000.jpg,dog\nimages/00001.jpg,cat|dog\n")
    options = ("--data", "photos/dogs.csv", "--split", "all", "--bootstrap", "0")
    status, shown, said = evaluate(*options, "--json", "bundled.json")
    assert status == 0, said
    result = json.loads((here / "bundled.json").read_text())
    assert (result["images"], result["model"]["source"]) == (2, "the bundled tagger")
    assert shown.startswith("the bundled tagger on photos/dogs.csv (all): 2 images, 80 labels")
    assert "airplane" not in shown  # nor 77 other labels that the data does not have
    status, _, said = evaluate(*options, "--fit-thresholds", "f1", "--save")
    assert status == 2
    assert "name a model of your own" in said


def test_metrics_as_others_compute_them(evaluate: Callable[..., tuple[int, str, str]], here: Path) -> None:
    """`--as` names conventions of published tables; they stand beside ours, in the output and in the file."""
    data = ["run", "--data", "photos/labels.csv", "--bootstrap", "0", "--json", "conventions.json"]
    status, out, err = evaluate(*data, "--as", "query2label", "--as", "voc2007")
    assert status == 0, err
    assert "query2label" in out
    result = json.loads((here / "conventions.json").read_text())
    assert list(result["conventions"]) == ["query2label", "voc2007"]
    assert result["conventions"]["query2label"]["mAP"] >= result["mAP"]  # the envelope lies above the steps
    status, _, err = evaluate(*data, "--as", "query2lable")
    assert status == 2
    assert "did you mean 'query2label'" in err


def test_a_model_that_is_not_there_is_told_before_the_data(evaluate: Callable[..., tuple[int, str, str]]) -> None:
    status, _, said = evaluate("rum", "--data", "photos/labels.csv", "--split", "nowhere")
    assert (status, "no model 'rum'" in said) == (2, True)
