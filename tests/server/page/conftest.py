"""Small models, some photos, and a server with a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from page_kit import KEY, LABELS, MOST_BYTES, WORDS, spread
from PIL import Image

from labelwise.data.preprocessing import Preprocessing
from labelwise.data.sample import make_sample
from labelwise.model.model import LabelModel, create_model
from labelwise.runtime.tagger import Tagger
from tests.server.serving_kit import running


@pytest.fixture(scope="package")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("photos")
    images = list(make_sample(folder, images=4, size=96).images)
    Image.open(images[1]).resize((150, 90)).save(images[1])  # not all are squares
    return images


@pytest.fixture(scope="package")
def models(photos: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    small = {"weights": "none", "size": 64, "dim": 16}
    hsq = create_model("test_resnet", "hsq", LABELS, widths=[8, 4], shared_experts=3, **small)
    spread(hsq, photos).save(root / "first")
    crop = hsq.config.model_copy(update={"preprocessing": Preprocessing(size=64, resize="crop", crop_ratio=0.8)})
    hsq.config = crop
    spread(hsq, photos).save(root / "cropped")
    (root / "words.txt").write_text("".join(f"{word} {n} {n % 2} {3 - n}\n" for n, word in enumerate(WORDS)))
    words = create_model(
        "test_resnet", "ml-decoder", WORDS[2:], words=str(root / "words.txt"), queries="words", **small,
        classifier="shared", groups=None,
    )  # fmt: skip
    spread(words, photos).save(root / "words")
    told = create_model("test_resnet", "c-tran", LABELS, encoder_layers=1, **small)
    spread(told, photos).save(root / "told")
    return {name: root / name for name in ("first", "cropped", "words", "told")}


@pytest.fixture(scope="package")
def address(models: dict[str, Path]) -> Iterator[str]:
    arguments = ["--engine", "torch", "--max-bytes", MOST_BYTES]
    with running(*models.values(), *arguments, warm_workers=True, LABELWISE_API_KEY=KEY) as server:
        yield server.address


@pytest.fixture(scope="package")
def tagger(models: dict[str, Path]) -> Tagger:
    return Tagger(LabelModel.from_pretrained(models["first"]))
