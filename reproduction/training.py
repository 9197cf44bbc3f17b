"""One DP-SGD run with Opacus under the recorder: full batch or Poisson, all at once or in physical batches.

Guarantees: a run is on disk finished, or it is trained again; the same setup and seed give the same run on the same
machine. The noise is seeded, so that anybody can repeat an experiment: never train like this for a release, for who
knows the seed can take the noise off again.
"""

from __future__ import annotations

import json
import math
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpmerge.evaluation.evaluation_progress import Progressed
from dpmerge.evaluation.evaluators import Evaluator
from dpmerge.report.whole_files import write_whole
from dpmerge.training import Ancestry, InsecureNoiseWarning, record

SECONDS_NAME = "seconds.json"


@dataclass(frozen=True, eq=False)
class Task:
    """A model, its private data, and the public images by which it is scored, in two halves."""

    dataset: str  # its name in manifests
    described: str  # its name in figures
    settings: Mapping[str, Any]  # all that makes the initial weights and the data what they are
    model: Callable[[], nn.Module]  # at its initial weights, the same every time
    private: TensorDataset
    evaluators: tuple[Evaluator, Evaluator]
    start: str = "random"  # where the initial weights come from: "random" or "public"
    physical_batch: int | None = None  # None: one linear layer, clipped without ever making its gradients
    feature_bound: float | None = None  # of the input of one linear layer, for hidden_state
    who: str = "python -m reproduction"  # vouches for its runs
    workers: int = 0  # processes that fetch records
    papers_size: bool = True  # network and images are as many as in the paper

    @property
    def records(self) -> int:
        return len(self.private)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a run is trained: one rate a step; `batch` is Poisson's expected batch, None every record in every step."""

    clip_norm: float
    noise_multiplier: float
    rates: tuple[float, ...]
    keep: tuple[int, ...] = ()  # steps after which the weights are kept, besides the last
    batch: int | None = None

    def document(self) -> dict[str, Any]:
        return asdict(self)


def steps_per_epoch(records: int, batch: int) -> int:
    """How many Poisson batches Opacus draws for an epoch."""
    return math.ceil(records / batch)


def warm_up_and_decay(peak: float, steps: int) -> tuple[float, ...]:
    """10 % of warm-up, then linear decay towards zero: the paper's schedule.

    >>> warm_up_and_decay(4.0, 20)[:4]
    (2.0, 4.0, 4.0, 3.7777777777777777)
    """
    rising = max(1, round(steps / 10))
    return tuple(peak * min((step + 1) / rising, 1.0, (steps - step) / (steps - rising)) for step in range(steps))


def train(task: Task, setup: Setup, directory: Path, *, noise_seed: int, progress: Progressed | None = None) -> float:
    """Train a run into a folder, unless it is there already; how many seconds that took, now or then."""
    if (known := _seconds(directory)) is not None:
        return known
    shutil.rmtree(directory, ignore_errors=True)  # begun and not finished
    directory.parent.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    with quiet(), threads(1 if task.physical_batch is None else torch.get_num_threads()):
        _train(task, setup, directory, noise_seed, progress or (lambda *_: None))
    seconds = time.perf_counter() - begun
    write_whole(directory / SECONDS_NAME, json.dumps(seconds).encode())
    return seconds


def _seconds(directory: Path) -> float | None:
    """How long a finished run took; None if there is none."""
    try:
        return float(json.loads((directory / SECONDS_NAME).read_text()))  # written last
    except FileNotFoundError:
        return None


def _train(task: Task, setup: Setup, directory: Path, noise_seed: int, progress: Progressed) -> None:
    device = training_device()
    model = task.model().to(device)
    ghost = task.physical_batch is None
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=setup.rates[0]),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(task.private, batch_size=setup.batch or task.records, num_workers=task.workers),
        noise_multiplier=setup.noise_multiplier,
        max_grad_norm=setup.clip_norm,
        grad_sample_mode="ghost" if ghost else "hooks",
    )
    private, optimizer, loader = made[0], made[1], made[-1]
    criterion: Any = made[2] if ghost else nn.CrossEntropyLoss()
    with record(
        model=private,
        optimizer=optimizer,
        data_loader=loader,
        run=directory.name,
        dataset=task.dataset,
        # The paper replaces a record; of Poisson batches Rényi divergences are known for an added one only.
        adjacency="replace_one" if setup.batch is None else "add_remove",
        public_divisor=True,
        directory=directory,
        checkpoint_at=setup.keep,
        criterion=criterion if task.feature_bound is not None else None,
        feature_bound=task.feature_bound,
        ancestry=Ancestry(start=task.start),  # type: ignore[arg-type]
        tuning="unknown",  # the paper does not say on what its settings were tuned
        stopping="fixed",
        schedule="fixed",
        noise_seed=noise_seed,
        who=task.who,
    ) as recorder:
        for features, labels in _batches(task, setup, loader, optimizer, device):
            for group in optimizer.param_groups:
                group["lr"] = setup.rates[min(recorder.steps, len(setup.rates) - 1)]
            optimizer.zero_grad()
            criterion(private(features.to(device)), labels.to(device)).backward()
            optimizer.step()
            progress(recorder.steps, len(setup.rates))
            if recorder.steps == len(setup.rates):  # within an epoch, where fewer steps were asked for
                break


def _batches(
    task: Task, setup: Setup, loader: DataLoader[Any], optimizer: Any, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Physical batches, of which the optimizer takes steps when they are whole: for as many steps as rates, or more."""
    if setup.batch is None and task.physical_batch is None:
        # What the loader would collate, record by record; moved to the device once.
        features, labels = (tensor.to(device) for tensor in task.private.tensors)
        for _ in setup.rates:
            yield features, labels
        return
    epochs = math.ceil(len(setup.rates) / len(loader))
    if task.physical_batch is None:
        for _ in range(epochs):
            yield from loader
        return
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=task.physical_batch, optimizer=optimizer
    ) as split:
        for _ in range(epochs):
            yield from split


def training_device() -> torch.device:
    """A GPU where there is one, with its faster matrix products: of 10 bits, clipped and noised like any others."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    return torch.device("cuda")


def placed(model: nn.Module, device: torch.device) -> nn.Module:
    """On the device, its convolutions laid out as the device reads them.

    For pretraining and scoring only: with channels last Opacus' gradients of single records are wrong (the recorder
    refuses them).
    """
    return model.to(device, memory_format=layout(device))  # type: ignore[call-overload, no-any-return]


def layout(device: torch.device) -> torch.memory_format:
    """Channels last on a GPU; elsewhere as it is, and as the committed results were computed."""
    return torch.channels_last if device.type == "cuda" else torch.preserve_format


@contextmanager
def threads(count: int) -> Iterator[None]:
    """A linear model is too small to share: on a busy machine threads that wait for each other take far longer."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def quiet() -> Iterator[None]:
    """Opacus and torch warn of what the recorder has looked into."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="opacus|torch")
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        warnings.filterwarnings("ignore", category=InsecureNoiseWarning)
        yield
