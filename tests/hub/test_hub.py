"""What is uploaded, what the card says, and the whole way to a hub and back over HTTP."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard

import labelwise as lw
from hub_server import TOKEN, Hub
from labelwise.cli import main
from labelwise.core.errors import LabelwiseError
from labelwise.data.sample import make_sample
from labelwise.hub.push import prepare
from labelwise.model.card import model_card
from labelwise.model.model import LabelModel
from labelwise.training.recipe import load_recipe, save_recipe
from tests import fork_server


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("private-folder") / "photos"
    make_sample(folder, images=40, size=64)
    return folder / "labels.csv"


@pytest.fixture(scope="module")
def labels(photos: Path) -> tuple[str, ...]:
    from labelwise.data.sources import open_data

    return open_data(str(photos)).labels


@pytest.fixture
def run(tmp_path: Path, photos: Path, labels: tuple[str, ...]) -> Path:
    """What a training leaves behind, without the training."""
    folder = tmp_path / "runs" / "first"
    model = small_model(labels)
    results = {"data": str(photos), "split": "val", "epoch": 3, "mAP": 61.25, "CF1": 40.0, "OF1": 41.0}
    thresholds = tuple(0.3 + 0.01 * place for place in range(len(labels)))
    model.config = model.config.model_copy(update={"results": results, "thresholds": thresholds, "temperature": 0.8})
    model.save(folder / "model")
    settings = {"data.source": str(photos), "model.backbone": "test_resnet", "model.weights": "none", "model.size": 64}
    save_recipe(load_recipe(None, settings), folder / "recipe.yaml")
    (folder / "metrics.jsonl").write_text('{"epoch": 3, "loss": 0.1, "mAP": 61.25}\n')
    return folder


def small_model(labels: tuple[str, ...]) -> LabelModel:
    torch.manual_seed(0)
    return lw.create_model(
        "test_resnet", "hsq", labels, weights="none", size=64, dim=16, widths=[8, 4], shared_experts=3
    )


def metadata(card: str) -> dict[str, object]:
    return dict(ModelCard(card).data.to_dict())


def evaluate(run: Path, photos: Path, *options: str, into: str = "test.json") -> dict[str, object]:
    arguments = ["evaluate", str(run), "--data", str(photos), "--json", str(run / into), "--workers", "0", *options]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--bootstrap", "30"])
    assert ended.value.code == 0
    return dict(json.loads((run / into).read_text()))


def test_the_card_says_what_was_measured_where(run: Path, photos: Path, tmp_path: Path) -> None:
    result = evaluate(run, photos)
    folder = prepare(run, tmp_path / "out", "ann/tagger", license="cc-by-4.0")
    card = (folder / "README.md").read_text()
    values = metadata(card)
    assert values["license"] == "cc-by-4.0"
    assert values["pipeline_tag"] == "image-classification"
    (index,) = yaml.safe_load(card.split("---")[1])["model-index"]
    assert index["name"] == "ann/tagger"
    found = {
        (entry["dataset"]["split"], metric["type"]): metric["value"]
        for entry in index["results"]
        for metric in entry["metrics"]
    }
    for name in ("mAP", "CF1", "OF1"):
        assert found["test", name] == pytest.approx(result[name], abs=1e-3)
    assert found["val", "mAP"] == 61.25
    assert ("val", "CF1") not in found  # training measures it at 0.5, not at the thresholds that were fitted later
    rows = [line for line in card.splitlines() if line.startswith("| ")]
    for row in result["per_label"]:  # type: ignore[attr-defined]
        precision = "" if row["AP"] is None else f"{row['AP']:.1f}"  # none: no such photo in the test split
        assert f"| {row['label']} | {row['threshold']:.3f} | {precision} |" in rows
    assert 'lw.load("ann/tagger")' in card
    assert "split train" in card


def test_what_is_uploaded_is_the_model_and_no_path_of_this_machine(run: Path, photos: Path, tmp_path: Path) -> None:
    evaluate(run, photos)
    folder = prepare(run, tmp_path / "out", "ann/tagger")
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    for name in ("README.md", "config.json"):
        text = (folder / name).read_text()
        assert "private-folder" not in text
        assert str(tmp_path) not in text
        assert "labels.csv" in text
    before, after = lw.load_model(run), lw.load_model(folder)
    assert after.config.thresholds == before.config.thresholds
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(after(images), before(images), rtol=0, atol=0)
    assert "Not stated" in (folder / "README.md").read_text()
    assert "license" not in metadata((folder / "README.md").read_text())


def test_evaluations_that_are_not_this_models_stay_out(run: Path, photos: Path, tmp_path: Path) -> None:
    evaluate(run, photos, "--fit-thresholds", "f1")  # tried, not saved
    values = yaml.safe_load((prepare(run, tmp_path / "a", "a/b") / "README.md").read_text().split("---")[1])
    test = next(e for e in values["model-index"][0]["results"] if e["dataset"]["split"] == "test")
    assert [metric["type"] for metric in test["metrics"]] == ["mAP"]
    (run / "settings.json").write_text('{"colour": "red"}')  # something else that lies there
    os.utime(run / "test.json", (1, 1))  # from before the training
    assert "| test |" not in (prepare(run, tmp_path / "b", "a/b") / "README.md").read_text()
    with pytest.raises(LabelwiseError, match=r"settings\.json' is not a saved evaluation"):
        prepare(run, tmp_path / "c", "a/b", evaluations=[run / "settings.json"])
    other = json.loads((run / "test.json").read_text())
    other["per_label"][0]["label"] = "unicorn"
    (tmp_path / "other.json").write_text(json.dumps(other))
    with pytest.raises(LabelwiseError, match="measured other labels"):
        prepare(run, tmp_path / "c", "a/b", evaluations=[tmp_path / "other.json"])
    assert not (tmp_path / "c").exists()


def test_names_cannot_break_out_of_the_card() -> None:
    labels = ("a|b", "<script>x</script>", "---", "line\nbreak", "`code`", 'quote"')
    card = model_card(small_model(labels).config, name="ann/tagger")
    assert "<script>" not in card.replace(repr(labels[1]), "")
    table = [line for line in card.splitlines() if line.startswith("| ")]
    assert len(table) == 2 + len(labels)
    assert {line.count("|") for line in table} == {3}
    assert metadata(card)["library_name"] == "labelwise"


@pytest.mark.parametrize(
    ("name", "message"),
    [("tagger", "has no owner; write owner/name"), ("a/b/c", "is not a hub id"), ("a/..", "is not a hub id")],
)
def test_a_bad_name_is_told_before_anything_is_done(run: Path, tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(LabelwiseError, match=message):
        prepare(run, tmp_path / "out", name)


def test_a_dry_run_needs_no_hub(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["push", str(run), "ann/tagger", "--license", "mit", "--dry-run", str(tmp_path / "dry")])
    assert ended.value.code == 0
    assert "what would be uploaded as ann/tagger" in capsys.readouterr().out
    assert metadata((tmp_path / "dry" / "README.md").read_text())["license"] == "mit"
    with pytest.raises(SystemExit):
        main(["push", str(run), "ann/tagger", "--dry-run", str(run / "model")])
    assert "is the model folder itself" in capsys.readouterr().err


# huggingface_hub reads its settings when it is imported: a process of its own.
ROUND_TRIP = """
import sys
import labelwise as lw
from labelwise.cli import main
from labelwise.core.errors import LabelwiseError

run = sys.argv[1]
try:
    main(["push", run, "ann/tagger", "--private", "--license", "mit", "--message", "First version"])
except SystemExit as ended:
    assert ended.code == 0, ended.code
tagger = lw.load("ann/tagger")
print(tagger.model.push_to_hub("club/copy"))
mine, theirs = lw.load_model(run), lw.load_model("club/copy", revision="main")
assert all((a == b).all() for a, b in zip(mine.state_dict().values(), theirs.state_dict().values(), strict=True))
assert mine.config.thresholds == theirs.config.thresholds == tagger.config.thresholds
for wrong in (lambda: lw.load("ann/nothing"), lambda: tagger.model.push_to_hub("ann/other", token="hf_wrong")):
    try:
        wrong()
    except LabelwiseError as error:
        print("told:", error)
"""


def test_to_the_hub_and_back_over_http(run: Path, tmp_path: Path) -> None:
    with Hub() as hub:
        environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf")}
        environment |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
        done = fork_server.run("-c", ROUND_TRIP, run, env=environment)
    assert done.returncode == 0, done.stderr
    assert f"{hub.address}/ann/tagger: use it as ann/tagger" in done.stdout
    assert f"{hub.address}/club/copy" in done.stdout
    assert set(hub.repositories["ann/tagger"]) == {"README.md", "config.json", "model.safetensors"}
    assert hub.private == {"ann/tagger": True, "club/copy": False}
    assert hub.messages == ["First version", "Upload a labelwise model"]
    assert metadata(hub.repositories["ann/tagger"]["README.md"].decode())["license"] == "mit"
    missing, refused = [line for line in done.stdout.splitlines() if line.startswith("told:")]
    assert "no model 'ann/nothing'" in missing
    assert "Log in with: hf auth login" in refused
