"""Tiny models and data, and one Opacus loop with every choice an argument, for the tests of the recorder."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

from dpmerge.errors import DpmergeError, RecordingError
from dpmerge.training import Recorder, record, start

FEATURES, CLASSES = 16, 4

# What torch and Opacus say about themselves, and the recorder once in a process; all other warnings are errors.
QUIET = (
    "ignore:Secure RNG turned off",
    "ignore:Using a non-full backward hook",
    "ignore:Full backward hook is firing",
    "ignore:Optimal order is the",
    "ignore::dpmerge.training.InsecureNoiseWarning",
    "ignore::dpmerge.training.OtherAccountingWarning",
    "ignore::dpmerge.training.UnknownLossesWarning",
    "ignore::dpmerge.training.LostStepsWarning",
    "ignore:Detected call of `lr_scheduler.step",
    "ignore:`torch.jit.script` is deprecated",
)


def data(records: int = 48, *, size: float = 1.0, seed: int = 0) -> TensorDataset:
    """Gaussian features times `size`; large ones make every gradient longer than the clip norm."""
    generator = torch.Generator().manual_seed(seed)
    inputs = size * torch.randn(records, FEATURES, generator=generator)
    return TensorDataset(inputs, torch.randint(0, CLASSES, (records,), generator=generator))


def same_records(records: int = 48, *, size: float = 100.0) -> TensorDataset:
    """One record many times: the sum of a batch is as long as all its clipped gradients together."""
    one = data(1, size=size)
    return TensorDataset(*(tensor.repeat(records, *[1] * (tensor.dim() - 1)) for tensor in one.tensors))


def mlp(width: int = 24, *, dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, CLASSES)).to(dtype)


def loader_of(dataset: TensorDataset, batches: str, batch_size: int, **settings: Any) -> DataLoader[Any]:
    """poisson (drawn later, by make_private), shuffled, in_order, or full."""
    if batches in ("poisson", "shuffled"):
        return DataLoader(dataset, batch_size=batch_size, shuffle=batches == "shuffled", **settings)
    sampler = SequentialSampler(dataset) if batches == "in_order" else RandomSampler(dataset)
    size = batch_size if batches == "in_order" else len(dataset)
    return DataLoader(dataset, batch_sampler=BatchSampler(sampler, size, drop_last=False), **settings)


@dataclass
class Private:
    """What make_private returned, and what went into it."""

    engine: PrivacyEngine
    model: Any
    plain: nn.Module
    optimizer: DPOptimizer
    loader: DataLoader[Any]
    criterion: Any
    wrapped: bool = True
    rows: int = 0  # seen since the weights last moved

    @property
    def weights(self) -> Tensor:
        """All trained weights in one vector, copied."""
        return torch.cat([p.detach().clone().flatten() for p in self.optimizer.params])

    def backward(self, inputs: Tensor, targets: Tensor) -> None:
        self.optimizer.zero_grad()
        self.rows += len(inputs)
        output = (self.model if self.wrapped else self.plain)(inputs)
        self.criterion(output, targets).backward()

    def step(self, batch: Any) -> None:
        self.backward(batch[0], batch[1])
        self.optimizer.step()

    def train(self, steps: int, physical: int | None = None, after: Callable[[], object] | None = None) -> None:
        """Exactly `steps` logical steps; `after` is called after each."""
        for _ in logical_steps(self, steps, physical):
            if after is not None:
                after()


def private(
    model: nn.Module | None = None,
    *,
    dataset: TensorDataset | None = None,
    batches: str = "poisson",
    mode: str = "hooks",
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    batch_size: int = 12,
    noise: float = 1.0,
    clip: float | list[float] = 1.0,
    criterion: Any = None,
    loss_reduction: str = "mean",
    loader: DataLoader[Any] | None = None,
    **settings: Any,
) -> Private:
    """A loop ready to run, made private by Opacus."""
    plain = mlp() if model is None else model
    inner = (optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1)))(
        [p for p in plain.parameters() if p.requires_grad]
    )
    if loader is None:
        loader = loader_of(data() if dataset is None else dataset, batches, batch_size)
    loss = criterion or nn.CrossEntropyLoss(reduction=loss_reduction)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = PrivacyEngine(accountant=settings.pop("accountant", "prv"))
        made = engine.make_private(
            module=plain,
            optimizer=inner,
            data_loader=loader,
            criterion=loss,
            noise_multiplier=noise,
            max_grad_norm=clip,
            poisson_sampling=batches == "poisson",
            grad_sample_mode=mode,
            loss_reduction=loss_reduction,
            clipping="per_layer" if isinstance(clip, list) else settings.pop("clipping", "flat"),
            **settings,
        )
    wrapped = settings.get("wrap_model", True)
    if len(made) == 4:
        wrapper, dp_optimizer, loss, dp_loader = made
    else:
        wrapper, dp_optimizer, dp_loader = made
    return Private(engine, wrapper, plain, dp_optimizer, dp_loader, loss, wrapped)


@contextmanager
def recorded(made: Private, folder: Path, **settings: Any) -> Iterator[Any]:
    """`record` with the arguments that hardly ever matter filled in."""
    given = {"run": "run", "dataset": "toy", "adjacency": "replace_one", "directory": folder} | settings
    if settings.get("criterion") is not None:
        made.criterion = settings["criterion"]  # what is said to be the loss is the loss
    with record(model=made.model, optimizer=made.optimizer, data_loader=made.loader, **given) as recorder:
        yield recorder


def started(made: Private, folder: Path, **settings: Any) -> Recorder:
    """`start`, likewise."""
    given = {"run": "run", "dataset": "toy", "adjacency": "replace_one", "directory": folder} | settings
    return start(model=made.model, optimizer=made.optimizer, data_loader=made.loader, **given)


@contextmanager
def refusing(
    made: Private, folder: Path, text: str = "", kind: type[DpmergeError] = RecordingError, **settings: Any
) -> Iterator[Any]:
    """`recorded`, of a loop that must be refused with this text."""
    with pytest.raises(kind, match=re.escape(text) or None), recorded(made, folder, **settings) as recorder:
        yield recorder


def refused_at_once(
    made: Private, folder: Path, text: str = "", kind: type[DpmergeError] = RecordingError, **settings: Any
) -> None:
    """`record` itself refuses, before the loop is entered, and leaves no folder behind."""
    with pytest.raises(kind, match=re.escape(text) or None), recorded(made, folder, **settings):
        pytest.fail("the record began")


def logical_steps(run: Private, steps: int, physical: int | None = None) -> Iterator[int]:
    """Train, and yield after each logical step."""
    taken = 0
    inner = run.optimizer.original_optimizer
    moved: list[bool] = []
    handle = inner.register_step_post_hook(lambda *_: moved.append(True))
    try:
        while taken < steps:
            for _ in _epoch(run, physical):
                if len(moved) > taken:
                    taken = len(moved)
                    yield taken
                    if taken == steps:
                        return
    finally:
        handle.remove()


def _epoch(run: Private, physical: int | None) -> Iterator[None]:
    if physical is None:
        for batch in run.loader:
            run.step(batch)
            yield
        return
    with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=physical, optimizer=run.optimizer) as split:
        for batch in split:
            run.step(batch)
            yield


@dataclass
class Truth:
    """What a run really did, seen from the parameters and from torch's own random numbers."""

    noise_stds: list[float] = field(default_factory=list)  # as asked of torch, one a step
    noises: list[Tensor] = field(default_factory=list)
    sums: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    moves: list[Tensor] = field(default_factory=list)  # of all weights
    rows: list[int] = field(default_factory=list)  # records in each logical batch

    @property
    def steps(self) -> int:
        return len(self.moves)


@contextmanager
def watched(run: Private) -> Iterator[Truth]:
    """Measure each step from outside: the noise by difference, the rate by how far the weights move."""
    truth = Truth()
    optimizer, inner = run.optimizer, run.optimizer.original_optimizer
    kind = type(optimizer)
    add_noise, normal, inner_step = kind.add_noise, torch.normal, type(inner).step
    asked: list[float] = []

    def noted_normal(*args: Any, **kwargs: Any) -> Tensor:
        asked.append(float(kwargs["std"]))
        return normal(*args, **kwargs)

    def noted_noise(self: DPOptimizer) -> None:
        before = torch.cat([p.summed_grad.detach().clone().flatten() for p in self.params])
        asked.clear()
        torch.normal = noted_normal
        try:
            add_noise(self)
        finally:
            torch.normal = normal
        after = torch.cat([p.grad.detach().clone().flatten() for p in self.params])
        assert len(set(asked)) == 1
        truth.noise_stds.append(asked[0])
        truth.noises.append(after.double() - before.double())
        truth.sums.append(before)

    def noted_step(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        before = run.weights
        truth.gradients.append(torch.cat([p.grad.detach().clone().flatten() for p in optimizer.params]))
        result = inner_step(self, *args, **kwargs)
        truth.moves.append(run.weights.double() - before.double())
        truth.rows.append(run.rows)
        run.rows = 0
        return result

    kind.add_noise, type(inner).step = noted_noise, noted_step
    try:
        yield truth
    finally:
        kind.add_noise, type(inner).step = add_noise, inner_step
