"""Make the tagger that comes with labelwise from two runs of the study with the same settings.

    python benchmarks/bundle_tagger.py --data voc:/data/VOCdevkit --trained study/test/hsq-288_seed-0 \\
        --fitted study/tune/hsq-288_size-288_seed-0

The weights are those of `--trained`, which learned from train and val and so has no photos left to fit temperature and
thresholds on: both come from `--fitted`, which learned from train alone, on val. The model is saved in `pytorch/` of
the bundled folder and exported into the folder itself, with 16-bit weights. Both are measured on test
(docs/results/voc2007-float32.json, docs/results/voc2007-bundled.json), and the card tells the result of the export.

To export it again without training it (the first line) and to measure it (the second):

    labelwise export src/labelwise/bundled/voc2007/pytorch --half --overwrite --out src/labelwise/bundled/voc2007
    labelwise evaluate --data voc:/data/VOCdevkit --split test --json docs/results/voc2007-bundled.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import yaml

import labelwise as lw
from labelwise.bundled import default_model
from labelwise.data.sources import open_data
from labelwise.data.table import LabelTable
from labelwise.evaluation import TableLogits
from labelwise.evaluation.inference import predict_logits
from labelwise.evaluation.thresholds import fit_config
from labelwise.features import FeatureCache
from labelwise.model.card import in_evaluation, model_card
from labelwise.model.model import LabelModel, load_model
from labelwise.runtime.folder import PYTORCH

NAME = "labelwise/voc2007"
READABLE = {"diningtable": "dining table", "pottedplant": "potted plant", "tvmonitor": "tv monitor"}
RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--trained", type=Path, required=True)
    parser.add_argument("--fitted", type=Path, required=True)
    arguments = parser.parse_args()

    data = open_data(arguments.data)
    val = data.select("val")
    fitted = load_model(arguments.fitted)
    on_val = predictions(fitted, val)
    fit = fit_config(fitted.config, on_val.logits, val.targets(on_val.rows), thresholds="f1", temperature=True).config

    model = load_model(arguments.trained)
    model.config = model.config.model_copy(
        update={
            "labels": tuple(READABLE.get(name, name) for name in model.labels),
            "temperature": fit.temperature,
            "offset": fit.offset,
            "thresholds": fit.thresholds,
            "results": {},
        }
    )
    folder = default_model()
    model.save(folder / PYTORCH, compact=True)
    lw.export(folder / PYTORCH, out=folder, half=True, overwrite=True)

    measured = {}
    for name, source in (("float32", folder / PYTORCH), ("bundled", folder)):
        result = lw.evaluate(source, arguments.data, split="test").to_dict()
        result |= {"data": {"source": "voc:VOCdevkit", "split": "test"}}
        (RESULTS / f"voc2007-{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        measured[name] = result
    result = measured["bundled"]
    recipe = yaml.safe_load((arguments.trained / "recipe.yaml").read_text())
    evaluation = in_evaluation(result, model.config, "voc2007-bundled.json")
    card = model_card(model.config, name=NAME, license="apache-2.0", training=recipe, measured=[evaluation])
    usage = card.index("## Usage")  # it is no hub id: commands without a model mean this one
    card = card[:usage] + card[usage:].replace(f'"{NAME}"', "").replace(f" {NAME}", "")
    stored = "the weights are safetensors, the rest is JSON."
    assert stored in card
    card = card.replace(stored, f"the network is ONNX with 16-bit weights; `{PYTORCH}/` has what it was made from.")
    (folder / "README.md").write_text(card)
    print(f"{folder.name}: mAP {result['mAP']:.2f}, CF1 {result['CF1']:.2f}, OF1 {result['OF1']:.2f} on test")


def predictions(model: LabelModel, table: LabelTable) -> TableLogits:
    maps = FeatureCache.build(table, model.backbone, model.config.preprocessing, flips=False, workers=0)
    return predict_logits(model, table, features=maps)


if __name__ == "__main__":
    main()
