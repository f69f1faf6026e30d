"""`labelwise demo`: the main job end to end. The bundled tagger on some photos, then a training on synthetic images."""

from __future__ import annotations

import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import labelwise as lw
from labelwise.cli.common import say, warn
from labelwise.core.errors import counted, torch_needed
from labelwise.core.files import atomic_write
from labelwise.core.terminal import open_console
from labelwise.data.sample import make_sample

# A head for 13 labels on frozen EfficientNet-Lite0 features: small enough for two cores; pip brings the weights.
_COMMON: dict[str, Any] = {"backbone": "tf_efficientnet_lite0", "size": 160, "epochs": 15, "batch_size": 32}
_PHOTOS = ("astronaut.png", "camera.png", "chelsea.png", "motorcycle_left.png")  # in scikit-image's wheel
_WIDEST = max(map(len, _PHOTOS))
_RUNS: dict[str, dict[str, Any]] = {
    "HSQ": {"head": "hsq", "lr": 5e-4},
    "GAP": {"head": "gap", "lr": 1e-2},  # a linear layer needs a higher rate
}


def demo(*, out: Path = Path("demo"), images: int = 1000, show: int = 8) -> None:
    """Run an end-to-end demo on synthetic images: tag photos, train HSQ and GAP, evaluate both, write a report.

    Parameters
    ----------
    out
        Folder for everything; an earlier demo there is replaced.
    images
        How many images to draw.
    show
        How many test images the report shows with their predictions and attention maps.
    """
    with torch_needed():  # before it draws a thousand images
        import labelwise.training.train  # noqa: F401
    console = open_console(highlight=False)
    started = time.monotonic()
    console.rule("1  the bundled tagger on photos of scikit-image")
    tag_photos()
    console.rule("2  drawing the sample set")
    table = make_sample(out / "sample", images=images)
    say(f"{counted(len(table), 'image')}, {counted(len(table.labels), 'label')}: {', '.join(table.labels)}")
    for number, (name, settings) in enumerate(_RUNS.items(), start=3):
        console.rule(f"{number}  training and evaluating {name}")
        folder = out / name.lower()
        run = lw.train(out / "sample" / "labels.csv", out=folder, overwrite=True, **_COMMON, **settings)
        result = lw.evaluate(run, split="test", bootstrap=0).to_dict()
        atomic_write(folder / "test.json", json.dumps(result, indent=1) + "\n")
        scores = "  ".join(f"{key} {result[key]:.1f}" for key in ("mAP", "CF1", "OF1"))
        say(f"{name} on {result['images']} test images: {scores}")
    console.rule("5  writing the report")
    page = lw.report([out / name.lower() for name in _RUNS], out=out, split="test", predictions=show, warn=warn)
    say(f"\nDone in {time.monotonic() - started:.0f} s. Open {page} in a browser.")


def tag_photos() -> None:
    """What `labelwise predict PHOTO …` says right after installation."""
    from labelwise.cli.predict import describe

    package = find_spec("skimage")
    if package is None or package.origin is None:
        say("skipped: the photos come with pip install scikit-image")
        return
    folder = Path(package.origin).parent / "data"
    tagger = lw.load()
    for prediction in tagger.predict([folder / name for name in _PHOTOS]):
        prediction.image = Path(str(prediction.image)).name  # without the path of the package
        say(describe(prediction, prediction.choose(), near_misses=True, width=_WIDEST))
