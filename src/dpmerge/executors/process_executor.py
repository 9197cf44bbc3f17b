"""Processes on this machine, of which one may die.

Guarantees: after a worker was lost (killed, out of memory) there are new ones for the next call; the calls that were in
flight fail with `BrokenExecutor`, to be made again by who wants them (`run_tasks`). Workers end with this process, even
if it is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from typing import Any

from dpmerge.executors.worker_calls import Home, call


class ProcessExecutor(Executor):
    """So many fresh processes, that share nothing with this one (spawned: threads and locks are not copied).

    Args:
        workers: how many.
    """

    remote = False

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._lock = threading.Lock()
        self._pool = self._made()

    def _made(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.workers, mp_context=context, initializer=_end_with_parent)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        try:
            pickled = pickle.dumps((fn, args, kwargs))
        except Exception as error:  # whatever an object raises that cannot travel
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed
        with self._lock:
            try:
                return self._pool.submit(call, Home.here(), pickled)
            except BrokenExecutor:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = self._made()
                return self._pool.submit(call, Home.here(), pickled)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.shutdown(wait=wait, cancel_futures=cancel_futures)


def _end_with_parent() -> None:
    """In a worker: end when the process that started it does, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker was started by somebody"

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
