"""What workers are asked to do in these tests: importable by their processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from dpmerge.errors import InvalidInputError
from dpmerge.evaluation.evaluators import _arrived
from dpmerge.merging import shard_tasks
from dpmerge.merging.shard_tasks import ShardTask, WrittenShard


def square(number: int) -> int:
    return number * number


def process_of(_: int) -> int:
    time.sleep(0.05)
    return os.getpid()


def meets_another(folder: str, number: int) -> int:
    """Wait until another process is here as well."""
    (Path(folder) / str(number)).touch()
    for _ in range(1200):
        if len(list(Path(folder).iterdir())) == 2:
            return os.getpid()
        time.sleep(0.1)
    raise TimeoutError("nobody came")


def sleeps(seconds: float) -> None:
    time.sleep(seconds)


class ArrivesDifferent:
    """An evaluator whose file was edited on the way."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, ("statistics:mean", "what it was before")


def refuses(number: int) -> int:
    raise InvalidInputError("number", number, "another one")


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_first(flag: str, number: int) -> int:
    """The first to see that there is no such file makes it, and is killed."""
    if made(flag):
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def made(flag: str) -> bool:
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def total(tensors: Mapping[str, Any]) -> float:
    return float(np.sum([np.sum(tensor, dtype=np.float64) for tensor in tensors.values()]))


class TotalDyingOnce:
    """An evaluator whose first worker is killed in the middle."""

    def __init__(self, flag: Path) -> None:
        self.flag, self.identity = str(flag), "total"

    def __call__(self, tensors: Mapping[str, Any]) -> float:
        if made(self.flag):
            os.kill(os.getpid(), signal.SIGKILL)
        return float(np.sum([np.sum(tensor, dtype=np.float64) for tensor in tensors.values()]))


def shard_dying_once(flag: str, task: ShardTask) -> WrittenShard:
    """Write a shard; the first worker is killed after half of its bytes."""
    if made(flag):
        whole = shard_tasks.OutputWriter.write

        def write_and_die(writer: Any, content: memoryview, offset: int) -> None:
            whole(writer, content[: len(content) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)

        shard_tasks.OutputWriter.write = write_and_die  # type: ignore[method-assign]
    return shard_tasks.write_shard(task)


def two_threads() -> Executor:
    """What `--executor executors.worker_tasks:two_threads` names."""
    return ThreadPoolExecutor(2)


def nothing() -> None:
    """No executor."""
