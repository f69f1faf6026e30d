"""Which batch-norm statistics belong to averaged weights? Validation mAP of one training's average with each choice.

    python benchmarks/averaged_norms.py --json docs/results/averaged-norms.json

A ResNet-10-T learns the synthetic sample set from scratch at a constant rate, so that the average lags behind. Then the
averaged weights (EMA) are measured with averaged statistics, with those of the raw weights, and with statistics that
are estimated again on the training images.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.optim.swa_utils import update_bn

from labelwise.data import open_data
from labelwise.data.sample import make_sample
from labelwise.evaluation.evaluate import evaluate
from labelwise.loading.augment import eval_transform
from labelwise.loading.dataset import ImageDataset
from labelwise.training.checkpoint import last_checkpoint, named, read_checkpoint
from labelwise.training.recipe import load_recipe
from labelwise.training.train import train

CASES = ((0.9, False), (0.97, False), (0.97, True))  # decay, warm-up
EPOCHS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        table = make_sample(Path(folder) / "sample", images=arguments.images, size=96)
        rows = [measure(*case, str(table.source), Path(folder)) for case in CASES]
    arguments.json.write_text(json.dumps({"images": arguments.images, "epochs": EPOCHS, "rows": rows}, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


def measure(decay: float, warmup: bool, data: str, folder: Path) -> dict[str, float]:
    changes = {
        "data.source": data,
        "model.backbone": "resnet10t",
        "model.weights": "none",
        "model.size": 96,
        "model.freeze": "none",
        "model.head": "gap",
        "model.options": {},
        "schedule.name": "constant",
        "optimizer.lr": 1e-3,
        "pair_mix": 0.0,
        "epochs": EPOCHS,
        "workers": 0,
        "ema": decay,
        "ema_warmup": warmup,
        "thresholds": "none",
    }
    run = train(load_recipe(None, changes), folder / f"run-{decay}-{warmup}")
    tensors, _ = read_checkpoint(last_checkpoint(run.folder))
    raw, averaged = (named(part, tensors) for part in ("module", "averaged.module"))
    model = run.model()
    table = open_data(data)
    statistics = {name for name, _ in model.named_buffers()}
    images = ImageDataset(table.select("train"), eval_transform(model.config.preprocessing))

    def score(state: dict[str, torch.Tensor], estimate: bool = False) -> float:
        model.load_state_dict({name: state[name] for name in model.state_dict()})
        if estimate:
            update_bn((batch[0] for batch in torch.utils.data.DataLoader(images, batch_size=32)), model)
        found = evaluate(model.eval(), table.select("val"), bootstrap=0, workers=0, progress=False)
        return round(100 * found.scores.mAP, 2)

    return {
        "decay": decay,
        "warmup": warmup,
        "raw weights": score(raw),
        "averaged, averaged statistics": score(averaged),
        "averaged, raw statistics": score({**averaged, **{name: raw[name] for name in statistics}}),
        "averaged, estimated again": score(averaged, estimate=True),
    }


if __name__ == "__main__":
    main()
