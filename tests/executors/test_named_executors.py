"""Executors by name: what is opened, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from dpmerge.errors import InvalidInputError
from dpmerge.executors import open_executor, worker_calls
from dpmerge.executors.named_executors import _dask_address, is_remote
from dpmerge.executors.worker_calls import Home, call
from executors.worker_tasks import ArrivesDifferent, process_of, square


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("", "got ''"),
        ("threads", "got 'threads'"),
        ("threads:", "a number of workers from 1 to 9999"),
        ("threads:0", "a number of workers from 1 to 9999"),
        ("processes:-1", "a number of workers"),
        ("processes:many", "a number of workers"),
        ("processes:10000000", "a number of workers"),
        ("dask://", "dask://HOST:PORT"),
        ("dask://host/path", "dask://HOST:PORT"),
        ("dask+tls://", "dask+tls://HOST:PORT"),
        ("spark://host", "got 'spark://host'"),
        ("no_such_module:executor", "ModuleNotFoundError"),
        ("executors.worker_tasks:no_such_function", "AttributeError"),
        ("executors.worker_tasks:nothing", "which gave a NoneType"),
        ("executors.worker_tasks:square", "TypeError"),
    ],
)
def test_what_names_no_executor_is_refused(name: str, found: str) -> None:
    with pytest.raises(InvalidInputError, match="executor: ") as refused:
        open_executor(name)
    assert found in str(refused.value)


@pytest.mark.parametrize(
    ("name", "workers", "words"),
    [
        ("threads:2", 2, "of threads:2 the name says how many; leave it out"),
        ("dask://host", 2, "each worker makes one call at a time; leave it out"),
        ("ray", 0, "workers-per-node: got 0; accepted: an integer ≥ 1"),
    ],
)
def test_a_number_of_workers_is_for_ray(name: str, workers: int, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        open_executor(name, workers_per_node=workers)


@pytest.mark.parametrize("name", ["dask://127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_does_not_answer_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpmerge.executors import dask_executor, ray_executor

    monkeypatch.setattr(dask_executor, "PATIENCE", 0.5)
    monkeypatch.setattr(ray_executor, "PATIENCE", 1)
    with pytest.raises(
        InvalidInputError, match=f"executor: got .*{name.split('/')[-1]}.*; accepted: a .* that answers"
    ):
        open_executor(name)


def test_a_function_may_make_the_executor() -> None:
    with open_executor("executors.worker_tasks:two_threads") as executor:
        assert isinstance(executor, ThreadPoolExecutor)
        assert executor.submit(square, 3).result() == 9


def test_whose_workers_may_be_elsewhere() -> None:
    with ThreadPoolExecutor(1) as threads, ProcessPoolExecutor(1) as processes, open_executor("processes:1") as ours:
        assert [is_remote(each) for each in (threads, processes, ours)] == [False, False, False]
    assert is_remote(Executor())  # nobody knows


def test_processes_are_not_this_one() -> None:
    with open_executor("processes:2") as executor:
        assert os.getpid() not in set(executor.map(process_of, range(4)))


@pytest.mark.parametrize("what", ["dpmerge", "Python"])
def test_a_worker_of_another_version_refuses(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home.here()
    if what == "dpmerge":
        monkeypatch.setattr(worker_calls.dpmerge, "__version__", "0.0.1")
    else:
        monkeypatch.setattr(worker_calls, "_python", lambda: "2.7")
    with pytest.raises(InvalidInputError, match=f"has {what} .*; install the same on every machine"):
        call(home, b"nothing that could be unpickled")


def test_a_worker_works_where_it_was_called_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    monkeypatch.chdir(tmp_path)
    home = Home.here()
    monkeypatch.chdir("/")
    assert call(home, pickle.dumps((os.getcwd, (), {}))) == str(tmp_path)
    elsewhere = Home(home.dpmerge, home.python, str(tmp_path / "only at home"), home.path)
    assert call(elsewhere, pickle.dumps((os.getcwd, (), {}))) == str(tmp_path)


def test_addresses_of_dask() -> None:
    addresses = {
        "dask://host": "tcp://host:8786",
        "dask://host:1": "tcp://host:1",
        "dask+tls://host": "tls://host:8786",
        "dask://[::1]": "tcp://[::1]:8786",
    }
    assert {name: _dask_address(name) for name in addresses} == addresses


@pytest.mark.parametrize(
    ("nodes", "asked", "gpus", "room"),
    [
        ([{"CPU": 8.0}] * 2, None, False, [8, 8]),
        ([{"CPU": 8.0}] * 2, 3, False, [3, 3]),
        ([{"CPU": 3.0}], 2, False, [2]),
        ([{"CPU": 2.0}], 7, False, [7]),
        ([{"CPU": 64.0}, {"CPU": 64.0}], 1, False, [1, 1]),
        ([{"CPU": 8.0, "GPU": 4.0}, {"CPU": 8.0, "GPU": 4.0}], None, True, [4, 4]),
        ([{"CPU": 8.0, "GPU": 3.0}], 2, True, [2]),
        ([{"CPU": 8.0, "GPU": 2.0}], 4, True, [4]),
        ([{"CPU": 8.0, "GPU": 2.0}], None, False, [8]),
        ([{}, {"CPU": 4.0}], 2, False, [0, 2]),
    ],
)
def test_so_many_pieces_of_work_fit_on_a_node_of_ray(
    nodes: list[dict[str, float]], asked: int | None, gpus: bool, room: list[int]
) -> None:
    from dpmerge.executors.ray_executor import _needs, _room

    needs = _needs(nodes, asked, gpus)
    assert [_room(node, needs) for node in nodes] == room


def test_nodes_of_ray_that_differ_have_no_common_share() -> None:
    from dpmerge.executors.ray_executor import _needs

    with pytest.raises(InvalidInputError, match="workers-per-node: got nodes of 4 to 64 cores"):
        _needs([{"CPU": 4.0}, {"CPU": 64.0}], 1, False)


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """Killed, it can tell them nothing."""
    script = (
        "from dpmerge.executors import open_executor; from executors.worker_tasks import process_of, sleeps\n"
        "if __name__ == '__main__':\n"
        "    executor = open_executor('processes:1')\n"
        "    print(executor.submit(process_of, 0).result(), flush=True)\n"
        "    executor.submit(sleeps, 600).result()\n"
    )
    (tmp_path / "script.py").write_text(script)
    path = os.pathsep.join(str(Path(__file__).parents[k]) for k in (1, 2))
    variables = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, tmp_path / "script.py"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(600):
        if not Path(f"/proc/{worker}").exists() or "Z" in Path(f"/proc/{worker}/stat").read_text().split(")")[1][:3]:
            return
        time.sleep(0.1)
    raise AssertionError("the worker lives on")


def test_an_evaluator_that_fails_to_arrive_says_why() -> None:
    """Not that workers died."""
    with open_executor("processes:1") as executor, pytest.raises(InvalidInputError, match="has other code in a worker"):
        executor.submit(square, ArrivesDifferent()).result()
