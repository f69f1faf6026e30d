"""Forms: what a client may send, and anything else."""

from __future__ import annotations

from contextlib import suppress

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("python_multipart", reason="needs the extra serve")

from labelwise.server.uploads import Problem, Upload, parse_multipart

NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters='"\\'), min_size=1, max_size=20
)


@given(st.lists(st.tuples(NAMES, st.binary(max_size=200)), min_size=1, max_size=5))
def test_a_form_is_read_as_it_was_written(files: list[tuple[str, bytes]]) -> None:
    request = httpx.Request("POST", "http://x", files=[("files", file) for file in files], data={"note": "hello"})
    found = parse_multipart(request.headers["content-type"], request.read(), max_files=5)
    assert found == [Upload(name, body) for name, body in files]


@given(
    st.text(st.characters(codec="latin-1"), max_size=40) | st.just("multipart/form-data; boundary=x"),
    st.binary(max_size=300)
    | st.lists(st.sampled_from([b"--x", b"\r\n", b"--", b":", b'; name="files"', b"a"])).map(b"".join),
)
def test_anything_else_is_a_problem(content_type: str, body: bytes) -> None:
    with suppress(Problem):  # anything else that is raised fails the test
        assert parse_multipart(content_type, body, max_files=5)
