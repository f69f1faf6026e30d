"""Read the images of a request; the limits are checked while the bytes arrive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from labelwise.server.settings import ServeSettings

FIELD = "files"  # the name of the parts that hold images
_OTHER_PARTS = 32  # other fields of a form; a million of them would keep the server busy for a minute


class Upload(NamedTuple):
    name: str | None  # the file name that was sent
    body: bytes


class UploadReader:
    """Reads request bodies and limits how many bytes of them are in memory at once."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._held = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[list[Upload]]:
        """The images of a request; their bytes count until the block ends."""
        limit = self._settings.max_bytes
        chunks: list[bytes] = []
        size = held = 0
        problem: Problem | None = None
        try:
            try:
                async with asyncio.timeout(self._settings.timeout):
                    async for chunk in request.stream():
                        size += len(chunk)
                        problem = problem or self._objection(size, len(chunk))
                        if problem is None:
                            chunks.append(chunk)
                            held += len(chunk)
                            self._held += len(chunk)
                        elif size > 2 * limit:
                            raise problem.closing()
                        # else read and drop the rest: many clients read no response before they have sent everything
            except TimeoutError:
                message = f"the request did not arrive within {self._settings.timeout:g} s; send less at once"
                raise Problem(408, message).closing() from None
            except ClientDisconnect:
                raise Problem(408, "the connection closed before the request was complete; send it again") from None
            if problem is not None:
                raise problem
            content_type = request.headers.get("content-type", "")
            body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            chunks.clear()  # else everything would be in memory twice
            if content_type.lower().startswith("multipart/form-data"):
                yield parse_multipart(content_type, body, self._settings.max_files)
            elif body:
                yield [Upload(None, body)]
            else:
                raise Problem(422, f"the request is empty; send an image as the body, or as form parts named {FIELD!r}")
        finally:
            self._held -= held

    def _objection(self, size: int, more: int) -> Problem | None:
        """What is wrong with a request of `size` bytes so far, `more` of them new."""
        if size > self._settings.max_bytes:
            message = f"the request has more than {self._settings.max_bytes:,} bytes; send smaller or fewer images"
            return Problem(413, message)
        return busy() if self._held + more > self._settings.held_bytes else None


def parse_multipart(content_type: str, body: bytes, max_files: int) -> list[Upload]:
    """The parts named `files` of a form.

    >>> form = b'--x\\r\\nContent-Disposition: form-data; name="files"; filename="a"\\r\\n\\r\\nJPEG\\r\\n--x--\\r\\n'
    >>> parse_multipart("multipart/form-data; boundary=x", form, max_files=8)
    [Upload(name='a', body=b'JPEG')]
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise Problem(422, "the multipart request has no boundary; let your HTTP library set the content type")
    collector = _Collector(max_files)
    try:
        parser = MultipartParser(boundary, collector.callbacks())
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise Problem(422, f"the multipart request is malformed ({' '.join(str(error).split())})") from None
    if not collector.uploads:
        raise Problem(422, f"the request has no images; name the form parts {FIELD!r}")
    return collector.uploads


@dataclass
class _Collector:
    """Collects the pieces that the parser reports."""

    max_files: int
    uploads: list[Upload] = field(default_factory=list)
    _parts: int = 0
    _header: list[bytes] = field(default_factory=lambda: [b"", b""])
    _disposition: bytes = b""
    _pieces: list[bytes] = field(default_factory=list)

    def callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._grow(0, data[start:end]),
            "on_header_value": lambda data, start, end: self._grow(1, data[start:end]),
            "on_header_end": self._end_header,
            "on_part_data": lambda data, start, end: self._pieces.append(data[start:end]),
            "on_part_end": self._end,
        }

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > self.max_files + _OTHER_PARTS:
            raise Problem(413, f"the form has more than {self.max_files + _OTHER_PARTS} parts; send fewer")
        self._disposition, self._pieces = b"", []

    def _grow(self, part: int, piece: bytes) -> None:
        self._header[part] += piece

    def _end_header(self) -> None:
        name, value = self._header
        if name.lower() == b"content-disposition":
            self._disposition = value
        self._header = [b"", b""]

    def _end(self) -> None:
        _, options = parse_options_header(self._disposition)
        if options.get(b"name") != FIELD.encode():
            return
        if len(self.uploads) == self.max_files:
            raise Problem(413, f"the request has more than {self.max_files} images; send them in several requests")
        file_name = options.get(b"filename")
        name = None if file_name is None else file_name.decode("utf-8", "replace")
        self.uploads.append(Upload(name, b"".join(self._pieces)))


class Problem(Exception):  # noqa: N818  (most are the client's)
    """An HTTP status and one sentence that names the fix."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})

    def closing(self) -> Problem:
        """The same, and the connection is closed: the rest of the request is not read."""
        return Problem(self.status, self.message, {**self.headers, "Connection": "close"})


def busy() -> Problem:
    return Problem(429, "the queue is full; retry in 1 s", {"Retry-After": "1"})


def error_body(message: str) -> bytes:
    """
    >>> error_body("no such model")
    b'{"error": "no such model"}'
    """
    return json.dumps({"error": message}, ensure_ascii=False).encode()
