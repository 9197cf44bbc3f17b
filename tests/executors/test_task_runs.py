"""Calls on an executor: few in flight, lost ones again, and nothing that is done is lost."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from dpmerge.errors import WorkersLostError
from dpmerge.executors.task_runs import AHEAD, ATTEMPTS, results_of, run_tasks, workers_of


class ByHand(Executor):
    """Calls that are made when somebody says so: at the latest when all workers have enough to do."""

    def __init__(self, workers: int, fail: Callable[[int], BaseException | None] = lambda _: None) -> None:
        self.workers, self._fail = workers, fail
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.most, self.submitted = 0, 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.submitted += 1
        number = self.submitted
        error = self._fail(number)
        self.waiting.append((future, lambda: _raise(error) if error is not None else fn(*args, **kwargs)))
        self.most = max(self.most, len(self.waiting))
        if len(self.waiting) == AHEAD * self.workers or number >= 20:
            self.finish()
        return future

    def finish(self) -> None:
        """Do all that waits."""
        for future, made in self.waiting:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(made())
                except BaseException as error:
                    future.set_exception(error)
        self.waiting.clear()


def _raise(error: BaseException) -> None:
    raise error


def test_no_more_calls_are_in_flight_than_keep_the_workers_busy() -> None:
    executor = ByHand(3)
    assert results_of(executor, pow, [(k, 2) for k in range(60)], named="square") == [k * k for k in range(60)]
    assert executor.most == 3 * AHEAD


def test_a_lost_call_is_made_again_and_a_failed_one_is_not() -> None:
    lost = ByHand(1, lambda number: BrokenExecutor("gone") if number in (1, 2, 4) else None)
    assert results_of(lost, pow, [(k, 2) for k in range(20)], named="square") == [k * k for k in range(20)]
    assert lost.submitted == 23
    failed = ByHand(1, lambda number: ValueError("wrong") if number == 2 else None)
    with pytest.raises(ValueError, match="wrong"):
        results_of(failed, pow, [(k, 2) for k in range(20)], named="square")
    assert failed.submitted == 2


def test_a_call_that_is_always_lost_is_given_up_by_its_name() -> None:
    executor = ByHand(1, lambda _: BrokenExecutor("out of memory"))
    with pytest.raises(
        WorkersLostError, match=f"workers died {ATTEMPTS} times with square 1 of 2.*out of memory"
    ) as no:
        results_of(executor, pow, [(1, 2), (2, 2)], named="square")
    assert str(pickle.loads(pickle.dumps(no.value))) == str(no.value)  # noqa: S301


def test_an_executor_that_is_broken_for_good_is_an_error_too() -> None:
    class Broken(Executor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            raise BrokenExecutor("cannot schedule new futures")

    with pytest.raises(WorkersLostError, match="cannot schedule"):
        results_of(Broken(), pow, [(1, 2)], named="square")


def test_what_is_finished_is_handed_over_after_a_failure_and_nothing_begins() -> None:
    executor = ByHand(2, lambda number: ValueError("wrong") if number == 1 else None)
    entered: dict[int, tuple[int, bool]] = {}
    explained: list[int] = []

    @contextmanager
    def around(key: int) -> Any:
        explained.append(key)
        yield

    with pytest.raises(ValueError, match="wrong"):
        run_tasks(
            executor,
            pow,
            {k: (k, 2) for k in range(20)},
            lambda key, result, late: entered.update({key: (result, late)}),
            around=around,
        )
    assert executor.submitted == 4
    assert entered == {1: (1, True), 2: (4, True), 3: (9, True)}
    assert explained == [0]


def test_an_interrupt_keeps_what_is_done() -> None:
    entered: list[int] = []

    def enter(key: int, _: int, late: bool) -> None:
        entered.append(key)
        if not late:
            raise KeyboardInterrupt

    with ThreadPoolExecutor(2) as threads, pytest.raises(KeyboardInterrupt):
        run_tasks(threads, pow, {k: (k, 2) for k in range(1000)}, enter)
    assert 1 <= len(entered) <= 2 * AHEAD
    assert len(set(entered)) == len(entered)


def test_how_many_workers_an_executor_has() -> None:
    with ThreadPoolExecutor(3) as threads:
        assert workers_of(threads) == 3
    assert workers_of(ByHand(7)) == 7
    assert workers_of(Executor()) >= 1
