"""Independent calls on an executor: so many at a time, lost ones again, each result handed over as it comes.

Guarantees: what is handed over does not depend on the executor, only when; no more calls wait than keep the workers
busy; a call whose worker died is made again, a call that failed is not. After an interrupt or a failure nothing new
begins, and what is finished is still handed over.
Refuses: calls whose workers die again and again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from dpmerge.errors import WorkersLostError

Key = TypeVar("Key")
Result = TypeVar("Result")

ATTEMPTS = 4
"""How often a call is made whose workers die."""

AHEAD = 2
"""Calls in flight for each worker: one that runs, one that waits for it."""


def workers_of(executor: Executor) -> int:
    """How many calls an executor makes at a time, as far as it says."""
    known = getattr(executor, "workers", None) or getattr(executor, "_max_workers", None)
    return max(1, known if isinstance(known, int) else os.cpu_count() or 1)


def run_tasks(
    executor: Executor,
    function: Callable[..., Result],
    calls: Mapping[Key, tuple[Any, ...]],
    enter: Callable[[Key, Result, bool], object],
    *,
    around: Callable[[Key], AbstractContextManager[object]] = lambda _: nullcontext(),
    named: Callable[[Key], str] = str,
) -> None:
    """Call the function with each tuple of arguments, somewhere, in about their order.

    Args:
        executor: where.
        function: what; for other processes it must be picklable, like the arguments.
        calls: the arguments, by a key.
        enter: called with the key, the result, and whether that is after an interrupt or a failure (say nothing then).
        around: a context in which the result is asked for: what it makes of an error is raised.
        named: what a call is called where its workers are lost.

    Raises:
        WorkersLostError: the workers of a call died `ATTEMPTS` times.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> found = {}
    >>> with ThreadPoolExecutor(2) as threads:
    ...     run_tasks(threads, pow, {"a": (2, 3), "b": (3, 2)}, lambda key, value, _: found.update({key: value}))
    >>> sorted(found.items())
    [('a', 8), ('b', 9)]
    """
    flying: dict[Future[Result], Key] = {}
    waiting = iter(calls.items())
    tried: Counter[Key] = Counter()

    def begin(key: Key) -> None:
        while True:
            tried[key] += 1
            try:
                flying[executor.submit(function, *calls[key])] = key
                return
            except BrokenExecutor as error:
                _require_left(tried[key], named(key), error)

    with _handed_over_at_last(flying, enter):
        while True:
            for key, _ in _some(waiting, AHEAD * workers_of(executor) - len(flying)):
                begin(key)
            if not flying:
                return
            done, _ = wait(flying, return_when=FIRST_COMPLETED)
            for future in [each for each in flying if each in done]:
                key = flying.pop(future)
                if (error := _loss(future)) is not None:
                    tried[key] += getattr(error, "attempts", 1) - 1
                    _require_left(tried[key], named(key), error)
                    begin(key)
                    continue
                with around(key):
                    result = future.result()
                enter(key, result, False)


def results_of(
    executor: Executor, function: Callable[..., Result], calls: Sequence[tuple[Any, ...]], *, named: str
) -> list[Result]:
    """The result of each call, in their order; `named` is what they are called where their workers are lost.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as threads:
    ...     results_of(threads, pow, [(2, 3), (3, 2)], named="powers")
    [8, 9]
    """
    found: dict[int, Result] = {}
    run_tasks(
        executor,
        function,
        dict(enumerate(calls)),
        lambda place, result, _: found.update({place: result}),
        named=lambda place: f"{named} {place + 1} of {len(calls)}",
    )
    return [found[place] for place in range(len(calls))]


@contextmanager
def threads_unless(executor: Executor | None, jobs: int) -> Iterator[Executor]:
    """The executor that was given, or else so many threads for as long as the context is."""
    if executor is not None:
        yield executor
        return
    with ThreadPoolExecutor(jobs, thread_name_prefix="dpmerge") as threads:
        yield threads


def _some(calls: Iterator[tuple[Key, Any]], count: int) -> Iterator[tuple[Key, Any]]:
    for _ in range(count):
        call = next(calls, None)
        if call is None:
            return
        yield call


def _loss(future: Future[Any]) -> BaseException | None:
    """What happened to the worker of a call that is done, if anything did."""
    if future.cancelled():
        return CancelledError()
    error = future.exception()
    return error if isinstance(error, BrokenExecutor) else None


def _require_left(tried: int, name: str, error: BaseException) -> None:
    if tried >= ATTEMPTS:
        raise WorkersLostError(name, tried, f"{type(error).__name__}: {error}") from error


@contextmanager
def _handed_over_at_last(
    flying: Mapping[Future[Result], Key], enter: Callable[[Key, Result, bool], object]
) -> Iterator[None]:
    try:
        yield
    finally:
        for future, key in flying.items():
            if not future.cancel() and future.done() and not future.cancelled() and future.exception() is None:
                enter(key, future.result(), True)
