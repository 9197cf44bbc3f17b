"""As much of the hub's API as reading a repository needs, on loopback: commits, trees, files by ranges."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


class HubStub:
    """One repository; `commit` adds a commit to its main branch."""

    def __init__(self, repository: str) -> None:
        self.repository, self.address = repository, ""
        self.commits: dict[str, dict[str, bytes]] = {}
        self.main = ""
        self.asked: list[str] = []
        self.sent = 0

    def commit(self, files: dict[str, bytes]) -> str:
        named = repr(sorted((name, hashlib.sha256(content).digest()) for name, content in files.items()))
        self.main = hashlib.sha256(named.encode()).hexdigest()[:40]
        self.commits[self.main] = dict(files)
        return self.main

    def answer(self, path: str) -> tuple[int, object]:
        """What the API says; bytes for a file."""
        start = f"/api/models/{self.repository}"
        if path in (start, f"{start}/revision/main"):
            return 200, {"id": self.repository, "sha": self.main, "siblings": [], "tags": []}
        if (found := re.fullmatch(f"{start}/revision/([0-9a-f]{{40}})", path)) and found[1] in self.commits:
            return 200, {"id": self.repository, "sha": found[1], "siblings": [], "tags": []}
        if found := re.fullmatch(f"{start}/tree/([^/]+)/?(.*)", path):
            return self._tree(found[1], found[2])
        if found := re.fullmatch(f"/{self.repository}/resolve/([^/]+)/(.+)", path):
            files = self.commits.get(self.main if found[1] == "main" else found[1], {})
            return (200, files[found[2]]) if found[2] in files else (404, {"error": "Entry not found"})
        return 404, {"error": "Repository not found"}

    def _tree(self, revision: str, folder: str) -> tuple[int, object]:
        files = self.commits.get(self.main if revision == "main" else revision, {})
        prefix = f"{folder.rstrip('/')}/" if folder else ""
        entries: dict[str, dict[str, object]] = {}
        for name, content in files.items():
            if name.startswith(prefix):
                first, _, rest = name[len(prefix) :].partition("/")
                blob = hashlib.sha256(content).hexdigest()[:40]
                kind = (
                    {"type": "directory", "oid": "0" * 40, "size": 0}
                    if rest
                    else {"type": "file", "oid": blob, "size": len(content)}
                )
                entries[first] = {"path": prefix + first, **kind}
        return (200, list(entries.values())) if entries else (404, {"error": "EntryNotFound"})


@contextmanager
def hub_stub(repository: str, folder: Path) -> Iterator[HubStub]:
    stub = HubStub(repository)
    stub.commit({str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply(body=True)

        def do_HEAD(self) -> None:
            self._reply(body=False)

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            self.rfile.read(length)
            self._send(200, b"[]", {})  # paths-info: there is nothing there

        def _reply(self, *, body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            stub.asked.append(f"{self.command} {path}")
            status, found = stub.answer(path)
            if not isinstance(found, bytes):
                headers = {"X-Error-Code": "EntryNotFound"} if status == 404 else {}
                self._send(status, json.dumps(found).encode(), headers, body=body)
                return
            if wanted := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
                first, last = int(wanted[1]), min(int(wanted[2]), len(found) - 1)
                piece = found[first : last + 1]
                stub.sent += len(piece)
                self._send(206, piece, {"Content-Range": f"bytes {first}-{last}/{len(found)}"}, body=body)
                return
            stub.sent += len(found) if body else 0
            self._send(200, found, {"ETag": '"x"'}, body=body)

        def _send(self, status: int, content: bytes, headers: dict[str, str], *, body: bool = True) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stub.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
