"""Each kind of executor, in a process of its own: what connects to Ray keeps threads that no other test should have."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from soak.clusters import cluster

CHECKS = Path(__file__).with_name("cluster_checks.py")


@pytest.mark.parametrize("kind", ["threads:2", "processes:2", "ray", "dask"])
def test_work_is_the_same_wherever_it_is_done(kind: str) -> None:
    """A Ray cluster has two nodes, a Dask cluster two processes."""
    with cluster(kind) if kind in ("ray", "dask") else nullcontext({"EXECUTOR": kind}) as variables:
        checked = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CHECKS)],
            capture_output=True,
            text=True,
            check=False,
            cwd=CHECKS.parents[2],
            env={**os.environ, **variables},
        )
    assert checked.returncode == 0, checked.stdout + checked.stderr
