"""`labelwise demo`: the main job end to end. The bundled tagger on some photos, then a training on drawn pictures."""

from __future__ import annotations

import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from labelwise.core.files import atomic_write

# A head for 13 labels on frozen EfficientNet-Lite0 features: small enough for two cores, and pip carries the weights.
_COMMON = {
    "model.backbone": "tf_efficientnet_lite0",
    "model.size": 160,
    "epochs": 15,
    "batch_size": 32,
}
_PHOTOS = ("astronaut.png", "camera.png", "chelsea.png", "motorcycle_left.png")  # in scikit-image's wheel
_WIDEST = max(map(len, _PHOTOS))
_RUNS: dict[str, dict[str, Any]] = {
    "HSQ": {"model.head": "hsq", "optimizer.lr": 5e-4},
    "GAP": {"model.head": "gap", "optimizer.lr": 1e-2},  # a linear layer takes, and needs, a higher rate
}


def demo(*, out: Path = Path("demo"), images: int = 1000, show: int = 8) -> None:
    """Tag some photos; draw a sample set, train HSQ and GAP on it, evaluate both, predict, and write report.html.

    Parameters
    ----------
    out
        Folder for everything; a former demo there is replaced.
    images
        How many pictures to draw.
    show
        How many test pictures the report shows.
    """
    from labelwise.data.sample import make_sample
    from labelwise.evaluation import evaluate
    from labelwise.reports.demo import DemoPicture, demo_report
    from labelwise.runtime.tagger import Tagger
    from labelwise.training import load_recipe
    from labelwise.training.train import train

    console = Console()
    started = time.monotonic()
    console.rule("1  the bundled tagger on photos that scikit-image carries")
    tag_photos(console)
    console.rule("2  drawing the sample set")
    table = make_sample(out / "sample", images=images)
    test = table.select("test")
    console.print(f"{len(table)} pictures, {len(table.labels)} labels: {', '.join(table.labels)}", highlight=False)
    measured: dict[str, dict[str, Any]] = {}
    curves: dict[str, list[dict[str, float]]] = {}
    models = {}
    for number, (name, settings) in enumerate(_RUNS.items(), start=3):
        console.rule(f"{number}  training and evaluating {name}")
        recipe = load_recipe(None, {"data.source": str(out / "sample" / "labels.csv"), **_COMMON, **settings})
        run = out / name.lower()
        models[name] = train(recipe, run, overwrite=True).model()
        measured[name] = evaluate(models[name], test, bootstrap=0).to_dict()
        curves[name] = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        atomic_write(run / "test.json", json.dumps(measured[name], indent=1) + "\n")
        scores = "  ".join(f"{key} {measured[name][key]:.1f}" for key in ("mAP", "CF1", "OF1"))
        console.print(f"{name} on {len(test)} test pictures: {scores}", style="bold", highlight=False)
    console.rule("5  predicting and writing the report")
    tagger = Tagger(models["HSQ"])
    pictures = []
    for row, prediction in enumerate(tagger.predict(list(test.images[:show]))):
        said = "   ".join(
            f"{label} {score:.2f}" for label, score in zip(prediction.labels, prediction.scores, strict=True)
        )
        console.print(f"{Path(test.images[row]).name}   {said}", highlight=False)
        pictures.append(DemoPicture.from_prediction(prediction, test.present(row)))
    page = demo_report(out, measured, pictures, curves, time.monotonic() - started)
    console.print(f"\nOpen {page} in a browser.", style="bold", highlight=False)


def tag_photos(console: Console) -> None:
    """What `labelwise predict PHOTO …` says right after installation."""
    from labelwise.cli.predict import describe
    from labelwise.engines.load import load

    package = find_spec("skimage")
    if package is None or package.origin is None:
        console.print("left out: pip install scikit-image brings the photos", highlight=False)
        return
    folder = Path(package.origin).parent / "data"
    tagger = load()
    for prediction in tagger.predict([folder / name for name in _PHOTOS]):
        prediction.image = Path(str(prediction.image)).name  # where the package lies is of no interest
        console.print(describe(prediction, prediction.choose(), near_misses=True, width=_WIDEST), highlight=False)
