"""What it does to a trained model if the batch norms of its backbone's last layers use the statistics of a batch, as in
training, and not those they come with. Nothing is learned here: the same weights are measured twice.

    python benchmarks/batch_statistics.py --data voc:VOCdevkit --run study/voc/tune/hsq_lr-0.0003_pair_mix-0.5_seed-0 \\
        --json docs/results/batch-statistics.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from labelwise.backbones.timm_backbone import put_channels_last
from labelwise.core.progress import track
from labelwise.data.sources import open_data
from labelwise.loading.augment import eval_transform
from labelwise.loading.dataset import ImageDataset, ImageLoader
from labelwise.metrics import mean_average_precision
from labelwise.model.model import LabelModel, load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--split", default="val")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()

    table = open_data(arguments.data).select(arguments.split)
    model = load_model(arguments.run).eval()
    put_channels_last(model.backbone)
    model.backbone.freeze_early()
    late = [module for module in model.backbone.modules() if isinstance(module, _BatchNorm) and learns(module)]
    for norm in late:
        norm.momentum = 0.0  # they are to use a batch's statistics, not to remember them
    loader = ImageLoader(
        ImageDataset(table, eval_transform(model.config.preprocessing)),
        batch_size=arguments.batch,
        shuffle=True,  # so that a batch is as mixed as in training
        generator=torch.Generator().manual_seed(0),
        drop_last=True,
    )
    own: list[Tensor] = []
    of_batch: list[Tensor] = []
    targets: list[Tensor] = []
    for batch in track(loader, "Measuring", unit="runs"):
        own.append(logits(model, batch.images))
        for norm in late:
            norm.train()
        of_batch.append(logits(model, batch.images))
        for norm in late:
            norm.eval()
        targets.append(batch.targets)
    truth = torch.cat(targets)
    result = {
        "run": arguments.run.name,
        "split": arguments.split,
        "images": len(truth),
        "batch": arguments.batch,
        "batch_norms": len(late),
        "mAP_with_their_own_statistics": round(100 * mean_average_precision(torch.cat(own), truth), 2),
        "mAP_with_those_of_the_batch": round(100 * mean_average_precision(torch.cat(of_batch), truth), 2),
    }
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def learns(module: torch.nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


@torch.inference_mode()
def logits(model: LabelModel, images: Tensor) -> Tensor:
    found: Tensor = model(images)
    return found


if __name__ == "__main__":
    main()
