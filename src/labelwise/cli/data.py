"""`labelwise data`: inspect, split, convert or download a dataset, hide labels, or create the sample set."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from rich.table import Table

import labelwise as lw
from labelwise.cli.common import Data, JsonFile, described_by, note, say, takes_table
from labelwise.core.errors import LabelwiseError, counted
from labelwise.core.files import atomic_write, check_replaceable
from labelwise.core.tables import TerminalTable
from labelwise.core.terminal import open_console
from labelwise.data.sources import open_images

if TYPE_CHECKING:
    from labelwise.data.inspection import Inspection, Pair

app = App(name="data", help="Inspect, split, convert or download a dataset, hide labels, or create the sample set.")

_LABELS_SHOWN = 30
_FEW_SHOWN = 5


@app.command
@takes_table
@described_by("data.inspection:inspect")
def inspect(
    data: Data,
    *,
    fast: bool = False,
    pairs: int = 10,
    json_file: JsonFile = None,
    plot: Annotated[Path | None, Parameter(("--plot", "--picture"))] = None,
) -> None:
    """Show what is in a dataset and what to fix: counts, labels that occur together, duplicates, broken images.

    Parameters
    ----------
    fast
        Do not decode the images; those that are missing are still counted, broken ones are not found.
    plot
        Also draw it to this file (.png, .pdf or .svg).
    """
    from labelwise.reports.figures import check_can_draw, save_inspection

    if plot:
        check_can_draw(plot)
    if json_file:
        check_replaceable(json_file)
    for file in filter(None, (json_file, plot)):
        file.parent.mkdir(parents=True, exist_ok=True)
    report = lw.data.inspect(data, decode=not fast, pairs=pairs, progress=True)
    _show(report)
    if json_file:
        text = json.dumps(report.to_dict(), indent=1, ensure_ascii=False)
        # A name that is not UTF-8 holds surrogates, which JSON writes as \udcXX: just what backslashreplace gives.
        atomic_write(json_file, text.encode("utf-8", "backslashreplace"))
    if plot:
        save_inspection(report, plot)


@app.command
@takes_table
@described_by("data.splitting:split")
def split(
    data: Data,
    *,
    out: Path,
    fractions: str = "train=0.8,val=0.1,test=0.1",
    seed: int = 0,
    force: bool = False,
    overwrite: bool = False,
) -> None:
    """Split a dataset so that each label keeps its share in every split; copies of an image stay together.

    Parameters
    ----------
    out
        The manifest to write: .csv, .tsv, .jsonl or .parquet.
    fractions
        The splits and their shares, which add up to 1.
    overwrite
        Replace --out if it exists.
    """
    from labelwise.data.splitting import parse_fractions, split_notes

    shares = parse_fractions(fractions)
    source = lw.data.open_data(data)
    _require_new_file(out, source.source, overwrite)
    table = lw.data.split(source, shares, seed=seed, force=force, progress=True)
    lw.data.write_manifest(table, out)
    for text in split_notes(table, shares, out):
        note(f"note: {text}")
    sizes = ", ".join(f"{name} {len(table.rows(name)):,}" for name in table.split_names)
    say(f"{out}: {sizes}")


@app.command
@takes_table
@described_by("data.hiding:hide")
def hide(data: Data, *, keep: str, out: Path, seed: int = 0, split: str | None = None, overwrite: bool = False) -> None:
    """Hide labels of a dataset, to see how a training copes: one positive per image, or a share of all labels, is left.

    Parameters
    ----------
    out
        The manifest to write: .csv, .tsv, .jsonl or .parquet, with one column per label; -1 is unknown.
    overwrite
        Replace --out if it exists.
    """
    table = lw.data.hide(data, keep, seed=seed, split=split)
    _require_new_file(out, table.source, overwrite)
    lw.data.write_manifest(table, out, columns=True)
    parts = {name or "all": table.select(name) for name in table.split_names}
    shares = (f"{name} {part.unknown_per_label().mean() / len(part):.1%}" for name, part in parts.items())
    say(f"{out}: {counted(len(table), 'image')}; unknown labels: {', '.join(shares)}")


@app.command
@takes_table
@described_by("data.conversion:convert")
def convert(
    data: Data,
    *,
    to: str,
    out: Path,
    columns: bool = False,
    unknown: Literal["error", "absent"] = "error",
) -> None:
    """Write a dataset in another format.

    Parameters
    ----------
    columns
        Manifests: one column per label instead of names; keeps labels that no image has.
    """
    table = open_images(data)
    for text in lw.data.convert(table, to, out, columns=columns, unknown=unknown, progress=True):
        note(f"note: {text}")
    say(f"{out}: {counted(len(table), 'image')} as {to}")


@app.command
@described_by("data.downloads:download")
def download(dataset: str, *, out: Path = Path(), keep_archives: bool = False) -> None:
    """Download a public dataset or weights, check and unpack it. The same command resumes an interrupted download.

    Parameters
    ----------
    dataset
        voc2007 (0.9 GB), coco2014 (20 GB), coco2017 (20 GB), or weights, e.g. tresnet-l-open-images.
    """
    folder = lw.data.download(dataset, out, keep_archives=keep_archives, progress=True)
    say(f"{folder}: {dataset} is complete")


@app.command
@described_by("data.sample:make_sample")
def sample(*, out: Path, images: int = 1000, size: int = 160, seed: int = 0) -> None:
    """Create the sample set: synthetic landscapes with 13 labels, in seconds.

    Parameters
    ----------
    out
        The folder to write images/ and labels.csv into.
    """
    table = lw.data.make_sample(out, images=images, size=size, seed=seed, progress=True)
    say(f"{table.source}: {counted(len(table), 'image')}, {counted(len(table.labels), 'label')}")


def _require_new_file(out: Path, source: str, overwrite: bool) -> None:
    if out.resolve() == Path(source).resolve():
        raise LabelwiseError(
            f"{out} would be replaced, and with it all columns but image, labels and split; name another"
        )
    if out.exists() and not overwrite:
        raise LabelwiseError(f"{str(out)!r} exists; name another file, or replace it", options={"overwrite": True})


# ---- The inspection on the terminal


def _show(report: Inspection) -> None:
    console = open_console(highlight=False, soft_wrap=True)
    splits = ", ".join(f"{name or 'no split'} {count:,}" for name, count in report.splits.items())
    images, labels = counted(report.images, "image"), counted(len(report.labels), "label")
    console.print(f"{report.source}: {images} ({splits}), {labels}", markup=False)
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
    _list(f"missing: {bad.path}" if bad.is_missing else f"broken: {bad.path} ({bad.reason})" for bad in report.broken)
    _list(
        "same image: "
        + " = ".join(f"{image} ({split or 'no split'})" for image, split in zip(same.images, same.splits, strict=True))
        + (", different labels" if same.conflict else "")
        for same in report.duplicates
    )
    found = report.problems
    console.print("What to fix:" if found else "Nothing to fix was found.")
    for problem in found:
        say(f"  - {problem}")
    if not report.decoded:
        console.print("  - Images were not decoded (--fast): those that cannot be are not known.")


def _list(lines: Iterable[str]) -> None:
    lines = list(lines)
    for line in lines[:_FEW_SHOWN]:
        say(line)
    if len(lines) > _FEW_SHOWN:
        say(f"and {len(lines) - _FEW_SHOWN:,} more; --json has all")


def _histogram(report: Inspection) -> Table:
    table = Table("labels in an image", "images", "", box=None)
    most = max(report.images_by_label_count.values())
    for labels, images in report.images_by_label_count.items():
        table.add_row(str(labels), f"{images:,}", "█" * max(1, round(30 * images / most)))
    return table


def _labels_table(report: Inspection) -> TerminalTable:
    has_unknown = report.unknown_share > 0
    splits = [name for name in report.splits if name]
    ordered = sorted(report.labels, key=lambda count: -count.present)
    caption = None
    if len(ordered) > _LABELS_SHOWN:
        caption = f"the {_LABELS_SHOWN - 10} most frequent and the 10 rarest of {len(ordered):,}; --json has all"
        ordered = ordered[: _LABELS_SHOWN - 10] + ordered[-10:]
    rows = [
        [
            *(count.label, f"{count.present:,}", f"{count.present / report.images:.1%}"),
            *(f"{count.per_split[split]:,}" for split in splits),
            *([f"{count.unknown:,}"] if has_unknown else []),
        ]
        for count in ordered
    ]
    header = ["label", "images", "share", *splits, *(["unknown"] if has_unknown else [])]
    return TerminalTable(header, rows, caption=caption)


def _pairs_table(title: str, pairs: list[Pair]) -> TerminalTable:
    rows = [
        [
            *(pair.a, pair.b, f"{pair.together:,}"),
            *(f"{pair.b_given_a:.0%}", f"{pair.a_given_b:.0%}", f"{pair.lift:.2f}"),
        ]
        for pair in pairs
    ]
    return TerminalTable(["a", "b", "together", "b if a", "a if b", "x chance"], rows, title, names=2)
