"""What recording costs: the same Opacus loop with and without the recorder, taken in turns."""

from __future__ import annotations

import gc
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpmerge.training import Recorder, record
from dpmerge.training.step_observer import StepObserver

RECORDS, BATCH = 6000, 100
STEPS, TURNS = 30, 12
GOAL = 0.05
BASE_LAYERS, BASE_WIDTH = 100, 2000  # 400 million parameters
START_GOAL, CHECKPOINT_GOAL = 2.0, 0.3


def run(console: Console) -> dict[str, float]:
    """Print what was measured; return how fast a recorded loop is, of 1."""
    ratios: dict[str, float] = {}
    console.print(f"\n[bold]recording[/]: {TURNS} turns of {STEPS} steps each way, batches of {BATCH}, no checkpoints")
    console.print(_overheads(ratios))
    console.print(f"goal: below {GOAL:.0%}; ± is the spread of the turns over the root of their number")
    console.print(_checkpoints())
    console.print(_frozen_bases())
    console.print(f"goals for an adapter: start below {START_GOAL:g} s, checkpoint below {CHECKPOINT_GOAL:g} s")
    return ratios


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "CNN, hooks": (_cnn, (1, 28, 28), "hooks"),
    "CNN, ghost": (_cnn, (1, 28, 28), "ghost"),
    "MLP, hooks": (_mlp, (784,), "hooks"),
}


class _Loop:
    """One Opacus training loop, ready to go on for any number of steps."""

    def __init__(self, make: Callable[[], nn.Module], shape: tuple[int, ...], mode: str) -> None:
        inputs, targets = torch.randn(RECORDS, *shape), torch.randint(0, 10, (RECORDS,))
        module = make()
        criterion: Any = nn.CrossEntropyLoss()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = PrivacyEngine().make_private(
                module=module,
                optimizer=torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9),
                data_loader=DataLoader(TensorDataset(inputs, targets), batch_size=BATCH),
                criterion=criterion,
                noise_multiplier=1.0,
                max_grad_norm=1.0,
                grad_sample_mode=mode,
            )
        self.model, self.optimizer, *criteria, self.loader = made
        self.criterion = criteria[0] if criteria else criterion
        self.size = sum(parameter.numel() for parameter in module.parameters())

    def steps(self) -> Iterator[float]:
        """Train, and yield what each step took, drawing the batch included; for ever."""
        while True:
            start = time.perf_counter()
            for inputs, targets in self.loader:
                self.optimizer.zero_grad()
                self.criterion(self.model(inputs), targets).backward()
                self.optimizer.step()
                yield time.perf_counter() - start
                start = time.perf_counter()

    @contextmanager
    def recorded(self, **settings: Any) -> Iterator[Recorder]:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            with record(
                model=self.model,
                optimizer=self.optimizer,
                data_loader=self.loader,
                run="benchmark",
                dataset="random numbers",
                adjacency="replace_one",
                directory=folder,
                **settings,
            ) as recorder:
                yield recorder


def _overheads(ratios: dict[str, float]) -> Table:
    """Step by step in turns, so that the machine's moods hit both alike."""
    table = Table("loop", "ms a step", "recorded", "overhead", "±", "recorder alone, µs a step")
    for name, (make, shape, mode) in MODELS.items():
        plain, watched = _Loop(make, shape, mode), _Loop(make, shape, mode)
        with watched.recorded():
            loops = (plain.steps(), watched.steps())
            _turn(loops)
            turns = np.array([_turn(loops) for _ in range(TURNS)])
        overheads = turns[:, 1] / turns[:, 0] - 1
        ratios[f"recorded, {name}"] = float(1 / (1 + np.median(overheads)))
        table.add_row(
            name,
            f"{1e3 * np.median(turns[:, 0]):.2f}",
            f"{1e3 * np.median(turns[:, 1]):.2f}",
            f"{np.median(overheads):+.2%}",
            f"{overheads.std(ddof=1) / np.sqrt(TURNS):.2%}",
            f"{1e6 * _alone(make, shape, mode):.0f}",
        )
    return table


def _turn(loops: tuple[Iterator[float], ...]) -> list[float]:
    """Seconds a step of each loop: the median of steps taken in turns."""
    gc.collect()
    taken = []
    for step in range(STEPS):
        order = range(len(loops)) if step % 2 else reversed(range(len(loops)))  # who goes first finds a colder cache
        taken.append({place: next(loops[place]) for place in order})
    return [float(np.median([turn[place] for turn in taken])) for place in range(len(loops))]


def _alone(make: Callable[[], nn.Module], shape: tuple[int, ...], mode: str) -> float:
    """Seconds a step that are spent in the recorder's own functions, timed from within the loop."""
    loop = _Loop(make, shape, mode)
    spent = [0.0]

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args)
            finally:
                spent[0] += time.perf_counter() - start

        return call

    names = ("clipped", "before_step", "before_inner_step", "after_inner_step")
    kept = {name: getattr(StepObserver, name) for name in names}
    for name, function in kept.items():
        setattr(StepObserver, name, timed(function))
    try:
        with loop.recorded():
            steps = loop.steps()
            _turn((steps,))
            spent[0] = 0.0
            _turn((steps,))
    finally:
        for name, function in kept.items():
            setattr(StepObserver, name, function)
    return spent[0] / STEPS


def _checkpoints() -> Table:
    """Written, read back for its digests, flushed to disk, and the manifest after it."""
    table = Table("checkpoint of", "parameters", "ms (median)", "ms (worst)", "ms after 100,000 steps")
    for name in ("CNN, hooks", "MLP, hooks"):
        make, shape, mode = MODELS[name]
        loop = _Loop(make, shape, mode)
        with loop.recorded() as recorder:
            steps = loop.steps()
            early = [_saved(recorder, steps) for _ in range(15)]
            recorder._writer.taken.extend(recorder._writer.taken[:1] * 100_000)
            late = [_saved(recorder, steps) for _ in range(5)]
        table.add_row(
            name, f"{loop.size:,}", f"{1e3 * np.median(early):.1f}", f"{1e3 * max(early):.1f}",
            f"{1e3 * np.median(late):.1f}",
        )  # fmt: skip
    return table


class _OnFrozenBase(nn.Module):
    """A trained head, and a base that only has to be there: what is measured is looking after it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        one = torch.randn(BASE_WIDTH, BASE_WIDTH).to(dtype)
        self.base = nn.ParameterList(nn.Parameter(one.clone(), requires_grad=False) for _ in range(BASE_LAYERS))
        self.head = nn.Linear(784, 100)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(inputs)  # type: ignore[no-any-return]


def _frozen_bases() -> Table:
    """An adapter on a large frozen base: hashed whole at the start and at the close, sampled at each checkpoint."""
    table = Table("adapter on a frozen base of", "start, s", "checkpoint, s (median)", "(worst)", "close, s")
    for dtype in (torch.bfloat16, torch.float32):
        loop = _Loop(lambda dtype=dtype: _OnFrozenBase(dtype), (784,), "hooks")  # type: ignore[misc]
        steps, begun = loop.steps(), time.perf_counter()
        with loop.recorded(trained_only=True) as recorder:
            started = time.perf_counter()
            saving = [_saved(recorder, steps) for _ in range(10)]
            closing = time.perf_counter()
        closed = time.perf_counter()
        table.add_row(
            f"{BASE_LAYERS * BASE_WIDTH**2 / 1e6:.0f} M {str(dtype).removeprefix('torch.')}",
            f"{started - begun:.2f}",
            f"{np.median(saving):.3f}",
            f"{max(saving):.3f}",
            f"{closed - closing:.2f}",
        )
    return table


def _saved(recorder: Recorder, steps: Iterator[float]) -> float:
    next(steps)
    start = time.perf_counter()
    recorder.checkpoint()
    return time.perf_counter() - start
