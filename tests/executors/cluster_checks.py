"""What `test_clusters` checks in a process of its own, with the executor that the variable EXECUTOR names.

The same results wherever the work is done, and nothing lost with a worker.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from soak.kills import WANTED, Wanted, loaded, write_models
from soak.ledger import postgresql

import dpmerge as dpm
from dpmerge import Portfolio
from dpmerge.auditing import trials
from dpmerge.auditing.installed_scenarios import installed_scenarios
from dpmerge.auditing.scenario import play_together
from dpmerge.errors import (
    CannotWriteError,
    DigestMismatchError,
    EvaluationError,
    InvalidInputError,
    LedgerError,
    WorkersLostError,
)
from dpmerge.evaluation.evaluate import evaluate
from dpmerge.executors.named_executors import is_remote, open_executor
from dpmerge.executors.task_runs import ATTEMPTS, results_of
from dpmerge.merging import gaussian_sampler, shard_tasks
from dpmerge.merging.engine import merge
from dpmerge.merging.preflight import require_recorded
from dpmerge.releasing.release import release
from dpmerge.releasing.verifying import verify
from evaluation.scored_portfolios import EXAMPLES, mixtures, quits, total
from executors.worker_tasks import (
    TotalDyingOnce,
    dies,
    dies_first,
    meets_another,
    process_of,
    refuses,
    shard_dying_once,
    square,
)
from merging.models import checkpoints, model, tensor, tree, write_run
from merging.test_engine import SHARDINGS, in_shards, merge_three, write_three
from portfolio.portfolios import write_portfolio

SHARDS = [f"model-0000{k}-of-00003.safetensors" for k in (1, 2, 3)]


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with open_executor(os.environ["EXECUTOR"]) as opened:
        yield opened


@pytest.fixture
def database() -> Iterator[str]:
    with postgresql() as address:
        yield address


@pytest.fixture(scope="module")
def abc(tmp_path_factory: pytest.TempPathFactory) -> Portfolio:
    return Portfolio.load(write_portfolio(tmp_path_factory.mktemp("abc")))


def can_die(executor: Executor) -> bool:
    """Whether a call may be killed without this process."""
    return executor.submit(process_of, 0).result() != os.getpid()


def test_calls_and_their_errors_are_what_they_are_at_home(executor: Executor) -> None:
    assert results_of(executor, square, [(k,) for k in range(30)], named="square") == [k * k for k in range(30)]
    with pytest.raises(InvalidInputError, match="number: got 3; accepted: another one"):
        results_of(executor, refuses, [(3,)], named="refusal")


def test_two_workers_work_at_once_and_say_whether_they_are_elsewhere(executor: Executor, tmp_path: Path) -> None:
    assert is_remote(executor) == os.environ["EXECUTOR"].startswith(("ray", "dask://"))
    if is_remote(executor):
        assert executor.workers == 2  # type: ignore[attr-defined]
    if can_die(executor):
        met = results_of(executor, meets_another, [(str(tmp_path), k) for k in range(2)], named="meeting")
        assert len(set(met)) == 2


def test_a_worker_that_is_killed_is_replaced(executor: Executor, tmp_path: Path) -> None:
    if not can_die(executor):
        return
    flag = str(tmp_path / "died")
    assert results_of(executor, dies_first, [(flag, k) for k in range(8)], named="number") == list(range(8))
    assert Path(flag).exists()


def test_what_kills_every_worker_is_given_up(executor: Executor) -> None:
    if not can_die(executor):
        return
    with pytest.raises(WorkersLostError, match=f"workers died {ATTEMPTS} times with murder 1 of 1"):
        results_of(executor, dies, [()], named="murder")


def test_scores_do_not_depend_on_where_they_are_computed(executor: Executor, abc: Portfolio) -> None:
    recipes = mixtures(["a@4", "b@4"], 12)
    assert evaluate(abc, recipes, total, executor=executor) == evaluate(abc, recipes, total)
    with pytest.raises(EvaluationError, match="SystemExit"):
        evaluate(abc, recipes, quits, executor=executor)


def test_a_worker_lost_in_an_evaluation_costs_no_score(executor: Executor, abc: Portfolio, tmp_path: Path) -> None:
    if not can_die(executor):
        return
    recipes, file, seen = mixtures(["a@4", "b@4"], 12), tmp_path / "scores.jsonl", []
    scores = evaluate(
        abc,
        recipes,
        TotalDyingOnce(tmp_path / "died"),
        executor=executor,
        cache=file,
        progress=lambda done, of: seen.append((done, of)),
    )
    assert (tmp_path / "died").exists()
    assert scores == evaluate(abc, recipes, TotalDyingOnce(tmp_path / "died"))
    assert seen == [(k, 12) for k in range(1, 13)]
    assert len(file.read_text().splitlines()) == 1 + 12


@pytest.mark.parametrize("donor", ["a", "c"])
@pytest.mark.parametrize("weights", [True, False], ids=["weights recorded", "files recorded"])
def test_a_merge_by_workers_has_the_bytes_of_one_at_home(
    executor: Executor, tmp_path: Path, donor: str, weights: bool
) -> None:
    files = {
        "a": lambda t: in_shards(t, SHARDS),
        "b": SHARDINGS["other order, two files"],
        "c": SHARDINGS["a file of nothing"],
    }
    write_three(tmp_path / "runs", files, weights=weights)
    seen: list[tuple[int, int]] = []
    at_home = merge_three(tmp_path / "runs", tmp_path / "home", donor=donor)
    away = merge_three(
        tmp_path / "runs",
        tmp_path / "away",
        donor=donor,
        executor=executor,
        progress=lambda done, of: seen.append((done, of)),
    )
    assert away == at_home
    assert tree(tmp_path / "away") == tree(tmp_path / "home")
    assert not (tmp_path / "away" / shard_tasks.ATTEMPTS).exists()
    assert seen[-1][0] == seen[-1][1] > 0


def test_noise_by_workers_is_that_of_one_key(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a weight with two names, in two shards."""
    for seed, run in enumerate("ab"):
        tied = tensor("F32", (301,), seed)
        tensors = {
            "in": tied,
            "b": tensor("BF16", (40_000,), seed + 5),
            "c": tensor("F16", (77,), seed + 9),
            "out": tied,
        }
        write_run(tmp_path / "runs", run, in_shards({**tensors, "out": tied}, SHARDS[:2]))
    saved = checkpoints(tmp_path / "runs")
    asked: list[int] = []

    def key(count: int) -> bytes:
        asked.append(count)
        return bytes(range(count))

    monkeypatch.setattr(gaussian_sampler, "os", SimpleNamespace(urandom=key))
    for name, workers in (("home", None), ("away", executor)):
        (tmp_path / name).mkdir()
        merge(
            [(saved[0], 0.5), (saved[1], 0.5)],
            tmp_path / name,
            donor=saved[0],
            trained=None,
            release_noise=0.5,
            tied=[["in", "out"]],
            executor=workers,
        )
    assert tree(tmp_path / "away") == tree(tmp_path / "home")
    assert asked == [32, 32]  # one key a merge, drawn here


def test_a_worker_is_told_the_keys_of_its_own_weights_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_three(tmp_path / "runs", {run: lambda t: in_shards(t, SHARDS) for run in "abc"}, frozen=["steps", "mask"])
    tasks: list[shard_tasks.ShardTask] = []

    def noticed(task: shard_tasks.ShardTask) -> shard_tasks.WrittenShard:
        tasks.append(task)
        return written(task)

    written = shard_tasks.write_shard
    monkeypatch.setattr(shard_tasks, "write_shard", noticed)
    trained = set(model(0)) - {"steps", "mask"}
    with open_executor("threads:2") as threads:
        merge_three(tmp_path / "runs", tmp_path / "out", executor=threads, trained=trained, release_noise=0.1)
    told = [set(task.keys) for task in tasks]
    assert len(told) == 3
    assert all(set(task.keys) <= {slot.name for slot in task.file.slots} for task in tasks)
    assert set.union(*told) == trained
    assert sum(map(len, told)) == len(trained)
    assert not any(key.hex() in repr(task) or repr(key) in repr(task) for task in tasks for key in task.keys.values())


def test_a_worker_killed_in_the_middle_of_a_shard_changes_nothing(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_die(executor):
        return
    write_three(tmp_path / "runs", {run: lambda t: in_shards(t, SHARDS) for run in "abc"})
    at_home = merge_three(tmp_path / "runs", tmp_path / "home")
    dying = functools.partial(shard_dying_once, str(tmp_path / "died"))
    monkeypatch.setattr(shard_tasks, "write_shard", dying)
    assert merge_three(tmp_path / "runs", tmp_path / "away", executor=executor, jobs=1) == at_home
    assert (tmp_path / "died").exists()
    assert tree(tmp_path / "away") == tree(tmp_path / "home")


@pytest.mark.parametrize("weights", [True, False], ids=["weights recorded", "files recorded"])
@pytest.mark.parametrize("run", ["a", "b"])
def test_a_changed_byte_is_noticed_by_whoever_reads_it(
    executor: Executor, tmp_path: Path, run: str, weights: bool
) -> None:
    files = {"a": lambda t: in_shards(t, SHARDS), "b": SHARDINGS["other order, two files"]}
    write_three(tmp_path / "runs", files, weights=weights)
    saved = next(each for each in checkpoints(tmp_path / "runs") if each.run == run)
    file, slot = saved.tensors["f32.weight"]
    content = bytearray(file.read_bytes())
    content[slot.start] ^= 1
    file.write_bytes(content)
    with pytest.raises(DigestMismatchError, match="was recorded; put back what was recorded"):
        merge_three(tmp_path / "runs", tmp_path / "away", executor=executor)
    assert not (tmp_path / "away" / shard_tasks.ATTEMPTS).exists()
    with pytest.raises(DigestMismatchError, match="was recorded"):
        require_recorded(checkpoints(tmp_path / "runs"), executor=executor)


def test_an_audit_finds_the_same_wherever_its_trials_are_simulated(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = dpm.plan(Portfolio.load(EXAMPLES / "mnist"), dpm.Guarantee(epsilon=0.8, delta=1e-5))
    here, there = dpm.audit(plan, trials=3000, seed=1), dpm.audit(plan, trials=3000, seed=1, executor=executor)
    assert there.document() == here.document()
    monkeypatch.setattr(trials, "BLOCK", 1000)  # here alone: how many are asked for is said with each block
    several = dpm.audit(plan, trials=3000, seed=1)
    assert dpm.audit(plan, trials=3000, seed=1, executor=executor).document() == several.document() != here.document()


def test_a_scenario_shows_the_same_wherever_it_is_played(executor: Executor) -> None:
    known = installed_scenarios()
    chosen = [known["logistic"], known["logistic_without_noise"]]
    seen: list[tuple[int, int]] = []
    here = play_together(chosen, trials=1000, confidence=0.95, seed=3)
    there = play_together(
        chosen,
        trials=1000,
        confidence=0.95,
        seed=3,
        executor=executor,
        known=installed_scenarios,
        progress=lambda done, of: seen.append((done, of)),
    )
    assert [result.name for result in there] == [scenario.name for scenario in chosen]
    assert [[f.document() for f in each.findings] for each in there] == [
        [f.document() for f in each.findings] for each in here
    ]
    assert seen == [(1, 2), (2, 2)]


def test_what_was_given_up_and_lives_on_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes a file while the attempts are removed, and another by its path."""
    write_three(tmp_path / "runs", {run: lambda t: in_shards(t, SHARDS) for run in "abc"})
    at_home = merge_three(tmp_path / "runs", tmp_path / "home")
    removed = shutil.rmtree

    def while_somebody_writes(folder: Path, **how: bool) -> None:
        (folder / "late.safetensors").write_bytes(b"between the listing and the removal")
        with pytest.raises(FileNotFoundError):
            (tmp_path / "away" / shard_tasks.ATTEMPTS / "later.safetensors").write_bytes(b"by its path")
        removed(folder, **how)

    monkeypatch.setattr(shard_tasks.shutil, "rmtree", while_somebody_writes)
    with open_executor("threads:2") as threads:
        assert merge_three(tmp_path / "runs", tmp_path / "away", executor=threads) == at_home
    assert tree(tmp_path / "away") == tree(tmp_path / "home")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["away", "home", "runs"]


@pytest.mark.parametrize("given", [None, "swapped"])
def test_an_executor_that_gives_other_results_is_refused(tmp_path: Path, given: str | None) -> None:
    write_three(tmp_path / "runs", {run: lambda t: in_shards(t, SHARDS) for run in "abc"})

    class Wrong(Executor):
        first: Any = None

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            made = fn(*args, **kwargs)
            self.first = self.first or made
            future.set_result(self.first if given else None)
            return future

    with pytest.raises(InvalidInputError, match="executor: for the file .* it gave the result of something else"):
        merge_three(tmp_path / "runs", tmp_path / "away", executor=Wrong(), hashing=False)


def test_a_folder_that_the_workers_do_not_share_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_three(tmp_path / "runs")

    def elsewhere(task: shard_tasks.ShardTask) -> shard_tasks.WrittenShard:
        """A worker that has a folder of the same name, on a disk of its own."""
        shard = written(task)
        (task.folder / shard.attempt).rename(tmp_path / "on another machine")
        return shard

    written = shard_tasks.write_shard
    monkeypatch.setattr(shard_tasks, "write_shard", elsewhere)
    with open_executor("threads:1") as threads, pytest.raises(CannotWriteError, match="storage that all workers share"):
        merge_three(tmp_path / "runs", tmp_path / "out", executor=threads)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("wanted", WANTED, ids=lambda wanted: wanted.name)
def test_a_release_by_workers_is_charged_sealed_and_certified_at_home(
    executor: Executor, tmp_path: Path, wanted: Wanted, request: pytest.FixtureRequest
) -> None:
    home, out = write_models(tmp_path / "models", values=64, tensors=3), tmp_path / "made"
    ledger = str(tmp_path / "ledger.sqlite")
    if is_remote(executor):
        with pytest.raises(LedgerError, match="must be PostgreSQL: name it"):
            release(wanted.plan(loaded(home)), out=out, executor=executor, ledger=ledger, final=wanted.final)
        assert not out.exists()
        assert not Path(ledger).exists()
        ledger = request.getfixturevalue("database")
    made = release(wanted.plan(loaded(home)), out=out, executor=executor, ledger=ledger, final=wanted.final)
    checked = verify(out, portfolio=home, ledger=ledger, rebuild=True)
    assert [each for each in checked.checks if each.passed is False] == []
    noisy = any(candidate.release_noise for candidate in wanted.plan(loaded(home)).terms.candidates)
    assert made.content["tools"].get("release noise") == (gaussian_sampler.SAMPLER if noisy else None)
    assert {path.name for path in out.iterdir()} == {*made.files, "README.md", "privacy-certificate.json"}
