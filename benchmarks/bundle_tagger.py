"""Make the tagger that comes with labelwise: the 80 labels of MS-COCO, learned from COCO and PASCAL VOC 2007 together.

    python benchmarks/bundle_tagger.py table tagger --coco /data/coco80.csv --photos /data/coco --voc /data/VOCdevkit
    labelwise train --data tagger/photos.csv --size 288 --epochs 8 --lr 3e-4 --out tagger/run
    python benchmarks/bundle_tagger.py bundle tagger --voc /data/VOCdevkit

`table` writes one table of both: COCO 2014's train photos and VOC's train and val photos, some of them `val` for the
thresholds, and COCO 2014's val photos as `test`. VOC's 20 labels are among the 80 (aeroplane is airplane, motorbike is
motorcycle, sofa is couch, tvmonitor is tv); the other 60 are unknown in its photos, and the loss leaves them out.
`--coco` is a table with the columns image, labels and split (benchmarks/coco_table.py). `bundle` saves the run's model
in `pytorch/` of the bundled folder, exports it into the folder itself with 16-bit weights, measures both on the test
photos of COCO and of VOC (docs/results/bundled-*.json), and writes the card.

To export the model again without training it (the first line) and to measure it (the others):

    labelwise export src/labelwise/bundled/coco80/pytorch --half --overwrite --out src/labelwise/bundled/coco80
    labelwise evaluate --data 'csv:/data/coco80.csv?root=/data/coco' --json docs/results/bundled-coco.json
    labelwise evaluate --data voc:/data/VOCdevkit --json docs/results/bundled-voc.json
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import labelwise as lw
from labelwise.bundled import default_model
from labelwise.data import open_data
from labelwise.data.labels import match_labels
from labelwise.data.manifests import write_manifest
from labelwise.data.table import LabelTable
from labelwise.model.card import in_evaluation, model_card
from labelwise.model.config import ModelConfig
from labelwise.model.model import load_model
from labelwise.runtime.folder import PYTORCH

NAME = "labelwise/coco80"
HELD_OUT = {"coco": 0.1, "voc": 0.2}  # shares of the training photos: of VOC's fewer ones more
RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)
    table = stages.add_parser("table")
    table.add_argument("folder", type=Path, help="where to write it")
    table.add_argument("--coco", type=Path, required=True)
    table.add_argument("--photos", type=Path, required=True)
    table.add_argument("--voc", type=Path, required=True)
    bundle = stages.add_parser("bundle")
    bundle.add_argument("folder", type=Path, help="where `table` and the training wrote")
    bundle.add_argument("--voc", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.stage == "table":
        coco = open_data(f"csv:{arguments.coco}?root={arguments.photos}")
        voc = match_labels(open_data(f"voc:{arguments.voc}"), coco.labels).part("train+val")
        arguments.folder.mkdir(parents=True, exist_ok=True)
        write_manifest(joined(coco, voc), arguments.folder / "photos.csv", columns=True)
    else:
        make(arguments.folder, arguments.voc)


def joined(coco: LabelTable, voc: LabelTable) -> LabelTable:
    """Both tables in one, with photos held out of both."""
    generator = random.Random(80)

    def split(name: str, share: float) -> str:
        return name if name == "test" else "val" if generator.random() < share else "train"

    return LabelTable.from_dense(
        [*coco.images, *voc.images],
        np.concatenate([coco.targets(), voc.targets()]),
        coco.labels,
        splits=[
            *(split(name, HELD_OUT["coco"]) for name in coco.splits),
            *(split(name, HELD_OUT["voc"]) for name in voc.splits),
        ],
    )


def make(folder: Path, voc: Path) -> None:
    run = folder / "run"
    model = load_model(run)
    model.config = model.config.model_copy(update={"results": {}})
    bundled = default_model()
    model.save(bundled / PYTORCH, compact=True)
    (bundled / PYTORCH / "README.md").unlink()  # the card of the export is the one
    lw.export(bundled / PYTORCH, out=bundled, half=True, overwrite=True)

    for name, source in (("bundled-float32", bundled / PYTORCH), ("bundled", bundled)):
        for data, where in (("coco", folder / "photos.csv"), ("voc", f"voc:{voc}")):
            result = lw.evaluate(source, where, split="test").to_dict()
            public = {"coco": "COCO 2014 val, squashed to 256 x 256", "voc": "PASCAL VOC 2007"}[data]
            result |= {"data": {"source": public, "split": "test"}}
            result["model"]["source"] = name
            (RESULTS / f"{name}-{data}.json").write_text(json.dumps(result, indent=1) + "\n")
            print(f"{name} on {data}: mAP {result['mAP']:.2f}, CF1 {result['CF1']:.2f}, OF1 {result['OF1']:.2f}")
    write_card(bundled, model.config, yaml.safe_load((run / "recipe.yaml").read_text()))


def write_card(bundled: Path, config: ModelConfig, recipe: dict[str, Any]) -> None:
    recipe["data"] |= {"source": "MS-COCO and PASCAL VOC 2007", "train": "train+val"}
    files = ("bundled-coco.json", "bundled-voc.json")
    measured = [json.loads((RESULTS / file).read_text()) for file in files]
    evaluations = [in_evaluation(result, config, file) for result, file in zip(measured, files, strict=True)]
    card = model_card(config, name=NAME, license="apache-2.0", training=recipe, measured=evaluations)
    # It is no hub id: commands without a model mean this one.
    usage = card.index("## Usage")
    card = card[:usage] + card[usage:].replace(f'"{NAME}"', "").replace(f" {NAME}", "")
    card = replaced(
        card,
        "the weights are safetensors, the rest is JSON.",
        f"the network is ONNX with 16-bit weights; `{PYTORCH}/` has what it was made from.",
    )
    wrong = weaknesses(measured[0], config.preprocessing.size)
    card = replaced(card, "## Training\n", f"## Where it is wrong most\n{wrong}\n\n## Training\n")
    (bundled / "README.md").write_text(card)


def weaknesses(result: dict[str, Any], size: int) -> str:
    """The labels with the lowest AP, and what is behind it."""
    worst = sorted(result["per_label"], key=lambda row: row["AP"])[:12]
    rows = [
        f"| {row['label']} | {row['AP']:.1f} | {row['precision'] or 0:.0f} | {row['recall']:.0f} | {row['positives']} |"
        for row in worst
    ]
    table = "\n".join(["| label | AP | precision | recall | test photos |", "|---|---:|---:|---:|---:|", *rows])
    return f"""The twelve labels with the lowest AP on COCO's test photos:

{table}

- Small things on a table or in a hand are missed most: it sees {size} pixels a side.
- It learned 60 of the labels from COCO photos alone, squashed to squares of 256 pixels; the others also from VOC's.
- What is not among the 80 labels has no name here.
- It has seen nothing but photos: it takes the moon for a sports ball."""


def replaced(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


if __name__ == "__main__":
    main()
