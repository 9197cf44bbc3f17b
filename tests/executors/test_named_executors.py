"""Executors by name: what is opened, and what is refused."""

from __future__ import annotations

import os
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from dpmerge.errors import InvalidInputError
from dpmerge.executors import open_executor, worker_calls
from dpmerge.executors.named_executors import is_remote
from dpmerge.executors.worker_calls import Home, call
from executors.worker_tasks import process_of, square


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
