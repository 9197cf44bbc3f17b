"""Real clusters on this machine, each in a process of its own, for tests and the soak: two nodes, two workers.

`python clusters.py ray|dask` prints by which variables it is found, and ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

STARTS = 3


@contextmanager
def cluster(kind: str) -> Iterator[dict[str, str]]:
    """The variables by which an executor of such a cluster is found, for as long as the context is."""
    with ExitStack() as stack:
        yield next(found for _ in range(STARTS) if (found := _started(kind, stack)) is not None)


def _started(kind: str, stack: ExitStack) -> dict[str, str] | None:
    """None if it did not start: on a busy machine Ray's own parts wait too short a time for each other."""
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, Path(__file__), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **quiet, "RAY_raylet_start_wait_time_s": "120"},
        text=True,
    )

    def end() -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait(60)
        process.stdout.close()

    stack.callback(end)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("found "):
            return {**quiet, **json.loads(line.removeprefix("found "))}
    return None


def _found(**variables: str) -> None:
    print("found", json.dumps(variables), flush=True)
    sys.stdin.read()


def _ray() -> None:
    from ray.cluster_utils import Cluster

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    head = {"num_cpus": 1, "include_dashboard": False, "ray_client_server_port": port}
    both = Cluster(initialize_head=True, head_node_args=head)
    both.add_node(num_cpus=1)
    _found(EXECUTOR="ray", RAY_ADDRESS=both.address, RAY_CLIENT=f"ray://127.0.0.1:{port}")
    both.shutdown()


def _dask() -> None:
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True) as both:
        _found(EXECUTOR=both.scheduler_address.replace("tcp://", "dask://"))


if __name__ == "__main__":
    {"ray": _ray, "dask": _dask}[sys.argv[1]]()
