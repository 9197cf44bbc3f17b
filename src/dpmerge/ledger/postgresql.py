"""A ledger's connection to PostgreSQL: no wait without an end, and some patience while the server restarts.

Guarantees: a server that does not answer is an error within about thirty seconds, also where it is frozen and its
operating system still holds the connection. A connection that cannot be made because the server is starting or
stopping is tried again for a while; one that is refused for any other reason is not.
What the address says of connect_timeout and options goes before what is set here.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event
from sqlalchemy.exc import DBAPIError

CONNECT_TIMEOUT = 8
"""Seconds for one attempt to connect."""
ANSWER_TIMEOUT = 25
"""Seconds for one statement, by the server's clock; a little more by ours, which goes on where the server's stands."""
RESTART_PATIENCE = 20.0
"""Seconds for a server that is starting or stopping."""
_MARGIN = 3
_ARMED, SILENT = "dpmerge_armed", "dpmerge_silent"

_RESTARTING = (
    "connection refused", "starting up", "shutting down", "not yet accepting", "recovery", "no such file", "timeout",
    "closed the connection", "connection reset", "broken pipe", "terminating connection", "is the server running",
)  # fmt: skip


def engine_of(url: URL) -> Engine:
    """Connections of their own for each transaction, with limits on how long they may take."""
    limits: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT, "options": f"-c statement_timeout={ANSWER_TIMEOUT}s"}
    engine = create_engine(
        url, poolclass=NullPool, connect_args={name: limit for name, limit in limits.items() if name not in url.query}
    )
    event.listen(engine, "before_cursor_execute", lambda connection, *_: _arm(connection))
    event.listen(engine, "after_cursor_execute", lambda connection, *_: _disarm(connection.info))
    event.listen(engine, "commit", _arm)
    event.listen(engine, "rollback", _arm)
    event.listen(engine, "checkin", lambda _, record: _disarm(record.info))
    return engine


def connected(engine: Engine) -> Connection:
    """A connection, once the server takes one."""
    deadline, wait = time.monotonic() + RESTART_PATIENCE, 0.05
    while True:
        try:
            return engine.connect()
        except DBAPIError as error:
            if not is_restarting(error) or time.monotonic() + wait > deadline:
                raise
        time.sleep(wait)
        wait = min(1.0, 2 * wait)


def is_restarting(error: DBAPIError) -> bool:
    """Whether the server may be there again in a moment."""
    said = str(error.orig).lower()
    return error.connection_invalidated or any(each in said for each in _RESTARTING)


def _arm(connection: Connection) -> None:
    """Cut the connection unless it answers: a frozen server keeps no time, and nobody else would."""
    if connection.invalidated:
        return  # nothing is sent any more
    _disarm(connection.info)
    number = connection.connection.dbapi_connection.fileno()  # type: ignore[union-attr]
    timer = threading.Timer(ANSWER_TIMEOUT + _MARGIN, _cut, (number, connection.info))
    timer.daemon = True
    connection.info[_ARMED] = timer
    timer.start()


def _disarm(info: dict[Any, Any]) -> None:
    if (timer := info.pop(_ARMED, None)) is not None:
        timer.cancel()


def _cut(number: int, info: dict[Any, Any]) -> None:
    info[SILENT] = True
    with suppress(OSError), socket.socket(fileno=os.dup(number)) as held:
        held.shutdown(socket.SHUT_RDWR)
