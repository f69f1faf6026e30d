"""Whatever is sent: no 5xx but 503, no crash, and answers that are what the description promises."""

from __future__ import annotations

from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from serving_kit import RunningServer

schemathesis = pytest.importorskip("schemathesis", reason="needs the package schemathesis (pip install '.[dev]')")

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")


def encoded(kind: str) -> bytes | None:
    file = BytesIO()
    picture = Image.effect_noise((40, 30), 60).convert("RGB")
    try:
        picture.save(file, kind)
    except (KeyError, OSError, ValueError):  # this Pillow was built without it
        return None
    return file.getvalue()


PICTURES = [data for kind in FORMATS if (data := encoded(kind)) is not None]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A picture with some bytes changed, some cut out, some put in, or its end missing."""
    data = bytearray(draw(st.sampled_from(PICTURES)))
    for _ in range(draw(st.integers(1, 8))):
        if not data:
            break
        # Mostly in the header, where sizes, lengths and tables are.
        place = draw(st.integers(0, min(len(data) - 1, 200)) | st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["set", "cut", "insert", "end"])):
            case "set":
                data[place] = draw(st.sampled_from([0, 1, 127, 128, 255]) | st.integers(0, 255))
            case "cut":
                del data[place : place + draw(st.integers(1, 16))]
            case "insert":
                data[place:place] = draw(st.binary(min_size=1, max_size=16))
            case "end":
                del data[max(place, 8) :]
    return bytes(data)


def check_mutated(server: RunningServer, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(mutated())
    def ask(data: bytes) -> None:
        answer = server.client.post("/predict", content=data)
        assert answer.status_code in (200, 413, 422), data
        assert ("error" in answer.json()) == (answer.status_code != 200)

    ask()
    assert server.metric("labelwise_worker_restarts_total") == 0


def check_schema(server: RunningServer, examples: int) -> None:
    """Schemathesis on the server's own description; pictures among the bodies, so that some requests succeed."""
    schema = schemathesis.openapi.from_url(f"{server.address}/openapi.json")
    checks = schemathesis.checks.CHECKS.get_by_names(CHECKS)
    seen: Counter[int] = Counter()
    operations = [operation.ok() for operation in schema.get_all_operations()]
    for operation in operations:
        cases = operation.as_strategy()

        @settings(
            max_examples=max(1, examples // len(operations)),
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        @given(case=cases, picture=st.none() | st.sampled_from(PICTURES))
        def ask(case: Any, picture: bytes | None) -> None:
            if picture is not None and case.method == "POST":
                case.media_type, case.body = "application/octet-stream", picture
            answer = case.call()
            seen[answer.status_code] += 1
            case.validate_response(answer, checks=checks)

        ask()
    assert {200, 404, 422} <= set(seen)
    assert sum(seen.values()) >= examples // 2
    assert server.metric("labelwise_worker_restarts_total") == 0


def test_mutated_pictures(tiny_server: RunningServer) -> None:
    check_mutated(tiny_server, 300)


def test_requests_made_from_the_description(tiny_server: RunningServer) -> None:
    check_schema(tiny_server, 240)


@pytest.mark.slow
def test_ten_thousand_requests(tiny_server: RunningServer, photos: list[str]) -> None:
    check_mutated(tiny_server, 6000)
    check_schema(tiny_server, 4000)
    assert tiny_server.client.post("/predict", content=Path(photos[0]).read_bytes()).status_code == 200
