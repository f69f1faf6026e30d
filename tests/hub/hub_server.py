"""A model hub on loopback: the few addresses of the real one's HTTP API that an upload and a download need."""

from __future__ import annotations

import base64
import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self
from urllib.parse import unquote, urlparse

TOKEN = "hf_only_for_this_test"


class Hub:
    """`repositories` holds what was committed: {"owner/name": {path: content}}."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.messages: list[str] = []
        self.requests: list[str] = []

    def __enter__(self) -> Self:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self, b"")

            do_HEAD = do_GET  # noqa: N815

            def do_POST(self) -> None:
                hub.answer(self, self.body())

            def body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = []
                while size := int(self.rfile.readline(), 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        path = unquote(urlparse(request.path).path)
        self.requests.append(f"{request.command} {path}")
        if request.command == "POST" and request.headers.get("Authorization") != f"Bearer {TOKEN}":
            _send(request, 401, {"error": "Invalid username or password."})
        elif path == "/api/repos/create":
            self._create(request, json.loads(body))
        elif path == "/api/validate-yaml":
            _send(request, 200, {"errors": [], "warnings": []})
        elif path.startswith("/api/models/"):
            owner, name, *rest = path.removeprefix("/api/models/").split("/")
            self._api(request, f"{owner}/{name}", rest, body)
        elif path.count("/") > 4 and path.split("/")[3] == "resolve":
            _, owner, name, _, _, *file = path.split("/")
            self._file(request, f"{owner}/{name}", "/".join(file))
        else:
            _send(request, 404, {"error": f"nothing at {path}"})

    def _create(self, request: BaseHTTPRequestHandler, wanted: dict[str, Any]) -> None:
        name = f"{wanted.get('organization') or 'ann'}/{wanted['name']}"
        self.repositories.setdefault(name, {})
        self.private.setdefault(name, wanted.get("visibility") == "private")
        _send(request, 200, {"url": f"{self.address}/{name}", "id": name, "name": name})

    def _api(self, request: BaseHTTPRequestHandler, name: str, rest: list[str], body: bytes) -> None:
        files = self.repositories.get(name)
        if files is None:
            _send(request, 404, {"error": "Repository not found"}, **{"X-Error-Code": "RepoNotFound"})
        elif rest[:1] == ["preupload"]:
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": path, "uploadMode": "regular", "shouldIgnore": False, "oid": None} for path in paths]
            _send(request, 200, {"files": modes})
        elif rest[:1] == ["commit"]:
            for entry in map(json.loads, body.splitlines()):
                if entry["key"] == "header":
                    self.messages.append(entry["value"]["summary"])
                elif entry["key"] == "file":
                    files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            commit = _commit(files)
            url = f"{self.address}/{name}/commit/{commit}"
            _send(request, 200, {"success": True, "commitOid": commit, "commitUrl": url})
        elif rest[:1] == ["tree"]:
            entries = [{"type": "file", "path": p, "size": len(data), "oid": _oid(data)} for p, data in files.items()]
            _send(request, 200, entries)
        else:
            siblings = [{"rfilename": path, "size": len(data), "blobId": _oid(data)} for path, data in files.items()]
            about = {"id": name, "modelId": name, "private": False, "tags": [], "downloads": 0}
            _send(request, 200, {**about, "sha": _commit(files), "siblings": siblings})

    def _file(self, request: BaseHTTPRequestHandler, name: str, path: str) -> None:
        files = self.repositories.get(name, {})
        if path not in files:
            _send(request, 404, {"error": "Entry not found"}, **{"X-Error-Code": "EntryNotFound"})
        else:
            _send(request, 200, files[path], **{"ETag": f'"{_oid(files[path])}"', "X-Repo-Commit": _commit(files)})


def _send(request: BaseHTTPRequestHandler, status: int, content: Any, **headers: str) -> None:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    request.send_response(status)
    request.send_header("Content-Length", str(len(data)))
    request.send_header("Content-Type", "application/octet-stream" if content is data else "application/json")
    for name, value in headers.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(data)


def _oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _commit(files: dict[str, bytes]) -> str:
    return hashlib.sha1("".join(f"{path}{_oid(data)}" for path, data in sorted(files.items())).encode()).hexdigest()
