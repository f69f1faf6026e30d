"""Read the images of a request; the limits are checked while the bytes arrive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import FormParser, parse_options_header
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

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
    uploads: list[Upload] = []
    parts = 0

    def add(field: bytes | None, file_name: bytes | None, content: bytes) -> None:
        nonlocal parts
        parts += 1
        if parts > max_files + _OTHER_PARTS:
            raise Problem(413, f"the form has more than {max_files + _OTHER_PARTS} parts; send fewer")
        if field != FIELD.encode():
            return
        if len(uploads) == max_files:
            raise Problem(413, f"the request has more than {max_files} images; send them in several requests")
        uploads.append(Upload(None if file_name is None else file_name.decode("utf-8", "replace"), content))

    try:
        parser = FormParser(
            "multipart/form-data",
            on_field=lambda field: add(field.field_name, None, field.value or b""),
            on_file=lambda file: add(file.field_name, file.file_name, file.file_object.getvalue()),  # type: ignore[union-attr]
            boundary=boundary,
            config={"MAX_MEMORY_FILE_SIZE": len(body)},  # never on disk
        )
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise Problem(422, f"the multipart request is malformed ({' '.join(str(error).split())})") from None
    if not uploads:
        raise Problem(422, f"the request has no images; name the form parts {FIELD!r}")
    return uploads


class Problem(Exception):  # noqa: N818  (most are the client's)
    """An HTTP status and one sentence that names the fix."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})

    def closing(self) -> Problem:
        """The same, and the connection is closed: the rest of the request is not read."""
        return Problem(self.status, self.message, {**self.headers, "Connection": "close"})

    def response(self) -> Response:
        return Response(error_body(self.message), self.status, self.headers, media_type="application/json")


def busy() -> Problem:
    return Problem(429, "the queue is full; retry in 1 s", {"Retry-After": "1"})


def error_body(message: str) -> bytes:
    """
    >>> error_body("no such model")
    b'{"error": "no such model"}'
    """
    return json.dumps({"error": message}, ensure_ascii=False).encode()
