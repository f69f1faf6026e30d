"""Clients that want to harm a server: floods, hostile images, foreign pages; others must not notice."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from socket_kit import PHOTO, WHOLE, ask, connect, peak, request

from labelwise.data import jpeg
from labelwise.data.decode import decode_many
from labelwise.data.images import MAX_SIDE, BadImageError, TooManyPixelsError, load_image
from labelwise.data.sample import make_sample
from labelwise.engines.load import load
from labelwise.server.connections import MAX_HEAD_BYTES, MAX_HEADERS, MAX_PIPELINED
from tests.server.serving_kit import RunningServer, hammer, png, running

pytestmark = pytest.mark.attack


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[RunningServer]:
    with running(tiny) as server:
        yield server


# Heads of requests


def test_heads_up_to_the_limits_are_read(server: RunningServer) -> None:
    own = 3  # Host, Connection, Content-Length
    assert ask(server, request(*["A: b"] * (MAX_HEADERS - own), body=PHOTO)).startswith(b"HTTP/1.1 200")
    assert ask(server, request(f"A: {'b' * (MAX_HEAD_BYTES - 200)}", body=PHOTO)).startswith(b"HTTP/1.1 200")
    for headers in (["A: b"] * (MAX_HEADERS - own + 1), [f"A: {'b' * MAX_HEAD_BYTES}"]):
        head, _, body = ask(server, request(*headers)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 431")
        assert b"headers exceed" in body


@pytest.mark.parametrize(
    ("start", "again"),
    [
        (b"GET /health HTTP/1.1\r\n", b"a:\r\n" * 4096),
        (b"GET /health HTTP/1.1\r\na: ", bytes([98]) * 16384),
        (b"GET /", b"a" * 16384),
        (b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n" * 4096),
        (b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a" * 16384),
        (b"\r\n", b"\r\n" * 8192),
    ],
    ids=["lines", "endless line", "address", "trailers", "chunk extension", "line breaks"],
)
def test_a_flood_of_headers_is_cut_off(server: RunningServer, start: bytes, again: bytes) -> None:
    before, sent = peak(server.process.pid), 0
    with connect(server) as connection, suppress(ConnectionError):
        connection.sendall(start)
        while sent < 30_000_000:
            connection.sendall(again)
            sent += len(again)
    assert sent < 10_000_000  # what the buffers of the sockets hold
    assert peak(server.process.pid) - before < 20_000_000
    assert server.client.get("/health").status_code == 200


def test_what_is_malformed_is_told_after_what_is_not(server: RunningServer) -> None:
    head, _, body = ask(server, b"garbage\r\n\r\n").partition(b"\r\n\r\n")
    assert (head.split(b"\r\n")[0], b"malformed" in body) == (b"HTTP/1.1 400 Bad Request", True)
    first = request(body=png(2000, 2000)).replace(b"Connection: close\r\n", b"")
    assert ask(server, first + b"garbage\r\n\r\n").startswith(b"HTTP/1.1 200")


# Images


def progressive(scans: int, side: int = 1000) -> bytes:
    """A JPEG with empty scans at its end, each of which makes the decoder go over the whole image."""
    file = BytesIO()
    Image.effect_noise((side, side), 50).convert("RGB").save(file, "JPEG", progressive=True, quality=10)
    data = file.getvalue()
    last = data.rfind(b"\xff\xda")
    header = data[last : last + 2 + int.from_bytes(data[last + 2 : last + 4])]
    return data[:-2] + header * scans + data[-2:]


def with_segments(*segments: bytes) -> bytes:
    file = BytesIO()
    Image.new("RGB", (64, 48), "red").save(file, "JPEG")
    data = file.getvalue()
    return data[:2] + b"".join(segments) + data[2:]


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack("!HH", marker, len(content) + 2) + content


EXIF = segment(0xFFE1, b"Exif\0\0x")
HOSTILE = {
    "scans": (progressive(30_000, side=200), "scans"),
    "EXIF in tiny segments": (with_segments(EXIF * 200_000), "segments"),
    "comments": (with_segments(segment(0xFFFE, b"") * 500_000), "segments"),
    "hidden segments": (with_segments(*[b"\xff\xf0\xff\xff" + (EXIF * 5957).ljust(65533, b"\0")] * 30), "segments"),
    "padding": (with_segments(b"\xff" * 2_000_000), "bytes between"),
    "comments between scans": (progressive(0)[:-2] + segment(0xFFFE, b"") * 500_000 + b"\xff\xd9", "segments"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_jpegs_that_would_take_minutes_are_refused_by_their_markers(kind: str, server: RunningServer) -> None:
    data, said = HOSTILE[kind]
    start = time.process_time()
    with pytest.raises(BadImageError, match=f"more than .* {said}"):
        load_image(data)
    assert time.process_time() - start < 0.1
    answer = server.client.post("/predict", content=data)
    assert (answer.status_code, said in answer.json()["error"]) == (422, True)


def test_predict_and_jobs_refuse_them_too(tmp_path: Path) -> None:
    (tmp_path / "hostile.jpg").write_bytes(HOSTILE["scans"][0])
    ((_, result),) = decode_many([str(tmp_path / "hostile.jpg")], lambda image: image)
    assert isinstance(result, BadImageError)


def test_unusual_jpegs_still_open() -> None:
    profile = [segment(0xFFE2, b"ICC_PROFILE\0" + bytes([number, 255]) + bytes(60_000)) for number in range(1, 256)]
    film = random.Random(0).randbytes(20_000_000)  # phones append one, where any bytes may look like markers
    assert film.count(b"\xff\xda") > jpeg.MAX_SCANS
    for data in (progressive(50), with_segments(*profile), with_segments() + film, with_segments(b"\xff" * 1000)):
        assert np.asarray(load_image(data)).any()


@pytest.mark.parametrize(("width", "height"), [(1, 40_000_000), (40_000_000, 1), (MAX_SIDE + 1, 2)])
def test_long_strips_are_refused_by_their_header(server: RunningServer, width: int, height: int) -> None:
    """Resizing one takes a line of the input's size for each of its 40 million pixels."""
    header = png(1, 1)
    size = struct.pack("!II", width, height)
    strip = (
        header[:16] + size + header[24:29] + struct.pack("!I", zlib.crc32(b"IHDR" + size + header[24:29])) + header[33:]
    )
    with pytest.raises(TooManyPixelsError, match="65,535"):
        load_image(strip)
    answer = server.client.post("/predict", content=strip)
    assert (answer.status_code, "a side may have" in answer.json()["error"]) == (413, True)


# Plain PPMs are read in Python, slowly.
SLOW = b"P3\n2500 2000\n255\n" + b"1 2 3\n" * (2500 * 2000)


def test_a_decode_without_end_costs_its_worker_and_no_other_image(tiny: Path) -> None:
    """The worker's only thread gets a hostile image, then the others' images arrive."""

    async def scene(server: RunningServer) -> tuple[httpx.Response, list[httpx.Response]]:
        async with httpx.AsyncClient(base_url=server.address, timeout=60) as client:
            hostile = asyncio.create_task(client.post("/predict", content=SLOW))
            await asyncio.sleep(0.5)
            others = await asyncio.gather(*(client.post("/predict", content=PHOTO) for _ in range(20)))
            return await hostile, list(others)

    with running(tiny, "--timeout=10", OMP_NUM_THREADS="1") as server:
        hostile, others = asyncio.run(scene(server))
        assert (hostile.status_code, "2.5 s to decode" in hostile.json()["error"]) == (422, True)
        assert {answer.status_code for answer in others} == {200}
        assert server.stop() == 0
        assert "its worker is replaced" in "".join(server.said)


# Foreign pages


def test_hosts_and_origins_of_other_sites_are_refused(server: RunningServer) -> None:
    port = server.address.rpartition(":")[2]
    own = [f"localhost:{port}", f"127.0.0.1:{port}", "localhost", "LOCALHOST", f"[::1]:{port}", "localhost."]
    for host in own:
        assert server.client.get("/models", headers={"Host": host}).status_code == 200, host
        same = {"Host": host, "Origin": f"http://{host}"}
        assert server.client.post("/predict", content=PHOTO, headers=same).status_code == 200, host
    for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", "evil@localhost", "", "192.0.2.1"):
        answer = server.client.get("/models", headers={"Host": host})
        assert (answer.status_code, "allow_host" in answer.json()["error"]) == (403, True), host
        assert server.client.get("/", headers={"Host": host}).status_code == 403
    for origin in ("http://evil.example", "null", "http://localhost:1", f"http://evil.example:{port}"):
        answer = server.client.post("/predict", content=PHOTO, headers={"Origin": origin})
        assert answer.status_code == 403, origin


def test_further_hosts_can_be_allowed_and_a_key_makes_them_needless(tiny: Path) -> None:
    proxied = {"Host": "Tags.example.org", "Origin": "https://tags.example.org"}
    with running(tiny, "--allow-host=tags.example.org", "--allow-host=b.example") as server:
        assert server.client.post("/predict", content=PHOTO, headers=proxied).status_code == 200
        assert server.client.get("/models", headers={"Host": "b.example"}).status_code == 200
        assert server.client.get("/models", headers={"Origin": "https://tags.example.org"}).status_code == 200
        assert server.client.get("/models", headers={"Host": "c.example"}).status_code == 403
    with running(tiny, LABELWISE_API_KEY="secret") as server:
        known = {"X-API-Key": "secret", **proxied}
        assert server.client.post("/predict", content=PHOTO, headers=known).status_code == 200
        assert server.client.post("/predict", content=PHOTO, headers=proxied).status_code == 401
        assert "location" not in server.client.get("/models/", headers=known).headers


def test_no_redirect_follows_the_senders_host(server: RunningServer) -> None:
    for path in ("/predict/", "/models/", "/docs/"):
        answer = server.client.get(path)
        assert answer.status_code == 404
        assert "location" not in answer.headers


# The model


def test_a_replaced_model_is_not_mixed_with_the_first_one(tiny: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny, tmp_path / "served")
    with running(folder, "--workers=2") as server:
        first = server.client.post("/predict?all_scores=true", content=PHOTO).json()
        config = (folder / "config.json").read_text()
        (folder / "config.json").write_text(config.replace("0.45", "0.01"))  # a threshold
        os.kill(server.workers()[0], signal.SIGKILL)
        wait_until(lambda: "have changed since the server started" in "".join(server.said))
        for _ in range(20):
            assert server.client.post("/predict?all_scores=true", content=PHOTO).json() == first
        assert server.metric("labelwise_workers_ready") == 1
        (folder / "config.json").write_text(config)
        wait_until(lambda: server.metric("labelwise_workers_ready") == 2)
        assert server.client.get("/models").json()["models"][0]["fingerprint"]


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_everything_at_once_costs_others_nothing(tiny: Path, tmp_path: Path) -> None:
    """Twelve clients ask for half a minute; others flood, stall and send hostile images, and workers are killed."""
    photos = list(make_sample(tmp_path, images=12, size=96).images)
    tagger = load(tiny)
    expected = {path: tagger.predict(path)[0].all_scores for path in photos}
    hostile = [data for data, _ in HOSTILE.values()]
    end = time.monotonic() + 30

    def flood(server: RunningServer) -> None:
        """Idle connections, endless heads, unread answers."""
        kinds = (b"", b"GET /", b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 9999, WHOLE * MAX_PIPELINED)
        with ExitStack() as stack:
            while time.monotonic() < end:
                time.sleep(0.01)
                connection = stack.enter_context(connect(server))
                connection.setblocking(False)
                with suppress(OSError):
                    connection.send(random.choice(kinds))

    def send_images(server: RunningServer) -> None:
        while time.monotonic() < end:
            data = SLOW if random.random() < 0.05 else random.choice(hostile)
            status = httpx.post(f"{server.address}/predict", content=data, timeout=60).status_code
            assert status in (422, 429, 503) or (status == 200 and data is SLOW)

    async def kill(server: RunningServer) -> None:
        attacks = [asyncio.to_thread(attack, server) for attack in (flood, flood, send_images, send_images)]
        under_attack = asyncio.gather(*attacks)
        while not under_attack.done():
            await asyncio.sleep(5)
            os.kill(random.choice(server.workers()), signal.SIGKILL)
        await under_attack

    async def scene(server: RunningServer) -> Counter[str]:
        attack = asyncio.create_task(kill(server))
        # A connection that is idle may be closed when there are too many, so each request has its own.
        seen = await hammer(server, photos, expected, until=attack, kept=0)
        await attack
        return seen

    with running(tiny, "--workers=2", "--max-connections=100", "--timeout=20") as server:
        before = peak(server.process.pid)
        seen = asyncio.run(scene(server))
        assert set(seen) == {"right"}
        assert seen["right"] > 100
        assert peak(server.process.pid) - before < 250_000_000  # two large bodies, twice in memory
        assert server.stop() == 0
        assert "Traceback" not in "".join(server.said)
