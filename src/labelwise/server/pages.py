"""The files for people: the page, and a description of the API that needs no network (FastAPI's own loads a CDN)."""

from __future__ import annotations

import mimetypes
from pathlib import Path

from fastapi import FastAPI, Response
from starlette.requests import Request

_HERE = Path(__file__).parent
_PAGE = _HERE / "page"
_DOCS = {"/docs": _HERE / "docs.html", "/docs.js": _HERE / "docs.js"}
# Nothing from elsewhere, and nobody puts the page into a frame of theirs.
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def add_pages(app: FastAPI) -> list[str]:
    """Routes for every file of the page, which are read now; gives their paths, which need no key: there is nothing
    secret in them, and a browser has no key before it has a page that asks for it.

    A request is looked up among these, never on the disk: no address leads anywhere else.
    """
    files = {f"/{path.relative_to(_PAGE).as_posix()}": path for path in sorted(_PAGE.rglob("*")) if path.is_file()}
    if "/index.html" in files:
        files["/"] = files["/index.html"]
    files |= _DOCS
    for address, path in files.items():
        _add_file(app, address, path)
    return list(files)


def _add_file(app: FastAPI, address: str, path: Path) -> None:
    content, kind = path.read_bytes(), mimetypes.guess_type(path.name)[0] or "application/octet-stream"

    async def send(_: Request) -> Response:
        return Response(content, headers=_HEADERS, media_type=kind)

    app.add_route(address, send, methods=["GET"], include_in_schema=False)
