"""The processes of a run, found by its optimizer: one, several, or several with a shard of the model each."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import torch.distributed as dist

from dpmerge.errors import RecordingError
from dpmerge.training.distributed_models import DISTRIBUTED
from dpmerge.training.process_agreement import SeveralProcesses
from dpmerge.training.processes import Processes
from dpmerge.training.sharded_models import SHARDED
from dpmerge.training.sharded_processes import ShardedProcesses

Options = ParamSpec("Options")


def telling_others(begin: Callable[Options, None]) -> Callable[Options, None]:
    """Around a session's `__init__`: it finds its processes, and what it refuses is told to the others."""

    @wraps(begin)
    def told(*args: Options.args, **options: Options.kwargs) -> None:
        session: Any = args[0]
        session._processes = processes_of(options["optimizer"])
        with session._processes.telling():
            begin(*args, **options)

    return told


def processes_of(optimizer: Any) -> Processes:
    """Those that train with this optimizer."""
    if type(optimizer) not in (*DISTRIBUTED, *SHARDED):
        return Processes()
    if not dist.is_initialized():
        raise RecordingError(
            f"optimizer: a {type(optimizer).__name__} while torch.distributed has no processes; call "
            "init_process_group() first, and record() before destroy_process_group()"
        )
    return ShardedProcesses() if type(optimizer) in SHARDED else SeveralProcesses()
