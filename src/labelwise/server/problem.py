"""A request that cannot be answered as it was meant."""

from __future__ import annotations

import json
from collections.abc import Mapping


class Problem(Exception):  # noqa: N818  (most of them are no errors of ours)
    """An HTTP status and one sentence that names the fix."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})

    def closing(self) -> Problem:
        """The same, and the connection ends with it: what is still on its way is not read."""
        return Problem(self.status, self.message, {**self.headers, "Connection": "close"})


def error_body(message: str) -> bytes:
    """
    >>> error_body("no such model")
    b'{"error": "no such model"}'
    """
    return json.dumps({"error": message}, ensure_ascii=False).encode()
