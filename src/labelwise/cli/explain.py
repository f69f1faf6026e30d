"""`labelwise explain`: where the model looked in a picture, label by label."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from labelwise.errors import LabelwiseError


def explain(model: str, image: Path, /, *, out: Path, labels: str | None = None, top: int = 4) -> None:
    """Draw a picture and, label by label, where the model looked for it.

    Parameters
    ----------
    model
        A run folder, a model folder or a hub id.
    image
        The picture.
    out
        The file to draw into: .png, .pdf or .svg.
    labels
        The labels to show, separated by commas; without it, the best ones.
    top
        How many of the best labels to show.
    """
    if top < 1:
        raise LabelwiseError(f"--top {top}: give 1 or more")
    from labelwise.data.inspect_plot import check_can_draw

    check_can_draw(out)
    if image.is_dir():
        raise LabelwiseError(f"{str(image)!r} is a folder; name one picture")
    from labelwise.report.explanation import save_explanation
    from labelwise.tagger import load

    prediction = load(model).predict(image)[0]
    shown = [name.strip() for name in labels.split(",")] if labels else list(prediction.all_scores)[:top]
    out.parent.mkdir(parents=True, exist_ok=True)
    save_explanation(prediction, shown, out)
    Console().print(f"{out}: {', '.join(shown)}", markup=False, highlight=False, soft_wrap=True)
