"""Every limit, its status and its one sentence; afterwards the server works as before."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from serving_kit import RunningServer, running


@pytest.fixture(autouse=True)
def _still_works(tiny_server: RunningServer, photos: list[str]) -> Iterator[None]:
    yield
    answer = tiny_server.client.post("/predict", content=Path(photos[0]).read_bytes())
    assert answer.status_code == 200
    assert tiny_server.metric("labelwise_worker_restarts_total") == 0


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims to be large and has one line of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack("!I", len(data)) + kind + data + struct.pack("!I", zlib.crc32(kind + data))

    size = struct.pack("!IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1 + 3 * min(width, 1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_too_many_bytes_by_what_arrives_not_by_what_is_announced(tiny_server: RunningServer) -> None:
    def endless(count: int) -> Iterator[bytes]:
        for _ in range(count):
            yield bytes(100_000)

    answer = tiny_server.client.post("/predict", content=bytes(1_000_001))
    assert answer.status_code == 413
    assert "1,000,000 bytes" in answer.json()["error"]
    answer = tiny_server.client.post("/predict", content=endless(15))  # chunked: no length is announced
    assert answer.status_code == 413
    assert tiny_server.client.post("/predict", content=bytes(1_000_000)).status_code == 422  # allowed, and no picture


def test_a_body_that_does_not_end_is_cut_off(tiny_server: RunningServer) -> None:
    host, port = tiny_server.address.removeprefix("http://").split(":")

    async def pour() -> tuple[int, bytes]:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        sent = 0
        try:
            for _ in range(1000):
                writer.write(b"10000\r\n" + bytes(65536) + b"\r\n")
                await writer.drain()
                sent += 65536
        except ConnectionError:
            pass
        try:
            return sent, await reader.read(100)
        except ConnectionError:
            return sent, b""
        finally:
            writer.close()

    sent, _ = asyncio.run(asyncio.wait_for(pour(), 30))
    assert sent < 30_000_000  # 64 MB were on offer; beyond twice the limit there are only the buffers of the sockets


@pytest.mark.parametrize(("width", "height"), [(50_000, 50_000), (3001, 3000), (2**31 - 1, 1)])
def test_too_many_pixels_are_refused_by_the_header(tiny_server: RunningServer, width: int, height: int) -> None:
    answer = tiny_server.client.post("/predict", content=png_header(width, height))
    assert answer.status_code == 413
    assert "pixels" in answer.json()["error"]
    answer = tiny_server.client.post("/explain", content=png_header(width, height))
    assert answer.status_code in (413, 422)


def test_a_real_bomb_is_not_inflated(tiny_server: RunningServer) -> None:
    """12,000 x 12,000 pixels in half a megabyte: decoded, these are 430 MB."""
    row = b"\0" + bytes(3 * 12_000)
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(row) for _ in range(12_000)) + packer.flush()
    header = struct.pack("!IIBBBBB", 12_000, 12_000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", data), (b"IEND", b"")]
    bomb = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack("!I", len(body)) + kind + body + struct.pack("!I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    assert len(bomb) < 1_000_000
    (worker,) = tiny_server.workers()
    tiny_server.client.post("/predict", content=bomb)
    before = peak(worker)
    answer = tiny_server.client.post("/predict", content=bomb)
    assert answer.status_code == 413
    assert peak(worker) - before < 50_000_000


def peak(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def test_truncated_files_of_every_length_are_told(tiny_server: RunningServer, photos: list[str]) -> None:
    whole = Path(photos[0]).read_bytes()
    for length in range(0, len(whole) - 2, max(1, len(whole) // 40)):
        answer = tiny_server.client.post("/predict", content=whole[:length])
        assert answer.status_code == 422, length
        assert answer.json()["error"]


def test_too_many_files_in_a_form(tiny_server: RunningServer, photos: list[str]) -> None:
    body = Path(photos[0]).read_bytes()
    assert tiny_server.client.post("/predict", files=[("files", body)] * 8).status_code == 200
    answer = tiny_server.client.post("/predict", files=[("files", body)] * 9)
    assert answer.status_code == 413
    assert "8 images" in answer.json()["error"]
    other = b'--x\r\nContent-Disposition: form-data; name="other"\r\n\r\n\r\n'
    many = other * (900_000 // len(other)) + b"--x--\r\n"
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    assert tiny_server.client.post("/predict", content=many, headers=kind).status_code == 413
    assert tiny_server.client.post("/predict", files=[("files", body)] * 8, data={"album": "x"}).status_code == 200


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("top=0", "greater than or equal to 1"),
        ("top=many", "integer"),
        ("threshold=2", "less than or equal to 1"),
        ("threshold=nan", "threshold"),
        ("treshold=0.5", "did you mean 'threshold'?"),
        ("labels=sea,gull", "fixed"),
        ("all_scores=perhaps", "all_scores"),
    ],
)
def test_options_that_make_no_sense(tiny_server: RunningServer, photos: list[str], query: str, said: str) -> None:
    answer = tiny_server.client.post(f"/predict?{query}", content=Path(photos[0]).read_bytes())
    assert answer.status_code == 422
    assert said in answer.json()["error"]


def test_forms_that_are_none(tiny_server: RunningServer, photos: list[str]) -> None:
    def post(content: bytes, kind: str) -> tuple[int, str]:
        answer = tiny_server.client.post("/predict", content=content, headers={"Content-Type": kind})
        return answer.status_code, answer.json()["error"]

    assert post(b"", "image/jpeg")[0] == 422
    status, said = post(b"--x\r\n", "multipart/form-data")
    assert (status, "boundary" in said) == (422, True)
    assert post(b"nothing of the kind", "multipart/form-data; boundary=x")[0] == 422
    answer = tiny_server.client.post("/predict", files={"photo": Path(photos[0]).read_bytes()})
    assert answer.status_code == 422
    assert "'files'" in answer.json()["error"]


def test_an_exported_model_explains_nothing_and_says_so(tiny_server: RunningServer, photos: list[str]) -> None:
    answer = tiny_server.client.post("/explain", content=Path(photos[0]).read_bytes())
    assert answer.status_code == 422
    assert "exported" in answer.json()["error"]


def test_a_full_queue_and_a_late_answer(tiny: Path, photos: list[str], slow_picture: bytes) -> None:
    quick = Path(photos[0]).read_bytes()
    with running(tiny, "--queue=3", "--max-files=3", "--timeout=20") as server:
        with httpx.Client(base_url=server.address, timeout=60) as client:
            files = [("files", slow_picture)] * 3

            async def many() -> Counter[int]:
                async with httpx.AsyncClient(base_url=server.address, timeout=60) as several:
                    forms = [several.post("/predict", files=files) for _ in range(4)]
                    answers = await asyncio.gather(*forms)
                assert all(answer.headers["retry-after"] == "1" for answer in answers if answer.status_code == 429)
                return Counter(answer.status_code for answer in answers)

            counts = asyncio.run(many())
            assert set(counts) == {200, 429}
            assert client.post("/predict", content=quick).status_code == 200
        assert server.stop() == 0
    with running(tiny, "--timeout=0.02") as server:
        answer = server.client.post("/predict", content=slow_picture)
        assert answer.status_code == 503
        assert "too long" in answer.json()["error"]
        assert server.stop() == 0
