"""The HTTP API: its routes, and the form of its errors."""

from __future__ import annotations

from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from labelwise.core.errors import unknown_name
from labelwise.server import schema
from labelwise.server.middleware import AccessMiddleware
from labelwise.server.service import Service, add_pages, json_response
from labelwise.server.uploads import Problem

_IMAGE_PROBLEMS = schema.problems(401, 404, 408, 413, 422, 429, 503)
_PREDICT: dict[str, Any] = {
    "response_model": schema.Predictions,
    "responses": _IMAGE_PROBLEMS,
    "openapi_extra": schema.image_body(several=True),
}
_EXPLAIN: dict[str, Any] = {
    "response_model": schema.Explanation,
    "responses": _IMAGE_PROBLEMS,
    "openapi_extra": schema.image_body(several=False),
}
PredictQuery = Annotated[schema.PredictQuery, Query()]
ExplainQuery = Annotated[schema.ExplainQuery, Query()]


def create_app(
    service: Service,
    *,
    key: str | None,
    hosts: Collection[str] | None,
    full: Callable[[], bool],
    log: Callable[[str], None] | None = None,
) -> ASGIApp:
    app = FastAPI(
        title="labelwise",
        description="Multi-label image classification.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would lead to whatever host the client names
    )
    _add_state_routes(app, service)
    _add_image_routes(app, service)
    _add_problem_handlers(app)
    page_paths = add_pages(app)
    open_paths = {"/health", "/ready", *page_paths}
    return AccessMiddleware(
        app, key=key, open_paths=open_paths, metrics=service.metrics, hosts=hosts, full=full, log=log
    )


def _add_state_routes(app: FastAPI, service: Service) -> None:
    @app.head("/health", include_in_schema=False)  # some load balancers use HEAD
    @app.get("/health", response_model=schema.Status)
    async def health() -> Response:
        """Whether the server is alive."""
        return json_response(b'{"status":"alive"}')

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", response_model=schema.Status, responses=schema.problems(503))
    async def ready() -> Response:
        """Whether the server accepts images now."""
        if service.stopping or not service.pool.ready:
            raise Problem(
                503, "the server is stopping" if service.stopping else "no worker is ready yet; retry in a moment"
            )
        return json_response(b'{"status":"ready"}')

    text: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}

    @app.get("/metrics", response_class=Response, responses={**text, **schema.problems(401)})
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/models", response_model=schema.Models, responses=schema.problems(401))
    async def models() -> dict[str, Any]:
        """The models with their labels, thresholds and abilities."""
        return {"models": service.pool.models}


def _add_image_routes(app: FastAPI, service: Service) -> None:
    @app.post("/predict", **_PREDICT)
    async def predict(request: Request, query: PredictQuery) -> Response:
        """Predict the labels of one image, or of several in a form, with the default model."""
        return await service.predict(request, None, query)

    @app.post("/models/{name}/predict", **_PREDICT)
    async def predict_with(name: str, request: Request, query: PredictQuery) -> Response:
        """Predict the labels of one image, or of several in a form."""
        return await service.predict(request, name, query)

    @app.post("/explain", **_EXPLAIN)
    async def explain(request: Request, query: ExplainQuery) -> Response:
        """Show where the default model looked for each label, and which experts it used."""
        return await service.explain(request, None, query)

    @app.post("/models/{name}/explain", **_EXPLAIN)
    async def explain_with(name: str, request: Request, query: ExplainQuery) -> Response:
        """Show where a model looked for each label, and which experts it used."""
        return await service.explain(request, name, query)


def _add_problem_handlers(app: FastAPI) -> None:
    @app.exception_handler(Problem)
    async def problem(_: Request, error: Problem) -> Response:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "query")
        if first["type"] == "extra_forbidden":
            known = (schema.ExplainQuery if request.url.path.endswith("/explain") else schema.PredictQuery).model_fields
            return Problem(422, str(unknown_name("option", place, known))).response()
        return Problem(422, f"{place}: {first['msg']}").response()

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        what = "there is no such address" if error.status_code == HTTPStatus.NOT_FOUND else str(error.detail)
        return Problem(error.status_code, f"{what}; see /docs", error.headers).response()
