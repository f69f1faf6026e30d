"""What each paper recipe costs, as the line of its header: `python -m benchmarks.recipe_costs [--write] [RECIPE ...]`.

`--write` puts the lines into the files. The numbers are counted (`labelwise train --dry-run`), with the images and
labels of the dataset in the recipe's name.
"""

from __future__ import annotations

import sys
from pathlib import Path

import labelwise as lw
from labelwise.training.estimate import GIB, Estimate

DATASETS = {  # training images, labels
    "coco": (82_081, 80),
    "voc": (5_011, 20),
    "open-images": (9_011_219, 9_600),
    "nus-wide": (161_789, 925),
    "imagenet": (1_281_167, 1_000),
}
GPU, GPUS = "v100", 4  # HSQ's appendix A.3; ML-Decoder does not state its own
RECIPES = Path(__file__).parents[1] / "recipes"


def paper_recipes() -> list[Path]:
    return sorted(
        path for paper in ("asl", "graphs", "hsq", "ml-decoder", "query2label") for path in (RECIPES / paper).iterdir()
    )


def costs(recipe: Path) -> Estimate:
    images, labels = next(size for name, size in DATASETS.items() if recipe.name.startswith(name))
    return lw.estimate(recipe=recipe, images=images, labels=labels, gpu=GPU, gpus=GPUS)


def cost_line(cost: Estimate) -> str:
    assert cost.gpu is not None
    assert cost.hours is not None
    hours = f"{cost.hours:.0f}" if cost.hours >= 10 else f"{cost.hours:.1f}"
    return (
        f"# Cost       {cost.total_memory / GIB:.1f} GiB on each of {cost.processes} GPUs, "
        f"{cost.flops:.2e} FLOPs an epoch, about {hours} hours on {cost.processes} "
        f"{cost.gpu.name} (labelwise train --dry-run)"
    )


def main() -> None:
    words = sys.argv[1:]
    paths = [Path(word) for word in words if word != "--write"]
    for path in paths or paper_recipes():
        line = cost_line(costs(path))
        print(f"{path.parent.name}/{path.name}", line, sep="\n", flush=True)
        if "--write" in words:
            head, _, rest = path.read_text("utf-8").partition("description:")
            kept = [given for given in head.splitlines() if not given.startswith("# Cost")]
            path.write_text("\n".join([*kept, line, f"description:{rest}"]), "utf-8")


if __name__ == "__main__":
    main()
