"""`lw.bench`, `lw.complexity` and `lw.estimate`: what a model or a training costs, measured or counted."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from labelwise.api.inputs import model_path, open_model, require
from labelwise.api.prediction import check_paths
from labelwise.api.training import recipe_with
from labelwise.core.errors import LabelwiseError, torch_needed
from labelwise.core.progress import ShowProgress
from labelwise.data.decode import find_images
from labelwise.data.sample import make_sample
from labelwise.heads.registry import preset, with_options
from labelwise.runtime.exported import is_hub_id
from labelwise.runtime.folder import find_folder
from labelwise.training.run import Run, short_names
from labelwise.words.config import USUAL_DIM

if TYPE_CHECKING:
    from labelwise.analysis.speed import Benchmark
    from labelwise.model.complexity import Complexity
    from labelwise.model.model import LabelModel
    from labelwise.training.estimate import Estimate


def bench(
    model: str | Path | Run | LabelModel | None = None,
    *,
    photos: str | Path | None = None,
    images: int = 100,
    batch_size: int = 16,
    seconds: float = 5.0,
    compile: bool = False,
    exported: Sequence[str | Path] = (),
    memory: bool = True,
    progress: ShowProgress = True,
) -> Benchmark:
    """Measure a model on this machine: every engine that is installed, in turns, in one run.

    Args:
        model: A run, a model folder, an exported model, a hub id or a model in memory. Default: the bundled tagger.
        photos: A folder of images for the end-to-end speed, from files to labels. Default: synthetic images.
        images: How many of them, at most; 0 measures the network alone.
        batch_size: Images per batch.
        seconds: How long to measure the network, at least.
        compile: Also measure `torch.compile`, which takes a minute or two to prepare.
        exported: Exported models to measure beside it, e.g. one in INT8.
        memory: Also measure the peak memory, in a new process per engine (Linux only).
        progress: Show a progress bar.

    Example:
        >>> import labelwise as lw
        >>> lw.bench("runs/first", photos="photos/").to_pandas()  # doctest: +SKIP
    """
    require(images=(images, 0), batch_size=(batch_size, 1), seconds=(seconds, 0))
    check_paths([] if photos is None else [photos])
    with torch_needed():
        from labelwise.analysis.speed import measure_speed
        from labelwise.model.model import LabelModel

    folders = [Path(folder) for folder in exported]
    names = [f"exported: {name}" for name in short_names([str(folder) for folder in folders])]
    with TemporaryDirectory() as temporary:
        if isinstance(model, LabelModel):  # the processes that measure memory load it again
            model.save(Path(temporary) / "model")
            model = Path(temporary) / "model"
        if not images:
            paths: list[str] = []
        elif photos is not None:
            paths = [str(path) for path in find_images(photos)][:images]
        else:
            paths = list(make_sample(Path(temporary) / "images", images=images, size=400, progress=False).images)
        return measure_speed(
            model_path(model),
            paths,
            batch_size=batch_size,
            seconds=seconds,
            compile=compile,
            exported=dict(zip(names, folders, strict=True)),
            memory=memory,
            progress=progress,
        )


def complexity(
    model: str | Path | Run | LabelModel | None = None,
    *,
    head: str = "hsq",
    backbone: str = "resnet50",
    size: int | None = None,
    labels: int = 80,
    **head_options: Any,
) -> Complexity:
    """Count the parameters and multiply-adds of a model for one image, part by part.

    Args:
        model: A run, a model folder, a hub id or a model in memory. Default: a new one of the other arguments.
        head: Name of the head; `labelwise heads` lists them.
        backbone: Name of the timm backbone.
        size: Side of the square input in pixels. Default: the model's own.
        labels: Number of labels.
        **head_options: Options of the head, e.g. `shared_experts=4`. Heads on words: `word_dim`, 300 by default.

    Example:
        >>> import labelwise as lw
        >>> counts = lw.complexity(head="gap", backbone="resnet10t", size=64, labels=5)
        >>> counts.size, counts.parts["classifier"].parameters
        (64, 2565)
    """
    if model is None:
        config = with_options(preset(head), head_options, f"head {head!r}")  # a mistake is told before PyTorch loads
        if config.takes_words:
            head_options = {"word_dim": USUAL_DIM, **head_options}
    with torch_needed():
        from labelwise.model.complexity import measure_complexity
        from labelwise.model.model import create_model

    if model is None:
        network = create_model(backbone, head, labels, weights="none", size=size, **head_options)
    elif head_options:
        raise LabelwiseError(f"{next(iter(head_options))!r} is an option of a new model's head; leave out the model")
    else:
        network = open_model(model)
    return measure_complexity(network, size)


def estimate(
    data: str | Path | None = None,
    *,
    recipe: str | Path | None = None,
    images: int | None = None,
    labels: int | None = None,
    gpu: str | None = None,
    gpus: int | None = None,
    utilisation: float = 0.3,
    **settings: Any,
) -> Estimate:
    """Count what a training will need: memory on each GPU, steps, FLOPs and hours. Nothing is computed or downloaded.

    Args:
        data: Images and labels, as for `lw.train`; only the labels are read.
        recipe: A YAML file with all settings.
        images: Number of training images. Default: the data's.
        labels: Number of labels, if there is no data.
        gpu: The GPU for the hours: t4, v100, a10, a100, l4, l40s, h100, h200, b200, rtx3090 or rtx4090.
        gpus: How many share the batch. Default: as many as torchrun starts, else one.
        utilisation: Share of the GPU's peak that the training reaches.
        **settings: Other settings, as for `lw.train`: `head="hsq"`, `batch_size=32`, `grad_checkpointing=True`.

    Example:
        >>> import labelwise as lw
        >>> cost = lw.estimate(images=82_081, labels=80, backbone="resnet50", size=448, freeze="none", gpu="a100")
        >>> print(f"{cost.total_memory / 2**30:.1f} GiB", cost.fits)
        5.9 GiB True
    """
    for name, number in {"images": images, "labels": labels, "gpus": gpus}.items():
        if number is not None and not (isinstance(number, Integral) and number >= 1):
            raise LabelwiseError(f"{name} is how many there are, a whole number from 1 on, not {number!r}")
    if not (isinstance(utilisation, Real) and 0 < utilisation <= 1):
        raise LabelwiseError(f"utilisation is a share of the peak in (0, 1], not {utilisation!r}")
    wanted = recipe_with(recipe, data, settings)
    start = wanted.model.start
    if start is not None and not is_hub_id(start):  # nothing is downloaded
        find_folder(start)
    with torch_needed():
        from labelwise.training.estimate import estimate as count

    return count(wanted, images=images, labels=labels, gpu=gpu, processes=gpus, utilisation=utilisation)
