"""Where runs are trained, found again, and scored.

Guarantees: every run has a noise stream of its own, spawned from the seed by the run's name, whatever else is trained
and in whatever order. What was trained or scored is kept under a name that holds a digest of its data, initial weights
and settings: an interrupted experiment goes on where it stopped, and other settings never find it.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from dpmerge.accounting.validation import Array
from dpmerge.errors import PortfolioError
from dpmerge.evaluation.evaluate import evaluate
from dpmerge.evaluation.evaluation_progress import show_progress
from dpmerge.executors.task_runs import run_tasks
from dpmerge.portfolio import Portfolio
from dpmerge.terms.recipe import Recipe
from reproduction.images import Images
from reproduction.presets import Preset
from reproduction.tasks import cifar_task, mnist_task, probe_task
from reproduction.training import SECONDS_NAME, Setup, Task, train


class ImageSource(Protocol):
    """What has images: `ImageFolder`, or a test's own."""

    def mnist(self) -> Images: ...

    def cifar10(self) -> Images: ...


@dataclass(frozen=True, eq=False)
class RunStore:
    """A folder for runs, the sizes of the experiments, one seed, and where images come from."""

    folder: Path
    preset: Preset
    images: ImageSource
    seed: int = 42
    tell: Callable[[str], object] = lambda _: None
    executor: Executor | None = None  # where runs are trained, if not here one after the other
    only: str | None = None  # the one data set that is used, of those of an experiment
    timings: dict[str, float] = field(default_factory=dict)  # seconds, by what took them
    seeds: dict[str, int] = field(default_factory=dict)  # of the noise of every run used, by its name

    @cached_property
    def mnist(self) -> Task:
        return mnist_task(self.images.mnist(), self.preset.mnist)

    @cached_property
    def probe(self) -> Task:
        return probe_task(self.images.mnist(), self.preset.mnist)

    @cached_property
    def cifar10(self) -> Task:
        with show_progress(None, "pretraining") as progress:
            begun = time.perf_counter()
            task = cifar_task(self.images.cifar10(), self.preset.cifar, self.folder, self.seed, progress)
        self.timings["pretraining, this time"] = time.perf_counter() - begun
        self.tell(f"CIFAR-10: pretrained model ready after {time.perf_counter() - begun:.1f} s")
        return task

    def data_sets(self, *names: str) -> list[str]:
        """Of these the ones that are used."""
        return [name for name in names if self.only in (None, name)]

    def task(self, name: str) -> Task:
        """What is trained on a data set, by its name."""
        return {"mnist": lambda: self.mnist, "cifar10": lambda: self.cifar10}[name]()

    def portfolio(self, task: Task, name: str, setups: Mapping[str, Setup], *, repeat: int = 0) -> Portfolio:
        """Runs trained with these setups, or found as they were trained before.

        `name` says what they are for; `repeat` is the number of the repetition: the same setups with other noise.
        """
        home = self.folder / f"{name}-{_digest({**task.settings, 'seed': self.seed})}" / str(repeat)
        folders = {run: home / _digest(setup.document()) / run for run, setup in setups.items()}
        for run in setups:
            self.seeds[f"{name}/{repeat}/{run}"] = self.noise_seed(name, str(repeat), run)
        missing = [run for run, folder in folders.items() if not (folder / SECONDS_NAME).exists()]
        self._train_elsewhere(task, {run: (setups[run], folders[run], name, repeat) for run in missing})
        took = 0.0
        for run, setup in setups.items():
            seed = self.seeds[f"{name}/{repeat}/{run}"]
            with show_progress(None, f"training {run}, repetition {repeat + 1}") as progress:
                seconds = train(task, setup, folders[run], noise_seed=seed, progress=progress)
            if run in missing:
                self.tell(f"{name}: {run}, repetition {repeat + 1}, trained in {seconds:.1f} s")
            took += seconds
        self.timings[f"training {name}"] = self.timings.get(f"training {name}", 0.0) + took
        listing = home / f"portfolio-{_digest({n: s.document() for n, s in setups.items()})}.yaml"
        listed = [f"{_digest(setup.document())}/{run}" for run, setup in setups.items()]
        listing.write_text("schema: dpmerge/portfolio/v1\nruns:\n" + "".join(f"  - {folder}\n" for folder in listed))
        try:
            return Portfolio.load(listing)
        except PortfolioError as error:
            error.add_note(f"delete {home} to train these runs again")
            raise

    def _train_elsewhere(self, task: Task, runs: Mapping[str, tuple[Setup, Path, str, int]]) -> None:
        """Train runs where the executor says; a task of which only this process knows is trained here, by who asks."""
        known = next((name for name in ("mnist", "probe", "cifar10") if self.__dict__.get(name) is task), None)
        if self.executor is None or known is None or not runs:
            return
        away = replace(self, tell=_silent, executor=None, timings={}, seeds={})
        calls = {
            run: (away, known, setup, folder, self.seeds[f"{name}/{repeat}/{run}"], torch.get_num_threads())
            for run, (setup, folder, name, repeat) in runs.items()
        }
        done: list[str] = []
        with show_progress(None, "training runs") as progress:

            def enter(run: str, _: float, late: bool) -> None:
                done.append(run)
                if not late:
                    progress(len(done), len(runs))

            run_tasks(self.executor, _train_named, calls, enter, named=lambda run: f"the run {run}")

    def noise_seed(self, *names: str) -> int:
        """A stream spawned from the seed for the run of this name: 32 bits, all that torch uses of a seed."""
        key = hashlib.sha256("/".join(names).encode()).digest()
        words = tuple(int.from_bytes(key[place : place + 4], "big") for place in range(0, 32, 4))
        return int(np.random.SeedSequence(self.seed, spawn_key=words).generate_state(1)[0])

    def scores(self, task: Task, portfolio: Portfolio, recipes: Sequence[Recipe], *, noise_draws: int = 8) -> Array:
        """Accuracy of every recipe on each half of the public images: [2, recipes]."""
        cache = self.folder / "scores.jsonl"
        halves = [
            evaluate(portfolio, recipes, evaluator, cache=cache, noise_draws=noise_draws)
            for evaluator in task.evaluators
        ]
        return np.array(halves)


def _silent(_: str) -> None:
    """What a worker tells."""


_MADE: dict[str, Task] = {}
"""The tasks of a worker's process, which keeps them: making one takes longer than some runs do."""


def _train_named(store: RunStore, name: str, setup: Setup, folder: Path, noise_seed: int, threads: int) -> float:
    """Train a run: what a worker does. As many threads as at home, so that sums are the same."""
    torch.set_num_threads(threads)
    known = hashlib.sha256(pickle.dumps((name, store.folder, store.preset, store.seed, store.images))).hexdigest()
    if known not in _MADE:
        _MADE[known] = getattr(store, name)
    return train(_MADE[known], setup, folder, noise_seed=noise_seed)


def _digest(settings: Any) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]
