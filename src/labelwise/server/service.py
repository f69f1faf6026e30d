"""From a request to its response: images go to the pool, the workers' JSON is put together. Also the web page."""

from __future__ import annotations

import asyncio
import json
import mimetypes
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.routing import Route

from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.runtime.prediction import check_threshold, known_from
from labelwise.server import schema
from labelwise.server.middleware import Metrics
from labelwise.server.pool import Pool
from labelwise.server.protocol import Reply
from labelwise.server.settings import MOST_MAPS, ServeSettings
from labelwise.server.uploads import Problem, Upload, UploadReader, busy

_HERE = Path(__file__).parent
_PAGE = _HERE / "page"
_DOCS = {"/docs": _HERE / "docs.html", "/docs.js": _HERE / "docs.js"}
# Nothing from other sites, and no other site may frame the page.
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


class Service:
    """What all requests share."""

    def __init__(self, settings: ServeSettings, pool: Pool, metrics: Metrics) -> None:
        self.pool, self.metrics = pool, metrics
        self.stopping = False
        self._settings, self._uploads = settings, UploadReader(settings)

    def model(self, name: str | None) -> dict[str, Any]:
        names = [model["name"] for model in self.pool.models]
        if name is not None and name not in names:
            raise Problem(404, str(unknown_name("model", name, names)))
        return self.pool.models[0 if name is None else names.index(name)]

    async def predict(self, request: Request, name: str | None, query: schema.PredictQuery) -> Response:
        model = self.model(name)
        if query.threshold is not None:
            try:
                check_threshold(query.threshold, model["task"])
            except LabelwiseError as error:
                raise Problem(422, str(error)) from None
        labels = split_labels(query.labels)
        if labels is not None and not model["words"]:
            raise Problem(422, f"the labels of the model {model['name']!r} are fixed; leave out labels (see /models)")
        known = known_labels(model, query)
        options = {"explain": False, "model": model["name"], **query.model_dump(), "labels": labels, "known": known}
        async with self._uploads.read(request) as uploads:
            answers = await self._ask(uploads, options)
            return json_response(joined(model["name"], uploads, answers))

    async def explain(self, request: Request, name: str | None, query: schema.ExplainQuery) -> Response:
        model = self.model(name)
        if not model["explain"]:
            raise Problem(422, f"the model {model['name']!r} was exported without maps: it cannot explain")
        shown = split_labels(query.labels)
        if shown is not None and len(shown) > MOST_MAPS:
            raise Problem(422, f"{len(shown)} labels are too many for one request; ask for up to {MOST_MAPS}")
        # A model with word queries can look for any label.
        new = shown is not None and model["words"] and not set(shown) <= set(model["labels"])
        known = known_labels(model, query)
        labels = shown if new else None
        options = {"explain": True, "model": model["name"], "labels": labels, "maps": shown, "known": known}
        async with self._uploads.read(request) as uploads:
            if len(uploads) > 1:
                raise Problem(422, "only one image can be explained at a time; send one")
            (answer,) = await self._ask(uploads, options)
            if answer.status != HTTPStatus.OK:
                raise Problem(answer.status, answer.text.decode())
            return json_response(answer.text)

    async def _ask(self, uploads: list[Upload], options: dict[str, Any]) -> list[Reply]:
        if self.stopping:
            raise Problem(503, "the server is stopping; retry elsewhere").closing()
        if not self.pool.has_room(len(uploads)):
            raise busy()
        return await asyncio.gather(
            *(self.pool.submit({**options, "image": upload.name}, upload.body) for upload in uploads)
        )


def joined(model: str, uploads: list[Upload], answers: list[Reply]) -> bytes:
    """The response for several images. An image that cannot be used gets an error beside the others' results; if none
    can be used, or the server failed on one, the whole request fails."""
    failed = [answer for answer in answers if answer.status != HTTPStatus.OK]
    worst = max(failed, key=lambda answer: answer.status, default=None)
    if worst is not None and (worst.status == HTTPStatus.SERVICE_UNAVAILABLE or len(failed) == len(answers)):
        raise Problem(worst.status, worst.text.decode())
    pieces = [
        answer.text
        if answer.status == HTTPStatus.OK
        else json.dumps({"image": upload.name, "error": answer.text.decode()}).encode()
        for upload, answer in zip(uploads, answers, strict=True)
    ]
    return b'{"model":"%s","predictions":[%s]}' % (model.encode(), b",".join(pieces))


def known_labels(model: Mapping[str, Any], query: schema.KnownQuery) -> dict[str, bool] | None:
    """The labels that a request knows; the worker compares their names with the model's."""
    try:
        known = known_from(split_labels(query.known, "known"), split_labels(query.known_absent, "known_absent"))
    except LabelwiseError as error:
        raise Problem(422, str(error)) from None
    if known and not model["known"]:
        raise Problem(422, f"the model {model['name']!r} cannot use known labels; leave them out (see /models)")
    return known


def split_labels(text: str | None, option: str = "labels") -> list[str] | None:
    """
    >>> split_labels("sea gull, dog,,dog"), split_labels(None)
    (['sea gull', 'dog'], None)
    """
    if text is None:
        return None
    labels = list(dict.fromkeys(label.strip() for label in text.split(",") if label.strip()))
    if not labels:
        raise Problem(422, f"{option} is empty; write it like dog,cat or leave it out")
    return labels


def json_response(content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(content, status, headers, media_type="application/json")


def add_pages(app: FastAPI) -> list[str]:
    """Add a route for every file of the page; gives their paths.

    These need no API key: they hold no secrets, and a browser has no key before it has the page that asks for one. The
    files are read now, so that no request ever reaches the disk.
    """
    files = {f"/{path.relative_to(_PAGE).as_posix()}": path for path in sorted(_PAGE.rglob("*")) if path.is_file()}
    if "/index.html" in files:
        files["/"] = files["/index.html"]
    files |= _DOCS
    for address, path in files.items():
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        page = Response(path.read_bytes(), headers=_HEADERS, media_type=kind)
        app.router.routes.append(Route(address, page, methods=["GET"], include_in_schema=False))
    return list(files)
