"""`labelwise explain`: where a model looked in an image, whether that is true, and which experts it relies on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import labelwise as lw
from labelwise.cli.common import (
    AtLeastOne,
    FileName,
    Flag,
    Model,
    OnBadImage,
    Split,
    Workers,
    described_by,
    say,
    split_names,
    takes_table,
)
from labelwise.cli.predict import model_and_rest
from labelwise.core.errors import LabelwiseError
from labelwise.core.files import atomic_write, check_replaceable
from labelwise.runtime.prediction import known_from


@takes_table
@described_by("api.explanation:explain")
def explain(
    model: Model = None,
    image: FileName | None = None,
    /,
    *,
    out: Path | None = None,
    labels: str | None = None,
    top: Annotated[int, AtLeastOne] = 4,
    method: Literal["attention", "grad-cam"] | None = None,
    layer: int | None = None,
    head: int | None = None,
    known: str | None = None,
    known_absent: str | None = None,
    check: Flag = False,
    experts: Flag = False,
    data: FileName | None = None,
    split: Split = None,
    images: int = 200,
    area: float = 0.25,
    on_bad_image: OnBadImage = "error",
    workers: Workers = 0,
    cache: bool = False,
) -> None:
    """Draw an image and, label by label, where the model looked. With --check: test whether the map matters to the
    score. With --experts: which experts of an HSQ head each label relies on.

    Parameters
    ----------
    image
        The image.
    out
        The file to write: .png, .jpg, .pdf or .svg; with --check .json, with --experts also
        .html or .json (and not .jpg).
    labels
        The labels to show, separated by commas. Default: the best ones.
    head
        The attention head to show, counted from 1. Default: the mean of all.
    known
        Labels that are known to be on the image, separated by commas, if the model's head can use them (C-Tran).
    known_absent
        Labels that are known not to be on the image, separated by commas.
    check
        Hide where the model looked in images of --data, and as much elsewhere: which lowers the score more?
    experts
        Write the gates' mean weights over the images of --data: label by expert, load, dead experts, clusters.
    data
        For --check and --experts: a dataset, as for labelwise evaluate.
    images
        For --check: how many images.
    area
        For --check: the share of the image that is hidden.
    cache
        For --experts: keep the backbone's features on disk, and use those that are there.
    """
    model, paths = model_and_rest([argument for argument in (model, image) if argument is not None])
    if len(paths) > 1:
        raise LabelwiseError(f"{paths[0]!r} is an image, not a model; explain one image at a time")
    if len(paths) + check + experts != 1:
        raise LabelwiseError("say what to explain: one image, or --check --data DATA, or --experts --data DATA")
    if paths:
        if out is None:
            raise LabelwiseError("no output file is named", options={"out": "why.png"})
        explanation = lw.explain(
            paths[0],
            model,
            out=out,
            labels=split_names(labels),
            top=top,
            method=method,
            layer=layer,
            attention_head=head,
            known=known_from(split_names(known), split_names(known_absent)),
        )
        say(f"{out}: {', '.join(explanation.maps)}")
        return
    if data is None:
        raise LabelwiseError(f"{'--check' if check else '--experts'} needs images: add --data DATA")
    if check:
        if out is not None and out.suffix.lower() != ".json":
            raise LabelwiseError(f"--check writes JSON; name a .json file, not {str(out)!r}")
        if out is not None:
            check_replaceable(out)
        result = lw.check_explanations(
            data,
            model,
            split=split,
            images=images,
            area=area,
            method=method,
            layer=layer,
            attention_head=head,
            workers=workers,
        )
        if out is not None:
            content = {"model": model, "data": data, "split": split, **result.to_dict()}
            atomic_write(out, json.dumps(content, indent=1) + "\n")
        say(str(result))
        return
    from labelwise.reports.expert_sections import check_file, expert_words, write_experts

    if out is not None:
        check_file(out)
    use = lw.explain_experts(data, model, split=split, on_bad_image=on_bad_image, workers=workers, cache=cache)
    if out is not None:
        write_experts(use, out)
    for sentence in expert_words(use):
        say(sentence)
    if out is not None:
        say(f"written: {out}")
