"""How many bytes of a merge are done, told to whoever asked, from whichever thread did them.

Guarantees: the callback is called a few times a second at most, and once when all is done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Progressed = Callable[[int, int], object]
"""Called with how many are done, and of how many."""

PATIENCE = 0.1
"""Seconds between two calls."""


class ByteCount:
    """A sum that several threads add to."""

    def __init__(self, callback: Progressed | None, total: int) -> None:
        self._callback, self._total = callback, total
        self._done, self._next = 0, 0.0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            done, now = self._done, time.monotonic()
            if self._callback is None or (now < self._next and done < self._total):
                return
            self._next = now + PATIENCE
        self._callback(done, self._total)
