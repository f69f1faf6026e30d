"""The page about fidelity: every row of its tables holds, and what its commands train really trains."""

from __future__ import annotations

import json
import math
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from pages import ROOT, parse
from safetensors.torch import save_file

import labelwise as lw
from labelwise.training.recipe import Recipe, full_key, load_recipe
from labelwise.training.train import train
from labelwise.words import WordsConfig
from tests.training.paper_data import LABELS, UNSEEN, write_data

PAGE = ROOT / "docs" / "research" / "fidelity.md"
STATUSES = ("faithful", "our reading", "not here")


class Row(NamedTuple):
    item: str
    where: str
    command: str
    status: str
    why: str
    test: str


def rows() -> list[Row]:
    """Of the two tables, one for each paper, which stand before everything else."""
    tables = PAGE.read_text("utf-8").partition("## Also checked")[0]
    cells = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in tables.splitlines()]
    return [Row(*line) for line in cells if len(line) == len(Row._fields) and line[0] != "item" and line[3] != "---"]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.item)
def test_row(row: Row) -> None:
    assert row.status in STATUSES
    if row.status == "not here":
        assert row.why  # nothing is missing without a reason
        return
    if row.status == "our reading":
        assert row.why
    assert row.where == "" or (ROOT / "src" / "labelwise" / row.where).is_file()
    parse(row.command)
    file, _, name = row.test.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text("utf-8") if name else (ROOT / file).is_file()


def test_every_paper_recipe_is_in_the_tables() -> None:
    page = PAGE.read_text("utf-8")
    papers = [path.stem for folder in ("hsq", "ml-decoder") for path in (ROOT / "recipes" / folder).glob("*.yaml")]
    spoken_for = ("coco-convnext-384", "coco-convnext-384-q2l", "coco-convnext-448-q2l", "coco-convnext-576-q2l")
    missing = [name for name in papers if name not in page and name not in spoken_for]
    assert not missing


def test_no_method_that_is_implemented_is_said_to_be_missing() -> None:
    methods = (ROOT / "docs" / "research" / "methods.md").read_text("utf-8").partition("## Not implemented")[0]
    here = {
        name for names in re.findall(r"^\| ([^|]+) \| (?:HSQ|MLD)", methods, re.MULTILINE) for name in names.split(", ")
    }
    missing = [row.item.partition(", ")[2] for row in rows() if row.status == "not here"]
    names = {re.sub(r" [\d.]+$", "", name) for item in missing for name in item.split(", ")}
    assert len(here) > 50
    assert names & here == {"Q2L-CvT", "CvT-w24"}  # their heads are here, their backbone is not


# ---- what the commands train

SMALL: dict[str, Any] = {
    "model.backbone": "test_resnet",
    "model.weights": "none",
    "model.size": 32,
    "precision": "32-true",
    "epochs": 1,
    "batch_size": 4,
    "workers": 0,
    "description": "",
    "model.start": None,
}
SMALL_OPTIONS = {"dim": 16, "widths": [8, 4], "groups": 3, "group_size": 4, "random_queries": 2, "feedforward": 16}
SMALL_OPTIONS |= {"hidden": [8], "attention_heads": 2}


def commands() -> list[str]:
    """The trainings on the page, and those in the header of every recipe."""
    headers = (path.read_text("utf-8") for path in sorted(ROOT.glob("recipes/**/*.yaml")))
    on_page = [
        row.command for row in rows() if row.command.startswith("labelwise train") and "--dry-run" not in row.command
    ]
    return on_page + [
        line for text in headers for line in re.findall(r"labelwise train --recipe .* --out \S+", text)[-1:]
    ]


@cache
def tiny(command: str) -> tuple[Recipe, str]:
    """The command's recipe with everything small that costs time and nothing else changed, and its kind of data."""
    words = shlex.split(command, comments=True)
    options = {"--recipe": "", "--data": "", "--out": "", "--start": ""}
    changes: dict[str, Any] = {}
    for name, value in zip(words[2::2], words[3::2], strict=True):
        if name == "--set":
            key, _, text = value.partition("=")
            changes[full_key(key)] = yaml.safe_load(text)
        elif name in options:
            options[name] = value
        else:
            changes[full_key(name.removeprefix("--"))] = value
    file = ROOT / options["--recipe"]
    given = load_recipe(file, changes).model.options
    small = {**given, **{key: value for key, value in SMALL_OPTIONS.items() if given.get(key)}}
    if given.get("project") is False:
        small["dim"] = 96  # the small backbone's channels
    kind = options["--data"].partition(":")[0] if ":" in options["--data"] else "csv"
    return load_recipe(file, changes | SMALL | {"model.options": small}), kind


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("data")
    vectors = torch.randn(len(LABELS), 300, generator=torch.Generator().manual_seed(0))
    save_file(dict(zip(LABELS, vectors.unbind(), strict=True)), folder / "words.safetensors")
    return cache(lambda kind: (write_data(kind, folder / kind), str(folder / "words.safetensors")))


# Commands that differ only in backbone, size or number of queries are the same when they are tiny: one run for all.
DIFFERENT = {(tiny(command)[0].model_dump_json(), tiny(command)[1]): command for command in commands()}.values()


@pytest.mark.parametrize("command", DIFFERENT, ids=lambda command: command.partition("recipes/")[2])
def test_a_tiny_version_trains_and_evaluates(
    command: str, data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real epoch with the recipe's own splits, augmentation, loss, optimizer, schedule and averaging, on data in the
    real format; then the numbers of the split that it names."""
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path / "cache"))
    recipe, kind = tiny(command)
    source, vectors = data(kind)
    of_data: dict[str, Any] = {"source": source}
    if recipe.data.unseen not in (None, "data"):
        of_data["unseen"] = UNSEEN[:1]
    of_model = {} if recipe.model.words is None else {"words": WordsConfig(source=vectors)}
    recipe = recipe.model_copy(
        update={
            "data": recipe.data.model_copy(update=of_data),
            "model": recipe.model.model_copy(update=of_model),
        }
    )
    train(recipe, tmp_path / "run")
    history = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(history) == 1
    assert math.isfinite(history[0]["loss"])
    assert ("mAP" in history[0]) == (recipe.data.validation is not None)
    evaluation = lw.evaluate(tmp_path / "run", split="test", bootstrap=0, workers=0, progress=False).to_dict()
    score = evaluation["zsl"]["mAP"] if "zsl" in evaluation else evaluation["mAP"]
    assert 0 <= score <= 100
