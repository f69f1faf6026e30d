"""INT8: what it costs is measured, and too much of it is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from labelwise.cli.export import export
from labelwise.core.errors import LabelwiseError
from labelwise.data.sample import make_sample
from labelwise.model.model import create_model
from labelwise.runtime.exported import find_export
from labelwise.runtime.sessions import relative_difference

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`model/`, and `float/` exported of it."""
    folder = tmp_path_factory.mktemp("int8")
    labels = make_sample(folder / "sample", images=24, size=40).labels
    torch.manual_seed(0)
    create_model("test_resnet", "ml-decoder", labels, weights="none", size=64, dim=16, groups=3).save(folder / "model")
    export(str(folder / "model"), out=folder / "float")
    return folder


@pytest.fixture(autouse=True)
def _traced_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing the network takes most of an export's time."""

    def copied(program: object, path: Path, *_: object) -> None:
        shutil.copy(root / "float" / "model.onnx", path)

    monkeypatch.setattr("labelwise.engines.convert._traced", lambda *_: None)
    monkeypatch.setattr("labelwise.engines.convert._write_onnx", copied)


@pytest.mark.parametrize("kind", ["onnx", "openvino"])
def test_int8_is_close_and_says_what_it_costs(kind: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime" if kind == "onnx" else "nncf")
    sample = str(root / "sample")
    export(str(root / "model"), out=root / kind, format=kind, int8=True, calibration=sample, split="all", max_loss=100)  # type: ignore[arg-type]
    said = capsys.readouterr().out
    assert "int8" in said
    assert "mAP on" in said
    exported = find_export(root / kind)
    assert exported is not None
    assert exported.about.precision == "int8"
    assert set(exported.about.mean_average_precision or ()) == {"before", "after"}
    expected = {"onnx": ["config.json", "model.onnx"], "openvino": ["config.json", "model.bin", "model.xml"]}
    assert sorted(file.name for file in (root / kind).iterdir()) == expected[kind]
    # 8 bits show, but not by much
    from labelwise.engines.load import load

    quantized, model = load(root / kind), load(root / "model")
    images = torch.stack(
        [torch.from_numpy(model.input(str(path))) for path in sorted((root / "sample" / "images").iterdir())]
    )
    found, whole = quantized.logits(images.numpy()), model.logits(images.numpy())
    assert 1e-6 < relative_difference(found, whole) < 0.1


def test_too_much_lost_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(LabelwiseError, match=r"INT8 loses .* nothing was written"):
        export(
            str(root / "model"),
            out=tmp_path / "out",
            int8=True,
            calibration=str(root / "sample"),
            split="all",
            max_loss=-100,
        )
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(LabelwiseError, match="INT8 needs a dataset"):
        export(str(root / "model"), out=tmp_path / "out", calibration=str(root / "sample"))
