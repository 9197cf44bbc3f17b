"""Attacks on what the recorder's parts do together: kills in shuffled passes, changed bases, processes side by side."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import RandomSampler, SequentialSampler, WeightedRandomSampler

from dpmerge.errors import RecordingError
from dpmerge.portfolio import Portfolio
from dpmerge.training import frozen_tensors, step_count
from dpmerge.training.resumed_run import ResumedRun
from training.loops import QUIET, Private, data, loader_of, mlp, private, recorded, refused_at_once, refusing, started
from training.resuming import counted, document, finished_run, gaussian_mu, rebuilt

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]


@pytest.fixture(autouse=True)
def _each_step_is_counted_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks reserved ahead would hide by their length what is counted too little."""
    monkeypatch.setattr(step_count, "_LONGEST_BLOCK", 1)


def kill(folder: Path, made: Private, loop: Callable[[Private], object], **settings: Any) -> None:
    """What is on disk after that loop, and nothing else, is left of the run; `folder` may hold what was before."""
    going = folder.with_name(folder.name + "-going")
    if folder.exists():
        shutil.move(folder, going)
    recorder = started(made, going, **settings)
    try:
        loop(made)
    finally:
        shutil.copytree(going, folder)
        recorder.close(KeyboardInterrupt())
        shutil.rmtree(going)


def mu(folder: Path) -> float:
    (run,) = Portfolio.load(folder).runs
    return float(run.mechanism.profile().mu)  # type: ignore[attr-defined]


# Shuffled passes that a kill hides


def first_batches(passes: int) -> Callable[[Private], None]:
    """Two steps of a pass; then of each pass the first batch alone, in which the same record may be each time."""

    def loop(made: Private) -> None:
        made.train(2)
        for _ in range(passes):
            made.step(next(iter(made.loader)))

    return loop


def one_batch(steps: int) -> Callable[[Private], None]:
    """Two steps of a pass; then, for each batch that comes out of the loader, the same one again."""

    def loop(made: Private) -> None:
        first = next(iter(made.loader))
        made.step(first)
        taken = 0
        while taken < steps + 1:
            for _ in made.loader:
                made.step(first)
                taken += 1

    return loop


@pytest.mark.parametrize("cheat", [first_batches, one_batch])
@pytest.mark.parametrize("kept_at", [None, 2])
def test_lost_steps_of_shuffled_data_cost_the_passes_that_they_were(
    tmp_path: Path, cheat: Callable[[int], Callable[[Private], None]], kept_at: int | None
) -> None:
    """Killed after ten batches of ten passes: they are not two passes and a half."""
    folder = tmp_path / "run"
    made = private(mlp(), batches="shuffled")
    kill(folder, made, cheat(10), **({} if kept_at is None else {"checkpoint_at": [kept_at]}))
    made = private(mlp(), batches="shuffled") if kept_at is None else rebuilt(folder, batches="shuffled")
    with recorded(made, folder, resume=True):
        made.train(4)
    assert mu(folder) >= gaussian_mu([1.0] * 11) * (1 - 1e-12)


@pytest.mark.parametrize(("before", "steps", "passes"), [("full", 5, 5), ("two a pass", 6, 3), ("poisson", 5, 5)])
def test_lost_steps_cost_what_the_loader_made_of_them_that_drew_them(
    tmp_path: Path, before: str, steps: int, passes: int
) -> None:
    """Nothing was kept, so the loader may be another one: six steps were three passes, though now they were one."""
    folder = tmp_path / "run"
    if before == "two a pass":
        made = private(mlp(), batches="shuffled", batch_size=24)
    else:
        made = private(mlp(), batches=before, batch_size=47)
    kill(folder, made, lambda made: made.train(steps))
    made = private(mlp(), batches="shuffled", batch_size=8)
    with recorded(made, folder, resume=True):
        made.train(6)
    assert mu(folder) >= gaussian_mu([1.0] * (passes + 1)) * (1 - 1e-12)


# What was said of lost steps


def test_steps_said_to_be_unseen_are_not_forgotten_by_a_second_kill(tmp_path: Path) -> None:
    """No checkpoint, so no manifest in which somebody's word could stand: what is not on disk is not relied on."""
    folder = tmp_path / "run"
    kill(folder, private(mlp(), batches="full"), lambda made: made.train(5))
    try:
        kill(
            folder,
            private(mlp(), batches="full"),
            lambda made: made.train(1),
            resume=True,
            lost_steps="unseen",
            who="Ann",
        )
    except RecordingError as error:
        assert "unseen" in str(error)  # noqa: PT017
        shutil.move(folder.with_name("run-going"), folder)
    made = private(mlp(), batches="full")
    with recorded(made, folder, resume=True):
        made.train(1)
    vouched = sum(each["unseen_steps"] for each in document(folder)["resumed"])
    assert Portfolio.load(folder).runs[0].mechanism.steps + vouched >= 6


class Halved(nn.Module):
    """A loss of which the graph does not show that each record has its own."""

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets) / 2


@pytest.mark.parametrize("kept_at", [None, 2])
def test_losses_of_lost_steps_are_not_called_checked(tmp_path: Path, kept_at: int | None) -> None:
    """The checkpoint's were; those of the steps after it nobody could tell, and then came the kill."""
    folder = tmp_path / "run"

    def loop(made: Private) -> None:
        made.train(2)
        made.criterion = Halved()
        made.train(14)

    made = private(mlp(), batches="full")
    kill(folder, made, loop, **({} if kept_at is None else {"checkpoint_at": [kept_at]}))
    assert kept_at is None or document(folder)["record_losses"] == "checked"
    made = private(mlp(), batches="full") if kept_at is None else rebuilt(folder)
    with recorded(made, folder, resume=True):
        made.train(1)
    assert document(folder)["record_losses"] == "unknown"


# Checkpoints that are withdrawn


def test_steps_of_withdrawn_checkpoints_are_lost_at_the_noise_they_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base that changed where nobody looks: its checkpoints are withdrawn, their steps are not."""
    monkeypatch.setattr(frozen_tensors, "WHOLE_UP_TO", 0)
    monkeypatch.setattr(frozen_tensors, "VALUES_OF_EACH", 1)
    monkeypatch.setattr(frozen_tensors, "FEWEST_OF_EACH", 1)
    folder = tmp_path / "run"
    model = mlp()
    model[0].requires_grad_(False)  # type: ignore[index]
    made = private(model, batches="full", noise=0.1)
    recorder = started(made, folder, trained_only=True, checkpoint_at=[1])
    made.train(1)
    made.optimizer.noise_multiplier = 10.0
    made.train(1)
    model[0].weight.data.add_(1.0)  # type: ignore[index, operator, union-attr]
    model[0].bias.data.add_(1.0)  # type: ignore[index, operator, union-attr]
    with pytest.raises(RecordingError, match="changed in training"):
        recorder.close()
    again = mlp()
    again[0].requires_grad_(False)  # type: ignore[index]
    made = private(again, batches="full", noise=10.0)
    with recorded(made, folder, resume=True, trained_only=True):
        made.train(1)
    assert mu(folder) >= gaussian_mu([0.1, 10.0, 10.0]) * (1 - 1e-12)


# Two processes in one folder


def test_a_process_that_counts_on_while_another_takes_over_is_noticed(tmp_path: Path) -> None:
    """Between reading the count and taking it over a large model is hashed; what was reserved meanwhile counts."""
    folder = tmp_path / "run"
    made = private(mlp(), batches="full")
    first = started(made, folder, checkpoint_at=[2])
    made.train(3)
    again = rebuilt(folder)
    with pytest.MonkeyPatch.context() as patch:
        hashed = ResumedRun.require_weights

        def slowly(self: ResumedRun, tensors: Any) -> None:
            hashed(self, tensors)
            made.train(counted(folder) + 20)

        patch.setattr(ResumedRun, "require_weights", slowly)
        with pytest.raises(RecordingError, match="another process"):
            started(again, folder, resume=True)
    first.close(KeyboardInterrupt())
    assert document(folder)["checkpoints"][-1]["step"] == counted(folder)


# Averages


def test_an_average_that_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    finished_run(folder, 2, ema=0.9)
    (folder / "step-2.ema.safetensors").unlink()
    refused_at_once(rebuilt(folder), folder, "is not the average that the record kept", resume=True, ema=0.9)
    assert counted(folder) == 2


# Samplers changed in mid-run


def with_replacement(loader: Any) -> None:
    loader.sampler.replacement = True


def twice_the_data(loader: Any) -> None:
    loader.sampler._num_samples = 2 * len(loader.dataset)


def weighted(loader: Any) -> None:
    loader.batch_sampler.sampler = WeightedRandomSampler([1.0] * len(loader.dataset), len(loader.dataset))


def one_record(loader: Any) -> None:
    loader.batch_sampler.sampler = [0] * len(loader.dataset)


@pytest.mark.parametrize("change", [with_replacement, twice_the_data, weighted, one_record])
@pytest.mark.parametrize("seed", [None, 7])
def test_a_record_drawn_twice_in_one_pass_over_shuffled_data_is_refused(
    tmp_path: Path, change: Callable[[Any], None], seed: int | None
) -> None:
    """A pass costs one step because each record is in it once; later passes are looked at like the first."""
    made = private(mlp(), batches="shuffled")
    with refusing(made, tmp_path, "more than once in one pass", checkpoint_every=4, noise_seed=seed):
        made.train(4)
        change(made.loader)
        made.train(16)
    assert mu(tmp_path) <= gaussian_mu([1.0] * 2) * (1 + 1e-12)
    assert document(tmp_path)["finished"] is False


@pytest.mark.parametrize("change", [with_replacement, weighted, one_record])
def test_a_record_drawn_twice_in_one_full_batch_is_refused(tmp_path: Path, change: Callable[[Any], None]) -> None:
    """48 copies of one record are 48 times as long as one."""
    made = private(mlp(), loader=loader_of(data(), "full", 48), batches="full")
    with refusing(made, tmp_path, "or in one batch"):
        made.train(1)
        change(made.loader if change is not with_replacement else made.loader.batch_sampler)
        made.train(2)
    assert not (tmp_path / "privacy.json").exists()


class Chosen(RandomSampler):
    """Record 0 last."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(47, -1, -1))


def another_class(loader: Any) -> None:
    loader.sampler.__class__ = Chosen


def another_sampler(loader: Any) -> None:
    loader.batch_sampler.sampler = Chosen(loader.dataset, generator=loader.sampler.generator)


def in_order(loader: Any) -> None:
    loader.batch_sampler.sampler = SequentialSampler(loader.dataset)


@pytest.mark.parametrize("change", [another_class, another_sampler, in_order])
def test_an_order_of_another_sampler_is_not_called_secret(tmp_path: Path, change: Callable[[Any], None]) -> None:
    made = private(mlp(), batches="shuffled")
    with recorded(made, tmp_path, stopping="fixed") as recorder:
        change(made.loader)
        made.train(2)
    assert recorder.manifest().mechanism.order is None
