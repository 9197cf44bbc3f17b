"""Dask (extra `dask`): the workers of a scheduler.

Guarantees: an error of a call is raised as it was; a call whose workers died, as often as the scheduler allows, fails
with `LostWorkerError`.
Refuses: schedulers that cannot be reached or have no worker.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import suppress
from typing import Any

from dpmerge.errors import InvalidInputError
from dpmerge.executors.worker_calls import Home, LostWorkerError, call
from dpmerge.extras import needs_extra

with needs_extra("dask", by="the executor dask"):
    import cloudpickle
    from dask import config
    from distributed import Client
    from distributed.scheduler import KilledWorker

PATIENCE = 30
"""Seconds for a scheduler to answer and to have a worker."""


class DaskExecutor(Executor):
    """Calls on a Dask cluster, one at a time in each worker.

    Args:
        address: `HOST:PORT` of the scheduler, or an address as Dask writes it (tcp://…, tls://…).

    Raises:
        InvalidInputError: a scheduler that cannot be reached, or has no worker.
    """

    remote = True

    def __init__(self, address: str) -> None:
        try:
            self._client = Client(address, timeout=PATIENCE, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            accepted = "a Dask scheduler that answers (dask://HOST:PORT)"
            found = " ".join(f"{address} ({error})".split())
            raise InvalidInputError("executor", address, accepted, found=found) from None
        try:
            self._client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError:
            self._client.close()
            accepted = "a Dask scheduler with workers: `dask worker ADDRESS`"
            raise InvalidInputError("executor", address, accepted, found="one without") from None

    @property
    def workers(self) -> int:
        """How many workers there are now."""
        return len(self._client.nthreads())

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        task = self._client.submit(call, Home.here(), cloudpickle.dumps((fn, args, kwargs)), pure=False)
        own: Future[Any] = Future()

        def finished(done: Any) -> None:
            with suppress(InvalidStateError):  # cancelled meanwhile
                if done.status == "finished":
                    own.set_result(done.result())
                else:
                    own.set_exception(_explained(done.exception()) if done.status == "error" else _cancelled())
            done.release()  # or Dask would compute it again, should the worker that keeps it be lost

        own.add_done_callback(lambda future: task.cancel() if future.cancelled() else None)
        task.add_done_callback(finished)
        return own

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        self._client.close()


def _explained(error: BaseException) -> BaseException:
    if not isinstance(error, KilledWorker):
        return error
    failures = int(config.get("distributed.scheduler.allowed-failures", 3)) + 1
    return LostWorkerError(" ".join(str(error).split())[:300], attempts=failures)


def _cancelled() -> BaseException:
    return LostWorkerError("the scheduler lost the call, or was told to")
