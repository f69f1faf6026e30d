"""The public functions as Python calls, and that each command is one of them."""

from __future__ import annotations

import ast
import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import labelwise as lw
from labelwise import cli
from labelwise.cli import main
from labelwise.data.sample import make_sample
from labelwise.training.recipe import load_recipe

TINY = {"backbone": "resnet10t", "weights": "none", "size": 32, "epochs": 1, "batch_size": 16, "workers": 0}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample set and a run that was trained on it by a call."""
    folder = tmp_path_factory.mktemp("api")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABELWISE_CACHE", str(folder / "cache"))
        make_sample(folder / "sample", images=30, size=40, progress=False)
        run = lw.train(folder / "sample" / "labels.csv", out=folder / "run", head="hsq", **TINY, **{"head.dim": 16})
    assert run.recipe is not None
    assert (run.recipe.epochs, run.recipe.model.options["dim"]) == (1, 16)
    return folder


@pytest.fixture(autouse=True)
def _cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELWISE_CACHE", str(place / "cache"))


def images(place: Path) -> list[str]:
    return sorted(map(str, (place / "sample" / "images").iterdir()))[:3]


# ---- the package


def test_import_is_light_and_names_are_public() -> None:
    script = "import sys, labelwise; assert 'torch' not in sys.modules; print(*dir(labelwise))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == sorted(lw.__all__)
    for name in lw.__all__:
        value = getattr(lw, name)
        assert value.__doc__, name
        if inspect.isfunction(value) and value.__module__.startswith("labelwise.api"):
            assert "Args:" in value.__doc__, name
            assert "Example:" in value.__doc__, name
            documented = value.__doc__.partition("Args:")[2]
            for argument in inspect.signature(value).parameters:
                assert f"        {argument}: " in documented or f"**{argument}: " in documented, (name, argument)
    for package in (lw.backbones, lw.data, lw.heads, lw.losses):
        assert dir(package) == sorted(package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        lw.trian  # noqa: B018


def test_functions_stay_functions_when_packages_of_similar_names_are_imported() -> None:
    import labelwise.reports.page
    import labelwise.sweeps.plan  # noqa: F401

    assert callable(lw.report)
    assert callable(lw.sweep)


COMMANDS = [name for group in cli.COMMANDS.values() for name in group]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_a_call_of_public_functions(name: str) -> None:
    """Its function is called as `lw.NAME(...)`, and with the same names wherever both have an argument."""
    in_one_file = ("heads", "backbones", "complexity", "cache")
    file = Path(cli.__file__).parent / f"{'info' if name in in_one_file else name}.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    called = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "lw"
    }
    if name not in ("data", "heads", "backbones", "demo"):  # those call lw.data, lw.heads or several functions
        assert name in called or f"{name}_stream" in called
        assert name in lw.__all__
    assert called <= set(lw.__all__)


# ---- the functions


@pytest.mark.parametrize("named", [True, False], ids=["data", "the run's own data"])
def test_evaluate_gives_what_the_command_writes(place: Path, tmp_path: Path, named: bool) -> None:
    data = str(place / "sample" / "labels.csv")
    evaluation = lw.evaluate(place / "run", data, split="test", bootstrap=20, workers=0, progress=False)
    words = ["--split", "test", "--bootstrap", "20", "--workers", "0", "--json", str(tmp_path / "e.json")]
    command = ["evaluate", str(place / "run"), *(["--data", data] if named else []), *words]
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert not ended.value.code
    assert json.loads((tmp_path / "e.json").read_text()) == json.loads(json.dumps(evaluation.to_dict()))


@pytest.mark.parametrize(
    ("command", "target"),
    [
        ("data sample --images 2 --out own", "labels.csv"),
        ("data inspect {data} --fast --json own/labels.csv", "labels.csv"),
        ("data inspect {data} --fast --json own/photo.jpg", "photo.jpg"),
        ("data inspect {data} --fast --plot own/plot.png", "plot.png"),
        ("data hide {data} --keep 0.5 --out own/labels.csv", "labels.csv"),
        ("data split {data} --force --out own/labels.csv", "labels.csv"),
        ("evaluate {run} --json own/labels.csv", "labels.csv"),
        ("evaluate {run} --json own/coco.json", "coco.json"),
        ("report {run} --out own", "labels.csv"),
        ("explain {run} {image} --out own/photo.jpg", "photo.jpg"),
        ("explain {run} --experts --data {data} --out own/coco.json", "coco.json"),
        ("predict {run} {image} --csv own/labels.csv", "labels.csv"),
        ("sweep --data {data} --grid seed=0,1 --out own", "results.csv"),
    ],
)
def test_no_result_replaces_what_labelwise_did_not_write(
    place: Path,
    command: str,
    target: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own"
    own.mkdir()
    for name in ("photo.jpg", "plot.png"):
        Image.new("RGB", (8, 8)).save(own / name)
    (own / "coco.json").write_text(json.dumps({"info": {}, "images": []}, indent=1))  # indented as ours
    (own / "results.csv").write_text("name,score\nann,3\n")
    (own / "labels.csv").write_text("image,labels\nphoto.jpg,cat\n")
    before = {path.name: path.read_bytes() for path in own.iterdir()}
    named = {"data": place / "sample" / "labels.csv", "run": place / "run", "image": images(place)[0]}
    with pytest.raises(SystemExit) as ended:
        main(command.format(**named).split())
    assert ended.value.code == 2
    assert f"{target}' " in (said := capsys.readouterr().err) or "holds other images or labels" in said
    assert {path.name: path.read_bytes() for path in own.iterdir()} == before


@pytest.mark.parametrize(
    "command",
    [
        "data sample --images 2 --out own",
        "data inspect {data} --fast --json own/a.json --plot own/a.svg",
        "data inspect {data} --fast --plot own/a.pdf",
        "data inspect {data} --fast --plot own/a.png",
        "report {run} --out own --bootstrap 10",
        "explain {run} {image} --out own/a.jpg",
        "explain {run} {image} --out own/a.png",
        "explain {run} {image} --out own/a.pdf",
        "explain {run} {image} --out own/a.svg",
        "explain {run} --experts --data {data} --out own/a.html",
        "explain {run} --experts --data {data} --out own/a.png",
    ],
)
def test_the_same_command_again_replaces_its_result(
    place: Path, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    named = {"data": place / "sample" / "labels.csv", "run": place / "run", "image": images(place)[0]}
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(command.format(**named).split())
        assert not ended.value.code


def test_a_run_whose_data_is_elsewhere_says_so(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(place / "run", tmp_path / "run")
    recipe = tmp_path / "run" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(place / "sample" / "labels.csv"), "sample/labels.csv"))
    monkeypatch.chdir(place)
    assert lw.evaluate(tmp_path / "run", bootstrap=0, workers=0, progress=False).scores.images
    monkeypatch.chdir(tmp_path)
    for command in ("evaluate", "report"):
        with pytest.raises(SystemExit):
            main([command, "run"])
        said = capsys.readouterr().err
        assert f"the run was trained on 'sample/labels.csv', which is not in {str(tmp_path)!r}; go to" in said


def test_evaluate_takes_runs_models_and_tables_and_changes_none(place: Path) -> None:
    table = lw.data.open_data(place / "sample" / "labels.csv")
    options = {"split": "val", "bootstrap": 0, "workers": 0, "progress": False}
    model = lw.load_model(place / "run")
    by_path = lw.evaluate(str(place / "run"), table, **options)  # type: ignore[arg-type]
    by_model = lw.evaluate(model, table, **options)  # type: ignore[arg-type]
    by_default = lw.evaluate(lw.Run(place / "run"), **options)  # type: ignore[arg-type]  # the run's own data
    assert by_path.scores.mAP == by_model.scores.mAP == by_default.scores.mAP
    before = model.config
    with pytest.warns(UserWarning, match="both fitted and measured on"):
        fitted = lw.evaluate(model, table, fit_thresholds="recall=1.0", **options)  # type: ignore[arg-type]
    assert fitted.config.thresholds != before.thresholds
    assert model.config == before
    with pytest.raises(lw.LabelwiseError, match="stays as it is"):
        lw.evaluate(None, table, fit_thresholds="f1", save=True)
    with pytest.raises(lw.LabelwiseError, match=r"name the data \(data=…\)"):
        lw.evaluate(model)


def test_predict_gives_what_the_command_prints(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["predict", str(place / "run"), *images(place), "--top", "2"])
    printed = capsys.readouterr().out.splitlines()
    found = lw.predict(images(place), place / "run")
    assert len(found) == len(printed) == 3
    for line, prediction in zip(printed, found, strict=True):
        (first, score), *_ = prediction.choose(2).items()
        assert f"{first} {score:.2f}" in line


def test_predict_takes_models_in_memory_and_writes_files(place: Path, tmp_path: Path) -> None:
    tagger, model = lw.load(lw.Run(place / "run")), lw.load_model(place / "run")
    several = [lw.predict(images(place), source) for source in (place / "run", tagger, model)]
    for one, other in zip(several[0], several[1], strict=True):
        assert one.all_scores == pytest.approx(other.all_scores)
    assert several[0][0].all_scores == pytest.approx(several[2][0].all_scores, abs=1e-5)
    written = lw.predict(images(place)[:2], tagger, csv=tmp_path / "tags.csv", json=tmp_path / "tags.jsonl")
    stream = lw.predict_stream(images(place), tagger, csv=tmp_path / "tags.csv", resume=True)
    assert (stream.total, stream.resumed, len(written)) == (3, 2, 2)
    assert [prediction.image for prediction in stream] == images(place)[2:]
    assert len((tmp_path / "tags.csv").read_text().splitlines()) == 4
    assert len((tmp_path / "tags.jsonl").read_text().splitlines()) == 2
    pixels = np.zeros((32, 32, 3), np.uint8)
    assert len(lw.predict(pixels, tagger)) == 1
    with pytest.raises(lw.LabelwiseError, match="only for images that have a name"):
        lw.predict([pixels], tagger, csv=tmp_path / "other.csv")
    with pytest.raises(lw.LabelwiseError, match=r"give them to lw\.load"):
        lw.predict(pixels, tagger, threshold=0.3)


def test_explain(place: Path, tmp_path: Path) -> None:
    explanation = lw.explain(images(place)[0], place / "run", out=tmp_path / "why.png", top=2)
    assert list(explanation.maps) == list(explanation.prediction.all_scores)[:2]
    assert (tmp_path / "why.png").read_bytes()[:4] == explanation._repr_png_()[:4] == b"\x89PNG"
    assert "Explanation(" in repr(explanation)
    assert explanation._repr_html_().count('src="data:image/jpeg') == 3  # the image, and a map for each label
    data = place / "sample" / "labels.csv"
    assert lw.check_explanations(data, place / "run", images=4, workers=0).images == 4
    assert len(lw.explain_experts(data, place / "run", workers=0).names) == 13


def test_an_option_without_effect_is_refused(tmp_path: Path) -> None:
    """The default head has no experts: their number would silently do nothing."""
    with pytest.raises(lw.LabelwiseError, match="'shared_experts' has no effect on the head 'hsq-baseline'") as raised:
        lw.train("photos.csv", out=tmp_path / "run", **{"head.shared_experts": 4})
    assert raised.value.options == {"head.experts": "hybrid"}
    with pytest.raises(lw.LabelwiseError, match="'expert_init' has no effect"):
        lw.train("photos.csv", out=tmp_path / "run", model={"options": {"expert_start": "alike"}})
    with pytest.raises(lw.LabelwiseError, match="'shared_experts' has no effect"):
        lw.sweep({"seed": [0, 1]}, data="photos.csv", out=tmp_path / "sweep", **{"head.shared_experts": 4})


def test_complexity_of_a_new_and_of_a_given_model(place: Path) -> None:
    model = lw.load_model(place / "run")
    parameters = sum(p.numel() for p in model.parameters())
    assert lw.complexity(model).total("parameters") == lw.complexity(place / "run").total("parameters") == parameters
    assert lw.complexity(head="gap", backbone="resnet10t", labels=3, size=64).size == 64
    assert f"{parameters:,}</td>" in lw.complexity(model)._repr_html_().split("total")[1]
    with pytest.raises(lw.LabelwiseError, match="leave out the model"):
        lw.complexity(model, dim=3)


def test_report_sweep_and_push(place: Path, tmp_path: Path) -> None:
    options = {"bootstrap": 0, "workers": 0, "images": 1, "progress": False}
    with pytest.raises(lw.LabelwiseError, match="name it, too"):
        lw.report(place / "run", root="photos")
    page = lw.report(place / "run", out=tmp_path / "report", **options)  # type: ignore[arg-type]
    assert "run" in page.read_text(encoding="utf-8")
    said: list[str] = []
    settings = {**TINY, "head": "gap"}
    grid = {"lr": [1e-2, 1e-3]}
    data = place / "sample" / "labels.csv"
    planned = lw.sweep(grid, data=data, out=tmp_path / "sweep", dry_run=True, **settings)
    assert [outcome.status for outcome in planned.outcomes] == ["new", "new"]
    assert not (tmp_path / "sweep").exists()
    result = lw.sweep(grid, data=data, out=tmp_path / "sweep", report=False, say=said.append, **settings)
    assert repr(result).endswith("runs=2, finished=2)")
    assert [row["lr"] for row in result.rows] == [1e-2, 1e-3]
    assert sum("starting" in line for line in said) == 2
    assert json.loads((tmp_path / "sweep" / "results.json").read_text())["runs"] == result.rows
    assert lw.push(place / "run", "ann/pets", dry_run=tmp_path / "upload") == str(tmp_path / "upload")
    assert "ann/pets" in (tmp_path / "upload" / "README.md").read_text(encoding="utf-8")


def test_bench_in_memory_and_as_a_command(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("labelwise.runtime.sessions.FAMILIES", ("torch",))  # converting is tested with the engines
    small = {"batch_size": 2, "seconds": 0.0, "progress": False}
    result = lw.bench(lw.load_model(place / "run"), images=3, memory=False, **small)  # type: ignore[arg-type]
    assert [row["engine"] for row in result.rows] == ["torch", "torch, optimised"]
    for row in result.rows:
        assert row["network"] > 0
        assert row["end_to_end"] > 0
        assert row["memory_mb"] is None
        assert row["difference"] < 1e-3
    assert "torch, optimised" in repr(result)
    words = ["--images", "0", "--batch-size", "2", "--seconds", "0", "--no-memory", "--json", str(tmp_path / "b.json")]
    with pytest.raises(SystemExit):
        main(["bench", str(place / "run"), *words])
    written = json.loads((tmp_path / "b.json").read_text())
    assert written["rows"][0]["end_to_end"] is None
    assert written["settings"] == {"model": "run", "batch_size": 2, "size": 32, "images": 0}
    assert "torch" in capsys.readouterr().out
    with pytest.raises(lw.LabelwiseError, match="is not an exported model"):
        lw.bench(place / "run", exported=[tmp_path], images=0, **small)  # type: ignore[arg-type]


def test_peak_memory_is_that_of_a_new_process(place: Path) -> None:
    from labelwise.analysis.speed import peak_memory

    peak = peak_memory(place / "run", "torch", 1, {})
    if Path("/proc/self/status").exists():
        assert peak is not None
        assert 100 < peak < 4000


def test_objects_say_what_they_are(place: Path) -> None:
    photo = images(place)[0]
    tagger = lw.load()
    assert (
        repr(tagger) == "<Tagger: 80 labels (airplane, apple, backpack and 77 more), 288 x 288 pixels, on onnxruntime>"
    )
    assert repr(tagger.model) == f"<ExportedModel {str(tagger.model.folder)!r}: 80 labels, onnx, float16>"
    assert repr(lw.complexity(backbone="resnet10t", head="gap", labels=20)).startswith(
        "<Complexity: 4.93 M parameters, "
    )
    assert repr(lw.predict_stream([photo] * 2, tagger)) == f"<PredictionStream: 2 images, by {tagger!r}>"
    assert repr(lw.predict_stream(iter([photo]), tagger)).startswith("<PredictionStream: images as they arrive, by <")


# ---- mistakes


@pytest.mark.parametrize("name", [name for name in lw.__all__ if callable(getattr(lw, name))])
def test_an_unknown_argument_is_refused_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    function = getattr(lw, name)
    needed = [
        argument for argument in inspect.signature(function).parameters.values() if argument.default is argument.empty
    ]
    given = {argument.name: "missing" for argument in needed if argument.kind is argument.KEYWORD_ONLY}
    values = ["missing" for argument in needed if argument.kind is argument.POSITIONAL_OR_KEYWORD]
    if name == "create_model":
        values = ["resnet10t", "hsq", 3]
    with pytest.raises((TypeError, lw.LabelwiseError), match=r"'lables'|takes no keyword arguments"):
        function(*values, **given, lables=["cat"])
    assert list(tmp_path.iterdir()) == []


def test_unknown_settings_are_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(lw.LabelwiseError, match=r"unknown setting 'epoch'; did you mean 'epochs'\?"):
        lw.train("photos.csv", out=tmp_path / "run", epoch=3)
    with pytest.raises(lw.LabelwiseError, match=r"unknown setting 'optimiser'; did you mean 'optimizer'\?"):
        lw.train("photos.csv", out=tmp_path / "run", **{"optimiser.lr": 3})
    with pytest.raises(lw.LabelwiseError, match=r"optimizer: unknown key 'weight_decey'; did you mean 'weight_decay'"):
        lw.train("photos.csv", out=tmp_path / "run", optimizer={"weight_decey": 3})
    with pytest.raises(lw.LabelwiseError, match=r"unknown option 'thresold'; did you mean 'threshold'\?"):
        lw.predict("photo.jpg", thresold=0.3)
    assert not (tmp_path / "run").exists()


def test_mistakes_name_keyword_arguments_in_python_and_flags_in_the_shell(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(place / "sample" / "labels.csv")
    with pytest.raises(lw.LabelwiseError, match="overwrite=True"):
        lw.train(data, out=place / "run", **TINY)
    with pytest.raises(SystemExit):
        main(["train", "--data", data, "--out", str(place / "run")])
    said = capsys.readouterr().err
    assert "--overwrite" in said
    assert "overwrite=True" not in said
    with pytest.raises(SystemExit):
        main(["train", "--data", data, "--out", "x", "--head", "ml-decoder", "--set", "head.queries=words"])
    assert "--set model.words=package:glove-50d" in capsys.readouterr().err
    for words in (
        ["train", "--out", "x", "--set", "data=y"],
        ["train", "--dry-run", "--set", "labels=cat,dog"],
        ["train", "--dry-run", "--set", "gpus=2"],
        ["sweep", "--grid", "seed=0", "--out", "x", "--set", "out=y"],
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert "is not a setting of the recipe; use its flag" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["data", "inspect"])
    assert capsys.readouterr().err.rstrip().endswith("See: labelwise data inspect --help")


def test_an_estimate_needs_a_path_and_a_resumed_run_takes_no_settings(place: Path, tmp_path: Path) -> None:
    table = lw.data.open_data(place / "sample" / "labels.csv")
    with pytest.raises(lw.LabelwiseError, match="reads its data from a path"):
        lw.estimate(table)  # type: ignore[arg-type]
    with pytest.raises(lw.LabelwiseError, match="continues as it was"):
        lw.train(out=place / "run", resume=True, epochs=3)
    with pytest.raises(lw.LabelwiseError, match=r"no run in .* to resume"):
        lw.train(out=tmp_path / "nothing", resume=True)


def test_top_limits_the_labels(place: Path) -> None:
    image = sorted((place / "sample" / "images").iterdir())[0]
    (prediction,) = lw.predict(image, place / "run", top=2)
    assert len(prediction.labels) == len(prediction.scores) == 2
    assert prediction.labels == list(prediction.all_scores)[:2]


@pytest.mark.parametrize(
    "call",
    [
        lambda image, run, out: lw.predict(image, run, sidecar="foo"),
        lambda image, run, out: lw.predict(image, run, engine="foo"),
        lambda image, run, out: lw.explain(image, run, method="foo"),
        lambda image, run, out: lw.evaluate(run, "photos.csv", on_bad_image="foo"),
        lambda image, run, out: lw.export(run, out=out, format="foo"),
        lambda image, run, out: lw.predict_job([str(image)], run, out=out, runner="foo"),
    ],
)
def test_a_choice_that_does_not_exist_is_refused(call: Any, place: Path, tmp_path: Path) -> None:
    image = sorted((place / "sample" / "images").iterdir())[0]
    with pytest.raises(lw.LabelwiseError, match=r"unknown .* 'foo'"):
        call(image, place / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_explain_takes_one_image(place: Path) -> None:
    images = sorted((place / "sample" / "images").iterdir())[:2]
    with pytest.raises(lw.LabelwiseError, match="one image at a time"):
        lw.explain(images, place / "run")  # type: ignore[arg-type]
    with pytest.raises(lw.LabelwiseError, match="no such file or folder"):
        lw.explain("nope.png", place / "run")


def test_a_stream_that_nobody_reads_leaves_a_whole_file(place: Path, tmp_path: Path) -> None:
    stream = lw.predict_stream(place / "sample" / "images", place / "run", json=tmp_path / "all.json")
    del stream
    assert json.loads((tmp_path / "all.json").read_text()) == []


def test_a_loop_over_the_call_itself_writes_every_row(place: Path, tmp_path: Path) -> None:
    """The loop holds only the iterator: the files stay open as long as it does."""
    images = place / "sample" / "images"
    seen = [prediction.image for prediction in lw.predict_stream(images, place / "run", csv=tmp_path / "all.csv")]
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 1 + len(seen) == 1 + len(list(images.iterdir()))


def test_an_evaluation_of_a_run_says_what_it_measured(place: Path) -> None:
    evaluation = lw.evaluate(lw.Run(place / "run"), split="test", bootstrap=0, workers=0)
    assert (evaluation.model, evaluation.split) == (str(place / "run"), "test")


def test_a_recipe_with_an_old_name_can_be_changed_under_either(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text("union: 0.5\n")
    for name in ("union", "pair_mix"):
        assert load_recipe(tmp_path / "old.yaml", {name: 0.25}).pair_mix == 0.25
