"""The server's process: `python -m soak.object_store_server PORT FOLDER`. Requests are noted in FOLDER."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple


class Gate:
    """Between the world and the server: counts what is answered, and breaks what it is told to."""

    def __init__(self, inner: Callable[..., Iterable[bytes]], folder: Path) -> None:
        self._inner, self._folder = inner, folder

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = str(environ["REQUEST_METHOD"]), str(environ.get("PATH_INFO", ""))
        if path.startswith("/moto-api"):
            return self._inner(environ, start)
        if (status := self._broken(method, path)) is not None:
            self._note(method, path, 0)
            start(f"{status} Broken", [("Content-Type", "application/xml"), ("Content-Length", "0")])
            return [b""]
        answer = b"".join(self._inner(environ, start))
        self._note(method, path, len(answer))
        return [answer]

    def _broken(self, method: str, path: str) -> int | None:
        file = self._folder / "fail"
        if not file.exists():
            return None
        wanted = json.loads(file.read_text())
        if wanted.get("method") not in (None, method) or not re.search(str(wanted.get("part", "")), path):
            return None
        if wanted["skip"] > 0:
            file.write_text(json.dumps({**wanted, "skip": wanted["skip"] - 1}))
            return None
        return int(wanted["status"])

    def _note(self, method: str, path: str, sent: int) -> None:
        is_object = path.strip("/").count("/") >= 1
        with (self._folder / "requests").open("a") as log:
            log.write(json.dumps({"method": method, "path": path, "sent": sent, "object": is_object}) + "\n")


if __name__ == "__main__":
    run_simple(
        "127.0.0.1",
        int(sys.argv[1]),
        Gate(DomainDispatcherApplication(create_backend_app), Path(sys.argv[2])),  # type: ignore[no-untyped-call]
        threaded=True,
    )
