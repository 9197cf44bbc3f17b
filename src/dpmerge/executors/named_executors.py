"""Executors by name, as the command line writes them.

Guarantees: what is opened is an Executor, to be used as a context; whether its workers may be on other machines is
known, or taken for so.
Refuses, in one line: names of nothing, numbers of workers where the name or the cluster says it already.
"""

from __future__ import annotations

import importlib
import os
import sys
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor

from dpmerge.errors import InvalidInputError

ACCEPTED = (
    "threads:N, processes:N, ray, ray://HOST:PORT, dask://HOST:PORT, dask+tls://HOST:PORT, or module:function that "
    "returns an Executor"
)
DASK_PORT = 8786
_OURS = ("threads", "processes")


def open_executor(name: str, *, workers_per_node: int | None = None, gpus: bool = False) -> Executor:
    """The executor of a name; use it as a context, so that it ends.

    Args:
        name: `threads:N`, `processes:N`; `ray`, this machine or what RAY_ADDRESS names; `ray://HOST:PORT`;
            `dask://HOST:PORT`, or `dask+tls://HOST:PORT` with the certificates of Dask's configuration; or
            `module:function`, called without arguments.
        workers_per_node: with Ray: how many calls at a time on each node.
        gpus: with Ray: share out the nodes' GPUs among the calls.

    Returns:
        The executor.

    Raises:
        InvalidInputError: no such executor, a cluster that does not answer.
        MissingExtraError: Ray or Dask is not installed.

    >>> with open_executor("threads:2") as executor:
    ...     list(executor.map(pow, (2, 3), (3, 2)))
    [8, 9]
    """
    kind, colon, rest = name.partition(":")
    if workers_per_node is not None:
        if workers_per_node < 1:
            raise InvalidInputError("workers-per-node", workers_per_node, "an integer ≥ 1")
        if kind != "ray":
            where = "each worker makes one call at a time" if kind.startswith("dask") else "the name says how many"
            problem = f"workers-per-node: of {name} {where}"
            raise InvalidInputError("workers-per-node", workers_per_node, "leave it out", problem=problem)
    if kind in _OURS:
        workers = _number(name, rest)
        if kind == "threads":
            return ThreadPoolExecutor(workers, thread_name_prefix="dpmerge")
        from dpmerge.executors.process_executor import ProcessExecutor

        return ProcessExecutor(workers)
    if name == "ray" or name.startswith("ray://"):
        from dpmerge.executors.ray_executor import RayExecutor

        return RayExecutor(None if name == "ray" else name, workers_per_node=workers_per_node, gpus=gpus)
    if name.startswith(("dask://", "dask+tls://")):
        from dpmerge.executors.dask_executor import DaskExecutor

        return DaskExecutor(_dask_address(name))
    if colon and kind and rest and "/" not in name:
        return _made_by(name, kind, rest)
    raise InvalidInputError("executor", name, ACCEPTED)


def is_remote(executor: Executor) -> bool:
    """Whether work may be done on other machines; of an executor that does not say, nobody knows."""
    said = getattr(executor, "remote", None)
    return said if isinstance(said, bool) else not isinstance(executor, ThreadPoolExecutor | ProcessPoolExecutor)


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:6]) >= 1 and len(text) <= 4):
        raise InvalidInputError("executor", name, "a number of workers from 1 to 9999, as in threads:4")
    return int(text)


def _dask_address(name: str) -> str:
    kind, host = name.split("://", 1)
    if not host or "/" in host:
        raise InvalidInputError("executor", name, "dask://HOST:PORT, or dask+tls://HOST:PORT")
    address = f"{'tls' if kind == 'dask+tls' else 'tcp'}://{host}"
    return address if ":" in host.rsplit("]", 1)[-1] else f"{address}:{DASK_PORT}"


def _made_by(name: str, module: str, function: str) -> Executor:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        made = getattr(importlib.import_module(module), function)()
    except (Exception, SystemExit) as error:
        found = " ".join(f"{name}, which failed ({type(error).__name__}: {error})".split())
        raise InvalidInputError("executor", name, ACCEPTED, found=found) from error
    if not isinstance(made, Executor):
        raise InvalidInputError("executor", name, ACCEPTED, found=f"{name}, which gave a {type(made).__name__}")
    return made
