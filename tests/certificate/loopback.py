"""A web server on the loopback, for documents and for timestamps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Answer:
    """What is sent back: `length` is what the header says, where that is not the truth."""

    content: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None


Pages = dict[str, Answer | Callable[[bytes], Answer]]


@contextmanager
def served(pages: Pages) -> Iterator[str]:
    """The address of a server that has these pages, by path; a function is given what was posted."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0], Answer(status=404))
            size = int(self.headers.get("Content-Length", 0))
            answer = page if isinstance(page, Answer) else page(self.rfile.read(size))
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            length = len(answer.content) if answer.length is None else answer.length
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(answer.content)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A reader that has gone away is what some tests are about."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
