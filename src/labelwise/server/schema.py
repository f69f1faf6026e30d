"""Requests and responses of the API, for its OpenAPI description. The workers write the responses themselves."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class KnownQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)  # a misspelt option is an error, not ignored

    known: str | None = Field(
        None, description="Labels known to be there, separated by commas, for models that can use them (see /models)."
    )
    known_absent: str | None = Field(None, description="Labels known to be absent, separated by commas.")


class PredictQuery(KnownQuery):
    top: int | None = Field(None, ge=1, description="Return the best labels, this many, whatever their thresholds.")
    threshold: float | None = Field(None, ge=0, le=1, description="One threshold for all labels.")
    labels: str | None = Field(None, description="Other labels, separated by commas, for models with word queries.")
    all_scores: bool = Field(False, description="Also return the scores of all labels.")


class ExplainQuery(KnownQuery):
    labels: str | None = Field(None, description="Labels to return maps for, separated by commas.")


class Error(BaseModel):
    error: str  # one sentence that names the fix


class Model(BaseModel):
    name: str
    default: bool
    fingerprint: str  # of the model's files
    task: Literal["multi-label", "single-label"]
    labels: list[str]
    thresholds: dict[str, float]
    engine: str
    words: bool  # takes other labels
    known: bool  # takes labels that are known
    explain: bool
    attention: bool  # /explain shows attention, else Grad-CAM
    experts: bool
    size: int
    resize: Literal["squash", "crop", "pad"]
    crop_ratio: float


class Models(BaseModel):
    models: list[Model]


class ImagePrediction(BaseModel):
    image: str | None  # the file's name, if it was sent with one
    labels: dict[str, float] | None = None  # best first
    all_scores: dict[str, float] | None = None
    error: str | None = None  # instead of labels, if the image cannot be used


class Predictions(BaseModel):
    model: str
    predictions: list[ImagePrediction]


class Experts(BaseModel):
    names: list[str]
    weights: dict[str, list[float]]


class Explanation(BaseModel):
    model: str
    labels: dict[str, float]
    maps: dict[str, list[list[float]]]
    kind: Literal["attention", "grad-cam"]
    experts: Experts | None


class Status(BaseModel):
    status: str


_MEANINGS = {
    401: "The API key is missing or wrong.",
    404: "No such model.",
    408: "The request took too long to arrive.",
    413: "Too many bytes, pixels or images.",
    422: "The image or an option cannot be used.",
    429: "The queue is full: retry after `Retry-After` seconds.",
    503: "The server is stopping, took too long, or its workers died.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """FastAPI's `responses` for these statuses."""
    return {status: {"model": Error, "description": _MEANINGS[status]} for status in statuses}


def image_body(*, several: bool) -> dict[str, Any]:
    """FastAPI's `openapi_extra` for a request that is an image, or a form with images."""
    binary = {"type": "string", "format": "binary"}
    files = {"type": "array", "items": binary, "minItems": 1} if several else binary
    form = {"type": "object", "properties": {"files": files}, "required": ["files"]}
    content = {"image/*": {"schema": binary}, "application/octet-stream": {"schema": binary}}
    return {"requestBody": {"required": True, "content": {**content, "multipart/form-data": {"schema": form}}}}
