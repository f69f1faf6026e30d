"""XMP packets: read the keywords in them, add predicted labels, and take exactly those out again.

A packet is edited as text, so that what other programs wrote stays as it is, byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize
from xml.parsers.expat import ExpatError, ParserCreate
from xml.sax.saxutils import escape, quoteattr

from labelwise.core.errors import LabelwiseError
from labelwise.core.terminal import visible

Keyword = tuple[str, ...]  # below the ones that it belongs to: ("animal", "dog")
Edit = tuple[int, int, bytes]  # what replaces the bytes from here to there

# The lists of keywords, and what separates the levels in them. Lightroom and darktable allow no | in a keyword, and
# darktable writes whole levels into dc:subject, too.
LISTS = {
    "http://purl.org/dc/elements/1.1/ subject": "|",
    "http://ns.adobe.com/lightroom/1.0/ hierarchicalSubject": "|",
    "http://www.digikam.org/ns/1.0/ TagsList": "/",
}
SUBJECT = next(iter(LISTS))
_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_PREDICTIONS = "urn:labelwise:xmp:1.0/ Predictions"
_MAX_BYTES, _MAX_ELEMENTS, _MAX_DEPTH = 16 << 20, 100_000, 64  # Lightroom's masks take some MB

_EMPTY = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="labelwise {version}">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""
_DESCRIPTION = """<rdf:Description rdf:about={about} xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"
    xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:labelwise="urn:labelwise:xmp:1.0/">{subject}
   <labelwise:Predictions>
    <rdf:Seq>{predictions}
    </rdf:Seq>
   </labelwise:Predictions>
  </rdf:Description>"""
_SUBJECT_BAG = """
   <dc:subject>
    <rdf:Bag>{items}
    </rdf:Bag>
   </dc:subject>"""


class XmpError(LabelwiseError):
    """A packet that cannot be read or edited, and why."""


class Predicted(NamedTuple):
    """What labelwise wrote about one label. `added`: it was not among the keywords before."""

    label: str
    score: str
    model: str
    version: str
    date: str
    added: str  # "True" or "False"


@dataclass(slots=True, eq=False)
class Element:
    """An element and where it is: from `start` to `end`, its content from `inner`."""

    tag: str  # "namespace name"
    attributes: dict[str, str]
    start: int
    inner: int = 0
    end: int = 0
    children: list[Element] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces).strip()

    @property
    def items(self) -> list[Element]:
        """The entries of a property that is a list."""
        return [child for child in self.children[0].children if child.tag == f"{_RDF} li"] if self.children else []

    @property
    def values(self) -> list[str]:
        """A list with one entry may also be written as plain text."""
        return [item.text for item in self.items] if self.children else [self.text]

    @property
    def about(self) -> str:
        return self.attributes.get(f"{_RDF} about", "")

    @property
    def properties(self) -> dict[str, str]:
        """The attributes that are values."""
        return {name: value for name, value in self.attributes.items() if name not in ("about", f"{_RDF} about")}

    @property
    def fields(self) -> dict[str, str]:
        """The values of a structure, by their names, in all the ways in which RDF writes one."""
        inside = {_local(child.tag): child.text for child in self.children}
        nested = [child.fields for child in self.children if child.tag == f"{_RDF} Description"]
        here = {_local(name): value for name, value in self.attributes.items()}
        return here | inside | (nested[0] if nested else {})


def _parse(data: bytes) -> Element:
    """The root of a packet. What could make a small file large is refused: no XMP has a DTD, or is that deep."""
    parser = ParserCreate(namespace_separator=" ")
    document = Element("", {}, 0)
    stack, count = [document], 0
    open_tag: tuple[Element, str] | None = None  # its end is where the next thing begins

    def settle(*_: object) -> None:
        nonlocal open_tag
        if open_tag is not None:
            setattr(*open_tag, parser.CurrentByteIndex)
            open_tag = None

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal open_tag, count
        settle()
        count += 1
        if len(stack) > _MAX_DEPTH or count > _MAX_ELEMENTS:
            raise XmpError("it has too many elements")
        element = Element(tag, attributes, parser.CurrentByteIndex)
        stack[-1].children.append(element)
        stack.append(element)
        open_tag = element, "inner"

    def end(tag: str) -> None:
        nonlocal open_tag
        settle()
        open_tag = stack.pop(), "end"

    def characters(text: str) -> None:
        settle()
        stack[-1].pieces.append(text)

    def refuse(*_: object) -> None:
        raise XmpError("it has a DTD, which XMP never has")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.DefaultHandler = characters, settle
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except (ExpatError, UnicodeError, LookupError, ValueError) as error:  # the last three: of its encoding
        raise XmpError(f"it is not XML: {error}") from None
    if open_tag is not None:
        setattr(*open_tag, len(data))
    return document.children[0]


class Packet:
    """The keywords of an XMP packet.

    >>> packet = Packet(tagged(None, {"dog": 0.98}, model="first", version="0.1.0", date="2026-11-18T12:00:00Z"))
    >>> packet.keywords, packet.predicted[0].score
    ([('dog',)], '0.9800')
    """

    def __init__(self, data: bytes) -> None:
        if len(data) > _MAX_BYTES:
            raise XmpError(f"it has more than {_MAX_BYTES >> 20} MB")
        is_utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
        self.data = data if is_utf16 else data.rstrip(b"\0")  # some programs pad it
        self.root = _parse(self.data)
        found = next((element for element in _walk(self.root) if element.tag == f"{_RDF} RDF"), None)
        if found is None:
            raise XmpError("it has no rdf:RDF")
        self.rdf = found

    @classmethod
    def read(cls, file: Path) -> Packet:
        """The packet that is all of a file, a sidecar."""
        with file.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
        try:
            return cls(data)
        except XmpError as error:
            raise XmpError(f"{str(file)!r} is not readable XMP: {error.message}") from None

    @property
    def properties(self) -> Iterator[Element]:
        return (element for description in self.rdf.children for element in description.children)

    @cached_property
    def lists(self) -> dict[str, list[str]]:
        """The keywords as they stand in each list, by the list's name."""
        found: dict[str, list[str]] = {}
        written = [(element.tag, element.values) for element in self.properties]
        written += [(name, [value]) for one in self.rdf.children for name, value in one.properties.items()]
        for tag, values in written:
            if tag in LISTS:
                found.setdefault(tag, []).extend(value for value in values if value)
        return found

    @property
    def keywords(self) -> list[Keyword]:
        found = (split_levels(value, LISTS[tag]) for tag, values in self.lists.items() for value in values)
        return [keyword for keyword in found if keyword]

    @cached_property
    def predicted(self) -> list[Predicted]:
        """What labelwise wrote."""
        lists = [element for element in self.properties if element.tag == _PREDICTIONS]
        structures = [item.fields for element in lists for item in element.items]
        if not lists and self._is_ours:  # as it was before there were records
            structures = [{"Label": name, "Added": "True"} for name in self.lists.get(SUBJECT, [])]
        return [Predicted(*(one.get(name.title(), "") for name in Predicted._fields)) for one in structures]

    @property
    def _is_ours(self) -> bool:
        """Whether labelwise made the packet, and no other program has written it since."""
        return self.root.attributes.get("adobe:ns:meta/ xmptk", "").startswith("labelwise ")

    @property
    def is_left_over(self) -> bool:
        """Whether labelwise made the packet, and nothing is in it."""
        return self._is_ours and not any(one.children or one.properties for one in self.rdf.children)

    def without_predictions(self) -> Packet:
        """The packet without what labelwise wrote."""
        # A list that was empty before stays, and is known by this: predictions in it would give this very packet.
        with suppress(XmpError):
            kept = self._without_ours(keep_lists=True)
            if kept.with_predictions(self.predicted).data == self.data:
                return kept
        return self._without_ours(keep_lists=False)

    def _without_ours(self, keep_lists: bool) -> Packet:
        added = {one.label.strip() for one in self.predicted if one.added == "True"}
        gone: list[Element] = []
        for description in self.rdf.children:
            whole: list[Element] = []
            for element in description.children:
                ours = [item for item in element.items if element.tag in LISTS and item.text in added]
                if element.tag == _PREDICTIONS or (ours and len(ours) == len(element.items) and not keep_lists):
                    whole.append(element)
                else:
                    gone += ours
            is_all = bool(whole) and len(whole) == len(description.children) and not description.properties
            gone += [description] if is_all else whole
        edits = [(len(self.data[: one.start].rstrip()), one.end, b"") for one in gone]
        for parent in (self.rdf, *(inner for element in self.properties for inner in element.children)):
            first = next(iter(parent.children), None)
            if first and first.start == parent.inner and all(child in gone for child in parent.children):
                # Only into what was <rdf:Bag/> labelwise writes without white space, see `_insertion`.
                edits = [edit for edit in edits if not parent.start < edit[0] < parent.end]
                edits.append((parent.inner - 1, parent.end, b"/>"))
        return self._edited(edits)

    def with_predictions(self, predicted: Sequence[Predicted]) -> Packet:
        """The packet with a record of the predictions, and with those that were `added` as keywords."""
        encoding = re.match(rb"(?:\xef\xbb\xbf)?<\?xml[^>]*?encoding\s*=\s*[\"']([^\"']*)", self.data)
        if b"\0" in self.data or (encoding and encoding[1].lower() != b"utf-8"):
            raise XmpError("it is not in UTF-8")
        lists = [element for element in self.properties if element.tag in LISTS]
        if not all(element.children for element in lists) or {element.tag for element in lists} != set(self.lists):
            raise XmpError("its keywords are not a list")
        added = [escape(one.label) for one in predicted if one.added == "True"]
        edits = []
        for element in lists if added else ():
            li = re.sub("[^:]+$", "li", self._name(element.children[0]))
            edits.append(self._insertion(element.children[0], [f"<{li}>{label}</{li}>" for label in added]))
        items = "".join(f"\n     <rdf:li>{label}</rdf:li>" for label in added)
        block = _DESCRIPTION.format(
            about=quoteattr(next((one.about for one in self.rdf.children), "")),
            subject=_SUBJECT_BAG.format(items=items) if added and SUBJECT not in self.lists else "",
            predictions="".join(map(_structure, predicted)),
        )
        return self._edited([*edits, self._insertion(self.rdf, [block])])

    def _name(self, element: Element) -> str:
        """The name of an element as it is written, e.g. `rdf:Bag`."""
        return re.split(rb"[\s/>]", self.data[element.start + 1 : element.inner], maxsplit=1)[0].decode()

    def _insertion(self, parent: Element, entries: Sequence[str]) -> Edit:
        """Entries behind the children of an element, each after as much white space as the last child."""
        gap, at = b"\n  ", parent.inner
        if parent.children:
            before = parent.children[-2].end if len(parent.children) > 1 else parent.inner
            gap, at = self.data[before : parent.children[-1].start], parent.children[-1].end
        texts = [entry.encode() for entry in entries]
        if parent.inner == parent.end:  # <rdf:Bag/>
            return at - 2, at, b">" + b"".join(texts) + f"</{self._name(parent)}>".encode()
        return at, at, b"".join((gap if gap.isspace() else b"") + text for text in texts)

    def _edited(self, edits: Sequence[Edit]) -> Packet:
        data = self.data
        for start, end, new in sorted(edits, reverse=True):
            data = data[:start] + new + data[end:]
        return Packet(data)


def tagged(data: bytes | None, labels: Mapping[str, float], *, model: str, version: str, date: str) -> bytes:
    """A packet with labels as keywords, and with a record of what predicted them.

    Labels that are among its keywords stay as they are. The others are added to `dc:subject`, and to the lists that
    digiKam, Lightroom and darktable read instead of it, where there are any. What labelwise wrote before is replaced;
    if it wrote the same, nothing changes, so that a keyword that somebody removed since does not come back.

    Args:
        data: The packet. None: a new one.
        labels: Names and scores, best first.
        model: What predicted them.
        version: The version of labelwise.
        date: In ISO 8601.
    """
    packet = Packet(_EMPTY.format(version=version).encode() if data is None else data)
    scores = {visible(label).strip(): f"{score:.4f}" for label, score in labels.items()}
    about = (visible(model), version)
    if [one[:4] for one in packet.predicted] == [(label, score, *about) for label, score in scores.items()]:
        return packet.data
    packet = packet.without_predictions()
    known = {level for keyword in packet.keywords for level in keyword}
    predicted = [
        Predicted(label, score, *about, date, str(normalize("NFC", label) not in known))
        for label, score in scores.items()
    ]
    return (packet.with_predictions(predicted) if predicted else packet).data


def sidecars_of(image: str | Path) -> list[Path]:
    """The sidecars of an image that are there: `a.xmp`, as Lightroom calls it, and `a.jpg.xmp`, as darktable does."""
    path = Path(image)
    names = [name + suffix for name in (path.stem, path.name) for suffix in (".xmp", ".XMP")]
    return [file for file in (path.with_name(name) for name in names) if file.is_file()]


def split_levels(text: str, separator: str) -> Keyword:
    """
    >>> split_levels("Places| Berlin", "|")
    ('Places', 'Berlin')
    """
    return tuple(level.strip() for level in normalize("NFC", text).split(separator) if level.strip())


def _structure(one: Predicted) -> str:
    fields = "".join(
        f"\n      <labelwise:{name.title()}>{escape(value)}</labelwise:{name.title()}>"
        for name, value in one._asdict().items()
    )
    return f'\n     <rdf:li rdf:parseType="Resource">{fields}\n     </rdf:li>'


def _walk(element: Element) -> Iterator[Element]:
    yield element
    for child in element.children:
        yield from _walk(child)


def _local(tag: str) -> str:
    return tag.rpartition(" ")[2]
