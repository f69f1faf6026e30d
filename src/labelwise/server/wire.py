"""What the front and a worker say to each other, over the worker's standard input and output.

Numbers and JSON, never pickles: a worker decodes what strangers send, and the front need not trust it.
"""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO, NamedTuple

_TO_WORKER = struct.Struct("!QII")  # number of the job, length of its options, length of the picture
_TO_FRONT = struct.Struct("!QHI")  # number of the job (0: an event), HTTP status, length of the text
REPLY_HEAD = _TO_FRONT.size
EVENT = 0


class Job(NamedTuple):
    number: int
    options: dict[str, Any]
    body: bytes


class Reply(NamedTuple):
    """`text` is a piece of the JSON answer if the status is 200, else what is wrong."""

    number: int
    status: int
    text: bytes


def pack_job_head(number: int, options: bytes, body: bytes) -> bytes:
    """All but the picture itself, which is long and need not be copied."""
    return _TO_WORKER.pack(number, len(options), len(body)) + options


def read_job(stream: BinaryIO) -> Job | None:
    """The next job; None when the front has closed the line, or is gone."""
    head = stream.read(_TO_WORKER.size)
    if len(head) < _TO_WORKER.size:
        return None
    number, options, length = _TO_WORKER.unpack(head)
    content = stream.read(options)
    body = stream.read(length)
    return Job(number, json.loads(content), body) if len(body) == length else None


def pack_reply(reply: Reply) -> bytes:
    return _TO_FRONT.pack(reply.number, reply.status, len(reply.text)) + reply.text


def unpack_reply_head(head: bytes) -> tuple[int, int, int]:
    """Number of the job, status, and the length of the text that follows."""
    number, status, length = _TO_FRONT.unpack(head)
    return number, status, length


def event(**content: Any) -> Reply:
    """News that belong to no job."""
    return Reply(EVENT, 200, json.dumps(content).encode())
