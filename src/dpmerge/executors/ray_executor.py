"""Ray (extra `ray`): the workers of a cluster, or of this machine.

Guarantees: an error of a call is raised as it was, not as Ray's; a call whose worker or node died fails with
`LostWorkerError`, and Ray does not make it again on its own. No usage statistics are sent.
Refuses: clusters that cannot be reached, or have no room for one call.
"""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import Callable
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from dpmerge.errors import InvalidInputError
from dpmerge.executors.worker_calls import Home, LostWorkerError, call
from dpmerge.extras import needs_extra

with needs_extra("ray", by="the executor ray"):
    import ray
    from ray import cloudpickle, exceptions

_LOST = (
    exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
    exceptions.LocalRayletDiedError,
    exceptions.OutOfMemoryError,
    exceptions.ObjectLostError,
    exceptions.TaskCancelledError,
)


PATIENCE = 30
"""Seconds for a cluster to answer."""
CLIENT_PORT = 10001


class RayExecutor(Executor):
    """Calls on a Ray cluster.

    Args:
        address: `ray://HOST:PORT`; None for the cluster that this program is connected to or that RAY_ADDRESS names,
            else one of this machine alone, which ends with the executor.
        workers_per_node: how many calls at a time on each node; by default one for each GPU where there are any and
            they are asked for, else one for each core.
        gpus: share out the nodes' GPUs among the calls.

    Raises:
        InvalidInputError: a cluster that cannot be reached, or no node that has what a call needs.
    """

    def __init__(self, address: str | None = None, *, workers_per_node: int | None = None, gpus: bool = False) -> None:
        self._ours = not ray.is_initialized()
        if not self._ours and address is not None:
            problem = f"executor: this program is connected to a Ray already, so not to {address}"
            raise InvalidInputError("executor", address, "`ray`, or ray.shutdown() first", problem=problem)
        # Of a Ray that somebody else started nobody knows where it has nodes, or will have.
        self.remote = not self._ours or address is not None or bool(os.environ.get("RAY_ADDRESS"))
        if self._ours:
            _connect(address)
        try:
            needs = _needs(_nodes(), workers_per_node, gpus)
            self._needs = needs
            self._call = ray.remote(max_retries=0, **needs)(call)
        except BaseException:
            self.shutdown()
            raise

    @property
    def workers(self) -> int:
        """How many calls the nodes have room for, as they are now."""
        return sum(_room(node, self._needs) for node in _nodes())

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        reference = self._call.remote(Home.here(), cloudpickle.dumps((fn, args, kwargs)))
        own: Future[Any] = Future()

        def finished(done: Future[Any]) -> None:
            with suppress(InvalidStateError):  # cancelled meanwhile
                error = LostWorkerError("the call was cancelled") if done.cancelled() else done.exception()
                if error is None:
                    own.set_result(done.result())
                else:
                    own.set_exception(_explained(error))

        # A call that is cancelled here is not there: over a client's connection that can block. It ends with the job.
        reference.future().add_done_callback(finished)
        return own

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        if self._ours and ray.is_initialized():
            ray.shutdown()


def _connect(address: str | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray will do some day, and warns of
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address is not None:
            _require_listening(address)
            ray.init(address=address, **quiet)
        elif os.environ.get("RAY_ADDRESS"):
            ray.init(**quiet)
        else:
            ray.init(include_dashboard=False, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        found = " ".join(f"{address or 'ray'} ({error})".split())
        raise InvalidInputError("executor", address, "a Ray cluster that answers", found=found) from None


def _require_listening(address: str) -> None:
    """Ray itself tries for minutes to reach what is not there."""
    place = urlsplit(address)
    with socket.create_connection((place.hostname or "", place.port or CLIENT_PORT), timeout=PATIENCE):
        pass


def _nodes() -> list[dict[str, float]]:
    """What each living node has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _needs(nodes: list[dict[str, float]], workers_per_node: int | None, gpus: bool) -> dict[str, float]:
    """What one call takes of a node, so that no more run there than were asked for."""
    with_gpus = [node for node in nodes if node.get("GPU", 0) > 0] if gpus else []
    able = with_gpus or [node for node in nodes if node.get("CPU", 0) > 0]
    if not able:
        raise InvalidInputError("executor", "ray", "a cluster with a node that has cores", found="none")
    counted = [node["GPU"] if with_gpus else node["CPU"] for node in able]
    if workers_per_node is not None and len({(node.get("CPU"), node.get("GPU")) for node in able}) > 1:
        found = f"nodes of {min(counted):g} to {max(counted):g} {'GPUs' if with_gpus else 'cores'}"
        accepted = "nodes that are alike (`ray start --num-cpus`), for a share of one to be a share of all"
        raise InvalidInputError("workers-per-node", workers_per_node, accepted, found=found)
    each = workers_per_node or max(1, int(min(counted)))
    needs = {"num_cpus": _share(min(node.get("CPU", 0.0) for node in able), each)}
    if with_gpus:
        share = _share(min(counted), each)
        needs["num_gpus"] = float(int(share)) if share > 1 else share  # above one Ray takes whole GPUs only
    return needs


def _share(amount: float, calls: int) -> float:
    """Of a node's amount what one of so many calls takes, rounded down: that many must fit."""
    return math.floor(1e4 * amount / calls) / 1e4


def _room(node: dict[str, float], needs: dict[str, float]) -> int:
    kinds = {"num_cpus": "CPU", "num_gpus": "GPU"}
    return int(min(node.get(kinds[kind], 0.0) / amount + 1e-9 for kind, amount in needs.items() if amount))


def _explained(error: BaseException) -> BaseException:
    if isinstance(error, exceptions.RayTaskError) and isinstance(error.cause, BaseException):
        return error.cause
    if isinstance(error, _LOST):
        return LostWorkerError(" ".join(str(error).split())[:300])
    return error
