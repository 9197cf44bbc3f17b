"""How much two workers do in the time of one: evaluations, merges by shards, trials of an audit; efficiency of two."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from soak.kills import loaded, write_models

import dpmerge as dpm
from dpmerge.evaluation.evaluate import evaluate
from dpmerge.executors import open_executor
from dpmerge.executors.task_runs import results_of
from dpmerge.merging.engine import merge
from dpmerge.terms.recipe import Recipe

MNIST = Path("examples") / "mnist"
RECIPES = 40


class Busy:
    """An evaluator of about 0.2 seconds of one core."""

    identity = "busy"

    def __call__(self, tensors: Mapping[str, Any]) -> float:
        total = 0.0
        for _ in range(100):
            total += float(np.sum([np.sort(tensor).sum(dtype=np.float64) for tensor in tensors.values()]))
        return total


def run(console: Console) -> dict[str, float]:
    """Print what was measured; return the efficiency of two workers, 1 if they do twice as much."""
    ratios: dict[str, float] = {}
    console.print("\n[bold]scaling[/]: the same work by one worker and by two; efficiency is half the speed-up")
    table = Table("work", "executor", "one worker, s", "two, s", "efficiency")
    with tempfile.TemporaryDirectory(prefix="scaling-") as folder:
        home = write_models(Path(folder) / "models", values=20_000, files=4)
        large = write_models(Path(folder) / "large", values=16_000_000, files=4)
        for kind in ("processes", "ray"):
            for name, work in _works(home, large, Path(folder)).items():
                one, two = (_seconds(kind, workers, work) for workers in (1, 2))
                ratios[f"{name}, {kind}"] = one / two / 2
                table.add_row(name, kind, f"{one:.2f}", f"{two:.2f}", f"{one / two / 2:.0%}")
    console.print(table)
    return ratios


def _works(home: Path, large: Path, scratch: Path) -> dict[str, Callable[[Executor], object]]:
    recipes = [Recipe.of({"a@20": w / 64, "b@20": 1 - w / 64}) for w in range(1, RECIPES + 1)]
    plan = dpm.plan(dpm.Portfolio.load(MNIST), dpm.Guarantee(epsilon=0.8, delta=1e-5))
    return {
        f"{RECIPES} evaluations": lambda executor: evaluate(loaded(home), recipes, Busy(), executor=executor),
        "a merge of three, 4 files": lambda executor: _merge(large, scratch / "out", executor),
        "an audit, 16 million trials": lambda executor: dpm.audit(plan, trials=16_000_000, executor=executor),
    }


def _merge(home: Path, out: Path, executor: Executor) -> None:
    saved = [loaded(home).saved(f"{run}@20") for run in "abc"]
    with _emptied(out):
        merge([(each, 1 / 3) for each in saved], out, donor=saved[0], trained=None, jobs=1, executor=executor)


@contextmanager
def _emptied(folder: Path) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    try:
        yield
    finally:
        for file in folder.iterdir():
            file.unlink()


def _seconds(kind: str, workers: int, work: Callable[[Executor], object]) -> float:
    """The faster of two, on workers that have imported everything."""
    name, per_node = ("ray", workers) if kind == "ray" else (f"{kind}:{workers}", None)
    with open_executor(name, workers_per_node=per_node) as executor:
        results_of(executor, time.sleep, [(0.5,)] * workers, named="warm-up")
        times = []
        for _ in range(3):
            began = time.perf_counter()
            work(executor)
            times.append(time.perf_counter() - began)
    return min(times[1:])


if __name__ == "__main__":
    run(Console())
