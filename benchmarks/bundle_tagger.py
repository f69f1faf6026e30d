"""Make the tagger that comes with labelwise from two runs of the study with the same settings.

    python benchmarks/bundle_tagger.py --data voc:/data/VOCdevkit --trained study/test/hsq-288_seed-0 \\
        --fitted study/tune/hsq-288_size-288_seed-0

The weights are those of `--trained`, which learned from train and val and so has no photos left to fit temperature and
thresholds on: both come from `--fitted`, which learned from train alone, on val. The saved model is then measured on
test (docs/results/voc2007-bundled.json), and its card tells the result.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import yaml

from labelwise.bundled import default_model
from labelwise.data.sources import open_data
from labelwise.data.table import LabelTable
from labelwise.evaluation import TableLogits, evaluate
from labelwise.evaluation.inference import predict_logits
from labelwise.evaluation.thresholds import fit_config
from labelwise.features import FeatureCache
from labelwise.model.card import in_evaluation, model_card
from labelwise.model.model import LabelModel, load_model

NAME = "labelwise/voc2007"
RESULT = Path(__file__).resolve().parents[1] / "docs" / "results" / "voc2007-bundled.json"


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
            "temperature": fit.temperature,
            "offset": fit.offset,
            "thresholds": fit.thresholds,
            "results": {},
        }
    )
    folder = default_model()
    model.save(folder, compact=True)

    saved, test = load_model(folder), data.select("test")
    result = evaluate(saved, test, predictions=predictions(saved, test)).to_dict()
    result["data"] = {"source": "voc:VOCdevkit", "split": "test"}
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    recipe = yaml.safe_load((arguments.trained / "recipe.yaml").read_text())
    measured = [in_evaluation(result, saved.config, RESULT.name)]
    card = model_card(saved.config, name=NAME, license="apache-2.0", training=recipe, measured=measured)
    usage = card.index("## Usage")  # it is no hub id: commands without a model mean this one
    card = card[:usage] + card[usage:].replace(f'"{NAME}"', "").replace(f" {NAME}", "")
    (folder / "README.md").write_text(card)
    print(f"{folder.name}: mAP {result['mAP']:.2f}, CF1 {result['CF1']:.2f}, OF1 {result['OF1']:.2f} on test")


def predictions(model: LabelModel, table: LabelTable) -> TableLogits:
    maps = FeatureCache.build(table, model.backbone, model.config.preprocessing, flips=False, workers=0)
    return predict_logits(model, table, features=maps)


if __name__ == "__main__":
    main()
