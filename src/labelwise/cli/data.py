"""`labelwise data`: look at a dataset, split it, convert it, fetch one, or make the built-in sample set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from labelwise.cli.common import say
from labelwise.core.errors import LabelwiseError
from labelwise.core.files import atomic_write

if TYPE_CHECKING:
    from labelwise.data.inspection import Inspection, Pair

app = App(name="data", help="Look at a dataset, split it, convert it, fetch one, or make the built-in sample set.")

_LABELS_SHOWN = 30
_FEW_SHOWN = 5


@app.command
def inspect(
    data: str,
    *,
    fast: bool = False,
    pairs: int = 10,
    json_file: Annotated[Path | None, Parameter("--json")] = None,
    picture: Path | None = None,
) -> None:
    """Say what is in a dataset and what to fix: counts, labels that come together, duplicates, broken images.

    Parameters
    ----------
    data
        A path (its format is recognised) or format:path, for example photos.csv or coco:/data/coco2017.
    fast
        Do not decode the images; broken ones are then not found.
    pairs
        How many pairs of labels to show.
    json_file
        Also write everything as JSON into this file.
    picture
        Also draw it into this file (.png, .pdf or .svg).
    """
    from labelwise import data as tools
    from labelwise.reports.figures import check_can_draw, save_picture

    if picture:
        check_can_draw(picture)
    for file in filter(None, (json_file, picture)):
        file.parent.mkdir(parents=True, exist_ok=True)
    report = tools.inspect(data, decode=not fast, pairs=pairs, progress=True)
    _show(report)
    if json_file:
        text = json.dumps(report.to_dict(), indent=1, ensure_ascii=False)
        # A name that is not UTF-8 holds surrogates, which JSON writes as \udcXX: just what backslashreplace gives.
        atomic_write(json_file, text.encode("utf-8", "backslashreplace"))
    if picture:
        save_picture(report, picture)


@app.command
def split(
    data: str,
    *,
    out: Path,
    fractions: str = "train=0.8,val=0.1,test=0.1",
    seed: int = 0,
    force: bool = False,
) -> None:
    """Give every image a split so that each label keeps its share in each; copies of a picture stay together.

    Parameters
    ----------
    data
        A path (its format is recognised) or format:path.
    out
        The manifest to write: .csv, .tsv, .jsonl or .parquet.
    fractions
        The splits and their shares, which add up to 1.
    seed
        The same seed gives the same splits.
    force
        Replace the splits that images have already; without it they are kept and only the others are divided.
    """
    from labelwise import data as tools
    from labelwise.data.splitting import parse_fractions, split_notes

    shares = parse_fractions(fractions)
    source = tools.open_data(data)
    if out.resolve() == Path(source.source).resolve():
        raise LabelwiseError(
            f"{out} would be replaced, and with it all columns but image, labels and split; name another"
        )
    table = tools.split(source, shares, seed=seed, force=force, progress=True)
    tools.write_manifest(table, out)
    for note in split_notes(table, shares, out):
        say(f"note: {note}", stderr=True)
    sizes = ", ".join(f"{name} {len(table.rows(name)):,}" for name in table.split_names)
    say(f"{out}: {sizes}")


@app.command
def convert(
    data: str,
    *,
    to: str,
    out: Path,
    columns: bool = False,
    unknown: Literal["error", "absent"] = "error",
) -> None:
    """Write a dataset in another format.

    Parameters
    ----------
    data
        A path (its format is recognised) or format:path.
    to
        csv, tsv, jsonl, parquet, coco, imagefolder or webdataset.
    out
        A new folder.
    columns
        Manifests: one column per label instead of names; keeps labels that no image has.
    unknown
        What becomes of unknown labels in a format that cannot express them.
    """
    from labelwise import data as tools

    table = tools.open_data(data)
    for note in tools.convert(table, to, out, columns=columns, unknown=unknown, progress=True):
        say(f"note: {note}", stderr=True)
    say(f"{out}: {len(table):,} images as {to}")


@app.command
def download(dataset: str, *, out: Path, keep_archives: bool = False) -> None:
    """Fetch a public dataset, check it and unpack it. Interrupted? The same command goes on from there.

    Parameters
    ----------
    dataset
        voc2007 (0.9 GB), coco2014 (20 GB) or coco2017 (20 GB).
    out
        The folder to unpack into.
    keep_archives
        Keep the archives besides what was in them.
    """
    from labelwise import data as tools

    folder = tools.download(dataset, out, keep_archives=keep_archives, progress=True)
    say(f"{folder}: {dataset} is complete")


@app.command
def sample(*, out: Path, images: int = 1000, size: int = 160, seed: int = 0) -> None:
    """Make the built-in sample set: drawn landscapes with 13 labels, in seconds.

    Parameters
    ----------
    out
        The folder to write images/ and labels.csv into.
    images
        How many pictures.
    size
        Their width and height in pixels.
    seed
        The same seed gives the same files.
    """
    from labelwise import data as tools

    table = tools.make_sample(out, images=images, size=size, seed=seed, progress=True)
    say(f"{table.source}: {len(table):,} images, {len(table.labels)} labels")


# ---- the report on the terminal


def _show(report: Inspection) -> None:
    console = Console(highlight=False, soft_wrap=True)
    splits = ", ".join(f"{name or 'no split'} {count:,}" for name, count in report.splits.items())
    console.print(f"{report.source}: {report.images:,} images ({splits}), {len(report.labels):,} labels", markup=False)
    console.print(
        f"Labels per image: mean {report.mean_labels_per_image:.2f}; most frequent label / rarest: "
        f"{report.imbalance:.1f}; unknown: {report.unknown_share:.2%} of all values"
    )
    console.print(_histogram(report))
    console.print(_labels_table(report))
    for title, pairs in (
        ("Labels that come together", report.together),
        ("Labels that avoid each other", report.apart),
    ):
        if pairs:
            console.print(_pairs_table(title, pairs))
    for bad in (report.broken or [])[:_FEW_SHOWN]:
        say(f"broken: {bad.path} ({bad.reason})")
    for group in report.duplicates[:_FEW_SHOWN]:
        names = " = ".join(
            f"{image} ({split or 'no split'})" for image, split in zip(group.images, group.splits, strict=True)
        )
        say(f"same image: {names}{', different labels' if group.conflict else ''}")
    found = report.problems
    console.print("What to fix:" if found else "Nothing to fix was found.")
    for problem in found:
        say(f"  - {problem}")
    if report.broken is None:
        console.print("  - Images were not decoded (--fast).")


def _histogram(report: Inspection) -> Table:
    table = Table("labels in an image", "images", "", box=None)
    most = max(report.images_by_label_count.values())
    for labels, images in report.images_by_label_count.items():
        table.add_row(str(labels), f"{images:,}", "█" * max(1, round(30 * images / most)))
    return table


def _labels_table(report: Inspection) -> Table:
    has_unknown = report.unknown_share > 0
    splits = [name for name in report.splits if name]
    table = Table("label", "images", "share", *splits, *(["unknown"] if has_unknown else []), box=None)
    ordered = sorted(report.labels, key=lambda count: -count.present)
    cut = len(ordered) > _LABELS_SHOWN
    for count in ordered[: _LABELS_SHOWN - 10] + ordered[-10:] if cut else ordered:
        cells = [f"{count.present:,}", f"{count.present / report.images:.1%}"]
        cells += [f"{count.per_split[split]:,}" for split in splits] + ([f"{count.unknown:,}"] if has_unknown else [])
        table.add_row(escape(count.label), *cells)
    if cut:
        table.caption = f"the {_LABELS_SHOWN - 10} most frequent and the 10 rarest of {len(ordered):,}; --json has all"
    return table


def _pairs_table(title: str, pairs: list[Pair]) -> Table:
    table = Table("a", "b", "together", "b if a", "a if b", "x chance", title=title, title_justify="left", box=None)
    for pair in pairs:
        table.add_row(
            *(escape(pair.a), escape(pair.b), f"{pair.together:,}"),
            *(f"{pair.b_given_a:.0%}", f"{pair.a_given_b:.0%}", f"{pair.lift:.2f}"),
        )
    return table
