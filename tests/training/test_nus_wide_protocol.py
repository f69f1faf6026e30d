"""The NUS-WIDE zero-shot recipes on a small folder in the original format: tags are learned, concepts are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import labelwise as lw
from labelwise.cli import main
from labelwise.training import load_recipe
from labelwise.training.train import train

ROOT = Path(__file__).resolve().parents[2]
CONCEPTS = ("airport", "animal", "beach")
TAGS = ("nature", "animal", "sky", "sunset", "city")  # `animal` is also a concept, so it is no seen label
SEEN = ("nature", "sky", "sunset", "city")


@pytest.fixture(scope="module")
def nus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("nus")
    generator = torch.Generator().manual_seed(0)
    for split, images in (("Train", 12), ("Test", 6)):
        names = [f"{split.lower()}\\{i:04d}.jpg" for i in range(images)]
        for name in names:
            file = root / "Flickr" / name.replace("\\", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = torch.randint(0, 256, (40, 40, 3), generator=generator, dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(file)
        write(root / "ImageList" / f"{split}Imagelist.txt", "\r\n".join(names) + "\r\n")
        for column, concept in enumerate(CONCEPTS):
            bits = "\n".join(str(int(i % 3 == column)) for i in range(images))
            write(root / "Groundtruth" / "TrainTestLabels" / f"Labels_{concept}_{split}.txt", bits + "\n")
        rows = ["\t".join(str(int(i % 5 == column)) for column in range(5)) + "\t" for i in range(images)]
        write(root / "NUS_WID_Tags" / f"{split}_Tags1k.dat", "\n".join(rows) + "\n")
    write(root / "ConceptsList" / "Concepts81.txt", "\n".join(CONCEPTS) + "\n")
    write(root / "NUS_WID_Tags" / "TagList1k.txt", "\n".join(TAGS) + "\n")
    names = sorted({*CONCEPTS, *TAGS})
    vectors = torch.randn(len(names), 10, generator=generator)
    save_file(dict(zip(names, vectors.unbind(), strict=True)), root / "words.safetensors")
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


@pytest.mark.parametrize("name", ["nus-wide-zsl", "nus-wide-zsl-k100"])
def test_protocol(name: str, nus: Path, tmp_path: Path) -> None:
    source = f"nus-wide:{nus}?vocabulary=zero-shot"
    small = {
        "data.source": source,
        "model.backbone": "test_resnet",
        "model.weights": "none",
        "model.size": 32,
        "model.options.dim": 16,
        "model.words": str(nus / "words.safetensors"),
        "precision": "32-true",
        "epochs": 1,
        "batch_size": 4,
        "workers": 0,
    }
    if name.endswith("k100"):
        small["model.options.groups"] = 2  # groups of two labels
    train(load_recipe(ROOT / "recipes" / "ml-decoder" / f"{name}.yaml", small), tmp_path / "run")
    assert lw.load_model(tmp_path / "run").labels == SEEN
    arguments = [str(tmp_path / "run"), "--data", source, "--workers", "0", "--bootstrap", "0"]
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", *arguments, "--json", str(tmp_path / "out.json")])
    assert not stop.value.code
    result = json.loads((tmp_path / "out.json").read_text())
    assert [row["label"] for row in result["per_label"] if row["unseen"]] == list(CONCEPTS)
    assert (result["images"], result["zsl"]["labels"], result["gzsl"]["labels"]) == (6, 3, 7)
    assert result["zsl"]["chance"]["mAP"] == pytest.approx(100 / 3)
    # Unseen labels never join a group of the training, so ZSL scores are columns of the GZSL ones, in groups too.
    model, x = lw.load_model(tmp_path / "run"), torch.randn(2, 3, 32, 32)
    alone, together = model.with_labels(CONCEPTS)(x), model.with_labels((*SEEN, *CONCEPTS))(x)
    torch.testing.assert_close(alone, together[:, len(SEEN) :])
