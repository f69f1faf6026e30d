"""Exported folders: the same logits, nothing written that disagrees, run without PyTorch, refused when damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.cli.evaluate import evaluate as evaluate_command
from labelwise.cli.export import export
from labelwise.core.arrays import Floats
from labelwise.core.errors import LabelwiseError
from labelwise.data.sample import make_sample
from labelwise.engines.export import export_model
from labelwise.engines.load import load
from labelwise.evaluation import evaluate, predict_logits
from labelwise.heads import list_heads
from labelwise.model.model import LabelModel, create_model, load_model
from labelwise.runtime.exported import ExportFormat, check_target, find_export
from labelwise.runtime.tagger import Tagger
from tests.heads.head_kit import small_options

pytest.importorskip("onnxruntime")

LABELS = ("boat", "car", "cat", "dog", "sun")


def small_model(backbone: str = "test_resnet", head: str = "hsq", size: int = 64) -> LabelModel:
    torch.manual_seed(0)
    model = create_model(backbone, head, LABELS, weights="none", size=size, **small_options(head, len(LABELS))).eval()
    thresholds = (0.2, 0.3, 0.4, 0.5, 0.6)
    model.config = model.config.model_copy(update={"temperature": 1.3, "thresholds": thresholds})
    return model


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`model/`, `onnx/` made of it on the command line, and pictures in `sample/`."""
    folder = tmp_path_factory.mktemp("export")
    small_model().save(folder / "model")
    export(str(folder / "model"), out=folder / "onnx")
    make_sample(folder / "sample", images=6, size=50)
    return folder


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(root / "onnx", tmp_path / "copy"))


def test_an_exported_tagger_says_what_the_model_says(root: Path) -> None:
    expected, found = load(root / "model"), load(root / "onnx")
    assert (found.labels, found.thresholds) == (expected.labels, expected.thresholds)
    assert found.family == "onnxruntime"
    for one, other in zip(expected.predict(root / "sample"), found.predict(root / "sample", batch_size=4), strict=True):
        assert other.labels == one.labels
        assert other.all_scores == pytest.approx(one.all_scores, abs=1e-5)
        np.testing.assert_allclose(other.attention("dog"), one.attention("dog"), atol=1e-4)
    with pytest.raises(LabelwiseError, match="labels of the exported model"):
        load(root / "onnx", labels=["kite"])


def test_openvino_runs_the_same_file(root: Path) -> None:
    pytest.importorskip("openvino")
    tagger = load(root / "onnx", engine="openvino")
    assert tagger.family == "openvino"
    expected = load(root / "model").predict(root / "sample")
    assert [p.labels for p in tagger.predict(root / "sample")] == [p.labels for p in expected]


def test_an_exported_model_is_evaluated_like_the_model(root: Path) -> None:
    exported = find_export(root / "onnx")
    assert exported is not None
    network, model = exported.open(), load_model(root / "model")
    table = make_sample(root / "sample", images=6, size=50)
    table = type(table).from_lists(table.images, [["cat"], ["dog"], [], ["sun", "cat"], ["boat"], ["car"]], LABELS)
    options = {"workers": 0, "progress": False, "flip": True}
    expected, found = predict_logits(model, table, **options), predict_logits(network, table, **options)
    np.testing.assert_allclose(found.logits, expected.logits, atol=1e-5)
    scores = [evaluate(one, table, bootstrap=0, **options).to_dict()["mAP"] for one in (model, network)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)
    with pytest.raises(LabelwiseError, match="use no cache or scales"):
        predict_logits(network, table, scales=(1.0, 2.0), workers=0, progress=False)


def test_the_command_line_evaluates_an_export(root: Path, tmp_path: Path) -> None:
    rows = [
        f"{path},{label}" for path, label in zip(sorted((root / "sample" / "images").iterdir()), LABELS, strict=False)
    ]
    (tmp_path / "photos.csv").write_text("\n".join(["image,labels", *rows]) + "\n")
    options = {"data": str(tmp_path / "photos.csv"), "split": "all", "workers": 0, "bootstrap": 0}
    for source in ("model", "onnx"):
        evaluate_command(str(root / source), json_file=tmp_path / f"{source}.json", **options)
    results = [json.loads((tmp_path / f"{source}.json").read_text()) for source in ("model", "onnx")]
    assert results[1]["mAP"] == pytest.approx(results[0]["mAP"], abs=1e-4)
    assert results[1]["model"] == {**results[0]["model"], "source": str(root / "onnx")}
    with pytest.raises(LabelwiseError, match="load the model that it was made from"):
        evaluate_command(str(root / "onnx"), save=True, fit_temperature=True, **options)


def test_everything_is_inside_the_file_too(root: Path) -> None:
    import onnx

    inside = {entry.key: entry.value for entry in onnx.load(root / "onnx" / "model.onnx").metadata_props}
    content = json.loads(inside["labelwise"])
    model = load_model(root / "model")
    assert tuple(content["model"]["labels"]) == LABELS
    assert content["model"]["preprocessing"] == model.config.preprocessing.model_dump(mode="json")
    assert content["model"]["thresholds"] == list(model.config.thresholds or ())
    assert sorted(file.name for file in (root / "onnx").iterdir()) == ["config.json", "model.onnx"]
    assert str(Path(lw.__file__).parent).encode() not in (root / "onnx" / "model.onnx").read_bytes()  # no private paths


def test_nothing_is_written_if_the_outputs_differ(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        family = "onnxruntime"

        def outputs(self, images: Floats, known: Floats | None = None) -> dict[str, Floats]:
            evidence = small_model().evidence(images)  # of the same weights: only the maps are wrong
            assert evidence.attention is not None
            return {"out": evidence.logits, "attention": evidence.attention[..., ::-1], "gates": evidence.gates}

    monkeypatch.setattr("labelwise.engines.export.convert", lambda *_, **__: tmp_path / "x")
    monkeypatch.setattr("labelwise.engines.export.open_file", lambda *_: Wrong())
    before = sorted(file.read_bytes() for file in (root / "onnx").iterdir())
    for out in (tmp_path / "new", root / "onnx"):
        with pytest.raises(LabelwiseError, match=r"differ from the model's .*nothing was written"):
            export_model(small_model(), "onnx", out)
    assert list(tmp_path.iterdir()) == []
    assert sorted(file.read_bytes() for file in (root / "onnx").iterdir()) == before


def test_only_an_export_is_replaced(root: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for out in (tmp_path, root / "model"):  # a model is no export, though it has a config.json, too
        with pytest.raises(LabelwiseError, match="is not an export folder"):
            export(str(root / "model"), out=out, overwrite=True)
    before = (root / "onnx" / "model.onnx").stat()
    with pytest.raises(LabelwiseError, match=r"already holds an export; overwrite it.*overwrite=True"):
        export(str(root / "model"), out=root / "onnx")
    assert (root / "onnx" / "model.onnx").stat() == before
    shutil.copytree(root / "onnx", tmp_path / "damaged")
    (tmp_path / "damaged" / "config.json").write_text("{")
    with pytest.raises(LabelwiseError, match="already holds an export"):
        export(str(root / "model"), out=tmp_path / "damaged")
    check_target(tmp_path / "damaged", overwrite=True)
    with pytest.raises(LabelwiseError, match=r"is an exported model.*load the model that it was made from"):
        load_model(root / "onnx")
    with pytest.raises(LabelwiseError, match="INT8 needs a dataset"):
        export(str(root / "model"), out=tmp_path / "x", int8=True)


def test_without_maps_and_with_16_bit_weights(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The traced network again: tracing takes most of the time.
    monkeypatch.setattr("labelwise.engines.convert._traced", lambda *_: None)
    asked = []

    def write(program: None, path: Path, metadata: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        asked.append(outputs)
        shutil.copy(root / "onnx" / "model.onnx", path)

    monkeypatch.setattr("labelwise.engines.convert._write_onnx", write)
    export(str(root / "model"), out=tmp_path / "half", half=True)
    assert "float16, 5 labels, with attention and gates" in capsys.readouterr().out
    picture = next((root / "sample" / "images").iterdir())
    half, whole = load(tmp_path / "half"), load(root / "onnx")
    (one,), (other,) = half.predict(picture), whole.predict(picture)
    assert one.all_scores == pytest.approx(other.all_scores, abs=1e-2)
    assert one.all_scores != other.all_scores
    np.testing.assert_allclose(one.attention("cat"), other.attention("cat"), atol=1e-2)
    sizes = [(tmp_path / name).stat().st_size for name in ("half/model.onnx", root / "onnx" / "model.onnx")]
    assert sizes[0] < 0.8 * sizes[1]  # a small network is mostly its graph
    export(str(root / "model"), out=tmp_path / "plain", maps=False)
    assert "5 labels, any batch size" in capsys.readouterr().out
    assert asked == [("out", "attention", "gates"), ("out",)]
    with pytest.raises(LabelwiseError, match="has no attention maps: its head has none, or they were left out"):
        load(tmp_path / "plain").predict(picture)[0].attention("dog")
    with pytest.raises(LabelwiseError, match="16-bit weights are for onnx"):
        export(str(root / "model"), out=tmp_path / "x", half=True, format="torch")


def test_experts_of_an_export_are_those_of_the_model(root: Path) -> None:
    table = make_sample(root / "sample", images=6, size=50)
    found = lw.explain_experts(table, root / "onnx", split="all")
    expected = lw.explain_experts(table, root / "model", split="all", workers=0)
    assert (found.names, found.experts, found.images) == (expected.names, expected.experts, expected.images)
    np.testing.assert_allclose(found.weights, expected.weights, atol=1e-4)


def test_gradients_and_single_heads_need_the_model_itself(root: Path, copy: Path) -> None:
    picture = next((root / "sample" / "images").iterdir())
    for options in ({"method": "grad-cam"}, {"attention_head": 1}):
        with pytest.raises(LabelwiseError, match="without weights for PyTorch; load the model"):
            lw.explain(picture, root / "onnx", **options)
    shutil.copytree(root / "model", copy / "pytorch")  # as the bundled tagger has it
    expected = lw.explain(picture, root / "model", method="grad-cam", labels=["dog"])
    found = lw.explain(picture, copy, method="grad-cam", labels=["dog"])
    np.testing.assert_allclose(found.maps["dog"], expected.maps["dog"])
    assert load_model(copy).labels == LABELS
    assert load(copy).family == "onnxruntime"
    assert load(copy, engine="torch").family == "torch"


def test_an_export_is_loaded_from_the_hub(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def snapshot_download(name: str, **options: object) -> str:
        asked.update(options, name=name)
        return str(root / "onnx")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert load("ann/pets").family == "onnxruntime"
    assert asked["name"] == "ann/pets"
    assert "model.onnx" in asked["allow_patterns"]  # type: ignore[operator]


# ---- folders that are damaged, mixed up or hostile


def test_a_truncated_network(copy: Path) -> None:
    file = copy / "model.onnx"
    file.write_bytes(file.read_bytes()[:-2000])
    with pytest.raises(LabelwiseError, match="cannot be run"):
        load(copy)
    file.write_bytes(b"")
    with pytest.raises(LabelwiseError, match="cannot be run"):
        load(copy)
    file.unlink()
    with pytest.raises(LabelwiseError, match=r"has no model\.onnx; copy the whole folder"):
        load(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: c["model"].update(labels=LABELS[:3], thresholds=None),
            "gives 5 logits where config.json has 3 labels",
        ),
        (lambda c: c["model"].update(labels=LABELS[::-1]), "are not those in config.json"),
        (lambda c: c["model"].update(labels=["a"] * 5), "more than once"),
        (lambda c: c["model"].update(thresholds=[0.5]), "1 thresholds for 5 labels"),
        (lambda c: c["export"].update(kind="../../etc/passwd"), "kind"),
        (lambda c: c["export"].update(kind="torch"), "can run code in it"),
        (lambda c: c["export"].update(kind="openvino"), r"has no model\.xml"),
        (lambda c: c.update(export=7), "'export' is missing"),
        (lambda c: c.update(model=None), "'model' is missing"),
        (lambda c: c.update(format=99), "a newer labelwise"),
    ],
)
def test_a_config_that_does_not_belong_there(copy: Path, change: object, message: str) -> None:
    content = json.loads((copy / "config.json").read_text())
    change(content)  # type: ignore[operator]
    (copy / "config.json").write_text(json.dumps(content))
    with pytest.raises(LabelwiseError, match=message):
        load(copy)


def test_a_damaged_config_is_not_taken_for_a_model_that_needs_pytorch(copy: Path) -> None:
    (copy / "config.json").write_text("{")
    with pytest.raises(LabelwiseError, match="is damaged: it is not JSON; export the model again"):
        load(copy)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("place", ["../secret.bin", "absolute"])
def test_weights_are_read_from_nowhere_else(copy: Path, tmp_path: Path, engine: str, place: str) -> None:
    """ONNX lets a file name others that hold its weights."""
    pytest.importorskip(engine)
    import onnx

    model = onnx.load(copy / "model.onnx")
    weight = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    (tmp_path / "secret.bin").write_bytes(weight.raw_data)
    weight.data_location = onnx.TensorProto.EXTERNAL
    location = str(tmp_path / "secret.bin") if place == "absolute" else place
    onnx.external_data_helper.set_external_data(weight, location)
    weight.ClearField("raw_data")
    (copy / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(LabelwiseError, match="cannot be run"):
        load(copy, engine=engine)  # type: ignore[arg-type]


# ---- other formats, heads and backbones


@pytest.mark.parametrize("kind", ["openvino", "torch"])
def test_other_formats(kind: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "openvino":
        pytest.importorskip("openvino")
        # It is made from ONNX, and tracing the model again would take most of the time.
        monkeypatch.setattr("labelwise.engines.convert._traced", lambda *_: None)
        again = lambda _, path, *__: shutil.copy(root / "onnx" / "model.onnx", path)  # noqa: E731
        monkeypatch.setattr("labelwise.engines.convert._write_onnx", again)
    about = export_model(load_model(root / "model"), kind, tmp_path / "out")  # type: ignore[arg-type]
    assert about.difference is not None
    assert about.difference < 1e-4
    if kind == "torch":
        with pytest.raises(LabelwiseError, match="can run code"):
            load(tmp_path / "out")
        extra = {"labelwise.json": ""}
        program = torch.export.load(tmp_path / "out" / "model.pt2", extra_files=extra)
        assert json.loads(extra["labelwise.json"])["model"]["labels"] == list(LABELS)
        images = torch.randn(3, 3, 96, 64)
        with torch.no_grad():
            torch.testing.assert_close(program.module()(images), load_model(root / "model")(images), atol=1e-4, rtol=0)
    else:
        expected = Tagger(load_model(root / "model")).predict(root / "sample")
        assert [p.labels for p in load(tmp_path / "out").predict(root / "sample")] == [p.labels for p in expected]
        with pytest.raises(LabelwiseError, match="which engine onnxruntime cannot run"):
            load(tmp_path / "out", engine="onnxruntime")


KINDS, BACKBONES = ("onnx", "openvino", "torch"), ("test_resnet", "test_vit", "swin_tiny_patch4_window7_224")
CASES = [
    (head, backbone, KINDS[(number + turn) % 3])  # a head has another format on each backbone
    for turn, backbone in enumerate(BACKBONES)
    for number, head in enumerate(list_heads())
]


@pytest.mark.slow
@pytest.mark.parametrize(("head", "backbone", "kind"), CASES)
def test_every_head_on_a_cnn_a_vit_and_a_swin(head: str, backbone: str, kind: ExportFormat, tmp_path: Path) -> None:
    """`export_model` itself compares the outputs; formats take turns, as all come from the same trace."""
    about = export_model(small_model(backbone, head), kind, tmp_path / "out")
    assert about.other_sizes == (backbone == "test_resnet")
    assert about.difference is not None
