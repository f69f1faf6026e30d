"""Photographers' keywords as labels: in image files and in sidecars, as Lightroom, digiKam, darktable and Windows write
them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize

from PIL import IptcImagePlugin
from pydantic import Field, field_validator

from labelwise.core.errors import LabelwiseError, counted, one_line, unknown_name
from labelwise.data.decode import images_below
from labelwise.data.images import is_image, missing_decoder, open_image, read_image
from labelwise.data.readers.base import Names, ReaderOptions, register_format
from labelwise.data.readers.finding import sample_of
from labelwise.data.table import VALUES, LabelTable, natural_key
from labelwise.data.xmp import LISTS, SUBJECT, Keyword, Packet, XmpError, sidecars_of, split_levels

SOURCES = ("xmp", "iptc", "windows", "sidecar")
_XP_KEYWORDS = 0x9C9E  # EXIF: what Windows calls tags, in UTF-16, with semicolons between them
_IPTC_KEYWORDS, _IPTC_BYTES = (2, 25), 64  # per keyword; longer ones are cut
_LOOKED_AT = 1000  # photos
_INTERNAL = ("darktable", "_Digikam_Internal_Tags_")  # what programs keep for themselves lies below these


class KeywordsOptions(ReaderOptions):
    """Options of the format `keywords`.

    Args:
        others: In a photo with keywords, the labels that are not among them.
        untagged: Photos without any keyword are left out (drop), or all labels are absent or unknown in them.
        levels: Of a keyword like `animal|dog`, the label is the leaf (dog), the path (animal|dog), or all (two labels).
        min_images: Keywords that fewer photos have are not labels.
        sources: Where keywords are read: xmp, iptc and windows (XPKeywords) in the image file, and sidecar.
        predicted: Keywords that labelwise wrote are not read (drop), or are labels like all others (keep).
        damaged: Metadata that cannot be read are an error, or are left out (skip).
    """

    others: Literal["absent", "unknown"] = "absent"
    untagged: Literal["drop", "absent", "unknown"] = "drop"
    levels: Literal["leaf", "path", "all"] = "leaf"
    min_images: int = Field(default=1, ge=1)
    sources: Names = SOURCES
    predicted: Literal["drop", "keep"] = "drop"
    damaged: Literal["error", "skip"] = "error"

    @field_validator("sources")
    @classmethod
    def _known(cls, sources: tuple[str, ...]) -> tuple[str, ...]:
        for name in sources:
            if name not in SOURCES:
                raise ValueError(unknown_name("source", name, SOURCES).message)
        return sources


def have_keywords(images: Sequence[str]) -> bool:
    """Whether most of some photos have keywords."""
    some = sample_of(images)
    return 2 * sum(bool(keywords_of(image, KeywordsOptions(), [])) for image in some) > len(some)


def _recognise(path: Path) -> bool:
    """Photos with keywords that are not in folders, or in folders that are numbers or dates and no names of labels."""
    if not path.is_dir():
        return False
    entries = list(path.iterdir())
    folders = [entry for entry in entries if entry.is_dir()]
    named = [folder for folder in folders if any(map(str.isalpha, folder.name))]
    if any(is_image(entry.name) for folder in named for entry in folder.iterdir()):
        return False
    # Only then is it worth a walk: a wrong path must not cost one through the whole disk.
    loose = len(named) < len(folders) or any(is_image(entry.name) for entry in entries)
    return loose and have_keywords(list(islice(images_below(path), _LOOKED_AT)))


@register_format(
    "keywords",
    options=KeywordsOptions,
    recognise=_recognise,
    looks_like="photos with keywords in them or in sidecars; in folders with names, only as keywords:photos/",
    priority=-2,  # after tables, before folders of classes
)
def read_keywords(path: Path, options: KeywordsOptions, labels: Sequence[str] | None) -> LabelTable:
    images = list(images_below(path)) if path.is_dir() else [str(path)]
    damaged: list[str] = []
    found = [set(_labels(keywords_of(image, options, damaged), options.levels)) for image in images]
    told = f"{damaged[0]}{f' (and {len(damaged) - 1} more)' if len(damaged) > 1 else ''}" if damaged else ""
    if damaged and options.damaged == "error":
        raise LabelwiseError(f"{told}; repair it, or go on without such keywords: damaged=skip")
    count = Counter(name for names in found for name in names)
    names = sorted((name for name, images in count.items() if images >= options.min_images), key=natural_key)
    if images and not names:
        few = f" that {options.min_images} photos have" if options.min_images > 1 else ""
        raise LabelwiseError(f"none of {counted(len(images), 'photo')} in {str(path)!r} has keywords{few}")
    rows = [
        (image, here.intersection(names), [] if here or options.untagged == options.others else names)
        for image, here in zip(images, found, strict=True)
        if here or options.untagged != "drop"
    ]
    photos, present, rest = zip(*rows, strict=True) if rows else ((), (), ())
    table = LabelTable.from_lists(
        photos,
        present,
        names,
        absent=rest if options.untagged == "absent" else None,
        unknown=rest if options.untagged == "unknown" else None,
        fill=VALUES[options.others],
    )
    notes = [f"{path}: labels are the keywords of {counted(sum(map(bool, found)), 'photo')}"]
    if len(rows) < len(images):
        notes[0] += f"; left out: {counted(len(images) - len(rows), 'photo')} without any (untagged=absent keeps them)"
    if damaged:
        notes.append(f"{told}; its keywords are left out")
    return replace(table, notes=tuple(notes))


def keywords_of(image: str, options: KeywordsOptions, damaged: list[str]) -> set[Keyword]:
    """The keywords of a photo, each once. What cannot be read is added to `damaged`."""
    packets: list[Packet] = []
    flat: list[str] = []
    try:
        xmp, iptc, windows = _embedded(image)
        flat += [*(iptc if "iptc" in options.sources else []), *(windows if "windows" in options.sources else [])]
        if xmp and "xmp" in options.sources:
            packets.append(Packet(xmp))
    except Exception as error:  # as many kinds as there are decoders, see `load_image`
        damaged.append(f"the metadata of {image!r} cannot be read ({one_line(error) or type(error).__name__})")
    for file in sidecars_of(image) if "sidecar" in options.sources else ():
        try:
            packets.append(Packet.read(file))
        except XmpError as error:
            damaged.append(error.message)
    if options.predicted == "drop":
        packets = [packet.without_predictions() for packet in packets]
    lists = [(tag, value) for packet in packets for tag, values in packet.lists.items() for value in values]
    exact = {split_levels(value, LISTS[tag]) for tag, value in lists if tag != SUBJECT or "|" in value}
    flat += [value for tag, value in lists if tag == SUBJECT and "|" not in value]
    return combined(exact, (normalize("NFC", name).strip() for name in flat))


def combined(exact: set[Keyword], flat: Iterable[str]) -> set[Keyword]:
    """Keywords with their levels, and those flat ones that are not the same keywords again.

    Programs write `animal|dog` as `dog`, as `animal` and `dog`, or as `animal/dog` into lists that have no levels, and
    IPTC cuts long ones.

    >>> sorted(combined({("animal", "dog")}, ["dog", "animal", "beach"]))
    [('animal', 'dog'), ('beach',)]
    """
    flat = set(flat) - {""}
    again = {name for keyword in exact for name in (*keyword, "|".join(keyword), "/".join(keyword))}
    whole = flat | again
    for name in flat:
        if len(name.encode("utf-8", "replace")) > _IPTC_BYTES - 4 and any(
            other != name and other.startswith(name) for other in whole
        ):
            again.add(name)
    kept = {keyword for keyword in exact if keyword and not (len(keyword) > 1 and keyword[0] in _INTERNAL)}
    return kept | {(name,) for name in flat - again}


def _labels(keywords: Iterable[Keyword], levels: Literal["leaf", "path", "all"]) -> Iterator[str]:
    for keyword in keywords:
        if levels == "all":
            yield from keyword
        else:
            yield keyword[-1] if levels == "leaf" else "|".join(keyword)


def _embedded(image: str) -> tuple[bytes, list[str], list[str]]:
    """The XMP packet in an image file, and its keywords in IPTC and in EXIF. Pixels are decoded only of PNG."""
    if image.lower().endswith((".heic", ".heif", ".hif")) and (missing := missing_decoder()):
        raise missing
    file = read_image(image)  # a regular file of a sensible size; a pipe would wait for ever
    with open_image(file.data) as opened:
        if opened.format == "PNG":
            opened.load()  # exiftool writes its chunks behind the pixels
        xmp = opened.info.get("xmp", b"")
        iptc = IptcImagePlugin.getiptcinfo(opened) or {}
        windows = opened.getexif().get(_XP_KEYWORDS, b"")
    entries: Any = iptc.get(_IPTC_KEYWORDS, [])
    return (
        xmp.encode() if isinstance(xmp, str) else xmp,
        [_iptc_text(entry) for entry in ([entries] if isinstance(entries, bytes) else entries)],
        bytes(windows).decode("utf-16-le", "replace").split("\0")[0].split(";"),
    )


def _iptc_text(entry: bytes) -> str:
    """UTF-8, which IPTC may have cut inside a character; otherwise what Windows wrote before UTF-8 was common.

    >>> _iptc_text("Köln".encode()), _iptc_text("Köln".encode("cp1252")), _iptc_text(("x" * 63 + "ö").encode()[:64])[-1]
    ('Köln', 'Köln', 'x')
    """
    try:
        return entry.decode()
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            return entry[: error.start].decode()
        return entry.decode("cp1252", "replace")
